//! [`Shown`]: text that comes from outside, as messages and tables show it. [`debug_is_display`]: the `Debug` of errors. Pure.
//!
//! Names, values, paths and logs come from users, files, drivers and other programs. A message shows each of them through [`Shown`], so it
//! keeps to its line, cannot control a terminal, and has a bounded length. Fields and serialised forms keep the text as it is: programs
//! read those.

use core::fmt::{self, Write};
use std::borrow::Cow;
use std::path::Path;

/// Text from outside, for messages. Letters without a printable form are escaped (`\n`, `\u{202e}`): control characters, marks that
/// change the direction of writing, invisible ones. Text beyond the maximum is cut, with an ellipsis at the end.
///
/// `Display` prints the text, `Debug` prints it in quotation marks.
///
/// ```
/// use gpumem_sys::text::Shown;
///
/// assert_eq!(Shown::name("naïve 模型").to_string(), "naïve 模型");
/// assert_eq!(Shown::name("a\nb\u{1b}[31m").to_string(), r"a\nb\u{1b}[31m");
/// assert_eq!(Shown::name(&"x".repeat(65_536)).to_string(), "x".repeat(63) + "…");
/// assert_eq!(format!("{:?}", Shown::name("lots")), r#""lots""#);
/// ```
#[derive(Clone)]
pub struct Shown<'a> {
    text: Cow<'a, str>,
    columns_max: usize,
    has_lines: bool,
}

impl<'a> Shown<'a> {
    /// A name or a value: at most 64 columns.
    #[must_use]
    pub fn name(text: &'a str) -> Self {
        Self { text: text.into(), columns_max: NAME_COLUMNS_MAX, has_lines: false }
    }

    /// A sentence, such as the message of another program: at most 1024 columns.
    #[must_use]
    pub fn sentence(text: &'a str) -> Self {
        Self { columns_max: SENTENCE_COLUMNS_MAX, ..Self::name(text) }
    }

    /// The text of an error or of another value, as a sentence.
    #[must_use]
    pub fn sentence_of(value: &dyn fmt::Display) -> Self {
        Self { text: value.to_string().into(), columns_max: SENTENCE_COLUMNS_MAX, has_lines: false }
    }

    /// A path: at most 1024 columns.
    #[must_use]
    pub fn path(path: &'a Path) -> Self {
        Self { text: path.to_string_lossy(), columns_max: SENTENCE_COLUMNS_MAX, has_lines: false }
    }

    /// A log of several lines: at most 16,384 columns in all. Its line breaks stay.
    #[must_use]
    pub fn log(text: &'a str) -> Self {
        Self { text: text.into(), columns_max: LOG_COLUMNS_MAX, has_lines: true }
    }

    /// A report of several lines, such as the text of an error that wraps another, like [`Shown::log`].
    #[must_use]
    pub fn log_of(value: &dyn fmt::Display) -> Self {
        Self { text: value.to_string().into(), columns_max: LOG_COLUMNS_MAX, has_lines: true }
    }

    /// Without a maximum, for names that stay unique.
    #[must_use]
    pub fn whole(text: &'a str) -> Self {
        Self { columns_max: usize::MAX, ..Self::name(text) }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, is_quoted: bool) -> fmt::Result {
        let end = self.cut(is_quoted);
        for letter in self.text[..end.unwrap_or(self.text.len())].chars() {
            match self.is_plain(letter, is_quoted) {
                true => f.write_char(letter)?,
                false => write!(f, "{}", letter.escape_debug())?,
            }
        }
        end.map_or(Ok(()), |_| f.write_char(ELLIPSIS))
    }

    /// The offset at which the text is cut if it is too long. A mark that takes no column counts as one, so that marks are bounded too.
    fn cut(&self, is_quoted: bool) -> Option<usize> {
        let (mut columns, mut end) = (0, 0);
        for (offset, letter) in self.text.char_indices() {
            if columns < self.columns_max {
                end = offset;
            }
            columns += match self.is_plain(letter, is_quoted) {
                true => letter_columns(letter).max(1),
                false => letter.escape_debug().len(),
            };
            if columns > self.columns_max {
                return Some(end);
            }
        }
        None
    }

    fn is_plain(&self, letter: char, is_quoted: bool) -> bool {
        match letter {
            '"' | '\\' => !is_quoted,
            ' '..='~' => true,
            '\n' => self.has_lines,
            _ => is_printable(letter),
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.write(f, true)?;
        f.write_char('"')
    }
}

/// Names in a list, separated by commas: at most 64 of them, and the number of the others.
#[must_use]
pub fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    let shown: Vec<_> = names.take(LISTED_MAX).map(|name| Shown::name(name).to_string()).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The columns that a text takes in a terminal: two for a wide letter, none for a mark on the letter before it.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.chars().map(letter_columns).sum()
}

fn letter_columns(letter: char) -> usize {
    match letter {
        ' '..='~' => 1,
        _ if WIDE.iter().any(|(first, last)| (*first..=*last).contains(&letter)) => 2,
        // A letter that is printable only after another one.
        _ if letter.escape_debug().len() > 1 => 0,
        _ => 1,
    }
}

