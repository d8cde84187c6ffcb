//! What the demo prints before the upgrade. No line is longer than 110 columns, unless something is wrong.

use super::cluster::Cluster;
use super::rows::{REPEATS, Row};
use crate::table::columns;

/// The servers, and what the table below is about.
pub(super) fn introduction(cluster: &Cluster) -> String {
    let mut lines = vec![["server", "version", "differs", "mvproxy in front of it"].map(String::from)];
    for site in cluster.sites() {
        let server = site.server();
        lines.push([server.id.into(), server.version.into(), server.differs.into(), format!("https://{}", site.proxy_address())]);
    }
    format!(
        "Three simulated kube-apiservers, an mvproxy in front of each. They differ, as in the middle of an upgrade:\n\n{}\n\
         No file tells the proxies so: they watch the Leases of the servers and of each other, and ask every server\n\
         what it serves. A resource that only another server has is a wrong 404 without mvproxy. With it, the request\n\
         is forwarded to a server that has it.\n\n",
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
         named beside it, one at a time and in turns, everything on this machine.\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
