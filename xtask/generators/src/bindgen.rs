//! `cargo xtask bindgen`: generates `crates/gpumem-sys/src/generated/` from `cuda.h`.
//!
//! It writes three files: `types.rs` (the types in the signatures of the driver's functions), `functions.rs` (one macro that
//! lists every function with the CUDA version that introduced it) and `codes.rs` (the names of the result codes). Comments are
//! not copied.

use crate::workspace::vendor::{CUDA_RUNTIME, compiler_headers, libclang};
use crate::workspace::{root, wheel};
use anyhow::{Context, Result, bail, ensure};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Downloads the package with `cuda.h` and returns the folder of its headers.
fn cuda_headers() -> Result<PathBuf> {
    Ok(wheel::unpacked(CUDA_RUNTIME.0, CUDA_RUNTIME.1)?.join("nvidia/cu13/include"))
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder that holds cuda.h and cudaTypedefs.h [default: fetched from the Python package index]
    #[arg(long, value_name = "DIR")]
    cuda_include: Option<PathBuf>,
    /// Folder that holds libclang.so [default: fetched from the Python package index]
    #[arg(long, value_name = "DIR")]
    libclang: Option<PathBuf>,
    /// Compare with the checked-in files and fail on any difference
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let include = match args.cuda_include {
        Some(folder) => folder,
        None => cuda_headers()?,
    };
    let libclang = match args.libclang {
        Some(folder) => folder,
        None => libclang()?,
    };
    // SAFETY: this process has one thread; bindgen reads the variable when it first loads libclang.
    unsafe { std::env::set_var("LIBCLANG_PATH", &libclang) };

    let parsed = syn::parse_file(&raw_bindings(&include)?)?;
    let versions = Versions::read(&include.join("cudaTypedefs.h"))?;
    let folder = root().join("crates/gpumem-sys/src/generated");
    let mut stale = Vec::new();
    for (name, text) in [
        ("types.rs", types(&parsed)),
        ("functions.rs", functions(&parsed, &versions)?),
        ("codes.rs", codes(&parsed)?),
    ] {
        let path = folder.join(name);
        if std::fs::read_to_string(&path).unwrap_or_default() == text {
            continue;
        }
        if args.check {
            stale.push(path.display().to_string());
        } else {
            std::fs::write(&path, text)?;
            println!("wrote {}", path.display());
        }
    }
    ensure!(stale.is_empty(), "out of date: {}; run `cargo xtask bindgen`", stale.join(", "));
    Ok(())
}