/// True if the standard library's `Debug` of text shows the letter as it is, after another letter.
fn is_printable(letter: char) -> bool {
    let mut pair = [b'a'; 5];
    let len = letter.encode_utf8(&mut pair[1..]).len();
    core::str::from_utf8(&pair[..=len]).is_ok_and(|pair| pair.escape_debug().count() == 2)
}

/// The blocks of wide letters: those of East Asian scripts, and emoji.
const WIDE: [(char, char); 13] = [
    ('\u{1100}', '\u{115f}'),
    ('\u{2e80}', '\u{303e}'),
    ('\u{3041}', '\u{33ff}'),
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{a4cf}'),
    ('\u{a960}', '\u{a97f}'),
    ('\u{ac00}', '\u{d7a3}'),
    ('\u{f900}', '\u{faff}'),
    ('\u{fe30}', '\u{fe6f}'),
    ('\u{ff00}', '\u{ff60}'),
    ('\u{ffe0}', '\u{ffe6}'),
    ('\u{1f300}', '\u{1faff}'),
    ('\u{20000}', '\u{3fffd}'),
];

const ELLIPSIS: char = '…';
const NAME_COLUMNS_MAX: usize = 64;
const SENTENCE_COLUMNS_MAX: usize = 1024;
const LOG_COLUMNS_MAX: usize = 16 << 10;
const LISTED_MAX: usize = 64;

/// Implements `Debug` with the text of `Display`: the rule for all public errors and result codes, because `unwrap`, `expect` and a `main`
/// that returns the error show `Debug`. Parameters of a type precede it: `[V] Rejected<V>`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_display {
    ([$($parameter:ident),+] $type:ty) => {
        /// The text of `Display`, because `unwrap` and a `main` that returns the error show this one.
        impl<$($parameter),+> ::core::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    };
    ($($type:ty),+) => {
        $(
            /// The text of `Display`, because `unwrap` and a `main` that returns the error show this one.
            impl ::core::fmt::Debug for $type {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(self, f)
                }
            }
        )+
    };
}
#[doc(hidden)]
pub use debug_is_display;

/// Implements `Debug` with some values: `debug_fields!(Graph, it, device: it.device().ordinal())`. Parameters of a type precede it:
/// `[T: Element] Number<T>`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    ($([$($parameters:tt)*])? $type:ident $(<$($argument:tt),*>)?, $it:ident, $($name:ident: $value:expr),+ $(,)?) => {
        impl $(<$($parameters)*>)? ::core::fmt::Debug for $type $(<$($argument),*>)? {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let $it = self;
                f.debug_struct(stringify!($type))$(.field(stringify!($name), &$value))+.finish_non_exhaustive()
            }
        }
    };
}
#[doc(hidden)]
pub use debug_fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_on_its_line_and_controls_nothing() {
        let shown = |text| Shown::name(text).to_string();
        assert_eq!(shown("naïve 模型 नमस्ते עברית"), "naïve 模型 नमस्ते עברית");
        assert_eq!(shown("a\nb\r\0\u{1b}[31m\u{9b}"), r"a\nb\r\0\u{1b}[31m\u{9b}");
        assert_eq!(
            shown("a\u{202e}b\u{2066}\u{200b}\u{2028}\u{feff}"),
            r"a\u{202e}b\u{2066}\u{200b}\u{2028}\u{feff}"
        );
        assert_eq!(shown(r#"C:\x "y""#), r#"C:\x "y""#);
        assert_eq!(format!("{:?}", Shown::name("C:\\x \"y\"\n")), r#""C:\\x \"y\"\n""#);
        assert_eq!(Shown::log("a\nb\u{7}").to_string(), "a\nb\\u{7}");
    }

    #[test]
    fn long_text_is_cut_between_letters() {
        let shown = |text: &str| Shown::name(text).to_string();
        assert_eq!(shown(&"x".repeat(64)), "x".repeat(64));
        assert_eq!(shown(&"x".repeat(65)), "x".repeat(63) + "…");
        assert_eq!(shown(&"模".repeat(40)), "模".repeat(31) + "…");
        assert_eq!(shown(&("x".repeat(62) + "\n\n")), "x".repeat(62) + "…");
        let marks = shown(&("e".to_owned() + &"\u{301}".repeat(65_536)));
        assert_eq!((marks.chars().count(), columns(&marks)), (64, 2));
        assert_eq!(Shown::whole(&"x".repeat(65_536)).to_string().len(), 65_536);
        assert_eq!(Shown::path(Path::new(&"x".repeat(65_536))).to_string().chars().count(), 1024);
    }

    #[test]
    fn columns_are_those_of_a_terminal() {
        assert_eq!(
            [columns("abc"), columns("模型"), columns("e\u{301}"), columns("🚀"), columns("")],
            [3, 4, 1, 2, 0]
        );
    }

    #[test]
    fn lists_are_bounded() {
        assert_eq!(list(["a", "b\n"].into_iter()), "a, b\\n");
        let names = ["x"; 100];
        assert!(list(names.into_iter()).ends_with("x, x and 36 more"));
    }
}
