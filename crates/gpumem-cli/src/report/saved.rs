//! [`Saved`]: the report of a refusal, as a program printed it.

use crate::output::{BAD, HEADING, command_name, next, shell, styled};
use core::fmt::Write as _;
use gpumem_trace::pool::sys::text::Shown;
use serde_json::{Value, json};
use std::path::Path;

/// A report: the headline, the advice, and the table of who holds the memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    headline: String,
    advice: Vec<String>,
    /// The lines of the table, without the indentation that they share.
    table: Vec<String>,
    /// The flight record that the report names.
    record: Option<String>,
    /// The number of reports in the file.
    count: usize,
}

impl Saved {
    /// The last report in a text, such as a log. Its lines may have a prefix, as a system's logger adds, may be one string of JSON, and a few
    /// lines of other threads may be between them.
    pub(super) fn of(text: &str) -> Option<Self> {
        let starts: Vec<usize> = text.match_indices(HEADLINE).map(|(at, _)| at + HEADLINE.len()).collect();
        let is_headline = |at: &&usize| {
            let line = text[**at..].lines().next().unwrap_or_default();
            line.contains(" refused ") || line.contains(" requested")
        };
        let found: Vec<&usize> = starts.iter().filter(is_headline).collect();
        let rest = &text[**found.last()?..];
        let unescaped = rest.lines().next().filter(|line| line.contains("\\n  ")).map(unescaped);
        let mut lines = unescaped.as_deref().unwrap_or(rest).lines();
        let mut report =
            Self { headline: lines.next()?.trim().into(), count: found.len(), ..Self::default() };
        let lines: Vec<&str> = lines.take(LINES_MAX).collect();
        // Behind what a logger puts before each line.
        let prefix = lines.iter().find_map(|line| line.find("  →")).unwrap_or(0);
        let (mut in_advice, mut foreign_count) = (false, 0);
        for line in lines {
            let Some(line) = line.get(prefix..).filter(|line| line.starts_with("  ")).map(str::trim_end)
            else {
                foreign_count += 1;
                if foreign_count > FOREIGN_LINES_MAX {
                    break;
                }
                continue;
            };
            foreign_count = 0;
            in_advice = report.add(line, in_advice);
        }
        Some(report)
    }

    /// Adds an indented line. Returns true if it belongs to an advice, which may go on in the next line.
    fn add(&mut self, line: &str, in_advice: bool) -> bool {
        let words = line.trim_start();
        if let Some(advice) = words.strip_prefix('→') {
            self.advice.push(advice.trim().into());
            return true;
        }
        if in_advice && line.starts_with("    ") {
            // A sentence goes on below its beginning.
            self.advice
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|advice| *advice = format!("{advice} {words}"));
            return true;
        }
        match words.strip_prefix("the last requests are recorded in ") {
            Some(path) => self.record = Some(path.into()),
            None if words.starts_with("next: ") => {}
            None => self.table.push(line.strip_prefix("  ").unwrap_or(line).into()),
        }
        false
    }

    /// The reason and the advice.
    pub(super) fn why(&self) -> String {
        let mut text = format!("  reason   {}\n", Shown::sentence(&self.headline));
        self.advice.iter().for_each(|advice| _ = writeln!(text, "  advice   {}", Shown::sentence(advice)));
        text
    }

    /// Who holds the memory, and what the pool tried.
    pub(super) fn table(&self) -> String {
        let shown = self.table.iter().filter(|line| !is_detail(line.trim_start()));
        shown.map(|line| format!("  {}\n", Shown::sentence(line))).collect()
    }

    pub(super) fn text(&self, file: &Path) -> String {
        let mut text = format!("{}: {} memory", Shown::path(file), styled(BAD, "refused"));
        if self.count > 1 {
            let _ = write!(text, "; the last of {} reports", self.count);
        }
        text = text + "\n" + &self.why();
        if !self.table.is_empty() {
            let _ = write!(text, "\n{}\n{}", styled(HEADING, "held when it is refused"), self.table());
        }
        match &self.record {
            Some(record) => {
                let report = format!("{} report {}", command_name(), shell(Path::new(record)));
                let view = format!("{} view {}", command_name(), shell(Path::new(record)));
                text +=
                    &next(&[(report, "the last requests, and what grew"), (view, "the memory over time")]);
            }
            None => {
                text += &next(&[
                    (
                        "GPUMEM_FLIGHT_RECORDER=on PROGRAM".into(),
                        "the next refusal writes its last requests to a file",
                    ),
                    ("GPUMEM_TRACE=run.trace PROGRAM".into(), "all requests of the program"),
                ]);
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "headline": self.headline,
            "advice": self.advice,
            "table": self.table,
            "record": self.record,
            "reports": self.count,
        })
    }
}