/// Runs bindgen on the header. `__CUDA_API_VERSION_INTERNAL` keeps the names of old ABIs visible.
fn raw_bindings(include: &Path) -> Result<String> {
    let bitfields = [
        "CUctx_flags.*",
        "CUmemAttach_flags.*",
        "CUevent_.*flags.*",
        "CUstream_flags.*",
        "CUmemAccess_flags.*",
    ];
    let mut builder = bindgen::Builder::default()
        .header_contents("driver.h", "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        .clang_args(compiler_headers())
        .allowlist_function("cu.*")
        .allowlist_type("CU.*")
        .allowlist_var("CU_.*")
        .blocklist_function(".*_pt(ds|sz)")
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        // The `Debug` of result codes is in `code.rs`.
        .no_debug("cudaError_enum")
        .generate_comments(false)
        .use_core()
        .layout_tests(true)
        .merge_extern_blocks(true)
        .formatter(bindgen::Formatter::Prettyplease);
    for name in bitfields {
        builder = builder.bitfield_enum(name);
    }
    Ok(builder.generate().context("bindgen could not read cuda.h")?.to_string())
}

const HEAD: &str = "// Made by `cargo xtask bindgen` from cuda.h 13.0; do not edit.\n";

fn types(parsed: &syn::File) -> String {
    let items = parsed.items.iter().filter(|item| !matches!(item, syn::Item::ForeignMod(_)));
    let file =
        syn::File { shebang: None, frontmatter: None, attrs: Vec::new(), items: items.cloned().collect() };
    format!("{HEAD}\n{}", prettyplease::unparse(&file))
}

fn functions(parsed: &syn::File, versions: &Versions) -> Result<String> {
    let mut lines = BTreeMap::new();
    for item in &parsed.items {
        let syn::Item::ForeignMod(block) = item else { continue };
        for item in &block.items {
            let syn::ForeignItem::Fn(function) = item else { continue };
            let name = function.sig.ident.to_string();
            let returns = function.sig.output.to_token_stream().to_string();
            ensure!(returns == "-> CUresult", "{name} returns {returns}, which the table does not foresee");
            let args: Vec<String> = function.sig.inputs.iter().map(argument).collect::<Result<_>>()?;
            let since = versions.of(&name)?;
            lines.insert(name.clone(), format!("            [{since}] fn {name}({});\n", args.join(", ")));
        }
    }
    ensure!(lines.len() > 300, "only {} functions found; is this cuda.h?", lines.len());
    let mut text = format!(
        "{HEAD}// One line a function: [CUDA version it appeared in] and its signature. Every one returns `CUresult`.\n\n"
    );
    text.push_str("#[doc(hidden)]\n#[macro_export]\nmacro_rules! for_each_driver_fn {\n    ($callback:ident!) => {\n        $callback! {\n");
    text.extend(lines.into_values());
    text.push_str("        }\n    };\n}\n");
    Ok(text)
}

fn argument(input: &syn::FnArg) -> Result<String> {
    let syn::FnArg::Typed(typed) = input else { bail!("a driver function with self?") };
    let tokens = typed.to_token_stream().to_string();
    // Token streams print with spaces between all tokens, which makes the list hard to read.
    let tokens = tokens.replace(":: core :: ffi :: ", "core::ffi::");
    Ok(tokens.replace("* mut", "*mut").replace("* const", "*const").replace(" :", ":"))
}

fn codes(parsed: &syn::File) -> Result<String> {
    let mut names = BTreeSet::new();
    for item in &parsed.items {
        let syn::Item::Impl(block) = item else { continue };
        if block.self_ty.to_token_stream().to_string() != "cudaError_enum" {
            continue;
        }
        for item in &block.items {
            if let syn::ImplItem::Const(constant) = item {
                names.insert(constant.ident.to_string());
            }
        }
    }
    ensure!(names.len() > 80, "only {} result codes found", names.len());
    let mut text = format!("{HEAD}\nuse super::types::CUresult;\n\n");
    text.push_str("pub(crate) const NAMES: &[(CUresult, &str)] = &[\n");
    for name in names {
        writeln!(text, "    (CUresult::{name}, \"{name}\"),")?;
    }
    text.push_str("];\n");
    Ok(text)
}

/// The CUDA version that introduced each symbol, from the names of the function pointer types.
struct Versions(BTreeMap<String, BTreeSet<u32>>);

impl Versions {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut versions = BTreeMap::<String, BTreeSet<u32>>::new();
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
            let Some((base, version)) = word.strip_prefix("PFN_").and_then(|rest| rest.rsplit_once("_v"))
            else {
                continue;
            };
            if let Ok(version) = version.parse() {
                versions.entry(base.to_string()).or_default().insert(version);
            }
        }
        Ok(Self(versions))
    }

    /// The version of a symbol: the n-th version in which the signature changed belongs to the `_vN` symbol.
    fn of(&self, symbol: &str) -> Result<u32> {
        let (base, revision) = match symbol.rsplit_once("_v") {
            Some((base, n)) if n.parse::<usize>().is_ok() => (base, n.parse::<usize>()?),
            _ => (symbol, 1),
        };
        let known = self.0.get(base).with_context(|| format!("{base} is not in cudaTypedefs.h"))?;
        let version = known.iter().nth(revision - 1).or(known.iter().last());
        version.copied().with_context(|| format!("no version for {symbol}"))
    }
}
