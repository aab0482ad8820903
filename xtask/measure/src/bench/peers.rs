//! Figures of peers: stored ones with their source, and those of the current run.

use super::row::number;
use anyhow::{Context, Result, ensure};

/// A peer's figure for the workload of a bench.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) bench: String,
    pub(crate) peer: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// Whether the figure is from another run, possibly on another machine.
    pub(crate) is_stored: bool,
}

/// The checked-in figures.
pub(crate) fn stored() -> Result<Vec<Figure>> {
    let lines = STORED.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| stored_figure(line).with_context(|| format!("peers.csv: {line:?}"))).collect()
}

const STORED: &str = include_str!("peers.csv");

fn stored_figure(line: &str) -> Result<Figure> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [bench, peer, value, unit] = fields[..] else { anyhow::bail!("a line has four fields") };
    let value = number(value).context("no number")?;
    Ok(Figure { bench: bench.into(), peer: peer.into(), value, unit: unit.into(), is_stored: true })
}

/// Parses the output of peers' programs, one or several in one file: lines `impl,workload,threads,ns_per_op` (bench_rmm,
/// bench_torch), and bench_cudarc's text.
pub(crate) fn measured(text: &str) -> Result<Vec<Figure>> {
    let figures: Vec<Figure> = lines(text).into_iter().chain(cudarc(text)).collect();
    ensure!(!figures.is_empty(), "no figure of a peer is in it");
    Ok(figures)
}

fn lines(text: &str) -> Vec<Figure> {
    let figure = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [peer, workload, threads, ns] = fields[..] else { return None };
        let threads: u32 = threads.parse().ok()?;
        Some(of_pool(&workload_of(workload), threads, peer_of(peer), number(ns)?))
    };
    text.lines().filter_map(figure).collect()
}

/// Parses two sections, with events and without, of lines such as `  alloc+drop pair 256: 814 ns`.
fn cudarc(text: &str) -> Vec<Figure> {
    let (mut figures, mut peer) = (Vec::new(), "cudarc");
    for line in text.lines().map(str::trim) {
        if let Some(is_tracking) = line.strip_prefix("event tracking ") {
            peer = if is_tracking == "true" { "cudarc" } else { "cudarc untracked" };
        }
        let Some((what, ns)) = line.rsplit_once(": ") else { continue };
        let Some(ns) = ns.strip_suffix(" ns").and_then(number) else { continue };
        if let Some(size) = what.strip_prefix("alloc+drop pair ") {
            figures.push(of_pool(&workload_of(&format!("pair_{size}")), 1, peer, ns));
        } else if let Some(threads) =
            what.strip_prefix("pair 1 MiB, ").and_then(|rest| rest.split(' ').next())
            && let Ok(threads) = threads.parse()
        {
            figures.push(of_pool("pair_1MiB", threads, peer, ns));
        }
    }
    figures
}

fn of_pool(workload: &str, threads: u32, peer: &str, value: f64) -> Figure {
    let bench = format!("pool/{workload}/{threads}");
    Figure { bench, peer: peer.into(), value, unit: "ns".into(), is_stored: false }
}

/// RMM's name of a workload, for any peer.
fn workload_of(name: &str) -> String {
    if name.starts_with("churn1000") {
        return "churn".into();
    }
    let size = name.strip_prefix("pair_").and_then(|size| size.parse::<u64>().ok());
    match size {
        Some(size) if size >= 1 << 20 => format!("pair_{}MiB", size >> 20),
        Some(size) if size >= 1 << 10 => format!("pair_{}KiB", size >> 10),
        Some(size) => format!("pair_{size}B"),
        None => name.into(),
    }
}

fn peer_of(name: &str) -> &str {
    NAMES.iter().find(|(known, _)| *known == name).map_or(name, |(_, peer)| peer)
}

const NAMES: [(&str, &str); 6] = [
    ("torch", "PyTorch"),
    ("torch_expandable", "PyTorch expandable"),
    ("rmm_pool", "RMM pool"),
    ("rmm_binning_pool", "RMM binning"),
    ("rmm_arena", "RMM arena"),
    ("rmm_cuda_async", "RMM cuda_async"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(figures: &[Figure], bench: &str, peer: &str) -> Option<f64> {
        let mut figures = figures.iter();
        figures.find(|figure| figure.bench == bench && figure.peer == peer).map(|figure| figure.value)
    }

    #[test]
    fn the_stored_figures_can_be_read_and_are_there_once() {
        let figures = stored().unwrap();
        assert_eq!(found(&figures, "pool/pair_1MiB/16", "PyTorch"), Some(41_567.0));
        let mut keys: Vec<_> = figures.iter().map(|figure| (&figure.bench, &figure.peer)).collect();
        keys.sort();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn what_the_peers_programs_print_is_understood() {
        let rmm = "impl,workload,threads,ns_per_op\nrmm_arena,pair_1MiB,8,3171.0\nrmm_pool,churn,1,1764.2\n";
        let figures = measured(rmm).unwrap();
        assert_eq!(found(&figures, "pool/pair_1MiB/8", "RMM arena"), Some(3171.0));
        assert_eq!(found(&figures, "pool/churn/1", "RMM pool"), Some(1764.2));
        let torch = "torch,pair_67108864,1,222.0\ntorch,churn1000_256B_64MB,1,599.0\ntorch churn reserved peak 1 MiB\n";
        let figures = measured(torch).unwrap();
        assert_eq!(found(&figures, "pool/pair_64MiB/1", "PyTorch"), Some(222.0));
        assert_eq!(found(&figures, "pool/churn/1", "PyTorch"), Some(599.0));
        let cudarc = "event tracking true\n  alloc+drop pair 4096: 800 ns\n  pair 1 MiB, 16 threads: 60873 ns\n\
                      event tracking false\n  alloc+drop pair 256: 445 ns\n  upload 1 GiB from a Vec: 10.4 GB/s\n";
        let all = measured(&format!("{torch}{cudarc}{rmm}")).unwrap();
        assert_eq!(all.len(), 7);
        let figures = measured(cudarc).unwrap();
        assert_eq!(figures.len(), 3);
        assert_eq!(found(&figures, "pool/pair_4KiB/1", "cudarc"), Some(800.0));
        assert_eq!(found(&figures, "pool/pair_1MiB/16", "cudarc"), Some(60_873.0));
        assert_eq!(found(&figures, "pool/pair_256B/1", "cudarc untracked"), Some(445.0));
        assert!(measured("nothing of use").is_err());
    }
}
