//! proptest strategies that generate cases, and so determine how cases shrink.
//!
//! The strategies and their order determine the meaning of a seed: a change here changes the program of every recorded seed.

use super::faults::{Call, Fault};
use super::operation::{Case, Kind, Operation, Pick, Size, Wait};
use super::places::Place;
use crate::pool::CaptureMode;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

/// Generates a case.
pub fn case() -> impl Strategy<Value = Case> {
    let hard_limit =
        prop_oneof![2 => Just(None), 3 => prop_oneof![2 * MIB..=8 * MIB, 8 * MIB..=96 * MIB].prop_map(Some)];
    let soft_limit = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => (0..=64 * MIB).prop_map(Some)];
    let memory = prop_oneof![Just(64 * MIB), Just(128 * MIB), Just(1024 * MIB)];
    let tuning = (any::<bool>(), weighted(0.3, 0..=2_u32));
    let machine = (any::<u64>().no_shrink(), memory, hard_limit, soft_limit, tuning);
    // Generated last, so that the rest of the case does not depend on it.
    let more = weighted(0.3, vec(moving(), 8..=32));
    let program = (machine, 1..=4_usize, vec(operation(), 1..=100), more);
    program.prop_map(|(machine, stream_count, mut operations, more)| {
        let (sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, (polls, empty_mappings_max)) =
            machine;
        operations.extend(more.into_iter().flatten());
        Case {
            sim_seed,
            memory_bytes,
            hard_limit_bytes,
            soft_limit_bytes,
            polls,
            empty_mappings_max,
            stream_count,
            operations,
        }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![40 => memory(), 30 => work(), 15 => order(), 6 => growing(), 16 => graphs()]
}

/// Allocations and frees.
fn memory() -> impl Strategy<Value = Operation> {
    prop_oneof![
        36 => (pool(), pick(), exponent(), size(), place(), fault()).prop_map(
            |(pool, stream, exponent, size, place, fault)| {
                Operation::Allocate { pool, stream, exponent, size, place, fault }
            }
        ),
        18 => (pick(), place()).prop_map(|(block, place)| Operation::Free { block, place }),
        4 => (pick(), pick()).prop_map(|(block, user)| Operation::FreeOn { block, user }),
        1 => (pick(), place()).prop_map(|(block, place)| Operation::Carry { block, place }),
        1 => (2 * MIB..=64 * MIB).prop_map(|quota_bytes| Operation::NewPrivate { quota_bytes }),
        1 => Just(Operation::DropPrivate),
        2 => pick().prop_map(|block| Operation::FreeCompleted { block }),
        6 => (pick(), pick(), pick(), any::<u8>()).prop_map(|(block, stream, other, value)| {
            Operation::FreeMeanwhile { block, stream, other, value }
        }),
        1 => Just(Operation::NewPool),
        1 => Just(Operation::EndThread),
        3 => fault().prop_map(|fault| Operation::Reclaim { fault }),
        3 => (0..=64 * MIB, fault())
            .prop_map(|(keep_bytes, fault)| Operation::Trim { keep_bytes, fault }),
        1 => (0..=48 * MIB, fault())
            .prop_map(|(size_bytes, fault)| Operation::Reserve { size_bytes, fault }),
        1 => (0..=48 * MIB).prop_map(|size_bytes| Operation::TakeMemory { size_bytes }),
        1 => Just(Operation::ReturnMemory),
    ]
}

/// Work on blocks.
fn work() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (pick(), pick(), any::<u8>(), wait())
            .prop_map(|(block, stream, value, wait)| Operation::Fill { block, stream, value, wait }),
        6 => (pick(), pick(), pick(), wait())
            .prop_map(|(source, target, stream, wait)| Operation::Copy { source, target, stream, wait }),
        8 => (pick(), pick(), wait()).prop_map(|(block, stream, wait)| Operation::Read { block, stream, wait }),
        2 => pick().prop_map(|block| Operation::Check { block }),
    ]
}

/// Large blocks that are allocated and freed while work on them is queued: their memory is mapped at more addresses than the pool
/// caches.
fn moving() -> impl Strategy<Value = Operation> {
    let large = (pick(), MIB..=24 * MIB).prop_map(|(stream, size_bytes)| Operation::Allocate {
        pool: Pick(1),
        stream,
        exponent: 0,
        size: Size::Bytes(size_bytes),
        place: Place::Here,
        fault: None,
    });
    prop_oneof![
        4 => large,
        3 => (pick(), pick(), any::<u8>())
            .prop_map(|(block, stream, value)| Operation::Fill { block, stream, value, wait: Wait::Fence }),
        3 => pick().prop_map(|block| Operation::Free { block, place: Place::Here }),
    ]
}

