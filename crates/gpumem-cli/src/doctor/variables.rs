//! The variables of this project that are set, and the errors of their values.

use super::rows::{Grade, Rows};
use crate::output::Verdict;
use anyhow::Result;
use gpumem_sim::SimConfig;
use gpumem_trace::pool::sys::env;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::{Device, PoolBuilder};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables of this project that are set.
pub(super) fn look(rows: &mut Rows) {
    let section = "environment";
    let known = [env::VARIABLES, gpumem_trace::pool::VARIABLES, gpumem_sim::VARIABLES];
    let mut names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok().filter(|name| name.starts_with("GPUMEM_")))
        .collect();
    names.sort_unstable();
    let is_known = |name: &str| {
        known.iter().copied().flatten().any(|variable| variable.name == name) || env::RESERVED.contains(&name)
    };
    // A program ends with the first error, and unknown names come first.
    let error = if names.iter().all(|name| is_known(name)) {
        rows.variable_error.take().or_else(value_error)
    } else {
        None
    };
    for name in &names {
        let value = std::env::var_os(name).unwrap_or_default();
        let value = Shown::name(&value.to_string_lossy()).to_string();
        match &error {
            _ if !is_known(name) => {
                let advice = "unset it, or correct the name: programs refuse unknown names; docs/reference/environment.md lists all";
                rows.add(section, name, value, Grade::Bad, Some(advice.into()));
            }
            Some(error) if error.contains(name.as_str()) => {
                let advice = "correct the value: a program that reads it ends with this error";
                rows.add(section, name, error.clone(), Grade::Bad, Some(advice.into()));
            }
            // Arrays read it, which this command is built without.
            _ if name == "GPUMEM_STAGING" => {
                let advice = "the value is not checked here: Gpu::open refuses a wrong one";
                rows.add(section, name, value, Grade::Note, Some(advice.into()));
            }
            _ => rows.good(section, name, value),
        }
    }
    // An error that names none of them.
    if let Some(error) = error.filter(|error| !names.iter().any(|name| error.contains(name.as_str()))) {
        rows.add(section, "values", error, Grade::Bad, None);
    }
    for name in ["GPUMEM_TRACE", "GPUMEM_FLIGHT_RECORDER"] {
        let value = std::env::var_os(name).map(PathBuf::from).filter(|path| path.components().count() > 1);
        let folder = value.as_deref().and_then(Path::parent);
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let found = format!("there is no folder {}", Shown::path(folder));
            rows.add(
                section,
                name,
                found,
                Grade::Bad,
                Some("make it, or name a file in another folder".into()),
            );
        }
    }
    if names.is_empty() {
        rows.good(section, "GPUMEM_…", "none is set".into());
    }
}

/// The error of a pool that reads the variables, on a simulated device. A process of its own builds the pool, without the variables that
/// write files.
fn value_error() -> Option<String> {
    let output = Command::new(std::env::current_exe().ok()?)
        .args(["doctor", "--variables"])
        .env_remove("GPUMEM_TRACE")
        .env_remove("GPUMEM_FLIGHT_RECORDER")
        .output();
    let error = output.ok().filter(|output| !output.status.success())?.stderr;
    let text = String::from_utf8_lossy(&error).trim().to_string();
    Some(text.strip_prefix("error: ").unwrap_or(&text).into())
}

/// Builds the pool.
pub(super) fn check() -> Result<Verdict> {
    let device = Device::new(&gpumem_sim::driver(SimConfig::from_env()?)?, 0)?;
    PoolBuilder::from_env(&device)?.build()?;
    Ok(Verdict::Yes)
}
