//! Blocks that are sent over Unix sockets, and messages that are not blocks.

use crate::sharing::blocks::{bytes_of, device_and_stream, set};
use crate::sharing::child::{inherited, is_child, run_child};
use gpumem_tests::cases;
use gpumem_tests::pool::{
    BadArgument, Device, DeviceError, ExportedBlock, ExportedHandle, ImportedBlock, Pool, PoolError, Profile,
    SocketError, Unsupported,
};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A pool whose blocks can be exported; `None` if the backend that supports exports is not built in.
pub(crate) fn exportable(device: &Device) -> Option<Pool> {
    match Pool::builder(device).conf("exportable:true").unwrap().profile(Profile::Tight).build() {
        Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => None,
        built => Some(built.unwrap()),
    }
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

/// The bytes of a header: its mark, and three numbers.
fn header(mark: &[u8; 8], numbers: [u64; 3]) -> Vec<u8> {
    [&mark[..], numbers.map(u64::to_le_bytes).as_flattened()].concat()
}

const MARK: &[u8; 8] = b"gpumem\x00\x01";

/// The result of receiving what `write` sends before it closes its end.
fn received(write: impl FnOnce(&mut UnixStream)) -> Result<ExportedBlock, SocketError> {
    let (mut here, there) = UnixStream::pair().unwrap();
    write(&mut here);
    drop(here);
    ExportedBlock::receive(&there)
}

cases! {
    /// Several blocks of one and of many handles go to another process through one socket, in order; some are empty.
    fn blocks_go_to_another_process(driver: &Driver) {
        let (device, stream) = device_and_stream(driver);
        let sizes = [300_000, 0, 40 << 20, 5 << 20];
        if is_child() {
            let socket = UnixStream::from(inherited());
            let blocks = sizes.map(|_| ImportedBlock::receive(&device, &socket).unwrap());
            for (value, (block, size_bytes)) in (1..).zip(blocks.iter().zip(sizes)) {
                assert_eq!(block.size_bytes(), size_bytes);
                if size_bytes > 0 {
                    assert_eq!(bytes_of(block.address(), &stream), [value; 4]);
                    assert_eq!(bytes_of(block.address() + size_bytes - 4, &stream), [value; 4]);
                    set(block.address() + 1, 9, 2, &stream);
                }
            }
            assert!(matches!(ImportedBlock::receive(&device, &socket), Err(SocketError::Closed)));
            return;
        }
        let Some(pool) = exportable(&device) else { return };
        let blocks = sizes.map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap());
        let (here, there) = UnixStream::pair().unwrap();
        for (value, block) in (1..).zip(&blocks) {
            if block.size_bytes() > 0 {
                set(block.address(), value, block.size_bytes() as usize, &stream);
            }
            block.send(&here).unwrap();
        }
        here.shutdown(Shutdown::Write).unwrap();
        run_child(driver, module_path!(), "blocks_go_to_another_process", OwnedFd::from(there), &[]);
        for (value, block) in (1..).zip(&blocks).filter(|(_, block)| block.size_bytes() > 0) {
            assert_eq!(bytes_of(block.address(), &stream), [value, 9, 9, value]);
        }
    }

    /// Descriptors that are not memory, and sizes that are not those of the memory, are refused by the import.
    fn wrong_descriptors_and_sizes(driver: &Driver) {
        let (device, stream) = device_and_stream(driver);
        let import = |exported: ExportedBlock| {
            let (here, there) = UnixStream::pair().unwrap();
            exported.send(&here).unwrap();
            ImportedBlock::receive(&device, &there).map(drop)
        };
        let of = |descriptor, size_bytes| vec![ExportedHandle::new(descriptor, size_bytes)];
        let refused = import(ExportedBlock::new(of(null(), 2 << 20), 0, 2 << 20));
        assert!(matches!(refused, Err(SocketError::Pool(PoolError::Device(DeviceError::Driver(_))))), "{refused:?}");
        let Some(pool) = exportable(&device) else { return };
        let block = pool.alloc(2 << 20, &stream).unwrap();
        for (size_bytes, offset_bytes) in [(1 << 50, 0), (u64::MAX, 0), (5, 0), (0, 0), (4 << 20, 2 << 20)] {
            let mut exported = block.export().unwrap();
            let handle = exported.handles.remove(0);
            let wrong = ExportedBlock::new(of(handle.descriptor, size_bytes), offset_bytes, 2 << 20);
            let refused = import(wrong);
            assert!(matches!(refused, Err(SocketError::Pool(_))), "{size_bytes} bytes: {refused:?}");
        }
        for (offset_bytes, size_bytes, overflows) in
            [(u64::MAX, 1, true), (0, u64::MAX, false), (1 << 50, 1 << 50, false)]
        {
            let exported = block.export().unwrap();
            let refused = import(ExportedBlock::new(exported.handles, offset_bytes, size_bytes));
            let Err(SocketError::Pool(refused)) = refused else { panic!("{refused:?}") };
            match overflows {
                true => assert!(matches!(refused, PoolError::BadArgument(BadArgument::SizeOverflow { .. })), "{refused:?}"),
                false => assert!(matches!(refused, PoolError::BadArgument(BadArgument::OutOfBounds { .. })), "{refused:?}"),
            }
        }
        let secret = Pool::new(&device).unwrap().alloc(100, &stream).unwrap();
        let (here, _there) = UnixStream::pair().unwrap();
        assert!(matches!(secret.send(&here), Err(SocketError::Pool(PoolError::Unsupported(Unsupported::Export)))));
    }
}

