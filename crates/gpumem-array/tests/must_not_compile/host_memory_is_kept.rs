//! Borrowed host memory cannot be stored outside the closure.

use gpumem_array::pool::{BorrowedHostMemory, Device};

fn keep<'a>(device: &Device, table: &'a mut [u32], kept: &mut Option<&'a BorrowedHostMemory<'a, u32>>) {
    let _ = device.with_host_memory(table, |memory| *kept = Some(memory));
}

fn main() {}
