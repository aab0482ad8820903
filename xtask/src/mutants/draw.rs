//! Draws the mutants, and builds their test programs.

use super::Args;
use super::plan::{Mutant, Plan, Suite};
use super::points::{self, Form, Point};
use super::rooms::{self, Room, TARGETS};
use super::tree::{Numbered, Tree, files};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// The percentage of additional mutants that are built, because some do not compile.
const SPARE_PERCENT: usize = 40;

/// A change that may be drawn.
struct Candidate {
    mutant: Mutant,
    point: Point,
}

/// The plan for the arguments, built. Mutants that did not compile before, of the same sources, are skipped.
pub(super) fn plan(args: &Args, folder: &Path) -> Result<Plan> {
    let all = files(&crate::workspace::root())?;
    let sources = sources(&all)?;
    let candidates = candidates(&all, args)?;
    let known = folder.join("refused.json");
    let mut refused = refused(&known, sources);
    let tree = Tree::below(folder);
    let mut built = args.count + args.count * SPARE_PERCENT / 100;
    loop {
        // The number of a mutant is its position in the draw, so that the next run writes and builds the same text.
        let drawn =
            candidates.iter().take(built).enumerate().map(|(index, candidate)| (index + 1, candidate));
        let drawn: Vec<_> = drawn.filter(|(_, candidate)| !refused.contains(&candidate.mutant.id)).collect();
        let numbered = drawn.iter().map(|(number, candidate)| Numbered {
            number: *number,
            file: candidate.mutant.file.clone(),
            point: candidate.point.clone(),
        });
        let programs = tree.build(&numbered.collect::<Vec<_>>(), |bad| {
            let bad = drawn.iter().filter(|(number, _)| bad.contains(number));
            refused.extend(bad.map(|(_, candidate)| candidate.mutant.id.clone()));
            // Written right away, so that an interrupted build need not repeat this work.
            Ok(std::fs::write(&known, serde_json::to_string(&(sources, &refused))?)?)
        })?;
        let good: Vec<_> =
            drawn.into_iter().filter(|(_, candidate)| !refused.contains(&candidate.mutant.id)).collect();
        if good.len() < args.count && built < candidates.len() {
            built += args.count - good.len();
            continue;
        }
        ensure!(!good.is_empty(), "no mutant could be drawn");
        let mutants = good.into_iter().take(args.count);
        let mutants = mutants.map(|(number, candidate)| Mutant { number, ..candidate.mutant.clone() });
        let suites = suites(&programs, folder)?;
        return Ok(Plan { seed: args.seed, sources, mutants: mutants.collect(), suites });
    }
}

fn suites(programs: &BTreeMap<String, std::path::PathBuf>, folder: &Path) -> Result<Vec<Suite>> {
    let suite = |target: &rooms::Target| {
        let program = programs.get(target.name).with_context(|| format!("{} is not built", target.name))?;
        let program = program.strip_prefix(folder).unwrap_or(program);
        Ok(Suite {
            name: target.name.into(),
            program: program.to_string_lossy().into_owned(),
            folder: format!("tree/{}", rooms::folder(target.package)),
            args: target.filters.iter().map(|filter| filter.to_string()).collect(),
        })
    };
    TARGETS.iter().map(suite).collect()
}

/// The mutants of these sources that do not compile.
fn refused(path: &Path, sources: u64) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match serde_json::from_str::<(u64, BTreeSet<String>)>(&text) {
        Ok((of, refused)) if of == sources => refused,
        _ => BTreeSet::new(),
    }
}

/// A hash of the mutated packages' sources, without tests and comments.
fn sources(all: &[String]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in
        all.iter().filter(|file| file.ends_with(".rs") && file.contains("/src/") && !rooms::is_test(file))
    {
        if rooms::packages().iter().any(|package| file.starts_with(&format!("{}/", rooms::folder(package)))) {
            let text = std::fs::read_to_string(crate::workspace::root().join(file))?;
            (file, points::without_tests(&text).with_context(|| file.clone())?).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

/// All changes that may be drawn, in the order of the draw: one change of each room in turn, and within a room in an order that
/// depends on the seed.
fn candidates(all: &[String], args: &Args) -> Result<Vec<Candidate>> {
    let mut by_room = Vec::new();
    let mut random = Random(args.seed);
    for (room, files) in rooms::files(all, args.only.as_deref())? {
        let mut candidates = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(crate::workspace::root().join(file))?;
            let mut seen = BTreeMap::<String, usize>::new();
            for point in points::find(&text).with_context(|| file.clone())? {
                let mut mutant = described(room, file, &text, &point);
                let again = seen.entry(mutant.id.clone()).or_default();
                *again += 1;
                mutant.id = format!("{} #{again}", mutant.id);
                candidates.push(Candidate { mutant, point });
            }
        }
        random.shuffle(&mut candidates);
        by_room.push(candidates.into_iter());
    }
    let mut drawn = Vec::new();
    loop {
        let count = drawn.len();
        drawn.extend(by_room.iter_mut().filter_map(Iterator::next));
        if drawn.len() == count {
            return Ok(drawn);
        }
    }
}

fn described(room: &Room, file: &str, text: &str, point: &Point) -> Mutant {
    let (range, new) = &point.edit;
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[range.end..].find('\n').map_or(text.len(), |at| range.end + at);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let before = squeezed(&text[start..end]);
    let after = squeezed(&format!("{}{new}{}", &text[start..range.start], &text[range.end..end]));
    let after = match (after.is_empty(), point.form) {
        (true, Form::Statement | Form::Arm) => "(left out)".to_string(),
        _ => after,
    };
    Mutant {
        number: 0,
        id: format!("{file} {}: {before} → {after}", point.function),
        room: room.name.into(),
        file: file.into(),
        line: point.line,
        function: point.function.clone(),
        before,
        after,
        suites: room.suites.iter().map(|suite| suite.to_string()).collect(),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_again() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            Random(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(3), shuffled(3));
        assert_ne!(shuffled(3), shuffled(4));
        let mut sorted = shuffled(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_mutant_is_described_by_its_lines() {
        let text = "fn f() {\n    g(\n        1,\n    );\n    if a < b {}\n}\n";
        let room = &rooms::ROOMS[0];
        let points = points::find(text).unwrap();
        let mutants: Vec<_> = points.iter().map(|point| described(room, "a.rs", text, point)).collect();
        assert!(mutants.iter().any(|m| (m.before.as_str(), m.after.as_str()) == ("g( 1, );", "(left out)")));
        assert!(
            mutants.iter().any(|m| (m.before.as_str(), m.after.as_str()) == ("if a < b {}", "if a <= b {}"))
        );
    }
}
