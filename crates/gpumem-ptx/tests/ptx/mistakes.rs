//! Mistakes of kernels are found at their places.

use crate::support::{Memory, kernel, launch, module, run};
use gpumem_ptx::{Mistake, Outcome};

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
