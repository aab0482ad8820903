//! The one simulator of this process. It is never dropped: at exit the program's threads and static destructors may
//! still be calling. Its findings are printed then, because no caller can query them.

use gpumem_sim::sys::{Driver, Table};
use gpumem_sim::{Finding, SimConfig, SimError};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();

/// The process that started it.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// The driver's functions; `None` if it could not be set up, which has been said on standard error.
pub(crate) fn table() -> Option<&'static Table> {
    DRIVER.get_or_init(|| start().map_err(complain).ok()).as_ref().map(Driver::table)
}

fn start() -> Result<Driver, SimError> {
    STARTED_BY.store(std::process::id(), Ordering::Relaxed);
    gpumem_sim::driver(SimConfig::from_env()?)
}

fn complain(error: SimError) {
    say(&format!("gpumem's simulator (libcuda.so.1) can't start: {error}\n"));
}

/// Called by the loader when the process exits, after everything that the program has registered for that.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nothing calls it there"))]
extern "C" fn at_exit() {
    // A child forked from the process that started the driver has no findings, and may hold a copy of a lock that is
    // never released.
    if STARTED_BY.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let driver = DRIVER.get().and_then(Option::as_ref);
    let Some(report) = driver.and_then(gpumem_sim::Sim::of).map(|sim| sim.report()) else { return };
    let found = report.findings.iter().filter(|finding| is_worth_saying(finding));
    let found = found.take(SHOWN_MAX).fold(String::new(), |mut text, finding| {
        let _ = writeln!(text, "  {finding}");
        text
    });
    if !found.is_empty() {
        let (seed, schedule) = (report.seed, report.schedule);
        say(&format!(
            "gpumem's simulator has found, with GPUMEM_SIM_SEED={seed} GPUMEM_SIM_SCHEDULE={schedule}:\n{found}"
        ));
    }
}

/// A call that was refused has been told so, and at exit everything may be left to the driver.
fn is_worth_saying(finding: &Finding) -> bool {
    !matches!(finding, Finding::Refused { .. } | Finding::Leak { .. })
}

/// Writes to standard error, because the driver API has no channel for findings. Output that cannot be written is lost.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

const SHOWN_MAX: usize = 20;
