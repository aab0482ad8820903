//! Branches, barriers and calls.

use crate::support::{Memory, kernel, launch, module, run, run_touching};
use gpumem_ptx::Mistake;

const AT_THREAD: &str = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;";

/// Each lane goes around a loop as often as its number says, and all meet behind it.
#[test]
fn lanes_that_leave_a_loop_meet_again() {
    let lines = "mov.u32 %r1, 0; mov.u32 %r2, 0;\nLOOP: setp.ge.u32 %p0, %r2, %r0; @%p0 bra DONE;\n\
                 add.u32 %r1, %r1, %r2; add.u32 %r2, %r2, 1; bra LOOP;\n\
                 DONE: activemask.b32 %r3; popc.b32 %r3, %r3; mad.lo.u32 %r1, %r3, 1000, %r1;\nst.global.u32 [%rd1], %r1;";
    let found = run(&format!("{AT_THREAD}{lines}"), 40, 40).unwrap();
    let sum = |n: u32| n * n.saturating_sub(1) / 2;
    assert!(found.into_iter().eq((0..40).map(|n| sum(n) + if n < 32 { 32_000 } else { 8_000 })));
}

#[test]
fn a_table_of_branches() {
    let lines = "and.b32 %r1, %r0, 3;\nTABLE: .branchtargets A, B, C, A;\nbrx.idx %r1, TABLE;\n\
                 A: mov.u32 %r2, 10; bra END;\nB: mov.u32 %r2, 20; bra END;\nC: mov.u32 %r2, 30;\nEND: st.global.u32 [%rd1], %r2;";
    let found = run(&format!("{AT_THREAD}{lines}"), 8, 8).unwrap();
    assert_eq!(found, [10, 20, 30, 10, 10, 20, 30, 10]);
}

/// A sum over a block through shared memory.
#[test]
fn warps_meet_at_barriers() {
    let lines = ".shared .align 4 .b8 slots[1024];\nshl.b32 %r1, %r0, 2; mov.u32 %r2, slots; add.u32 %r1, %r1, %r2;\n\
                 st.shared.u32 [%r1], %r0; bar.sync 0;\nsetp.ne.u32 %p0, %r0, 0; @%p0 bra END;\nmov.u32 %r3, 0; mov.u32 %r4, 0;\n\
                 NEXT: ld.shared.u32 %r5, [%r2]; add.u32 %r3, %r3, %r5; add.u32 %r2, %r2, 4; add.u32 %r4, %r4, 1;\n\
                 setp.lt.u32 %p1, %r4, 256; @%p1 bra NEXT;\nst.global.u32 [%rd0], %r3;\nEND:";
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 256, 256).unwrap()[0], 255 * 128);
    let lines = "setp.lt.u32 %p0, %r0, 50; bar.red.popc.u32 %r1, 0, %p0; st.global.u32 [%rd1], %r1;";
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 100, 100).unwrap(), [50; 100]);
}

#[test]
fn functions_have_frames_of_their_own() {
    let text = format!(
        ".func (.param .b32 result) fib(.param .b32 n) {{\n.reg .pred %p<2>; .reg .b32 %r<8>;\nld.param.u32 %r0, [n];\n\
         setp.lt.u32 %p0, %r0, 2; @%p0 bra SMALL;\n\
         {{ .param .b32 a; .param .b32 b; sub.u32 %r1, %r0, 1; st.param.b32 [a], %r1; call.uni (b), fib, (a); ld.param.b32 %r2, [b]; }}\n\
         {{ .param .b32 a; .param .b32 b; sub.u32 %r1, %r0, 2; st.param.b32 [a], %r1; call.uni (b), fib, (a); ld.param.b32 %r3, [b]; }}\n\
         add.u32 %r0, %r2, %r3;\nSMALL: st.param.b32 [result], %r0; ret;\n}}\n{}",
        kernel(&format!(
            "{AT_THREAD}\n{{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), fib, (a); ld.param.b32 %r1, [b]; }}\n\
             st.global.u32 [%rd1], %r1;"
        ))
    );
    let (memory, address, outcome) = run_touching(&text, 12, 12);
    outcome.unwrap();
    assert_eq!(memory.words(address), [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]);
}

