//! Seeds: one body under many schedules of the simulator.
//!
//! A seed determines the order in which the simulator runs queued work, so a body that fails under a seed fails under it
//! every time. A failure ends with the command that repeats it.

use crate::sys::{Driver, env};
use gpumem_sim::{Choice, Finding, Report, SimConfig};
use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Runs a body under `count` seeds of the simulator, or only under the one in `GPUMEM_SIM_SEED`.
///
/// `for_each_seed!(64, |driver, seed| …)`: the body gets a new driver for each seed, and fails by a panic or an `Err`.
///
/// ```
/// gpumem_tests::for_each_seed!(8, |driver: &gpumem_tests::sys::Driver, _seed| {
///     let mut count = 0;
///     // SAFETY: `count` outlives the call.
///     unsafe { driver.cuDeviceGetCount(&mut count) }
/// });
/// ```
///
/// # Panics
///
/// At the first seed that fails, after printing the command that repeats it.
#[macro_export]
macro_rules! for_each_seed {
    ($count:expr, $body:expr $(,)?) => {
        $crate::harness::seeds::for_each($crate::suite!(), $count, $body)
    };
}

/// [`for_each_seed!`](crate::for_each_seed!) for bodies that close a [`StreamGate`](crate::driver::stream_gate::StreamGate). A
/// gate is a host function, and a call of the simulator waits at most 5 ms for one. On a busy machine another host function may take longer than
/// that. Then the order of the work depends on the machine too, and a seed that failed may pass the next time.
#[macro_export]
macro_rules! for_each_seed_with_gates {
    ($count:expr, $body:expr $(,)?) => {
        $crate::harness::seeds::for_each_with_gates($crate::suite!(), $count, $body)
    };
}

/// Finds the first of `count` seeds under which a body fails, for a body with a deliberate bug.
///
/// The seed is run twice, to show that the failure repeats. `GPUMEM_SIM_SEED` has no effect.
///
/// ```
/// let found = gpumem_tests::find_failing_seed!(8, |_: &gpumem_tests::sys::Driver, seed| assert_ne!(seed, 5));
/// assert_eq!(found.seed, 5);
/// assert!(found.command.starts_with("GPUMEM_SIM_SEED=5 cargo test"));
/// ```
///
/// # Panics
///
/// If no seed fails, or the failure does not repeat.
#[macro_export]
macro_rules! find_failing_seed {
    ($count:expr, $body:expr $(,)?) => {
        $crate::harness::seeds::find_failing($crate::suite!(), $count, $body)
    };
}

/// The test program, as cargo names it.
#[doc(hidden)]
#[macro_export]
macro_rules! suite {
    () => {
        $crate::harness::seeds::Suite { package: env!("CARGO_PKG_NAME"), program: env!("CARGO_CRATE_NAME") }
    };
}

/// A seed for which a body fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingSeed {
    /// The seed.
    pub seed: u64,
    /// The message of the failure.
    pub message: String,
    /// The shell command that runs the same test under this seed alone.
    pub command: String,
}

/// [`for_each_seed!`](crate::for_each_seed!) without the macro.
pub fn for_each<R: Outcome>(suite: Suite, count: u64, body: impl Fn(&Driver, u64) -> R) {
    for_each_of(count, |seed| run_or_explain(suite, seed, &body));
}

/// Calls `run` with each seed, or with the one in `GPUMEM_SIM_SEED`.
fn for_each_of(count: u64, run: impl FnMut(u64)) {
    match from_env() {
        Some(seed) => [seed].into_iter().for_each(run),
        None => (0..seed_count(count)).for_each(run),
    }
}

/// A quarter of the seeds, and at least four, unless the run is thorough.
fn seed_count(count: u64) -> u64 {
    if crate::harness::is_thorough() { count } else { count.min(4.max(count.div_ceil(4))) }
}

/// [`for_each_seed_with_gates!`](crate::for_each_seed_with_gates!) without the macro.
pub fn for_each_with_gates<R: Outcome>(suite: Suite, count: u64, body: impl Fn(&Driver, u64) -> R) {
    for_each_of(count, |seed| {
        let config = from_env_with(seed).host_function_wait(Duration::from_millis(5));
        run_or_explain_on(suite, config, seed, &body);
    });
}

