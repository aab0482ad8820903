//! How the processes of one host find each other: a Unix socket that rank 0 creates.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Connects the processes. Returns on rank 0 a socket to each of the other ranks, in their order, and on another rank the one to rank 0.
///
/// `fingerprint` stands for the options: ranks that train with different ones would wait for each other forever.
pub(crate) fn meet(path: &Path, rank: usize, count: usize, fingerprint: u64) -> Result<Vec<UnixStream>> {
    if rank == 0 {
        listen(path, count, fingerprint)
            .with_context(|| format!("meeting the other processes at {}", path.display()))
    } else {
        let socket = call(path, rank, fingerprint);
        Ok(vec![socket.with_context(|| format!("meeting rank 0 at {}", path.display()))?])
    }
}

/// Tells the other process that this one is ready.
pub(crate) fn tell(socket: &mut UnixStream) -> Result<()> {
    socket.write_all(&[0]).context("another rank has ended")
}

/// Waits until the other process is ready.
pub(crate) fn wait(socket: &mut UnixStream) -> Result<()> {
    socket.read_exact(&mut [0]).context("another rank has ended")
}

/// Waits until all processes are here.
pub(crate) fn barrier(sockets: &mut [UnixStream], is_first: bool) -> Result<()> {
    if is_first {
        sockets.iter_mut().try_for_each(wait)?;
        sockets.iter_mut().try_for_each(tell)
    } else {
        sockets.iter_mut().try_for_each(tell)?;
        sockets.iter_mut().try_for_each(wait)
    }
}

fn listen(path: &Path, count: usize, fingerprint: u64) -> Result<Vec<UnixStream>> {
    let listener = UnixListener::bind(path)?;
    let _file = Removed(path);
    listener.set_nonblocking(true)?;
    let started = Instant::now();
    let mut sockets: Vec<Option<UnixStream>> = (0..count).map(|_| None).collect();
    for present in 1..count {
        let (mut socket, _) = retry(started, || listener.accept())
            .with_context(|| format!("{present} of {count} ranks have come"))?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let [rank, theirs] = read_numbers(&mut socket)?;
        ensure!(theirs == fingerprint, "rank {rank} has other options than rank 0");
        match usize::try_from(rank).ok().and_then(|rank| sockets.get_mut(rank)) {
            Some(place @ None) if rank > 0 => *place = Some(socket),
            _ => bail!("there are two processes of rank {rank}"),
        }
    }
    let mut sockets: Vec<UnixStream> = sockets.into_iter().flatten().collect();
    for socket in &mut sockets {
        socket.set_read_timeout(None)?;
        socket.write_all(&[0])?;
    }
    Ok(sockets)
}

fn call(path: &Path, rank: usize, fingerprint: u64) -> Result<UnixStream> {
    let mut socket = retry(Instant::now(), || UnixStream::connect(path))?;
    let numbers = [rank as u64, fingerprint].map(u64::to_le_bytes);
    socket.write_all(numbers.as_flattened())?;
    socket.read_exact(&mut [0]).context("rank 0 has ended, or has other options")?;
    Ok(socket)
}

/// Retries while the other side is not there.
fn retry<T>(started: Instant, mut attempt: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        let result = attempt();
        let is_absent = |error: &std::io::Error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        };
        if result.as_ref().err().is_none_or(|error| !is_absent(error)) || started.elapsed() > PATIENCE {
            return result;
        }
        std::thread::sleep(PAUSE);
    }
}

fn read_numbers(socket: &mut UnixStream) -> Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    socket.read_exact(bytes.as_flattened_mut()).context("a process has ended before the training")?;
    Ok(bytes.map(u64::from_le_bytes))
}

/// Removes the file of the socket.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // At worst the file stays, and the next bind names it.
        let _ = std::fs::remove_file(self.0);
    }
}
