//! The library as other programs use it: loaded by name from the library path, in a separate process.
//!
//! Most tests start this program again with the library on its path, and run one of the `child` tests there.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_sim::SimError;
use gpumem_sim::sys::types::CUdevice_attribute;
use gpumem_sim::sys::{CUresult, Driver, LoadError, Table};
use std::path::PathBuf;
use std::process::{Command, Output};

#[test]
fn every_function_is_exported() {
    // SAFETY: the library does nothing when it is loaded.
    let library = unsafe { libloading::Library::new(laid_out().join("libcuda.so")).unwrap() };
    for symbol in Table::SYMBOLS {
        // SAFETY: the test only checks that the symbol exists.
        let found = unsafe { library.get::<*const ()>(symbol.name.as_bytes()) };
        assert!(found.is_ok(), "{} is missing", symbol.name);
    }
    // SAFETY: the test only checks that the symbol exists.
    assert!(unsafe { library.get::<*const ()>(b"gpumem_simulator\0") }.is_ok());
}

#[test]
fn forwards_to_the_machine_that_the_environment_describes() {
    passes(run("child::sees_three_devices", &[("GPUMEM_SIM_DEVICES", "3"), ("GPUMEM_SIM_MEMORY", "141GiB")]));
}

#[test]
fn a_function_that_the_simulator_lacks_is_not_supported() {
    passes(run("child::calls_what_is_lacking", &[]));
}

#[test]
fn gpumem_does_not_take_it_for_a_gpu() {
    passes(run("child::is_refused_by_gpumem", &[]));
}

#[test]
fn a_machine_that_cannot_be_set_up_is_explained_once() {
    let output = run("child::is_not_initialized", &[("GPUMEM_SIM_MEMORY", "lots")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = stderr.lines().filter(|line| line.contains("cannot start")).collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].contains("GPUMEM_SIM_MEMORY=\"lots\""), "{stderr}");
    passes(output);
}

