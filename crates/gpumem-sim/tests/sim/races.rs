//! The race detector: races are found under every schedule, and ordered accesses are never reported.

use super::*;
use gpumem_sim::{AccessKind, Finding};

const SEEDS: u64 = 300;

/// The names of the findings, which must not depend on the seed. The seed determines which of several accesses of one stream is
/// reported, so each name counts once.
#[track_caller]
pub(super) fn found(program: impl Fn(&Machine)) -> Vec<&'static str> {
    let under = |seed| {
        let gpu = seeded(seed);
        program(&gpu);
        // SAFETY: a context is current.
        let _ = unsafe { gpu.cuCtxSynchronize() };
        let findings = gpu.sim().take_findings();
        let mut names: Vec<_> = findings.iter().map(Finding::name).collect();
        names.dedup();
        names
    };
    let first = under(0);
    (1..SEEDS).for_each(|seed| assert_eq!(under(seed), first, "seed {seed}"));
    first
}

pub(super) const RACE: &str = "race between streams";
pub(super) const NOTHING: [&str; 0] = [];

#[test]
fn a_forgotten_wait_is_found_under_every_seed() {
    let program = |gpu: &Machine, waits| {
        let (writer, reader) = (gpu.stream(), gpu.stream());
        let (source, target) = (gpu.alloc(8), gpu.alloc(4));
        gpu.fill(writer, source, 7, 8);
        if waits {
            gpu.order(writer, reader);
        }
        gpu.copy(reader, target, source + 4, 4);
    };
    assert_eq!(found(|gpu| program(gpu, false)), [RACE]);
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
}

#[test]
fn a_finding_names_both_accesses_and_the_allocation() {
    let gpu = seeded(3);
    let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(100));
    gpu.fill(a, memory, 1, 10);
    gpu.fill(a, memory, 1, 60);
    gpu.copy(b, memory + 80, memory + 50, 20);
    gpu.sync(a);
    gpu.sync(b);
    let findings = gpu.sim().report().findings;
    let [Finding::Race { first, second, address, size_bytes, allocation: Some(origin), .. }] = &findings[..]
    else {
        panic!("{findings:?}")
    };
    assert_eq!((*address, *size_bytes), (memory + 50, 10));
    let mut kinds = [
        (first.kind.clone(), first.stream, first.position),
        (second.kind.clone(), second.stream, second.position),
    ];
    kinds.sort_by_key(|(kind, ..)| *kind == AccessKind::CopyRead);
    assert_eq!(kinds, [(AccessKind::Memset, Some(a as u64), 2), (AccessKind::CopyRead, Some(b as u64), 1)]);
    assert!(first.call != second.call && origin.call < first.call.min(second.call));
    assert_eq!((origin.address, origin.size_bytes), (memory, 100));
    assert_eq!(origin.thread, std::thread::current().name().unwrap());
    let text = findings[0].to_string();
    assert!(
        text.contains("nothing orders them") && text.contains("memset") && text.contains("copy"),
        "{text}"
    );
}

#[test]
fn readers_and_neighbours_do_not_race() {
    assert_eq!(
        found(|gpu| {
            let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(64));
            let targets = [gpu.alloc(64), gpu.alloc(64)];
            gpu.fill(a, memory, 1, 64);
            gpu.sync(a);
            gpu.copy(a, targets[0], memory, 64);
            gpu.copy(b, targets[1], memory, 64);
            gpu.sync(a);
            gpu.sync(b);
            gpu.fill(a, memory, 1, 32);
            gpu.fill(b, memory + 32, 2, 32);
        }),
        NOTHING
    );
}

#[test]
fn an_event_orders_what_was_before_it_and_nothing_else() {
    let program = |gpu: &Machine, late| {
        let (a, b, memory, event) = (gpu.stream(), gpu.stream(), gpu.alloc(8), gpu.event());
        gpu.fill(a, memory, 1, 4);
        // SAFETY: handles are checked by the driver under test.
        unsafe { gpu.cuEventRecord(event, a).unwrap() };
        gpu.fill(a, memory + 4, 1, 4);
        // SAFETY: handles are checked by the driver under test.
        unsafe { gpu.cuStreamWaitEvent(b, event, 0).unwrap() };
        gpu.fill(b, if late { memory + 4 } else { memory }, 2, 4);
    };
    assert_eq!(found(|gpu| program(gpu, false)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, true)), [RACE]);
}

#[test]
fn what_the_other_stream_learned_after_the_event_is_not_handed_on() {
    assert_eq!(
        found(|gpu| {
            let (a, b, c, memory, event) =
                (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(4), gpu.event());
            gpu.fill(c, memory, 1, 4);
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuEventRecord(event, a).unwrap() };
            gpu.order(c, a);
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuStreamWaitEvent(b, event, 0).unwrap() };
            gpu.fill(b, memory, 2, 4);
        }),
        [RACE]
    );
}

#[test]
fn order_is_handed_on_from_stream_to_stream() {
    assert_eq!(
        found(|gpu| {
            let (a, b, c, memory) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(4));
            gpu.fill(a, memory, 1, 4);
            gpu.order(a, b);
            gpu.order(b, c);
            gpu.fill(c, memory, 2, 4);
        }),
        NOTHING
    );
}

