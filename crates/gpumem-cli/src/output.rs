//! Prints text and messages, with colours on a terminal only. If the reader of a pipe ends early, as `head` does, that is not an error.

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use core::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The answer of a subcommand, which is its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Yes,
    No,
}

impl Verdict {
    pub(crate) fn of(is_good: bool) -> Self {
        if is_good { Self::Yes } else { Self::No }
    }
}

/// Writes to the standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes a line to the standard error: `warning: …` or `error: …`. A failed write is ignored.
pub(crate) fn complain(kind: &str, text: &str) {
    let style = if kind == "error" { BAD } else { NOTE };
    _ = writeln!(anstream::stderr().lock(), "{}: {text}", styled(style, kind));
}

/// The name of this command as the user typed it: `gpumem`, or `python -m gpumem` from the wheel.
pub(crate) fn command_name() -> &'static str {
    if std::env::args_os().next().is_some_and(|name| name == FROM_PYTHON) { FROM_PYTHON } else { "gpumem" }
}

const FROM_PYTHON: &str = "python -m gpumem";

/// Text in a style.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The commands that answer the next questions.
pub(crate) fn next(commands: &[(String, &str)]) -> String {
    let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let lines = commands.iter().map(|(command, answers)| format!("  {command:<width$}  {answers}\n"));
    format!("\n{}\n{}", styled(HEADING, "next"), lines.collect::<String>())
}

/// A path as an argument of a shell.
pub(crate) fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-+,:@%".contains(letter));
    if is_plain && !text.is_empty() { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// An answer that is good.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// An answer that is not, and errors.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Something to notice.
pub(crate) const NOTE: Style = AnsiColor::Yellow.on_default().bold();
/// Headings.
pub(crate) const HEADING: Style = Style::new().bold();
