//! Environment variables: only `from_env` reads them, and the builder overrides them.
//!
//! A test process must not change its own environment while other tests run, so each case starts this program again
//! with the variables set, and selects only the test at the end.

#![forbid(unsafe_code)]

use gpumem_pool::{BackendKind, Device, MemoryKind, Pool, PoolBuilder};
use gpumem_sim::SimConfig;
use std::process::Command;

/// Runs [`child`] under the given variables and returns what it printed between the marks.
fn under(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["environment::child", "--exact", "--ignored", "--nocapture"]);
    for name in ["GPUMEM_CONF", "GPUMEM_POOL", "GPUMEM_KIND", "GPUMEM_HARD_LIMIT", "GPUMEM_SOFT_LIMIT"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text.split(MARK).nth(1).unwrap_or_else(|| panic!("no answer: {text}")).to_string()
}

const MARK: &str = "<answer>";

#[test]
#[ignore = "run by the tests of this file, under variables"]
fn child() {
    let device =
        Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap();
    let show = |pool: Pool| {
        let status = pool.status().unwrap();
        let kind =
            if status.kind == MemoryKind::Device { String::new() } else { format!("{} ", status.kind) };
        format!("{kind}{} {:?} {:?}", status.backend, status.hard_limit_bytes, status.soft_limit_bytes)
    };
    let from_env = Pool::from_env(&device).map_or_else(|error| error.to_string(), show);
    let built = PoolBuilder::from_env(&device).and_then(|builder| {
        builder.backend(BackendKind::None).hard_limit(8 << 20).soft_limit(4 << 20).build()
    });
    let built = built.map_or_else(|error| error.to_string(), show);
    let plain = show(Pool::new(&device).unwrap());
    println!("{MARK}{from_env}; {built}; {plain}{MARK}");
}

fn default_backend() -> &'static str {
    match () {
        () if cfg!(feature = "backend-caching") => "caching",
        () if cfg!(feature = "backend-native") => "native",
        () => "none",
    }
}

#[test]
fn nothing_set_is_the_default() {
    let default = default_backend();
    let expected = format!("{default} None None; none Some(8388608) Some(4194304); {default} None None");
    assert_eq!(under(&[]), expected);
    assert_eq!(under(&[("GPUMEM_POOL", ""), ("GPUMEM_HARD_LIMIT", "")]), expected);
}

#[test]
fn the_kind_of_memory_is_read_from_the_environment() {
    for kind in ["device", "unified", "host"] {
        let shown = under(&[("GPUMEM_KIND", kind), ("GPUMEM_POOL", "none")]);
        let said = if kind == "device" { String::new() } else { format!("{kind} ") };
        assert!(shown.starts_with(&format!("{said}none None None; {said}none Some")), "{shown}");
    }
    let shown = under(&[("GPUMEM_KIND", "managed")]);
    assert!(shown.contains("GPUMEM_KIND=\"managed\"") && shown.contains("unified"), "{shown}");
    let shown = under(&[("GPUMEM_KIND", "host"), ("GPUMEM_HARD_LIMIT", "50%"), ("GPUMEM_POOL", "none")]);
    assert!(shown.contains("invalid limit 50% (GPUMEM_HARD_LIMIT) for host memory (GPUMEM_KIND)"), "{shown}");
}

#[test]
fn the_environment_is_read_by_from_env_and_beaten_by_the_builder() {
    let default = default_backend();
    let variables = [("GPUMEM_POOL", "none"), ("GPUMEM_HARD_LIMIT", "50%"), ("GPUMEM_SOFT_LIMIT", "100M")];
    let from_env = "none Some(536870912) Some(100000000)";
    assert_eq!(
        under(&variables),
        format!("{from_env}; none Some(8388608) Some(4194304); {default} None None")
    );
}

#[test]
fn errors_name_the_variable_and_its_values() {
    for (name, value, expected) in [
        ("GPUMEM_HARD_LIMIT", "lots", "100M, 1.5GiB"),
        ("GPUMEM_SOFT_LIMIT", "-1", "100M, 1.5GiB"),
        ("GPUMEM_HARD_LIMIT", "120%", "50%"),
        ("GPUMEM_HARD_LIMIT", "101%", "a share of memory is at most 100%"),
        ("GPUMEM_POOL", "cached", "`caching`, `native` or `none`"),
        ("GPUMEM_PROFILE", "quick", "`fast`, `balanced`"),
    ] {
        let text = under(&[(name, value)]);
        assert!(text.contains(name) && text.contains(value) && text.contains(expected), "{text}");
    }
    let too_small = under(&[("GPUMEM_HARD_LIMIT", "1KiB")]);
    assert!(too_small.contains("the minimum is 2.000 MiB"), "{too_small}");
    let unknown = under(&[("GPUMEM_HARDLIMIT", "1GiB")]);
    assert!(unknown.contains("did you mean GPUMEM_HARD_LIMIT?"), "{unknown}");
    if !cfg!(feature = "backend-native") {
        assert!(under(&[("GPUMEM_POOL", "native")]).contains("enable the cargo feature `backend-native`"));
    }
    if !cfg!(feature = "backend-caching") {
        assert!(under(&[("GPUMEM_POOL", "caching")]).contains("enable the cargo feature `backend-caching`"));
    }
}

#[test]
fn options_by_name_come_below_the_variables_of_their_own() {
    let conf = ("GPUMEM_CONF", "backend:none,soft_limit:100M,hard_limit:50%");
    assert!(under(&[conf]).starts_with("none Some(536870912) Some(100000000)"));
    assert!(
        under(&[conf, ("GPUMEM_HARD_LIMIT", "64MiB")]).starts_with("none Some(67108864) Some(100000000)")
    );
    let shown = under(&[("GPUMEM_CONF", "max_split:1")]);
    assert!(shown.contains("GPUMEM_CONF=") && shown.contains("unknown option"), "{shown}");
}