#[test]
fn the_host_hands_on_what_it_synchronised_with() {
    type Wait = fn(&Machine, CUstream);
    let waits: [Wait; 5] = [
        |gpu, stream| gpu.sync(stream),
        // SAFETY: handles are checked by the driver under test.
        |gpu, stream| unsafe { while gpu.cuStreamQuery(stream).is_err() {} },
        // SAFETY: a context is current.
        |gpu, _| unsafe { gpu.cuCtxSynchronize().unwrap() },
        // SAFETY: handles are checked by the driver under test.
        |gpu, stream| unsafe {
            let event = gpu.event();
            gpu.cuEventRecord(event, stream).unwrap();
            gpu.cuEventSynchronize(event).unwrap();
        },
        // SAFETY: the block belongs to the test.
        |gpu, _| unsafe { gpu.cuMemFree_v2(gpu.alloc(1)).unwrap() },
    ];
    for wait in waits {
        assert_eq!(
            found(|gpu| {
                let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
                gpu.fill(a, memory, 1, 4);
                wait(gpu, a);
                gpu.fill(b, memory, 2, 4);
            }),
            NOTHING
        );
    }
    assert_eq!(
        found(|gpu| {
            let (a, b, c, memory) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(4));
            gpu.fill(a, memory, 1, 4);
            gpu.sync(c);
            gpu.fill(b, memory, 2, 4);
        }),
        [RACE]
    );
}

#[test]
fn the_legacy_stream_is_ordered_with_blocking_streams_even_when_they_are_done() {
    let program = |gpu: &Machine, stream: CUstream| {
        let memory = gpu.alloc(4);
        gpu.fill(stream, memory, 1, 4);
        gpu.fill(null_mut(), memory, 2, 4);
        gpu.fill(stream, memory, 3, 4);
    };
    assert_eq!(found(|gpu| program(gpu, gpu.blocking_stream())), NOTHING);
    assert_eq!(found(|gpu| program(gpu, gpu.stream())), [RACE]);
}

#[test]
fn a_destroyed_streams_work_still_has_to_be_waited_for() {
    let program = |gpu: &Machine, waits: bool| {
        let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
        gpu.fill(a, memory, 1, 4);
        // SAFETY: handles are checked by the driver; a context is current.
        unsafe {
            gpu.cuStreamDestroy_v2(a).unwrap();
            if waits {
                gpu.cuCtxSynchronize().unwrap();
            }
        }
        gpu.fill(b, memory, 2, 4);
        gpu.sync(b);
    };
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, false)), [RACE]);
}

#[test]
fn a_new_stream_is_not_taken_for_the_one_whose_place_it_has() {
    assert_eq!(
        found(|gpu| {
            let memory = gpu.alloc(4);
            for _ in 0..8 {
                let stream = gpu.stream();
                gpu.fill(stream, memory, 1, 4);
                gpu.sync(stream);
                // SAFETY: handles are checked by the driver under test.
                unsafe { gpu.cuStreamDestroy_v2(stream).unwrap() };
            }
        }),
        NOTHING
    );
}

#[test]
fn memory_that_the_pool_hands_on_has_no_past() {
    assert_eq!(
        found(|gpu| {
            let (a, b) = (gpu.stream(), gpu.stream());
            for stream in [a, a, b, a, b] {
                let memory = gpu.alloc_on(stream, 1 << 20);
                gpu.fill(stream, memory, 1, 1 << 20);
                gpu.free_on(stream, memory);
            }
        }),
        NOTHING
    );
}

#[test]
fn host_functions_order_the_host_and_their_stream() {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    assert_eq!(
        found(|gpu| {
            let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
            gpu.fill(a, memory, 1, 4);
            // SAFETY: the function does nothing.
            unsafe { gpu.cuLaunchHostFunc(a, Some(nothing), null_mut()).unwrap() };
            gpu.sync(a);
            gpu.fill(b, memory, 2, 4);
        }),
        NOTHING
    );
}

#[test]
fn unwritten_memory_is_found_if_asked_for() {
    let gpu = machine(SimConfig::new().uninitialised(true));
    let (stream, memory, target) = (gpu.stream(), gpu.alloc(16), gpu.alloc(16));
    gpu.fill(stream, memory, 1, 8);
    gpu.copy(stream, target, memory, 8);
    gpu.sync(stream);
    assert!(gpu.sim().report().findings.is_empty());
    gpu.copy(stream, target, memory + 4, 8);
    let pool = gpu.alloc_on(stream, 4);
    gpu.copy(stream, target, pool, 4);
    gpu.sync(stream);
    let findings = gpu.sim().take_findings();
    let ranges = findings.iter().map(|finding| match finding {
        Finding::Uninitialised { address, size_bytes, .. } => (*address, *size_bytes),
        other => panic!("{other}"),
    });
    assert_eq!(ranges.collect::<Vec<_>>(), [(memory + 8, 4), (pool, 4)]);
}

#[test]
fn nothing_is_looked_for_if_not_wanted() {
    let gpu = machine(SimConfig::new().races(false));
    let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
    gpu.fill(a, memory, 1, 4);
    gpu.fill(b, memory, 1, 4);
    gpu.sync(a);
    gpu.sync(b);
    assert!(gpu.sim().report().findings.is_empty());
}
