//! cuda-core with memory of gpumem: values arrive, blocks stay until the work on them is complete and go back to the pool once, and a
//! context of another device is refused. A wrong result ends the program.
//!
//! With the argument `bench`, it prints the host time of cuda-core's own pool in the format that `cargo xtask bench --peer-file` reads.

mod bench;
mod shared;

use crate::shared::{CoreError, PoolMemory, from_host, stream, uninitialized};
use cuda_core::{Context, DeviceBuffer, RawDeviceBuffer};
use gpumem_pool::sys::Driver;
use gpumem_pool::{Device, Pool, PoolError};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Checked = Result<(), Box<dyn Error>>;
type Check = (&'static str, fn(&Pool, &Arc<Context>) -> Checked);

const CHECKS: &[Check] = &[
    ("values", values),
    ("a block stays until the work on it is complete", leases),
    ("memory moves between the streams of both", reuse),
    ("a block becomes a buffer and a block again", returned),
    ("a limit", limit),
    ("no elements", empty),
    ("a context of another device is refused", other_context),
];

fn main() -> Checked {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        return bench::run();
    }
    let pool = pool_of(0)?;
    let context = Context::new(0)?;
    for (name, check) in CHECKS {
        check(&pool, &context)?;
        println!("{name}: ok");
    }
    wait_until(&pool, 0)?;
    pool.check()?;
    context.check_err()?;
    Ok(())
}

fn pool_of(ordinal: u32) -> Result<Pool, Box<dyn Error>> {
    let driver = Driver::cuda().or_else(|_| Driver::drop_in())?;
    Ok(Pool::new(&Device::new(&driver, ordinal)?)?)
}

/// cuda-core drops what its work held on a thread of its own.
fn wait_until(pool: &Pool, in_use_bytes: u64) -> Checked {
    let deadline = Instant::now() + Duration::from_secs(20);
    while pool.status()?.in_use_bytes != in_use_bytes {
        if Instant::now() > deadline {
            let found = pool.status()?.in_use_bytes;
            return Err(format!("{found} bytes are in use, expected {in_use_bytes}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn numbers() -> Vec<u32> {
    (0..5000).collect()
}

fn values(pool: &Pool, context: &Arc<Context>) -> Checked {
    let on = context.new_stream()?;
    let first = from_host(pool, &on, &numbers())?;
    assert_eq!(pool.status()?.in_use_bytes, 20_000);
    assert_eq!(first.to_host_vec(&on)?, numbers());
    // SAFETY: the copy writes all elements, on the stream of the allocation.
    let mut second = unsafe { uninitialized::<u32>(pool, 5000, &on)? };
    second.copy_from_device_async(&first, &on)?;
    assert_eq!(second.to_host_vec(&on)?, numbers());
    second.zero_async(&on)?;
    assert_eq!(second.to_host_vec(&on)?, vec![0; 5000]);
    // Beside memory of cuda-core's own.
    let own = DeviceBuffer::from_host(&on, &numbers())?;
    second.copy_from_device_async(&own, &on)?;
    assert_eq!(second.to_host_vec(&on)?, numbers());
    Ok(())
}

fn leases(pool: &Pool, context: &Arc<Context>) -> Checked {
    wait_until(pool, 0)?;
    let on = context.new_stream()?;
    for _ in 0..20 {
        let first = from_host(pool, &on, &numbers())?;
        // SAFETY: the copy writes all elements, on the stream of the allocation.
        let mut second = unsafe { uninitialized::<u32>(pool, 5000, &on)? };
        second.copy_from_device_async(&first, &on)?;
        // Both are dropped while the copy is queued. A block that were freed now, and reused on another stream, would be a race.
        drop((first, second));
        let other = context.new_stream()?;
        let next = from_host(pool, &other, &[7_u32; 5000])?;
        assert_eq!(next.to_host_vec(&other)?, [7; 5000]);
    }
    on.synchronize()?;
    wait_until(pool, 0)
}

fn reuse(pool: &Pool, context: &Arc<Context>) -> Checked {
    let on = context.new_stream()?;
    let own = gpumem_pool::Stream::new(pool.device())?;
    for value in 0..20_u8 {
        let mut block = pool.alloc(1 << 20, &own)?;
        block.fill(0..1 << 20, value, &own)?;
        drop(block); // cuda-core's next buffer may get the memory, behind the fill
        // SAFETY: the fill writes all elements, on the stream of the allocation.
        let mut buffer = unsafe { uninitialized::<u8>(pool, 1 << 20, &on)? };
        buffer.zero_async(&on)?;
        assert!(buffer.to_host_vec(&on)?.iter().all(|byte| *byte == 0));
    }
    Ok(())
}

fn returned(pool: &Pool, context: &Arc<Context>) -> Checked {
    let (on, own) = (context.new_stream()?, gpumem_pool::Stream::new(pool.device())?);
    let mut block = pool.alloc(4096, &own)?;
    block.fill(0..4096, 3_u8, &own)?;
    let memory = PoolMemory::new(block, context)?;
    let storage = RawDeviceBuffer::foreign(memory.clone(), 4096);
    // SAFETY: all bytes are values, and only this buffer uses them.
    let mut buffer = unsafe { DeviceBuffer::<u8>::from_storage_copy(storage, 4096)? };
    assert_eq!(buffer.to_host_vec(&on)?, [3; 4096]);
    buffer.zero_async(&on)?;
    let Err(mut memory) = PoolMemory::into_block(memory) else { panic!("a buffer holds the block") };
    drop(buffer);
    on.synchronize()?;
    let block = loop {
        // The thread of cuda-core may not have dropped the last lease.
        match PoolMemory::into_block(memory) {
            Ok(block) => break block,
            Err(still) => memory = still,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // SAFETY: the stream lives until the end of this function.
    let named = unsafe { stream(pool.device(), &on)? };
    let mut back = [1_u8; 4096];
    block.copy_to_host(0, &mut back, &named)?;
    assert_eq!(back, [0; 4096]);
    Ok(())
}

fn limit(pool: &Pool, context: &Arc<Context>) -> Checked {
    let on = context.new_stream()?;
    let small = Pool::builder(pool.device()).conf("hard_limit:64MiB").map_err(PoolError::from)?.build()?;
    // SAFETY: nothing reads the elements.
    let refused = unsafe { uninitialized::<u8>(&small, 1 << 30, &on) };
    let Err(CoreError::Pool(error)) = refused else { panic!("1 GiB of 64 MiB") };
    assert!(error.is_out_of_memory());
    Ok(())
}

fn empty(pool: &Pool, context: &Arc<Context>) -> Checked {
    let on = context.new_stream()?;
    assert!(from_host::<u32>(pool, &on, &[])?.to_host_vec(&on)?.is_empty());
    // SAFETY: there are no elements.
    let refused = unsafe { uninitialized::<u64>(pool, usize::MAX, &on) };
    assert!(matches!(refused, Err(CoreError::TooManyElements { .. })));
    Ok(())
}

fn other_context(pool: &Pool, context: &Arc<Context>) -> Checked {
    let other = Context::new(1)?;
    let on = other.new_stream()?;
    let refused = from_host(pool, &on, &[1_u8]);
    assert!(matches!(refused, Err(CoreError::OtherContext { .. })));
    let block = pool.alloc(16, &gpumem_pool::Stream::new(pool.device())?)?;
    assert!(matches!(PoolMemory::new(block, &other), Err(CoreError::OtherContext { .. })));
    Ok(context.bind_to_thread()?)
}
