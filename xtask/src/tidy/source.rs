//! A Rust source by lines, with code and comments separate, so that a check never mistakes text for code.
//!
//! This is the part of a lexer that distinguishes comments, strings and characters from the rest. It does not parse, because the
//! compiler does, and a source that the compiler refuses needs no finding here.

/// The lines of a source.
pub(super) struct Source {
    pub(super) lines: Vec<Line>,
}

/// A line. The code omits the contents of strings and characters, but keeps the quotes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) comment: String,
}

impl Line {
    pub(super) fn is_blank(&self) -> bool {
        self.code.trim().is_empty() && self.comment.is_empty()
    }
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut lexer = Lexer { chars: &chars, at: 0, lines: vec![Line::default()] };
        while lexer.at < chars.len() {
            lexer.step();
        }
        Self { lines: lexer.lines }
    }

    /// The words of the code, each with its line index and the rest of the line after it.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, &str, &str)> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.lines.iter().enumerate().flat_map(move |(index, line)| {
            let mut rest = line.code.as_str();
            std::iter::from_fn(move || {
                rest = &rest[rest.find(is_word)?..];
                let (word, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
                rest = after;
                Some((index, word, after))
            })
        })
    }
}

struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
    lines: Vec<Line>,
}

impl Lexer<'_> {
    fn step(&mut self) {
        match self.chars[self.at] {
            '/' if self.peek(1) == Some('/') => self.comment_until(|lexer| lexer.peek(0) == Some('\n')),
            '/' if self.peek(1) == Some('*') => self.block_comment(),
            '"' => self.string(),
            '\'' if self.is_char_literal() => self.char_literal(),
            'r' if self.raw_hashes().is_some() && !self.follows_word() => self.raw_string(),
            c => self.push(c, false),
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Adds one character, as code or as comment.
    fn push(&mut self, c: char, comment: bool) {
        self.at += 1;
        if c == '\n' {
            return self.lines.push(Line::default());
        }
        if let Some(line) = self.lines.last_mut() {
            if comment { line.comment.push(c) } else { line.code.push(c) }
        }
    }

    /// Skips one character of a string: only line ends are kept.
    fn skip(&mut self) {
        if self.peek(0) == Some('\n') { self.push('\n', false) } else { self.at += 1 }
    }

    fn comment_until(&mut self, mut ends: impl FnMut(&Self) -> bool) {
        while let Some(c) = self.peek(0) {
            if ends(self) {
                return;
            }
            self.push(c, true);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let Some(c) = self.peek(0) {
            let (opens, closes) = (self.starts("/*"), self.starts("*/"));
            depth = depth + usize::from(opens) - usize::from(closes);
            self.push(c, true);
            if opens || closes {
                self.push(if opens { '*' } else { '/' }, true);
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn starts(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c))
    }

    fn string(&mut self) {
        self.push('"', false);
        while let Some(c) = self.peek(0) {
            match c {
                '"' => return self.push('"', false),
                '\\' => self.at += 1,
                _ => {}
            }
            self.skip();
        }
    }

    /// Returns whether a quote starts a character literal and not a lifetime: an escape, or a closing quote two characters on.
    fn is_char_literal(&self) -> bool {
        self.peek(1) == Some('\\') || self.peek(2) == Some('\'')
    }

    fn char_literal(&mut self) {
        self.push('\'', false);
        self.at += if self.peek(0) == Some('\\') { 2 } else { 1 };
        while self.peek(0).is_some_and(|c| c != '\'') {
            self.at += 1;
        }
        self.push('\'', false);
    }

    /// The number of hashes between `r` and a quote, if a raw string starts here.
    fn raw_hashes(&self) -> Option<usize> {
        let hashes = (1..).take_while(|ahead| self.peek(*ahead) == Some('#')).count();
        (self.peek(hashes + 1) == Some('"')).then_some(hashes)
    }

    fn follows_word(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.chars.get(at));
        before.is_some_and(|c| (c.is_alphanumeric() || *c == '_') && !matches!(c, 'b' | 'c'))
    }

    fn raw_string(&mut self) {
        let hashes = self.raw_hashes().unwrap_or(0);
        let end: String = ['"'].into_iter().chain(std::iter::repeat_n('#', hashes)).collect();
        self.at += hashes + 2;
        while self.at < self.chars.len() && !self.starts(&end) {
            self.skip();
        }
        self.at += end.len();
        self.lines.iter_mut().last().into_iter().for_each(|line| line.code.push_str("\"\""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(String, String)> {
        Source::parse(text).lines.into_iter().map(|line| (line.code, line.comment)).collect()
    }

    #[test]
    fn comments_and_code_are_told_apart() {
        assert_eq!(lines("a // b\nc"), [("a ".into(), "// b".into()), ("c".into(), String::new())]);
        assert_eq!(lines("a /* b /* c */ d */ e"), [("a  e".into(), "/* b /* c */ d */".into())]);
        assert_eq!(lines("/* a\nb */ c"), [(String::new(), "/* a".into()), (" c".into(), "b */".into())]);
    }

    #[test]
    fn strings_and_characters_are_left_out() {
        assert_eq!(lines(r#"f("// no \" comment")"#), [("f(\"\")".into(), String::new())]);
        assert_eq!(lines(r##"f(r#"unsafe " { "#, b"x")"##), [("f(\"\", b\"\")".into(), String::new())]);
        assert_eq!(lines(r"g('\'', '/', '\u{1}') // c"), [("g('', '', '') ".into(), "// c".into())]);
        assert_eq!(lines("\"a\nb\" c")[1].0, "\" c");
    }

    #[test]
    fn lifetimes_are_code() {
        assert_eq!(lines("fn f<'a>(x: &'a str) {}"), [("fn f<'a>(x: &'a str) {}".into(), String::new())]);
    }

    #[test]
    fn words_come_with_their_line_and_what_follows() {
        let source = Source::parse("a_1 + b\n// no\nunsafe {");
        let words: Vec<_> = source.words().collect();
        assert_eq!(words, [(0, "a_1", " + b"), (0, "b", ""), (2, "unsafe", " {")]);
    }
}
