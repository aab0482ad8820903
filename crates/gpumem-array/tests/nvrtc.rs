//! CUDA text that is compiled at run time. Without the library NVRTC the tests are skipped with a message, unless `NVRTC_REQUIRED` is set,
//! as `cargo xtask ci nvrtc` does.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too
#![allow(clippy::print_stderr)] // the reason for a skipped test

#[path = "array/support.rs"]
mod support;

use gpumem_array::{ArrayError, GpuArray, KernelSource, LaunchShape, kernels};
use std::time::Instant;
use support::gpu;

/// True if the library is installed.
#[allow(unsafe_code)]
fn is_installed() -> bool {
    // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
    let is_installed = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    assert!(
        is_installed || std::env::var_os("NVRTC_REQUIRED").is_none(),
        "NVRTC is required, and not on the library path"
    );
    if !is_installed {
        eprintln!("skipped: NVRTC is not installed; `cargo xtask ci nvrtc` fetches it");
    }
    is_installed
}

kernels! {
    static AXPY = cuda r#"
        template <class T> __device__ T scaled(T a, T x) { return a * x; }
        extern "C" __global__ void axpy(float *y, float a, const float *x, unsigned long long n) {
            unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
            if (i < n) y[i] += scaled(a, x[i]);
        }"#;
}

#[test]
fn a_text_is_compiled_and_runs() {
    if !is_installed() {
        return;
    }
    let gpu = gpu();
    let axpy = gpu.compile(&AXPY).unwrap().function("axpy").unwrap();
    let (mut y, x) =
        (GpuArray::from_elem(&gpu, 9, 1.0_f32).unwrap(), GpuArray::from_elem(&gpu, 9, 2.0_f32).unwrap());
    let launch = axpy.launch(LaunchShape::for_len(9)).write(&mut y).scalar(3.0_f32).read(&x).scalar(9_u64);
    // SAFETY: the arguments are those of the kernel, and both arrays have nine elements.
    unsafe { launch.enqueue(&gpu).unwrap() };
    assert_eq!(y.to_vec().unwrap(), [7.0; 9]);
}

#[test]
fn errors_of_the_compiler_are_quoted() {
    if !is_installed() {
        return;
    }
    let gpu = gpu();
    let refused = |source: KernelSource<'_>| match gpu.compile(&source).unwrap_err() {
        ArrayError::Compile { source_name, log } => (source_name, log),
        other => panic!("{other}"),
    };
    let (name, log) = refused(KernelSource::cuda(
        "BROKEN",
        "extern \"C\" __global__ void k(float *y) {\n  y[0] = missing;\n}",
    ));
    assert_eq!(name, "BROKEN");
    assert!(log.contains("BROKEN.cu(2): error") && log.contains("\"missing\" is undefined"), "{log}");
    let (_, log) = refused(KernelSource::cuda("OPTION", "").options(&["--no-such-option"]));
    assert!(log.contains("no-such-option"), "{log}");
    let zero = gpu.compile(&KernelSource::cuda("ZERO", "a\0b")).unwrap_err();
    assert!(matches!(zero, ArrayError::ZeroByte { .. }), "{zero}");
}

#[test]
fn headers_are_found_with_an_option() {
    if !is_installed() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("gpumem-nvrtc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("answer.h"), "#define ANSWER 42\n").unwrap();
    let text = "#include \"answer.h\"\nextern \"C\" __global__ void answer(int *y) { *y = ANSWER; }";
    let include = format!("--include-path={}", folder.display());
    let gpu = gpu();
    gpu.compile(&KernelSource::cuda("ANSWER", text).options(&[&include])).unwrap();
    assert!(matches!(gpu.compile(&KernelSource::cuda("ANSWER", text)), Err(ArrayError::Compile { .. })));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A second load of the same text, on another machine even, costs no compilation.
#[test]
fn a_text_is_compiled_once() {
    if !is_installed() {
        return;
    }
    let unrolled: String = (0..8).map(|i| format!("y[{i}] = sinf(y[{i}]) + {i};\n")).collect();
    let text = format!("extern \"C\" __global__ void unrolled(float *y) {{ {unrolled} }}");
    let source = KernelSource::cuda("UNROLLED", &text);
    let timed = || {
        let (gpu, begin) = (gpu(), Instant::now());
        gpu.compile(&source).unwrap();
        begin.elapsed()
    };
    let (first, second) = (timed(), timed());
    assert!(second * 4 < first, "first {first:?}, second {second:?}");
}

/// Threads that compile at the same time do not disturb each other.
#[test]
fn threads_compile_at_the_same_time() {
    if !is_installed() {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let gpu = gpu();
                for round in 0..4 {
                    let text =
                        format!("extern \"C\" __global__ void k{thread}(int *y) {{ *y = {}; }}", round % 2);
                    let module = gpu.compile(&KernelSource::cuda("THREAD", &text)).unwrap();
                    let name = format!("k{thread}");
                    assert_eq!(module.function(&name).unwrap().name(), name);
                }
            });
        }
    });
}