/// [`find_failing_seed!`](crate::find_failing_seed!) without the macro.
pub fn find_failing<R: Outcome>(suite: Suite, count: u64, body: impl Fn(&Driver, u64) -> R) -> FailingSeed {
    for seed in 0..count {
        let Err(failed) = run(seed, &body) else { continue };
        let message = failed.failure.message();
        assert!(run(seed, &body).is_err(), "seed {seed} failed once, then passed: {message}");
        return FailingSeed { seed, message, command: suite.repeat_command(seed) };
    }
    panic!("the body passed under every seed below {count}");
}

/// Runs a body under one seed; a failure is printed with the command that repeats it, then raised again.
pub(crate) fn run_or_explain<R: Outcome>(suite: Suite, seed: u64, body: &impl Fn(&Driver, u64) -> R) {
    run_or_explain_on(suite, from_env_with(seed), seed, body);
}

fn run_or_explain_on<R: Outcome>(
    suite: Suite,
    config: SimConfig,
    seed: u64,
    body: &impl Fn(&Driver, u64) -> R,
) {
    let Err(failed) = run_on(config, &|driver: &Driver| body(driver, seed).failure()).1 else { return };
    explain(failed, &format!("seed {seed}"), &suite.repeat_command(seed));
}

/// Prints a failure with the command that repeats it, and raises it again.
#[expect(clippy::print_stderr, reason = "libtest shows it with the failed test")]
pub(crate) fn explain(failed: Failed, order: &str, command: &str) -> ! {
    eprintln!("{}", failed.report);
    eprintln!("failed under {order} of the simulator; repeat: {command}");
    match failed.failure {
        Failure::Panic(payload) => resume_unwind(payload),
        Failure::Error(message) => panic!("{message}"),
    }
}

fn run<R: Outcome>(seed: u64, body: &impl Fn(&Driver, u64) -> R) -> Result<(), Failed> {
    run_on(from_env_with(seed), &|driver: &Driver| body(driver, seed).failure()).1
}

fn from_env_with(seed: u64) -> SimConfig {
    SimConfig::from_env().unwrap_or_else(|error| panic!("{error}")).seed(seed)
}

/// Runs a body on one simulator. Returns the choices of the schedule, and the failure. Memory that is not freed and a race are
/// failures too.
pub(crate) fn run_on(
    config: SimConfig,
    body: &impl Fn(&Driver) -> Option<String>,
) -> (Vec<Choice>, Result<(), Failed>) {
    let driver = gpumem_sim::driver(config).unwrap_or_else(|error| panic!("{error}"));
    // After a panic, the captured variables are used again only to run the body from the start.
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&driver)));
    let Some(simulator) = gpumem_sim::Sim::of(&driver) else { panic!("a simulator has a simulator") };
    (simulator.choices(), judge(outcome, simulator.report()))
}

fn judge(outcome: std::thread::Result<Option<String>>, report: Report) -> Result<(), Failed> {
    let failure = match outcome {
        Err(payload) => Failure::Panic(payload),
        Ok(Some(message)) => Failure::Error(message),
        Ok(None) => match report.silent_findings().first() {
            Some(Finding::Leak { allocation }) => {
                Failure::Error(format!("memory was not given back: {allocation}"))
            }
            Some(finding) => Failure::Error(finding.to_string()),
            None => return Ok(()),
        },
    };
    Err(Failed { failure, report: Box::new(report) })
}

/// The seed in `GPUMEM_SIM_SEED`, if one is set.
pub(crate) fn from_env() -> Option<u64> {
    let value =
        env::read(gpumem_sim::VARIABLES, "GPUMEM_SIM_SEED").unwrap_or_else(|error| panic!("{error}"))?;
    Some(value.trim().parse().unwrap_or_else(|_| panic!("GPUMEM_SIM_SEED={value:?} is not a number")))
}

/// A failure, and the simulator's report after it.
pub(crate) struct Failed {
    failure: Failure,
    pub(crate) report: Box<Report>,
}

enum Failure {
    Panic(Box<dyn Any + Send>),
    Error(String),
}

impl Failure {
    fn message(&self) -> String {
        match self {
            Self::Error(message) => message.clone(),
            Self::Panic(payload) => {
                match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                    (Some(text), _) => (*text).to_string(),
                    (_, Some(text)) => text.clone(),
                    _ => "a panic without a message".to_string(),
                }
            }
        }
    }
}

/// The return type of a body.
pub trait Outcome {
    /// The message, if the value is a failure.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Debug> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:?}"))
    }
}

/// The program of a test; made by `suite!()`.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The package.
    pub package: &'static str,
    /// The crate name of the program: the library or a suite.
    pub program: &'static str,
}

