//! Figures of peers: those of recorded runs, and those of the current run.

use crate::row::{is_better, number};
use crate::runs::{Figure, Run};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// A peer's figure for the workload of a bench.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerFigure {
    pub(crate) bench: String,
    pub(crate) peer: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// The day of another run that the figure is from, or where it is stored; `None` if the peer ran in this run.
    pub(crate) stored: Option<String>,
}

impl PeerFigure {
    pub(crate) fn to_figure(&self) -> Figure {
        let Self { bench, peer, value, unit, .. } = self.clone();
        Figure { bench, value, unit, peer: Some(peer) }
    }
}

/// The peers' figures in the recorded runs of a folder: the best of each peer.
pub(crate) fn stored(folder: &Path) -> Result<Vec<PeerFigure>> {
    let mut best: BTreeMap<(String, String), PeerFigure> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let run = Run::parse(&std::fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
        for Figure { bench, value, unit, peer } in run.figures {
            let Some(peer) = peer else { continue };
            let key = (bench.clone(), peer.clone());
            if best.get(&key).is_none_or(|known| is_better(value, known.value, &unit)) {
                best.insert(
                    key,
                    PeerFigure { bench, peer, value, unit, stored: Some(run.origin.date.clone()) },
                );
            }
        }
    }
    Ok(best.into_values().collect())
}

/// Parses the output of peers' programs, one or several in one file: lines `impl,workload,threads,ns_per_op` (bench_rmm,
/// bench_torch, `interop-cuda-core bench`), and bench_cudarc's text.
pub(crate) fn measured(text: &str) -> Result<Vec<PeerFigure>> {
    let figures: Vec<PeerFigure> = lines(text).into_iter().chain(cudarc(text)).collect();
    ensure!(!figures.is_empty(), "no figure of a peer is in it");
    Ok(figures)
}

fn lines(text: &str) -> Vec<PeerFigure> {
    let figure = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [peer, workload, threads, ns] = fields[..] else { return None };
        let threads: u32 = threads.parse().ok()?;
        Some(of_pool(&workload_of(workload), threads, peer_of(peer), number(ns)?))
    };
    text.lines().filter_map(figure).collect()
}

/// Parses two sections, with events and without, of lines such as `  alloc+drop pair 256: 814 ns`.
fn cudarc(text: &str) -> Vec<PeerFigure> {
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

fn of_pool(workload: &str, threads: u32, peer: &str, value: f64) -> PeerFigure {
    let bench = format!("pool/{workload}/{threads}");
    PeerFigure { bench, peer: peer.into(), value, unit: "ns".into(), stored: None }
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

const NAMES: [(&str, &str); 7] = [
    ("torch", "PyTorch"),
    ("torch_expandable", "PyTorch expandable"),
    ("rmm_pool", "RMM pool"),
    ("rmm_binning_pool", "RMM binning"),
    ("rmm_arena", "RMM arena"),
    ("rmm_cuda_async", "RMM cuda_async"),
    ("cuda_core_pool", "cuda-core pool"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(figures: &[PeerFigure], bench: &str, peer: &str) -> Option<f64> {
        let mut figures = figures.iter();
        figures.find(|figure| figure.bench == bench && figure.peer == peer).map(|figure| figure.value)
    }

    #[test]
    fn the_stored_figures_can_be_read_and_are_there_once() {
        let figures = stored(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runs"))).unwrap();
        assert_eq!(found(&figures, "pool/pair_1MiB/16", "PyTorch"), Some(41_567.0));
        let mut keys: Vec<_> = figures.iter().map(|figure| (&figure.bench, &figure.peer)).collect();
        keys.sort();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn the_output_of_the_peers_programs_is_parsed() {
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