/// Registers that nobody has written are zero, whatever an earlier launch or call has left in the memory for them.
#[test]
fn a_launch_and_a_call_begin_with_zeros() {
    let used: String = (1..16).map(|number| format!("mov.u32 %r{number}, 7{number}; ")).collect();
    let sum: String = (2..16).map(|number| format!("add.u32 %r1, %r1, %r{number}; ")).collect();
    for _ in 0..3 {
        let all = run(&format!("{AT_THREAD}{used}{sum} st.global.u32 [%rd1], %r1;"), 40, 40).unwrap();
        assert!(all[0] > 1000);
        let none = run(&format!("{AT_THREAD}{sum} st.global.u32 [%rd1], %r1;"), 40, 40).unwrap();
        assert_eq!(none, [0; 40]);
        let some =
            format!("{AT_THREAD} setp.lt.u32 %p0, %r0, 5; @%p0 mov.u32 %r1, 8; st.global.u32 [%rd1], %r1;");
        let some = run(&some, 40, 40).unwrap();
        assert!(some.into_iter().eq((0..40).map(|lane| if lane < 5 { 8 } else { 0 })));
    }
    let text = format!(
        ".func (.reg .b32 result) f(.reg .b32 a) {{ .reg .b32 %r; .reg .pred %p; setp.lt.u32 %p, a, 5; @%p mov.u32 %r, 8; mov.u32 result, %r; ret; }}\n{}",
        kernel(&format!(
            "{AT_THREAD} call (%r1), f, (%r0); sub.u32 %r2, 39, %r0; call (%r2), f, (%r2); mad.lo.u32 %r1, %r1, 10, %r2; st.global.u32 [%rd1], %r1;"
        ))
    );
    let (memory, address, outcome) = run_touching(&text, 40, 40);
    outcome.unwrap();
    let expected = |lane| {
        if lane < 5 {
            80
        } else if lane > 34 {
            8
        } else {
            0
        }
    };
    assert!(memory.words(address).into_iter().eq((0..40).map(expected)));
}

/// An argument without a register has the parameter's type.
#[test]
fn numbers_are_arguments() {
    for formal in [".reg .f32 x", ".param .f32 p"] {
        let read = if formal.starts_with(".param") { ".reg .f32 x; ld.param.f32 x, [p];" } else { "" };
        let text = format!(
            ".func f({formal}, .reg .u32 n, .reg .b64 to) {{ {read} st.global.f32 [to], x; st.global.u32 [to+4], n; ret; }}\n{}",
            kernel("call f, (2.5, 7, %rd0);")
        );
        let (memory, address, outcome) = run_touching(&text, 1, 2);
        outcome.unwrap();
        assert_eq!(memory.words(address), [2.5_f32.to_bits(), 7], "{formal}");
    }
}

/// Each lane may call another function.
#[test]
fn pointers_to_functions() {
    let text = format!(
        ".func (.reg .b32 %y) one(.reg .b32 %x) {{ add.u32 %y, %x, 1; ret; }}\n\
         .func (.reg .b32 %y) two(.reg .b32 %x) {{ add.u32 %y, %x, 2; ret; }}\n{}",
        kernel(&format!(
            "{AT_THREAD}\nand.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0; mov.u64 %rd2, one; mov.u64 %rd3, two;\n\
             selp.b64 %rd2, %rd2, %rd3, %p0;\nP: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n\
             call (%r2), %rd2, (%r0), P;\nst.global.u32 [%rd1], %r2;"
        ))
    );
    let (memory, address, outcome) = run_touching(&text, 4, 4);
    outcome.unwrap();
    assert_eq!(memory.words(address), [1, 3, 3, 5]);
}

const FUNCTIONS: &str = ".func (.reg .b32 %y) one(.reg .b32 %x) { add.u32 %y, %x, 1; ret; }\n\
                         .func (.reg .b32 %y) two(.reg .b32 %x) { add.u32 %y, %x, 2; ret; }\n\
                         .func none() { ret; }\n";

/// Calls the function at the address in the word that `%rd2` points to.
fn called(variables: &str, pointed: &str) -> Result<Vec<u32>, Mistake> {
    let text = format!(
        "{FUNCTIONS}{variables}\n{}",
        kernel(&format!(
            "{AT_THREAD}\n{pointed}\nP: .callprototype (.reg .b32 _) _ (.reg .b32 _);\ncall (%r2), %rd3, (%r0), P;\n\
             st.global.u32 [%rd1], %r2;"
        ))
    );
    let module = module(&text);
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None, "{text}");
    let mut memory = Memory::default();
    let address = memory.alloc(&[0; 4]);
    let places: Vec<u64> = module
        .variables()
        .iter()
        .map(|variable| {
            let words = variable.contents(&[]);
            let words = words
                .chunks(4)
                .map(|part| part.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
            memory.alloc(&words.collect::<Vec<_>>())
        })
        .collect();
    let parameters = address.to_le_bytes();
    let launch = gpumem_ptx::Launch { variables: &places, ..launch(&parameters, 1, 4) };
    let outcome = entry.run(launch, &memory).unwrap();
    outcome.mistake.map_or_else(|| Ok(memory.words(address)), |mistake| Err(mistake.mistake))
}

