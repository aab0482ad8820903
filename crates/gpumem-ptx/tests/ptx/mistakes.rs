//! Mistakes of kernels are found at their places.

use crate::support::{Memory, kernel, launch, module, run};
use gpumem_ptx::{BarrierCountFault, Mistake, Outcome};

const AT_THREAD: &str = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;";

#[test]
fn an_overrun_by_one() {
    let mistake = run(&format!("{AT_THREAD}\nst.global.u32 [%rd1], %r0;"), 33, 32).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::Refused { size_bytes: 4, is_write: true, .. }));
    assert_eq!(mistake.to_string(), "line 9, block (0, 0, 0), thread (32, 0, 0): writes 4 bytes at 0x10080");
}

#[test]
fn a_misaligned_vector() {
    let mistake = run("ld.global.v2.u32 {%r0, %r1}, [%rd0+4];", 1, 8).unwrap_err();
    assert!(
        matches!(mistake.mistake, Mistake::Misaligned { size_bytes: 8, is_write: false, .. }),
        "{mistake}"
    );
}

#[test]
fn beyond_shared_and_local_memory() {
    let mistake = run(".shared .b8 slots[16]; st.shared.u32 [slots+16], %r0;", 1, 1).unwrap_err();
    assert!(
        matches!(mistake.mistake, Mistake::OutOfBounds { space: "shared", limit_bytes: 16, .. }),
        "{mistake}"
    );
    let mistake =
        run(".local .b8 depot[16]; mov.u64 %rd1, depot; st.local.u32 [%rd1+16], %r0;", 1, 1).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::OutOfBounds { space: "local", .. }), "{mistake}");
}

#[test]
fn an_address_below_shared_or_local_memory_has_a_negative_distance() {
    for (lines, expected) in [
        (
            ".shared .b8 s[16]; mov.u64 %rd1, -4; ld.shared.u32 %r1, [%rd1];",
            "reads 4 bytes at -4 of 16 bytes of shared memory",
        ),
        (
            ".shared .b8 s[16]; mov.u32 %r1, -8; st.shared.u32 [%r1], 1;",
            "writes 4 bytes at -8 of 16 bytes of shared memory",
        ),
        (
            ".local .b8 l[16]; mov.u64 %rd1, l; ld.local.u32 %r1, [%rd1+-24];",
            "reads 4 bytes at -24 of 16 bytes of local memory",
        ),
        (
            ".shared .b8 s[16]; mov.u64 %rd1, -3; ld.shared.u32 %r1, [%rd1];",
            "reads 4 bytes at -0x3 of shared memory: the address is no multiple of 4",
        ),
        (
            "mov.u64 %rd1, -3; ld.global.u32 %r1, [%rd1];",
            "reads 4 bytes at 0xfffffffffffffffd of global memory: the address is no multiple of 4",
        ),
    ] {
        let found = run(lines, 1, 1).unwrap_err();
        assert!(found.to_string().ends_with(expected), "{lines}: {found}");
    }
}

#[test]
fn a_barrier_that_half_of_a_warp_reaches() {
    let lines = format!(
        "{AT_THREAD}\nsetp.lt.u32 %p0, %r0, 16; @%p0 bra END;\nbar.sync 0;\nEND: st.global.u32 [%rd1], %r0;"
    );
    let mistake = run(&lines, 32, 32).unwrap_err();
    assert_eq!(mistake.mistake, Mistake::Divergence { number: 0, missing: [0, 0, 0] });
    assert_eq!((mistake.line, mistake.thread), (10, [16, 0, 0]));
}

