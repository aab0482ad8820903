//! Text from the program, prepared for reports.

/// Escapes control characters, which would start a new line or control a terminal.
pub(crate) fn on_a_line(name: &str) -> String {
    let shown = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    name.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(on_a_line("naïve 模型"), "naïve 模型");
        assert_eq!(on_a_line("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
    }
}
