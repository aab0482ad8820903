//! A table of text: the first column is left-aligned, the others are right-aligned.

/// Renders lines of equal width, the headings first.
pub(crate) fn render<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: [&str; N]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<width$}", width = width(0)),
            _ => format!("{cell:>width$}", width = width(column)),
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rows = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    [line(headings)].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [["pool".into(), "12".into()], ["conformance".into(), "3".into()]];
        let text = super::render(["suite", "passed"], &rows);
        assert_eq!(text, "suite        passed\npool             12\nconformance       3\n");
    }
}
