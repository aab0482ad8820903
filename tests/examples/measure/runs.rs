//! A recorded run of the benches: a file with one JSON object a line. The first is the run's [`Origin`], the others are
//! [`Figure`]s.
//!
//! `cargo xtask bench --record FILE` writes such a file, `docs/runs` keeps those that documents refer to.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// One run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) origin: Origin,
    pub(crate) figures: Vec<Figure>,
}

/// The origin of the figures of a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    /// The day, or the time in UTC, as RFC 3339 writes it.
    pub(crate) date: String,
    /// The device's name with its memory in parentheses, and what else matters of the machine.
    pub(crate) machine: String,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// A remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) bench: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// The peer whose figure this is; `None` for gpumem's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
}

impl Run {
    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().context("the file is empty")?;
        let origin: Origin = serde_json::from_str(first).context("line 1")?;
        ensure!(
            ![&origin.date, &origin.machine, &origin.command].iter().any(|text| text.trim().is_empty()),
            "line 1: date, machine or command is empty"
        );
        let figure = |(index, line): (usize, &str)| {
            serde_json::from_str(line).with_context(|| format!("line {}", index + 1))
        };
        Ok(Self { origin, figures: lines.map(figure).collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_an_origin_and_figures() {
        let head = r#"{"date":"2026-01-01","machine":"GPU (1 MiB)","command":"c"}"#;
        let figure = r#"{"bench":"a/b/1","value":12.5,"unit":"ns","peer":"p"}"#;
        let run = Run::parse(&format!("{head}\n{figure}\n")).unwrap();
        let expected =
            Figure { bench: "a/b/1".into(), value: 12.5, unit: "ns".into(), peer: Some("p".into()) };
        assert_eq!((run.figures, run.origin.machine.as_str()), (vec![expected], "GPU (1 MiB)"));
        for (from, to) in [("12.5", "\"fast\""), ("\"unit\"", "\"in\""), ("\"ns\"", "1")] {
            let error =
                format!("{:#}", Run::parse(&format!("{head}\n{}\n", figure.replace(from, to))).unwrap_err());
            assert!(error.starts_with("line 2"), "{error}");
        }
        assert!(Run::parse(&head.replace("\"c\"", "\" \"")).is_err());
        assert!(Run::parse("").is_err());
    }
}
