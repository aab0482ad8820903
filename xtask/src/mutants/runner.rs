//! Runs the test programs of a plan, first without a mutant and then with each, several in parallel.

use super::plan::{Baseline, Mutant, Plan, Results, Suite, Verdict};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of runs of each suite without a mutant, to measure its time and to find unreliable tests.
const BASELINE_ROUNDS: usize = 2;
/// The time limit of a suite without a mutant. With a mutant, it is five times the measured time, but at least
/// [`SHORTEST_LIMIT`].
const BASELINE_LIMIT: Duration = Duration::from_secs(600);
const SHORTEST_LIMIT: Duration = Duration::from_secs(20);

/// The options of a run.
pub(crate) struct Options {
    pub(crate) jobs: usize,
    /// True if mutants run again that have survived before.
    pub(crate) is_again: bool,
}

/// The end of a program.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Passed,
    /// These tests failed; the program was killed at the first failure that is not a known unreliable test.
    Failed(Vec<String>),
    /// The program ended abnormally, as described.
    Broken(String),
    TimedOut,
}

/// Runs the mutants without a result. `folder` is the plan's.
pub(crate) fn run(plan: &Plan, folder: &Path, results: Results, options: &Options) -> Result<Results> {
    forbid_core_dumps();
    let results = Mutex::new(results);
    measure(plan, folder, &results, options)?;
    let baselines = lock(&results).baselines.clone();
    let waiting: VecDeque<&Mutant> = plan
        .mutants
        .iter()
        .filter(|mutant| match lock(&results).verdicts.get(&mutant.id) {
            None => true,
            Some(verdict) => options.is_again && *verdict == Verdict::Survived,
        })
        .collect();
    let progress = bar("mutants", waiting.len())?;
    each(waiting, options.jobs, |mutant: &Mutant| {
        let start = Instant::now();
        let verdict = judge(plan, folder, mutant, &baselines, options)?;
        let mut results = lock(&results);
        results.add(&mutant.id, verdict, start.elapsed().as_secs_f64())?;
        let survivors =
            plan.mutants.iter().filter(|mutant| results.verdicts.get(&mutant.id) == Some(&Verdict::Survived));
        progress.set_message(format!("{} have survived", survivors.count()));
        progress.inc(1);
        if progress.is_hidden() && progress.position() % 10 == 0 {
            println!(
                "{} of {} mutants, {}",
                progress.position(),
                progress.length().unwrap_or(0),
                progress.message()
            );
        }
        Ok(())
    })?;
    progress.finish_and_clear();
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs suites without a mutant, unless they have a baseline.
fn measure(plan: &Plan, folder: &Path, results: &Mutex<Results>, options: &Options) -> Result<()> {
    let used: BTreeSet<&String> = plan.mutants.iter().flat_map(|mutant| &mutant.suites).collect();
    let waiting: VecDeque<&Suite> = plan
        .suites
        .iter()
        .filter(|suite| used.contains(&suite.name) && !lock(results).baselines.contains_key(&suite.name))
        .collect();
    let progress = bar("suites without a mutant", waiting.len())?;
    each(waiting, options.jobs, |suite: &Suite| {
        progress.set_message(suite.name.clone());
        let (mut seconds, mut failed) = (0_f64, Vec::new());
        for _ in 0..BASELINE_ROUNDS {
            let start = Instant::now();
            match start_suite(suite, folder, 0, options, BASELINE_LIMIT, None)? {
                End::Passed => {}
                End::Failed(tests) => failed.extend(tests),
                End::Broken(how) => bail!("{} fails without a mutant: {how}", suite.name),
                End::TimedOut => bail!("{} takes longer than {BASELINE_LIMIT:?}", suite.name),
            }
            seconds = seconds.max(start.elapsed().as_secs_f64());
        }
        progress.inc(1);
        let unreliable = BTreeSet::from_iter(failed.iter().cloned());
        let always = |test: &&String| failed.iter().filter(|other| other == test).count() == BASELINE_ROUNDS;
        if let Some(test) = unreliable.iter().find(always) {
            bail!("{}: {test} fails without a mutant", suite.name);
        }
        let (suite, unreliable) = (suite.name.clone(), unreliable.into_iter().collect());
        lock(results).add_baseline(Baseline { suite, seconds, unreliable })
    })?;
    progress.finish_and_clear();
    Ok(())
}

/// Runs the suites of a mutant, the cheap ones first, until one fails.
fn judge(
    plan: &Plan,
    folder: &Path,
    mutant: &Mutant,
    baselines: &BTreeMap<String, Baseline>,
    options: &Options,
) -> Result<Verdict> {
    let mut suites: Vec<(&Suite, &Baseline)> = Vec::new();
    for name in &mutant.suites {
        let suite = plan.suites.iter().find(|suite| suite.name == *name);
        let suite = suite.with_context(|| format!("the plan has no suite {name}"))?;
        suites.push((suite, baselines.get(name).with_context(|| format!("{name} was not measured"))?));
    }
    suites.sort_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
    for (suite, baseline) in suites {
        let limit = Duration::from_secs_f64(5.0 * baseline.seconds).max(SHORTEST_LIMIT);
        let known = Some(baseline.unreliable.as_slice());
        let name = suite.name.clone();
        match start_suite(suite, folder, mutant.number, options, limit, known)? {
            End::Passed => {}
            End::Failed(tests) => match tests.into_iter().find(|test| !baseline.unreliable.contains(test)) {
                Some(by) => return Ok(Verdict::Killed { suite: name, by }),
                None => continue,
            },
            End::Broken(by) => return Ok(Verdict::Killed { suite: name, by }),
            End::TimedOut => return Ok(Verdict::TimedOut { suite: name }),
        }
    }
    Ok(Verdict::Survived)
}

/// Runs a suite in a process group of its own, which is killed at the time limit and, if `known` is given, at the first failure
/// of a test that is not in `known`.
fn start_suite(
    suite: &Suite,
    folder: &Path,
    number: usize,
    options: &Options,
    limit: Duration,
    known: Option<&[String]>,
) -> Result<End> {
    let home = folder.join(&suite.folder);
    let mut command = Command::new(folder.join(&suite.program));
    command.args(&suite.args).current_dir(&home).env("MUTANT_NUMBER", number.to_string());
    // The folders where tests look for files: the package, and the base of the snapshots' paths.
    command.env("CARGO_MANIFEST_DIR", &home).env("INSTA_WORKSPACE_ROOT", folder.join("tree"));
    command.env("INSTA_UPDATE", "no").env("RUST_TEST_THREADS", threads(options.jobs).to_string());
    command.env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    in_group(&mut command);
    let mut child = command.spawn().with_context(|| format!("{} cannot be started", suite.program))?;
    let end = follow(&mut child, Instant::now() + limit, known);
    // Also after a normal end: processes that it started may still run.
    end_group(&mut child);
    end
}

fn follow(child: &mut Child, deadline: Instant, known: Option<&[String]>) -> Result<End> {
    let output = child.stdout.take().context("the program has no output")?;
    let (sender, receiver) = channel();
    // The thread ends when the group is killed, which closes the output.
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if let Some(test) = failed_test(&String::from_utf8_lossy(&line)) {
                let _ = sender.send(test.to_string());
            }
        }
    });
    let mut failed = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            return Ok(End::TimedOut);
        }
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(test) => {
                let is_new = known.is_some_and(|known| !known.contains(&test));
                failed.push(test);
                if is_new {
                    return Ok(End::Failed(failed));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Reads the rest of the output, unless a process of the group keeps it open.
    while let Ok(test) = receiver.recv_timeout(Duration::from_millis(200)) {
        failed.push(test);
    }
    Ok(match (status.success(), failed.is_empty()) {
        (true, _) => End::Passed,
        (false, false) => End::Failed(failed),
        (false, true) => End::Broken(status.to_string()),
    })
}

/// The name of the test in a line `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    verdict.trim_end().ends_with("FAILED").then_some(name)
}

