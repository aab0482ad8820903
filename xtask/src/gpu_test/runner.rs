//! Runs the programs one after the other, passes their output on, and counts.

use super::libtest::{Counts, objection};
use super::suite::{Suite, select};
use super::{device, table};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The suites to run, and their options.
#[derive(clap::Args)]
pub(crate) struct Choice {
    /// Run only this suite; may be repeated
    #[arg(long, value_name = "NAME")]
    suite: Vec<String>,
    /// Passed on to each test program (--nocapture, --skip NAME, …)
    #[arg(last = true, value_name = "ARG")]
    libtest: Vec<String>,
}

/// Runs every selected suite, and fails if any of them failed.
pub(crate) fn run(suites: impl FnOnce() -> Result<Vec<Suite>>, choice: &Choice) -> Result<()> {
    // Printed first, because building the suites can take long.
    print!("{}", device::describe()?);
    let (suites, mut done) = (select(suites()?, &choice.suite)?, Vec::new());
    for suite in &suites {
        println!("\n== {} ==", suite.name);
        done.push(run_suite(suite, &choice.libtest, &mut std::io::stdout())?);
    }
    print!("\n{}", summary(&done));
    let failed: Vec<_> = done.iter().filter(|done| done.objection.is_some()).map(|done| done.name).collect();
    ensure!(failed.is_empty(), "failed on the GPU: {}", failed.join(", "));
    Ok(())
}

struct Done<'a> {
    name: &'a str,
    counts: Counts,
    took: Duration,
    objection: Option<String>,
}

fn run_suite<'a>(suite: &'a Suite, libtest: &[String], show: &mut dyn Write) -> Result<Done<'a>> {
    let mut command = Command::new(&suite.program);
    command.env("GPUMEM_DRIVER", "cuda");
    let start = Instant::now();
    let (counts, status) = match &suite.cases {
        Some(cases) => {
            // Without a name, libtest runs all cases.
            let cases = if cases.is_empty() { &["cuda::".to_string()] } else { cases.as_slice() };
            stream(command.args(["--exact", "--test-threads=1"]).args(cases).args(libtest), show)?
        }
        None => {
            let status = command.status().with_context(|| suite.program.display().to_string())?;
            let failed = u64::from(!status.success());
            (Some(Counts { passed: 1 - failed, failed }), status)
        }
    };
    Ok(Done {
        name: &suite.name,
        counts: counts.unwrap_or_default(),
        took: start.elapsed(),
        objection: objection(counts, status.success(), &status.to_string()),
    })
}

/// Passes the program's output on and returns the counts of its last result line.
fn stream(command: &mut Command, show: &mut dyn Write) -> Result<(Option<Counts>, std::process::ExitStatus)> {
    let program = command.get_program().display().to_string();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| program.clone())?;
    let mut output = BufReader::new(child.stdout.take().context("the program has no output")?);
    let (mut counts, mut line) = (None, Vec::new());
    while output.read_until(b'\n', &mut line)? > 0 {
        show.write_all(&line)?;
        counts = Counts::parse(&String::from_utf8_lossy(&line)).or(counts);
        line.clear();
    }
    Ok((counts, child.wait().context(program)?))
}

fn summary(done: &[Done<'_>]) -> String {
    let row = |name: &str, counts: Counts, took: Duration, note: &str| {
        let seconds = format!("{:.1}", took.as_secs_f64());
        [name.to_string(), counts.passed.to_string(), counts.failed.to_string(), seconds, note.to_string()]
    };
    let mut rows: Vec<_> = done
        .iter()
        .map(|done| row(done.name, done.counts, done.took, done.objection.as_deref().unwrap_or("ok")))
        .collect();
    let total = Counts {
        passed: done.iter().map(|done| done.counts.passed).sum(),
        failed: done.iter().map(|done| done.counts.failed).sum(),
    };
    let verdict = if done.iter().any(|done| done.objection.is_some()) { "FAILED" } else { "ok" };
    rows.push(row("total", total, done.iter().map(|done| done.took).sum(), verdict));
    table::render(["suite", "passed", "failed", "seconds", "verdict"], &rows)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Runs a shell script instead of a program.
    fn objection_to(cases: Option<&str>, script: &str) -> (Counts, Option<String>) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let program = std::env::temp_dir().join(format!("gpumem-suite-{}-{number}", std::process::id()));
        super::super::suite::write_script(&program, script);
        let cases = cases.map(|case| vec![case.to_string()]);
        let suite = Suite { name: "suite".to_string(), program, cases };
        let done = run_suite(&suite, &["--nocapture".to_string()], &mut std::io::sink());
        std::fs::remove_file(&suite.program).unwrap();
        let done = done.unwrap();
        (done.counts, done.objection)
    }

    #[test]
    fn a_suite_is_asked_for_gpu_cases_on_the_real_driver() {
        let script = r#"[ "$*" = "--exact --test-threads=1 a::cuda::b --nocapture" ] && [ "$GPUMEM_DRIVER" = cuda ] || exit 7
            echo "test a::cuda::b ... ok"; echo "test result: ok. 2 passed; 0 failed; 0 ignored""#;
        assert_eq!(objection_to(Some("a::cuda::b"), script), (Counts { passed: 2, failed: 0 }, None));
    }

    #[test]
    fn failures_crashes_and_silence_are_objected_to() {
        let says = |script, part: &str| {
            let (_, objection) = objection_to(Some("a::cuda::b"), script);
            assert!(objection.as_ref().is_some_and(|text| text.contains(part)), "{script}: {objection:?}");
        };
        says(r#"echo "test result: FAILED. 2 passed; 1 failed; 0 ignored"; exit 101"#, "1 failed");
        says(r#"echo "test result: ok. 0 passed; 0 failed; 0 ignored""#, "no GPU case");
        says("kill -9 $$", "without a result (signal: 9");
    }

    #[test]
    fn an_example_counts_by_its_exit_code() {
        assert_eq!(objection_to(None, "exit 0"), (Counts { passed: 1, failed: 0 }, None));
        assert_eq!(objection_to(None, "exit 1").0, Counts { passed: 0, failed: 1 });
    }
}
