//! The shared library as other programs load it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The functions that the header declares.
fn declared() -> Vec<String> {
    let header = include_str!("../include/gpumem.h");
    let words = header.split(|sign: char| !(sign.is_alphanumeric() || matches!(sign, '_' | '(')));
    let called = words.filter_map(|word| Some(&word[..word.find('(')?]));
    let mut names: Vec<String> =
        called.filter(|name| name.starts_with("gpumem_")).map(str::to_string).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_function_of_the_header_is_exported() {
    let program = std::env::current_exe().unwrap();
    // SAFETY: the library does nothing when it is loaded.
    let library =
        unsafe { libloading::Library::new(program.parent().unwrap().join("libgpumem_capi.so")).unwrap() };
    let declared = declared();
    assert!(declared.iter().any(|name| name == "gpumem_pool_create"), "{declared:?}");
    for name in declared {
        // SAFETY: the test only checks that the symbol exists.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        assert!(found.is_ok(), "{name} is missing");
    }
}
