//! Columns for people.

/// Lines of cells, each column as wide as its widest cell, two spaces apart; from column `right` on they stand on the right. No spaces at the
/// ends of lines.
pub(crate) fn columns<L: AsRef<[String]>>(lines: &[L], right: usize) -> String {
    let count = lines.iter().map(|line| line.as_ref().len()).max().unwrap_or(0);
    let width = |at: usize| lines.iter().filter_map(|line| line.as_ref().get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.as_ref().iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, &width))| if at >= right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// The same below a head, everything on the left.
pub(crate) fn rows(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let lines: Vec<&[String]> = std::iter::once(head.as_slice()).chain(rows.iter().map(Vec::as_slice)).collect();
    columns(&lines, usize::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let lines = [["a", "bb", "cc"], ["aaa", "b", "µ"]].map(|line| line.map(String::from));
        assert_eq!(super::columns(&lines, 2), "a    bb  cc\naaa  b    µ\n");
    }

    #[test]
    fn rows_stand_below_their_head() {
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(super::rows(&["X", "Y"], &rows), "X     Y\na     b\nlong\n");
    }
}
