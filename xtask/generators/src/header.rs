//! `cargo xtask header`: makes the C header with cbindgen, and the fields of `gpumem_status` from the table of figures.

use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

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
    let sources =
        sources.into_iter().chain(["entry/scopes", "entry/reclaim", "entry/spillable", "entry/status"]);
    let status = with_figures(&package)?;
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        let path = package.join(format!("src/{source}.rs"));
        builder.with_src(if source == "entry/status" { &status } else { &path })
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

/// Writes a copy of `entry/status.rs` that has a field for each figure, and returns its path.
fn with_figures(package: &Path) -> Result<PathBuf> {
    let source = fs::read_to_string(package.join("src/entry/status.rs"))?;
    let table = fs::read_to_string(root().join("crates/gpumem-pool/src/figures.rs"))?;
    let field = source.find("pub figures: ").context("entry/status.rs has no `figures`")?;
    let start = source[..field].rfind("///").context("`figures` has no comment")?;
    let end = field + source[field..].find('\n').context("`figures` has no end")?;
    let folder = root().join("target/generators");
    fs::create_dir_all(&folder)?;
    let path = folder.join("status.rs");
    fs::write(&path, format!("{}{}{}", &source[..start], fields(&table)?, &source[end..]))?;
    Ok(path)
}

/// The fields of `gpumem_status`: the rows `name: type, c POSITION;` of the table, with the first sentences of their comments, up to a
/// colon.
fn fields(table: &str) -> Result<String> {
    let (mut rows, mut comment) = (Vec::new(), String::new());
    for line in table.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            comment = format!("{comment} {text}");
        } else if !line.starts_with('#') && !line.starts_with("//") {
            let row = line.strip_suffix(';').and_then(|row| row.split_once(", c "));
            if let Some((name, (kind, position))) = row.and_then(|(row, position)| {
                let (name, kind) = row.split_once(": ")?;
                Some((name, (kind, position)))
            }) {
                let sentence = comment.split(". ").next().unwrap_or_default();
                let mut sentence = sentence.split(": ").next().unwrap_or_default().trim().to_string();
                ensure!(!sentence.contains("]("), "{name}: the first sentence names a thing of Rust");
                sentence = format!("{}.", sentence.trim_end_matches('.'));
                if kind.starts_with("Option") {
                    sentence += " `UINT64_MAX` if there is none.";
                }
                rows.push((position.parse::<usize>()?, format!("/// {sentence}\n    pub {name}: u64,")));
            }
            comment.clear();
        }
    }
    rows.sort();
    for (index, (position, row)) in rows.iter().enumerate() {
        ensure!(*position == index + 1, "the position {} has no figure, or two: {row}", index + 1);
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>().join("\n    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_with_a_position_become_fields_in_that_order() {
        let table = "//! name: type, c POSITION;\n/// The limit: all of it. More.\nlimit: Option<u64>, c 2;\n/// Another.\nother: u64;\n\
                     /// Bytes in\n/// blocks.\n#[meta]\nin_use: u64, c 1;\n";
        let expected = "/// Bytes in blocks.\n    pub in_use: u64,\n    \
                        /// The limit. `UINT64_MAX` if there is none.\n    pub limit: u64,";
        assert_eq!(fields(table).unwrap(), expected);
        for wrong in [
            "/// A.\na: u64, c 2;",
            "/// [`A`](B).\na: u64, c 1;",
            "/// A.\na: u64, c 1;\n/// B.\nb: u64, c 1;",
        ] {
            assert!(fields(wrong).is_err(), "{wrong}");
        }
    }
}
