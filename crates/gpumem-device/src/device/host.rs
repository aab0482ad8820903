//! Host memory: for integrated devices, which use it, and for reports about pinned memory.

use gpumem_sys::Driver;

/// The memory that the system can still give to an integrated device. `None` if unknown: the driver's figure is then used, which omits
/// memory that the system can reclaim.
///
/// A driver with an extension answers for the system. Otherwise, Linux reports the figure; elsewhere, a system library would be needed. The
/// limit of a container is not applied, because the driver's figure ignores it too.
pub fn available_to(driver: &Driver, ordinal: u32) -> Option<u64> {
    match driver.extension() {
        Some(extension) => extension.available_bytes(ordinal),
        None => system_bytes(),
    }
}

/// Free memory of the host, or of the container if that has less. `None` if the system does not report it.
pub fn free_bytes() -> Option<u64> {
    let host_bytes = system_bytes()?;
    let bytes_of = |path| read(path)?.trim().parse::<u64>().ok();
    let container = bytes_of("/sys/fs/cgroup/memory.max").zip(bytes_of("/sys/fs/cgroup/memory.current"));
    let container_bytes = container.map(|(most_bytes, used_bytes)| most_bytes.saturating_sub(used_bytes));
    Some(container_bytes.map_or(host_bytes, |container_bytes| container_bytes.min(host_bytes)))
}

/// The memory that the system can give to programs without swapping: free and reclaimable memory.
fn system_bytes() -> Option<u64> {
    available_bytes(&read("/proc/meminfo")?)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The figure `MemAvailable` of `/proc/meminfo`, which is in KiB.
fn available_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read_in_bytes() {
        let text = "MemTotal:       16 kB\nMemFree:         1 kB\nMemAvailable:    12 kB\n";
        assert_eq!(available_bytes(text), Some(12 << 10));
        assert_eq!((available_bytes("MemTotal: 1 kB"), available_bytes("MemAvailable: x kB")), (None, None));
        assert_eq!(free_bytes().is_some(), cfg!(target_os = "linux"));
    }
}
