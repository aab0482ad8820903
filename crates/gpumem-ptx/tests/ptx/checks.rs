//! What is looked for on request, and what kernels print.

use crate::support::{Memory, kernel, launch, module};
use gpumem_ptx::{Checks, KernelMistake, Launch, Mistake, Outcome};

const AT_THREAD: &str = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd1, %rd0; mov.u64 %rd3, tile; \
                         add.u64 %rd3, %rd3, %rd1;";

/// Runs a kernel with these lines and 256 bytes of shared memory, with all checks.
fn checked(lines: &str, block: u32) -> Outcome {
    checked_under(7, lines, block)
}

fn found_under(seed: u64, lines: &str, block: u32) -> Vec<KernelMistake> {
    checked_under(seed, lines, block).hazards
}

fn checked_under(seed: u64, lines: &str, block: u32) -> Outcome {
    let text = kernel(&format!(".shared .align 4 .b8 tile[256];\n{AT_THREAD}\n{lines}"));
    let module = module(&text);
    let mut memory = Memory::default();
    let parameters = memory.alloc(&[0; 64]).to_le_bytes();
    let checks = Checks { races: true, uninitialised: true };
    let launch = Launch { checks, seed, ..launch(&parameters, 2, block) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    assert_eq!(outcome.mistake, None, "{text}");
    outcome
}

fn hazards(lines: &str, block: u32) -> Vec<String> {
    checked(lines, block).hazards.iter().map(ToString::to_string).collect()
}

#[test]
fn a_barrier_between_two_warps_is_missing() {
    let write_then_read = |between: &str| {
        format!(
            "st.shared.u32 [%rd3], %r0;\n{between}\nxor.b32 %r1, %r0, 32; mul.wide.u32 %rd4, %r1, 4; mov.u64 %rd5, tile;\n\
                 add.u64 %rd5, %rd5, %rd4;\nld.shared.u32 %r2, [%rd5];"
        )
    };
    assert_eq!(hazards(&write_then_read("bar.sync 0;"), 64), [""; 0]);
    let found = checked(&write_then_read(""), 64).hazards;
    assert!(!found.is_empty());
    assert!(
        matches!(
            found[0].mistake,
            Mistake::Race { space: "shared", is_write: false, is_other_write: true, .. }
        ) || matches!(found[0].mistake, Mistake::Uninitialised { .. }),
        "{found:?}"
    );
}

/// One warp states how many threads there are, and another one states nothing. A thread has ended before.
#[test]
fn a_barrier_orders_those_that_state_no_number_of_threads() {
    for [one, other] in [["bar.sync 0;", "bar.sync 0, 64;"], ["bar.sync 0, 64;", "bar.sync 0;"]] {
        let lines = format!(
            "setp.eq.u32 %p1, %r0, 63; @%p1 ret; st.shared.u32 [%rd3], %r0; setp.lt.u32 %p0, %r0, 32; @%p0 bra FIRST;\n\
             {other} bra READ; FIRST: {one}\n\
             READ: xor.b32 %r1, %r0, 32; and.b32 %r1, %r1, 62; mul.wide.u32 %rd4, %r1, 4; mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd4;\n\
             ld.shared.u32 %r2, [%rd5];"
        );
        for seed in 0..8 {
            assert_eq!(found_under(seed, &lines, 64), [], "seed {seed}\n{lines}");
        }
    }
}

#[test]
fn lanes_of_a_warp_are_ordered_by_its_barrier_alone() {
    let lines = |between: &str| {
        format!("st.shared.u32 [%rd3], %r0;\n{between}\nmov.u64 %rd5, tile;\nld.shared.u32 %r2, [%rd5];")
    };
    assert_eq!(hazards(&lines("bar.warp.sync -1;"), 32), [""; 0]);
    let found = hazards(&lines(""), 32);
    assert_eq!(
        found,
        [
            "line 13, block (0, 0, 0), thread (1, 0, 0): reads 4 bytes at 0x0 of shared memory; thread (0, 0, 0) of block (0, 0, 0) wrote \
          them at line 10, and nothing orders the two"
        ]
    );
}

/// Two barriers that lanes execute together are two, if their masks are.
#[test]
fn a_barrier_of_a_warp_orders_the_lanes_of_its_mask_alone() {
    let lines = |masks: (&str, &str), other: &str| {
        format!(
            "st.shared.u32 [%rd3], %r0; setp.lt.u32 %p0, %r0, 16; selp.b32 %r3, {}, {}, %p0;\nbar.warp.sync %r3;\n\
             xor.b32 %r1, %r0, {other}; mul.wide.u32 %rd4, %r1, 4; mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd4;\n\
             ld.shared.u32 %r2, [%rd5];",
            masks.0, masks.1
        )
    };
    let halves = ("0xffff", "0xffff0000");
    assert_eq!(hazards(&lines(halves, "1"), 32), [""; 0]);
    assert_eq!(hazards(&lines(("-1", "-1"), "16"), 32), [""; 0]);
    assert!(is_race(&checked(&lines(halves, "16"), 32).hazards, "shared"));
}

#[test]
fn a_lane_is_in_its_own_mask() {
    let lines = |instruction: &str| format!("setp.lt.u32 %p0, %r0, 8;\n{instruction}");
    for instruction in [
        "bar.warp.sync MASK;",
        "vote.sync.ballot.b32 %r1, %p0, MASK;",
        "vote.sync.any.pred %p1, %p0, MASK;",
        "match.any.sync.b32 %r1, %r0, MASK;",
        "match.all.sync.b32 %r1|%p1, %r0, MASK;",
        "redux.sync.add.u32 %r1, %r0, MASK;",
        "elect.sync %r1|%p1, MASK;",
    ] {
        assert_eq!(hazards(&lines(&instruction.replace("MASK", "0xffff")), 16), [""; 0], "{instruction}");
        let found = checked(&lines(&instruction.replace("MASK", "0xff")), 16).hazards;
        let [found] = &found[..] else { panic!("{instruction}: {found:?}") };
        assert_eq!(found.mistake, Mistake::NotInMask { mask: 0xff }, "{instruction}");
        assert_eq!((found.line, found.thread), (11, [8, 0, 0]), "{instruction}");
    }
}

/// True if nothing but a race in this memory is found.
fn is_race(found: &[KernelMistake], of: &str) -> bool {
    !found.is_empty()
        && found.iter().all(|found| matches!(found.mistake, Mistake::Race { space, .. } if space == of))
}

/// Thread 0 of each block adds to a word, and the one that comes second reads what the other has left.
#[test]
fn a_value_that_is_passed_by_an_atomic_needs_fences_of_the_device() {
    let lines = |writer: &str, atomic: &str, reader: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd4, %rd0; st.global.u32 [%rd4+16], %r1;\n{writer}\n\
             {atomic}.u32 %r2, [%rd0], 1;\n{reader}\nsetp.eq.u32 %p0, %r2, 1;\n@%p0 ld.global.u32 %r3, [%rd0+16];\n\
             @%p0 ld.global.u32 %r4, [%rd0+20];"
        )
    };
    let relaxed = "atom.global.add";
    for (writer, atomic, reader) in [
        ("membar.gl;", relaxed, "membar.gl;"),
        ("membar.sys;", relaxed, "membar.gl;"),
        ("fence.acq_rel.gpu;", relaxed, "fence.sc.gpu;"),
        ("", "atom.acq_rel.gpu.global.add", ""),
        ("", "atom.release.gpu.global.add", "membar.gl;"),
        ("membar.gl;", "atom.acquire.gpu.global.add", ""),
        ("fence.release.gpu;", relaxed, "fence.acquire.gpu;"),
        // A barrier counts as the reader's fence.
        ("membar.gl;", relaxed, "bar.sync 0;"),
    ] {
        assert_eq!(hazards(&lines(writer, atomic, reader), 1), [""; 0], "{writer} {atomic} {reader}");
    }
    for (writer, atomic, reader) in [
        ("", relaxed, "membar.gl;"),
        ("membar.gl;", relaxed, ""),
        ("membar.cta;", relaxed, "membar.gl;"),
        ("membar.gl;", relaxed, "membar.cta;"),
        ("fence.acq_rel.cta;", relaxed, "membar.gl;"),
        // Between the proxies of a thread, and for the other direction.
        ("fence.proxy.async;", relaxed, "membar.gl;"),
        ("fence.proxy.alias;", relaxed, "membar.gl;"),
        ("membar.gl;", relaxed, "fence.proxy.async.global;"),
        ("fence.acquire.gpu;", relaxed, "membar.gl;"),
        ("membar.gl;", relaxed, "fence.release.gpu;"),
        ("membar.gl;", "atom.release.gpu.global.add", ""),
        ("", "atom.acquire.gpu.global.add", ""),
    ] {
        let found = checked(&lines(writer, atomic, reader), 1).hazards;
        assert!(is_race(&found, "global"), "{writer} {atomic} {reader} {found:?}");
    }
}