fn threads(jobs: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / jobs.max(1)).max(2)
}

/// Processes a queue on several threads. The first error stops it.
fn each<T: Send>(waiting: VecDeque<T>, jobs: usize, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let waiting = Mutex::new(waiting);
    std::thread::scope(|scope| {
        let worker = || -> Result<()> {
            loop {
                let Some(next) = lock(&waiting).pop_front() else { return Ok(()) };
                if let Err(error) = work(next) {
                    lock(&waiting).clear();
                    return Err(error);
                }
            }
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of the task panicked"),
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bar(what: &str, count: usize) -> Result<ProgressBar> {
    ensure!(!what.is_empty());
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template(&format!(
        "{what} {{wide_bar}} {{pos}}/{{len}} {{elapsed}} (left: {{eta}}) {{msg}}"
    ))?);
    Ok(bar)
}

#[cfg(unix)]
fn in_group(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

/// Kills the program and all processes that it has started.
#[cfg(unix)]
fn end_group(child: &mut Child) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

/// Disables core dumps: mutants that crash are expected.
#[cfg(unix)]
fn forbid_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Core).maximum;
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
}

#[cfg(not(unix))]
fn in_group(_: &mut Command) {}

#[cfg(not(unix))]
fn end_group(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(not(unix))]
fn forbid_core_dumps() {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn end(script: &str, limit: Duration, known: Option<&[String]>) -> End {
        let suite = Suite {
            name: "suite".into(),
            program: "/bin/sh".into(),
            folder: ".".into(),
            args: vec!["-c".into(), script.into()],
        };
        let options = Options { jobs: 1, is_again: false };
        start_suite(&suite, &std::env::temp_dir(), 3, &options, limit, known).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_is_judged_by_its_tests() {
        assert_eq!(end("echo 'test a ... ok'", LONG, None), End::Passed);
        let failed = "echo 'test a::b ... FAILED'; echo 'test c - should panic ... FAILED'; exit 101";
        assert_eq!(end(failed, LONG, None), End::Failed(vec!["a::b".into(), "c".into()]));
        assert!(matches!(end("kill -9 $$", LONG, None), End::Broken(how) if how.contains("signal: 9")));
        assert_eq!(end("[ $MUTANT_NUMBER = 3 ] || exit 1", LONG, None), End::Passed);
    }

    #[test]
    fn the_first_failure_ends_a_program_unless_it_is_known() {
        let script = "echo 'test a ... FAILED'; sleep 50; echo 'test b ... FAILED'";
        assert_eq!(end(script, LONG, Some(&[])), End::Failed(vec!["a".into()]));
        let script = "echo 'test a ... FAILED'; echo 'test b ... FAILED'; sleep 50";
        let known = ["a".to_string()];
        assert_eq!(end(script, LONG, Some(&known)), End::Failed(vec!["a".into(), "b".into()]));
    }

    /// Processes that the program has started are killed too, even if they keep the output open.
    #[test]
    fn a_hanging_program_is_ended_with_all_that_it_started() {
        let name = std::env::temp_dir().join(format!("gpumem-hang-{}", std::process::id()));
        let script = format!("sleep 500 & echo $! > {}; wait", name.display());
        assert_eq!(end(&script, Duration::from_secs(2), None), End::TimedOut);
        let child = std::fs::read_to_string(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        // A killed process stays visible for a moment, as a zombie at last. Without the signal it would live for minutes.
        let is_there = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z")
        };
        let patience = Instant::now() + Duration::from_secs(60);
        while is_there() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!is_there());
    }
}
