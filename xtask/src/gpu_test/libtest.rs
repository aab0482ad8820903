//! The final output of a test program, and whether it counts as success for a suite that must run GPU cases.

/// The counts in the line `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; …`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Parses the counts, if `line` is a result line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_verdict, counts) = line.trim_end().strip_prefix("test result: ")?.split_once(". ")?;
        let of = |what: &str| {
            let mut fields = counts.split("; ").filter_map(|field| field.split_once(' '));
            fields.find(|(_, name)| *name == what).and_then(|(count, _)| count.parse().ok())
        };
        Some(Self { passed: of("passed")?, failed: of("failed")? })
    }
}

/// The reason why a suite failed, or `None`. `counts` is the suite's own result, `exit` describes the end of its process.
pub(crate) fn objection(counts: Option<Counts>, succeeded: bool, exit: &str) -> Option<String> {
    match counts {
        None => Some(format!("ended without a result ({exit})")),
        Some(Counts { failed, .. }) if failed > 0 => Some(format!("{failed} failed")),
        Some(_) if !succeeded => Some(format!("passed its tests, then failed ({exit})")),
        Some(Counts { passed: 0, .. }) => {
            Some("ran no GPU case; was it built without feature `gpu`?".to_string())
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_line_is_understood() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s\n";
        assert_eq!(Counts::parse(line), Some(Counts { passed: 12, failed: 0 }));
        let line = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 4.00s";
        assert_eq!(Counts::parse(line), Some(Counts { passed: 3, failed: 2 }));
    }

    #[test]
    fn other_lines_are_not() {
        for line in [
            "",
            "running 3 tests",
            "test cuda::copies ... ok",
            "test result: ",
            "test result: ok. many passed",
        ] {
            assert_eq!(Counts::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn only_a_clean_end_with_cases_is_a_success() {
        let counts = |passed, failed| Some(Counts { passed, failed });
        assert_eq!(objection(counts(3, 0), true, "exit status: 0"), None);
        let objects = |counts, succeeded, part: &str| {
            let text = objection(counts, succeeded, "signal: 11").unwrap_or_default();
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        };
        objects(counts(0, 0), true, "no GPU case");
        objects(counts(3, 1), false, "1 failed");
        objects(counts(3, 0), false, "then failed (signal: 11)");
        objects(None, false, "without a result (signal: 11)");
    }
}
