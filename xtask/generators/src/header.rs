//! `cargo xtask header`: makes the C header with cbindgen.

use crate::workspace::root;
use anyhow::{Result, ensure};
use std::fs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the checked-in file and fail on any difference
    #[arg(long)]
    check: bool,
}

/// Writes the header, or fails if the checked-in one differs.
pub(crate) fn run(args: Args) -> Result<()> {
    let package = root().join("crates/gpumem-capi");
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    let sources = ["error", "entry", "entry/pools", "entry/streams", "entry/memory", "entry/captures"];
    let sources = sources.into_iter().chain(["entry/scopes", "entry/reclaim", "entry/status"]);
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(package.join(format!("src/{source}.rs")))
    });
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    let (text, path) = (String::from_utf8(text)?, package.join("include/gpumem.h"));
    let is_current = fs::read_to_string(&path).unwrap_or_default() == text;
    if args.check {
        ensure!(is_current, "{} is out of date; run `cargo xtask header`", path.display());
    } else if !is_current {
        fs::write(&path, text)?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
