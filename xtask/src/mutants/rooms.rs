//! The mutated files, and the tests of each of them.

use anyhow::{Result, ensure};
use std::path::Path;

/// Files with one purpose, and their tests.
pub(crate) struct Room {
    pub(crate) name: &'static str,
    /// Files, or folders with a trailing `/`.
    paths: &'static [&'static str],
    pub(crate) suites: &'static [&'static str],
}

/// A test program of the workspace, or some of its tests.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// The target's name. `is_library` distinguishes a library from a test program.
    pub(crate) target: &'static str,
    pub(crate) is_library: bool,
    /// Arguments of the test harness: filters and `--skip`.
    pub(crate) filters: &'static [&'static str],
    /// The cfg of its build, if it has one of its own.
    pub(crate) cfg: Option<&'static str>,
}

const fn target(name: &'static str, package: &'static str, target: &'static str) -> Target {
    Target { name, package, target, is_library: false, filters: &[], cfg: None }
}

const fn library(name: &'static str, package: &'static str, target: &'static str) -> Target {
    Target { name, package, target, is_library: true, filters: &[], cfg: None }
}

const fn part(name: &'static str, whole: Target, filters: &'static [&'static str]) -> Target {
    Target { name, filters, ..whole }
}

const fn model(name: &'static str, package: &'static str, cfg: &'static str) -> Target {
    Target { cfg: Some(cfg), ..target(name, package, name) }
}

const TESTS: &str = "gpumem-tests";

#[rustfmt::skip]
pub(crate) const TARGETS: &[Target] = &[
    library("pool-src", "gpumem-pool", "gpumem_pool"),
    // The tests that take most of the program's time run later.
    part("pool", target("", "gpumem-pool", "pool"), &["--skip", "failing_calls::"]),
    part("pool/failing_calls", target("", "gpumem-pool", "pool"), &["failing_calls::"]),
    library("heap-src", "gpumem-heap", "gpumem_heap"),
    model("loom", "gpumem-heap", "gpumem_loom"),
    model("shuttle", "gpumem-heap", "gpumem_shuttle"),
    library("array-src", "gpumem-array", "gpumem_array"),
    part("array-borrows", target("", "gpumem-array", "array"), &["borrows::"]),
    part("array-clients", target("", "gpumem-array", "array"), &["clients::"]),
    part("array-copies", target("", "gpumem-array", "array"), &["copies::"]),
    part("array-stream-races", target("", "gpumem-array", "array"), &["stream_races::"]),
    part("array-tracking", target("", "gpumem-array", "array"), &["tracking::"]),
    target("tests/adaptors", TESTS, "adaptors"),
    target("tests/alias", TESTS, "alias"),
    target("tests/array", TESTS, "array"),
    target("tests/calls", TESTS, "calls"),
    target("tests/capture", TESTS, "capture"),
    target("tests/conformance", TESTS, "conformance"),
    target("tests/contexts", TESTS, "contexts"),
    target("tests/copies", TESTS, "copies"),
    target("tests/devices", TESTS, "devices"),
    target("tests/limit_stress", TESTS, "limit_stress"),
    target("tests/features", TESTS, "features"),
    target("tests/foreign", TESTS, "foreign"),
    target("tests/graphs", TESTS, "graphs"),
    target("tests/kinds", TESTS, "kinds"),
    target("tests/lifetimes", TESTS, "lifetimes"),
    target("tests/limits", TESTS, "limits"),
    target("tests/managed", TESTS, "managed"),
    target("tests/model", TESTS, "model"),
    target("tests/others_bugs", TESTS, "others_bugs"),
    target("tests/peers", TESTS, "peers"),
    target("tests/pool", TESTS, "pool"),
    target("tests/pool_kinds", TESTS, "pool_kinds"),
    target("tests/replay", TESTS, "replay"),
    target("tests/reuse", TESTS, "reuse"),
    target("tests/service", TESTS, "service"),
    target("tests/settings", TESTS, "settings"),
    target("tests/situations", TESTS, "situations"),
    target("tests/sharing", TESTS, "sharing"),
    target("tests/stream_entries", TESTS, "stream_entries"),
    target("tests/stream_kinds", TESTS, "stream_kinds"),
    target("tests/streams", TESTS, "streams"),
    target("tests/stress", TESTS, "stress"),
    target("tests/threads", TESTS, "threads"),
    target("tests/boxes", TESTS, "boxes"),
    target("tests/vmm", TESTS, "vmm"),
];

#[rustfmt::skip]
pub(crate) const ROOMS: &[Room] = &[
    Room {
        name: "order",
        paths: &["crates/gpumem-heap/src/order/", "crates/gpumem-pool/src/device/order.rs", "crates/gpumem-pool/src/device/order/"],
        suites: &[
            "heap-src", "pool-src", "pool", "loom", "tests/streams", "tests/stream_kinds", "tests/reuse", "tests/others_bugs", "tests/capture",
            "tests/graphs", "tests/lifetimes", "tests/kinds", "tests/threads", "tests/model", "tests/stress", "tests/calls",
            "tests/replay", "tests/pool", "tests/sharing", "tests/array", "tests/foreign", "tests/stream_entries",
        ],
    },
    Room {
        name: "limits",
        paths: &[
            "crates/gpumem-pool/src/config/limit.rs", "crates/gpumem-pool/src/limits/limit_node.rs", "crates/gpumem-pool/src/limits/admission.rs",
            "crates/gpumem-pool/src/limits/device_budget.rs", "crates/gpumem-pool/src/stats/usage_counters.rs", "crates/gpumem-pool/src/pool/room.rs",
            "crates/gpumem-pool/src/pool/private.rs",
        ],
        suites: &[
            "pool-src", "pool", "tests/limits", "tests/limit_stress", "tests/kinds", "tests/pool", "tests/pool_kinds", "tests/features",
            "tests/settings", "tests/managed", "pool/failing_calls", "tests/model", "tests/others_bugs", "tests/reuse",
        ],
    },
    Room {
        name: "ladder",
        paths: &[
            "crates/gpumem-pool/src/backend/caching/rungs.rs", "crates/gpumem-heap/src/sync/spin_mutex.rs",
            "crates/gpumem-pool/src/backend/caching/caching_pool.rs", "crates/gpumem-pool/src/backend/caching/caching_pool/",
        ],
        suites: &[
            "pool-src", "pool", "tests/limits", "tests/reuse", "tests/calls", "tests/limit_stress", "tests/vmm", "tests/pool", "pool/failing_calls",
            "tests/others_bugs", "tests/lifetimes", "tests/kinds", "tests/model", "tests/replay", "tests/threads", "tests/stress",
            "tests/settings", "shuttle", "tests/features", "tests/sharing",
        ],
    },
    Room {
        name: "heap",
        paths: &[
            "crates/gpumem-heap/src/heap.rs", "crates/gpumem-heap/src/heap/", "crates/gpumem-pool/src/backend/caching/extent.rs",
        ],
        suites: &[
            "heap-src", "pool-src", "pool", "tests/reuse", "tests/calls", "tests/vmm", "tests/pool", "tests/limits", "pool/failing_calls",
            "tests/others_bugs", "tests/kinds", "tests/lifetimes", "tests/model", "tests/replay", "tests/settings", "tests/stress",
            "tests/features", "tests/sharing", "tests/threads",
        ],
    },
    Room {
        name: "adaptors",
        paths: &[
            "crates/gpumem-pool/src/adaptor/", "crates/gpumem-pool/src/pool/adaptors.rs", "crates/gpumem-pool/src/pool/adaptors/",
            "crates/gpumem-pool/src/pool/state/adapted.rs",
        ],
        suites: &[
            "pool-src", "pool", "tests/adaptors", "tests/features", "tests/model", "tests/stress", "tests/pool", "tests/graphs",
        ],
    },
    Room {
        name: "graph",
        paths: &[
            "crates/gpumem-pool/src/graph.rs", "crates/gpumem-pool/src/pool/graph_memory.rs", "crates/gpumem-pool/src/pool/graph_memory/",
            "crates/gpumem-pool/src/pool/state/captured.rs", "crates/gpumem-pool/src/device/captures.rs",
            "crates/gpumem-pool/src/device/capturing.rs",
        ],
        suites: &[
            "pool-src", "pool", "tests/graphs", "tests/capture", "tests/others_bugs", "tests/streams", "tests/lifetimes", "tests/kinds",
            "tests/adaptors", "tests/model", "tests/sharing", "tests/array", "tests/boxes",
        ],
    },
    Room {
        name: "host memory",
        paths: &[
            "crates/gpumem-pool/src/device/host_memory.rs", "crates/gpumem-pool/src/device/host_memory/", "crates/gpumem-pool/src/pool/sharing.rs",
            "crates/gpumem-pool/src/pool/unified.rs", "crates/gpumem-pool/src/config/kind.rs", "crates/gpumem-pool/src/pool/pinning.rs",
            "crates/gpumem-pool/src/device/settle.rs",
        ],
        suites: &[
            "pool-src", "pool", "array-clients", "tests/kinds", "tests/sharing", "tests/managed", "tests/boxes", "tests/lifetimes", "tests/peers",
            "tests/capture", "tests/graphs", "tests/contexts", "tests/others_bugs", "tests/model", "tests/pool_kinds", "tests/features",
            "tests/stream_entries",
        ],
    },
    Room {
        name: "waits",
        paths: &["crates/gpumem-pool/src/device/wait.rs", "crates/gpumem-pool/src/device/stream/borrow.rs"],
        suites: &[
            "pool-src", "pool", "array-borrows", "array-stream-races", "tests/service", "tests/streams",
            "tests/stream_kinds", "tests/stream_entries", "tests/foreign", "tests/capture", "tests/graphs", "tests/limits",
            "tests/lifetimes", "tests/kinds", "tests/boxes", "tests/calls",
        ],
    },
    Room {
        name: "array copies",
        paths: &["crates/gpumem-array/src/copy.rs", "crates/gpumem-array/src/copy/", "crates/gpumem-array/src/layout/plan.rs"],
        suites: &[
            "array-src", "array-copies", "array-borrows", "array-clients", "array-tracking", "array-stream-races", "tests/copies", "tests/devices",
            "tests/array", "tests/graphs", "tests/streams", "tests/lifetimes",
        ],
    },
    Room {
        name: "reclaim",
        paths: &[
            "crates/gpumem-pool/src/reclaim.rs", "crates/gpumem-pool/src/pool/state/ladder.rs", "crates/gpumem-pool/src/device/maintenance.rs",
        ],
        suites: &[
            "pool-src", "pool", "tests/limits", "tests/features", "tests/kinds", "tests/lifetimes", "tests/pool", "pool/failing_calls",
            "tests/others_bugs", "tests/adaptors", "tests/model", "tests/reuse", "tests/service",
        ],
    },
    Room {
        name: "reports",
        paths: &[
            "crates/gpumem-pool/src/error/out_of_memory.rs", "crates/gpumem-pool/src/error/out_of_memory/", "crates/gpumem-pool/src/stats/status.rs",
            "crates/gpumem-pool/src/pool/status.rs", "crates/gpumem-pool/src/pool/state/report.rs", "crates/gpumem-pool/src/error.rs",
            "crates/gpumem-pool/src/stats/counters.rs",
        ],
        suites: &[
            "pool-src", "pool", "tests/situations", "tests/limits", "tests/kinds", "tests/features", "tests/graphs", "tests/pool", "tests/others_bugs",
            "tests/model",
        ],
    },
];

/// The code that tests use as a check: a change there hides bugs instead of introducing one.
const CHECKERS: [&str; 2] = ["crates/gpumem-heap/src/heap/check.rs", "crates/gpumem-heap/src/order/tests.rs"];

/// The files of each room, in the order of the rooms. A path without files is an error: the table is out of date.
pub(crate) fn files<'a>(
    all: &'a [String],
    only: Option<&str>,
) -> Result<Vec<(&'static Room, Vec<&'a String>)>> {
    let is_source = |file: &str| file.ends_with(".rs") && !is_test(file) && !CHECKERS.contains(&file);
    let mut rooms = Vec::new();
    for room in ROOMS {
        let mut files = Vec::new();
        for path in room.paths {
            let count = files.len();
            let is_here = |file: &str| file == *path || path.ends_with('/') && file.starts_with(path);
            files.extend(all.iter().filter(|file| is_here(file) && is_source(file)));
            ensure!(
                files.len() > count,
                "{path} leads to no source file; correct the rooms in xtask/src/mutants"
            );
        }
        files.retain(|file| only.is_none_or(|only| file.contains(only) || room.name == only));
        rooms.push((room, files));
    }
    ensure!(
        rooms.iter().any(|(_, files)| !files.is_empty()),
        "no mutated file or room is called {}",
        only.unwrap_or_default()
    );
    Ok(rooms)
}