#[test]
fn addresses_of_functions_in_variables() {
    let by_thread = "and.b32 %r1, %r0, 1; mul.wide.u32 %rd2, %r1, 8; mov.u64 %rd3, table; add.u64 %rd2, %rd2, %rd3; ld.global.u64 %rd3, [%rd2];";
    assert_eq!(called(".global .align 8 .u64 table[2] = {two, one};", by_thread).unwrap(), [2, 2, 4, 4]);
    // Byte by byte, as in packed structures.
    let bytes: Vec<String> = (0..8).map(|byte| format!("{:#x}(one)", 0xff_u64 << (8 * byte))).collect();
    let table = format!(".global .align 8 .u8 table[16] = {{{0}, {0}}};", bytes.join(", "));
    assert_eq!(called(&table, by_thread).unwrap(), [1, 2, 3, 4]);
    let found = called(".global .align 8 .u64 table[2] = {none, none};", by_thread);
    assert!(matches!(found, Err(Mistake::WrongPrototype(_))), "{found:?}");
    // A number that is no function, and the address of a kernel.
    for table in ["{5, 5}", "{k, k}", "{one+1000, one}"] {
        let table = format!(".global .align 8 .u64 table[2] = {table};");
        let found = called(&table, by_thread);
        assert!(matches!(found, Err(Mistake::WrongTarget(_))), "{table} {found:?}");
    }
}

/// The value comes from elsewhere, and only a variable that the kernel does not name has the address.
#[test]
fn a_pointer_to_a_function_that_the_kernel_does_not_name() {
    let text = format!(
        "{FUNCTIONS}.global .u64 one_of_them = two;\n{}",
        kernel(
            "P: .callprototype (.reg .b32 _) _ (.reg .b32 _);\nld.global.u64 %rd1, [%rd0]; mov.u32 %r1, 40; call (%r2), %rd1, (%r1), P;\nst.global.u32 [%rd0], %r2;"
        )
    );
    let module = module(&text);
    let bytes = module.variables()[0].contents(&[]);
    let words: Vec<u32> = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let mut memory = Memory::default();
    let address = memory.alloc(&words);
    let parameters = address.to_le_bytes();
    let outcome = module.entry("k").unwrap().run(launch(&parameters, 1, 1), &memory).unwrap();
    assert_eq!(outcome.mistake, None);
    assert_eq!(memory.words(address)[0], 42);
}

/// A lane waits in a loop for another one of its warp, and a block for another block.
#[test]
fn who_waits_in_a_loop_lets_others_run() {
    let lines = "setp.eq.u32 %p0, %r0, 1; @%p0 bra SET;\nWAIT: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;\n\
                 bra END;\nSET: atom.global.add.u32 %r2, [%rd0], 1;\nEND:";
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 2, 2).unwrap()[0], 1);
    let text = kernel(
        "mov.u32 %r0, %ctaid.x; WAIT: ld.volatile.global.u32 %r1, [%rd0]; setp.ne.u32 %p0, %r1, %r0; @%p0 bra WAIT;\n\
         add.u32 %r1, %r1, 1; st.global.u32 [%rd0], %r1;",
    );
    let module = module(&text);
    let mut memory = Memory::default();
    let address = memory.alloc(&[0]);
    let parameters = address.to_le_bytes();
    let launch = gpumem_ptx::Launch { steps_max: 1 << 32, ..launch(&parameters, 3, 1) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    assert_eq!(outcome.mistake, None);
    assert_eq!(memory.words(address), [3]);
}

#[test]
fn a_loop_without_an_end_is_stopped() {
    let mistake = run("LOOP: bra LOOP;", 1, 1).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::TooLong(_)), "{mistake}");
}

