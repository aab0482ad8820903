//! Size classes of blocks up to 1 MiB: what a magazine keeps apart. Pure.
//!
//! | request | classes | waste within a block |
//! | --- | --- | --- |
//! | up to 2 KiB | every 256 bytes | below 256 bytes |
//! | up to 64 KiB | 8 in a doubling | at most 12.5 % of the request |
//! | up to 1 MiB | 32 in a doubling | at most 3.2 % of the request |
//!
//! Every class is a multiple of 256 bytes, so blocks that lie side by side keep the alignment. Small blocks are little of
//! what programs hold; large ones are held to tighter classes because there waste counts. Where memory is plentiful a request
//! may get a piece of a larger class ([`SizeClass::nearly`]).

/// One size class. Orders by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// How many there are.
    pub const COUNT: usize = FINE_FIRST as usize + 4 * FINE_STEPS as usize;

    /// The largest request that has a class.
    pub const SIZE_BYTES_MAX: u64 = 1 << 20;

    /// The smallest class that a request fits in; `None` for nothing and for more than a mebibyte.
    #[inline]
    pub const fn of(size_bytes: u64) -> Option<Self> {
        // Nothing becomes the largest number.
        let last_byte = size_bytes.wrapping_sub(1);
        if last_byte < FINE_BYTES {
            Some(Self(BY_UNIT[(last_byte / UNIT_BYTES) as usize]))
        } else if last_byte < Self::SIZE_BYTES_MAX {
            Some(Self(BY_FINE_UNIT[(last_byte / FINE_UNIT_BYTES) as usize]))
        } else {
            None
        }
    }

    /// The next ones: up to a quarter larger, or twice as large where that is little.
    pub fn nearly(self) -> impl Iterator<Item = Self> {
        let size_bytes = self.size_bytes();
        let most_bytes = size_bytes + if size_bytes < FINE_BYTES { size_bytes } else { size_bytes / 4 };
        (self.index() + 1..Self::COUNT)
            .map_while(Self::at)
            .take_while(move |class| class.size_bytes() <= most_bytes)
    }

    /// What a block of the class occupies.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        SIZES_BYTES[self.0 as usize] as u64
    }

    /// Its place among the classes, from 0.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The class at a place, counted from 0.
    #[inline]
    pub fn at(index: usize) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u8)) } else { None }
    }

    /// How many blocks move at once between a magazine and the depot.
    pub const fn batch_count(self) -> usize {
        let fitting = (BATCH_BYTES / self.size_bytes()) as usize;
        if fitting < BATCH_COUNT_MIN {
            BATCH_COUNT_MIN
        } else if fitting > BATCH_COUNT_MAX {
            BATCH_COUNT_MAX
        } else {
            fitting
        }
    }
}

/// The step up to `LINEAR_BYTES`, and the alignment of every block.
const UNIT_BYTES: u64 = 256;

/// Up to here a class for every unit.
const LINEAR_BYTES: u64 = 1 << LINEAR_BITS;
const LINEAR_BITS: u32 = 11;

/// From there on so many classes in a doubling.
const COARSE_STEPS: u32 = 1 << COARSE_BITS;
const COARSE_BITS: u32 = 3;
const COARSE_FIRST: u32 = (LINEAR_BYTES / UNIT_BYTES) as u32;

/// And from here on so many.
const FINE_BYTES: u64 = 1 << FINE_DOUBLING;
const FINE_DOUBLING: u32 = 16;
const FINE_STEPS: u32 = 1 << FINE_BITS;
const FINE_BITS: u32 = 5;
const FINE_FIRST: u32 = COARSE_FIRST + (FINE_DOUBLING - LINEAR_BITS) * COARSE_STEPS;

/// A batch is about this much, within the bounds on its count.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_COUNT_MIN: usize = 4;
const BATCH_COUNT_MAX: usize = 128;

/// The smallest step from there on.
const FINE_UNIT_BYTES: u64 = FINE_BYTES / FINE_STEPS as u64;

/// The class of each multiple of a unit, and of each of the larger units: an allocation looks once instead of counting.
static BY_UNIT: [u8; (FINE_BYTES / UNIT_BYTES) as usize] = by_unit(UNIT_BYTES);
static BY_FINE_UNIT: [u8; (SizeClass::SIZE_BYTES_MAX / FINE_UNIT_BYTES) as usize] = by_unit(FINE_UNIT_BYTES);

const fn by_unit<const COUNT: usize>(unit_bytes: u64) -> [u8; COUNT] {
    let (mut classes, mut class, mut unit) = ([0; COUNT], 0, 0);
    while unit < COUNT {
        while (upper_bound_bytes(class) as u64) < (unit as u64 + 1) * unit_bytes {
            class += 1;
        }
        classes[unit] = class as u8;
        unit += 1;
    }
    classes
}

/// What each class occupies.
static SIZES_BYTES: [u32; SizeClass::COUNT] = {
    let mut sizes_bytes = [0; SizeClass::COUNT];
    let mut index = 0;
    while index < SizeClass::COUNT {
        sizes_bytes[index] = upper_bound_bytes(index as u32);
        index += 1;
    }
    sizes_bytes
};

const fn upper_bound_bytes(index: u32) -> u32 {
    let (first, steps, doubling, bits) = if index < COARSE_FIRST {
        return (index + 1) * UNIT_BYTES as u32;
    } else if index < FINE_FIRST {
        (COARSE_FIRST, COARSE_STEPS, LINEAR_BITS, COARSE_BITS)
    } else {
        (FINE_FIRST, FINE_STEPS, FINE_DOUBLING, FINE_BITS)
    };
    let doubling = doubling + (index - first) / steps;
    (steps + (index - first) % steps + 1) << (doubling - bits)
}
