//! Compiles the kernels with `nvcc`, takes the names of errors from its headers, and finds the driver's library for the linker.

use std::env::var_os;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/kernels.cu");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    println!("cargo::rerun-if-env-changed=CUDA_LIBRARY_PATH");
    let toolkit = PathBuf::from(var_os("CUDA_HOME").expect("CUDA_HOME has a toolkit"));
    let made = PathBuf::from(var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(made.join("errors.rs"), errors(&toolkit)).expect("OUT_DIR can be written");
    let mut compile = Command::new(toolkit.join("bin/nvcc"));
    compile
        .args(["-ptx", "-arch=compute_80", "-lineinfo", "src/kernels.cu", "-o"])
        .arg(made.join("kernels.ptx"));
    assert!(compile.status().expect("nvcc can be started").success(), "nvcc failed");
    let driver =
        PathBuf::from(var_os("CUDA_LIBRARY_PATH").expect("CUDA_LIBRARY_PATH has the driver's library"));
    println!("cargo::rustc-link-search=native={}", driver.join("lib64/stubs").display());
}

/// The codes and names of `cudaError_t`, as a list in Rust.
fn errors(toolkit: &Path) -> String {
    let header =
        std::fs::read_to_string(toolkit.join("include/driver_types.h")).expect("the header is there");
    let (_, list) =
        header.split_once("enum __device_builtin__ cudaError\n").expect("the header has the errors");
    let (list, _) = list.split_once("};").expect("the list ends");
    let lines = list.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once('='));
    let lines = lines.filter(|(name, _)| name.starts_with("cuda"));
    let items = lines.map(|(name, code)| format!("    ({}, c\"{}\"),\n", code.trim(), name.trim()));
    format!("&[\n{}]", items.collect::<String>())
}
