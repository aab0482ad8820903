//! The results of the mutants: a table by room, and the survivors.

use super::plan::{Mutant, Plan, Results, Verdict};
use super::table;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The minimum percentage of killed mutants, among those that are not equivalent.
const LEAST_PERCENT: f64 = 95.0;

/// A mutant without effect on behaviour, from the list of equivalent mutants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Equivalent {
    pub(crate) file: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

/// Returns whether a mutant is in the list.
pub(crate) fn is_equivalent(mutant: &Mutant, list: &[Equivalent]) -> bool {
    list.iter().any(|entry| {
        (&entry.file, &entry.before, &entry.after) == (&mutant.file, &mutant.before, &mutant.after)
    })
}

#[derive(Clone, Copy, Default)]
struct Counts {
    drawn: usize,
    killed: usize,
    timed_out: usize,
    survived: usize,
    equivalent: usize,
}

impl Counts {
    fn percent(&self) -> f64 {
        let (killed, all) = (self.killed + self.timed_out, self.drawn - self.equivalent);
        if all == 0 { 100.0 } else { 100.0 * killed as f64 / all as f64 }
    }

    fn row(&self, name: &str) -> [String; 7] {
        let counts = [self.drawn, self.killed, self.timed_out, self.survived, self.equivalent];
        let [drawn, killed, timed_out, survived, equivalent] = counts.map(|count| count.to_string());
        [name.to_string(), drawn, killed, timed_out, survived, equivalent, format!("{:.1} %", self.percent())]
    }
}

/// Prints the table and the survivors, and fails if too many survived or the list of equivalent mutants is wrong.
pub(crate) fn print(plan: &Plan, results: &Results, list: &[Equivalent]) -> Result<()> {
    let (mut rooms, mut order, mut total) = (BTreeMap::<&str, Counts>::new(), Vec::new(), Counts::default());
    let (mut missing, mut refuted) = (0, Vec::new());
    for mutant in &plan.mutants {
        let Some(verdict) = results.verdicts.get(&mutant.id) else {
            missing += 1;
            continue;
        };
        if !rooms.contains_key(mutant.room.as_str()) {
            order.push(mutant.room.as_str());
        }
        let is_equivalent = is_equivalent(mutant, list);
        for counts in [rooms.entry(&mutant.room).or_default(), &mut total] {
            counts.drawn += 1;
            match verdict {
                Verdict::Killed { .. } => counts.killed += 1,
                Verdict::TimedOut { .. } => counts.timed_out += 1,
                Verdict::Survived if is_equivalent => counts.equivalent += 1,
                Verdict::Survived => counts.survived += 1,
            }
        }
        match verdict {
            Verdict::Survived if !is_equivalent => println!("survived: {}", diff(mutant)),
            Verdict::Killed { suite, by } if is_equivalent => {
                refuted.push(format!("{} is listed as equivalent, but {suite} objects: {by}", diff(mutant)));
            }
            _ => {}
        }
    }
    let mut rows: Vec<_> = order.iter().map(|room| rooms[room].row(room)).collect();
    rows.push(total.row("all"));
    let headings = ["room", "mutants", "killed", "timed out", "survived", "equivalent", "score"];
    println!("seed {}\n{}", plan.seed, table::render(headings, &rows));
    for baseline in results.baselines.values().filter(|baseline| !baseline.unreliable.is_empty()) {
        println!("unreliable without a mutant: {}: {}", baseline.suite, baseline.unreliable.join(", "));
    }
    ensure!(refuted.is_empty(), "{}", refuted.join("\n"));
    ensure!(missing == 0, "{missing} mutants have no result yet; run the task again to go on");
    ensure!(total.percent() >= LEAST_PERCENT, "fewer than {LEAST_PERCENT} % of the mutants are killed");
    Ok(())
}

/// A mutant as a diff of lines.
pub(crate) fn diff(mutant: &Mutant) -> String {
    let Mutant { number, file, line, function, before, after, room, .. } = mutant;
    format!("{file}:{line} (mutant {number}, {room}, fn {function})\n  - {before}\n  + {after}\n")
}
