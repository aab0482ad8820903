//! Prints the simulator's findings when the process exits, because no caller can query them.
//!
//! `GPUMEM_SIM_ERROR_EXITCODE` is the exit status of a process with findings.
//!
//! `GPUMEM_SIM_FINDINGS` chooses the form: `text` (default); `json`, one object a line; `github`, annotations of GitHub's workflows.

use crate::process::{DRIVER, ERROR_EXITCODE, STARTED_BY, print};
use gpumem_sim::sys::env;
use gpumem_sim::{Finding, KernelPlace, Report, SourceLine};
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::ptr::null_mut;
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
    let more = report.more_findings_count;
    match form.ok().flatten().as_deref().map(str::trim) {
        Some("json") => print(&(all.map(|finding| json(finding)).collect::<String>() + &json_of_more(more))),
        Some("github") => {
            print(&(all.map(|finding| annotation(finding)).collect::<String>() + &annotation_of_more(more)));
        }
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
                    0,
                ));
            }
            if !found.is_empty() {
                print(&text(&report, &found));
            }
        }
    }
    let code = ERROR_EXITCODE.load(Ordering::Relaxed);
    if code != 0 && !found.is_empty() {
        // SAFETY: null stands for all streams. The program has ended, and what runs behind this alone are destructors of other libraries.
        unsafe {
            fflush(null_mut());
            _exit(code);
        }
    }
}

unsafe extern "C" {
    /// Writes what the streams of C have in their buffers.
    fn fflush(stream: *mut c_void) -> c_int;
    /// Ends the process without further destructors.
    fn _exit(code: c_int) -> !;
}

fn text(report: &Report, found: &[&Finding]) -> String {
    let (seed, schedule) = (report.seed, &report.schedule);
    let start = format!(
        "gpumem's simulator has found, with GPUMEM_SIM_SEED={seed} GPUMEM_SIM_SCHEDULE={schedule}:\n"
    );
    listed(&start, found, report.more_findings_count)
}

/// A list, with the number of what it leaves out: `more` were not kept.
fn listed(start: &str, found: &[&Finding], more: usize) -> String {
    let mut text = found.iter().take(SHOWN_MAX).fold(start.to_string(), |mut text, finding| {
        let _ = writeln!(text, "  {finding}");
        text
    });
    let more = more + found.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
    text
}

/// One line with the number of the findings that were not kept, if there are any.
fn json_of_more(count: usize) -> String {
    let object = serde_json::json!({ "name": "more findings", "text": format!("{count} more findings"), "count": count });
    if count > 0 { format!("{object}\n") } else { String::new() }
}

fn annotation_of_more(count: usize) -> String {
    if count > 0 { format!("::error title=more findings::{count} more findings\n") } else { String::new() }
}

/// One line with an object.
fn json(finding: &Finding) -> String {
    let place = finding.place();
    let other = finding.other_place().map(|place| {
        serde_json::json!({
            "kernel": &*place.kernel,
            "ptx_line": place.line,
            "source": source(Some(place)),
            "inlined_at": inlined_at(Some(place)),
            "block": place.block,
            "thread": place.thread,
            "address": place.address.map(|address| format!("{address:#x}")),
        })
    });
    let object = serde_json::json!({
        "name": finding.name(),
        "text": finding.to_string(),
        "other": other,
        "kernel": place.map(|place| &*place.kernel),
        "ptx_line": place.map(|place| place.line),
        "source": source(place),
        "inlined_at": inlined_at(place),
        "block": place.map(|place| place.block),
        "thread": place.map(|place| place.thread),
        "address": place.and_then(|place| place.address).map(|address| format!("{address:#x}")),
    });
    format!("{object}\n")
}

/// The line of the source, as `scale.cu:3`.
fn source(place: Option<&KernelPlace>) -> Option<String> {
    place?.source_line.as_ref()?.calls().next().map(file_and_line)
}

/// The lines of the calls that were inlined, up to the one in the kernel itself.
fn inlined_at(place: Option<&KernelPlace>) -> Vec<String> {
    let line = place.and_then(|place| place.source_line.as_ref());
    line.map_or_else(Vec::new, |line| line.calls().skip(1).map(file_and_line).collect())
}

fn file_and_line(SourceLine { file, line, .. }: &SourceLine) -> String {
    format!("{file}:{line}")
}

/// A command of GitHub's workflows, which shows the finding beside a line of the file that the kernel is in. The line of an inlined function may
/// be in a header of somebody else; then it is that of the call.
fn annotation(finding: &Finding) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
    let line = finding.place().and_then(|place| place.source_line.as_ref());
    let kernel = line.and_then(|line| line.calls().last());
    let source =
        line.and_then(|line| line.calls().find(|call| kernel.is_some_and(|kernel| kernel.file == call.file)));
    let place = source.map_or_else(String::new, |SourceLine { file, line, .. }| {
        format!("file={},line={line},", property(file))
    });
    // A program may have an alternative to a module that does not run here.
    let command = if matches!(finding, Finding::Module { .. }) { "warning" } else { "error" };
    format!("::{command} {place}title={}::{}\n", property(finding.name()), escaped(&finding.to_string()))
}

/// Refused calls have returned an error already, and a program may leave all memory to the driver when it exits. Modules are listed apart:
/// the program may have an alternative.
fn is_worth_printing(finding: &Finding) -> bool {
    !matches!(finding, Finding::Refused { .. } | Finding::Module { .. } | Finding::Leak { .. })
}

const SHOWN_MAX: usize = 20;
