//! The one simulator of this process. It is never dropped: at exit the program's threads and static destructors may
//! still be calling.

use gpumem_sim::sys::env::{self, EnvError};
use gpumem_sim::sys::{Driver, Table};
use gpumem_sim::{SimConfig, SimError};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The simulator, once a call has started it; `None` if it could not be set up, which has been printed on standard error.
pub(crate) static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();

/// The process that started it.
pub(crate) static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// The exit status of a process with findings; 0 leaves its own.
pub(crate) static ERROR_EXITCODE: AtomicI32 = AtomicI32::new(0);

/// The driver's functions; `None` if the simulator could not be set up.
pub(crate) fn table() -> Option<&'static Table> {
    DRIVER.get_or_init(|| start().map_err(complain).ok()).as_ref().map(Driver::table)
}

fn start() -> Result<Driver, SimError> {
    STARTED_BY.store(std::process::id(), Ordering::Relaxed);
    ERROR_EXITCODE.store(error_exitcode()?, Ordering::Relaxed);
    gpumem_sim::driver(SimConfig::from_env()?)
}

fn error_exitcode() -> Result<i32, EnvError> {
    let name = "GPUMEM_SIM_ERROR_EXITCODE";
    let Some(value) = env::read(gpumem_sim::VARIABLES, name)? else { return Ok(0) };
    match value.trim().parse() {
        Ok(code @ 1..=255) => Ok(code),
        _ => Err(EnvError::BadValue { name, value, expected: "a number from 1 to 255 is expected".into() }),
    }
}

fn complain(error: SimError) {
    print(&format!("gpumem's simulator (libcuda.so.1) cannot start: {error}\n"));
}

/// Writes to standard error, because the driver API has no channel for findings. Output that cannot be written is lost.
pub(crate) fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
