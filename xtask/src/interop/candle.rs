//! candle, whose build compiles CUDA kernels and links against the libraries of CUDA 13: cuBLAS and cuRAND have machine code, which needs a
//! GPU. `candle_tests.rs` runs candle on the drop-in with other libraries in their place.
//!
//! The compiler comes from the Python package index, unless `CUDA_HOME` names a toolkit. The libraries are needed when the program runs.
//! For the linker there are stubs, as in a toolkit: libraries that have the functions' names only.

use super::Layout;
use super::process::build;
use super::suite::published;
use super::toolkit::{CUDA_CRT, merged};
use crate::workspace::vendor;
use crate::workspace::wheel::{Unreachable, unpacked};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const CUDA_NVCC: (&str, &str) = ("nvidia-cuda-nvcc", "13.0.88");
const NVVM: (&str, &str) = ("nvidia-nvvm", "13.0.88");
const CCCL: (&str, &str) = ("nvidia-cuda-cccl", "13.0.85");

/// The libraries that cudarc names to the linker, its modules for them, and the names by which they are loaded.
pub(super) const LINKED: [(&str, &str, &str); 5] = [
    ("libcuda.so", "driver", "libcuda.so.1"),
    ("libnvrtc.so", "nvrtc", "libnvrtc.so.13"),
    ("libcurand.so", "curand", "libcurand.so.10"),
    ("libcublas.so", "cublas", "libcublas.so.13"),
    ("libcublasLt.so", "cublaslt", "libcublasLt.so.13"),
];

/// The name by which the linker finds CUDA's runtime.
pub(super) const RUNTIME: &str = "libcudart.so";

const TOOLKIT: &str = "CUDA_HOME";
const CAPABILITY: &str = "CUDA_COMPUTE_CAP";

pub(super) fn run(layout: &Layout, name: &str, _seeds: u64) -> Result<String> {
    let has_gpu = has_gpu();
    let variables = match variables(layout, name, has_gpu) {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        variables => variables?,
    };
    let built = build(
        layout,
        &layout.manifest(name),
        &["build", "--release", "--locked", "--bin", "interop-candle"],
        &variables,
    )?;
    if !has_gpu {
        println!(
            "{} is built. It is not run: cuBLAS needs a GPU, and this machine has none.",
            built.display()
        );
        return Ok("built; not run without a GPU".into());
    }
    let status = Command::new(&built).status().with_context(|| built.display().to_string())?;
    // The loader's status if a library is missing.
    let hint = match status.code() {
        Some(127) => {
            "; cuBLAS and cuRAND of CUDA 13 must be on LD_LIBRARY_PATH, such as those of PyTorch's packages"
        }
        _ => "",
    };
    ensure!(status.success(), "{} ended with {status}{hint}", built.display());
    Ok("passed on the GPU".into())
}

fn variables(layout: &Layout, name: &str, has_gpu: bool) -> Result<Vec<(&'static str, OsString)>> {
    let home = match std::env::var_os(TOOLKIT) {
        Some(home) => PathBuf::from(home),
        None => toolkit(layout, name)?,
    };
    environment(layout, home, has_gpu)
}

/// The variables that candle's build reads.
pub(super) fn environment(
    layout: &Layout,
    home: PathBuf,
    has_gpu: bool,
) -> Result<Vec<(&'static str, OsString)>> {
    let compiler = compiler(&layout.made.join("candle-compiler"), &home)?;
    // candle's build takes the first `nvcc` of the path, and cudarc asks it for its version.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([compiler].into_iter().chain(std::env::split_paths(&path)))?;
    let mut variables = vec![(TOOLKIT, home.into_os_string()), ("PATH", path)];
    // On a machine with a GPU, the build asks `nvidia-smi`.
    if std::env::var_os(CAPABILITY).is_none() && !has_gpu {
        variables.push((CAPABILITY, "80".into()));
    }
    Ok(variables)
}

