//! The cost of calls for the host on the virtual clock: the base cost, the cost while the device is busy, for each other thread
//! in the driver, and by size.
//!
//! The driver serialises on one lock, so each other thread adds about an equal cost to a call. A call that is not in the table
//! costs as much as the cheap calls that reach the device.

use crate::machine::Machine;

/// The cost of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallCost {
    alone_ns: u64,
    /// The additional cost while a device has work.
    busy_ns: u64,
    /// The additional cost for each other thread in the driver.
    other_thread_ns: u64,
}

impl CallCost {
    /// The cost of a function, looked up when its entry is compiled.
    pub(crate) const fn of(name: &str) -> Self {
        let mut index = 0;
        while index < CALLS.len() {
            if is_equal(CALLS[index].0.as_bytes(), name.as_bytes()) {
                let [alone_ns, busy_ns, other_thread_ns] = CALLS[index].1;
                return Self { alone_ns, busy_ns, other_thread_ns };
            }
            index += 1;
        }
        Self { alone_ns: 100, busy_ns: 0, other_thread_ns: 250 }
    }
}

const fn is_equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// The base cost, the additional cost while busy, and the additional cost for each other thread, in nanoseconds, measured on one
/// H200, except `cuCtxGetId`, which was measured on an H100. If only a pair of calls was measured, each has half of the cost.
const CALLS: &[(&str, [u64; 3])] = &[
    ("cuInit", [208_000_000, 0, 0]),
    ("cuDevicePrimaryCtxRetain", [109_000_000, 0, 0]),
    ("cuCtxGetCurrent", [7, 0, 0]),
    ("cuCtxGetId", [10, 0, 0]),
    ("cuCtxSetCurrent", [13, 0, 0]),
    ("cuCtxSynchronize", [212, 0, 250]),
    ("cuStreamIsCapturing", [13, 0, 0]),
    ("cuStreamGetCtx", [13, 0, 0]),
    ("cuStreamGetId", [13, 0, 0]),
    ("cuStreamSynchronize", [134, 0, 250]),
    ("cuStreamQuery", [111, 0, 250]),
    ("cuStreamWaitEvent", [89, 0, 130]),
    ("cuEventCreate", [61, 0, 250]),
    ("cuEventDestroy_v2", [61, 0, 250]),
    ("cuEventRecord", [129, 0, 340]),
    ("cuEventQuery", [103, 1_126, 990]),
    ("cuMemPoolGetAttribute", [19, 0, 0]),
    ("cuMemPoolTrimTo", [19, 0, 0]),
    ("cuMemPoolSetAccess", [610_000, 0, 0]),
    ("cuPointerGetAttribute", [29, 0, 0]),
    ("cuMemGetInfo_v2", [3_345, 0, 0]),
    ("cuMemAlloc_v2", [700, 0, 1_075]),
    ("cuMemFree_v2", [700, 0, 1_075]),
    ("cuMemAllocAsync", [216, 0, 1_075]),
    ("cuMemAllocFromPoolAsync", [216, 0, 1_075]),
    ("cuMemFreeAsync", [216, 0, 1_075]),
    ("cuMemAllocManaged", [80_000, 0, 0]),
    ("cuMemcpyHtoDAsync_v2", [1_700, 0, 250]),
    ("cuMemsetD8Async", [1_470, 0, 250]),
    ("cuLaunchKernel", [2_700, 0, 250]),
    ("cuMemAddressReserve", [17_000, 0, 0]),
    ("cuMemCreate", [5_300, 20_700, 1_075]),
    ("cuMemMap", [400, 100, 1_075]),
    ("cuMemSetAccess", [16_100, 30_400, 1_075]),
    ("cuMemUnmap", [11_400, 6_600, 1_075]),
    ("cuMemRelease", [7_100, 12_900, 1_075]),
];

impl Machine {
    /// Charges the begin of a call, while this number of other threads are in the driver.
    pub(crate) fn charge_call(&mut self, cost: CallCost, other_threads: u64) {
        // Work that has run here may end later on the clock.
        let has_work = !self.active.is_empty() || self.work_ns > self.host_ns;
        let is_busy = self.config.costs.is_busy.unwrap_or(has_work);
        let busy_ns = if is_busy { cost.busy_ns } else { 0 };
        self.charge(cost.alone_ns + busy_ns + cost.other_thread_ns * other_threads);
    }

    /// Charges host time, given as the time on an H200's host.
    pub(crate) fn charge(&mut self, h200_ns: u64) {
        self.host_ns += h200_ns * self.config.costs.calls_percent / 100;
    }

    /// Charges the allocation or release of the pages of plain memory.
    pub(crate) fn charge_chunk(&mut self, size_bytes: u64) {
        self.charge(CHUNK_NS);
        self.charge_pages(size_bytes, CHUNK_NS_PER_MIB);
    }

    /// Charges a call that handles every page of this much memory.
    pub(crate) fn charge_pages(&mut self, size_bytes: u64, h200_ns_per_mib: u64) {
        self.charge(((u128::from(size_bytes) * u128::from(h200_ns_per_mib)) >> 20) as u64);
    }
}

const CHUNK_NS: u64 = 22_000;
const CHUNK_NS_PER_MIB: u64 = 135;
pub(crate) const PIN_NS_PER_MIB: u64 = 350_000;
pub(crate) const UNPIN_NS_PER_MIB: u64 = 70_000;
pub(crate) const REGISTER_NS_PER_MIB: u64 = 27_000;
pub(crate) const UNREGISTER_NS_PER_MIB: u64 = 13_000;
pub(crate) const CREATE_NS_PER_MIB: u64 = 8;
pub(crate) const RELEASE_NS_PER_MIB: u64 = 200;
/// The cost of each handle of a range after the first.
pub(crate) const ACCESS_NS_PER_HANDLE: u64 = 22_000;
pub(crate) const UNMAP_NS_PER_HANDLE: u64 = 13_600;
pub(crate) const ACCESS_NS_PER_MIB: u64 = 25;
pub(crate) const UNMAP_NS_PER_MIB: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_sys::Table;

    #[test]
    fn every_price_is_of_a_function_and_the_rest_cost_little() {
        for (name, [alone_ns, busy_ns, other_thread_ns]) in CALLS {
            let cost = CallCost { alone_ns: *alone_ns, busy_ns: *busy_ns, other_thread_ns: *other_thread_ns };
            assert_eq!(CallCost::of(name), cost);
            assert!(Table::SYMBOLS.iter().any(|symbol| symbol.name == *name), "{name}");
        }
        assert_eq!(CallCost::of("cuMemcpy").alone_ns, 100);
    }
}
