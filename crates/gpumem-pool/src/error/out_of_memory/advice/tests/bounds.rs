//! Conditions of the advice and of its texts, each at its bound.

use super::*;
use crate::config::PoolId;
use crate::error::{PoolUsage, UnfinishedStream};
use gpumem_device::StreamId;

/// `caching` serves alignments up to 2 MiB without padding, the other backends up to 256 bytes.
#[test]
fn an_alignment_adds_padding_beyond_that_of_the_backend() {
    let wanted_bytes = |backend, alignment| {
        let report = by(backend, alone(8 * GIB, 0, 0, 1000));
        OutOfMemory { alignment, ..report }.wanted_bytes()
    };
    assert_eq!(wanted_bytes(BackendKind::Caching, 2 * MIB), 1000);
    assert_eq!(wanted_bytes(BackendKind::Caching, 4 * MIB), 1000 + 2 * MIB);
    for backend in [BackendKind::Native, BackendKind::None] {
        assert_eq!(wanted_bytes(backend, 256), 1000, "{backend:?}");
        assert_eq!(wanted_bytes(backend, 4 * MIB), 1000 + 4 * MIB - 256, "{backend:?}");
    }
}

#[test]
fn pending_memory_of_exactly_the_requested_size_is_worth_waiting_for() {
    let advice = |pending_bytes| pending(pending_bytes, alone(8 * GIB, 6 * GIB, GIB, GIB)).advice();
    assert_eq!(advice(GIB), WaitForWork);
    assert_ne!(advice(GIB - 1), WaitForWork);
}

/// The driver takes memory in units: with less than one unit to spare, its refusal is expected.
#[test]
fn a_refusal_of_free_memory_is_one_of_the_driver_from_a_unit_on() {
    for (backend, unit_bytes) in [(BackendKind::Caching, 2 * MIB), (BackendKind::Native, 32 * MIB)] {
        let advice = |device_free_bytes| {
            let report = by(backend, alone(8 * GIB, 7 * GIB, 0, 100 * MIB));
            OutOfMemory { device_free_bytes, ..report }.advice()
        };
        assert_eq!(advice(100 * MIB + unit_bytes), TryDifferently, "{backend:?}");
        assert_ne!(advice(100 * MIB + unit_bytes - 1), TryDifferently, "{backend:?}");
    }
}

#[test]
fn others_are_in_the_way_if_their_memory_is_exactly_what_is_missing() {
    let advice = |requested_bytes| beside(4 * GIB, 8 * GIB, 4 * GIB, 0, requested_bytes).advice();
    assert_eq!(advice(4 * GIB), FreeTheDevice);
    assert_eq!(advice(4 * GIB + 1), NeedLess);
}

/// Half of an odd number of bytes is rounded up.
#[test]
fn a_tag_with_half_of_the_memory_is_the_main_holder() {
    let has_main_holder = |in_use_bytes, held_bytes| {
        let holder = Holder { tag: "weights".into(), in_use_bytes: held_bytes, block_count: 1 };
        let report = OutOfMemory { in_use_bytes, holders: vec![holder], ..OutOfMemory::default() };
        report.main_holder().is_some()
    };
    assert!(has_main_holder(4, 2) && has_main_holder(3, 2));
    assert!(!has_main_holder(4, 1) && !has_main_holder(3, 1));
}

#[test]
fn host_memory_of_the_pool_takes_none_of_the_device() {
    let others_bytes = |kind| of(kind, beside(GIB, 8 * GIB, 2 * GIB, 0, 1)).others_bytes();
    assert_eq!((others_bytes(MemoryKind::Device), others_bytes(MemoryKind::Host)), (GIB, 3 * GIB));
}

#[test]
fn limits_are_raised_if_the_device_has_exactly_the_room() {
    let advice = |free_bytes| {
        let report = limited(4 * GIB, alone(24 * GIB, 4 * GIB, 0, 2 * GIB));
        OutOfMemory { device_free_bytes: free_bytes, ..report }.advice()
    };
    assert_eq!((advice(2 * GIB), advice(2 * GIB - 1)), (RaiseTheLimit, FreeTheDevice));
    // Idle memory of the pool counts, too.
    let pieces = limited(40 * GIB, alone(48 * GIB, 38 * GIB, 3 * GIB, 4 * GIB));
    let advice = |device_free_bytes| OutOfMemory { device_free_bytes, ..pieces.clone() }.advice();
    assert_eq!(advice(GIB), RaiseTheLimit);
    assert_ne!(advice(GIB - 1), RaiseTheLimit);
}