/// The two threads of each of two blocks, with a word for each block and one for all.
#[test]
fn an_atomic_of_a_block_is_one_for_its_threads_alone() {
    for scope in ["", ".gpu", ".sys"] {
        assert_eq!(
            hazards(
                &format!("atom.relaxed{scope}.global.add.u32 %r2, [%rd0], 1;")
                    .replace("atom.relaxed.g", "atom.g"),
                2
            ),
            [""; 0]
        );
    }
    for scope in [".cta", ".cluster"] {
        let of_all = format!("atom.relaxed{scope}.global.add.u32 %r2, [%rd0], 1;");
        assert!(is_race(&checked(&of_all, 2).hazards, "global"), "{scope}");
        let of_block = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd4, %rd0;";
        let of_block = format!("{of_block} atom.relaxed{scope}.global.add.u32 %r2, [%rd4], 1;");
        assert_eq!(hazards(&of_block, 2), [""; 0]);
    }
    // One of the two has the scope of the device.
    let mixed = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 0;\n@%p0 atom.relaxed.cta.global.add.u32 %r2, [%rd0], 1;\n\
                 @!%p0 atom.relaxed.gpu.global.add.u32 %r2, [%rd0], 1;";
    assert!(is_race(&checked(mixed, 1).hazards, "global"));
}

