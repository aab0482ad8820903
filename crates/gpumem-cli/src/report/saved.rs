//! [`Saved`]: the report of a refusal, as a program printed it.

use super::{next, shell};
use crate::output::{BAD, HEADING, command_name, styled};
use anyhow::{Context, Result};
use core::fmt::Write as _;
use gpumem_trace::pool::sys::text::Shown;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
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
    /// The last report in a file of text; `None` if the file is a record, or has none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let context = || Shown::path(path).to_string();
        let mut bytes = Vec::new();
        File::open(path)
            .with_context(context)?
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .with_context(context)?;
        let is_text = !bytes[..bytes.len().min(TEXT_BYTES_LOOKED_AT)].contains(&0);
        Ok(if is_text { Self::of(&String::from_utf8_lossy(&bytes)) } else { None })
    }

    /// The last report in a text.
    pub(super) fn of(text: &str) -> Option<Self> {
        let count = text.matches(HEADLINE).count();
        let start = text.rfind(HEADLINE)? + HEADLINE.len();
        let mut lines = text[start..].lines();
        let mut report = Self { headline: lines.next()?.trim().into(), count, ..Self::default() };
        let mut in_advice = false;
        // The report's lines are indented; what the program printed next is not.
        let rest = lines.map(|line| line.trim_end()).take_while(|line| line.starts_with(' '));
        for line in rest {
            let words = line.trim_start();
            if let Some(advice) = words.strip_prefix('→') {
                report.advice.push(advice.trim().into());
                in_advice = true;
            } else if in_advice && line.starts_with("    ") {
                // A sentence goes on below its beginning.
                report
                    .advice
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|advice| *advice = format!("{advice} {words}"));
            } else if let Some(path) = words.strip_prefix("the last requests are recorded in ") {
                report.record = Some(path.into());
            } else if words.starts_with("next: ") {
                in_advice = false;
            } else {
                in_advice = false;
                report.table.push(line.strip_prefix("  ").unwrap_or(line).into());
            }
        }
        Some(report)
    }

    /// The reason and the advice.
    pub(super) fn why(&self) -> String {
        let mut text = format!("  reason   {}\n", Shown::sentence(&self.headline));
        self.advice.iter().for_each(|advice| _ = writeln!(text, "  advice   {}", Shown::sentence(advice)));
        text
    }

    /// Who holds the memory, and what the pool tried.
    pub(super) fn table(&self) -> String {
        self.table.iter().map(|line| format!("  {}\n", Shown::sentence(line))).collect()
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

/// A log may be long, and its last report is at its end.
const FILE_BYTES_MAX: u64 = 1 << 30;
const TEXT_BYTES_LOOKED_AT: usize = 4096;

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
        assert!(saved.table[1].starts_with("  weights"), "{:?}", saved.table);
        assert_eq!(Saved::of(&format!("{LOG}{LOG}")).unwrap().count, 2);
    }

    #[test]
    fn other_texts_have_none() {
        assert_eq!(Saved::of("2026-01-01 INFO start\n"), None);
        assert!(Saved::of("out of GPU memory: ").is_none_or(|saved| saved.advice.is_empty()));
    }
}
