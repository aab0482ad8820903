//! The status socket: a Unix socket over which a process answers questions about its pools while it runs. `GPUMEM_STATUS` turns it on.
//!
//! One thread serves all pools and all clients. It sleeps until a client writes, and takes no lock that a request of a pool takes for longer
//! than [`Pool::status`](crate::Pool::status) does. It keeps neither pools nor devices.
//!
//! A request is a line: a word with its arguments, or an object of JSON with the word as `do`. The answer is one line of JSON, an object
//! with `ok` or `error`, except for `prometheus`.
//!
//! | request | as JSON | answer |
//! | --- | --- | --- |
//! | `status` | `{"do":"status"}` | the process, and the status of each pool |
//! | `prometheus` | `{"do":"prometheus"}` | the text format of Prometheus, and an empty line |
//! | `record PATH` | `{"do":"record","path":"/…"}` | a recording of all pools of device memory begins, with the blocks that are live |
//! | `stop` | `{"do":"stop"}` | the recording ends |
//! | `flight` | `{"do":"flight"}` | the flight recorders write their files |
//! | `limit POOL soft|hard BYTES` | `{"do":"limit","pool":"…","kind":"soft","limit":"…"}` | a limit is set; POOL is a name or a number |
//! | `help` | `{"do":"help"}` | these requests |
//!
//! `GET /metrics` and `GET /status` of HTTP are answered too, one for each connection.
//!
//! | file | content |
//! | --- | --- |
//! | `place` | where the socket is, and what else is there |
//! | `server` | the thread: new clients, and which of them can go on |
//! | `client` | the bytes of one client |
//! | `descriptors` | what a forked child closes |
//! | `request` | what a line asks for; `answer`: what it is answered |

mod answer;
mod client;
#[allow(unsafe_code)]
mod descriptors;
mod place;
mod request;
mod server;

use gpumem_base::sync::Lock;
use place::{Choice, SocketPlace};
use std::path::PathBuf;

/// Serves the socket of this process, as the value of `GPUMEM_STATUS` says, if it is not served yet.
///
/// # Errors
///
/// The problem, and what to do.
pub(crate) fn serve(value: &str) -> Result<(), String> {
    let Some(choice) = Choice::parse(value)? else { return Ok(()) };
    let mut served = SERVED.lock();
    if served.is_some() {
        return Ok(());
    }
    let place = SocketPlace::open(&choice)?;
    let path = place.path.clone();
    server::start(place)
        .map_err(|error| format!("the thread of the status socket cannot be started ({error})"))?;
    *served = Some(path);
    Ok(())
}

/// True if this process serves its socket.
pub(crate) fn is_served() -> bool {
    !gpumem_sys::fork::is_child() && SERVED.lock().is_some()
}

static SERVED: Lock<Option<PathBuf>> = Lock::new(None);