/// Threads of two warps of a block pass a value by a flag in shared memory.
#[test]
fn fences_of_a_block_order_its_threads() {
    let lines = |writer: &str, reader: &str| {
        format!(
            "setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [tile+8], %r0; bar.sync 0; setp.eq.u32 %p1, %r0, 32;\n\
             @%p0 st.shared.u32 [tile], 5;\n@%p0 {writer}\n@%p0 st.volatile.shared.u32 [tile+8], 1;\n@!%p1 bra END;\n\
             WAIT: ld.volatile.shared.u32 %r1, [tile+8]; setp.eq.u32 %p2, %r1, 0; @%p2 bra WAIT;\n{reader}\nld.shared.u32 %r2, [tile];\nEND:"
        )
    };
    for (writer, reader) in [
        ("membar.cta;", "membar.cta;"),
        ("membar.gl;", "membar.cta;"),
        ("fence.acq_rel.cta;", "fence.sc.cluster;"),
    ] {
        assert_eq!(hazards(&lines(writer, reader), 64), [""; 0], "{writer} {reader}");
    }
    for (writer, reader) in [("mov.u32 %r3, 0;", "membar.cta;"), ("membar.cta;", "")] {
        assert!(is_race(&checked(&lines(writer, reader), 64).hazards, "shared"), "{writer} {reader}");
    }
    // Each element of a vector is a flag.
    let of_vectors = lines("mov.u32 %r3, 1;\n@%p0 membar.cta;", "membar.cta;")
        .replace("st.volatile.shared.u32 [tile+8], 1", "st.volatile.shared.v2.u32 [tile+8], {%r3, %r3}")
        .replace("ld.volatile.shared.u32 %r1, [tile+8]", "ld.volatile.shared.u32 %r1, [tile+12]")
        .replace("st.shared.u32 [tile+8], %r0;", "st.shared.u32 [tile+12], %r0;");
    assert_eq!(hazards(&of_vectors, 64), [""; 0]);
}

#[test]
fn an_asynchronous_copy_is_waited_for() {
    const ISSUED: &str = "and.b32 %r4, %r0, 15; mul.wide.u32 %rd6, %r4, 4; add.u64 %rd6, %rd6, %rd0;\ncp.async.ca.shared.global [%rd3], [%rd6], 4;";
    let own = |between: &str| format!("{ISSUED}\n{between}\nld.shared.u32 %r2, [%rd3];");
    for between in [
        "cp.async.wait_all;",
        "cp.async.commit_group; cp.async.wait_group 0;",
        "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;",
    ] {
        assert_eq!(hazards(&own(between), 32), [""; 0], "{between}");
    }
    for between in [
        "",
        "bar.sync 0;",
        "cp.async.commit_group;",
        "cp.async.wait_group 0;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 2;",
    ] {
        let found = hazards(&own(between), 32);
        assert_eq!(found.len(), 1, "{between} {found:?}");
        assert!(
            found[0].ends_with(
                "reads 4 bytes at 0x0 of shared memory, the target of the asynchronous copy at line 11 by thread (0, 0, 0), which has not \
                 waited for it"
            ),
            "{found:?}"
        );
    }
    // A write to the target, and a wait by one half of the lanes alone.
    let write = format!("{ISSUED}\nst.shared.u32 [%rd3], %r0;");
    let found = checked(&write, 1).hazards;
    assert!(
        matches!(found[..], [KernelMistake { mistake: Mistake::PendingCopy { is_write: true, .. }, .. }]),
        "{found:?}"
    );
    let half = own("setp.lt.u32 %p0, %r0, 16; @%p0 cp.async.wait_all;");
    let found = checked(&half, 32).hazards;
    assert!(matches!(found[..], [KernelMistake { thread: [16, 0, 0], .. }]), "{found:?}");
    // What another thread has copied: a wait, and then a barrier.
    let others = |between: &str| {
        format!(
            "{ISSUED}\n{between}\nxor.b32 %r1, %r0, 32; mul.wide.u32 %rd4, %r1, 4; mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd4;\n\
                 ld.shared.u32 %r2, [%rd5];"
        )
    };
    assert_eq!(hazards(&others("cp.async.wait_all; bar.sync 0;"), 64), [""; 0]);
    let found = checked(&others("bar.sync 0; cp.async.wait_all;"), 64).hazards;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        is_race(&found, "shared") || matches!(found[0].mistake, Mistake::PendingCopy { .. }),
        "{found:?}"
    );
    let found = checked(&others("bar.sync 0;"), 64).hazards;
    assert!(matches!(found[..], [KernelMistake { mistake: Mistake::PendingCopy { .. }, .. }]), "{found:?}");
}

