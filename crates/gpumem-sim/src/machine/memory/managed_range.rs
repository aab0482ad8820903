//! Attributes of a range of managed memory, reported if all of its pages agree.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::machine::Machine;
use crate::memory::managed::{Group, HOST_BIT, Place};
use gpumem_sys::types::{CUmem_range_attribute as Attribute, CUmemLocationType as LocationType};

impl Machine {
    /// An attribute as the driver writes it: one number, or for the devices that access a range as many numbers as the caller has
    /// room for.
    pub(crate) fn managed_attribute(
        &self,
        attribute: Attribute,
        address: u64,
        size_bytes: u64,
        data_bytes: usize,
    ) -> Answer<Vec<i32>> {
        self.check_managed(address, size_bytes)?;
        let count = data_bytes / size_of::<i32>();
        let is_list = attribute == Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
        if !data_bytes.is_multiple_of(size_of::<i32>()) || count == 0 || !is_list && count != 1 {
            return Err(INVALID_VALUE);
        }
        Ok(match attribute {
            Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => {
                let is_read_mostly = self.common(address, size_bytes, |group| group.is_read_mostly)?;
                vec![i32::from(is_read_mostly == Some(true))]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
                let groups = self.managed.groups(address, size_bytes)?;
                let all = groups.iter().fold(u128::MAX, |all, cell| all & cell.get().accessed_by);
                accessed_by(all, count)
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => {
                vec![number(self.common_place(address, size_bytes, |group| group.preferred)?)]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => {
                vec![number(self.common_place(address, size_bytes, |group| group.last_prefetch)?)]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => {
                vec![kind(self.common_place(address, size_bytes, |group| group.preferred)?)]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => {
                vec![kind(self.common_place(address, size_bytes, |group| group.last_prefetch)?)]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => {
                vec![id(self.common_place(address, size_bytes, |group| group.preferred)?)]
            }
            Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => {
                vec![id(self.common_place(address, size_bytes, |group| group.last_prefetch)?)]
            }
            _ => return Err(INVALID_VALUE),
        })
    }

    /// The value on which all groups of a range agree.
    fn common<T: PartialEq>(
        &self,
        address: u64,
        size_bytes: u64,
        of: impl Fn(&Group) -> T,
    ) -> Answer<Option<T>> {
        let mut values = self.managed.groups(address, size_bytes)?.iter().map(|cell| of(&cell.get()));
        let first = values.next().ok_or(INVALID_VALUE)?;
        Ok(values.all(|value| value == first).then_some(first))
    }

    fn common_place(
        &self,
        address: u64,
        size_bytes: u64,
        of: impl Fn(&Group) -> Option<Place>,
    ) -> Answer<Option<Place>> {
        Ok(self.common(address, size_bytes, of)?.flatten())
    }
}

fn accessed_by(places: u128, count: usize) -> Vec<i32> {
    let devices = (0..64).filter(|device| places >> device & 1 == 1);
    let host = (places & HOST_BIT != 0).then(|| Place::Host.number());
    devices.chain(host).chain(core::iter::repeat(NO_DEVICE)).take(count).collect()
}

fn number(place: Option<Place>) -> i32 {
    place.map_or(NO_DEVICE, Place::number)
}

fn kind(place: Option<Place>) -> i32 {
    let kind = match place {
        None => LocationType::CU_MEM_LOCATION_TYPE_INVALID,
        Some(Place::Host) => LocationType::CU_MEM_LOCATION_TYPE_HOST,
        Some(Place::Device(_)) => LocationType::CU_MEM_LOCATION_TYPE_DEVICE,
    };
    kind.0 as i32
}

/// The number of a place. The host is reported as 0.
fn id(place: Option<Place>) -> i32 {
    match place {
        Some(Place::Device(device)) => device as i32,
        Some(Place::Host) => 0,
        None => NO_DEVICE,
    }
}

/// The number for neither a device nor the host.
const NO_DEVICE: i32 = -2;
