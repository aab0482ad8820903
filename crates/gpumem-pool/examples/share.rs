//! A block that two processes use. The first process fills it and sends it over a Unix socket; the second, which the first has started,
//! reads and changes it in place.
//!
//! `cargo run -p gpumem-pool --features ipc --example share`, on a GPU or, without one, on the simulator. On Linux.

#![allow(clippy::print_stdout)] // printing is what it is for

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("receive") => linux::receive(),
        _ => linux::send(),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("blocks can be shared on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use gpumem_pool::{Device, ImportedBlock, Pool, Stream};
    use std::error::Error;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    const COUNT: usize = 1 << 20;

    pub(crate) fn send() -> Result<(), Box<dyn Error>> {
        let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
        let stream = Stream::new(&device)?;
        let pool = Pool::builder(&device).conf("backend:caching, exportable:true")?.build()?;
        let mut block = pool.alloc((COUNT * 4) as u64, &stream)?;
        let values: Vec<u32> = (0..COUNT as u32).collect();
        block.copy_from_host(0, &values, &stream)?; // complete when it returns

        let (mut socket, theirs) = UnixStream::pair()?;
        let mut other = Command::new(std::env::current_exe()?);
        let mut other = other.arg("receive").stdin(OwnedFd::from(theirs)).spawn()?;
        block.send(&socket)?;

        let mut done = [0];
        socket.read_exact(&mut done)?; // the other process has synchronized with its work
        let mut first = [0; 4];
        block.copy_to_host(0, &mut first, &stream)?;
        println!("{device}: the other process has made {first:?} of [0, 1, 2, 3]");
        assert_eq!(first, [7, 7, 2, 3]);
        assert!(other.wait()?.success());
        Ok(())
    }

    pub(crate) fn receive() -> Result<(), Box<dyn Error>> {
        let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
        let stream = Stream::new(&device)?;
        let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        let block = ImportedBlock::receive(&device, &socket)?;
        {
            let _bound = device.bind()?;
            // SAFETY: the block has these bytes, and the other process waits before it uses them.
            unsafe { device.driver().cuMemsetD32Async(block.address(), 7, 2, stream.raw())? };
        }
        stream.synchronize()?;
        socket.write_all(&[1])?;
        Ok(())
    }
}