#[test]
fn an_alias_is_its_function() {
    let text = ".func (.param .b32 r) real(.param .b32 a) { .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, 4; st.param.u32 [r], %x; ret; }\n\
                .func (.param .b32 r) other(.param .b32 a); .alias other, real;\n\
                .entry k(.param .u64 out) { .reg .b32 %r<3>; .reg .b64 %rd; .param .b32 a; .param .b32 b; ld.param.u64 %rd, [out];\n\
                st.param.u32 [a], 3; call.uni (b), other, (a); ld.param.u32 %r0, [b]; st.global.u32 [%rd], %r0; ret; }";
    let (memory, address, outcome) = run_touching(text, 1, 1);
    outcome.unwrap();
    assert_eq!(memory.words(address), [7]);
}

#[test]
fn a_barrier_waits_for_lanes_that_are_still_in_a_loop() {
    let lines = "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 16; selp.u32 %r2, 10, 30000, %p0; mov.u32 %r1, 0;\n\
                 LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r2; @%p1 bra LOOP;\nbar.sync 0;\n\
                 mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r1;";
    let module = module(&kernel(lines));
    for seed in 0..16 {
        let mut memory = Memory::default();
        let parameters = memory.alloc(&[0; 64]).to_le_bytes();
        let launch = gpumem_ptx::Launch { seed, ..launch(&parameters, 1, 64) };
        assert_eq!(module.entry("k").unwrap().run(launch, &memory).unwrap().mistake, None, "seed {seed}");
    }
}

#[test]
fn lanes_that_have_ended_are_not_waited_for() {
    for lines in [
        "@!%p0 bra END; shfl.sync.down.b32 %r1, %r0, 1, 31, -1; END: ret;",
        "@%p0 bra ON; ret; ON: shfl.sync.down.b32 %r1, %r0, 1, 31, -1;",
        "@!%p0 bra END; bar.sync 0; add.u32 %r0, %r0, 1; bar.sync 0; END: ret;",
        "@!%p0 ret; bar.sync 0;",
    ] {
        let lines = format!("mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 40;\n{lines}");
        assert_eq!(run(&lines, 64, 1).err(), None, "{lines}");
    }
}

/// More blocks than usually run at the same time.
#[test]
fn all_blocks_of_a_grid_meet() {
    let lines = "membar.gl; atom.global.add.u32 %r0, [%rd0], 1;\nWAIT: ld.volatile.global.u32 %r1, [%rd0];\n\
                 setp.lt.u32 %p0, %r1, 132; @%p0 bra WAIT;";
    let module = module(&kernel(lines));
    let mut memory = Memory::default();
    let parameters = memory.alloc(&[0]).to_le_bytes();
    let launch = gpumem_ptx::Launch { steps_max: 1 << 32, ..launch(&parameters, 132, 1) };
    assert_eq!(module.entry("k").unwrap().run(launch, &memory).unwrap().mistake, None);
}

/// A warp of 8 threads counts as 32 for a barrier with a stated number of threads, and as 8 votes.
#[test]
fn votes_at_a_barrier_of_a_stated_number_of_threads() {
    let lines = |of: &str| {
        format!(
            "{AT_THREAD} setp.{of}.u32 %p0, %r0, 100; bar.red.and.pred %p1, 1, 64, %p0; bar.red.or.pred %p2, 1, 64, %p0;\n\
             bar.red.popc.u32 %r1, 1, 64, %p0;\nselp.u32 %r2, 100, 0, %p1; selp.u32 %r3, 1000, 0, %p2;\n\
             add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; st.global.u32 [%rd1], %r1;"
        )
    };
    assert_eq!(run(&lines("lt"), 40, 40).unwrap(), [1140; 40]);
    assert_eq!(run(&lines("gt"), 40, 40).unwrap(), [0; 40]);
    let one_no = lines("lt").replace("%r0, 100;", "%r0, 39;");
    assert_eq!(run(&one_no, 40, 40).unwrap(), [1039; 40]);
}

/// The lanes of a warp are at two barriers, each with half of another warp.
#[test]
fn lanes_of_a_warp_wait_at_barriers_of_their_own() {
    let lines = "and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r0, 5; barrier.sync %r1, 32;\nbarrier.red.popc.u32 %r2, %r1, 32, %p0;\n\
                 barrier.arrive %r1, 64; barrier.sync %r1, 64;\nst.global.u32 [%rd1], %r2;";
    let found = run(&format!("{AT_THREAD}{lines}"), 64, 64).unwrap();
    assert!(found.into_iter().eq((0..64).map(|thread| thread % 2)));
}

