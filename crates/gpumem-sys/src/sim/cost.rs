//! What work costs on the virtual clock: one H200's figures, as fixed cost and bytes a microsecond.
//!
//! The clock is for elapsed times and never decides an order. The host's clock advances a little with every call and
//! jumps when the host waits; a stream's advances with its work.

use super::operation::{Fill, Route};

/// One call of the driver, on the host's clock.
pub(super) const CALL_NS: u64 = 100;
/// Starting a kernel. What it does inside is not priced.
pub(super) const LAUNCH_NS: u64 = 2_700;
/// Recording an event, waiting for one, allocating and freeing in stream order: next to nothing on the device.
pub(super) const MARK_NS: u64 = 100;

/// Moving bytes.
pub(super) fn copy_ns(route: Route, size_bytes: u64) -> u64 {
    let (fixed_ns, bytes_per_us) = match route {
        Route::Up => (2_540, 55_300),
        Route::Down => (2_540, 55_400),
        Route::DownPageable => (1_700, 19_300),
        // 3,741 GB/s read and written.
        Route::Within => (1_500, 1_870_000),
        Route::Across { direct: true } => (2_540, 396_000),
        Route::Across { direct: false } => (2_540, 38_300),
    };
    fixed_ns + transfer_ns(size_bytes, bytes_per_us)
}

/// Moving bytes that were staged from pageable memory.
pub(super) fn staged_ns(size_bytes: u64) -> u64 {
    1_700 + transfer_ns(size_bytes, 10_400)
}

/// Bringing pages of managed memory to a device that uses them: what a memset of 64 MiB takes more than on device
/// memory.
pub(super) fn fault_ns(size_bytes: u64) -> u64 {
    transfer_ns(size_bytes, 12_900)
}

/// Moving pages of managed memory ahead of use.
pub(super) fn prefetch_ns(is_to_host: bool, size_bytes: u64) -> u64 {
    MARK_NS + transfer_ns(size_bytes, if is_to_host { 22_400 } else { 48_000 })
}

/// A memset.
pub(super) fn fill_ns(fill: &Fill) -> u64 {
    1_470 + transfer_ns(fill.width.saturating_mul(fill.height).saturating_mul(fill.pattern_bytes), 3_741_000)
}

fn transfer_ns(size_bytes: u64, bytes_per_us: u64) -> u64 {
    (u128::from(size_bytes) * 1_000 / u128::from(bytes_per_us)) as u64
}
