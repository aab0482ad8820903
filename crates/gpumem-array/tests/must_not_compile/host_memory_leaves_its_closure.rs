//! Borrowed host memory ends with the closure that it was registered for.

use gpumem_array::pool::Device;

fn escape(device: &Device, table: &mut [u32]) {
    let _ = device.with_host_memory(table, |memory| memory);
}

fn main() {}
