//! Size classes of blocks up to 1 MiB, for which a magazine has one stack each. As in jemalloc, each doubling has a fixed number of
//! classes, with more classes for large blocks.
//!
//! | request | classes | waste within a block |
//! | --- | --- | --- |
//! | up to 2 KiB | every 256 bytes | below 256 bytes |
//! | up to 64 KiB | 8 in a doubling | at most 12.5 % of the request |
//! | up to 1 MiB | 32 in a doubling | at most 3.2 % of the request |
//!
//! Every class is a multiple of 256 bytes, so adjacent blocks keep the alignment. Small blocks are a small part of a program's
//! memory; larger ones have finer classes because their waste counts. While memory is plentiful a request may get a block of a
//! larger class ([`SizeClass::nearly`]).

/// One size class. Orders by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The number of classes.
    pub const COUNT: usize = FINE_FIRST as usize + 4 * FINE_STEPS as usize;

    /// The largest request that has a class, in bytes.
    pub const SIZE_BYTES_MAX: u64 = 1 << 20;

    /// The smallest class that fits a request; `None` for 0 and for more than [`SizeClass::SIZE_BYTES_MAX`].
    #[inline]
    pub const fn of(size_bytes: u64) -> Option<Self> {
        // 0 wraps to the largest number, which has no class.
        let last_byte = size_bytes.wrapping_sub(1);
        if last_byte < FINE_BYTES {
            Some(Self(BY_UNIT[(last_byte / UNIT_BYTES) as usize]))
        } else if last_byte < Self::SIZE_BYTES_MAX {
            Some(Self(BY_FINE_UNIT[(last_byte / FINE_UNIT_BYTES) as usize]))
        } else {
            None
        }
    }

    /// The next larger classes that may stand in for this one: up to a quarter larger, or up to twice as large below 64 KiB.
    pub fn nearly(self) -> impl Iterator<Item = Self> {
        let size_bytes = self.size_bytes();
        let most_bytes = size_bytes + if size_bytes < FINE_BYTES { size_bytes } else { size_bytes / 4 };
        (self.index() + 1..Self::COUNT)
            .map_while(Self::at)
            .take_while(move |class| class.size_bytes() <= most_bytes)
    }

    /// The size of a block of the class, in bytes.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        SIZES_BYTES[self.0 as usize] as u64
    }

    /// The index of the class, counted from 0.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The class with an index; `None` from [`SizeClass::COUNT`] on.
    #[inline]
    pub fn at(index: usize) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u8)) } else { None }
    }

    /// The number of blocks that move at once between a magazine and the depot.
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

/// The smallest step, and the alignment of every block.
const UNIT_BYTES: u64 = 256;

/// The end of the range with a class for each unit.
const LINEAR_BYTES: u64 = 1 << LINEAR_BITS;
const LINEAR_BITS: u32 = 11;

/// Classes in a doubling above `LINEAR_BYTES`.
const COARSE_STEPS: u32 = 1 << COARSE_BITS;
const COARSE_BITS: u32 = 3;
const COARSE_FIRST: u32 = (LINEAR_BYTES / UNIT_BYTES) as u32;

/// Classes in a doubling above `FINE_BYTES`.
const FINE_BYTES: u64 = 1 << FINE_DOUBLING;
const FINE_DOUBLING: u32 = 16;
const FINE_STEPS: u32 = 1 << FINE_BITS;
const FINE_BITS: u32 = 5;
const FINE_FIRST: u32 = COARSE_FIRST + (FINE_DOUBLING - LINEAR_BITS) * COARSE_STEPS;

/// The size of a batch, within the bounds on its number of blocks.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_COUNT_MIN: usize = 4;
const BATCH_COUNT_MAX: usize = 128;

/// The smallest step above `FINE_BYTES`.
const FINE_UNIT_BYTES: u64 = FINE_BYTES / FINE_STEPS as u64;

/// The class of each multiple of either unit, so that an allocation looks up its class instead of computing it.
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

/// The size of each class.
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
