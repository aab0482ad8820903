//! Reports of many programs, each with the advice that is right for it, and no other.

use super::*;
use crate::options::BackendKind;
use crate::out_of_memory::{Growth, Maker, ProcessUsage};
use Advice::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A pool of `caching` that nothing else uses the device with but a context of 600 MiB: in use, cached, and requested, on a
/// device of so much.
fn alone(total_bytes: u64, in_use_bytes: u64, cached_bytes: u64, requested_bytes: u64) -> OutOfMemory {
    beside(600 * MIB, total_bytes, in_use_bytes, cached_bytes, requested_bytes)
}

/// The same with so much held by others.
fn beside(
    others_bytes: u64,
    total_bytes: u64,
    in_use_bytes: u64,
    cached_bytes: u64,
    requested_bytes: u64,
) -> OutOfMemory {
    OutOfMemory {
        requested_bytes,
        in_use_bytes,
        block_count: 100,
        reserved_bytes: in_use_bytes + cached_bytes,
        device_free_bytes: total_bytes.saturating_sub(others_bytes + in_use_bytes + cached_bytes),
        device_total_bytes: total_bytes,
        maker: Maker { backend: Some(BackendKind::Caching), can_map: true, ..Maker::default() },
        ..OutOfMemory::default()
    }
}

fn limited(limit_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { refused_by: RefusedBy::HardLimit, limit_bytes: Some(limit_bytes), ..report }
}

fn leaking(report: OutOfMemory) -> OutOfMemory {
    let to_bytes = report.in_use_bytes;
    let growth =
        Growth { from_bytes: to_bytes - to_bytes / 5, to_bytes, allocation_count: 400, kept_count: 10 };
    OutOfMemory { growth: Some(growth), ..report }
}

fn pending(pending_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { pending_bytes, ..report }
}

fn of(kind: MemoryKind, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { kind, ..report }
}

fn by(backend: BackendKind, report: OutOfMemory) -> OutOfMemory {
    let maker = Maker { backend: Some(backend), ..Maker::default() };
    OutOfMemory { maker, ..report }
}

fn private(report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { refused_by: RefusedBy::Quota, ..report }
}

fn shared(limit_others_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { limit_others_bytes, ..report }
}

fn margin(limit_others_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    let limit_bytes = report.device_total_bytes / 16 * 15;
    OutOfMemory { refused_by: RefusedBy::Margin, ..shared(limit_others_bytes, limited(limit_bytes, report)) }
}