/// Lanes go around the barrier, and then run what the others run behind it: the same mistake with branches between.
#[test]
fn a_barrier_that_some_lanes_go_around() {
    for lines in [
        "@%p0 bra END; bar.sync 0; END: setp.ne.u32 %p1, %r0, 0; @%p1 bra LAST; st.global.u32 [%rd1], %r0; LAST: ret;",
        "@%p0 bra ELSE; bar.sync 0; bra END; ELSE: st.global.u32 [%rd1], 1; END: st.global.u32 [%rd1], %r0;",
        "@%p0 bra ELSE; bar.sync 0; bra END; ELSE: @%p1 bra END; st.global.u32 [%rd1], 1; END: st.global.u32 [%rd1], %r0;",
        "@!%p0 bar.sync 0; st.global.u32 [%rd1], %r0;",
    ] {
        let lines = format!("{AT_THREAD} setp.lt.u32 %p0, %r0, 16; setp.lt.u32 %p1, %r0, 8;\n{lines}");
        let mistake = run(&lines, 32, 32).unwrap_err();
        assert!(matches!(mistake.mistake, Mistake::Divergence { number: 0, .. }), "{mistake}\n{lines}");
        assert_eq!((mistake.line, mistake.thread), (9, [16, 0, 0]), "{lines}");
    }
}

/// The same in a loop, whose head all of them have run before they part: those that go around the barrier run it again, and end there.
#[test]
fn a_barrier_in_a_loop_that_some_lanes_go_around() {
    for lines in [
        // With and without a step that comes behind both.
        "HEAD: setp.ge.u32 %p2, %r1, 1; @%p2 ret; @%p0 bra SKIP; bar.sync 0; add.u32 %r1, %r1, 1; bra HEAD; SKIP: add.u32 %r1, %r1, 1; bra HEAD;",
        "HEAD: setp.ge.u32 %p2, %r1, 1; @%p2 ret; @%p0 bra SKIP; bar.sync 0; BACK: add.u32 %r1, %r1, 1; bra HEAD; SKIP: add.u32 %r3, %r1, 1; bra BACK;",
        // They come late, go around once, and then end at the head.
        "@%p0 bra LATE; HEAD: setp.ge.u32 %p2, %r1, 1; @%p2 ret; @%p0 bra SKIP; bar.sync 0; add.u32 %r1, %r1, 1; bra HEAD;\n\
         SKIP: add.u32 %r1, %r1, 1; bra HEAD; LATE: add.u32 %r1, %r1, 0; bra HEAD;",
    ] {
        let lines = format!("{AT_THREAD} setp.lt.u32 %p0, %r0, 16; mov.u32 %r1, 0;\n{lines}");
        let mistake = run(&lines, 32, 32).unwrap_err();
        assert!(matches!(mistake.mistake, Mistake::Divergence { number: 0, .. }), "{mistake}\n{lines}");
        assert_eq!(mistake.thread, [16, 0, 0], "{lines}");
    }
}

#[test]
fn a_barrier_that_a_warp_does_not_reach() {
    let lines =
        format!("{AT_THREAD}\nsetp.lt.u32 %p0, %r0, 32; @%p0 bra WAIT;\nbar.sync 1; ret;\nWAIT: bar.sync 0;");
    let mistake = run(&lines, 64, 64).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::Deadlock { .. }), "{mistake}");
}

#[test]
fn a_mask_that_names_lanes_elsewhere() {
    let lines = format!(
        "{AT_THREAD}\nsetp.lt.u32 %p0, %r0, 16; @%p0 bra END;\nshfl.sync.down.b32 %r1, %r0, 1, 31, -1;\nbra LAST;\n\
                         END: bar.warp.sync -1;\nLAST:"
    );
    let mistake = run(&lines, 32, 32).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::Deadlock { .. }), "{mistake}");
}

#[test]
fn a_write_to_memory_that_may_only_be_read() {
    let module = module(&kernel("ld.global.u32 %r0, [%rd0]; st.global.u32 [%rd0], %r0;"));
    let mut memory = Memory::default();
    let address = memory.alloc_read_only(&[1]);
    let Outcome { touched, mistake, .. } =
        module.entry("k").unwrap().run(launch(&address.to_le_bytes(), 1, 1), &memory).unwrap();
    assert!(matches!(mistake.unwrap().mistake, Mistake::Refused { is_write: true, .. }));
    assert_eq!((touched.reads, touched.writes), (vec![address..address + 4], vec![]));
}

