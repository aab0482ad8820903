//! Random programs over the pool, compared with its twin; see `gpumem_tests::model`. `cargo xtask fuzz` runs more of them.

use gpumem_tests::model::search::Coverage as _;
use gpumem_tests::model::{Arrays, Model, Pools, Search, Subject};
use gpumem_tests::pool::MemoryKind;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::{CUdeviceptr, CUevent, CUstream};
use std::ops::ControlFlow;

#[test]
fn random_programs_agree_with_the_twin() {
    let coverage = Search::<Pools>::seeds(0, 150)
        .run(|_| ControlFlow::Continue(()))
        .unwrap_or_else(|found| panic!("{found}"));
    // The programs must reach the paths that they are meant to test.
    assert_eq!(coverage.seeds, 150);
    assert!(coverage.operations > 5_000 && coverage.blocks > 1_000, "{coverage}");
    assert!(
        coverage.out_of_memory > 20 && coverage.limit_reached > 20 && coverage.too_large > 20,
        "{coverage}"
    );
    assert!(coverage.refused * 2 < coverage.operations && coverage.faults > 50, "{coverage}");
    assert!(coverage.host_fills > 1_000, "{coverage}");
    assert!(coverage.guarded > 500 && coverage.failures > 50 && coverage.tagged > 2_000, "{coverage}");
    assert!(coverage.parts > 100 && coverage.graphs > 50 && coverage.launches > 25, "{coverage}");
    for (rung, count) in coverage.rungs_by_name() {
        assert!(count > 0, "no allocation came to this: {rung}");
    }
}

/// A line of `regressions` has a subject, a seed and the former error.
#[test]
fn seeds_that_once_failed_pass() {
    repeat::<Pools>(include_str!("../regressions/pool.txt"));
}

#[test]
fn seeds_of_arrays_that_once_failed_pass() {
    repeat::<Arrays>(include_str!("../regressions/array.txt"));
}

fn repeat<M: Model>(regressions: &str) {
    for line in regressions.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let subject: Subject = words.next().unwrap().parse().unwrap();
        let seed = words.next().unwrap().parse().unwrap();
        let mut search = Search::<M>::seeds(seed, 1);
        search.subjects.retain(|built| *built == subject);
        search.run(|_| ControlFlow::Continue(())).unwrap_or_else(|found| panic!("{found}"));
    }
}

#[test]
fn a_seed_always_makes_the_same_program() {
    let twice = [(); 2].map(|()| {
        let mut coverage = Search::<Pools>::seeds(31, 5).run(|_| ControlFlow::Continue(())).unwrap();
        // Deferred work has a time budget, so its driver calls are attributed to different operations from run to run.
        (coverage.rungs, coverage.states) = Default::default();
        coverage
    });
    assert_eq!(twice[0], twice[1]);
}

#[test]
fn a_search_stops_on_request() {
    let coverage = Search::<Pools>::seeds(0, u64::MAX)
        .run(|coverage| if coverage.seeds < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        .unwrap();
    assert_eq!(coverage.seeds, 3);
}

/// On a driver whose streams do not wait for each other, the search finds a short program.
#[test]
fn a_lost_wait_is_found_and_shrunk() {
    extern "C" fn no_wait(_: CUstream, _: CUevent, _: core::ffi::c_uint) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    let mut search = Search::<Pools>::seeds(0, 200);
    search.sabotage = Some(|table| table.cuStreamWaitEvent = Some(no_wait));
    let found = search.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(found.program.len() <= 16, "{found}");
    assert!(found.to_string().ends_with(&found.command()), "{found}");
    (search.first_seed, search.seed_count) = (found.seed, Some(1));
    let again = search.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(without_addresses(&again.what), without_addresses(&found.what));
    assert_eq!(again.program.len(), found.program.len());
}

/// The base address of a simulated machine depends on the number of live machines, and so on concurrent tests.
fn without_addresses(text: &str) -> String {
    let words = text.split(' ').map(|word| if word.starts_with("0x") { "(an address)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// A lost free is a leak, even if all contents are right.
#[test]
fn a_lost_free_is_found() {
    extern "C" fn no_free_async(_: CUdeviceptr, _: CUstream) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    extern "C" fn no_free(_: CUdeviceptr) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    let mut search = Search::<Pools>::seeds(0, 20);
    search.sabotage = Some(|table| {
        table.cuMemFreeAsync = Some(no_free_async);
        table.cuMemFree_v2 = Some(no_free);
    });
    let found = search.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(found.program.len() <= 5, "{found}");
}

/// Arrays of two devices on three streams each, and of threads, have the elements that `ndarray` computes.
#[test]
fn random_programs_of_arrays_agree_with_ndarray() {
    let mut search = Search::<Arrays>::seeds(0, ARRAY_SEEDS);
    search.subjects.retain(|subject| subject.kind == MemoryKind::Device && !subject.plain_segments);
    let coverage = search.run(|_| ControlFlow::Continue(())).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(coverage.seed_count(), ARRAY_SEEDS);
    for (operation, count) in coverage.by_name() {
        assert!(count > 0, "no program had an effect of this: {operation}");
    }
    assert!(coverage.refused > 0 && coverage.compared > 100_000, "{coverage}");
}

/// On a driver whose streams do not wait for each other, the search finds a short program of arrays.
#[test]
fn a_lost_wait_of_arrays_is_found_and_shrunk() {
    extern "C" fn no_wait(_: CUstream, _: CUevent, _: core::ffi::c_uint) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    let mut search = Search::<Arrays>::seeds(0, 50);
    search.sabotage = Some(|table| table.cuStreamWaitEvent = Some(no_wait));
    let found = search.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(found.program.len() <= 12, "{found}");
    assert!(found.to_string().ends_with(&found.command()), "{found}");
}

const ARRAY_SEEDS: u64 = 200;
