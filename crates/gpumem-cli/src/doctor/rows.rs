//! The rows of the answer, as text and as JSON.

use crate::output::{BAD, GOOD, HEADING, NOTE, styled};
use core::fmt::Write as _;
use gpumem_trace::pool::Device;
use serde_json::{Value, json};

/// One row: what was looked at, what was found, and what to do about it.
pub(super) struct Row {
    section: &'static str,
    name: String,
    found: String,
    grade: Grade,
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Good,
    Note,
    Bad,
}

/// The rows so far.
#[derive(Default)]
pub(super) struct Rows {
    list: Vec<Row>,
    /// The error of a variable that the driver reads.
    pub(super) variable_error: Option<String>,
}

/// The section of a device.
pub(super) fn section_of(device: &Device) -> &'static str {
    // Few devices: each has a section of its own.
    const SECTIONS: [&str; 8] =
        ["device 0", "device 1", "device 2", "device 3", "device 4", "device 5", "device 6", "device 7"];
    SECTIONS.get(device.ordinal() as usize).copied().unwrap_or("more devices")
}

impl Rows {
    pub(super) fn add(
        &mut self,
        section: &'static str,
        name: &str,
        found: String,
        grade: Grade,
        advice: Option<String>,
    ) {
        self.list.push(Row { section, name: name.into(), found, grade, advice });
    }

    pub(super) fn good(&mut self, section: &'static str, name: &str, found: String) {
        self.add(section, name, found, Grade::Good, None);
    }

    pub(super) fn is_good(&self) -> bool {
        self.list.iter().all(|row| row.grade != Grade::Bad)
    }

    pub(super) fn text(&self) -> String {
        let (mut text, mut section) = (String::new(), "");
        let width = self.list.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for row in &self.list {
            if row.section != section {
                section = row.section;
                let _ = writeln!(text, "{}", styled(HEADING, section));
            }
            let grade = match row.grade {
                Grade::Good => styled(GOOD, "ok  "),
                Grade::Note => styled(NOTE, "note"),
                Grade::Bad => styled(BAD, "bad "),
            };
            let _ = writeln!(text, "  {grade}  {:<width$}  {}", row.name, row.found);
            if let Some(advice) = &row.advice {
                let _ = writeln!(text, "        {:<width$}  → {advice}", "");
            }
        }
        let [notes, bad] =
            [Grade::Note, Grade::Bad].map(|grade| self.list.iter().filter(|row| row.grade == grade).count());
        text + &match (notes, bad) {
            (_, 0) => format!("\n{}, {notes} to note\n", styled(GOOD, "nothing is wrong")),
            (_, bad) => format!("\n{}, {notes} to note\n", styled(BAD, format!("{bad} wrong"))),
        }
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.list.iter().map(|row| {
            let grade = match row.grade {
                Grade::Good => "ok",
                Grade::Note => "note",
                Grade::Bad => "bad",
            };
            json!({"section": row.section, "name": row.name, "found": row.found, "grade": grade, "advice": row.advice})
        });
        json!({"rows": rows.collect::<Vec<_>>(), "is_good": self.is_good()})
    }
}
