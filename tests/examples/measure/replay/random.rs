//! `--random`: random programs at a limit, under every profile: the share that completes, and the refused requests of the others.

use crate::table;
use anyhow::{Result, ensure};
use gpumem_sim::SimConfig;
use gpumem_tests::profiles::{self, Comparison, Counts, PROFILES};
use gpumem_trace::TraceLimit;
use gpumem_trace::fit::Attempt;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Mutex;

/// Compares the profiles on a number of seeds, prints counts and every difference, and fails if a profile completes too few of
/// the programs that `tight` completes.
pub(super) fn run(first: u64, count: u64, limits: &[TraceLimit]) -> Result<()> {
    let factors = factors(limits)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = ProgressBar::new(count * factors.len() as u64);
    progress.set_style(ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} {eta}")?);
    let all = Mutex::new(Vec::new());
    let driver = || Ok::<_, anyhow::Error>(gpumem_sim::driver(SimConfig::h200().races(false))?);
    profiles::compare_all(first..first + count, &factors, jobs, driver, |comparison| {
        progress.inc(1);
        all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(comparison);
    })?;
    progress.finish_and_clear();
    let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_by_key(|comparison| comparison.seed);
    let (mut rows, mut worst) = (Vec::new(), 1.0_f64);
    for factor in factors {
        let mut counts = Counts::default();
        for comparison in all.iter().filter(|comparison| comparison.factor == factor) {
            counts.add(comparison);
            print!("{}", differences(comparison));
        }
        for (index, profile) in PROFILES.iter().enumerate() {
            worst = worst.min(counts.share(index));
            rows.push([
                format!("{factor}x, {profile}"),
                counts.programs.to_string(),
                counts.completed[index].to_string(),
                counts.lost[index].to_string(),
                counts.gained[index].to_string(),
                format!("{:.2}", 100.0 * counts.share(index)),
                format!("{:.0}", counts.driver_time[index].as_secs_f64() * 1e3),
            ]);
        }
    }
    let headings =
        ["limit, profile", "programs", "completed", "tight only", "not tight", "% of tight's", "driver ms"];
    print!("{}", table::render(headings, &rows));
    println!("\ndriver ms: of the programs that all completed, by the virtual clock");
    ensure!(worst >= SHARE_MIN, "a profile completes {:.2} % of what tight completes", 100.0 * worst);
    Ok(())
}

fn factors(limits: &[TraceLimit]) -> Result<Vec<f64>> {
    let mut factors = Vec::new();
    for limit in limits {
        match limit {
            TraceLimit::TimesPeak(factor) => factors.push(*factor),
            TraceLimit::Fixed(limit) => {
                anyhow::bail!("random programs need a limit such as 1.02x, not {limit}")
            }
        }
    }
    Ok(if factors.is_empty() { FACTORS.into() } else { factors })
}

/// One line for each profile whose result differs from that of `tight`.
fn differences(comparison: &Comparison) -> String {
    let Comparison { seed, factor, attempts } = comparison;
    let has_fit = |attempt: &Attempt| attempt.fit().is_some();
    let all = PROFILES.iter().zip(attempts);
    let differing = all.filter(|(_, attempt)| has_fit(attempt) != has_fit(&attempts[0]));
    differing.map(|(profile, attempt)| format!("seed {seed}, {factor}x, {profile}: {attempt}\n")).collect()
}

/// The limits, as multiples of peak live bytes.
const FACTORS: [f64; 3] = [1.02, 1.05, 1.1];
/// The minimum share of the programs completed by `tight`.
const SHARE_MIN: f64 = 0.99;
