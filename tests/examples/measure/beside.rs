//! Folders beside this program in a bundle.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// A folder beside this program.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().context("this program lies in no folder")?.join(name))
}