/// A barrier in memory that the copies arrive at.
#[test]
fn who_waits_at_a_barrier_of_copies_waits_for_them() {
    let lines = |wait: &str| {
        format!(
            ".shared .align 8 .b8 barrier[8]; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [barrier], 64; bar.sync 0;\n\
             and.b32 %r4, %r0, 15; mul.wide.u32 %rd6, %r4, 4; add.u64 %rd6, %rd6, %rd0;\ncp.async.ca.shared.global [%rd3], [%rd6], 4;\n\
             cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];\n{wait}\n\
             xor.b32 %r1, %r0, 32; mul.wide.u32 %rd4, %r1, 4; mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd4; ld.shared.u32 %r2, [%rd5];"
        )
    };
    let wait = "WAIT: mbarrier.test_wait.parity.shared.b64 %p1, [barrier], 0; @!%p1 bra WAIT;";
    assert_eq!(hazards(&lines(wait), 64), [""; 0]);
    assert!(!hazards(&lines(""), 64).is_empty());
}

/// Threads that have ended count as arrived at a barrier of all, and not at one of a stated number of threads.
#[test]
fn what_ended_threads_have_written_is_ordered_by_a_barrier_of_all() {
    let lines = |barrier: &str| {
        format!(
            "st.shared.u32 [%rd3], %r0; setp.lt.u32 %p0, %r0, 32; @%p0 bra ON; ret;\nON: {barrier}\n\
             ld.shared.u32 %r2, [%rd3+128];"
        )
    };
    for seed in 0..16 {
        assert_eq!(found_under(seed, &lines("bar.sync 0;"), 64), [], "{seed}");
        assert!(is_race(&found_under(seed, &lines("bar.sync 1, 32;"), 64), "shared"), "{seed}");
    }
    // They are of one warp.
    let half = "st.shared.u32 [%rd3], %r0; setp.lt.u32 %p0, %r0, 16; @!%p0 ret; bar.sync 0; ld.shared.u32 %r2, [%rd3+64];";
    assert_eq!(hazards(half, 32), [""; 0]);
}

