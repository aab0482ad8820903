//! Compiles the kernels with `nvcc`, and finds the driver's library for the linker.

use std::env::var_os;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/kernels.cu");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    println!("cargo::rerun-if-env-changed=CUDA_LIBRARY_PATH");
    let nvcc = PathBuf::from(var_os("CUDA_HOME").expect("CUDA_HOME has a toolkit")).join("bin/nvcc");
    let ptx = PathBuf::from(var_os("OUT_DIR").expect("cargo sets it")).join("kernels.ptx");
    let mut compile = Command::new(nvcc);
    compile.args(["-ptx", "-arch=compute_80", "-lineinfo", "src/kernels.cu", "-o"]).arg(ptx);
    assert!(compile.status().expect("nvcc can be started").success(), "nvcc failed");
    let driver =
        PathBuf::from(var_os("CUDA_LIBRARY_PATH").expect("CUDA_LIBRARY_PATH has the driver's library"));
    println!("cargo::rustc-link-search=native={}", driver.join("lib64/stubs").display());
}
