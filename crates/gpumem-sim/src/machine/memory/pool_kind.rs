//! Pools of the three kinds of memory: creation, access, segments.

use crate::backing::Backing;
use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::plain::GAP_BYTES;
use crate::memory::pool::{Pool, Segment};
use crate::memory::pool_file::Sharing;
use crate::memory::pool_kind::{PoolKind, User};
use gpumem_sys::types::{
    CUmemAccess_flags as Access, CUmemAllocationHandleType as HandleType, CUmemAllocationType as Type,
    CUmemLocation, CUmemLocationType as Location, CUmemPoolProps,
};

impl Machine {
    /// Creates a pool. `home` is the device of the caller's context, for properties that name no device.
    pub(crate) fn pool_create(&mut self, props: &CUmemPoolProps, home: usize) -> Answer<Handle> {
        let (kind, device) = self.pool_kind(props, home)?;
        let is_private = props.handleTypes == HandleType::CU_MEM_HANDLE_TYPE_NONE;
        let is_bad = match kind {
            PoolKind::Device => false,
            PoolKind::Pinned => !is_private,
            PoolKind::Managed => !is_private || props.maxSize != 0,
        };
        if is_bad {
            return Err(INVALID_VALUE);
        }
        let sharing = Sharing::new(props.handleTypes, self.instance, device)?;
        let pool = Pool::new(device, false, props.maxSize as u64).shared(sharing);
        self.pools.insert(Pool { kind, ..pool })
    }

    fn pool_kind(&self, props: &CUmemPoolProps, home: usize) -> Answer<(PoolKind, usize)> {
        let CUmemLocation { type_: place, id } = props.location;
        let device = || self.device_index(id).map_err(|_| INVALID_VALUE);
        // The host has one NUMA node.
        let is_node = place == Location::CU_MEM_LOCATION_TYPE_HOST_NUMA && id == 0;
        let is_host = place == Location::CU_MEM_LOCATION_TYPE_HOST || is_node;
        match (props.allocType, place) {
            (Type::CU_MEM_ALLOCATION_TYPE_PINNED, Location::CU_MEM_LOCATION_TYPE_DEVICE) => {
                Ok((PoolKind::Device, device()?))
            }
            (Type::CU_MEM_ALLOCATION_TYPE_PINNED, _) if is_host => Ok((PoolKind::Pinned, home)),
            (Type::CU_MEM_ALLOCATION_TYPE_MANAGED, Location::CU_MEM_LOCATION_TYPE_DEVICE) => {
                Ok((PoolKind::Managed, device()?))
            }
            (
                Type::CU_MEM_ALLOCATION_TYPE_MANAGED,
                Location::CU_MEM_LOCATION_TYPE_NONE | Location::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
            ) => Ok((PoolKind::Managed, home)),
            (Type::CU_MEM_ALLOCATION_TYPE_MANAGED, _) if is_host => Ok((PoolKind::Managed, home)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Grants or revokes access to a pool. The owning device of a pool of device memory keeps its access.
    pub(crate) fn pool_set_access(&mut self, handle: Handle, user: User, flags: Access) -> Answer<()> {
        let (kind, owner) = self.pool(handle).map(|pool| (pool.kind, pool.device))?;
        match user {
            User::Device(device) if kind == PoolKind::Device => self.check_reach(device, owner)?,
            User::Host if kind == PoolKind::Device => return Err(NOT_SUPPORTED),
            _ => {}
        }
        let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
        let is_granted = match flags {
            Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => true,
            Access::CU_MEM_ACCESS_FLAGS_PROT_NONE
                if kind != PoolKind::Device || user != User::Device(owner) =>
            {
                false
            }
            _ => return Err(INVALID_VALUE),
        };
        match user {
            User::Host => pool.is_hosts = is_granted,
            User::Device(device) if is_granted => drop(pool.shared_with.insert(device)),
            User::Device(device) => drop(pool.shared_with.remove(&device)),
        }
        Ok(())
    }

    /// The granted access. Managed memory needs no grant.
    pub(crate) fn pool_access(&self, handle: Handle, user: User) -> Answer<Access> {
        let pool = self.pool(handle)?;
        let has_access = match user {
            User::Device(device) => {
                pool.kind == PoolKind::Device && pool.device == device || pool.shared_with.contains(&device)
            }
            User::Host => pool.kind == PoolKind::Pinned || pool.is_hosts,
        };
        Ok(if has_access {
            Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            Access::CU_MEM_ACCESS_FLAGS_PROT_NONE
        })
    }

    /// The user that a location names.
    pub(crate) fn user(&self, location: &CUmemLocation) -> Answer<User> {
        match location.type_ {
            Location::CU_MEM_LOCATION_TYPE_DEVICE => self.device_index(location.id).map(User::Device),
            Location::CU_MEM_LOCATION_TYPE_HOST
            | Location::CU_MEM_LOCATION_TYPE_HOST_NUMA
            | Location::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(User::Host),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Creates the memory of a segment, and returns its address.
    pub(crate) fn segment_map(&mut self, handle: Handle, size_bytes: u64) -> Answer<(u64, Segment)> {
        let (kind, device) =
            self.pools.get(handle).map(|pool| (pool.kind, pool.device)).ok_or(INVALID_VALUE)?;
        if kind == PoolKind::Device {
            self.admit(device, size_bytes)?;
            let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
            let (base, (backing, file_offset_bytes)) =
                pool.sharing.map(&mut self.devices[device], size_bytes)?;
            return Ok((base, Segment { backing, size_bytes, file_offset_bytes }));
        }
        // Free ranges of two segments never merge.
        let backing = Backing::new(size_bytes.checked_add(GAP_BYTES).ok_or(INVALID_VALUE)?)?;
        let base = backing.bytes().0.expose_provenance() as u64;
        if kind == PoolKind::Managed {
            self.managed.add(base, size_bytes, None);
        }
        Ok((base, Segment { backing, size_bytes, file_offset_bytes: 0 }))
    }

    pub(crate) fn segment_unmap(&mut self, kind: PoolKind, device: usize, base: u64, segment: Segment) {
        match kind {
            PoolKind::Device => return self.devices[device].unmap(base, segment.size_bytes, segment.backing),
            PoolKind::Pinned => {}
            PoolKind::Managed => self.managed_release(base),
        }
        self.linger(segment.backing);
    }

    /// True if a host-accessible address belongs to a pool.
    pub(crate) fn is_in_pool(&self, address: u64) -> bool {
        let holds = |pool: &Pool| pool.kind != PoolKind::Device && pool.bytes_at(address).is_some();
        self.pools.iter().any(|(_, pool)| holds(pool))
    }
}