#[test]
fn idle_memory_explains_a_refusal_from_an_eighth_on() {
    let below_a_limit = |cached_bytes| {
        limited(8 * GIB, alone(24 * GIB, 8 * GIB - cached_bytes, cached_bytes, GIB / 2)).advice()
    };
    assert_eq!((below_a_limit(GIB), below_a_limit(GIB - 2 * MIB)), (Defragment, RaiseTheLimit));
    let beside_others =
        |cached_bytes| beside(4 * GIB, 12 * GIB, 8 * GIB - cached_bytes, cached_bytes, GIB / 2).advice();
    assert_eq!((beside_others(GIB), beside_others(GIB - 1)), (Defragment, FreeTheDevice));
    assert_eq!(
        beside(4 * GIB, 12 * GIB, 6 * GIB, 2 * GIB, 2 * GIB).advice(),
        Defragment,
        "all of the pieces"
    );
}

/// Free pieces of the pool and of the device count together.
#[test]
fn pieces_that_suffice_together_are_fragmentation() {
    let advice = |requested_bytes| alone(10 * GIB, 6 * GIB, 2 * GIB, requested_bytes).advice();
    let all_bytes = 4 * GIB - 600 * MIB;
    assert_eq!((advice(all_bytes), advice(all_bytes + 1)), (Defragment, NeedLess));
}

#[test]
fn the_free_memory_of_the_device_does_not_matter_to_the_host() {
    let report = of(MemoryKind::Host, alone(24 * GIB, 0, GIB - 1, GIB));
    assert_eq!(report.advice(), NeedLess);
    let with_host = OutOfMemory { host_free_bytes: Some(3 * GIB), ..report };
    let text = with_host.to_string();
    assert!(text.contains("(3.000 GiB of its memory is free)"), "{text}");
    let is_host = |line: &str| line.starts_with("  host free ") && line.ends_with(" 3.000 GiB");
    assert!(text.lines().any(is_host), "{text}");
}

#[test]
fn memory_that_waits_for_work_is_not_in_pieces() {
    let advice = |pending_bytes| pending(pending_bytes, alone(10 * GIB, 6 * GIB, 3 * GIB, 3 * GIB)).advice();
    assert_eq!((advice(0), advice(2 * GIB)), (Defragment, NeedLess));
    // Below a limit: what is available without the pending memory is exactly enough.
    let below = |pending_bytes| {
        pending(pending_bytes, limited(8 * GIB, alone(24 * GIB, 4 * GIB, 4 * GIB, 2 * GIB))).advice()
    };
    assert_eq!((below(2 * GIB - 1), below(2 * GIB)), (Defragment, WaitForWork));
    let little = |pending_bytes| {
        pending(pending_bytes, limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB))).advice()
    };
    assert_eq!((little(GIB), little(GIB + 1)), (Defragment, WaitForWork));
}

#[test]
fn graphs_are_dropped_if_the_request_then_fits_exactly() {
    let advice = |graph_bytes, others_bytes, requested_bytes| {
        let report = shared(others_bytes, limited(8 * GIB, alone(24 * GIB, 4 * GIB, 0, requested_bytes)));
        OutOfMemory { graph_bytes, ..report }.advice()
    };
    assert_eq!(advice(3 * GIB, 4 * GIB, 3 * GIB), DropGraphs);
    assert_eq!(advice(3 * GIB, 4 * GIB, 3 * GIB + 1), RaiseTheLimit);
    assert_eq!(advice(2 * GIB, 4 * GIB, GIB), RaiseTheLimit, "not most of the memory");
}

#[test]
fn a_leak_explains_a_request_that_fits_into_an_empty_pool() {
    let advice =
        |requested_bytes| leaking(limited(4 * GIB, alone(24 * GIB, 4 * GIB, 0, requested_bytes))).advice();
    assert_eq!((advice(4 * GIB), advice(4 * GIB + 1)), (FindTheLeak, RaiseTheLimit));
}

#[test]
fn a_refusal_on_purpose_is_none_of_the_device() {
    let report = OutOfMemory { refused_by: RefusedBy::OnPurpose, ..alone(24 * GIB, 23 * GIB, 0, 2 * GIB) };
    assert_eq!(report.advice(), TryDifferently);
    assert!(report.advice_text().starts_with("the adaptor `failures` injected"), "{report}");
}