/// Returns whether a file below a package's sources contains tests only.
pub(crate) fn is_test(file: &str) -> bool {
    file.contains("/tests/") || file.ends_with("/tests.rs")
}

/// The packages with mutated files, which need the switches.
pub(crate) fn packages() -> Vec<&'static str> {
    let of = |path: &'static str| path.split('/').nth(1);
    let mut packages: Vec<_> = ROOMS.iter().flat_map(|room| room.paths).filter_map(|path| of(path)).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The folder of a package, from the repository's root.
pub(crate) fn folder(package: &str) -> String {
    let below_crates = format!("crates/{package}");
    if package == TESTS || !Path::new(&crate::workspace::root()).join(&below_crates).exists() {
        "tests".into()
    } else {
        below_crates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_room_names_tests_that_exist() {
        for room in ROOMS {
            for suite in room.suites {
                assert!(TARGETS.iter().any(|target| target.name == *suite), "{}: {suite}", room.name);
            }
        }
        assert_eq!(packages(), ["gpumem-array", "gpumem-heap", "gpumem-pool"]);
        let root = crate::workspace::root();
        let suites = std::fs::read_to_string(root.join("tests/Cargo.toml")).unwrap();
        for target in TARGETS.iter().filter(|target| !target.is_library) {
            let tests = root.join(folder(target.package)).join("tests");
            let is_there = match target.package {
                TESTS => suites.contains(&format!("name = \"{}\"", target.target)),
                _ => {
                    ["", "/main"].iter().any(|end| tests.join(format!("{}{end}.rs", target.target)).is_file())
                }
            };
            assert!(is_there, "{}: no test program {}", target.name, target.target);
        }
    }

    #[test]
    fn the_rooms_are_up_to_date() {
        let all = crate::mutants::tree::files(&crate::workspace::root()).unwrap();
        let rooms = files(&all, None).unwrap();
        assert_eq!(rooms.len(), ROOMS.len());
        // The waits at the end of borrows, whose files are among those of other rooms.
        for file in
            ["device/settle.rs", "device/wait.rs", "device/host_memory/buffer.rs", "device/stream/borrow.rs"]
        {
            let file = format!("crates/gpumem-pool/src/{file}");
            assert!(rooms.iter().any(|(_, files)| files.iter().any(|other| **other == file)), "{file}");
        }
        for checker in CHECKERS {
            assert!(all.iter().any(|file| file == checker), "{checker}");
        }
        assert!(files(&all, Some("no-such-file")).is_err());
    }
}
