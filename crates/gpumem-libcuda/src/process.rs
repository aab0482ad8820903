//! The one software driver of this process. It is never dropped: at exit the program's threads and static destructors
//! may still be calling.

use gpumem_sys::{Driver, LoadError, SimConfig, Table};
use std::io::Write;
use std::sync::OnceLock;

/// The driver's functions; `None` if it could not be set up, which has been said on standard error.
pub(crate) fn table() -> Option<&'static Table> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| start().map_err(complain).ok()).as_ref().map(Driver::table)
}

fn start() -> Result<Driver, LoadError> {
    Driver::sim(SimConfig::from_env()?)
}

/// A line on standard error, since the driver API has no other place for the reason; one that can't be written is lost.
fn complain(error: LoadError) {
    let _ = writeln!(std::io::stderr(), "gpumem's software driver (libcuda.so.1) can't start: {error}");
}
