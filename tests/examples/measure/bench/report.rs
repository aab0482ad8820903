//! The rows beside the peers' figures: one line for each peer, best peer first.

use crate::peers::PeerFigure;
use crate::row::{subject, times_better};
use crate::runs::Figure;
use crate::table;
use serde_json::json;

/// A figure of gpumem, and a peer's if there is one.
pub(crate) struct Line<'a> {
    row: &'a Figure,
    peer: Option<PeerFigure>,
}

/// Joins rows with the peers' figures. A figure measured by the bench itself takes precedence over one from a file, and that over
/// a stored one.
pub(crate) fn join<'a>(rows: &'a [Figure], figures: &[PeerFigure]) -> Vec<Line<'a>> {
    let of_rows = rows.iter().filter_map(|row| {
        let peer = row.peer.clone()?;
        Some(PeerFigure { bench: subject(row), peer, value: row.value, unit: row.unit.clone(), stored: None })
    });
    let figures: Vec<PeerFigure> = of_rows.chain(figures.iter().cloned()).collect();
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| row.peer.is_none()) {
        let subject = subject(row);
        let mut peers: Vec<&PeerFigure> = Vec::new();
        for figure in figures.iter().filter(|figure| figure.bench == subject && figure.unit == row.unit) {
            if !peers.iter().any(|known| known.peer == figure.peer) {
                peers.push(figure);
            }
        }
        // The best peer is the one with the smallest factor.
        peers.sort_by(|a, b| f64::total_cmp(&ahead(row, a), &ahead(row, b)));
        if peers.is_empty() {
            lines.push(Line { row, peer: None });
        }
        lines.extend(peers.into_iter().map(|peer| Line { row, peer: Some(peer.clone()) }));
    }
    lines
}

fn ahead(row: &Figure, figure: &PeerFigure) -> f64 {
    times_better(row.value, figure.value, &row.unit).unwrap_or(f64::INFINITY)
}

/// One table.
pub(crate) fn text(lines: &[Line<'_>]) -> String {
    let mut last = None;
    let rows = lines.iter().map(|Line { row, peer }| {
        let is_first = last.replace(&row.bench) != Some(&row.bench);
        let ours = |text: String| if is_first { text } else { String::new() };
        let (name, value, ratio, place) = match peer {
            None => Default::default(),
            Some(peer) => (
                peer.peer.clone(),
                format!("{} {}", decimals(peer.value), peer.unit),
                times_better(row.value, peer.value, &row.unit).map_or(String::new(), decimals),
                peer.stored.clone().unwrap_or("this run".into()),
            ),
        };
        [
            ours(row.bench.clone()),
            ours(format!("{} {}", decimals(row.value), row.unit)),
            name,
            value,
            ratio,
            place,
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut text = table::render(["figure", "ours", "peer", "peer's", "times better", "peer ran"], &rows);
    if lines.iter().any(|line| line.peer.as_ref().is_some_and(|peer| peer.stored.is_some())) {
        text += "\nA peer with a date did not run here: its figure is that of a recorded run, on the machine that docs/runs names; the \
                 figure of a trace is from its header.\n";
    }
    text
}

/// One JSON object a line.
pub(crate) fn json(lines: &[Line<'_>]) -> String {
    let object = |Line { row, peer }: &Line<'_>| {
        let peer = peer.as_ref();
        let object = json!({
            "bench": row.bench,
            "value": row.value,
            "unit": row.unit,
            "peer": peer.map(|peer| &peer.peer),
            "peer_value": peer.map(|peer| peer.value),
            "ratio": peer.and_then(|peer| times_better(row.value, peer.value, &row.unit)),
            "peer_is_stored": peer.map(|peer| peer.stored.is_some()),
        });
        format!("{object}\n")
    };
    lines.iter().map(object).collect()
}

/// Three significant digits.
fn decimals(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bench: &str, value: f64, peer: Option<&str>) -> Figure {
        Figure { bench: bench.into(), value, unit: "ns".into(), peer: peer.map(str::to_string) }
    }

    fn figure(peer: &str, value: f64, is_stored: bool) -> PeerFigure {
        let stored = is_stored.then(|| "2026-01-01".to_string());
        PeerFigure { bench: "pool/churn/1".into(), peer: peer.into(), value, unit: "ns".into(), stored }
    }

    #[test]
    fn the_best_peer_comes_first_and_this_run_wins_over_the_stored() {
        let rows = [
            row("pool/churn@fast/1", 100.0, None),
            row("pool/churn/1", 500.0, Some("driver")),
            row("pool/other/1", 7.0, None),
        ];
        let figures =
            [figure("RMM", 400.0, false), figure("RMM", 300.0, true), figure("PyTorch", 600.0, true)];
        let lines = join(&rows, &figures);
        let json: Vec<serde_json::Value> =
            json(&lines).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let got: Vec<_> = json
            .iter()
            .map(|line| {
                (
                    line["bench"].as_str(),
                    line["peer"].as_str(),
                    line["ratio"].as_f64(),
                    line["peer_is_stored"].as_bool(),
                )
            })
            .collect();
        let fast = Some("pool/churn@fast/1");
        assert_eq!(
            got,
            [
                (fast, Some("RMM"), Some(4.0), Some(false)),
                (fast, Some("driver"), Some(5.0), Some(false)),
                (fast, Some("PyTorch"), Some(6.0), Some(true)),
                (Some("pool/other/1"), None, None, None),
            ]
        );
        // These keys are a format that other programs read.
        for key in ["bench", "value", "unit", "peer", "peer_value", "ratio"] {
            assert!(json.iter().all(|line| line.get(key).is_some()), "{key}: {json:?}");
        }
        let text = text(&lines);
        assert_eq!(text.matches("pool/churn@fast/1").count(), 1, "{text}");
        assert!(text.contains("600 ns") && text.contains("2026-01-01"), "{text}");
    }
}
