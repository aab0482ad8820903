//! Matrices as text: columns aligned on the decimal point, a dot where nothing is stored.

use core::iter::repeat_n;

/// The number of rows and columns that an abridged matrix shows at its start and at its end.
const SHOWN: (usize, usize) = (6, 5);

/// The rows of a diagonal matrix, each after a line break.
pub(super) fn diagonal(texts: &[String], in_full: bool) -> String {
    let abridged = !in_full && texts.len() > SHOWN.0 + SHOWN.1 + 1;
    let (first, last) = if abridged { SHOWN } else { (texts.len(), 0) };
    let shown: Vec<usize> = (0..first).chain(texts.len() - last..texts.len()).collect();
    let columns: Vec<Column> = shown.iter().map(|&i| Column::of(&texts[i])).collect();
    let mut lines = String::new();
    for (place, _) in shown.iter().enumerate() {
        if abridged && place == first {
            lines += &line(columns.iter().map(|column| column.centred('⋮')), first, "⋱");
        }
        let cells = columns.iter().enumerate();
        let cells = cells.map(|(i, column)| if i == place { column.number() } else { column.centred('⋅') });
        lines += &line(cells, if abridged { first } else { usize::MAX }, "…");
    }
    lines
}

/// Cells side by side, with `gap` before the cell at `gap_at`.
fn line(cells: impl Iterator<Item = String>, gap_at: usize, gap: &str) -> String {
    let mut line = String::new();
    for (i, cell) in cells.enumerate() {
        if i == gap_at {
            line = line + "  " + gap;
        }
        line = line + "  " + &cell;
    }
    // The first cell has one space before it, the others two.
    format!("\n{}", line[1..].trim_end())
}

/// A column of a diagonal matrix: one number, above and below it zeros that are not stored.
struct Column<'a> {
    text: &'a str,
    before_point: usize,
    after_point: usize,
}

impl<'a> Column<'a> {
    fn of(text: &'a str) -> Self {
        let point = text.find(['.', 'e']).unwrap_or(text.len());
        let (before, after) = (text[..point].chars().count(), text[point..].chars().count());
        Self { text, before_point: before, after_point: after }
    }

    fn number(&self) -> String {
        self.text.to_owned()
    }

    /// The mark where the middle of a zero would stand: a `0` that ends where the number's integer part ends, or the
    /// point of a `0.0` under the number's own.
    fn centred(&self, mark: char) -> String {
        let width = self.before_point + self.after_point;
        let left = if self.after_point > 0 { self.before_point } else { self.before_point.saturating_sub(1) };
        let right = width.saturating_sub(left + 1);
        repeat_n(' ', left).chain([mark]).chain(repeat_n(' ', right)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::diagonal;

    fn printed(texts: &[&str], in_full: bool) -> String {
        diagonal(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), in_full)
    }

    #[test]
    fn marks_stand_where_zeros_would() {
        assert_eq!(printed(&["1", "2"], false), "\n 1  ⋅\n ⋅  2");
        assert_eq!(printed(&["1.0", "2.0"], false), "\n 1.0   ⋅\n  ⋅   2.0");
        assert_eq!(printed(&["100", "2"], false), "\n 100  ⋅\n   ⋅  2");
        assert_eq!(printed(&["-10.25", "2.0"], false), "\n -10.25   ⋅\n    ⋅    2.0");
        assert_eq!(printed(&["inf", "1e20"], false), "\n inf   ⋅\n   ⋅  1e20");
    }

    #[test]
    fn large_matrices_are_abridged_unless_asked_for_in_full() {
        let texts: Vec<String> = (10..30).map(|i| i.to_string()).collect();
        let lines: Vec<String> = diagonal(&texts, false).lines().skip(1).map(str::to_owned).collect();
        assert_eq!(lines.len(), 6 + 1 + 5);
        assert_eq!(lines[0], " 10   ⋅   ⋅   ⋅   ⋅   ⋅  …   ⋅   ⋅   ⋅   ⋅   ⋅");
        assert_eq!(lines[6], "  ⋮   ⋮   ⋮   ⋮   ⋮   ⋮  ⋱   ⋮   ⋮   ⋮   ⋮   ⋮");
        assert_eq!(lines[11], "  ⋅   ⋅   ⋅   ⋅   ⋅   ⋅  …   ⋅   ⋅   ⋅   ⋅  29");
        assert_eq!(diagonal(&texts, true).lines().skip(1).count(), 20);
        assert_eq!(diagonal(&texts[..12], false).lines().skip(1).count(), 12);
    }
}