#[test]
fn calls_without_an_end() {
    let text = format!(".func f() {{ call.uni f; ret; }}\n{}", kernel("call.uni f;"));
    let module = module(&text);
    let outcome = module.entry("k").unwrap().run(launch(&[0; 8], 1, 1), &Memory::default()).unwrap();
    assert_eq!(outcome.mistake.unwrap().mistake, Mistake::StackOverflow);
}

#[test]
fn a_trap_and_a_wild_call() {
    assert_eq!(run("trap;", 1, 1).unwrap_err().mistake, Mistake::Trap);
    let wild = run("P: .callprototype _ (); mov.u64 %rd1, 5; call %rd1, (), P;", 1, 1).unwrap_err();
    assert_eq!(wild.mistake, Mistake::WrongTarget(5));
}

/// The mistake of a kernel with these lines behind the thread's number in `%r0` and its place in `%rd1`.
fn mistake(lines: &str, block: u32) -> Mistake {
    let found = run(&format!("{AT_THREAD}\n{lines}"), block, block as usize).unwrap_err();
    assert_eq!(found.line, 9, "{found}");
    found.mistake
}

#[test]
fn a_barrier_that_a_block_does_not_have() {
    for lines in [
        "mov.u32 %r1, 16; bar.sync %r1;",
        "mov.u32 %r1, 16; bar.arrive %r1, 32;",
        "mov.u32 %r1, 0xffffffff; barrier.sync %r1;",
    ] {
        let found = mistake(lines, 32);
        assert!(matches!(found, Mistake::WrongBarrier { number: 16 | 0xffff_ffff }), "{found}");
    }
    let found = mistake("mov.u32 %r1, 16; bar.sync %r1;", 32);
    assert_eq!(found.to_string(), "names barrier 16, and a block has barriers from 0 to 15");
}

#[test]
fn a_barrier_of_a_number_of_threads_that_cannot_arrive() {
    for (lines, number, count, why) in [
        ("mov.u32 %r1, 48; bar.sync 3, %r1;", 3, 48, BarrierCountFault::NoWholeWarps),
        ("mov.u32 %r1, 33; barrier.arrive 0, %r1;", 0, 33, BarrierCountFault::NoWholeWarps),
        ("mov.u32 %r1, 0; bar.arrive 0, %r1;", 0, 0, BarrierCountFault::NoWholeWarps),
        ("bar.sync 0, 128;", 0, 128, BarrierCountFault::MoreThanBlock(96)),
        (
            "setp.eq.u32 %p0, %r0, 0; bar.red.or.pred %p1, 0, 128, %p0;",
            0,
            128,
            BarrierCountFault::MoreThanBlock(96),
        ),
    ] {
        let found = mistake(lines, 80);
        assert_eq!(found, Mistake::BarrierCount { number, count, why }, "{lines}");
    }
    let found = mistake("bar.sync 0, 128;", 80);
    assert_eq!(found.to_string(), "states 128 threads for barrier 0, and its block has 96");
}

/// Warps that meet state one number, and lanes of a warp one barrier.
#[test]
fn a_barrier_with_differing_operands() {
    let warp = "shr.u32 %r1, %r0, 5;";
    for lines in [
        "setp.eq.u32 %p0, %r1, 0; selp.u32 %r1, 64, 96, %p0; bar.sync 0, %r1;",
        // All threads of the block are 96.
        "setp.eq.u32 %p0, %r1, 0; @%p0 bra ARRIVE; bar.sync 0; bra END; ARRIVE: bar.arrive 0, 64; END:",
    ] {
        for seed in 0..8 {
            let module = module(&kernel(&format!("{AT_THREAD} {warp}\n{lines}")));
            let launch = gpumem_ptx::Launch { seed, ..launch(&[0; 8], 1, 96) };
            let outcome = module.entry("k").unwrap().run(launch, &Memory::default()).unwrap();
            let found = outcome.mistake.unwrap().mistake;
            assert!(
                matches!(found, Mistake::BarrierCount { number: 0, why: BarrierCountFault::Other(_), .. }),
                "{found}"
            );
        }
    }
    let lanes = "and.b32 %r1, %r0, 1; bar.sync %r1, 64;";
    assert_eq!(mistake(lanes, 64), Mistake::BarrierOperands { other: [1, 0, 0] });
    let lanes = "and.b32 %r1, %r0, 32; setp.eq.u32 %p0, %r0, 7; @%p0 add.u32 %r1, %r1, 32; add.u32 %r1, %r1, 32; bar.sync 0, %r1;";
    assert!(matches!(mistake(lanes, 32), Mistake::BarrierOperands { other: [7, 0, 0] }));
    let mixed = format!(
        "{warp} setp.eq.u32 %p0, %r1, 0; @%p0 bra RED; bar.sync 0, 64; bra END; RED: bar.red.or.pred %p1, 0, 64, %p0; END:"
    );
    assert_eq!(mistake(&mixed, 64), Mistake::BarrierMixed { number: 0 });
}

