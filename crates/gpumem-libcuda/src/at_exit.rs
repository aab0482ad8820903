//! Prints the simulator's findings when the process exits, because no caller can query them.

use crate::process::{DRIVER, STARTED_BY, print};
use gpumem_sim::Finding;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

/// Called by the loader when the process exits, after everything that the program has registered for that.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // A child forked from the process that started the driver has no findings, and may hold a copy of a lock that is
    // never released.
    if STARTED_BY.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let driver = DRIVER.get().and_then(Option::as_ref);
    let Some(report) = driver.and_then(gpumem_sim::Sim::of).map(|sim| sim.report()) else { return };
    let listed = |is_wanted: fn(&Finding) -> bool| {
        let found = report.findings.iter().filter(|finding| is_wanted(finding)).take(SHOWN_MAX);
        found.fold(String::new(), |mut text, finding| {
            let _ = writeln!(text, "  {finding}");
            text
        })
    };
    let refused = listed(|finding| matches!(finding, Finding::Module { .. }));
    if !refused.is_empty() {
        print(&format!("gpumem's simulator does not run all modules of this program:\n{refused}"));
    }
    let found = listed(is_worth_printing);
    if !found.is_empty() {
        let (seed, schedule) = (report.seed, report.schedule);
        print(&format!(
            "gpumem's simulator has found, with GPUMEM_SIM_SEED={seed} GPUMEM_SIM_SCHEDULE={schedule}:\n{found}"
        ));
    }
}

/// Refused calls have returned an error already, and a program may leave all memory to the driver when it exits. Modules are listed apart:
/// the program may have an alternative.
fn is_worth_printing(finding: &Finding) -> bool {
    !matches!(finding, Finding::Refused { .. } | Finding::Module { .. } | Finding::Leak { .. })
}

const SHOWN_MAX: usize = 20;
