//! The outcome of a step.

/// A sentence that describes the bug of the pool, if there is one.
pub(super) type Step = Result<(), String>;

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