/// A value of a lane that does not take part is undefined, and does no harm as long as nothing depends on it.
#[test]
fn shuffles_of_lanes_that_do_not_take_part() {
    let stored = "st.global.u32 [%rd2], %r1;";
    for (shuffle, lanes) in [
        ("shfl.sync.idx.b32 %r1, %r0, 3, 31, -1;\n", 16),
        ("shfl.sync.down.b32 %r1, %r0, 16, 31, -1;\n", 32),
        // The whole warp, and a half that stays within its mask.
        ("shfl.sync.bfly.b32 %r1, %r0, 4, 31, 0xffff;\n", 16),
        // Undefined, and not used: a guard, a choice, a product with zero.
        ("shfl.sync.down.b32 %r1, %r0, 8, 31, -1;\nsetp.lt.u32 %p1, %r0, 8; @!%p1 mov.u32 %r1, 0;\n", 16),
        (
            "shfl.sync.down.b32 %r1, %r0, 8, 31, -1;\nsetp.lt.u32 %p1, %r0, 8; selp.b32 %r1, %r1, 0, %p1;\n",
            16,
        ),
        (
            "shfl.sync.down.b32 %r1, %r0, 8, 31, -1;\nsetp.lt.u32 %p1, %r0, 8; selp.b32 %r2, 1, 0, %p1; mul.lo.u32 %r1, %r1, %r2;\n",
            16,
        ),
        ("shfl.sync.down.b32 %r1, %r0, 8, 31, -1;\nxor.b32 %r1, %r1, %r1;\n", 16),
        (
            "mov.u32 %r2, 0; shfl.sync.down.b32 %r1, %r0, 8, 31, -1;\nsetp.eq.u32 %p1, %r1, 9; @%p1 mov.u32 %r2, 1;\n\
             setp.gt.u32 %p2, %r0, 7; @%p2 ret; mov.u32 %r1, %r2;\n",
            16,
        ),
        // The sum of 16 lanes: lane 0 gets nothing undefined, and it alone stores.
        (
            "mov.u32 %r1, %r0; shfl.sync.down.b32 %r2, %r1, 8, 31, -1; add.u32 %r1, %r1, %r2; shfl.sync.down.b32 %r2, %r1, 4, 31, -1;\n\
             add.u32 %r1, %r1, %r2; setp.ne.u32 %p2, %r0, 0; @%p2 ret;\n",
            16,
        ),
    ] {
        assert_eq!(hazards(&format!("{shuffle}{stored}"), lanes), [""; 0], "{shuffle}");
    }
    for (lines, lane, thread, line) in [
        // Of a lane that does not exist, of one that has ended, and of one that is not in the mask.
        ("shfl.sync.idx.b32 %r1, %r0, 20, 31, -1;\nst.global.u32 [%rd2], %r1;", 20, 0, 11),
        (
            "setp.gt.u32 %p0, %r0, 7; @%p0 ret; shfl.sync.down.b32 %r1, %r0, 4, 31, -1; st.global.u32 [%rd2], %r1;",
            8,
            4,
            10,
        ),
        ("shfl.sync.bfly.b32 %r1, %r0, 8, 31, 0xff;\nst.global.u32 [%rd2], %r1;", 8, 0, 11),
        // A lane that is not in its own mask.
        ("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xff;\nst.global.u32 [%rd2], %r1;", 8, 8, 11),
        // It decides a branch, gives an address, or goes on through arithmetic and another shuffle.
        (
            "shfl.sync.idx.b32 %r1, %r0, 20, 31, -1;\nsetp.eq.u32 %p0, %r1, 1; @%p0 bra END; add.u32 %r0, %r0, 1;\nEND:",
            20,
            0,
            11,
        ),
        // Whether a value is written depends on it.
        (
            "shfl.sync.idx.b32 %r1, %r0, 20, 31, -1;\nmov.u32 %r2, 0; setp.eq.u32 %p0, %r1, 1; @%p0 mov.u32 %r2, 7; st.global.u32 [%rd2], %r2;",
            20,
            0,
            11,
        ),
        (
            "shfl.sync.idx.b32 %r1, %r0, 20, 31, -1; and.b32 %r1, %r1, 15; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd4, %rd0;\n\
             ld.global.u32 %r2, [%rd4];",
            20,
            0,
            11,
        ),
        (
            "shfl.sync.idx.b32 %r1, %r0, 20, 31, -1;\nlop3.b32 %r1, %r1, %r0, 5, 150; bfi.b32 %r1, %r1, %r0, 4, 8;\n\
             shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1; st.global.u32 [%rd2], %r1;",
            20,
            0,
            12,
        ),
    ] {
        let found = checked(lines, 16).hazards;
        let [found] = &found[..] else { panic!("{lines}: {found:?}") };
        assert_eq!((found.line, found.thread), (10, [thread, 0, 0]), "{lines}: {found}");
        let use_line = gpumem_ptx::TextLine { line, source_line: None };
        assert_eq!(found.mistake, Mistake::UndefinedLane { lane, use_line }, "{lines}");
    }
}

/// A callee has values of its own in the registers that another call has used.
#[test]
fn registers_of_a_call_begin_defined() {
    let text = format!(
        ".func wild() {{ .reg .b32 %x<3>; mov.u32 %x0, 1; shfl.sync.idx.b32 %x1, %x0, 20, 31, -1; ret; }}\n\
         .func (.param .b32 r) tame(.param .b32 a) {{ .reg .b32 %x<3>; ld.param.u32 %x1, [a]; st.param.u32 [r], %x1; ret; }}\n{}",
        kernel(
            "mov.u32 %r0, 3; {.param .b32 a; .param .b32 b; call.uni wild, (); st.param.u32 [a], %r0; call.uni (b), tame, (a);\n\
             ld.param.u32 %r1, [b]; st.global.u32 [%rd0], %r1;}"
        )
    );
    let (module, mut memory) = (module(&text), Memory::default());
    let parameters = memory.alloc(&[0; 8]).to_le_bytes();
    let checks = Checks { races: false, uninitialised: true };
    let outcome =
        module.entry("k").unwrap().run(Launch { checks, ..launch(&parameters, 1, 1) }, &memory).unwrap();
    assert_eq!((outcome.mistake, outcome.hazards), (None, vec![]));
    assert_eq!(memory.words(0x1_0000)[0], 3);
}

#[test]
fn atomics_do_not_race_with_each_other_and_equal_values_do_no_harm() {
    assert_eq!(
        hazards("red.global.add.u32 [%rd0], 1; bar.sync 0; mov.u32 %r1, 3; st.global.u32 [%rd0+4], %r1;", 64),
        [""; 0]
    );
    assert_eq!(hazards("st.global.u32 [%rd0], %r0;", 64).len(), 1);
}