#[test]
fn what_was_found_is_said_at_exit() {
    let output = run("child::writes_the_same_bytes_on_two_streams", &[("GPUMEM_SIM_SEED", "3")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("has found, with GPUMEM_SIM_SEED=3") && stderr.contains("race"), "{stderr}");
    let output =
        run("child::sees_three_devices", &[("GPUMEM_SIM_DEVICES", "3"), ("GPUMEM_SIM_MEMORY", "141GiB")]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn findings_have_the_form_that_is_asked_for() {
    let stderr = |form| {
        let variables = [("GPUMEM_SIM_FINDINGS", form)];
        String::from_utf8(run("child::writes_the_same_bytes_on_two_streams", &variables).stderr).unwrap()
    };
    let object: serde_json::Value = serde_json::from_str(&stderr("json")).unwrap();
    assert_eq!(
        (&object["name"], &object["kernel"]),
        (&"race between streams".into(), &serde_json::Value::Null)
    );
    assert!(object["text"].as_str().unwrap().contains("a memset"), "{object}");
    let annotation = stderr("github");
    assert!(
        annotation.starts_with("::error title=race between streams::race between streams: "),
        "{annotation}"
    );
    assert_eq!(annotation.lines().count(), 1, "{annotation}");
    let other = stderr("xml");
    assert!(
        other.starts_with("GPUMEM_SIM_FINDINGS has another value") && other.contains("has found"),
        "{other}"
    );
}

#[test]
fn a_finding_in_a_kernel_has_its_place() {
    let stderr = |form| {
        let variables = [("GPUMEM_SIM_FINDINGS", form)];
        String::from_utf8(run("child::overruns_in_a_kernel", &variables).stderr).unwrap()
    };
    let object: serde_json::Value = serde_json::from_str(&stderr("json")).unwrap();
    let place = serde_json::json!({
        "kernel": object["kernel"], "ptx_line": object["ptx_line"], "source": object["source"],
        "inlined_at": object["inlined_at"], "block": object["block"],
        "thread": object["thread"],
    });
    let expected = serde_json::json!({
        "kernel": "overrun", "ptx_line": 11, "source": "/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:5",
        "inlined_at": ["/builds/group/project/at.cuh:31", "/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:7"], "block": [1, 0, 0], "thread": [2, 0, 0],
    });
    assert_eq!(place, expected);
    let address = object["address"].as_str().unwrap();
    assert!(address.starts_with("0x") && object["text"].as_str().unwrap().contains(address), "{object}");
    let annotation = stderr("github");
    assert!(annotation.starts_with("::error file=/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu,line=5,title="), "{annotation}");
    assert!(annotation.contains("block (1, 0, 0), thread (2, 0, 0)"), "{annotation}");
}

#[test]
fn a_race_between_kernels_has_two_places() {
    let stderr = |form| {
        let variables = [("GPUMEM_SIM_FINDINGS", form)];
        String::from_utf8(run("child::writes_the_same_words_by_two_kernels", &variables).stderr).unwrap()
    };
    let object: serde_json::Value = serde_json::from_str(&stderr("json")).unwrap();
    for place in [&object, &object["other"]] {
        let found = serde_json::json!({
            "kernel": place["kernel"], "ptx_line": place["ptx_line"], "source": place["source"],
            "inlined_at": place["inlined_at"], "block": place["block"],
            "thread": place["thread"],
        });
        let expected = serde_json::json!({
            "kernel": "overrun", "ptx_line": 11, "source": "/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:5",
        "inlined_at": ["/builds/group/project/at.cuh:31", "/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:7"], "block": [0, 0, 0], "thread": [0, 0, 0],
        });
        assert_eq!(found, expected, "{object}");
        assert!(place["address"].as_str().unwrap().starts_with("0x"));
    }
    let (annotation, text) = (stderr("github"), stderr("text"));
    assert!(annotation.starts_with("::error file=/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu,line=5,title=race between streams"), "{annotation}");
    let place = "at line 11 (/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:5, inlined at /builds/group/project/at.cuh:31, inlined at \
                 /builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu:7), block (0, 0, 0), thread (0, 0, 0)";
    assert_eq!(
        (annotation.matches(place).count(), text.matches(place).count()),
        (2, 2),
        "{annotation}{text}"
    );
}

#[test]
fn findings_decide_the_exit_status_if_that_is_asked_for() {
    let code = |test, variables: &[_]| run(test, variables).status.code();
    let racy = "child::writes_the_same_bytes_on_two_streams";
    assert_eq!(code(racy, &[]), Some(0));
    for form in ["text", "json", "github"] {
        let output = run(racy, &[("GPUMEM_SIM_ERROR_EXITCODE", "42"), ("GPUMEM_SIM_FINDINGS", form)]);
        assert_eq!(output.status.code(), Some(42));
        // What the program has written arrives.
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed") && !output.stderr.is_empty(), "{output:?}");
    }
    assert_eq!(code("child::calls_what_is_lacking", &[("GPUMEM_SIM_ERROR_EXITCODE", "42")]), Some(0));
    assert_eq!(code("child::loads_machine_code", &[("GPUMEM_SIM_ERROR_EXITCODE", "42")]), Some(0));
    for value in ["0", "256", "-1", "yes"] {
        let output = run("child::is_not_initialized", &[("GPUMEM_SIM_ERROR_EXITCODE", value)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(&format!("GPUMEM_SIM_ERROR_EXITCODE=\"{value}\"")), "{stderr}");
        passes(output);
    }
}

/// The step of a workflow in `docs/how-to/check-kernels.md`, as a runner starts it.
#[test]
fn the_workflow_of_the_guide_fails_where_it_should() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/check-kernels.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, steps) = guide.split_once("```yaml\n").unwrap();
    let (steps, _) = steps.split_once("\n```").unwrap();
    let (_, step) = steps.split_once("- shell: bash\n  run: |\n").unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("workflow");
    std::fs::create_dir_all(folder.join("target")).unwrap();
    match std::os::unix::fs::symlink(laid_out(), folder.join("drop-in")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
        _ => {}
    }
    let program = |name: &str, test: &str| {
        let path = folder.join(name);
        let this = std::env::current_exe().unwrap();
        let script = format!("#!/bin/sh\nexec {this:?} --ignored --exact {test} \"$@\"\n");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.to_string_lossy().into_owned()
    };
    let clean = program("clean", "child::calls_what_is_lacking");
    let racy = program("racy", "child::writes_the_same_bytes_on_two_streams");
    let failing = program("failing", "child::fails");
    for (programs, code) in
        [([&clean, &clean], 0), ([&clean, &racy], 3), ([&racy, &clean], 3), ([&failing, &clean], 101)]
    {
        let list = programs.map(|program| format!("{program}\n")).concat();
        std::fs::write(folder.join("target/test-programs"), list).unwrap();
        let mut bash = without_variables("bash");
        let bash = bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", step]).current_dir(&folder);
        let output = bash.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{programs:?} {output:?}");
    }
}

#[test]
fn what_the_list_leaves_out_is_counted() {
    let stderr = |form| {
        let output = run("child::races_often", &[("GPUMEM_SIM_FINDINGS", form)]);
        String::from_utf8(output.stderr).unwrap()
    };
    let text = stderr("text");
    assert_eq!(text.lines().filter(|line| line.contains("race between streams")).count(), 20, "{text}");
    let more =
        text.lines().last().unwrap().strip_prefix("  and ").and_then(|line| line.strip_suffix(" more"));
    let more: usize = more.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    // The other forms have all that were kept, and count the others.
    let json = stderr("json");
    let objects: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counted = objects.last().unwrap()["count"].as_u64().unwrap() as usize;
    assert_eq!(objects.len() - 1 + counted, 20 + more, "{json}");
    let last = format!("::error title=more findings::{counted} more findings");
    assert_eq!(stderr("github").lines().last(), Some(&*last));
}

#[test]
fn why_a_module_was_refused_is_said_at_exit() {
    let output = run("child::loads_machine_code", &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cuModuleLoadData returned CUDA_ERROR_NO_BINARY_FOR_GPU"), "{stderr}");
    assert!(stderr.contains("-gencode arch=compute_XX") && !stderr.contains("has found"), "{stderr}");
    passes(output);
    let annotation = run("child::loads_machine_code", &[("GPUMEM_SIM_FINDINGS", "github")]).stderr;
    assert!(annotation.starts_with(b"::warning title=refused module::"), "{annotation:?}");
}

/// The process can exit with anything alive: threads inside of calls, memory, streams, and thread-locals whose destructors call
/// the driver.
#[test]
fn the_process_exits_cleanly() {
    for _ in 0..20 {
        let output = run("child::exits_while_threads_call", &[]);
        assert_eq!(output.status.code(), Some(EXIT_CODE), "{output:?}");
    }
}

/// Not zero, which is also the exit code of the test harness.
const EXIT_CODE: i32 = 43;

mod child {
    use super::*;

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn sees_three_devices() {
        let table = table();
        let (mut count, mut bytes, mut warp) = (0, 0, 0);
        // SAFETY: the out-pointers live through the calls.
        unsafe {
            assert_eq!(table.cuInit.unwrap()(0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDeviceGetCount.unwrap()(&mut count), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDeviceTotalMem_v2.unwrap()(&mut bytes, 2), CUresult::CUDA_SUCCESS);
            let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
            assert_eq!(table.cuDeviceGetAttribute.unwrap()(&mut warp, attribute, 0), CUresult::CUDA_SUCCESS);
        }
        assert_eq!((count, bytes, warp), (3, 141 << 30, 32));
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn calls_what_is_lacking() {
        // SAFETY: the function ignores the pointer.
        let code = unsafe { table().cuCheckpointProcessLock.unwrap()(0, std::ptr::null_mut()) };
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn is_refused_by_gpumem() {
        let vendors = Driver::cuda();
        assert!(matches!(vendors, Err(LoadError::Impostor)), "{vendors:?}");
        let either = gpumem_sim::driver_or_sim();
        assert!(matches!(either, Err(SimError::Load(LoadError::Impostor))), "{either:?}");
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn is_not_initialized() {
        let table = table();
        for _ in 0..2 {
            // SAFETY: `cuInit` may be called at any time.
            assert_eq!(unsafe { table.cuInit.unwrap()(0) }, CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn loads_machine_code() {
        let table = table();
        let (mut context, mut module) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out-pointers live through the calls; of machine code only the first bytes are read.
        unsafe {
            assert_eq!(table.cuInit.unwrap()(0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDevicePrimaryCtxRetain.unwrap()(&mut context, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuCtxSetCurrent.unwrap()(context), CUresult::CUDA_SUCCESS);
            let refused = table.cuModuleLoadData.unwrap()(&mut module, c"\x7fELF".as_ptr().cast());
            assert_eq!(refused, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn writes_the_same_bytes_on_two_streams() {
        race(1);
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn races_often() {
        race(200);
    }

    #[test]
    #[ignore = "its parent starts it"]
    fn fails() {
        panic!("by design");
    }

    /// Makes two streams write the same bytes without an order, `times` times.
    fn race(times: usize) {
        let table = table();
        let (mut context, mut address) = (std::ptr::null_mut(), 0);
        // SAFETY: the out-pointers live through the calls; the handles are the driver's own.
        unsafe {
            assert_eq!(table.cuInit.unwrap()(0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDevicePrimaryCtxRetain.unwrap()(&mut context, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuCtxSetCurrent.unwrap()(context), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuMemAlloc_v2.unwrap()(&mut address, 64), CUresult::CUDA_SUCCESS);
            for value in [1, 2].repeat(times) {
                let mut stream = std::ptr::null_mut();
                assert_eq!(table.cuStreamCreate.unwrap()(&mut stream, 1), CUresult::CUDA_SUCCESS);
                assert_eq!(
                    table.cuMemsetD8Async.unwrap()(address, value, 64, stream),
                    CUresult::CUDA_SUCCESS
                );
            }
            assert_eq!(table.cuCtxSynchronize.unwrap()(), CUresult::CUDA_SUCCESS);
        }
    }

    const OVERRUN: &std::ffi::CStr = c".version 8.0
.target sm_70
.address_size 64
.file 1 \"/builds/group/project/sub-project/crates/kernels/source/cuda/reduce/over.cu\" .file 2 \"/builds/group/project/at.cuh\"
.visible .entry overrun(.param .u64 out) {
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 4, %r0; mul.wide.u32 %rd1, %r0, 4;
    .loc 1 7 0
    .loc 2 31 5, function_name $name, inlined_at 1 7 0
    .loc 1 5 3, function_name $name, inlined_at 2 31 5
    add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r0;
    ret;
}";

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn overruns_in_a_kernel() {
        // Under any order the first thread that is out of bounds is this one: the other block stays within.
        assert_eq!(launches(2, 1), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn writes_the_same_words_by_two_kernels() {
        assert_eq!(launches(1, 2), CUresult::CUDA_SUCCESS);
    }

    /// Launches the kernel on 24 bytes, once on each of several streams, with blocks of 4 threads.
    fn launches(blocks: u32, streams: usize) -> CUresult {
        let table = table();
        let (mut context, mut module, mut function, mut address) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the out-pointers live through the calls; the handles are the driver's own. Where the kernel writes past its memory, the
        // simulator refuses it.
        unsafe {
            assert_eq!(table.cuInit.unwrap()(0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDevicePrimaryCtxRetain.unwrap()(&mut context, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuCtxSetCurrent.unwrap()(context), CUresult::CUDA_SUCCESS);
            let loaded = table.cuModuleLoadData.unwrap()(&mut module, OVERRUN.as_ptr().cast());
            assert_eq!(loaded, CUresult::CUDA_SUCCESS);
            let found = table.cuModuleGetFunction.unwrap()(&mut function, module, c"overrun".as_ptr());
            assert_eq!(found, CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuMemAlloc_v2.unwrap()(&mut address, 24), CUresult::CUDA_SUCCESS);
            let mut parameters = [(&raw mut address).cast()];
            let parameters = parameters.as_mut_ptr();
            let launch = table.cuLaunchKernel.unwrap();
            for _ in 0..streams {
                let mut stream = std::ptr::null_mut();
                assert_eq!(table.cuStreamCreate.unwrap()(&mut stream, 1), CUresult::CUDA_SUCCESS);
                let launched =
                    launch(function, blocks, 1, 1, 4, 1, 1, 0, stream, parameters, std::ptr::null_mut());
                assert_eq!(launched, CUresult::CUDA_SUCCESS);
            }
            table.cuCtxSynchronize.unwrap()()
        }
    }

    #[test]
    #[ignore = "needs the library on the path; its parent starts it"]
    fn exits_while_threads_call() {
        let table = table();
        let (ready, is_ready) = std::sync::mpsc::channel();
        for _ in 0..4 {
            let ready = ready.clone();
            std::thread::spawn(move || {
                work(&table);
                ready.send(()).unwrap();
                loop {
                    work(&table);
                }
            });
        }
        is_ready.iter().take(4).for_each(drop);
        LATE.set(Some(CallsLate(table)));
        std::process::exit(EXIT_CODE);
    }

    thread_local!(static LATE: std::cell::Cell<Option<CallsLate>> = const { std::cell::Cell::new(None) });

    /// Calls the driver from the destructor of a thread-local.
    struct CallsLate(Table);

    impl Drop for CallsLate {
        fn drop(&mut self) {
            work(&self.0);
        }
    }

    /// Leaves a stream with work in its queue.
    fn work(table: &Table) {
        let (mut context, mut stream, mut address) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the out-pointers live through the calls; the handles are the driver's own.
        unsafe {
            assert_eq!(table.cuInit.unwrap()(0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuDevicePrimaryCtxRetain.unwrap()(&mut context, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuCtxSetCurrent.unwrap()(context), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuStreamCreate.unwrap()(&mut stream, 1), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuMemAllocAsync.unwrap()(&mut address, 4096, stream), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuMemsetD8Async.unwrap()(address, 1, 4096, stream), CUresult::CUDA_SUCCESS);
            assert_eq!(table.cuMemFreeAsync.unwrap()(address, stream), CUresult::CUDA_SUCCESS);
        }
    }
}

/// The library that the loader finds under the driver's name.
fn table() -> Table {
    // SAFETY: the library does nothing when it is loaded, and it is never unloaded.
    let library = unsafe { libloading::Library::new("libcuda.so.1").unwrap() };
    let library = Box::leak(Box::new(library));
    // SAFETY: the library exports the driver's functions with the signatures that `cuda.h` gives.
    unsafe {
        Table::load(|symbol| library.get(symbol.name.as_bytes()).map_or(std::ptr::null(), |found| *found))
    }
}

/// Runs one test of this program with the library on its path and no `GPUMEM_` variables but `variables`.
fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = without_variables(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]).env("LD_LIBRARY_PATH", laid_out());
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A program that has no `GPUMEM_` variables of this process.
fn without_variables(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command
}

fn passes(output: Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

/// A folder with the library under the driver's names, which is on no library path of cargo.
fn laid_out() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libgpumem_libcuda.so");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("drop-in");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so.1", "libcuda.so"] {
        match std::os::unix::fs::symlink(&library, folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
            _ => {}
        }
    }
    folder
}