/// A twentieth of large devices, a gigabyte, a quarter of small ones.
#[test]
fn contexts_and_libraries_take_a_part_of_each_device() {
    let context_bytes = |total_bytes| alone(total_bytes, 0, 0, 1).context_bytes();
    assert_eq!([2 * GIB, 16 * GIB, 80 * GIB].map(context_bytes), [GIB / 2, GIB, 4 * GIB]);
}

/// Even the smallest memory of another pool is the cause if exactly that is missing.
#[test]
fn another_pool_is_in_the_way_however_small_it_is() {
    let advice = |other_pools_bytes| {
        let report = beside(600 * MIB, 8 * GIB, 8 * GIB - 600 * MIB, 0, 1);
        OutOfMemory { other_pools_bytes, ..report }.advice()
    };
    assert_eq!((advice(1), advice(0)), (FreeTheDevice, NeedLess));
}

#[test]
fn others_are_told_from_the_pools_of_the_program() {
    let text = |others_bytes, other_pools_bytes| {
        let report = beside(others_bytes, 16 * GIB, 16 * GIB - others_bytes, 0, GIB / 4);
        OutOfMemory { other_pools_bytes, ..report }.advice_text()
    };
    let is_foreign = |text: String| text.contains("nvidia-smi");
    assert!(is_foreign(text(4 * GIB, 2 * GIB)) && !is_foreign(text(4 * GIB, 2 * GIB + 1)));
    // Exactly what a context and libraries take.
    assert!(is_foreign(text(GIB + GIB / 2, GIB / 2)) && !is_foreign(text(GIB + GIB / 2 - 1, GIB / 2)));
}

#[test]
fn memory_of_this_program_outside_of_its_pools_is_named_from_half_on() {
    let is_own = |own_bytes| {
        let report = beside(8 * GIB, 16 * GIB, 8 * GIB, 0, GIB);
        let report = OutOfMemory { own_outside_bytes: Some(own_bytes), ..report };
        report.advice_text().starts_with("this program holds")
    };
    assert!(is_own(4 * GIB + 1) && !is_own(4 * GIB) && !is_own(3 * GIB));
}

fn usage(name: &str, reserved_bytes: u64, in_use_bytes: u64) -> PoolUsage {
    PoolUsage {
        id: PoolId::next(),
        name: name.into(),
        parent: None,
        backend: BackendKind::Caching,
        kind: MemoryKind::Device,
        in_use_bytes,
        reserved_bytes,
        asleep_bytes: 0,
        counted_bytes: reserved_bytes,
        block_count: 1,
        hard_limit_bytes: None,
    }
}

/// If the idle memory of the largest other pool is exactly what the request lacks, one pool would serve both.
#[test]
fn one_pool_is_proposed_if_the_idle_memory_of_another_suffices() {
    let advice = |requested_bytes, in_use_bytes| {
        let report = OutOfMemory {
            requested_bytes,
            other_pools_bytes: 5 * GIB,
            other_pools: vec![usage("large", 4 * GIB, in_use_bytes), usage("small", GIB, GIB)],
            device_total_bytes: 8 * GIB,
            ..OutOfMemory::default()
        };
        report.advice_text()
    };
    assert!(advice(3 * GIB, GIB).ends_with(", or use one pool for both"), "{}", advice(3 * GIB, GIB));
    assert!(!advice(3 * GIB + 1, GIB).contains("one pool for both"), "{}", advice(3 * GIB + 1, GIB));
    assert!(advice(GIB, 2 * GIB).contains("pool large uses 2.000 GiB of its 4.000 GiB"), "half is idle");
    assert!(
        advice(GIB, 2 * GIB + 1).contains("free at least 1.000 GiB there, or request less"),
        "less is idle"
    );
}

#[test]
fn the_largest_pools_are_listed_and_the_others_are_summed_up() {
    let pools: Vec<_> =
        (0..8).map(|index| usage(&format!("number {index}"), (8 - index) * GIB, GIB)).collect();
    let table = |limit_sharers: &[PoolUsage], limit_others_bytes| {
        let report = OutOfMemory {
            limit_others_bytes,
            limit_sharers: limit_sharers.to_vec(),
            other_pools_bytes: 36 * GIB,
            other_pools: pools.clone(),
            ..limited(80 * GIB, beside(40 * GIB, 160 * GIB, 40 * GIB, 0, 50 * GIB))
        };
        report.to_string()
    };
    let has_line = |text: &str, name: &str, end: &str| {
        text.lines().any(|line| line.trim_start().starts_with(name) && line.ends_with(end))
    };
    let text = table(&[], 0);
    assert!(has_line(&text, "pool number 0 ", " 8.000 GiB  1.000 GiB in use in 1 block"), "{text}");
    assert!(has_line(&text, "4 more ", " 10.000 GiB"), "{text}");
    // Pools that share the limit are listed there, and not again.
    let text = table(&pools[..1], 8 * GIB);
    assert_eq!(
        text.matches("pool number 0 ").count(),
        1 + usize::from(text.contains("(pool number 0)")),
        "{text}"
    );
    assert_eq!(text.matches("pool number 1 ").count(), 1, "{text}");
}

