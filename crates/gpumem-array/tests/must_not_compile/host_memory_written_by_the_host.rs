//! The host does not touch the slice while a device may write it.

use gpumem_array::pool::Device;

fn write(device: &Device, table: &mut [u32]) {
    let _ = device.with_host_memory(table, |_| table[0] = 1);
}

fn main() {}
