//! Handles recycled by aliasing, as in a caching allocator: a handle is mapped at a new address, and its old mapping is unmapped
//! once all uses are complete.

#![cfg(target_os = "linux")]

use super::races::{NOTHING, found};
use super::virtual_memory::*;
use super::*;
use gpumem_sim::{AllocationKind, Effect, Finding, Rule};

const ALIAS_RACE: &str = "unordered use through an alias";
const UNMAPPED_IN_USE: &str = "unmapping not ordered after a use";
const USED_AFTER_UNMAP: &str = "use after unmap";

#[test]
fn a_handle_moves_to_another_stream_behind_an_event() {
    let program = |gpu: &Machine, is_ordered| {
        let (old, new) = aliased(gpu);
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, old, 1, PIECE);
        if is_ordered {
            gpu.order(a, b);
        }
        gpu.fill(b, new, 2, PIECE);
    };
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, false)), [ALIAS_RACE]);
}

/// All uses of the old mapping are complete; those of the new mapping are not.
#[test]
fn a_stale_mapping_goes_while_the_handle_is_in_use_elsewhere() {
    assert_eq!(
        found(|gpu| {
            let (old, new) = aliased(gpu);
            let (a, b, event) = (gpu.stream(), gpu.stream(), gpu.event());
            gpu.fill(a, old, 1, PIECE);
            // SAFETY: handles are checked by the driver under test.
            unsafe {
                gpu.cuEventRecord(event, a).unwrap();
                gpu.cuStreamWaitEvent(b, event, 0).unwrap();
                gpu.fill(b, new, 2, PIECE);
                while gpu.cuEventQuery(event).is_err() {}
            }
            unmap(gpu, old, PIECE);
            gpu.fill(b, new, 3, PIECE);
        }),
        NOTHING
    );
}

/// The use through the old mapping may or may not have run, and the new mapping has been written since: the host has no proof
/// that the old mapping can be removed, whatever the seed.
#[test]
fn a_stale_mapping_that_goes_too_early_is_found_under_every_seed() {
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (old, new) = aliased(&gpu);
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, old, 1, PIECE);
        gpu.order(a, b);
        gpu.fill(b, new, 2, PIECE);
        unmap(&gpu, old, PIECE);
        let _ = gpu.try_sync(b);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(Finding::name).collect();
        assert!(names == [UNMAPPED_IN_USE] || names == [USED_AFTER_UNMAP], "seed {seed}: {names:?}");
    }
}

#[test]
fn a_mapping_whose_readers_are_not_all_over_may_not_go() {
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (base, _) = mapped(&gpu, 1);
        let (a, b, target) = (gpu.stream(), gpu.stream(), gpu.alloc(16));
        gpu.fill(a, base, 1, 16);
        gpu.order(a, b);
        gpu.copy(a, target, base, 8);
        gpu.copy(b, target + 8, base + 8, 8);
        gpu.sync(a);
        unmap(&gpu, base, PIECE);
        let _ = gpu.try_sync(b);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(Finding::name).collect();
        assert!(names == [UNMAPPED_IN_USE] || names == [USED_AFTER_UNMAP], "seed {seed}: {names:?}");
    }
}

/// Work queued for the old mapping is not attributed to the new mapping.
#[test]
fn an_address_that_is_mapped_again_under_queued_work_is_found() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (base, _) = mapped(&gpu, 1);
        let stream = gpu.stream();
        gpu.fill(stream, base, 1, 16);
        unmap(&gpu, base, PIECE);
        map(&gpu, base, create(&gpu, PIECE).unwrap()).unwrap();
        grant(&gpu, base, PIECE, 0).unwrap();
        let _ = gpu.try_sync(stream);
        let names: Vec<_> = gpu.sim().take_findings().iter().map(Finding::name).collect();
        // At the time of its execution: complete, nothing mapped, mapped without access, mapped.
        let expected = [
            UNMAPPED_IN_USE,
            USED_AFTER_UNMAP,
            "use of another device's memory",
            "use not ordered after the mapping",
        ];
        assert!(names.len() == 1 && expected.contains(&names[0]), "seed {seed}: {names:?}");
        seen.extend(names);
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_value_that_is_written_keeps_its_mapping() {
    for seed in 0..100 {
        let gpu = seeded(seed);
        let (base, _) = mapped(&gpu, 1);
        let stream = gpu.stream();
        // SAFETY: addresses and handles are checked by the driver under test.
        unsafe { gpu.cuStreamWriteValue32_v2(stream, base + 8, 7, 0).unwrap() };
        unmap(&gpu, base, PIECE);
        let _ = gpu.try_sync(stream);
        assert_eq!(gpu.sim().take_findings().len(), 1, "seed {seed}");
    }
}

