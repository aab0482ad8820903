//! Blocks of our own pool, exported and imported.

use crate::sharing::child::{inherited, is_child, run_child};
use gpumem_tests::cases;
use gpumem_tests::pool::{
    BadArgument, Device, ExportedBlock, ImportedBlock, Pool, PoolError, Profile, Stream, Unsupported,
};
use gpumem_tests::sys::Driver;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

cases! {
    /// A block of the pool, which is a part of a handle.
    fn our_block_in_another_process(driver: &Driver) {
        let (device, stream) = device_and_stream(driver);
        if is_child() {
            let block = ImportedBlock::receive(&device, &UnixStream::from(inherited())).unwrap();
            assert_eq!(bytes_of(block.address(), &stream), [1; 4]);
            return set(block.address() + 1, 2, 2, &stream);
        }
        let builder = Pool::builder(&device).conf("exportable:true").unwrap();
        let pool = match builder.build() {
            // The backend that supports exports is not built in.
            Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => return,
            built => built.unwrap(),
        };
        let _in_front = pool.alloc(1000, &stream).unwrap();
        let block = pool.alloc(300_000, &stream).unwrap();
        set(block.address(), 1, 300_000, &stream);
        let (here, there) = UnixStream::pair().unwrap();
        block.send(&here).unwrap();
        run_child(driver, module_path!(), "our_block_in_another_process", OwnedFd::from(there), &[]);
        assert_eq!(bytes_of(block.address(), &stream), [1, 2, 2, 1]);
    }

    /// A large block consists of several handles, which the import maps side by side. Invalid sizes and counts are refused.
    fn our_block_imported_at_home(driver: &Driver) {
        let (device, stream) = device_and_stream(driver);
        let pool = match Pool::builder(&device).conf("exportable:true").unwrap().profile(Profile::Tight).build() {
            Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => return,
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
        assert!(matches!(ImportedBlock::new(&device, wrong), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
        let nothing = pool.alloc(0, &stream).unwrap();
        let import = ImportedBlock::new(&device, nothing.export().unwrap()).unwrap();
        assert_eq!((import.address(), import.size_bytes()), (0, 0));
        let secret = Pool::new(&device).unwrap().alloc(100, &stream).unwrap();
        assert!(matches!(secret.export(), Err(PoolError::Unsupported(Unsupported::Export))));
    }
}

/// The first line of a child process.
pub(crate) fn device_and_stream(driver: &Driver) -> (Device, Stream) {
    let device = Device::new(driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    (device, stream)
}

/// Fills bytes and waits.
pub(crate) fn set(address: u64, value: u8, size_bytes: usize, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    // SAFETY: the caller owns the bytes until the stream was synchronised.
    unsafe { stream.device().driver().cuMemsetD8Async(address, value, size_bytes, stream.raw()).unwrap() };
    stream.synchronize().unwrap();
}

pub(crate) fn bytes_of(address: u64, stream: &Stream) -> [u8; 4] {
    let _bound = stream.device().bind().unwrap();
    let mut bytes = [0; 4];
    // SAFETY: a local outlives the call, which returns after the bytes were copied.
    unsafe { stream.device().driver().cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, 4).unwrap() };
    bytes
}