#[test]
fn a_closed_socket() {
    let empty = ExportedBlock::new(Vec::new(), 0, 0);
    assert!(matches!(received(|_| ()), Err(SocketError::Closed)));
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    assert!(matches!(empty.send(&here), Err(SocketError::Closed)));
    // A peer that is gone with bytes unread.
    let (mut here, there) = UnixStream::pair().unwrap();
    here.write_all(&[0]).unwrap();
    drop(there);
    assert!(matches!(ExportedBlock::receive(&here), Err(SocketError::Closed)));
}

#[test]
fn messages_that_are_not_blocks() {
    let mark = received(|socket| socket.write_all(&header(b"gpumem\x00\x02", [0; 3])).unwrap());
    assert!(matches!(mark, Err(SocketError::NotABlock(mark)) if mark == *b"gpumem\x00\x02"));
    let text = received(|socket| socket.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n").unwrap());
    let text = text.unwrap_err();
    assert!(matches!(&text, SocketError::NotABlock(mark) if mark == b"GET / HT"), "{text}");
    for count in [(1 << 20) + 1, u64::MAX] {
        let many = received(|socket| socket.write_all(&header(MARK, [count, 0, 0])).unwrap());
        assert!(matches!(many, Err(SocketError::TooManyHandles { .. })));
    }
}

#[test]
fn messages_that_end_early() {
    for length in [1, 8, 31] {
        let cut = received(|socket| socket.write_all(&header(MARK, [1, 0, 0])[..length]).unwrap());
        let is_right = |bytes: usize, all: usize| (bytes, all) == (length, 32);
        assert!(
            matches!(cut, Err(SocketError::Truncated { received_bytes, expected_bytes }) if is_right(received_bytes, expected_bytes))
        );
    }
    for length in [0, 3, 8] {
        let cut = received(|socket| {
            socket.write_all(&header(MARK, [2, 0, 0])).unwrap();
            socket.write_all(&[0; 8][..length]).unwrap();
        });
        let is_right = |bytes: usize, all: usize| (bytes, all) == (length, 16);
        assert!(
            matches!(cut, Err(SocketError::Truncated { received_bytes, expected_bytes }) if is_right(received_bytes, expected_bytes))
        );
    }
}

#[test]
fn descriptors_that_are_missing_or_too_many() {
    let missing = received(|socket| {
        socket.write_all(&header(MARK, [2, 0, 0])).unwrap();
        socket.write_all(&[0; 16]).unwrap();
    });
    assert!(matches!(missing, Err(SocketError::Descriptors { received: 0, expected: 2 })));
    // The message of a block of three handles, received by parts: its descriptors do not belong to a header.
    let handles = (0..3).map(|_| ExportedHandle::new(null(), 1)).collect();
    let three = ExportedBlock::new(handles, 0, 0);
    let (here, there) = UnixStream::pair().unwrap();
    three.send(&here).unwrap();
    let mut header = [0; 24];
    std::io::Read::read_exact(&mut &there, &mut header).unwrap();
    let shifted = ExportedBlock::receive(&there);
    assert!(matches!(shifted, Err(SocketError::Descriptors { received: 3, expected: 0 })), "{shifted:?}");
}

/// A block of more handles than a message of the system can carry, and a slow sender.
#[test]
fn many_handles_arrive_in_order() {
    let files: Vec<_> = (0..300).map(|_| null()).collect();
    let handles =
        files.iter().zip(1..).map(|(file, size)| ExportedHandle::new(file.try_clone().unwrap(), size));
    let many = ExportedBlock::new(handles.collect(), 7, 8);
    let (here, there) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1));
        many.send(&here)
    });
    let arrived = ExportedBlock::receive(&there).unwrap();
    sender.join().unwrap().unwrap();
    assert!(arrived.handles.iter().map(|handle| handle.size_bytes).eq(1..=300));
    assert_eq!((arrived.offset_bytes, arrived.size_bytes), (7, 8));
    assert!(arrived.handles.iter().all(|handle| handle.descriptor.as_fd().try_clone_to_owned().is_ok()));
}

/// A timeout is an error of the system.
#[test]
fn a_socket_with_a_timeout() {
    let (_here, there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    assert!(matches!(ExportedBlock::receive(&there), Err(SocketError::Io(_))));
}