#[test]
fn bytes_that_nobody_has_written() {
    let found = hazards("ld.shared.u32 %r1, [%rd3];", 32);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].ends_with("reads 4 bytes at 0x0 of shared memory, which were never written"),
        "{found:?}"
    );
    let found = hazards(
        ".local .b8 depot[16]; mov.u64 %rd4, depot; st.local.u32 [%rd4], %r0; ld.local.u32 %r1, [%rd4];\n\
                         ld.local.u32 %r1, [%rd4+4];",
        1,
    );
    assert!(found[0].contains("reads 4 bytes at 0x4 of local memory"), "{found:?}");
    // Of a vector, what is not written.
    let found = hazards(
        ".local .align 16 .b8 depot[16]; mov.u64 %rd4, depot; st.local.u32 [%rd4], %r0; st.local.u32 [%rd4+12], %r0;\n\
                         ld.local.v4.u32 {%r0, %r1, %r2, %r3}, [%rd4];",
        1,
    );
    assert!(found[0].contains("reads 8 bytes at 0x4 of local memory"), "{found:?}");
}

#[test]
fn a_call_does_not_see_what_an_earlier_one_has_written() {
    let function = ".func f(.param .b64 out, .param .b32 is_first) { .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %rd; .local .u32 x;\n\
                    ld.param.u64 %rd, [out]; ld.param.u32 %r0, [is_first]; setp.ne.u32 %p, %r0, 0; @%p st.local.u32 [x], 3;\n\
                    ld.local.u32 %r1, [x]; st.global.u32 [%rd], %r1; ret; }\n";
    let call = |first: u32| {
        format!(
            "{{ .param .b64 a; .param .b32 b; st.param.b64 [a], %rd0; st.param.b32 [b], {first}; call f, (a, b); }}\n"
        )
    };
    let found = |second: u32| {
        let text = function.to_string() + &kernel(&(call(1) + &call(second)));
        let mut memory = Memory::default();
        let parameters = memory.alloc(&[0]).to_le_bytes();
        let checks = Checks { uninitialised: true, ..Default::default() };
        let launch = Launch { checks, ..launch(&parameters, 1, 1) };
        module(&text).entry("k").unwrap().run(launch, &memory).unwrap().hazards
    };
    assert_eq!(found(1), []);
    let found = found(0);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("of local memory, which were never written"), "{found:?}");
}

/// A compiler copies a structure with the bytes between its members.
#[test]
fn padding_of_structures_is_no_unwritten_read() {
    let local = ".local .align 8 .b8 depot[24]; mov.u64 %rd4, depot;\n";
    for lines in [
        // {char; int} in shared memory, read as two words.
        "st.shared.u8 [%rd3], %r0; ld.shared.u32 %r1, [%rd3];",
        // {int; double; char} in local memory: the tail.
        "st.local.u32 [%rd4], %r0; st.local.u8 [%rd4+16], %r0; ld.local.v4.u16 {%h0, %h1, %h2, %h3}, [%rd4+16]; ld.local.u64 %rd5, [%rd4];",
        "st.local.u8 [%rd4+16], %r0; ld.local.v4.u8 {%h0, %h1, %h2, %h3}, [%rd4+16]; ld.local.v4.u8 {%h0, %h1, %h2, %h3}, [%rd4+20];",
    ] {
        assert_eq!(hazards(&format!("{local}{lines}"), 1), [""; 0], "{lines}");
    }
    for lines in [
        // The second of two words, and a half word of its own.
        "st.shared.u32 [%rd3], %r0; ld.shared.v2.u32 {%r1, %r2}, [%rd3];",
        "st.local.u32 [%rd4], %r0; ld.local.v4.u32 {%r1, %r2, %r3, %r4}, [%rd4];",
        "st.local.u8 [%rd4], %r0; ld.local.u16 %h1, [%rd4+2];",
        "st.local.u8 [%rd4], %r0; ld.local.v4.u8 {%h0, %h1, %h2, %h3}, [%rd4+8];",
        "st.shared.u8 [%rd3], %r0; ld.shared.u8 %h1, [%rd3+1];",
    ] {
        let found = checked(&format!("{local}{lines}"), 1).hazards;
        let is_found = matches!(found[..], [KernelMistake { mistake: Mistake::Uninitialised { .. }, .. }]);
        assert!(is_found, "{lines} {found:?}");
    }
}

