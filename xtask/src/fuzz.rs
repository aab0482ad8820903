//! `cargo xtask fuzz`: random programs over the pool, for as long as wanted.
//!
//! The search itself is `gpumem_tests::model`; this is its command line, and the progress while it runs.

use anyhow::{Result, bail};
use gpumem_tests::model::{Coverage, Search};
use gpumem_tests::pool::BackendKind;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Stop after so long (60, unless --cases is given)
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The first seed; drawn if not given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Stop after so many seeds
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Only this backend: native or none
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendKind>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let search = args.search();
    let limit = args.limit();
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
    let start = Instant::now();
    let outcome = search.run(|coverage| {
        progress.set_message(coverage.to_string());
        progress.tick();
        let over = limit.is_some_and(|limit| start.elapsed() >= limit);
        if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish_and_clear();
    match outcome {
        Ok(coverage) => {
            println!("{}", summary(&search, &coverage, start.elapsed()));
            Ok(())
        }
        Err(found) => {
            println!("{found}");
            println!("keep: {} {} in tests/regressions/pool.txt", found.backend, found.seed);
            bail!("the pool failed after {:.1} s", start.elapsed().as_secs_f64())
        }
    }
}

impl Args {
    fn search(&self) -> Search {
        let first_seed = self.seed.unwrap_or_else(drawn_seed);
        let mut search = Search::seeds(first_seed, self.cases.unwrap_or(u64::MAX));
        if let Some(backend) = self.backend {
            search.backends = vec![backend];
        }
        search
    }

    fn limit(&self) -> Option<Duration> {
        let unsaid = if self.cases.is_some() { None } else { Some(60) };
        self.seconds.or(unsaid).map(Duration::from_secs)
    }
}

/// Six digits are easier to pass on than twenty, and as good.
fn drawn_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000
}

fn summary(search: &Search, coverage: &Coverage, elapsed: Duration) -> String {
    let backends: Vec<String> = search.backends.iter().map(ToString::to_string).collect();
    let last = search.first_seed.saturating_add(coverage.seeds).saturating_sub(1);
    format!(
        "clean: {coverage}\nbackends {}, seeds {} to {last}, {:.1} s",
        backends.join(" and "),
        search.first_seed,
        elapsed.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::parse_from(line.split(' ')).args
    }

    #[test]
    fn cases_alone_are_not_cut_short() {
        assert_eq!(args("fuzz --cases 5").limit(), None);
        assert_eq!(args("fuzz --cases 5 --seconds 3").limit(), Some(Duration::from_secs(3)));
        assert_eq!(args("fuzz --seed 5").limit(), Some(Duration::from_secs(60)));
    }

    /// What a failure prints is a command line that this task understands.
    #[test]
    fn the_printed_command_is_understood() {
        let found = gpumem_tests::model::Failure {
            seed: 8113,
            backend: BackendKind::None,
            what: String::new(),
            program: Vec::new(),
        };
        let command = found.command();
        let search = args(command.strip_prefix("cargo xtask ").unwrap()).search();
        assert_eq!((search.first_seed, search.seed_count), (8113, Some(1)));
        assert_eq!(search.backends, [BackendKind::None]);
    }
}