/// A block is freed on one stream and reused by another after an event, at new addresses made of two handles.
#[test]
fn blocks_stitched_from_recycled_handles_are_clean_and_hold_their_bytes() {
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (old, handles) = mapped(&gpu, 4);
        let new = reserve(&gpu, 2 * PIECE);
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, old, 1, 4 * PIECE);
        map(&gpu, new, handles[3]).unwrap();
        map(&gpu, new + PIECE as u64, handles[0]).unwrap();
        grant(&gpu, new, 2 * PIECE, 0).unwrap();
        gpu.order(a, b);
        gpu.fill(b, new, 2, 2 * PIECE);
        // The handles that did not move still belong to the old block.
        gpu.fill(a, old + PIECE as u64, 3, 2 * PIECE);
        gpu.sync(a);
        unmap(&gpu, old + 3 * PIECE as u64, PIECE);
        gpu.sync(b);
        unmap(&gpu, old, PIECE);
        assert_eq!(gpu.download(b, new + PIECE as u64 - 1, 2), [2, 2]);
        assert_eq!(gpu.download(b, old + 3 * PIECE as u64 - 1, 1), [3]);
        assert_eq!(gpu.sim().report().findings, [], "seed {seed}");
    }
}

#[test]
fn memory_mapped_twice_counts_once_until_the_last_unmap() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let before = free_bytes(&gpu);
    let (old, new) = aliased(&gpu);
    assert_eq!(free_bytes(&gpu), before - PIECE);
    let report = gpu.sim().report();
    assert_eq!((report.handle_count, report.allocations.len()), (1, 2));
    let mut handle = 0;
    // SAFETY: addresses and handles are checked by the driver under test.
    unsafe {
        let address = std::ptr::without_provenance_mut(new as usize);
        gpu.cuMemRetainAllocationHandle(&mut handle, address).unwrap();
        gpu.cuMemRelease(handle).unwrap();
        gpu.cuMemRelease(handle).unwrap();
        assert_eq!(code(gpu.cuMemRelease(handle)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    unmap(&gpu, old, PIECE);
    assert_eq!(free_bytes(&gpu), before - PIECE);
    unmap(&gpu, new, PIECE);
    assert_eq!(free_bytes(&gpu), before);
}

#[test]
fn a_handle_that_is_mapped_nowhere_is_a_leak_until_it_is_released() {
    let gpu = seeded(0);
    let leaks = || gpu.sim().report().silent_findings();
    let (base, handles) = mapped(&gpu, 1);
    let [Finding::Leak { allocation: mapping, .. }] = &leaks()[..] else { panic!("{:?}", leaks()) };
    assert_eq!((mapping.address, mapping.kind), (base, AllocationKind::Mapped));
    unmap(&gpu, base, PIECE);
    let [Finding::Leak { allocation: handle, .. }] = &leaks()[..] else { panic!("{:?}", leaks()) };
    assert_eq!((handle.size_bytes, handle.kind), (PIECE as u64, AllocationKind::Handle));
    assert!(0 < handle.call && handle.call < mapping.call, "{handle} {mapping}");
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuMemRelease(handles[0]).unwrap() };
    assert_eq!(leaks(), []);
}

#[test]
fn a_refused_range_changes_nothing() {
    let gpu = seeded(0);
    let (base, handles) = mapped(&gpu, 4);
    let at = |index: usize| base + (index * PIECE) as u64;
    let try_unmap = |address: u64, size_bytes| {
        // SAFETY: addresses are checked by the driver under test.
        code(unsafe { gpu.cuMemUnmap(address, size_bytes) })
    };
    let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    unmap(&gpu, at(2), PIECE);
    for (address, size_bytes) in [
        (base, 4 * PIECE),
        (base, 3 * PIECE),
        (at(1), 2 * PIECE),
        (at(2), PIECE),
        (base, PIECE / 2),
        (base + 1, PIECE),
        (base + (PIECE / 2) as u64, PIECE),
        (base, 0),
        (base, usize::MAX),
        (base, usize::MAX - PIECE + 1),
        (u64::MAX - PIECE as u64 + 1, PIECE),
        (0, PIECE),
    ] {
        assert_eq!(try_unmap(address, size_bytes), CUresult::CUDA_ERROR_INVALID_VALUE, "{address:#x}");
        let answer = code(set_access(&gpu, address, size_bytes, 0, none));
        assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_VALUE, "{address:#x} {size_bytes:#x}");
    }
    let stream = gpu.stream();
    gpu.fill(stream, base, 1, 2 * PIECE);
    gpu.fill(stream, at(3), 1, PIECE);
    assert_eq!(code(map(&gpu, at(1), handles[2])), CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: addresses are checked by the driver under test.
    unsafe {
        assert_eq!(code(gpu.cuMemAddressFree(base, 4 * PIECE)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code(gpu.cuMemAddressFree(base, PIECE)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    gpu.sync(stream);
    map(&gpu, at(2), handles[2]).unwrap();
    assert_eq!(gpu.sim().report().allocations.len(), 4);
}

/// Each call in the life of two aliased handles fails once, at each of its occurrences. The calls that undo the earlier ones
/// succeed, and nothing is left.
#[test]
fn a_call_that_fails_by_rule_leaves_everything_as_it_was() {
    let calls = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
    ];
    let mut failure_count = 0;
    for call in calls {
        for nth in 1..=4 {
            let rule = Rule::new(call, Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).nth(nth);
            let gpu = machine(SimConfig::small().rule(rule));
            let before = free_bytes(&gpu);
            failure_count += usize::from(live(&gpu).is_err());
            assert_eq!(free_bytes(&gpu), before, "{call}#{nth}");
            let report = gpu.sim().report();
            assert_eq!((report.handle_count, report.reservation_count), (0, 0), "{call}#{nth}");
            assert_eq!(report.silent_findings(), [], "{call}#{nth}");
        }
    }
    // Two occurrences of each call, and no more.
    assert_eq!(failure_count, 2 * calls.len());
}

/// Two addresses and two handles, each mapped, used, and released, whichever call fails.
fn live(gpu: &Machine) -> Result<(), DriverError> {
    let (mut undo, mut first_error) = (Vec::<Undo<'_>>::new(), Ok(()));
    for _ in 0..2 {
        first_error = first_error.and(step(gpu, &mut undo));
    }
    while let Some(undo) = undo.pop() {
        // A call that fails by an injected rule succeeds at the second attempt.
        first_error = first_error.and(undo().or_else(|error| undo().and(Err(error))));
    }
    first_error
}

type Undo<'a> = Box<dyn Fn() -> Result<(), DriverError> + 'a>;

fn step<'a>(gpu: &'a Machine, undo: &mut Vec<Undo<'a>>) -> Result<(), DriverError> {
    let (mut base, stream) = (0, gpu.stream());
    // SAFETY: a local outlives the call.
    unsafe { gpu.cuMemAddressReserve(&mut base, PIECE, 0, 0, 0)? };
    // SAFETY: addresses and handles are checked by the driver under test.
    undo.push(Box::new(move || unsafe { gpu.cuMemAddressFree(base, PIECE) }));
    let handle = create(gpu, PIECE)?;
    // SAFETY: addresses and handles are checked by the driver under test.
    undo.push(Box::new(move || unsafe { gpu.cuMemRelease(handle) }));
    map(gpu, base, handle)?;
    // SAFETY: addresses and handles are checked by the driver under test.
    undo.push(Box::new(move || unsafe { gpu.cuMemUnmap(base, PIECE) }));
    grant(gpu, base, PIECE, 0)?;
    gpu.fill(stream, base, 1, PIECE);
    gpu.sync(stream);
    Ok(())
}

/// The number of handles that fit on an H200: more than the mappings that this process can have.
#[test]
fn seventy_thousand_handles_are_mapped_twice_and_used() {
    const COUNT: usize = 70_000;
    let gpu = machine(SimConfig::h200());
    let (base, alias, stream) = (reserve(&gpu, COUNT * PIECE), reserve(&gpu, COUNT * PIECE), gpu.stream());
    let at = |base: u64, index: usize| base + (index * PIECE) as u64;
    // A permutation that separates all neighbours.
    let moved = |index: usize| index * 7919 % COUNT;
    let handles: Vec<u64> = (0..COUNT).map(|_| create(&gpu, PIECE).unwrap()).collect();
    for (index, &handle) in handles.iter().enumerate() {
        map(&gpu, at(base, index), handle).unwrap();
        map(&gpu, at(alias, moved(index)), handle).unwrap();
    }
    grant(&gpu, base, COUNT * PIECE, 0).unwrap();
    grant(&gpu, alias, COUNT * PIECE, 0).unwrap();
    let used = (0..COUNT).step_by(7);
    used.clone().for_each(|index| gpu.fill(stream, at(base, index), index as u8, 1));
    gpu.sync(stream);
    for index in used.clone() {
        assert_eq!(gpu.download(stream, at(alias, moved(index)), 1), [index as u8]);
    }
    (0..COUNT).for_each(|index| unmap(&gpu, at(base, index * 31 % COUNT), PIECE));
    unmap(&gpu, alias, COUNT * PIECE);
    // SAFETY: handles are checked by the driver under test.
    handles.into_iter().for_each(|handle| unsafe { gpu.cuMemRelease(handle).unwrap() });
    assert_eq!(free_bytes(&gpu), 143_771 << 20);
}