/// Some lanes end early, wherever their code lies. Those that remain meet at the barrier.
#[test]
fn lanes_that_end_early_are_not_waited_for_at_a_barrier() {
    let own = "st.global.u32 [%rd1], 7;";
    let rest = "bar.sync 0; bar.red.popc.u32 %r2, 0, %p1; st.global.u32 [%rd1], %r2;";
    for lines in [
        // Before the barrier, behind it, and behind it with an end that both have.
        format!("@!%p0 bra ON; {own} ret; ON: {rest}"),
        format!("@%p0 bra EARLY; {rest} ret; EARLY: {own} ret;"),
        format!("@%p0 bra EARLY; {rest} bra END; EARLY: {own} END: ret;"),
        format!("@%p0 bra EARLY; {rest} END: exit; EARLY: {own} bra END;"),
        format!("bra START; EARLY: {own} exit; START: @%p0 bra EARLY; {rest}"),
        format!("@%p0 st.global.u32 [%rd1], 7; @%p0 ret; {rest}"),
        // By branches of their own.
        format!(
            "@%p0 bra EARLY; {rest} ret; EARLY: setp.eq.u32 %p2, %r0, 0; @%p2 bra ZERO; {own} ret; ZERO: {own} ret;"
        ),
    ] {
        // The lanes below 8 of two warps end.
        let lines = format!(
            "{AT_THREAD} and.b32 %r1, %r0, 31; setp.lt.u32 %p0, %r1, 8; setp.ge.u32 %p1, %r1, 0;\n{lines}"
        );
        let found = run(&lines, 64, 64).unwrap_or_else(|mistake| panic!("{mistake}\n{lines}"));
        assert!(found.into_iter().eq((0..64).map(|lane| if lane % 32 < 8 { 7 } else { 48 })), "{lines}");
    }
}

/// A loop with a barrier, which lanes leave in different rounds.
#[test]
fn lanes_that_leave_a_loop_with_a_barrier_are_not_waited_for() {
    for lines in [
        "LOOP: bar.sync 0; add.u32 %r1, %r1, 1; setp.gt.u32 %p0, %r1, %r2; @%p0 bra OUT; bra LOOP; OUT: st.global.u32 [%rd1], %r1;",
        "bra LOOP; OUT: st.global.u32 [%rd1], %r1; ret;\n\
         LOOP: bar.sync 0; add.u32 %r1, %r1, 1; setp.gt.u32 %p0, %r1, %r2; @%p0 bra OUT; bra LOOP;",
    ] {
        let lines = format!("{AT_THREAD} mov.u32 %r1, 0; and.b32 %r2, %r0, 3;\n{lines}");
        let found = run(&lines, 64, 64).unwrap_or_else(|mistake| panic!("{mistake}\n{lines}"));
        assert!(found.into_iter().eq((0..64).map(|lane| 1 + lane % 4)), "{lines}");
    }
}

/// Lanes come to a loop with a barrier by two ways, of which one lies behind it: the others wait at the barrier by then. Some of those that
/// come last end before the barrier: on the way to it, they run what the others will run again.
#[test]
fn lanes_that_come_to_a_barrier_late_may_end_on_the_way() {
    let round = "add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; bra HEAD;";
    let late = "LATE: add.u32 %r1, %r1, 0; bra HEAD;";
    for lines in [
        format!("@!%p0 bra LATE; HEAD: setp.ge.u32 %p2, %r1, %r3; @%p2 ret; bar.sync 0; {round} {late}"),
        format!(
            "@!%p0 bra LATE; HEAD: setp.ge.u32 %p2, %r1, %r3; @%p2 bra END; bar.sync 0; {round} {late} END:"
        ),
        // Lanes take another way to the barrier in every second round.
        format!(
            "@!%p0 bra LATE; HEAD: setp.ge.u32 %p2, %r1, %r3; @%p2 ret; and.b32 %r4, %r1, 1; setp.eq.u32 %p3, %r4, 0; @%p3 bra EVEN;\n\
             JOIN: bar.sync 0; {round} EVEN: add.u32 %r5, %r5, 1; bra JOIN; {late}"
        ),
        // The loop is one in another one, from whose head some come.
        "@!%p0 bra LATE; OUTER: add.u32 %r5, %r5, 1; HEAD: setp.ge.u32 %p2, %r1, %r3; @%p2 ret; bar.sync 0; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;\n\
             setp.eq.u32 %p3, %r1, 1; @%p3 bra OUTER; bra HEAD; LATE: setp.lt.u32 %p3, %r2, 20; @%p3 bra HEAD; bra OUTER;"
            .to_string(),
    ] {
        let lines = format!(
            "{AT_THREAD} mov.u32 %r1, 0; and.b32 %r2, %r0, 31; setp.lt.u32 %p0, %r2, 16; setp.lt.u32 %p1, %r2, 24;\n\
             selp.u32 %r3, 3, 0, %p1;\n{lines}"
        );
        let found = run(&lines, 64, 64).unwrap_or_else(|mistake| panic!("{mistake}\n{lines}"));
        assert!(found.into_iter().eq((0..64).map(|lane| if lane % 32 < 24 { 3 } else { 0 })), "{lines}");
    }
}