impl Suite {
    /// The command that repeats the running test under `seed`, with all other `GPUMEM_` variables of the environment.
    fn repeat_command(self, seed: u64) -> String {
        self.command(&[("GPUMEM_SIM_SEED", seed.to_string())])
    }

    /// The command that repeats the running test with these variables, and with all other `GPUMEM_` variables of the environment.
    pub(crate) fn command(self, set: &[(&str, String)]) -> String {
        let ours = std::env::vars()
            .filter(|(name, _)| name.starts_with("GPUMEM_") && set.iter().all(|(also, _)| also != name));
        let set = set.iter().map(|(name, value)| format!("{name}={value} ")).collect::<String>();
        let ours = ours.map(|(name, value)| format!("{name}={} ", quoted(&value))).collect::<String>();
        let target = match self.package.replace('-', "_") == self.program {
            true => "--lib".to_string(),
            false => format!("--test {}", self.program),
        };
        // libtest names a test's thread after the test.
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main");
        let test = test.map(|name| format!(" {name} -- --exact")).unwrap_or_default();
        format!("{ours}{set}cargo test -p {} {target}{test}", self.package)
    }
}

/// A value, quoted for a shell if necessary.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/%:,@+".contains(c);
    if value.chars().all(is_plain) {
        value.to_string()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::process::Command;

    #[test]
    fn every_seed_is_run_once() {
        let seen = RefCell::new(Vec::new());
        for_each(crate::suite!(), 5, |_: &Driver, seed| seen.borrow_mut().push(seed));
        match from_env() {
            Some(seed) => assert_eq!(*seen.borrow(), [seed]),
            None => assert_eq!(*seen.borrow(), (0..seed_count(5)).collect::<Vec<_>>()),
        }
    }

    #[test]
    fn the_command_names_program_and_test() {
        let own = crate::suite!().repeat_command(3);
        let test = "harness::seeds::tests::the_command_names_program_and_test";
        assert!(
            own.ends_with(&format!("GPUMEM_SIM_SEED=3 cargo test -p gpumem-tests --lib {test} -- --exact")),
            "{own}"
        );
        let other = Suite { package: "gpumem-tests", program: "conformance" }.repeat_command(3);
        assert!(other.contains("-p gpumem-tests --test conformance "), "{other}");
    }

    #[test]
    #[should_panic(expected = "memory was not given back")]
    fn memory_that_is_not_given_back_is_a_failure() {
        for_each(crate::suite!(), 1, |driver: &Driver, _| {
            let (mut context, mut address) = (std::ptr::null_mut(), 0);
            // SAFETY: the out-pointers outlive the calls, and device 0 exists.
            unsafe {
                driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
                driver.cuCtxSetCurrent(context).unwrap();
                driver.cuMemAlloc_v2(&mut address, 4096).unwrap();
            }
        });
    }

    #[test]
    #[should_panic(expected = "passed under every seed below 4")]
    fn a_correct_body_has_no_failing_seed() {
        find_failing(crate::suite!(), 4, |_: &Driver, _| ());
    }

    #[test]
    #[should_panic(expected = "seed 2 failed once, then passed: at first")]
    fn a_failure_must_repeat() {
        let runs = RefCell::new(0);
        find_failing(crate::suite!(), 4, |_: &Driver, seed| {
            *runs.borrow_mut() += 1;
            if seed == 2 && *runs.borrow() == 3 { Err("at first") } else { Ok(()) }
                .unwrap_or_else(|message: &str| panic!("{message}"));
        });
    }

    /// Wrong under one seed; run by the test below, in a process of its own.
    #[test]
    #[ignore = "fails on purpose"]
    fn wrong_under_seed_five() {
        for_each(crate::suite!(), 8, |_: &Driver, seed| if seed == 5 { Err("wrong") } else { Ok(()) });
    }

    #[test]
    fn the_printed_command_repeats_the_failure() {
        let name = "harness::seeds::tests::wrong_under_seed_five";
        let under = |seed: Option<&str>| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([name, "--exact", "--ignored"]).env_remove("GPUMEM_SIM_SEED").env("THOROUGH", "1");
            seed.map(|seed| command.env("GPUMEM_SIM_SEED", seed));
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let (passed, shown) = under(None);
        assert!(!passed, "{shown}");
        assert!(
            shown.contains(&format!("GPUMEM_SIM_SEED=5 cargo test -p gpumem-tests --lib {name} -- --exact")),
            "{shown}"
        );
        assert!(!under(Some("5")).0 && under(Some("4")).0);
    }
}
