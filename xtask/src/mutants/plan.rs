//! The plan of a run: the mutants and the test programs. A plan is a file, so that a machine without Rust can run it.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The hash of the mutated sources.
    pub(crate) sources: u64,
    pub(crate) mutants: Vec<Mutant>,
    pub(crate) suites: Vec<Suite>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Mutant {
    /// The number that the switch compares with, from 1.
    pub(crate) number: usize,
    /// An identifier that is stable when other mutants are drawn from the same sources.
    pub(crate) id: String,
    pub(crate) room: String,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) function: String,
    /// The changed lines, joined to one, before and after.
    pub(crate) before: String,
    pub(crate) after: String,
    /// The names of the suites.
    pub(crate) suites: Vec<String>,
}

/// A test program.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// The path of the program, from the plan's folder.
    pub(crate) program: String,
    /// The working folder: that of its package.
    pub(crate) folder: String,
    pub(crate) args: Vec<String>,
}

/// The result of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// A test failed, or the program ended abnormally.
    Killed {
        suite: String,
        by: String,
    },
    /// A suite took much longer than without the mutant.
    TimedOut {
        suite: String,
    },
    Survived,
}

/// A line of the results.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The first line: the hash of the sources.
    Sources(u64),
    /// The result of a suite without a mutant.
    Baseline(Baseline),
    Mutant {
        id: String,
        verdict: Verdict,
        seconds: f64,
    },
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Baseline {
    pub(crate) suite: String,
    pub(crate) seconds: f64,
    /// Tests that sometimes fail without a mutant. They do not count.
    pub(crate) unreliable: Vec<String>,
}

/// The results so far, in a file that grows by a line for each.
pub(crate) struct Results {
    file: File,
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    pub(crate) baselines: BTreeMap<String, Baseline>,
}

impl Results {
    /// Opens the results of a plan. Results of other sources are moved away.
    pub(crate) fn open(path: &Path, sources: u64) -> Result<Self> {
        let (mut verdicts, mut baselines) = (BTreeMap::new(), BTreeMap::new());
        let mut is_ours = false;
        if path.exists() {
            for line in BufReader::new(File::open(path)?).lines() {
                // The last line may be incomplete if the machine stopped.
                let Ok(line) = serde_json::from_str(&line?) else { continue };
                match line {
                    Line::Sources(of) => is_ours = of == sources,
                    Line::Baseline(baseline) => drop(baselines.insert(baseline.suite.clone(), baseline)),
                    Line::Mutant { id, verdict, .. } => drop(verdicts.insert(id, verdict)),
                }
            }
            if !is_ours {
                std::fs::rename(path, path.with_extension("old.jsonl"))?;
                (verdicts, baselines) = Default::default();
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut results = Self { file, verdicts, baselines };
        if is_ours && !std::fs::read(path)?.ends_with(b"\n") {
            writeln!(results.file)?;
        }
        if !is_ours {
            results.write(&Line::Sources(sources))?;
        }
        Ok(results)
    }

    pub(crate) fn add(&mut self, id: &str, verdict: Verdict, seconds: f64) -> Result<()> {
        self.verdicts.insert(id.to_string(), verdict.clone());
        self.write(&Line::Mutant { id: id.to_string(), verdict, seconds })
    }

    pub(crate) fn add_baseline(&mut self, baseline: Baseline) -> Result<()> {
        self.baselines.insert(baseline.suite.clone(), baseline.clone());
        self.write(&Line::Baseline(baseline))
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        Ok(writeln!(self.file, "{}", serde_json::to_string(line)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_again_unless_the_sources_differ() {
        let folder = std::env::temp_dir().join(format!("gpumem-mutants-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("1.jsonl");
        let mut results = Results::open(&path, 7).unwrap();
        results.add("a", Verdict::Survived, 1.0).unwrap();
        results.add("a", Verdict::TimedOut { suite: "pool".into() }, 2.0).unwrap();
        results.add("b", Verdict::Survived, 1.0).unwrap();
        write!(results.file, "{{\"Mut").unwrap();
        Results::open(&path, 7).unwrap().add("c", Verdict::Survived, 1.0).unwrap();
        let again = Results::open(&path, 7).unwrap();
        assert_eq!(again.verdicts["a"], Verdict::TimedOut { suite: "pool".into() });
        assert_eq!(again.verdicts.len(), 3);
        assert!(Results::open(&path, 8).unwrap().verdicts.is_empty());
        assert!(Results::open(&path, 8).unwrap().verdicts.is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
