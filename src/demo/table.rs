//! What the demo prints. Pure; no line is longer than 110 columns.

use super::cluster::Cluster;
use super::rows::{REPEATS, Row};

/// The servers, and what the table below is about.
pub(super) fn introduction(cluster: &Cluster) -> String {
    let mut lines = vec![["server", "version", "serves", "mvproxy in front of it"].map(String::from)];
    for site in cluster.sites() {
        let serves: Vec<String> = site.apis().iter().map(|api| api.group_version()).collect();
        lines.push([site.id().into(), site.version().into(), serves.join(", "), format!("https://{}", site.proxy_address())]);
    }
    format!(
        "Two simulated kube-apiservers, an mvproxy in front of each. They differ, as in the middle of an upgrade:\n\n{}\n\
         A resource that the asked server does not serve is a wrong 404 without mvproxy. With it, the request is\n\
         forwarded to the server that has it.\n\n",
        columns(&lines, 4)
    )
}

/// The requests and their answers.
pub(super) fn results(rows: &[Row]) -> String {
    let mut lines = vec![["request", "asked", "without mvproxy", "with mvproxy", "answered by", "added latency"].map(String::from)];
    for row in rows {
        let answered_by = if row.answered_by.is_empty() { "(mvproxy)".into() } else { row.answered_by.clone() };
        let added = row.added.map_or_else(|| "-".into(), |micros| format!("{micros:+} µs"));
        lines.push([row.title.into(), row.asked.into(), row.alone.to_string(), row.status.to_string(), answered_by, added]);
    }
    let mut text = columns(&lines, 5);
    for row in rows {
        if let Some(wrong) = &row.wrong {
            text += &format!("\n{}: {wrong}", row.title);
        }
    }
    format!(
        "{text}\n\
         added latency: the median of {REPEATS} requests through mvproxy minus the median of {REPEATS} straight to the server\n\
         that answered, one at a time and in turns, everything on this machine.\n\n"
    )
}

/// Lines of cells, each column as wide as its widest cell; from column `right` on they stand on the right.
fn columns<const N: usize>(lines: &[[String; N]], right: usize) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            row += "  ";
            row += &if column >= right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
        }
        text += row.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let lines = [["a", "bb", "cc"], ["aaa", "b", "µ"]].map(|line| line.map(String::from));
        assert_eq!(columns(&lines, 2), "  a    bb  cc\n  aaa  b    µ\n");
    }

    #[test]
    fn wrong_rows_are_called_out() {
        let mut row = Row {
            title: "list jobs",
            asked: "cp-a",
            alone: 404,
            status: 503,
            answered_by: String::new(),
            added: None,
            wrong: Some("WRONG: should be otherwise".into()),
        };
        let text = results(std::slice::from_ref(&row));
        assert!(text.contains("404") && text.contains("503") && text.contains("(mvproxy)"), "{text}");
        assert!(text.contains("list jobs: WRONG"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        row.wrong = None;
        row.added = Some(-3);
        let text = results(&[row]);
        assert!(text.contains("-3 µs") && !text.contains("WRONG"), "{text}");
    }
}
