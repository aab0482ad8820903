//! Checks the PTX files: each has its CUDA source, and a version that every supported driver accepts.

use super::{Files, Finding};

/// The newest allowed PTX version: CUDA 12.0 and newer load it.
const NEWEST_VERSION: (u32, u32) = (8, 0);
const TARGET: &str = "sm_70";

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        if path.ends_with(".ptx") {
            findings.extend(directives(path, text));
        }
        let (twin, advice) = match extension(path) {
            "ptx" => ("cu", "check its CUDA source in beside it"),
            "cu" => ("ptx", "run `cargo xtask kernels`"),
            _ => continue,
        };
        if !files.keys().any(|file| extension(file) == twin && kernel(file) == kernel(path)) {
            findings.push(Finding::new(path, 1, format!("there is no {}.{twin}", kernel(path)), advice));
        }
    }
    findings
}

fn extension(path: &str) -> &str {
    path.rsplit_once('.').map(|(_, extension)| extension).unwrap_or_default()
}

/// Returns `kernels/sum` for `kernels/sum.cu` and for each file compiled from it, such as `kernels/sum.f32.ptx`.
fn kernel(path: &str) -> &str {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    &path[..path[name..].find('.').map_or(path.len(), |dot| name + dot)]
}

fn directives(path: &str, text: &str) -> Vec<Finding> {
    let advice = "compile for compute_70 with the NVRTC of CUDA 11.8: `cargo xtask kernels`";
    let mut findings = Vec::new();
    let mut directive = |name: &str, is_right: &dyn Fn(&str) -> bool| {
        let mut lines = text.lines().enumerate();
        let found = lines.find_map(|(index, line)| Some((index + 1, line.strip_prefix(name)?.trim())));
        let (line, value) = found.unwrap_or((1, "missing"));
        if !is_right(value) {
            findings.push(Finding::new(path, line, format!("{} is {value}", name.trim()), advice));
        }
    };
    directive(".version ", &|value| version(value).is_some_and(|version| version <= NEWEST_VERSION));
    directive(".target ", &|value| value.split(',').next() == Some(TARGET));
    findings
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        check(&files)
            .iter()
            .map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn an_old_enough_kernel_with_its_source_passes() {
        let ptx = "//\n.version 8.0\n.target sm_70\n.address_size 64\n";
        assert_eq!(found(&[("k/a.cu", ""), ("k/a.ptx", ptx)]), [""; 0]);
        assert_eq!(found(&[("k.d/a.cu", ""), ("k.d/a.f32.ptx", ptx), ("k.d/a.f64.ptx", ptx)]), [""; 0]);
    }

    #[test]
    fn a_later_version_or_target_is_found() {
        let ptx = ".version 8.10\n.target sm_90\n";
        let expected = ["k/a.ptx:1: .version is 8.10", "k/a.ptx:2: .target is sm_90"];
        assert_eq!(found(&[("k/a.cu", ""), ("k/a.ptx", ptx)]), expected);
        assert_eq!(found(&[("k/a.cu", ""), ("k/a.ptx", "")])[0], "k/a.ptx:1: .version is missing");
    }

    #[test]
    fn a_kernel_and_its_source_come_in_pairs() {
        assert_eq!(found(&[("k/a.cu", "")]), ["k/a.cu:1: there is no k/a.ptx"]);
        let ptx = ".version 7.8\n.target sm_70\n";
        assert_eq!(found(&[("k/a.ptx", ptx)]), ["k/a.ptx:1: there is no k/a.cu"]);
    }
}
