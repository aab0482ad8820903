//! Processes that are killed while they share memory. The other processes continue, with the memory or with an error that states
//! the reason.

use crate::sharing::blocks::{bytes_of, device_and_stream, set};
use crate::sharing::child::{
    Other, child_part, generation, inherited, leave_behind, say, say_and_stay, wait_for_orphanhood,
};
use crate::sharing::fixture::{PIECE, POSIX, Sharing};
use crate::sharing::plain::LAZY_PEERS;
use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::pool::{Block, Device, ImportedBlock, Pool, PoolError, Stream, Unsupported};
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver, DriverError, DriverKind};
use std::ffi::c_char;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::process::Stdio;
use std::ptr::null_mut;

const BLOCK_BYTES: u64 = 300_000;

cases! {
    /// If an importer is killed in the middle of its work, the exporter can still use the block and the pool, and can export
    /// again.
    fn the_importer_of_a_block_is_killed(driver: &Driver) {
        let (device, stream) = device_and_stream(driver);
        if generation() > 0 {
            let block = imported(&device, inherited());
            assert_eq!(bytes_of(block.address(), &stream), [1; 4]);
            set(block.address() + 1, 2, 2, &stream);
            queue(&device, &stream, block.address() + 4, 3);
            say_and_stay("at work");
        }
        let Some(pool) = exportable(&device) else { return };
        let block = pool.alloc(BLOCK_BYTES, &stream).unwrap();
        for _ in 0..2 {
            set(block.address(), 1, BLOCK_BYTES as usize, &stream);
            let case = (module_path!(), "the_importer_of_a_block_is_killed");
            dies_at_work(&mut Other::start(driver, case, sent(&block), &[]));
            assert_eq!(bytes_of(block.address(), &stream), [1, 2, 2, 1]);
        }
        let more = pool.alloc(5 << 20, &stream).unwrap();
        set(more.address(), 4, 5 << 20, &stream);
        drop((block, more));
        pool.reclaim().unwrap();
        assert_eq!(pool.check(), Ok(()));
        let status = pool.status().unwrap();
        assert_eq!((status.block_count, status.reserved_bytes), (0, 0));
        drop(pool.alloc(BLOCK_BYTES, &stream).unwrap());
    }

    /// If the exporter is killed, an imported block stays valid, and can be imported again.
    fn the_exporter_of_a_block_is_killed(driver: &Driver) {
        let case = (module_path!(), "the_exporter_of_a_block_is_killed");
        let (device, stream) = device_and_stream(driver);
        let pool = exportable(&device);
        match generation() {
            0 if pool.is_none() => {}
            0 => outlives(Other::start(driver, case, Stdio::null(), &[])),
            1 => {
                let block = pool.unwrap().alloc(BLOCK_BYTES, &stream).unwrap();
                set(block.address(), 1, BLOCK_BYTES as usize, &stream);
                leave_behind(driver, case, sent(&block), &[]);
                queue(&device, &stream, block.address() + 4, 3);
                say_and_stay("exported");
            }
            _ => {
                let exporter = parent_id();
                let block = imported(&device, inherited());
                assert_eq!(bytes_of(block.address(), &stream), [1; 4]);
                say("at work");
                wait_for_orphanhood(exporter);
                assert_eq!(bytes_of(block.address(), &stream), [1; 4]);
                set(block.address() + 1, 2, 2, &stream);
                let again = imported(&device, inherited());
                assert_eq!(bytes_of(again.address(), &stream), [1, 2, 2, 1]);
                drop(block);
                set(again.address(), 5, BLOCK_BYTES as usize, &stream);
                // The importer's own memory is not affected.
                let own = pool.unwrap().alloc(5 << 20, &stream).unwrap();
                set(own.address(), 4, 5 << 20, &stream);
                assert_eq!(bytes_of(again.address() + BLOCK_BYTES - 4, &stream), [5; 4]);
            }
        }
    }

    /// If an importer is killed, the driver's pool stays usable.
    fn the_importer_of_a_pool_is_killed(driver: &Driver) {
        let (gpu, stream) = Sharing::with_stream(driver);
        if generation() > 0 {
            let pool = gpu.import_pool(inherited().as_raw_fd()).unwrap();
            let block = gpu.import_pointer(pool, CUmemPoolPtrExportData { reserved: child_part(0) }).unwrap();
            assert_eq!(gpu.read(block, 1).unwrap(), [1]);
            // SAFETY: the import is live.
            unsafe { driver.cuMemsetD8Async(block, 2, PIECE / 2, stream).unwrap() };
            say_and_stay("at work");
        }
        let pool = gpu.pool(POSIX);
        let block = gpu.alloc_from(pool, stream).unwrap();
        // SAFETY: the blocks are live until they are freed, in the order of their stream.
        unsafe {
            driver.cuMemsetD8Async(block, 1, PIECE, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            let descriptor = gpu.export_pool(pool).unwrap();
            let data = gpu.export_pointer(block).unwrap().reserved;
            let case = (module_path!(), "the_importer_of_a_pool_is_killed");
            dies_at_work(&mut Other::start(driver, case, descriptor, &data));
            assert_eq!(gpu.read(block + PIECE as u64 - 1, 1).unwrap(), [1]);
            driver.cuMemFreeAsync(block, stream).unwrap();
            let next = gpu.alloc_from(pool, stream).unwrap();
            driver.cuMemsetD8Async(next, 3, PIECE, stream).unwrap();
            assert_eq!(gpu.read(next, 1).unwrap(), [3]);
            driver.cuMemFreeAsync(next, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
    }

    /// If the exporter is killed, a block of its pool stays valid for the importer.
    fn the_exporter_of_a_pool_is_killed(driver: &Driver) {
        let case = (module_path!(), "the_exporter_of_a_pool_is_killed");
        let (gpu, stream) = Sharing::with_stream(driver);
        match generation() {
            0 => outlives(Other::start(driver, case, Stdio::null(), &[])),
            1 => {
                let pool = gpu.pool(POSIX);
                let block = gpu.alloc_from(pool, stream).unwrap();
                // SAFETY: the block is live.
                unsafe {
                    driver.cuMemsetD8Async(block, 1, PIECE, stream).unwrap();
                    driver.cuStreamSynchronize(stream).unwrap();
                }
                let descriptor = gpu.export_pool(pool).unwrap();
                leave_behind(driver, case, descriptor, &gpu.export_pointer(block).unwrap().reserved);
                say_and_stay("exported");
            }
            _ => {
                let exporter = parent_id();
                let pool = gpu.import_pool(inherited().as_raw_fd()).unwrap();
                let data = CUmemPoolPtrExportData { reserved: child_part(0) };
                let block = gpu.import_pointer(pool, data).unwrap();
                say("at work");
                wait_for_orphanhood(exporter);
                // The vendor's driver destroys the pool some time after the end of its process, and then returns an error; the
                // simulator keeps it.
                if driver.kind() == DriverKind::Cuda {
                    match gpu.read(block, 1) {
                        Ok(bytes) => assert_eq!(bytes, [1]),
                        Err(error) => assert_eq!(error.code(), CUresult::CUDA_ERROR_INVALID_VALUE),
                    }
                    return;
                }
                assert_eq!(gpu.read(block, 1).unwrap(), [1]);
                // SAFETY: the imports are live until they are freed, each once.
                unsafe {
                    driver.cuMemsetD8Async(block, 2, PIECE, stream).unwrap();
                    // It is not documented whether an exported pointer of an ended process stays valid.
                    if let Ok(again) = gpu.import_pointer(pool, data) {
                        driver.cuMemFreeAsync(again, stream).unwrap();
                    }
                    assert_eq!(gpu.read(block, 1).unwrap(), [2]);
                    driver.cuMemFreeAsync(block, stream).unwrap();
                    driver.cuStreamSynchronize(stream).unwrap();
                }
            }
        }
    }

    /// Plain memory stays usable if a process that opened it is killed.
    fn the_process_that_opened_plain_memory_is_killed(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if generation() > 0 {
            let (stream, memory) = (gpu.stream(), open(driver, child_part(0)).unwrap());
            assert_eq!(gpu.read(memory, 1).unwrap(), [1]);
            // SAFETY: the memory is open, and the stream live.
            unsafe { driver.cuMemsetD8Async(memory, 2, PIECE / 2, stream).unwrap() };
            say_and_stay("at work");
        }
        let memory = gpu.alloc(PIECE).unwrap();
        // SAFETY: the process that opened the memory has ended before it is freed.
        unsafe {
            driver.cuMemsetD8_v2(memory, 1, PIECE).unwrap();
            driver.cuCtxSynchronize().unwrap();
            let case = (module_path!(), "the_process_that_opened_plain_memory_is_killed");
            dies_at_work(&mut Other::start(driver, case, Stdio::null(), &handle_of(driver, memory)));
            assert_eq!(gpu.read(memory + PIECE as u64 - 1, 1).unwrap(), [1]);
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// The simulator keeps plain memory for the processes that have it open, and returns an invalid handle for memory that is
    /// gone. The behaviour of the vendor's driver is not documented.
    fn the_owner_of_plain_memory_is_killed(driver: &Driver) {
        if driver.kind() == DriverKind::Cuda {
            return;
        }
        let case = (module_path!(), "the_owner_of_plain_memory_is_killed");
        let gpu = Sharing::new(driver);
        match generation() {
            0 => outlives(Other::start(driver, case, Stdio::null(), &[])),
            1 => {
                let memory = [gpu.alloc(PIECE).unwrap(), gpu.alloc(64 << 20).unwrap()];
                let (event, mut of_event) = (gpu.interprocess_event(), CUipcEventHandle::default());
                // SAFETY: the memory and the event are live, and a local outlives the call.
                unsafe {
                    driver.cuMemsetD8_v2(memory[0], 1, PIECE).unwrap();
                    driver.cuCtxSynchronize().unwrap();
                    driver.cuIpcGetEventHandle(&mut of_event, event).unwrap();
                }
                let of_event = of_event.reserved.map(|byte| byte as u8);
                let [first, second] = memory.map(|memory| handle_of(driver, memory));
                leave_behind(driver, case, Stdio::null(), &[first, second, of_event].concat());
                say_and_stay("exported");
            }
            _ => {
                let exporter = parent_id();
                let memory = open(driver, child_part(0)).unwrap();
                say("at work");
                wait_for_orphanhood(exporter);
                assert_eq!(gpu.read(memory, 1).unwrap(), [1]);
                assert_eq!(code(open(driver, child_part(1)).map(drop)), CUresult::CUDA_ERROR_INVALID_HANDLE);
                assert_eq!(open(driver, child_part(0)).unwrap(), memory);
                let handle = CUipcEventHandle { reserved: child_part(2).map(|byte| byte as c_char) };
                let mut event = null_mut();
                // SAFETY: the memory is open until it is closed, once for each time it was opened; a local outlives the call.
                unsafe {
                    driver.cuMemsetD8_v2(memory, 2, PIECE).unwrap();
                    assert_eq!(gpu.read(memory, 1).unwrap(), [2]);
                    driver.cuIpcCloseMemHandle(memory).unwrap();
                    driver.cuIpcCloseMemHandle(memory).unwrap();
                    // The event is not recorded again.
                    driver.cuIpcOpenEventHandle(&mut event, handle).unwrap();
                    driver.cuEventSynchronize(event).unwrap();
                    driver.cuEventDestroy_v2(event).unwrap();
                }
            }
        }
    }
}

/// Kills the first of two processes after the second has imported; the second must then pass.
fn outlives(mut first: Other) {
    dies_at_work(&mut first);
    first.wait_for_the_end();
}

/// Kills a child process while its work is pending.
fn dies_at_work(other: &mut Other) {
    other.wait_for("at work");
    other.kill();
}

/// Returns `None` if the backend that supports exports is not built in.
fn exportable(device: &Device) -> Option<Pool> {
    match Pool::builder(device).conf("exportable:true").unwrap().build() {
        Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => None,
        built => Some(built.unwrap()),
    }
}

/// A socket from which another process can import a block, twice.
fn sent(block: &Block) -> OwnedFd {
    let (here, there) = UnixStream::pair().unwrap();
    (0..2).for_each(|_| block.send(&here).unwrap());
    there.into()
}

fn imported(device: &Device, socket: OwnedFd) -> ImportedBlock {
    ImportedBlock::receive(device, &UnixStream::from(socket)).unwrap()
}

/// Queues work without waiting.
fn queue(device: &Device, stream: &Stream, address: u64, value: u8) {
    let _bound = device.bind().unwrap();
    for _ in 0..100 {
        // SAFETY: the process owns the bytes until it is killed.
        unsafe { device.driver().cuMemsetD8Async(address, value, 100, stream.raw()).unwrap() };
    }
}

fn handle_of(driver: &Driver, memory: u64) -> [u8; 64] {
    let mut handle = CUipcMemHandle::default();
    // SAFETY: a local outlives the call.
    unsafe { driver.cuIpcGetMemHandle(&mut handle, memory).unwrap() };
    handle.reserved.map(|byte| byte as u8)
}

fn open(driver: &Driver, bytes: [u8; 64]) -> Result<u64, DriverError> {
    let handle = CUipcMemHandle { reserved: bytes.map(|byte| byte as c_char) };
    let mut memory = 0;
    // SAFETY: a local outlives the call.
    unsafe { driver.cuIpcOpenMemHandle_v2(&mut memory, handle, LAZY_PEERS)? };
    Ok(memory)
}
