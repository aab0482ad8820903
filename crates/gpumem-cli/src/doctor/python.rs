//! The packages of a Python, without importing them.

use super::rows::{Grade, Rows};
use gpumem_trace::pool::sys::text::Shown;
use serde_json::Value;
use std::process::Command;

pub(super) fn look(rows: &mut Rows, program: &str) {
    let section = "python";
    let output = Command::new(program).args(["-c", VERSIONS]).output();
    let versions: Value = match output.map(|output| serde_json::from_slice(&output.stdout)) {
        Ok(Ok(versions)) => versions,
        // The default need not be there.
        _ if program == DEFAULT => return rows.good(section, program, "not there".into()),
        _ => {
            let advice = "name a Python with --python";
            let found = "not a Python that can be started".into();
            return rows.add(section, program, found, Grade::Bad, Some(advice.into()));
        }
    };
    let version = |name: &str| versions[name].as_str().map(|text| Shown::name(text).to_string());
    let Some(own) = version("gpumem") else {
        let advice = "install the wheel, if Python programs are to use gpumem: python3 -m pip install gpumem_pool-….whl";
        return rows.add(section, "gpumem", "not installed".into(), Grade::Note, Some(advice.into()));
    };
    let is_other = own != env!("CARGO_PKG_VERSION");
    let advice = format!(
        "this command is {}: install the wheel and the command of one version",
        env!("CARGO_PKG_VERSION")
    );
    let grade = if is_other { Grade::Note } else { Grade::Good };
    rows.add(section, "gpumem", own, grade, is_other.then_some(advice));
    for name in ["torch", "cupy", "rmm"] {
        let Some(found) = version(name) else {
            rows.good(section, name, "not installed".into());
            continue;
        };
        let advice = (name == "torch").then(|| advice_on_torch(&found)).flatten();
        let grade = if advice.is_some() { Grade::Note } else { Grade::Good };
        rows.add(section, name, found, grade, advice.map(Into::into));
    }
}

fn advice_on_torch(version: &str) -> Option<&'static str> {
    if version.contains("+cpu") {
        return Some("this PyTorch has no CUDA, so gpumem.torch.install() is refused: install one for CUDA");
    }
    let is_tested = version
        .strip_prefix(TESTED_TORCH)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()));
    (!is_tested).then_some("gpumem is tested with another version of PyTorch, 2.11; this one may work")
}

pub(super) const DEFAULT: &str = "python3";

/// The version that the wheel is tested with, as in `gpumem.torch`; the tests of the wheel compare the two.
const TESTED_TORCH: &str = "2.11";

const VERSIONS: &str = "\
import json
from importlib import metadata

def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass

print(json.dumps({
    'gpumem': version('gpumem-pool'),
    'torch': version('torch'),
    'cupy': version('cupy-cuda13x', 'cupy-cuda12x', 'cupy-cuda11x', 'cupy'),
    'rmm': version('rmm-cu13', 'rmm-cu12', 'rmm-cu11', 'rmm'),
}))";

#[cfg(test)]
mod tests {
    use super::{TESTED_TORCH, advice_on_torch};

    #[test]
    fn other_versions_of_pytorch_are_noted() {
        assert!(advice_on_torch("2.11.0+cu130").is_none() && advice_on_torch("2.11").is_none());
        assert!(advice_on_torch("2.11.0+cpu").unwrap().contains("no CUDA"));
        assert!(
            advice_on_torch("2.1.0").unwrap().contains(TESTED_TORCH) && advice_on_torch("2.110.0").is_some()
        );
    }
}