/// Operations on growable blocks.
fn growing() -> impl Strategy<Value = Operation> {
    let max_bytes = prop_oneof![1 => 0..=MIB, 4 => MIB..=64 * MIB, 1 => 64 * MIB..=1024 * MIB];
    prop_oneof![
        2 => (pick(), max_bytes, fault())
            .prop_map(|(stream, max_bytes, fault)| Operation::NewGrowable { stream, max_bytes, fault }),
        5 => (pick(), 0..=1000_u64, fault())
            .prop_map(|(growable, per_mille, fault)| Operation::Resize { growable, per_mille, fault }),
        4 => (pick(), pick(), any::<u8>(), wait()).prop_map(|(growable, stream, value, wait)| {
            Operation::FillGrowable { growable, stream, value, wait }
        }),
        1 => pick().prop_map(|growable| Operation::CheckGrowable { growable }),
        2 => pick().prop_map(|growable| Operation::DropGrowable { growable }),
    ]
}

/// Captures and graphs.
fn graphs() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![
        2 => Just(CaptureMode::Global),
        1 => Just(CaptureMode::ThreadLocal),
        1 => Just(CaptureMode::Relaxed)
    ];
    prop_oneof![
        5 => (pick(), mode, fault())
            .prop_map(|(stream, mode, fault)| Operation::BeginCapture { stream, mode, fault }),
        2 => pick().prop_map(|stream| Operation::Fork { stream }),
        4 => (weighted(0.1, Just(())), weighted(0.1, Just(()))).prop_map(|(unwanted, alone)| {
            Operation::EndCapture { is_wanted: unwanted.is_none(), joins: alone.is_none() }
        }),
        6 => (pick(), fault()).prop_map(|(graph, fault)| Operation::Instantiate { graph, fault }),
        12 => (pick(), pick(), wait(), fault())
            .prop_map(|(exec, stream, wait, fault)| Operation::Launch { exec, stream, wait, fault }),
        1 => pick().prop_map(|graph| Operation::DropGraph { graph }),
        1 => pick().prop_map(|exec| Operation::DropExec { exec }),
    ]
}

/// Streams, events, waits and queries.
fn order() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => kind().prop_map(|kind| Operation::NewStream { kind }),
        2 => (pick(), any::<bool>()).prop_map(|(stream, retires)| Operation::DropStream { stream, retires }),
        3 => (pick(), fault()).prop_map(|(stream, fault)| Operation::Mark { stream, fault }),
        3 => (pick(), pick(), fault())
            .prop_map(|(stream, mark, fault)| Operation::Wait { stream, mark, fault }),
        2 => (pick(), any::<bool>()).prop_map(|(mark, waits)| Operation::AskMark { mark, waits }),
        2 => pick().prop_map(|stream| Operation::Ask { stream }),
        2 => (pick(), fault()).prop_map(|(stream, fault)| Operation::Synchronize { stream, fault }),
        1 => fault().prop_map(|fault| Operation::SynchronizeDevice { fault }),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => Just(Kind::Own),
        2 => Just(Kind::NoWaits),
        2 => Just(Kind::Foreign),
        2 => Just(Kind::LongLived),
        1 => Just(Kind::Legacy),
        1 => Just(Kind::OfThread)
    ]
}

/// The first pool in most cases.
fn pool() -> impl Strategy<Value = Pick> {
    prop_oneof![3 => Just(Pick(1)), 1 => pick()]
}

/// The default alignment in most cases.
fn exponent() -> impl Strategy<Value = u32> {
    prop_oneof![10 => Just(0), 2 => 0..=22_u32, 1 => 0..=26_u32]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![6 => Just(Place::Here), 2 => Just(Place::Other), 1 => Just(Place::OfItsOwn)]
}

/// An injected failure in a quarter of the cases, mostly of the first matching call.
fn fault() -> impl Strategy<Value = Option<Fault>> {
    let call = (0..Call::ALL.len()).prop_map(|index| Call::ALL[index]);
    let skip = prop_oneof![3 => Just(0), 1 => 1..=4_u32];
    let fault = (call, skip, 1..=2_u32, any::<bool>())
        .prop_map(|(call, skip, count, is_out_of_memory)| Fault { call, skip, count, is_out_of_memory });
    weighted(0.25, fault)
}

/// Mostly small sizes, so that many blocks fit and contents are cheap to compare; sometimes zero, a size that fills the device or
/// exceeds it, or exactly the remaining bytes.
fn size() -> impl Strategy<Value = Size> {
    let even_by_logarithm =
        (0..=20_u32, any::<u64>()).prop_map(|(power, rest)| (1 << power) + rest % (1 << power));
    let plain = prop_oneof![
        6 => 1_u64..=8192,
        6 => even_by_logarithm,
        4 => MIB..=48 * MIB,
        1 => Just(0),
        1 => prop_oneof![Just(1024 * MIB + 1), Just(u64::MAX), 64 * MIB..=u64::MAX],
    ];
    prop_oneof![12 => plain.prop_map(Size::Bytes), 1 => (-1_i64..=1).prop_map(Size::Room)]
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![6 => Just(Wait::Fence), 3 => Just(Wait::Event), 1 => Just(Wait::Host)]
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u8>().prop_map(Pick)
}

const MIB: u64 = 1 << 20;
