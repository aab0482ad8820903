//! Reports of many programs, each with its only correct advice.

mod bounds;
mod cases;

use super::*;
use crate::config::BackendKind;
use crate::error::{Growth, PoolFacts, ProcessUsage};
use Advice::*;
use cases::cases;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A `caching` pool alone on a device, with a context of 600 MiB.
fn alone(total_bytes: u64, in_use_bytes: u64, cached_bytes: u64, requested_bytes: u64) -> OutOfMemory {
    beside(600 * MIB, total_bytes, in_use_bytes, cached_bytes, requested_bytes)
}

/// A `caching` pool on a device whose other users hold `others_bytes`.
fn beside(
    others_bytes: u64,
    total_bytes: u64,
    in_use_bytes: u64,
    cached_bytes: u64,
    requested_bytes: u64,
) -> OutOfMemory {
    OutOfMemory {
        requested_bytes,
        pool: "training".into(),
        in_use_bytes,
        block_count: if in_use_bytes > 0 { 100 } else { 0 },
        reserved_bytes: in_use_bytes + cached_bytes,
        device_free_bytes: total_bytes.saturating_sub(others_bytes + in_use_bytes + cached_bytes),
        device_total_bytes: total_bytes,
        facts: PoolFacts { backend: Some(BackendKind::Caching), can_map: true, ..PoolFacts::default() },
        ..OutOfMemory::default()
    }
}

fn limited(limit_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    let facts = PoolFacts { limit_given_as: Some("hard_limit"), ..report.facts };
    OutOfMemory { refused_by: RefusedBy::HardLimit, limit_bytes: Some(limit_bytes), facts, ..report }
}

fn leaking(report: OutOfMemory) -> OutOfMemory {
    let to_bytes = report.in_use_bytes;
    let growth = Growth {
        from_bytes: to_bytes - to_bytes / 5,
        to_bytes,
        allocation_count: 400,
        kept_count: 10,
        tag: None,
        is_leak: true,
    };
    OutOfMemory { growth: Some(growth), ..report }
}

/// All memory in use has one tag.
fn held_by(tag: &str, report: OutOfMemory) -> OutOfMemory {
    let (in_use_bytes, block_count) = (report.in_use_bytes, report.block_count);
    OutOfMemory { holders: vec![Holder { tag: tag.into(), in_use_bytes, block_count }], ..report }
}

/// A program that keeps half of its blocks, or all.
fn growing(kept_count: u64, report: OutOfMemory) -> OutOfMemory {
    let leaking = leaking(report);
    let growth = leaking.growth.map(|growth| Growth { kept_count, is_leak: false, ..growth });
    OutOfMemory { growth, ..leaking }
}

fn pending(pending_bytes: u64, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { pending_bytes, ..report }
}

fn of(kind: MemoryKind, report: OutOfMemory) -> OutOfMemory {
    OutOfMemory { kind, ..report }
}

fn by(backend: BackendKind, report: OutOfMemory) -> OutOfMemory {
    let facts = PoolFacts { backend: Some(backend), ..PoolFacts::default() };
    OutOfMemory { facts, ..report }
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

#[test]
fn each_program_gets_the_advice_that_is_right_for_it() {
    let mut wrong = Vec::new();
    for (program, report, advice, says, never) in cases() {
        let text = report.advice_text();
        assert_eq!(report.advice(), advice, "{program}:\n{report}");
        if !text.contains(says) {
            wrong.push(format!("{program}: {says:?} is missing: {text}"));
        }
        if text.contains(never) {
            wrong.push(format!("{program}: {never:?} is wrong: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The limit that the advice proposes is sufficient, and every advice can be followed.
#[test]
fn advice_can_be_followed() {
    for (program, report, advice, ..) in cases() {
        match advice {
            RaiseTheLimit => assert!(report.raised_limit_bytes() > report.limit_bytes.unwrap(), "{program}"),
            FreeTheDevice => {
                assert!(report.others_bytes() >= GIB || report.other_pools_bytes > 0, "{program}");
            }
            TryDifferently => assert!(report.device_free_bytes >= report.requested_bytes, "{program}"),
            Oversubscribe => assert_eq!(report.refused_by, RefusedBy::Margin, "{program}"),
            DropGraphs => assert!(report.graph_bytes > report.in_use_bytes / 2, "{program}"),
            WaitForWork => assert!(report.pending_bytes >= report.requested_bytes, "{program}"),
            _ => {}
        }
    }
}

#[test]
fn a_process_that_is_known_is_named() {
    let named = |in_use_bytes| {
        let mut process = ProcessUsage::default();
        process.id = Some(4711);
        process.name = Some("python3".into());
        process.in_use_bytes = in_use_bytes;
        let own_outside_bytes = Some(0);
        let report = beside(14 * GIB, 24 * GIB, 9 * GIB, 0, 2 * GIB);
        OutOfMemory { processes: vec![process], own_outside_bytes, ..report }
    };
    let report = named(Some(13 * GIB));
    let known = report.to_string();
    assert!(known.contains("    process       13.000 GiB  python3 (process 4711)\n"), "{known}");
    assert!(
        known.contains(
            "the largest is python3 (process 4711): free at least 1.000 GiB there (end that program"
        ),
        "{known}"
    );
    let unknown = named(None).to_string();
    assert!(unknown.contains("    process          unknown  python3 (process 4711)\n"), "{unknown}");
    assert!(unknown.contains("nvidia-smi"), "{unknown}");
    // In a container this process may be listed under another number.
    let unsure = OutOfMemory { own_outside_bytes: None, ..report }.to_string();
    assert!(unsure.contains("the largest is python3 (process 4711), which may be this program"), "{unsure}");
    assert!(unsure.contains("nvidia-smi") && !unsure.contains("end that program"), "{unsure}");
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

/// The snapshot reads like prose: each report has one cause, one advice, and no line that its reader does not need.
#[test]
fn the_whole_report_of_each_program() {
    let reports: Vec<_> =
        cases().into_iter().map(|(program, report, ..)| format!("{program}:\n\n{report:#}\n")).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../../tests/pool/snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("programs", reports.join("\n")));
}