/// Every amount that is not zero has a line.
#[test]
fn a_byte_has_its_line() {
    let report = OutOfMemory {
        pending_bytes: 1,
        graph_bytes: 1,
        limit_others_bytes: 1,
        other_pools_bytes: 1,
        own_outside_bytes: Some(1),
        largest_free_bytes: Some(1),
        ..alone(8 * GIB, 0, 1, 1)
    };
    let text = report.to_string();
    for line in [
        "  graphs ",
        "  pending ",
        "sharers ",
        "  pools ",
        "  this program ",
        "free, kept for the next requests; largest free block 1 byte",
    ] {
        assert!(
            text.contains(&format!("\n  {line}")) || text.contains(&format!("  {line}")),
            "{line}: {text}"
        );
    }
    let none = by(BackendKind::None, OutOfMemory { rounding_bytes: 1, ..alone(8 * GIB, 0, 1, 1) });
    assert!(none.to_string().contains("\n  rounding "), "{none}");
    let empty = alone(8 * GIB, GIB, 0, GIB);
    let no_block = |largest_free_bytes, cached_bytes| {
        let report = OutOfMemory { largest_free_bytes, ..empty.clone() };
        OutOfMemory { reserved_bytes: report.in_use_bytes + cached_bytes, ..report }.to_string()
    };
    assert!(!no_block(Some(GIB), 0).contains("largest free block"));
    assert!(!no_block(Some(0), GIB).contains("largest free block"));
    assert!(no_block(Some(1), GIB).contains("largest free block"));
}

#[test]
fn a_fragment_is_smaller_than_the_request() {
    let names_it = |largest_bytes| {
        let report = limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB));
        let report = OutOfMemory { largest_free_bytes: Some(largest_bytes), ..report };
        report.advice_text().contains("the largest free block has")
    };
    assert!(names_it(1) && names_it(2 * GIB - 1) && !names_it(0) && !names_it(2 * GIB));
}

#[test]
fn pieces_below_a_limit_have_the_limit_among_their_remedies_if_the_device_has_room() {
    let text = |device_free_bytes, kind| {
        let report = limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB));
        let report = of(kind, by(BackendKind::Native, OutOfMemory { device_free_bytes, ..report }));
        assert_eq!(report.advice(), Defragment);
        report.advice_text()
    };
    let device = MemoryKind::Device;
    assert!(
        text(2 * GIB, device).contains("raise the limit") && !text(2 * GIB - 1, device).contains("raise")
    );
    assert!(text(0, MemoryKind::Host).contains("raise the limit"));
    assert!(
        text(0, device).contains("(PoolBuilder::backend or GPUMEM_POOL)")
            && !text(0, MemoryKind::Host).contains("GPUMEM_POOL")
    );
}

#[test]
fn refusals_name_the_kind_of_limit_and_whose_it_is() {
    let parent = |report| {
        let report = OutOfMemory { limit_pool: Some("service".into()), ..limited(4 * GIB, report) };
        OutOfMemory { facts: PoolFacts { is_parent_limit: true, ..report.facts }, ..report }
    };
    let text = parent(alone(24 * GIB, 4 * GIB, 0, GIB)).advice_text();
    assert!(text.contains("would exceed pool service's limit"), "{text}");
    let text = parent(beside(18 * GIB, 24 * GIB, 4 * GIB, 0, 3 * GIB)).advice_text();
    assert!(
        text.contains("would exceed the limit as well: raise pool service's limit to 7.000 GiB or more"),
        "{text}"
    );
    // Others hold memory too, so the limit is mentioned last.
    let crowded = |refused_by| {
        let report = limited(4 * GIB, beside(18 * GIB, 24 * GIB, 4 * GIB, 0, 3 * GIB));
        OutOfMemory {
            refused_by,
            limit_others_bytes: if refused_by == RefusedBy::Budget { 4 * GIB } else { 0 },
            ..report
        }
        .advice_text()
    };
    for (refused_by, limit) in [
        (RefusedBy::HardLimit, "the limit"),
        (RefusedBy::Quota, "the quota"),
        (RefusedBy::Budget, "the budget"),
    ] {
        let text = crowded(refused_by);
        assert!(text.contains(&format!("would exceed {limit} as well: raise {limit} to")), "{text}");
    }
    let exactly = limited(16 * GIB, alone(24 * GIB, 15 * GIB, 64 * MIB, GIB));
    assert!(
        exactly.advice_text().starts_with("free memory under the pool's limit is fragmented"),
        "{exactly}"
    );
}