const HEADLINE: &str = "out of GPU memory: ";

/// True for attempts that changed nothing at once, and counters of the pool: a record has the long form of a report.
fn is_detail(line: &str) -> bool {
    let is_quick = line.ends_with("ns") || line.ends_with("µs");
    line.starts_with("Memory pool ")
        || (line.starts_with("tried: ") && line.contains(": gained nothing in ") && is_quick)
}

/// The lines that are looked at, and those between them that belong to other threads.
const LINES_MAX: usize = 100;
const FOREIGN_LINES_MAX: usize = 3;

/// A string of JSON up to its end.
fn unescaped(text: &str) -> String {
    let mut end = text.len();
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if !is_escaped => {
                end = at;
                break;
            }
            _ => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    serde_json::from_str(&format!("\"{}\"", &text[..end])).unwrap_or_else(|_| text.into())
}

#[cfg(test)]
mod tests {
    use super::Saved;

    const LOG: &str = "\
2026-01-01 INFO start
ERROR request failed: out of GPU memory: the limit of 64.000 MiB refused 32.000 MiB (device 0, pool server, stream 65536)
  → the device has free memory, but the request would exceed the pool's limit: raise it to 80.000 MiB or more
    (PoolBuilder::hard_limit, or Pool::set_hard_limit), or free blocks (tag `weights` holds 48.000 MiB)
  in use          48.000 MiB  in 1 block
    weights       48.000 MiB  in 1 block
  cached             0 bytes  free, kept for the next requests
  the last requests are recorded in /tmp/gpumem-4711.trace
  next: gpumem report /tmp/gpumem-4711.trace
2026-01-01 INFO retry
";

    #[test]
    fn a_report_is_found_in_a_log() {
        let saved = Saved::of(LOG).unwrap();
        assert_eq!(
            saved.headline,
            "the limit of 64.000 MiB refused 32.000 MiB (device 0, pool server, stream 65536)"
        );
        assert_eq!(saved.advice.len(), 1);
        assert!(saved.advice[0].ends_with("(tag `weights` holds 48.000 MiB)"), "{:?}", saved.advice);
        assert_eq!(saved.record.as_deref(), Some("/tmp/gpumem-4711.trace"));
        assert_eq!(saved.table.len(), 3);
        let long = LOG.replace("  the last", "  tried: remap: gained nothing in 3.5µs\n  tried: wait: gained 2 MiB in 1.0ms\n  Memory pool requests: 0\n  the last");
        let long = Saved::of(&long).unwrap();
        assert_eq!((long.table.len(), long.table().lines().count()), (6, 4), "{}", long.table());
        assert!(saved.table[1].starts_with("  weights"), "{:?}", saved.table);
        assert_eq!(Saved::of(&format!("{LOG}{LOG}")).unwrap().count, 2);
    }

    #[test]
    fn a_report_is_found_behind_prefixes_and_between_other_lines() {
        let plain = Saved::of(LOG).unwrap();
        let prefixed: String =
            LOG.lines().map(|line| format!("Nov 30 03:00:00 host svc[123]: {line}\n")).collect();
        assert_eq!(Saved::of(&prefixed).unwrap(), plain);
        let mixed = LOG.replace("  cached  ", "2026-01-01 INFO served\n  cached  ");
        assert_eq!(Saved::of(&mixed).unwrap(), plain);
        let (_, report) = LOG.split_once("ERROR ").unwrap();
        let (report, _) = report.split_once("\n2026").unwrap();
        let json = serde_json::json!({"level": "error", "message": report, "more": "\"x\""}).to_string();
        assert_eq!(Saved::of(&json).unwrap(), plain);
    }

    #[test]
    fn other_texts_have_none() {
        let others = [
            "2026-01-01 INFO start\n",
            "out of GPU memory: ",
            "INFO we handle \"out of GPU memory: the limit of\" errors well",
            "out of GPU memory: something",
        ];
        others.iter().for_each(|text| assert_eq!(Saved::of(text), None, "{text}"));
    }
}
