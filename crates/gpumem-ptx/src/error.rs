//! Errors of a module's text.

use core::fmt;
use gpumem_sys::text::{Shown, debug_is_display};

/// The place of a word: line and column, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A problem in a PTX text, with its place. Displays as `line 12, column 3: …`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct PtxError {
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
    /// The problem.
    pub what: PtxProblem,
}

debug_is_display!(PtxError);

/// A problem in one of several PTX texts. Displays as `input 2, line 12, column 3: …`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("input {}, {error}", .input + 1)]
pub struct LinkError {
    /// The number of the text, from 0.
    pub input: usize,
    /// The problem.
    pub error: PtxError,
}

debug_is_display!(LinkError);

/// A kind of problem in a PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PtxProblem {
    /// The text is no PTX.
    Syntax(String),
    /// The text is PTX that this crate does not run.
    Unsupported(String),
    /// A function or variable that the text uses is defined nowhere.
    Undefined(String),
    /// The text needs a newer version of PTX than this crate knows.
    Version {
        /// The version that the text states.
        stated: (u32, u32),
        /// The newest version that is known.
        newest: (u32, u32),
    },
}

impl fmt::Display for PtxProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(what) => write!(f, "{what}"),
            Self::Unsupported(what) => write!(f, "{what} is not supported"),
            Self::Undefined(name) => {
                write!(
                    f,
                    "`{}` is declared and not defined; link the text that defines it",
                    Shown::name(name)
                )
            }
            Self::Version { stated, newest } => write!(
                f,
                "PTX {}.{} is newer than {}.{}; compile for an older version",
                stated.0, stated.1, newest.0, newest.1
            ),
        }
    }
}

impl PtxError {
    pub(crate) fn syntax(place: Place, what: impl Into<String>) -> Self {
        Self { line: place.line, column: place.column, what: PtxProblem::Syntax(what.into()) }
    }

    pub(crate) fn version(place: Place, stated: (u32, u32), newest: (u32, u32)) -> Self {
        Self { line: place.line, column: place.column, what: PtxProblem::Version { stated, newest } }
    }

    pub(crate) fn undefined(place: Place, name: &str) -> Self {
        Self { line: place.line, column: place.column, what: PtxProblem::Undefined(name.into()) }
    }

    pub(crate) fn unsupported(place: Place, what: impl Into<String>) -> Self {
        Self { line: place.line, column: place.column, what: PtxProblem::Unsupported(what.into()) }
    }
}

/// A part of the text, for a message.
pub(crate) fn short(text: &str) -> Shown<'_> {
    Shown::name(text)
}