#[test]
fn a_small_part_of_open_captures_is_not_named_for_all_graphs() {
    let text = |capture_bytes| {
        let report =
            OutOfMemory { graph_bytes: 6 * GIB, capture_bytes, ..alone(8 * GIB, 7 * GIB, 0, 2 * GIB) };
        assert_eq!(report.advice(), DropGraphs);
        report.advice_text()
    };
    assert!(text(3 * GIB + 1).contains("the capture that is still open"));
    assert!(text(3 * GIB).contains("graphs that are no longer launched"));
    assert!(text(2 * GIB + 1).contains("graphs that are no longer launched"));
}

#[test]
fn first_are_the_longest_wait_and_the_largest_process_and_tag() {
    let stream = |number| UnfinishedStream { stream: StreamId::from_u64(number), queued_ago: None };
    let report = pending(2 * GIB, alone(8 * GIB, 5 * GIB, 2 * GIB, GIB));
    let report = OutOfMemory { unfinished: vec![stream(3), stream(4)], ..report };
    assert!(report.advice_text().contains(&format!("first on {}:", StreamId::from_u64(3))), "{report}");

    let process = |name: &str, in_use_bytes| {
        let mut process = ProcessUsage::default();
        (process.name, process.in_use_bytes) = (Some(name.into()), Some(in_use_bytes));
        process
    };
    let processes = vec![process("large", 9 * GIB), process("small", GIB)];
    let report = OutOfMemory { processes, ..beside(11 * GIB, 24 * GIB, 13 * GIB, 0, 2 * GIB) };
    assert!(report.advice_text().contains("the largest is large"), "{report}");

    let holder = |tag: &str, in_use_bytes| Holder { tag: tag.into(), in_use_bytes, block_count: 1 };
    let holders = vec![holder("weights", 5 * GIB), holder("cache", 4 * GIB)];
    let report = OutOfMemory { holders, ..alone(10 * GIB, 9 * GIB, 0, 2 * GIB) };
    assert!(report.advice_text().contains("(tag `weights` holds 5.000 GiB)"), "{report}");
}

#[test]
fn the_need_is_compared_with_the_whole_device() {
    let all = |in_use_bytes| pending(GIB, alone(8 * GIB, in_use_bytes, GIB, 2 * GIB)).advice_text();
    let own_bytes = 8 * GIB - 600 * MIB;
    assert!(all(own_bytes - 2 * GIB).contains("more than is available"));
    assert!(all(own_bytes - 2 * GIB + 2 * MIB).contains("that this device has for this pool"));
}

#[test]
fn rounding_by_the_driver_is_named_if_it_takes_as_much_as_the_request() {
    let text = |rounding_bytes| {
        let report = by(BackendKind::None, alone(8 * GIB, 7 * GIB, 0, GIB));
        OutOfMemory { rounding_bytes, ..report }.advice_text()
    };
    assert!(text(GIB).contains("rounds each block up") && !text(GIB - 1).contains("rounds each block up"));
}

#[test]
fn a_margin_that_the_request_alone_exceeds_is_not_met_by_freeing() {
    let text = |requested_bytes| {
        let report = margin(0, of(MemoryKind::Unified, alone(16 * GIB, 4 * GIB, 0, requested_bytes)));
        report.advice_text()
    };
    assert!(
        text(15 * GIB).contains("free memory, or let this pool")
            && !text(15 * GIB + 1).contains("free memory, or")
    );
}

#[test]
fn plain_segments_have_a_remedy_of_their_own() {
    let report = by(BackendKind::Caching, beside(7 * GIB, 16 * GIB, 5 * GIB, 0, 3 * GIB));
    assert_eq!(report.advice(), TryDifferently);
    assert!(report.advice_text().ends_with("or withholds it: request smaller blocks"), "{report}");
}