/// Makes a toolkit whose `nvcc` puts PTX where candle's build requests machine code alone, for the kernels that are linked into candle.
/// The simulator needs it, any later GPU runs it, and it compiles several times as fast. Returns the folder of `nvcc`.
fn compiler(folder: &Path, home: &Path) -> Result<PathBuf> {
    let programs = folder.join("bin");
    std::fs::create_dir_all(&programs)?;
    // candle's build looks for the headers beside the compiler.
    for name in ["include", "lib64"] {
        let place = folder.join(name);
        // It may be another toolkit's.
        if place.is_symlink() {
            std::fs::remove_file(&place)?;
        }
        crate::drop_in::link(&home.join(name).display().to_string(), &place)?;
    }
    let kept = folder.join("kept");
    std::fs::create_dir_all(&kept)?;
    let text = include_str!("nvcc.sh").replace("NVCC", &home.join("bin/nvcc").display().to_string());
    let text = text.replace("KEPT", &kept.display().to_string());
    let nvcc = programs.join("nvcc");
    std::fs::write(&nvcc, text)?;
    let executable =
        Command::new("chmod").arg("+x").arg(&nvcc).status().context("chmod cannot be started")?;
    ensure!(executable.success(), "chmod failed");
    Ok(programs)
}

/// A toolkit with what a build of candle, the program called `name`, needs.
pub(super) fn toolkit(layout: &Layout, name: &str) -> Result<PathBuf> {
    let home = layout.made.join("cuda");
    merged(&home, &[CUDA_NVCC, NVVM, CUDA_CRT, CCCL, vendor::CUDA_RUNTIME], &["bin", "nvvm", "include"])?;
    // Wheels are unpacked without this permission.
    let executable = Command::new("sh").args(["-c", "chmod +x bin/* nvvm/bin/*"]).current_dir(&home).status();
    ensure!(executable.context("sh cannot be started")?.success(), "chmod failed");
    let libraries = home.join("lib64");
    std::fs::create_dir_all(&libraries)?;
    // The kernels that are linked into candle call the runtime. In the program, it needs no library where the program runs.
    let runtime = unpacked(vendor::CUDA_RUNTIME.0, vendor::CUDA_RUNTIME.1)?;
    let runtime = runtime.join("nvidia/cu13/lib/libcudart_static.a").display().to_string();
    crate::drop_in::link(&runtime, &libraries.join("libcudart.a"))?;
    // The linker prefers it, if the tests have put it there.
    let replaced = libraries.join(RUNTIME);
    if replaced.exists() {
        std::fs::remove_file(replaced)?;
    }
    let [cudarc] = published(&layout.manifest(name), ["cudarc"])?;
    let sources = cudarc.manifest_path.parent().context("a manifest lies in a folder")?.join("src");
    for (library, module, loaded) in LINKED {
        let bindings = sources.join(module).join("sys/mod.rs");
        let bindings = std::fs::read_to_string(&bindings).with_context(|| bindings.to_string())?;
        stub(&libraries.join(library), loaded, &functions(&bindings))?;
    }
    Ok(home)
}

/// The foreign functions that cudarc's bindings declare.
fn functions(bindings: &str) -> BTreeSet<&str> {
    let declared = bindings.split("extern \"C\" {").skip(1);
    declared.filter_map(|text| text.trim_start().strip_prefix("fn ")?.split('(').next()).collect()
}

/// Makes a library in which these functions do nothing. A program that is linked against it loads the library called `loaded`.
fn stub(library: &Path, loaded: &str, functions: &BTreeSet<&str>) -> Result<()> {
    let source = library.with_extension("c");
    let text = functions.iter().map(|name| format!("void {name}(void) {{}}\n")).collect::<String>();
    if library.is_file() && std::fs::read_to_string(&source).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(&source, text)?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{loaded}"), "-o"]).arg(library).arg(&source);
    let status = command.status().context("cc cannot be started")?;
    ensure!(status.success(), "cc made no {}", library.display());
    Ok(())
}

/// True if the vendor's tool lists a GPU.
fn has_gpu() -> bool {
    Command::new("nvidia-smi").arg("--list-gpus").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    #[test]
    fn functions_are_read_from_the_declarations_alone() {
        let bindings = "pub unsafe fn wrapper(a: i32) -> i32 {\n    type _F = unsafe extern \"C\" fn(i32) -> i32;\n    \
            extern \"C\" {\n        fn cuInit(a: i32) -> i32;\n    }\n    cuInit(a)\n}\n\
            extern \"C\" {\n    fn cuExit();\n}\n";
        assert_eq!(super::functions(bindings).into_iter().collect::<Vec<_>>(), ["cuExit", "cuInit"]);
    }
}