/// The same where the way to the barrier has a loop, in which the late ones stay for long: they run its steps many times before they end.
#[test]
fn lanes_that_come_to_a_barrier_late_may_loop_on_the_way() {
    let around = "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r6;";
    let rest = "setp.ge.u32 %p2, %r1, %r3; @%p2 ret; bar.sync 0; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; mov.u32 %r6, 5;";
    for lines in [
        format!("HEAD: mov.u32 %r5, 0; INNER: {around} @%p1 bra INNER; {rest} bra HEAD;"),
        format!(
            "HEAD: mov.u32 %r5, 0; INNER: {around} @!%p1 bra OUT; add.u32 %r7, %r7, 1; bra INNER; OUT: {rest} bra HEAD;"
        ),
        // Both loops have one head.
        format!("mov.u32 %r5, 0; HEAD: {around} @%p1 bra HEAD; {rest} mov.u32 %r5, 0; bra HEAD;"),
    ] {
        let lines = format!(
            "{AT_THREAD} mov.u32 %r1, 0; and.b32 %r2, %r0, 31; setp.lt.u32 %p0, %r2, 16; selp.u32 %r3, 3, 0, %p0;\n\
             selp.u32 %r6, 5, 5000, %p0;\n{lines}"
        );
        let module = module(&kernel(&lines));
        for seed in 0..8 {
            let mut memory = Memory::default();
            let address = memory.alloc(&[0; 64]);
            let parameters = address.to_le_bytes();
            let launch = gpumem_ptx::Launch { seed, ..launch(&parameters, 1, 64) };
            let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
            assert_eq!(outcome.mistake, None, "seed {seed}\n{lines}");
            let expected = (0..64).map(|lane| if lane % 32 < 16 { 3 } else { 0 });
            assert!(memory.words(address).into_iter().eq(expected), "seed {seed}\n{lines}");
        }
    }
}

/// Two warps produce what two others consume, by barriers that both count at: a full and an empty one.
#[test]
fn producers_and_consumers_meet_at_counted_barriers() {
    let lines = ".shared .align 4 .u32 slots[64]; shr.u32 %r1, %r0, 6; and.b32 %r2, %r0, 63; shl.b32 %r3, %r2, 2;\n\
                 mov.u32 %r4, slots; add.u32 %r3, %r3, %r4; mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r10, 1; mov.u32 %r11, 128;\n\
                 setp.eq.u32 %p0, %r1, 1; @%p0 bra CONSUME;\n\
                 PRODUCE: bar.sync 2, 128; add.u32 %r7, %r5, %r2; st.shared.u32 [%r3], %r7; bar.arrive 1, 128;\n\
                 add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8; @%p1 bra PRODUCE; ret;\n\
                 CONSUME: bar.arrive 2, 128; bar.sync %r10, %r11; xor.b32 %r8, %r3, 128; ld.shared.u32 %r9, [%r8]; add.u32 %r6, %r6, %r9;\n\
                 add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8; @%p1 bra CONSUME; st.global.u32 [%rd1], %r6;";
    let module = module(&kernel(&format!("{AT_THREAD}\n{lines}")));
    for seed in 0..32 {
        for races in [false, true] {
            let mut memory = Memory::default();
            let address = memory.alloc(&[0; 128]);
            let parameters = address.to_le_bytes();
            let checks = gpumem_ptx::Checks { races, uninitialised: false };
            let launch = gpumem_ptx::Launch { seed, checks, ..launch(&parameters, 1, 128) };
            let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
            assert_eq!((outcome.mistake, outcome.hazards), (None, Vec::new()), "seed {seed}");
            let expected = (0..64).map(|lane| 8 * (lane ^ 32) + 28);
            assert!(memory.words(address)[64..].iter().copied().eq(expected), "seed {seed}");
        }
    }
}