/// A stated number of threads does not make up for lanes that do not come.
#[test]
fn a_barrier_of_whole_warps_that_half_of_one_reaches() {
    let found = mistake(
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra END; bar.sync 0, 32; END: st.global.u32 [%rd1], %r0;",
        32,
    );
    assert_eq!(found, Mistake::Divergence { number: 0, missing: [0, 0, 0] });
    let found = mistake("setp.lt.u32 %p0, %r0, 32; @%p0 bra END; bar.sync 0, 64; END:", 64);
    let Mistake::Deadlock { why } = found else { panic!("{found}") };
    assert_eq!(why, "32 threads are at barrier 0, which waits for 64, and no other thread can go on");
}

#[test]
fn a_branch_by_an_index_that_the_table_does_not_have() {
    let found = mistake("T: .branchtargets A, B; mov.u32 %r1, 2; brx.idx %r1, T; A: B:", 1);
    assert_eq!(found.to_string(), "branches by index 2 of a table of 2 labels");
}

/// Lanes wait for those that they name, and not for those of others at the same place: here lane 0 has to go on, so that lanes 16 to 31
/// come.
#[test]
fn lanes_wait_for_their_own_mask_alone() {
    let lines = format!(
        "{AT_THREAD}\nsetp.lt.u32 %p2, %r0, 8; selp.u32 %r1, 0xff, 0xffffff00, %p2; setp.lt.u32 %p1, %r0, 16; @%p1 bra X;\n\
         S: ld.volatile.global.u32 %r2, [%rd0]; setp.eq.u32 %p3, %r2, 0; @%p3 bra S;\n\
         X: shfl.sync.bfly.b32 %r3, %r0, 1, 31, %r1; st.global.u32 [%rd1+4], %r3;\n\
         setp.eq.u32 %p4, %r0, 0; @%p4 st.volatile.global.u32 [%rd0], 1;"
    );
    let words = run(&lines, 32, 33).unwrap();
    assert_eq!(words[0], 1);
    assert!(words[1..].iter().enumerate().all(|(lane, word)| *word == lane as u32 ^ 1), "{words:?}");
}

/// A misaligned access names its memory: an address, or a distance.
#[test]
fn misaligned_accesses_of_each_memory() {
    for (lines, of, at) in [
        ("ld.global.u32 %r1, [%rd0+2];", "global", 0x1_0002),
        ("ld.u32 %r1, [%rd0+2];", "global", 0x1_0002),
        (".shared .align 8 .b8 s[16]; ld.shared.u32 %r1, [s+2];", "shared", 2),
        (".local .align 8 .b8 l[16]; mov.u64 %rd2, l; ld.local.u32 %r1, [%rd2+2];", "local", 2),
        ("ld.param.u32 %r1, [out+2];", "parameter", 2),
        ("mov.b64 %rd2, out; cvta.param.u64 %rd2, %rd2; ld.u32 %r1, [%rd2+2];", "parameter", 2),
    ] {
        let found = mistake(lines, 1);
        assert!(
            matches!(found, Mistake::Misaligned { space, address, .. } if space == of && address == at),
            "{found}"
        );
    }
}
