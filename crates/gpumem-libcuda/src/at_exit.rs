//! Prints the simulator's findings when the process exits, because no caller can query them.
//!
//! `GPUMEM_SIM_FINDINGS` chooses the form: `text` (default); `json`, one object a line; `github`, annotations of GitHub's workflows.

use crate::process::{DRIVER, STARTED_BY, print};
use gpumem_sim::sys::env;
use gpumem_sim::{Finding, Report};
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
    let found: Vec<&Finding> = report.findings.iter().filter(|finding| is_worth_printing(finding)).collect();
    let refused: Vec<&Finding> =
        report.findings.iter().filter(|finding| matches!(finding, Finding::Module { .. })).collect();
    let form = env::read(gpumem_sim::VARIABLES, "GPUMEM_SIM_FINDINGS");
    let all = refused.iter().chain(&found);
    match form.ok().flatten().as_deref().map(str::trim) {
        Some("json") => print(&all.map(|finding| json(finding)).collect::<String>()),
        Some("github") => print(&all.map(|finding| annotation(finding)).collect::<String>()),
        other => {
            if !matches!(other, None | Some("" | "text")) {
                print(
                    "GPUMEM_SIM_FINDINGS has another value than `text`, `json` or `github`; this is `text`\n",
                );
            }
            if !refused.is_empty() {
                print(&listed(
                    "gpumem's simulator does not run all modules and kernels of this program:\n",
                    &refused,
                ));
            }
            if !found.is_empty() {
                print(&text(&report, &found));
            }
        }
    }
}

fn text(report: &Report, found: &[&Finding]) -> String {
    let (seed, schedule) = (report.seed, &report.schedule);
    let start = format!(
        "gpumem's simulator has found, with GPUMEM_SIM_SEED={seed} GPUMEM_SIM_SCHEDULE={schedule}:\n"
    );
    listed(&start, found)
}

fn listed(start: &str, found: &[&Finding]) -> String {
    found.iter().take(SHOWN_MAX).fold(start.to_string(), |mut text, finding| {
        let _ = writeln!(text, "  {finding}");
        text
    })
}

/// One line with an object.
fn json(finding: &Finding) -> String {
    let place = finding.place();
    let object = serde_json::json!({
        "name": finding.name(),
        "text": finding.to_string(),
        "kernel": place.map(|place| &*place.kernel),
        "ptx_line": place.map(|place| place.line),
        "source": place.and_then(|place| place.source_line.as_deref()),
        "block": place.map(|place| place.block),
        "thread": place.map(|place| place.thread),
        "address": place.and_then(|place| place.address).map(|address| format!("{address:#x}")),
    });
    format!("{object}\n")
}

/// A command of GitHub's workflows, which shows the finding beside the line of the kernel's source.
fn annotation(finding: &Finding) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
    let source = finding.place().and_then(|place| place.source_line.as_deref()?.rsplit_once(':'));
    let place =
        source.map_or_else(String::new, |(file, line)| format!("file={},line={line},", property(file)));
    format!("::error {place}title={}::{}\n", property(finding.name()), escaped(&finding.to_string()))
}

/// Refused calls have returned an error already, and a program may leave all memory to the driver when it exits. Modules are listed apart:
/// the program may have an alternative.
fn is_worth_printing(finding: &Finding) -> bool {
    !matches!(finding, Finding::Refused { .. } | Finding::Module { .. } | Finding::Leak { .. })
}

const SHOWN_MAX: usize = 20;
