//! Figures, printed as lines for readers, or with `--rows` as rows for `cargo xtask bench`.

/// A figure of ours.
pub(crate) fn row(name: &str, value: f64, unit: &str) {
    if is_for_rows() {
        println!("row\tarray/{name}\t{value}\t{unit}");
    } else {
        println!("{name:<44} {value:>10.2} {unit}");
    }
}

/// The figure of a peer for the work whose figure of ours is `ours`.
pub(crate) fn peer_row(name: &str, ours: f64, value: f64, unit: &str, peer: &str) {
    if is_for_rows() {
        println!("row\tarray/{name}\t{value}\t{unit}\t{peer}");
    } else {
        println!("  {peer:<42} {value:>10.2} {unit}, {:.2} x ours", value / ours);
    }
}

fn is_for_rows() -> bool {
    std::env::args().any(|arg| arg == "--rows")
}