#[test]
fn what_a_kernel_prints_is_formatted_as_in_c() {
    let text = format!(
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
         .global .align 1 .b8 format[] = {{37, 52, 100, 124, 37, 45, 54, 108, 117, 124, 37, 46, 50, 102, 124, 37, 115, 124, 37, 99, 124, 37, 37, \
         124, 37, 108, 108, 120, 10, 0}};\n.global .align 1 .b8 name[] = {{107, 52, 0}};\n{}",
        kernel(
            ".local .align 8 .b8 values[48]; mov.u64 %rd1, values; cvta.local.u64 %rd2, %rd1;\n\
             mov.u32 %r0, -12; st.local.u32 [%rd1], %r0; mov.u64 %rd3, 77; st.local.u64 [%rd1+8], %rd3; mov.f64 %d0, 0d3FF8000000000000;\n\
             st.local.f64 [%rd1+16], %d0; mov.u64 %rd4, name; cvta.global.u64 %rd4, %rd4; st.local.u64 [%rd1+24], %rd4; mov.u32 %r1, 65;\n\
             st.local.u32 [%rd1+32], %r1; mov.u64 %rd5, 0x123456789abcdef; st.local.u64 [%rd1+40], %rd5;\n\
             mov.u64 %rd6, format; cvta.global.u64 %rd6, %rd6;\n\
             {.param .b64 p0; st.param.b64 [p0], %rd6; .param .b64 p1; st.param.b64 [p1], %rd2; .param .b32 q;\n\
             call.uni (q), vprintf, (p0, p1); ld.param.b32 %r3, [q]; st.global.u32 [%rd0], %r3; }"
        )
    );
    let module = module(&text);
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None);
    let mut memory = Memory::default();
    let address = memory.alloc(&[0; 4]);
    let words = |number: usize| {
        let contents = module.variables()[number].contents(&[]);
        contents
            .chunks(4)
            .map(|part| part.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
            .collect::<Vec<u32>>()
    };
    let variables = [memory.alloc(&words(0)), memory.alloc(&words(1))];
    let parameters = address.to_le_bytes();
    let outcome = entry.run(Launch { variables: &variables, ..launch(&parameters, 1, 2) }, &memory).unwrap();
    assert_eq!(outcome.mistake, None);
    assert_eq!(outcome.printed, " -12|77    |1.50|k4|A|%|123456789abcdef\n".repeat(2));
    assert_eq!(memory.words(address)[0], 6);
}

/// The memory says which bytes were written before the launch: here the words at odd places.
#[test]
fn bytes_of_the_launch_and_of_before_are_written_together() {
    struct Half(Memory);
    impl gpumem_ptx::DeviceMemory for Half {
        fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<gpumem_ptx::Region<'_>> {
            self.0.region(address, size_bytes, is_write)
        }
        fn is_written(&self, address: u64, size_bytes: u64) -> bool {
            address % 8 == 4 && size_bytes <= 4
        }
    }
    let text = kernel(
        "st.global.u32 [%rd0], %r0; ld.global.v2.u32 {%r1, %r2}, [%rd0]; ld.global.v2.u32 {%r1, %r2}, [%rd0+8];",
    );
    let (module, mut memory) = (module(&text), Memory::default());
    let parameters = memory.alloc(&[0; 8]).to_le_bytes();
    let checks = Checks { races: false, uninitialised: true };
    let launch = Launch { checks, ..launch(&parameters, 1, 1) };
    let found = module.entry("k").unwrap().run(launch, &Half(memory)).unwrap().hazards;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(matches!(found[0].mistake, Mistake::Uninitialised { address: 0x1_0008, .. }), "{found:?}");
}

/// By the memory model of PTX: of two accesses that nothing orders, one of them a write, both must be strong, with scopes that have both threads.
#[test]
fn volatile_and_relaxed_accesses_race_with_weak_ones_alone() {
    let loads = ["ld.volatile.global.u32", "ld.relaxed.gpu.global.u32", "ld.acquire.sys.global.u32"];
    let stores = ["st.volatile.global.u32", "st.relaxed.sys.global.u32", "st.release.gpu.global.u32"];
    let (weak_load, weak_store) = ("ld.global.u32", "ld.weak.global.u32");
    let store = |opcode: &str| format!("{opcode} [%rd0], 7;");
    let load = |opcode: &str| format!("{opcode} %r5, [%rd0];");
    let of_two_warps = |one: &str, other: &str| {
        let lines = format!(
            "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 32; @%p0 {one} @%p1 {other}"
        );
        let found = checked(&lines, 64).hazards;
        assert!(found.is_empty() || is_race(&found, "global"), "{found:?}");
        !found.is_empty()
    };
    for strong_store in stores {
        for other in stores
            .map(store)
            .into_iter()
            .chain(loads.map(load))
            .chain(["red.global.add.u32 [%rd0], 1;".into()])
        {
            assert!(!of_two_warps(&store(strong_store), &other), "{strong_store} {other}");
        }
        for other in [load(weak_load), load(weak_store), store("st.global.u32").replace('7', "8")] {
            assert!(of_two_warps(&store(strong_store), &other), "{strong_store} {other}");
            assert!(of_two_warps(&other, &store(strong_store)), "{other} {strong_store}");
        }
    }
    for strong_load in loads {
        assert!(of_two_warps(&load(strong_load), &store("st.global.u32")), "{strong_load}");
        assert!(!of_two_warps(&load(strong_load), &load(weak_load)), "{strong_load}");
    }
    assert!(of_two_warps("red.global.add.u32 [%rd0], 1;", &load(weak_load)));
}

