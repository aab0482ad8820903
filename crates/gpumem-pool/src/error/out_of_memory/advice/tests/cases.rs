//! The programs, one case each.

use super::*;

/// The program, its report, the advice, a text that it must contain, and a text that it must not contain.
pub(super) type Case = (&'static str, OutOfMemory, Advice, &'static str, &'static str);

pub(super) fn cases() -> Vec<Case> {
    use BackendKind::{Caching, Native, None as Plain};
    use MemoryKind::{Host, Unified};
    // A device of 10.76 GiB of which the program has 4.29 in use and 4.46 reserved.
    let cuda_jl = |others_bytes| OutOfMemory {
        device_free_bytes: 10 * MIB,
        ..beside(others_bytes, 11_018 * MIB, 4_393 * MIB, 174 * MIB, 20 * MIB)
    };
    vec![
        (
            "a message of CUDA.jl: the rest of the device is somebody else's",
            cuda_jl(6 * GIB),
            FreeTheDevice,
            "nvidia-smi",
            "fragmented",
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
            "a small pool of the program, and what the request lacks is little",
            OutOfMemory { other_pools_bytes: GIB / 4, ..beside(GIB / 2, 8 * GIB, 0, 0, 7_700 * MIB) },
            FreeTheDevice,
            "other pools of this program hold 256.000 MiB",
            "nvidia",
        ),
        (
            "a limit of half the device",
            limited(12 * GIB, alone(24 * GIB, 11 * GIB, 0, 2 * GIB)),
            RaiseTheLimit,
            "raise it to 13.000 GiB",
            "fragmented",
        ),
        (
            "a block beyond the limit",
            limited(GIB, alone(24 * GIB, 0, 0, 2 * GIB)),
            RaiseTheLimit,
            "raise it to 2.000 GiB",
            "fragmented",
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
            "raise the limit to 13.000 GiB",
            "fragmented",
        ),
        (
            "pieces below a limit",
            limited(8 * GIB, alone(24 * GIB, 5 * GIB, 3 * GIB, 2 * GIB)),
            Defragment,
            "raise the limit to 10.000 GiB",
            "sharers",
        ),
        (
            "pieces of a tight pool",
            OutOfMemory {
                facts: PoolFacts { is_tight: true, ..alone(1, 0, 0, 0).facts },
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
            "(PoolBuilder::backend or GPUMEM_POOL)",
            "tight",
        ),
        (
            "pieces that are no more than what sizes were rounded up by",
            OutOfMemory {
                rounding_bytes: 2 * GIB,
                ..limited(8 * GIB, alone(24 * GIB, 6 * GIB, 2 * GIB, GIB))
            },
            RaiseTheLimit,
            "raise it to 9.000 GiB",
            "fragmented",
        ),
        (
            "an aligned block below a limit",
            OutOfMemory { alignment: 512 * MIB, ..limited(GIB, alone(24 * GIB, 0, 0, 768 * MIB)) },
            RaiseTheLimit,
            "raise it to 1.249 GiB",
            "fragmented",
        ),
        (
            "graphs that nobody launches",
            OutOfMemory { graph_bytes: 10 * GIB, ..alone(24 * GIB, 18 * GIB, 0, 8 * GIB) },
            DropGraphs,
            "captures and graphs retain 10.000 GiB",
            "batches",
        ),
        (
            "one more graph at every step, below a limit",
            OutOfMemory {
                graph_bytes: 7 * GIB,
                ..leaking(limited(8 * GIB, alone(24 * GIB, 8 * GIB, 0, GIB)))
            },
            DropGraphs,
            "GraphExec",
            "raise",
        ),
        (
            "a few graphs, and a batch that is too large",
            OutOfMemory { graph_bytes: 4 * GIB, ..alone(24 * GIB, 18 * GIB, 0, 8 * GIB) },
            NeedLess,
            "smaller",
            "Graph",
        ),
        (
            "graphs, and what would not fit without them",
            OutOfMemory { graph_bytes: 2 * GIB, ..limited(4 * GIB, alone(24 * GIB, 3 * GIB, 0, 6 * GIB)) },
            RaiseTheLimit,
            "raise it to 9.000 GiB",
            "Graph",
        ),
        (
            "pieces of the device",
            alone(16 * GIB, 9 * GIB, 5 * GIB, 3 * GIB),
            Defragment,
            "fragmented",
            "raise",
        ),
        (
            "the device in pieces, of plain allocations",
            by(Plain, alone(16 * GIB, 9 * GIB, 0, 3 * GIB)),
            TryDifferently,
            "(PoolBuilder::backend or GPUMEM_POOL)",
            "nvidia",
        ),
        (
            "the same of the driver's pool, beside others",
            by(Native, beside(7 * GIB, 16 * GIB, 5 * GIB, 0, 3 * GIB)),
            TryDifferently,
            "reports 4.000 GiB free",
            "nvidia",
        ),
        (
            "a driver that gives no handle of what it has",
            beside(7 * GIB, 16 * GIB, 5 * GIB, 0, 3 * GIB),
            TryDifferently,
            "or the driver withholds it",
            "fragmented",
        ),
        (
            "less left than the driver gives out at once",
            by(Native, beside(7 * GIB, 16 * GIB, 9 * GIB - 20 * MIB, 0, MIB)),
            FreeTheDevice,
            "nvidia-smi",
            "reports",
        ),
        (
            "pieces, and others who have little more",
            beside(3 * GIB, 16 * GIB, 9 * GIB, 4 * GIB, 3 * GIB),
            Defragment,
            "fragmented",
            "nvidia",
        ),
        (
            "a loss of one tag",
            OutOfMemory {
                growth: leaking(alone(16 * GIB, 15 * GIB, 0, 512 * MIB))
                    .growth
                    .map(|growth| Growth { tag: Some("history".into()), ..growth }),
                ..alone(16 * GIB, 15 * GIB, 0, 512 * MIB)
            },
            FindTheLeak,
            "with the tag `history`",
            "raise",
        ),
        (
            "a few percent in pieces below a limit, and one tag that holds the rest",
            held_by("activations", limited(8 * GIB, alone(24 * GIB, 8_000 * MIB, 192 * MIB, 100 * MIB))),
            RaiseTheLimit,
            "raise it to 8.098 GiB or more (PoolBuilder::hard_limit, or Pool::set_hard_limit), or free blocks \
             (tag `activations` holds 7.812 GiB)",
            "allocate large blocks first",
        ),
        (
            "a limit of the driver's pool, whose size is fixed",
            limited(8 * GIB, by(Native, alone(24 * GIB, 7 * GIB, 0, 2 * GIB))),
            RaiseTheLimit,
            "(PoolBuilder::hard_limit)",
            "Pool::set_hard_limit",
        ),
        (
            "a device that one tag fills",
            held_by("weights", alone(24 * GIB, 22 * GIB, 0, 8 * GIB)),
            NeedLess,
            "(tag `weights` holds 22.000 GiB)",
            "limit",
        ),
        (
            "a library of this process",
            OutOfMemory {
                own_outside_bytes: Some(12 * GIB),
                ..beside(13 * GIB, 24 * GIB, 9 * GIB, 0, 4 * GIB)
            },
            FreeTheDevice,
            "this program holds 12.000 GiB of this device outside of its pools",
            "end it",
        ),
        (
            "another pool whose cache has been trimmed and is still large",
            OutOfMemory { other_pools_bytes: 12 * GIB, ..beside(13 * GIB, 24 * GIB, 9 * GIB, 0, 3 * GIB) },
            FreeTheDevice,
            "other pools of this program hold 12.000 GiB",
            "batches",
        ),
        (
            "a capture that has not ended",
            OutOfMemory {
                graph_bytes: 10 * GIB,
                capture_bytes: 8 * GIB,
                ..alone(24 * GIB, 18 * GIB, 0, 8 * GIB)
            },
            DropGraphs,
            "the capture that is still open retains 8.000 GiB",
            "GraphExec",
        ),
        (
            "a budget",
            OutOfMemory {
                refused_by: RefusedBy::Budget,
                added_bytes: 512,
                ..shared(6 * GIB, limited(6 * GIB, alone(24 * GIB, 5 * GIB, 0, GIB - 512)))
            },
            RaiseTheLimit,
            "6.000 GiB of the budget is in use: raise it to 7.000 GiB or more (Budget::set_limit)",
            "PoolBuilder::hard_limit",
        ),
        (
            "plain allocations of little more than a page each",
            OutOfMemory { rounding_bytes: 7 * GIB, ..by(Plain, alone(16 * GIB, 8 * GIB, 7 * GIB, GIB)) },
            NeedLess,
            "rounds each block up to 2 MiB, which wastes 7.000 GiB",
            "batches",
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
            "batches",
        ),
        (
            "half of all blocks are kept, below a limit",
            growing(200, limited(8 * GIB, alone(24 * GIB, 8 * GIB, 0, 64 * MIB))),
            RaiseTheLimit,
            "raise it to 8.063 GiB",
            "batches",
        ),
        (
            "half of all blocks are kept, and the device is full",
            growing(200, alone(16 * GIB, 15 * GIB, 0, 512 * MIB)),
            NeedLess,
            "smaller",
            "raise",
        ),
        (
            "all blocks are kept, and nothing looks like steps",
            growing(400, alone(16 * GIB, 15 * GIB, 0, 512 * MIB)),
            NeedLess,
            "smaller",
            "scope",
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
            "fragmented",
        ),
        (
            "freed in a capture, below a limit",
            pending(2 * GIB, limited(8 * GIB, alone(24 * GIB, 6 * GIB, 2 * GIB, 2 * GIB))),
            WaitForWork,
            "2.000 GiB of freed memory waits",
            "raise it",
        ),
        (
            "pieces, one of them pending",
            pending(GIB, limited(8 * GIB, alone(24 * GIB, 4 * GIB, 4 * GIB, 2 * GIB))),
            Defragment,
            "fragmented",
            "synchronize",
        ),
        (
            "a quota",
            private(limited(GIB, alone(24 * GIB, 900 * MIB, 0, 200 * MIB))),
            RaiseTheLimit,
            "Pool::private",
            "PoolBuilder::hard_limit",
        ),
        (
            "a quota that is as high as the limit above it",
            OutOfMemory {
                facts: PoolFacts { parent_limit_bytes: Some(GIB), ..PoolFacts::default() },
                ..private(limited(GIB, alone(24 * GIB, 0, 0, GIB + 1)))
            },
            RaiseTheLimit,
            "raise it to 1.001 GiB or more (at Pool::private, or with Pool::set_hard_limit), and also the parent \
             pool's limit of 1.000 GiB",
            "PoolBuilder::hard_limit",
        ),
        (
            "the limit above a private pool",
            OutOfMemory {
                facts: PoolFacts { is_parent_limit: true, ..PoolFacts::default() },
                limit_pool: Some("whole".into()),
                ..shared(7 * GIB, limited(8 * GIB, alone(24 * GIB, 0, 0, 2 * GIB)))
            },
            RaiseTheLimit,
            "Pool::set_hard_limit of pool whole",
            "Pool::private",
        ),
        (
            "a limit that private pools have used up",
            shared(6 * GIB, limited(8 * GIB, alone(24 * GIB, GIB, 0, 2 * GIB))),
            RaiseTheLimit,
            "other pools hold 6.000 GiB",
            "fragmented",
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
            "oversubscribe:true",
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
            "the host cannot pin 8.000 GiB more",
            "nvidia",
        ),
    ]
}
