//! Memory that one process hands to another, or takes back from itself. Each case holds on the software driver and on
//! a GPU. Where a refusal's code is not documented, only that it is one.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::cases;
use gpumem_tests::pool::{
    Device, ExportedBlock, ExportedHandle, ImportedBlock, Pool, PoolError, Profile, Stream,
};
use gpumem_tests::raw::{Raw, code};
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver, DriverError, DriverKind};
use std::ffi::c_char;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::null_mut;

const PIECE: usize = 2 << 20;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

cases! {
    /// Descriptors are supported, for handles and for pools.
    fn attributes(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handles = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        assert_eq!(gpu.attribute(handles), 1);
        let of_pools = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
        // A known difference: an H200 has fabric handles as well, the software driver has none.
        let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0 as i32;
        assert_eq!(of_pools & !fabric, POSIX.0 as i32);
        assert_eq!(gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), 1);
    }

    /// A handle that is imported where it was created is the same bytes, and is released by itself.
    fn a_handle_imported_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let import = gpu.import(gpu.export(handle).unwrap().as_raw_fd()).unwrap();
        let (here, there) = (gpu.place(handle), gpu.place(import));
        // SAFETY: the addresses are mapped.
        unsafe { driver.cuMemsetD8_v2(here, 7, PIECE).unwrap() };
        assert_eq!(gpu.read(there + 1000, 2).unwrap(), [7; 2]);
        gpu.take_away(here, handle);
        assert_eq!(gpu.read(there, 1).unwrap(), [7]);
        gpu.take_away(there, import);
    }

    /// The memory is there for as long as a descriptor of it.
    fn a_descriptor_keeps_memory(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 9, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [9]);
        let descriptor = gpu.export(handle).unwrap();
        gpu.take_away(base, handle);
        let again = gpu.import(descriptor.as_raw_fd()).unwrap();
        let base = gpu.place(again);
        assert_eq!(gpu.read(base + 77, 1).unwrap(), [9]);
        gpu.take_away(base, again);
    }

    /// What a handle was created for is told, and the handle of an address is the one that was mapped there.
    fn properties(driver: &Driver) {
        let gpu = Sharing::new(driver);
        for types in [NONE, POSIX] {
            let handle = gpu.create(types).unwrap();
            let base = gpu.place(handle);
            let (mut properties, mut again) = (CUmemAllocationProp::default(), 0);
            let address = std::ptr::without_provenance_mut(base as usize);
            // SAFETY: locals outlive the calls; the address is mapped.
            unsafe {
                driver.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).unwrap();
                assert_eq!(properties.requestedHandleTypes, types);
                driver.cuMemRetainAllocationHandle(&mut again, address).unwrap();
                assert_eq!(again, handle);
                driver.cuMemRelease(again).unwrap();
            }
            gpu.take_away(base, handle);
        }
    }

    /// A handle that was not created for it is not exported, and what is no export is not imported.
    fn refusals_of_handles(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let private = gpu.create(NONE).unwrap();
        assert_ne!(code(gpu.export(private).map(drop)), SUCCESS);
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(code(gpu.import(file.as_raw_fd()).map(drop)), SUCCESS);
        assert_eq!(code(gpu.import(0).map(drop)), CUresult::CUDA_ERROR_INVALID_VALUE);
        // SAFETY: the handle is live.
        unsafe { driver.cuMemRelease(private).unwrap() };
    }

    /// Another process writes into a handle that it has a descriptor of.
    fn a_handle_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if is_child() {
            let handle = gpu.import(inherited().as_raw_fd()).unwrap();
            let base = gpu.place(handle);
            assert_eq!(gpu.read(base + 5, 1).unwrap(), [1]);
            // SAFETY: the address is mapped.
            unsafe { driver.cuMemsetD8_v2(base, 2, PIECE / 2).unwrap() };
            assert_eq!(gpu.read(base, 1).unwrap(), [2]);
            return gpu.take_away(base, handle);
        }
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 1, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [1]);
        run_child(driver, "a_handle_in_another_process", gpu.export(handle).unwrap(), &[]);
        assert_eq!(gpu.read(base + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
        gpu.take_away(base, handle);
    }

    /// The same for a block of ours, which lies somewhere in a handle.
    fn our_block_in_another_process(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        if is_child() {
            let [offset_bytes, handle_bytes] = [0, 8].map(|at| {
                u64::from_le_bytes(child_bytes()[at..at + 8].try_into().unwrap())
            });
            let handle = ExportedHandle::new(inherited(), handle_bytes);
            let exported = ExportedBlock::new(vec![handle], offset_bytes, 300_000);
            let block = ImportedBlock::new(&device, exported).unwrap();
            assert_eq!(bytes_of(block.address(), &stream), [1; 4]);
            return set(block.address() + 1, 2, 2, &stream);
        }
        let builder = Pool::builder(&device).exportable();
        let pool = match builder.build() {
            // Built without the backend that can.
            Err(PoolError::NotWithBackend { .. }) => return,
            built => built.unwrap(),
        };
        let _in_front = pool.alloc(1000, &stream).unwrap();
        let block = pool.alloc(300_000, &stream).unwrap();
        set(block.address(), 1, 300_000, &stream);
        let mut exported = block.export().unwrap();
        assert_eq!(exported.handles.len(), 1);
        let handle = exported.handles.remove(0);
        let numbers = [exported.offset_bytes, handle.size_bytes, 0, 0, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
        run_child(driver, "our_block_in_another_process", handle.descriptor, &numbers);
        assert_eq!(bytes_of(block.address(), &stream), [1, 2, 2, 1]);
    }

    /// A large block lies in several handles, which are mapped side by side again. Numbers that don't fit are refused.
    fn our_block_imported_at_home(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let pool = match Pool::builder(&device).exportable().profile(Profile::Tight).build() {
            Err(PoolError::NotWithBackend { .. }) => return,
            built => built.unwrap(),
        };
        let _in_front = pool.alloc(3 << 20, &stream).unwrap();
        let block = pool.alloc(5 << 20, &stream).unwrap();
        set(block.address(), 7, 5 << 20, &stream);
        let exported = block.export().unwrap();
        assert!(exported.handles.len() > 1 && exported.offset_bytes > 0, "{exported:?}");
        {
            let import = ImportedBlock::new(&device, exported).unwrap();
            assert_eq!(bytes_of(import.address() + (5 << 20) - 4, &stream), [7; 4]);
            set(import.address() + (3 << 20), 8, 4, &stream);
        }
        assert_eq!(bytes_of(block.address() + (3 << 20), &stream), [8; 4]);
        let exported = block.export().unwrap();
        let wrong = ExportedBlock::new(exported.handles, exported.offset_bytes, 1 << 40);
        assert!(matches!(ImportedBlock::new(&device, wrong), Err(PoolError::OutOfBounds { .. })));
        let secret = Pool::new(&device).unwrap().alloc(100, &stream).unwrap();
        assert!(matches!(secret.export(), Err(PoolError::NotExportable)));
    }

    /// A pool that was not created for it is not exported, nor are its blocks, and what is no export is not imported.
    fn refusals_of_pools(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let (private, exporter) = (gpu.pool(NONE), gpu.pool(POSIX));
        let stream = gpu.stream().unwrap();
        assert_ne!(code(gpu.export_pool(private).map(drop)), SUCCESS);
        let block = gpu.alloc_from(private, stream).unwrap();
        assert_ne!(code(gpu.export_pointer(block).map(drop)), SUCCESS);
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(code(gpu.import_pool(file.as_raw_fd()).map(drop)), SUCCESS);
        // SAFETY: the block and the handles are live, and nothing uses them any more.
        unsafe {
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuMemPoolDestroy(private).unwrap();
            driver.cuMemPoolDestroy(exporter).unwrap();
        }
    }

    /// An imported pool allocates nothing and is no device's pool.
    fn an_imported_pool_allocates_nothing(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let exporter = gpu.pool(POSIX);
        let importer = gpu.import_pool(gpu.export_pool(exporter).unwrap().as_raw_fd()).unwrap();
        let stream = gpu.stream().unwrap();
        assert_ne!(code(gpu.alloc_from(importer, stream).map(drop)), SUCCESS);
        // SAFETY: the handles are live.
        unsafe {
            assert_ne!(code(driver.cuDeviceSetMemPool(gpu.device, importer)), SUCCESS);
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuMemPoolDestroy(importer).unwrap();
            driver.cuMemPoolDestroy(exporter).unwrap();
        }
    }

    /// A block that is imported where it was allocated is another address for the same bytes; the import goes first.
    fn a_block_imported_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let exporter = gpu.pool(POSIX);
        let importer = gpu.import_pool(gpu.export_pool(exporter).unwrap().as_raw_fd()).unwrap();
        let stream = gpu.stream().unwrap();
        let block = gpu.alloc_from(exporter, stream).unwrap();
        // SAFETY: the block is live, the import is freed before it, and all in one stream's order.
        unsafe {
            driver.cuMemsetD8Async(block, 3, PIECE, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            let alias = gpu.import_pointer(importer, gpu.export_pointer(block).unwrap()).unwrap();
            driver.cuMemsetD8Async(alias, 4, PIECE / 2, stream).unwrap();
            assert_eq!(gpu.read(block + PIECE as u64 / 2 - 1, 2).unwrap(), [4, 3]);
            driver.cuMemFreeAsync(alias, stream).unwrap();
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuMemPoolDestroy(importer).unwrap();
            driver.cuMemPoolDestroy(exporter).unwrap();
        }
    }

    /// Another process writes into a block that it has imported through the pool, and frees its import first.
    fn a_block_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let stream = gpu.stream().unwrap();
        if is_child() {
            let pool = gpu.import_pool(inherited().as_raw_fd()).unwrap();
            let block = gpu.import_pointer(pool, CUmemPoolPtrExportData { reserved: child_bytes() }).unwrap();
            assert_eq!(gpu.read(block + 5, 1).unwrap(), [1]);
            // SAFETY: the import is live and freed once, when all is done.
            unsafe {
                driver.cuMemsetD8Async(block, 2, PIECE / 2, stream).unwrap();
                driver.cuMemFreeAsync(block, stream).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
                driver.cuStreamDestroy_v2(stream).unwrap();
                driver.cuMemPoolDestroy(pool).unwrap();
            }
            return;
        }
        let pool = gpu.pool(POSIX);
        let block = gpu.alloc_from(pool, stream).unwrap();
        // SAFETY: the block is live, and the other process is done with it before it is freed.
        unsafe {
            driver.cuMemsetD8Async(block, 1, PIECE, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            // A block has no name for others before its pool has one.
            assert_eq!(code(gpu.export_pointer(block).map(drop)), CUresult::CUDA_ERROR_INVALID_VALUE);
            let descriptor = gpu.export_pool(pool).unwrap();
            let data = gpu.export_pointer(block).unwrap().reserved;
            run_child(driver, "a_block_in_another_process", descriptor, &data);
            assert_eq!(gpu.read(block + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuMemPoolDestroy(pool).unwrap();
        }
    }

    /// A handle of plain memory is for other processes: the one that made it is told that its context is the wrong one.
    fn memory_handles_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let memory = gpu.alloc(PIECE).unwrap();
        let (mut handle, mut opened) = (CUipcMemHandle::default(), 0);
        // SAFETY: locals outlive the calls; the memory is freed once.
        unsafe {
            driver.cuIpcGetMemHandle(&mut handle, memory).unwrap();
            let refused = driver.cuIpcOpenMemHandle_v2(&mut opened, handle, LAZY_PEERS);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// So is a handle of an event.
    fn event_handles_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let (event, mut opened) = (gpu.interprocess_event(), null_mut());
        let mut handle = CUipcEventHandle::default();
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuIpcGetEventHandle(&mut handle, event).unwrap();
            let refused = driver.cuIpcOpenEventHandle(&mut opened, handle);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            driver.cuEventDestroy_v2(event).unwrap();
        }
    }

    /// Memory of a pool, and events that were not made for it, have no handles for other processes; an event for them
    /// has no time.
    fn refusals_of_handles_for_processes(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let (stream, event) = (gpu.stream().unwrap(), gpu.event().unwrap());
        // SAFETY: the block is live until it is freed; the stream and locals outlive the calls.
        unsafe {
            let block = gpu.alloc_async(PIECE, stream).unwrap();
            let of_pool = driver.cuIpcGetMemHandle(&mut CUipcMemHandle::default(), block);
            assert_eq!(code(of_pool), CUresult::CUDA_ERROR_INVALID_VALUE);
            let of_event = driver.cuIpcGetEventHandle(&mut CUipcEventHandle::default(), event);
            assert_ne!(code(of_event), SUCCESS);
            let timed = driver.cuEventCreate(&mut null_mut(), CUevent_flags::CU_EVENT_INTERPROCESS.0);
            assert_eq!(code(timed), CUresult::CUDA_ERROR_INVALID_VALUE);
            let nobody = driver.cuIpcOpenMemHandle_v2(&mut 0, CUipcMemHandle::default(), LAZY_PEERS);
            assert_ne!(code(nobody), SUCCESS);
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// Another process opens plain memory and writes into it.
    fn plain_memory_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if is_child() {
            let handle = CUipcMemHandle { reserved: child_bytes().map(|byte| byte as c_char) };
            let (mut memory, mut again) = (0, 0);
            // SAFETY: locals outlive the calls; the memory is open while it is used.
            unsafe {
                driver.cuIpcOpenMemHandle_v2(&mut memory, handle, LAZY_PEERS).unwrap();
                driver.cuIpcOpenMemHandle_v2(&mut again, handle, LAZY_PEERS).unwrap();
                assert_eq!(memory, again);
                driver.cuIpcCloseMemHandle(again).unwrap();
                assert_eq!(gpu.read(memory + 5, 1).unwrap(), [1]);
                driver.cuMemsetD8_v2(memory, 2, PIECE / 2).unwrap();
                driver.cuCtxSynchronize().unwrap();
                driver.cuIpcCloseMemHandle(memory).unwrap();
            }
            return;
        }
        let memory = gpu.alloc(PIECE).unwrap();
        let mut handle = CUipcMemHandle::default();
        // SAFETY: a local outlives the call; the other process is done with the memory before it is freed.
        unsafe {
            driver.cuMemsetD8_v2(memory, 1, PIECE).unwrap();
            driver.cuCtxSynchronize().unwrap();
            driver.cuIpcGetMemHandle(&mut handle, memory).unwrap();
            let bytes = handle.reserved.map(|byte| byte as u8);
            run_child(driver, "plain_memory_in_another_process", Stdio::null(), &bytes);
            assert_eq!(gpu.read(memory + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// Another process waits for an event, on the host and on a stream, and records it.
    fn an_event_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let stream = gpu.stream().unwrap();
        if is_child() {
            let handle = CUipcEventHandle { reserved: child_bytes().map(|byte| byte as c_char) };
            let mut event = null_mut();
            // SAFETY: a local outlives the call; stream and event are live.
            unsafe {
                driver.cuIpcOpenEventHandle(&mut event, handle).unwrap();
                driver.cuEventSynchronize(event).unwrap();
                driver.cuStreamWaitEvent(stream, event, 0).unwrap();
                driver.cuEventRecord(event, stream).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
                driver.cuEventQuery(event).unwrap();
                driver.cuEventDestroy_v2(event).unwrap();
                driver.cuStreamDestroy_v2(stream).unwrap();
            }
            return;
        }
        let (event, memory) = (gpu.interprocess_event(), gpu.alloc(PIECE).unwrap());
        let mut handle = CUipcEventHandle::default();
        // SAFETY: a local outlives the call; stream, event and memory are live.
        unsafe {
            driver.cuIpcGetEventHandle(&mut handle, event).unwrap();
            driver.cuMemsetD8Async(memory, 1, PIECE, stream).unwrap();
            driver.cuEventRecord(event, stream).unwrap();
            let bytes = handle.reserved.map(|byte| byte as u8);
            run_child(driver, "an_event_in_another_process", Stdio::null(), &bytes);
            driver.cuEventSynchronize(event).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuMemFree_v2(memory).unwrap();
        }
    }
}

/// Fills some bytes, and waits.
fn set(address: u64, value: u8, size_bytes: usize, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    // SAFETY: the bytes are their owner's until the stream has been waited for.
    unsafe { stream.device().driver().cuMemsetD8Async(address, value, size_bytes, stream.raw()).unwrap() };
    stream.synchronize().unwrap();
}

fn bytes_of(address: u64, stream: &Stream) -> [u8; 4] {
    let _bound = stream.device().bind().unwrap();
    let mut bytes = [0; 4];
    // SAFETY: a local outlives the call, which returns when the bytes are there.
    unsafe { stream.device().driver().cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, 4).unwrap() };
    bytes
}

/// Runs a case once more, in a process that has a descriptor as its standard input and bytes in its environment.
fn run_child(driver: &Driver, case: &str, descriptor: impl Into<Stdio>, bytes: &[u8]) {
    let mounted = if driver.kind() == DriverKind::Cuda { "cuda" } else { "sim" };
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{mounted}::{case}"), "--nocapture"])
        .env(CHILD, bytes)
        .stdin(descriptor)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "the other process: {text}");
}

/// The descriptor that this process was started with. Not as it is: to the driver, 0 is a null pointer.
fn inherited() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The bytes that this process was started with.
fn child_bytes() -> [u8; 64] {
    let text = std::env::var(CHILD).unwrap();
    std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap())
}

const CHILD: &str = "SHARING_CHILD";
const LAZY_PEERS: u32 = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;

/// Device 0 with its primary context current, and memory of it to share.
struct Sharing(Raw);

impl Deref for Sharing {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.0
    }
}

impl Sharing {
    fn new(driver: &Driver) -> Self {
        Self(Raw::new(driver).unwrap())
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> i32 {
        let mut value = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.device).unwrap() };
        value
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    fn create(&self, types: CUmemAllocationHandleType) -> Result<u64, DriverError> {
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: types,
            location: self.location(),
            ..Default::default()
        };
        let mut handle = 0;
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, PIECE, &properties, 0)? };
        Ok(handle)
    }

    fn export(&self, handle: u64) -> Result<OwnedFd, DriverError> {
        let mut descriptor = -1;
        // SAFETY: a local outlives the call, and the descriptor is the caller's.
        unsafe {
            self.driver.cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)?;
            Ok(OwnedFd::from_raw_fd(descriptor))
        }
    }

    fn import(&self, descriptor: i32) -> Result<u64, DriverError> {
        let mut handle = 0;
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemImportFromShareableHandle(&mut handle, shareable, POSIX)? };
        Ok(handle)
    }

    fn pool(&self, types: CUmemAllocationHandleType) -> CUmemoryPool {
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: types,
            location: self.location(),
            ..Default::default()
        };
        let mut pool = null_mut();
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemPoolCreate(&mut pool, &props).unwrap() };
        pool
    }

    fn alloc_from(&self, pool: CUmemoryPool, stream: CUstream) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: a local outlives the call; the handles are live.
        unsafe { self.driver.cuMemAllocFromPoolAsync(&mut address, PIECE, pool, stream)? };
        Ok(address)
    }

    fn export_pool(&self, pool: CUmemoryPool) -> Result<OwnedFd, DriverError> {
        let mut descriptor = -1;
        // SAFETY: a local outlives the call, and the descriptor is the caller's.
        unsafe {
            self.driver.cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, POSIX, 0)?;
            Ok(OwnedFd::from_raw_fd(descriptor))
        }
    }

    fn import_pool(&self, descriptor: i32) -> Result<CUmemoryPool, DriverError> {
        let mut pool = null_mut();
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemPoolImportFromShareableHandle(&mut pool, shareable, POSIX, 0)? };
        Ok(pool)
    }

    fn export_pointer(&self, address: u64) -> Result<CUmemPoolPtrExportData, DriverError> {
        let mut data = CUmemPoolPtrExportData::default();
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemPoolExportPointer(&mut data, address)? };
        Ok(data)
    }

    fn import_pointer(
        &self,
        pool: CUmemoryPool,
        mut data: CUmemPoolPtrExportData,
    ) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: locals outlive the call; the pool is live.
        unsafe { self.driver.cuMemPoolImportPointer(&mut address, pool, &mut data)? };
        Ok(address)
    }

    fn interprocess_event(&self) -> CUevent {
        let flags = CUevent_flags::CU_EVENT_INTERPROCESS.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        let mut event = null_mut();
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuEventCreate(&mut event, flags).unwrap() };
        event
    }

    /// Maps a handle at an address of its own.
    fn place(&self, handle: u64) -> u64 {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let wish = CUmemAccessDesc { location: self.location(), flags };
        let mut base = 0;
        // SAFETY: locals outlive the calls; the handle is live and the range was just reserved.
        unsafe {
            self.driver.cuMemAddressReserve(&mut base, PIECE, 0, 0, 0).unwrap();
            self.driver.cuMemMap(base, PIECE, 0, handle, 0).unwrap();
            self.driver.cuMemSetAccess(base, PIECE, &wish, 1).unwrap();
        }
        base
    }

    /// Undoes [`Sharing::place`] and releases the handle.
    fn take_away(&self, base: u64, handle: u64) {
        // SAFETY: what was queued for the range has been waited for.
        unsafe {
            self.driver.cuCtxSynchronize().unwrap();
            self.driver.cuMemUnmap(base, PIECE).unwrap();
            self.driver.cuMemAddressFree(base, PIECE).unwrap();
            self.driver.cuMemRelease(handle).unwrap();
        }
    }
}
