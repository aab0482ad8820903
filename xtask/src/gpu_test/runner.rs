//! Runs the programs one after the other, shows what they say, and counts.

use super::libtest::{Counts, objection};
use super::suites::{Kind, Suite};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs every suite, whatever the others do, and fails when one did.
pub(super) fn run(suites: &[Suite], libtest: &[String]) -> Result<()> {
    let mut done = Vec::new();
    for suite in suites {
        println!("\n== {} ==", suite.name);
        done.push(run_suite(suite, libtest)?);
    }
    print!("\n{}", table(&done));
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

fn run_suite<'a>(suite: &'a Suite, libtest: &[String]) -> Result<Done<'a>> {
    let mut command = Command::new(&suite.program);
    command.env("GPUMEM_DRIVER", "cuda");
    let start = Instant::now();
    let (counts, status) = match suite.kind {
        Kind::Tests => stream(command.args(["cuda::", "--test-threads=1"]).args(libtest))?,
        Kind::Example => {
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

/// Passes the program's output on as it comes and returns the counts of its last result line.
fn stream(command: &mut Command) -> Result<(Option<Counts>, std::process::ExitStatus)> {
    let program = command.get_program().display().to_string();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| program.clone())?;
    let mut output = BufReader::new(child.stdout.take().context("the program has no output")?);
    let (mut counts, mut line) = (None, Vec::new());
    while output.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        counts = Counts::parse(&String::from_utf8_lossy(&line)).or(counts);
        line.clear();
    }
    Ok((counts, child.wait().context(program)?))
}

fn table(done: &[Done<'_>]) -> String {
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
    crate::table::render(["suite", "passed", "failed", "seconds", "verdict"], &rows)
}
