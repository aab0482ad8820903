//! Every entry point of the pool's crate works with any current context or none, and leaves the context unchanged.

use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::entry_points::{ENTRIES, PLAIN, Stage, is_missing};
use gpumem_tests::pool::Device;
use gpumem_tests::sys::Driver;
use gpumem_tests::sys::types::CUcontext;
use std::collections::BTreeSet;
use std::ptr::null_mut;

cases! {
    #[serial_test::serial]
    fn a_thread_without_a_context_stays_without(driver: &Driver) {
        each_entry(driver, null_mut());
    }

    /// A context of another library, on the same device.
    #[serial_test::serial]
    fn another_context_stays_current(driver: &Driver) {
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: both outlive the calls, and no object of this crate belongs to the context when it is destroyed.
        unsafe {
            driver.cuInit(0).unwrap();
            driver.cuDeviceGet(&mut device, 0).unwrap();
            driver.cuCtxCreate_v2(&mut context, 0, device).unwrap();
            let mut popped = null_mut();
            driver.cuCtxPopCurrent_v2(&mut popped).unwrap();
        }
        each_entry(driver, context);
        // SAFETY: the context was created for this case, and is neither current on this thread nor used again.
        unsafe { driver.cuCtxDestroy_v2(context).unwrap() };
    }

    /// The primary context, made current as other libraries do.
    #[serial_test::serial]
    fn the_devices_own_context_stays_current(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        each_entry(driver, device.context());
    }
}

/// Calls all entry points on a thread with this current context, or none.
fn each_entry(driver: &Driver, context: CUcontext) {
    let device = Device::new(driver, 0).unwrap();
    let context = context.expose_provenance();
    for backend in backends(&device) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let set = std::ptr::with_exposed_provenance_mut(context);
                // SAFETY: the context is alive, or null.
                unsafe { driver.cuCtxSetCurrent(set).unwrap() };
                let stage = Stage::new(driver, backend).unwrap();
                assert_eq!(current(driver), context, "{backend}: making pools and streams");
                for (name, entry) in ENTRIES {
                    let outcome = entry(&stage);
                    assert_eq!(current(driver), context, "{backend}: {name}");
                    if let Err(error) = &outcome {
                        assert!(is_missing(error), "{backend}: {name}: {error}");
                    }
                }
                drop(stage);
                assert_eq!(current(driver), context, "{backend}: the end of everything");
            });
        });
    }
}

fn current(driver: &Driver) -> usize {
    let mut context = null_mut();
    // SAFETY: `context` outlives the call.
    unsafe { driver.cuCtxGetCurrent(&mut context).unwrap() };
    context.addr()
}

/// Every function of the pool, and of the public types of the device crate, is in the table of entry points.
#[test]
fn every_public_function_has_an_entry() {
    let crates = gpumem_tests::folder().join("../crates");
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<BTreeSet<_>>();
    let known: BTreeSet<String> =
        ENTRIES.iter().flat_map(|(name, _)| words(name)).chain(words(PLAIN)).collect();
    let exports = std::fs::read_to_string(crates.join("gpumem-device/src/lib.rs")).unwrap();
    let (_, exports) = exports.split_once("pub use device::{").unwrap();
    let exported: BTreeSet<&str> = exports
        .split('}')
        .next()
        .unwrap()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    assert!(exported.contains("Stream") && exported.len() > 10, "{exported:?}");
    let mut missing = BTreeSet::new();
    let folders = [("gpumem-pool/src", false), ("gpumem-device/src", true)];
    for (file, is_of_device) in folders
        .iter()
        .flat_map(|(folder, of)| sources(&crates.join(folder)).into_iter().map(|file| (file, *of)))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        let (mut is_public, mut is_hidden) = (!is_of_device, false);
        for line in text.lines() {
            if is_of_device && line.starts_with("impl") {
                is_public =
                    line.split(|letter: char| !letter.is_alphanumeric()).any(|word| exported.contains(word));
            }
            let line = line.trim_start();
            is_hidden |= is_of_device && line == "#[doc(hidden)]";
            let function = ["pub fn ", "pub unsafe fn ", "pub const fn "]
                .iter()
                .find_map(|start| line.strip_prefix(start));
            let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next()) else { continue };
            // The table of options generates setters of the builder, which make no driver calls.
            if is_public && !is_hidden && !known.contains(name) && name != "$name" {
                missing.insert(format!("{name} in {}", file.display()));
            }
            is_hidden = false;
        }
    }
    assert!(missing.is_empty(), "no entry in tests/src/fixtures/entry_points.rs for {missing:#?}");
}

/// Backends have no public interface, adaptors are called through the pool, blocks that spill through arrays, and only the model's search
/// injects bugs.
fn sources(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_inner = ["backend", "adaptor", "adaptors", "spill", "trace", "order"].contains(&name.as_str());
        match path.is_dir() {
            _ if is_inner => {}
            true => found.extend(sources(&path)),
            false => found.push(path),
        }
    }
    found
}