/// What the program does, its report, the advice, and what that has to say, and what it must not.
type Case = (&'static str, OutOfMemory, Advice, &'static str, &'static str);

fn cases() -> Vec<Case> {
    use BackendKind::{Caching, Native, None as Plain};
    use MemoryKind::{Host, Unified};
    // As the device of the seeds' users: 10.76 GiB, of which they have 4.29 in use and 4.46 reserved.
    let seed = |others_bytes| OutOfMemory {
        device_free_bytes: 10 * MIB,
        ..beside(others_bytes, 11_018 * MIB, 4_393 * MIB, 174 * MIB, 20 * MIB)
    };
    vec![
        (
            "the seed's message: the rest of the device is somebody else's",
            seed(6 * GIB),
            FreeTheDevice,
            "nvidia-smi",
            "pieces",
        ),
        ("a batch that is too large", alone(24 * GIB, 18 * GIB, 0, 8 * GIB), NeedLess, "26.000 GiB", "limit"),
        (
            "a model that is too large, at once",
            alone(16 * GIB, 0, 0, 15_900 * MIB),
            NeedLess,
            "smaller",
            "limit",
        ),
        (
            "a model that is too large, layer by layer",
            alone(16 * GIB, 15 * GIB, 100 * MIB, 512 * MIB),
            NeedLess,
            "smaller",
            "nvidia",
        ),
        (
            "a small card: the context is no other",
            beside(600 * MIB, 8 * GIB, 7_500 * MIB, 0, 200 * MIB),
            NeedLess,
            "smaller",
            "nvidia",
        ),
        (
            "a notebook that was left open",
            beside(14 * GIB, 24 * GIB, 9 * GIB, 0, 2 * GIB),
            FreeTheDevice,
            "14.000 GiB",
            "limit",
        ),
        (
            "it would not help to end the others",
            beside(2 * GIB, 24 * GIB, 20 * GIB, 0, 12 * GIB),
            NeedLess,
            "32.000 GiB",
            "nvidia",
        ),
        (
            "another pool of the program",
            OutOfMemory { other_pools_bytes: 12 * GIB, ..beside(13 * GIB, 24 * GIB, 9 * GIB, 0, 3 * GIB) },
            FreeTheDevice,
            "other pools of this program hold 12.000 GiB",
            "nvidia",
        ),
        (
            "a limit of half the device",
            limited(12 * GIB, alone(24 * GIB, 11 * GIB, 0, 2 * GIB)),
            RaiseTheLimit,
            "raise it to 13.000 GiB",
            "pieces",
        ),
        (
            "a block beyond the limit",
            limited(GIB, alone(24 * GIB, 0, 0, 2 * GIB)),
            RaiseTheLimit,
            "raise it to 2.000 GiB",
            "pieces",
        ),
        (
            "a limit, and no room beyond it",
            limited(20 * GIB, alone(24 * GIB, 19 * GIB, 0, 8 * GIB)),
            NeedLess,
            "27.000 GiB",
            "raise",
        ),
        (
            "a limit, and others beyond it",
            limited(10 * GIB, beside(12 * GIB, 24 * GIB, 9 * GIB, 0, 4 * GIB)),
            FreeTheDevice,
            "raise it to 13.000 GiB",
            "pieces",
        ),
        (
            "pieces below a limit",
            limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB)),
            Defragment,
            "tight",
            "raise",
        ),
        (
            "pieces of a tight pool",
            OutOfMemory {
                maker: Maker { is_tight: true, ..alone(1, 0, 0, 0).maker },
                ..limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB))
            },
            Defragment,
            "Pool::private",
            "tight",
        ),
        (
            "pieces of plain segments",
            by(Caching, limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB))),
            Defragment,
            "max_split_size_mb",
            "tight",
        ),
        (
            "pieces of the driver's pool",
            by(Native, limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB))),
            Defragment,
            "GPUMEM_POOL=caching",
            "tight",
        ),
        (
            "pieces of the device",
            alone(16 * GIB, 9 * GIB, 5 * GIB, 3 * GIB),
            Defragment,
            "in pieces",
            "raise",
        ),
        (
            "the device in pieces, of plain allocations",
            by(Plain, alone(16 * GIB, 9 * GIB, 0, 3 * GIB)),
            Defragment,
            "GPUMEM_POOL=caching",
            "nvidia",
        ),
        (
            "pieces, and others who have little more",
            beside(3 * GIB, 16 * GIB, 9 * GIB, 4 * GIB, 3 * GIB),
            Defragment,
            "in pieces",
            "nvidia",
        ),
        (
            "a loss that is kept at each step",
            leaking(alone(16 * GIB, 15 * GIB, 0, 512 * MIB)),
            FindTheLeak,
            "scope",
            "smaller",
        ),
        (
            "the same below a limit",
            leaking(limited(8 * GIB, alone(24 * GIB, 8 * GIB, 0, 64 * MIB))),
            FindTheLeak,
            "scope",
            "raise",
        ),
        (
            "a little growth, and a request that never fitted",
            leaking(limited(8 * GIB, alone(24 * GIB, GIB, 0, 12 * GIB))),
            RaiseTheLimit,
            "13.000 GiB",
            "scope",
        ),
        (
            "growth, and a device that somebody else fills",
            leaking(beside(12 * GIB, 16 * GIB, 2 * GIB, 0, 6 * GIB)),
            FreeTheDevice,
            "12.000 GiB",
            "scope",
        ),
        (
            "freed in a capture",
            pending(3 * GIB, alone(16 * GIB, 12 * GIB, 3 * GIB, 2 * GIB)),
            WaitForWork,
            "capture",
            "pieces",
        ),
        (
            "freed in a capture, below a limit",
            pending(2 * GIB, limited(8 * GIB, alone(24 * GIB, 6 * GIB, 2 * GIB, 2 * GIB))),
            WaitForWork,
            "2.000 GiB are freed",
            "raise it",
        ),
        (
            "pieces, one of them pending",
            pending(GIB, limited(8 * GIB, alone(24 * GIB, 4 * GIB, 4 * GIB, 2 * GIB))),
            Defragment,
            "pieces",
            "raise",
        ),
        (
            "a quota",
            private(limited(GIB, alone(24 * GIB, 900 * MIB, 0, 200 * MIB))),
            RaiseTheLimit,
            "Pool::private",
            "GPUMEM_HARD_LIMIT",
        ),
        (
            "a limit that private pools have used up",
            shared(6 * GIB, limited(8 * GIB, alone(24 * GIB, GIB, 0, 2 * GIB))),
            RaiseTheLimit,
            "other pools hold 6.000 GiB",
            "pieces",
        ),
        (
            "unified memory as large as the device",
            margin(0, of(Unified, alone(16 * GIB, 0, 0, 16 * GIB))),
            Oversubscribe,
            "oversubscribe:true",
            "raise",
        ),
        (
            "device memory beside unified memory",
            margin(12 * GIB, alone(16 * GIB, 2 * GIB, 0, 2 * GIB)),
            Oversubscribe,
            "PoolBuilder::oversubscribe",
            "raise",
        ),
        (
            "a leak of unified memory",
            margin(0, leaking(of(Unified, alone(16 * GIB, 15 * GIB, 0, GIB)))),
            FindTheLeak,
            "scope",
            "oversubscribe",
        ),
        (
            "unified memory in pieces",
            margin(0, by(Caching, of(Unified, alone(16 * GIB, 8 * GIB, 7 * GIB, 4 * GIB)))),
            Defragment,
            "max_split_size_mb",
            "oversubscribe",
        ),
        (
            "unified memory with a limit, more than the device has free",
            limited(GIB, of(Unified, beside(15 * GIB, 16 * GIB, GIB, 0, GIB))),
            RaiseTheLimit,
            "raise it to 2.000 GiB",
            "device",
        ),
        (
            "pinned memory with a limit, and a device that is full",
            limited(GIB, of(Host, beside(16 * GIB, 16 * GIB, GIB, 0, GIB))),
            RaiseTheLimit,
            "raise it to 2.000 GiB",
            "device",
        ),
        (
            "more pinned memory than the host has",
            of(Host, beside(15 * GIB, 16 * GIB, 60 * GIB, 0, 8 * GIB)),
            NeedLess,
            "more than the host has to pin",
            "nvidia",
        ),
    ]
}