/// Votes of each pair of warps that meet, not of all that arrive.
#[test]
fn a_counted_barrier_opens_for_as_many_as_it_counts() {
    let lines = "setp.lt.u32 %p0, %r0, 1000; bar.red.popc.u32 %r1, 0, 64, %p0; st.global.u32 [%rd1], %r1;";
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 128, 128).unwrap(), [64; 128]);
    // Each warp alone.
    let lines = lines.replace("64", "32");
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 128, 128).unwrap(), [32; 128]);
    // A number of 0 stands for all.
    let lines = "mov.u32 %r2, 0; setp.lt.u32 %p0, %r0, 1000; bar.red.popc.u32 %r1, 0, %r2, %p0; st.global.u32 [%rd1], %r1;";
    assert_eq!(run(&format!("{AT_THREAD}{lines}"), 128, 128).unwrap(), [128; 128]);
    // All threads of the block are a number, too.
    let lines = "setp.lt.u32 %p0, %r0, 64; @%p0 bra ALL; bar.arrive 0, 128; ret; ALL: bar.sync 0; st.global.u32 [%rd1], 1;";
    let found = run(&format!("{AT_THREAD}{lines}"), 128, 128).unwrap();
    assert!(found.into_iter().eq((0..128).map(|thread| u32::from(thread < 64))));
}

/// Lanes that have ended, or do not exist, are counted with the others of their warp.
#[test]
fn a_part_of_a_warp_counts_whole_at_a_counted_barrier() {
    for barrier in ["bar.sync 0, 64;", "barrier.sync 0, 64;"] {
        let lines =
            format!("{AT_THREAD} setp.eq.u32 %p0, %r0, 3; @%p0 ret; {barrier} st.global.u32 [%rd1], 1;");
        let found = run(&lines, 40, 40).unwrap();
        assert!(found.into_iter().eq((0..40).map(|thread| u32::from(thread != 3))), "{barrier}");
    }
}

/// Lanes of one mask execute the same instruction at two places of the text.
#[test]
fn lanes_of_one_mask_meet_at_several_places() {
    for (one, other, expected) in [
        ("bar.warp.sync -1;", "bar.warp.sync %r9;", [0, 0]),
        (
            "shfl.sync.bfly.b32 %r2, %r0, 16, 31, -1;",
            "shfl.sync.bfly.b32 %r2, %r8, 16, 31, %r9;",
            [16 + 100, 0],
        ),
        (
            "vote.sync.ballot.b32 %r2, %p1, -1;",
            "vote.sync.ballot.b32 %r2, %p2, %r9;",
            [0xffff_0001, 0xffff_0001],
        ),
        ("redux.sync.add.u32 %r2, 1, -1;", "redux.sync.add.u32 %r2, 2, %r9;", [48, 48]),
        ("match.any.sync.b32 %r2, 7, -1;", "match.any.sync.b32 %r2, 7, %r9;", [u32::MAX; 2]),
        ("match.all.sync.b32 %r2|%p3, 7, -1;", "match.all.sync.b32 %r2|%p3, 8, %r9;", [0, 0]),
        ("elect.sync %r2|%p3, -1;", "elect.sync %r2|%p3, %r9;", [0, 0]),
    ] {
        let lines = format!(
            "{AT_THREAD} mov.u32 %r9, 0xffffffff; add.u32 %r8, %r0, 100; setp.eq.u32 %p1, %r0, 0; setp.ge.u32 %p2, %r0, 16;\n\
             mov.u32 %r2, 0; setp.ge.u32 %p0, %r0, 16; @%p0 bra OTHER; {one} bra END; OTHER: {other} END: st.global.u32 [%rd1], %r2;"
        );
        let found = run(&lines, 32, 32).unwrap_or_else(|mistake| panic!("{mistake}\n{one}"));
        assert_eq!([found[0], found[16]], expected, "{one}");
    }
    // Three places, one of them in a function.
    let text = format!(
        ".func meet(.reg .b32 m) {{ bar.warp.sync m; ret; }}\n{}",
        kernel(&format!(
            "{AT_THREAD} setp.lt.u32 %p0, %r0, 8; @%p0 bra A; setp.lt.u32 %p0, %r0, 16; @%p0 bra B; call.uni meet, (-1); bra END;\n\
             A: bar.warp.sync -1; bra END; B: bar.warp.sync -1; END: st.global.u32 [%rd1], 1;"
        ))
    );
    let (memory, address, outcome) = run_touching(&text, 32, 32);
    outcome.unwrap();
    assert_eq!(memory.words(address), [1; 32]);
}

