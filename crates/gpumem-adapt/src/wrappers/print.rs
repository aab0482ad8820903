//! Matrices as text: columns aligned on the decimal point, a dot where nothing is stored.

use core::iter::repeat_n;

/// The number of rows and columns that an abridged matrix shows at its start and at its end.
const SHOWN: (usize, usize) = (6, 5);

/// The rows of a matrix, each after a line break. A cell without text is not stored.
pub(super) fn matrix(
    [row_count, column_count]: [usize; 2],
    cell: impl Fn(usize, usize) -> Option<String>,
    in_full: bool,
) -> String {
    let (rows, columns) = (Shown::of(row_count, in_full), Shown::of(column_count, in_full));
    let cells: Vec<Vec<Option<String>>> =
        rows.indices.iter().map(|&i| columns.indices.iter().map(|&j| cell(i, j)).collect()).collect();
    let widths: Vec<Column> = (0..columns.indices.len())
        .map(|j| Column::of(cells.iter().filter_map(|row| row[j].as_deref())))
        .collect();
    let mut lines = String::new();
    for (index, row) in cells.iter().enumerate() {
        if rows.gap_at == Some(index) {
            lines += &line(widths.iter().map(|column| column.centred('⋮')), columns.gap_at, "⋱");
        }
        let texts = row.iter().zip(&widths).map(|(text, column)| match text {
            Some(text) => column.aligned(text),
            None => column.centred('⋅'),
        });
        lines += &line(texts, columns.gap_at, "…");
    }
    lines
}

/// The rows or columns that are shown.
struct Shown {
    indices: Vec<usize>,
    /// The position of the omitted rows or columns.
    gap_at: Option<usize>,
}

impl Shown {
    fn of(count: usize, in_full: bool) -> Self {
        let is_abridged = !in_full && count > SHOWN.0 + SHOWN.1 + 1;
        let (first, last) = if is_abridged { SHOWN } else { (count, 0) };
        let indices = (0..first).chain(count - last..count).collect();
        Self { indices, gap_at: is_abridged.then_some(first) }
    }
}

/// Cells side by side, with `gap` before the cell at `gap_at`.
fn line(cells: impl Iterator<Item = String>, gap_at: Option<usize>, gap: &str) -> String {
    let mut line = String::new();
    for (i, cell) in cells.enumerate() {
        if gap_at == Some(i) {
            line = line + "  " + gap;
        }
        line = line + "  " + &cell;
    }
    // The first cell has one space before it, the others two.
    format!("\n{}", line.get(1..).unwrap_or_default().trim_end())
}

/// The width of a column, on both sides of the decimal point.
#[derive(Default)]
struct Column {
    before_point: usize,
    after_point: usize,
}

impl Column {
    fn of<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        texts.map(parts).fold(Self::default(), |column, (before, after)| Self {
            before_point: column.before_point.max(before),
            after_point: column.after_point.max(after),
        })
    }

    fn aligned(&self, text: &str) -> String {
        let (before, after) = parts(text);
        let (left, right) = (self.before_point - before, self.after_point - after);
        repeat_n(' ', left).chain(text.chars()).chain(repeat_n(' ', right)).collect()
    }

    /// The mark where the middle of a zero would stand: a `0` that ends where the number's integer part ends, or the
    /// point of a `0.0` under the number's own.
    fn centred(&self, mark: char) -> String {
        let width = (self.before_point + self.after_point).max(1);
        let left = if self.after_point > 0 { self.before_point } else { self.before_point.saturating_sub(1) };
        let right = width.saturating_sub(left + 1);
        repeat_n(' ', left).chain([mark]).chain(repeat_n(' ', right)).collect()
    }
}

/// The numbers of characters before the decimal point, and from it on.
fn parts(text: &str) -> (usize, usize) {
    let point = text.find(['.', 'e']).unwrap_or(text.len());
    (text[..point].chars().count(), text[point..].chars().count())
}

#[cfg(test)]
mod tests {
    use super::matrix;

    fn printed(texts: &[&str], in_full: bool) -> String {
        matrix([texts.len(); 2], |i, j| (i == j).then(|| texts[i].to_owned()), in_full)
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
    fn numbers_of_a_column_are_aligned_on_the_point() {
        let texts = [["1.0", "-20.5"], ["100.25", "3.0"]];
        let text = matrix([2, 2], |i, j| Some(texts[i][j].to_owned()), false);
        assert_eq!(text, "\n   1.0   -20.5\n 100.25    3.0");
        assert_eq!(matrix([2, 2], |i, j| (i > j).then(|| "7".to_owned()), false), "\n ⋅  ⋅\n 7  ⋅");
        assert_eq!(matrix([1, 3], |_, j| Some(j.to_string()), false), "\n 0  1  2");
    }

    #[test]
    fn large_matrices_are_abridged_unless_asked_for_in_full() {
        let texts: Vec<String> = (10..30).map(|i| i.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let diagonal = printed(&texts, false);
        let lines: Vec<String> = diagonal.lines().skip(1).map(str::to_owned).collect();
        assert_eq!(lines.len(), 6 + 1 + 5);
        assert_eq!(lines[0], " 10   ⋅   ⋅   ⋅   ⋅   ⋅  …   ⋅   ⋅   ⋅   ⋅   ⋅");
        assert_eq!(lines[6], "  ⋮   ⋮   ⋮   ⋮   ⋮   ⋮  ⋱   ⋮   ⋮   ⋮   ⋮   ⋮");
        assert_eq!(lines[11], "  ⋅   ⋅   ⋅   ⋅   ⋅   ⋅  …   ⋅   ⋅   ⋅   ⋅  29");
        assert_eq!(printed(&texts, true).lines().skip(1).count(), 20);
        assert_eq!(printed(&texts[..12], false).lines().skip(1).count(), 12);
    }
}