#[test]
fn each_program_gets_the_advice_that_is_right_for_it() {
    for (program, report, advice, says, never) in cases() {
        let text = report.advised();
        assert_eq!(report.advice(), advice, "{program}:\n{report}");
        assert!(text.contains(says), "{program}: {says:?} is missing: {text}");
        assert!(!text.contains(never), "{program}: {never:?} is wrong: {text}");
    }
}

/// What a limit's advice promises is enough, and none is given that could not be followed.
#[test]
fn advice_can_be_followed() {
    for (program, report, advice, ..) in cases() {
        match advice {
            RaiseTheLimit => assert!(report.needed_bytes() > report.limit_bytes.unwrap(), "{program}"),
            FreeTheDevice => assert!(report.others_bytes() >= GIB, "{program}"),
            Oversubscribe => assert_eq!(report.refused_by, RefusedBy::Margin, "{program}"),
            WaitForWork => assert!(report.pending_bytes >= report.requested_bytes, "{program}"),
            _ => {}
        }
    }
}

#[test]
fn a_process_that_is_known_is_named() {
    let named = |in_use_bytes| {
        let process = ProcessUsage { id: Some(4711), name: Some("python3".into()), in_use_bytes };
        OutOfMemory { processes: vec![process], ..beside(14 * GIB, 24 * GIB, 9 * GIB, 0, 2 * GIB) }
            .to_string()
    };
    let known = named(Some(13 * GIB));
    assert!(known.contains("    process       13.000 GiB  python3 (process 4711)\n"), "{known}");
    assert!(known.contains("first of all python3 (process 4711): end it"), "{known}");
    let unknown = named(None);
    assert!(unknown.contains("    process          unknown  python3 (process 4711)\n"), "{unknown}");
    assert!(unknown.contains("nvidia-smi"), "{unknown}");
}

#[test]
fn sums_beyond_a_word_are_no_trouble() {
    let huge = OutOfMemory {
        requested_bytes: u64::MAX,
        in_use_bytes: u64::MAX,
        reserved_bytes: u64::MAX,
        pending_bytes: u64::MAX,
        device_free_bytes: u64::MAX,
        limit_others_bytes: u64::MAX,
        ..OutOfMemory::default()
    };
    for limit_bytes in [None, Some(0), Some(u64::MAX)] {
        let _ = OutOfMemory { limit_bytes, ..huge.clone() }.to_string();
        let idle = OutOfMemory { device_total_bytes: u64::MAX, in_use_bytes: 0, ..huge.clone() };
        let _ = OutOfMemory { limit_bytes, ..idle }.to_string();
    }
}