/// Another instruction, or another mask, is no meeting.
#[test]
fn lanes_of_other_instructions_do_not_meet() {
    for (one, other) in [
        ("shfl.sync.bfly.b32 %r2, %r0, 16, 31, -1;", "shfl.sync.down.b32 %r2, %r0, 16, 31, -1;"),
        ("vote.sync.any.pred %p1, %p0, -1;", "vote.sync.all.pred %p1, %p0, -1;"),
        ("redux.sync.add.u32 %r2, 1, -1;", "redux.sync.min.u32 %r2, 1, -1;"),
        ("bar.warp.sync -1;", "bar.warp.sync 0x7fffffff;"),
    ] {
        let lines = format!(
            "{AT_THREAD} setp.ge.u32 %p0, %r0, 16; @%p0 bra OTHER; {one} bra END; OTHER: {other} END: st.global.u32 [%rd1], %r2;"
        );
        let found = run(&lines, 32, 32).unwrap_err();
        assert!(matches!(found.mistake, Mistake::Deadlock { .. }), "{found}\n{one}");
    }
}

/// Each thread takes a lock in a loop: those that wait make room for the one that has it.
#[test]
fn a_lock_that_each_lane_takes_makes_progress() {
    let add = "ld.volatile.u32 %r1, [%rd3]; add.u32 %r1, %r1, 1; st.volatile.u32 [%rd3], %r1;";
    for lines in [
        // By a compare-and-swap, by an exchange, and by a look before it.
        format!(
            "LOOP: atom.cas.b32 %r2, [%rd2], 0, 1; setp.ne.u32 %p0, %r2, 0; @%p0 bra LOOP; {add} membar.gl; atom.exch.b32 %r2, [%rd2], 0;"
        ),
        format!(
            "LOOP: atom.exch.b32 %r2, [%rd2], 1; setp.eq.u32 %p0, %r2, 0; @!%p0 bra LOOP; {add} membar.gl; st.volatile.u32 [%rd2], 0;"
        ),
        format!(
            "LOOP: ld.volatile.u32 %r2, [%rd2]; setp.ne.u32 %p0, %r2, 0; @%p0 bra LOOP; atom.cas.b32 %r2, [%rd2], 0, 1;\n\
             setp.ne.u32 %p0, %r2, 0; @%p0 bra LOOP; {add} membar.gl; atom.exch.b32 %r2, [%rd2], 0;"
        ),
        // The way around: those that have it leave the loop from its middle.
        format!(
            "bra LOOP; GOT: {add} membar.gl; atom.exch.b32 %r2, [%rd2], 0; bra END;\n\
             LOOP: atom.cas.b32 %r2, [%rd2], 0, 1; setp.eq.u32 %p0, %r2, 0; @%p0 bra GOT; bra LOOP; END:"
        ),
        // By a ticket.
        format!(
            "atom.add.u32 %r3, [%rd4], 1; LOOP: ld.volatile.u32 %r2, [%rd2]; setp.ne.u32 %p0, %r2, %r3; @%p0 bra LOOP;\n\
             {add} membar.gl; add.u32 %r2, %r2, 1; st.volatile.u32 [%rd2], %r2;"
        ),
    ] {
        let text =
            kernel(&format!("add.u64 %rd2, %rd0, 4; mov.u64 %rd3, %rd0; add.u64 %rd4, %rd0, 8;\n{lines}"));
        let module = module(&text);
        for seed in 0..8 {
            let mut memory = Memory::default();
            let address = memory.alloc(&[0; 3]);
            let parameters = address.to_le_bytes();
            let launch = gpumem_ptx::Launch { seed, ..launch(&parameters, 4, 64) };
            let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
            assert_eq!(outcome.mistake, None, "{lines}");
            assert_eq!(memory.words(address)[0], 256, "{lines}");
            assert!(outcome.steps < 100_000, "{} steps\n{lines}", outcome.steps);
        }
    }
}

/// What is stopped is where it runs, not at a barrier at which others wait for it.
#[test]
fn a_loop_without_an_end_is_stopped_in_it() {
    let lines = "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32; @%p0 bra DONE;\nLOOP: ld.volatile.u32 %r1, [%rd0];\n\
                 setp.eq.u32 %p1, %r1, 0; @%p1 bra LOOP;\nDONE: bar.sync 0;";
    let mistake = run(lines, 64, 1).unwrap_err();
    assert!(matches!(mistake.mistake, Mistake::TooLong(_)) && [9, 10].contains(&mistake.line), "{mistake}");
    assert!(mistake.thread[0] >= 32, "{mistake}");
}