/// Each thread writes its word of shared memory, and reads the one of the thread whose number differs in the bits `distance`.
fn exchanged(between: &str, distance: u32) -> String {
    format!(
        ".shared .align 4 .b8 s[512]; mov.u32 %r3, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r3; st.shared.u32 [%r1], %r0;\n{between}\n\
         xor.b32 %r2, %r0, {distance}; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r3; ld.shared.u32 %r4, [%r2];"
    )
}

/// Only the warps that meet at a counted barrier are ordered by it.
#[test]
fn a_counted_barrier_orders_those_that_meet() {
    let found =
        |count: u32, distance| hazards(&exchanged(&format!("bar.sync 0, {count};"), distance), 128).len();
    // Of the others, each warp meets one.
    assert!(found(64, 32) + found(64, 64) + found(64, 96) > 0);
    assert!([32, 64, 96].into_iter().any(|distance| found(64, distance) == 0));
    assert_eq!(found(128, 64), 0);
    assert!(found(32, 32) > 0);
}

/// What lanes wrote before one place of the barrier comes before what others read behind another one.
#[test]
fn a_barrier_of_a_warp_at_two_places_orders_its_lanes() {
    let found = |barrier: &str| {
        let between =
            format!("setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW; {barrier} bra END; LOW: {barrier} END:");
        hazards(&exchanged(&between, 16), 32)
    };
    assert_eq!(found("bar.warp.sync -1;"), [""; 0]);
    assert!(!found("").is_empty());
}

/// As NVRTC writes it: the place of a call that is in an inlined function itself is stated before.
#[test]
fn a_line_of_an_inlined_function_names_the_calls() {
    let place = |lines: &str| {
        let files = ".file 1 \"scale.cu\"\n.file 2 \"C:\\load, fast.cuh\"";
        let text =
            format!("{files}\n{}", kernel(&format!("{lines}mov.u64 %rd0, 0; ld.global.u32 %r1, [%rd0];")));
        let outcome =
            module(&text).entry("k").unwrap().run(launch(&[0; 8], 1, 1), &Memory::default()).unwrap();
        outcome.mistake.unwrap()
    };
    let nested = "\n.loc 1 14 14\n.loc 1 8 19, function_name $name0, inlined_at 1 14 14\n\
                  .loc 2 3 5, function_name $name1+16, inlined_at 1 8 19\n";
    let found = place(nested);
    let shown = format!(
        "line {} (C:\\load, fast.cuh:3, inlined at scale.cu:8, inlined at scale.cu:14), block",
        found.line
    );
    assert!(found.to_string().starts_with(&shown), "{found}");
    let lines = found.source_line.as_ref().unwrap().calls().map(|line| (&*line.file, line.line));
    assert_eq!(lines.collect::<Vec<_>>(), [("C:\\load, fast.cuh", 3), ("scale.cu", 8), ("scale.cu", 14)]);
    // Without the place of the call before, the same place of another function, and a file that has no name.
    let shown = |lines: &str| place(&format!("{nested}{lines}")).source_line.map(|line| line.to_string());
    assert_eq!(shown(".loc 1 9 2, inlined_at 1 20 9\n").unwrap(), "scale.cu:9, inlined at scale.cu:20");
    assert_eq!(
        shown(".loc 1 8 19\n.loc 1 2 2, inlined_at 1 8 19\n").unwrap(),
        "scale.cu:2, inlined at scale.cu:8"
    );
    assert_eq!(shown(".loc 1 3 5, inlined_at 7 8 19\n").unwrap(), "scale.cu:3");
    assert_eq!(shown(".loc 7 3 5, inlined_at 1 14 14\n"), None);
    // A function that is inlined in itself, without an end.
    let deep = shown(&".loc 1 5 1, inlined_at 1 6 1\n.loc 1 6 1, inlined_at 1 5 1\n".repeat(1000)).unwrap();
    assert_eq!(deep.matches("inlined at").count(), 30);
}

/// The other access of a race has its line of the source, too.
#[test]
fn races_name_both_lines_of_the_source() {
    let lines = "mov.u32 %r0, %tid.x;\n.loc 1 4 0\nst.global.u32 [%rd0], %r0;\n.loc 1 9 0\nld.global.u32 %r1, [%rd0];";
    let module = module(&format!(".file 1 \"race.cu\"\n{}", kernel(lines)));
    let mut memory = Memory::default();
    let parameters = memory.alloc(&[0; 4]).to_le_bytes();
    let checks = Checks { races: true, uninitialised: false };
    let launch = Launch { checks, ..launch(&parameters, 1, 64) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    let found: Vec<String> = outcome.hazards.iter().map(ToString::to_string).collect();
    assert!(
        !found.is_empty() && found.iter().all(|found| found.matches("(race.cu:").count() == 2),
        "{found:?}"
    );
}
