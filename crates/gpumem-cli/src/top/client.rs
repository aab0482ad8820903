//! A connection to the status socket of a process.

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(super) struct Client(BufReader<UnixStream>);

impl Client {
    pub(super) fn connect(path: &Path, timeout: Duration) -> std::io::Result<Self> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The answer to a request. An answer that states a problem is an error.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Value> {
        // A refused client is told why, and may find the connection closed before it has written.
        let sent = writeln!(self.0.get_mut(), "{request}");
        let mut line = String::new();
        let read = (&mut self.0).take(ANSWER_BYTES_MAX).read_line(&mut line);
        if line.is_empty() {
            sent.and(read.map(|_| ())).context("the process does not answer; it may be stopped or ending")?;
            bail!("the process has closed the connection; it may have ended");
        }
        let answer: Value = serde_json::from_str(&line)
            .context("the answer is not JSON; another program serves this socket")?;
        match answer.get("error").and_then(Value::as_str) {
            Some(problem) => bail!("{}", gpumem_trace::pool::sys::text::Shown::sentence(problem)),
            None => Ok(answer),
        }
    }
}

/// Connects without a wait: the queue of a stopped process may be full.
pub(super) fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

const ANSWER_BYTES_MAX: u64 = 256 << 20;
