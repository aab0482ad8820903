//! The time that an operation takes on a device, by the rates of [`Costs`].

use crate::config::cost::Costs;
use crate::stream::operation::{Fill, Route};

impl Costs {
    /// A copy.
    pub(crate) fn of_copy(&self, route: Route, size_bytes: u64) -> u64 {
        let bytes_per_us = match route {
            Route::Up => self.upload_bytes_per_us,
            Route::Down => self.download_bytes_per_us,
            Route::DownPageable => self.staged_download_bytes_per_us,
            Route::Within => self.within_bytes_per_us,
            Route::Across { direct: true } => self.peer_bytes_per_us,
            Route::Across { direct: false } => self.staged_peer_bytes_per_us,
        };
        self.copy_ns + transfer_ns(size_bytes, bytes_per_us)
    }

    /// A copy of bytes staged from pageable memory.
    pub(crate) fn of_staged(&self, size_bytes: u64) -> u64 {
        self.copy_ns + transfer_ns(size_bytes, self.staged_upload_bytes_per_us)
    }

    /// A memset.
    pub(crate) fn of_fill(&self, fill: &Fill) -> u64 {
        let size_bytes = fill.width.saturating_mul(fill.height).saturating_mul(fill.pattern_bytes);
        self.fill_ns + transfer_ns(size_bytes, self.fill_bytes_per_us)
    }

    /// Page faults: moving pages of managed memory to the device that uses them.
    pub(crate) fn of_faults(&self, size_bytes: u64) -> u64 {
        transfer_ns(size_bytes, self.fault_bytes_per_us)
    }

    /// A prefetch of managed memory.
    pub(crate) fn of_prefetch(&self, is_to_host: bool, size_bytes: u64) -> u64 {
        let rates = [self.prefetch_bytes_per_us, self.prefetch_to_host_bytes_per_us];
        self.mark_ns + transfer_ns(size_bytes, rates[usize::from(is_to_host)])
    }
}

fn transfer_ns(size_bytes: u64, bytes_per_us: u64) -> u64 {
    (u128::from(size_bytes) * 1_000 / u128::from(bytes_per_us.max(1))) as u64
}
