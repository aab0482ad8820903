//! [`Client`]: the bytes of one client. It is read only while no answer waits to be written, so a client that does not read costs one
//! answer.

use super::answer;
use super::descriptors::OpenDescriptor;
use rustix::event::PollFlags;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

pub(super) struct Client {
    pub(super) stream: UnixStream,
    kept: Option<OpenDescriptor>,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// The connection ends once the answer is written.
    is_last: bool,
    /// The last moment with progress.
    pub(super) since: Instant,
}

impl Client {
    pub(super) fn new(stream: UnixStream) -> Self {
        let kept = OpenDescriptor::new(&stream);
        Self {
            stream,
            kept,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            is_last: false,
            since: Instant::now(),
        }
    }

    /// Closes the connection.
    pub(super) fn end(self) {
        self.kept.iter().for_each(OpenDescriptor::end);
    }

    /// Writes as much of a message as the socket takes at once, and ends.
    pub(super) fn refuse(mut stream: UnixStream, problem: &str) {
        let _ = stream.write(answer::error(problem).as_bytes());
    }

    /// What to wait for.
    pub(super) fn awaits(&self) -> PollFlags {
        if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    pub(super) fn is_stuck(&self) -> bool {
        !self.output.is_empty()
    }

    /// Goes on after the socket became ready. False if the connection is over.
    pub(super) fn go_on(&mut self) -> bool {
        self.since = Instant::now();
        if self.output.is_empty() && !self.read() {
            return false;
        }
        loop {
            if !self.write() {
                return false;
            }
            if !self.output.is_empty() {
                return true;
            }
            if self.is_last {
                return false;
            }
            if !self.answer_next() {
                return true;
            }
        }
    }

    /// Reads once. False at the end, or after an error.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.input.extend(&bytes[..count]);
                true
            }
            Err(error) => is_temporary(&error),
        }
    }

    /// Writes what the socket takes. False after an error.
    fn write(&mut self) -> bool {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return false,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return is_temporary(&error),
            }
        }
        (self.output, self.written) = (Vec::new(), 0);
        true
    }

    /// Answers the next request, if all of it has been read.
    fn answer_next(&mut self) -> bool {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            if self.input.len() <= LINE_BYTES_MAX {
                return false;
            }
            self.end_with(answer::error("the request is longer than 64 KiB; send one request a line"));
            return true;
        };
        let line = String::from_utf8_lossy(&self.input[..end]).trim().to_string();
        if line.starts_with("GET ") && line.contains(" HTTP/") {
            // Its header ends with an empty line.
            let is_whole = self.input.windows(4).any(|bytes| bytes == b"\r\n\r\n")
                || self.input.windows(2).any(|bytes| bytes == b"\n\n");
            if is_whole {
                self.end_with(answer::to_http(&line));
            } else if self.input.len() > LINE_BYTES_MAX {
                self.end_with(answer::error("the header of the request is longer than 64 KiB"));
            }
            return is_whole || self.is_last;
        }
        // Any page that a browser shows can post a body through a proxy. Its lines are no requests.
        if line.contains(" HTTP/") {
            self.end_with(answer::to_http(&line));
            return true;
        }
        self.input.drain(..=end);
        self.output = answer::to_line(&line).into();
        true
    }

    fn end_with(&mut self, text: String) {
        (self.output, self.is_last) = (text.into(), true);
        self.input.clear();
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

const LINE_BYTES_MAX: usize = 64 << 10;
