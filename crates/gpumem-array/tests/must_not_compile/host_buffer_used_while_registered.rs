//! A registered buffer belongs to its registration until `into_inner`.

use gpumem_array::pool::{Device, HostMemory};

fn read(device: &Device, buffer: Vec<u32>) -> u32 {
    let _memory = HostMemory::register(device, buffer);
    buffer[0]
}

fn main() {}
