//! [`BadArgument`]: an argument that no call with it can accept.

use gpumem_device::Bytes;
use gpumem_sys::text::{Shown, debug_is_display};

/// A mistake in an argument.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BadArgument {
    /// The requested alignment is not a power of two, or is too large.
    #[error("invalid alignment {alignment}; expected a power of two up to {largest}")]
    Alignment {
        /// The requested alignment.
        alignment: u64,
        /// The largest supported alignment.
        largest: u64,
    },
    /// A range is not within the block.
    #[error(
        "bytes {start} to {end} are outside the block, which has {size_bytes} bytes; use a range within the block"
    )]
    OutOfBounds {
        /// The requested start.
        start: u64,
        /// The requested end.
        end: u64,
        /// The size of the block.
        size_bytes: u64,
    },
    /// A range is not made of whole elements of the type.
    #[error(
        "bytes {start} to {end} are not whole elements of {element_bytes} bytes; use multiples of the element's size for \
         both ends"
    )]
    PartialElements {
        /// The requested start.
        start: u64,
        /// The requested end.
        end: u64,
        /// The size of an element.
        element_bytes: u64,
    },
    /// The source and the target of a copy within one block overlap.
    #[error(
        "bytes {from} to {} and {to} to {} of one block overlap, and a copy on the device has no order between its bytes; \
         copy through another block",
        .from.saturating_add(*.size_bytes), .to.saturating_add(*.size_bytes)
    )]
    Overlap {
        /// The start of the source, in bytes from the start of the block.
        from: u64,
        /// The start of the target, in bytes from the start of the block.
        to: u64,
        /// The size of each.
        size_bytes: u64,
    },
    /// Sizes from outside add up to more than an address can be.
    #[error("{what} add up to more than 2^64 bytes; check where they were computed or received")]
    SizeOverflow {
        /// The sizes.
        what: &'static str,
    },
    /// A range of sizes ends below its start.
    #[error(
        "no size lies between {} and {}; give the smaller size first",
        Bytes(*.min_bytes), Bytes(*.max_bytes)
    )]
    EmptyRange {
        /// The start of the range.
        min_bytes: u64,
        /// The end of the range.
        max_bytes: u64,
    },
    /// A hard limit or quota is below the smallest accepted value.
    #[error(
        "a hard limit or quota of {} for pool {} is too small: the minimum is {}; raise it where it was set \
         (GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, Pool::private or Pool::set_hard_limit)",
        Bytes(*.limit_bytes), Shown::name(.pool), Bytes(*.minimum_bytes)
    )]
    LimitTooSmall {
        /// The name of the pool.
        pool: String,
        /// The given limit, in bytes of this device.
        limit_bytes: u64,
        /// The smallest accepted limit.
        minimum_bytes: u64,
    },
}

debug_is_display!(BadArgument);
