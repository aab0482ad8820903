//! Checks of single accesses: constant memory, arguments, barriers in shared memory, loads that are not coherent, copies.

use crate::support::{Memory, kernel, launch, module, run};
use gpumem_ptx::{Checks, Launch, Mistake, Outcome};

/// Runs the kernel `k` of a module with words in its variables and in the memory that its parameter names.
fn outcome(text: &str, block: u32, checks: Checks) -> Outcome {
    let module = module(text);
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None, "{text}");
    let mut memory = Memory::default();
    let address = memory.alloc(&[0; 64]);
    let variables: Vec<u64> = module
        .variables()
        .iter()
        .map(|variable| {
            let bytes = variable.contents(&[]);
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            memory.alloc(&bytes.chunks(4).map(word).collect::<Vec<_>>())
        })
        .collect();
    let parameters = address.to_le_bytes();
    let launch = Launch { variables: &variables, checks, ..launch(&parameters, 1, block) };
    entry.run(launch, &memory).unwrap()
}

fn hazards(text: &str, block: u32) -> Vec<String> {
    let outcome = outcome(text, block, Checks { races: true, uninitialised: true });
    assert_eq!(outcome.mistake, None, "{text}");
    outcome.hazards.into_iter().map(|found| found.mistake.to_string()).collect()
}

fn mistake(text: &str) -> Mistake {
    outcome(text, 1, Checks::default()).mistake.map(|found| found.mistake).expect(text)
}

#[test]
fn constant_memory_is_not_written() {
    let text = |line: &str| {
        format!(
            ".const .align 8 .b32 c[2] = {{7, 8}};\n.global .align 8 .b32 g[2];\n{}",
            kernel(&format!(
                "mov.u64 %rd1, c; cvta.const.u64 %rd1, %rd1; mov.u64 %rd2, g; cvta.global.u64 %rd2, %rd2; {line}"
            ))
        )
    };
    for line in [
        "st.u32 [%rd1], 5;",
        "ld.u32 %r0, [%rd1]; st.u32 [%rd1+4], %r0;",
        "st.global.u32 [%rd1+4], 5;",
        "atom.add.u32 %r0, [%rd1], 1;",
        "st.u64 [%rd1], %rd1;",
    ] {
        let found = mistake(&text(line));
        assert!(matches!(found, Mistake::Constant { .. }), "{line}: {found}");
    }
    for line in
        ["ld.u32 %r0, [%rd1]; st.u32 [%rd2], %r0; ld.global.u64 %rd3, [%rd1];", "st.u64 [%rd2], %rd1;"]
    {
        assert_eq!(outcome(&text(line), 1, Checks::default()).mistake, None, "{line}");
    }
}

/// The two variables lie side by side in one allocation, of which a part is constant.
#[test]
fn constant_memory_beside_other_memory_is_not_written() {
    let lines = "mov.u64 %rd1, c; cvta.const.u64 %rd1, %rd1; ld.u32 %r0, [%rd1+-4]; st.u32 [%rd1+-4], %r0; ld.u32 %r0, [%rd1]; \
                 st.u32 [%rd1+8], %r0; st.u32 [%rd1], %r0;";
    let text = format!(".const .align 8 .b32 c[2];\n{}", kernel(lines));
    let module = module(&text);
    let mut memory = Memory::default();
    let address = memory.alloc(&[0; 64]);
    let parameters = address.to_le_bytes();
    let variables = [address + 64];
    let launch = Launch { variables: &variables, ..launch(&parameters, 1, 1) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    assert_eq!(
        outcome.mistake.unwrap().mistake.to_string(),
        format!("writes 4 bytes at {:#x} of constant memory", address + 64)
    );
    assert_eq!(outcome.touched.writes, [address + 60..address + 64, address + 72..address + 76]);
}

/// Behind the buffer lie other variables of the thread.
#[test]
fn what_is_printed_lies_in_its_buffer() {
    let text = |format: &str, bytes: usize| {
        let format: Vec<String> = format.bytes().map(|byte| byte.to_string()).collect();
        format!(
            ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .b8 format[32] = {{{}, 0}};\n{}",
            format.join(", "),
            kernel(&format!(
                ".local .align 8 .b8 l[{bytes}]; .local .align 8 .b8 behind[64]; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1; st.u64 [%rd1], 5; \
                 st.local.u64 [behind], 6; {{ .param .b64 f; .param .b64 v; .param .b32 r; mov.u64 %rd2, format; st.param.b64 [f], %rd2; \
                 st.param.b64 [v], %rd1; call (r), vprintf, (f, v); }}"
            ))
        )
    };
    assert_eq!(outcome(&text("%d %d", 8), 1, Checks::default()).printed, "5 0");
    for (format, bytes) in [("%d %d %d", 8), ("%lld %d", 8), ("%d %f", 8), ("%lld %lld %lld", 16)] {
        let found = mistake(&text(format, bytes));
        let Mistake::OutOfBounds { space: "local", offset_bytes, limit_bytes, is_write: false, .. } = found
        else {
            panic!("{found}")
        };
        assert_eq!((offset_bytes, limit_bytes), (bytes as u64, bytes as u64), "{format}");
    }
}

#[test]
fn a_pointer_to_a_function_of_other_sizes() {
    let text = |of: &str, prototype: &str, call: &str| {
        format!(
            ".func (.param .b64 r) wide(.param .b32 a) {{ .reg .b64 x; mov.u64 x, 1; st.param.b64 [r], x; ret; }}\n\
             .func (.param .b32 r) narrow(.param .b32 a) {{ .reg .b32 x; mov.u32 x, 1; st.param.b32 [r], x; ret; }}\n\
             .func (.param .b32 r) many(.param .align 4 .b8 a[12]) {{ .reg .b32 x; mov.u32 x, 1; st.param.b32 [r], x; ret; }}\n{}",
            kernel(&format!(
                ".param .b32 p4; .param .b64 p8; mov.u32 %r0, 3; st.param.b32 [p4], %r0; mov.u64 %rd1, {of};\nP: .callprototype {prototype}; {call}, P;"
            ))
        )
    };
    let small = ("(.param .b32 _) _ (.param .b32 _)", "call (p4), %rd1, (p4)");
    for of in ["wide", "many"] {
        let found = mistake(&text(of, small.0, small.1));
        assert!(matches!(found, Mistake::WrongPrototype(_)), "{of}: {found}");
    }
    let large = ("(.param .b64 _) _ (.param .b32 _)", "call (p8), %rd1, (p4)");
    assert!(matches!(mistake(&text("narrow", large.0, large.1)), Mistake::WrongPrototype(_)));
    for (of, (prototype, call)) in [("narrow", small), ("wide", large)] {
        assert_eq!(outcome(&text(of, prototype, call), 1, Checks::default()).mistake, None, "{of}");
    }
}

#[test]
fn parameters_that_nobody_has_written() {
    let text = |stored: &str, given: &str| {
        format!(
            ".func (.param .b32 r) f(.param .align 4 .b8 a[8]) {{ .reg .b32 %x, %y; ld.param.b32 %x, [a]; ld.param.b32 %y, [a+4]; add.u32 %x, %x, %y;\n\
             {stored} ret; }}\n{}",
            kernel(&format!(
                ".param .align 4 .b8 p[8]; .param .b32 q; mov.u32 %r0, 3;\n{given}\ncall (q), f, (p);\nld.param.b32 %r1, [q];\nst.global.u32 [%rd0], %r1;"
            ))
        )
    };
    let (stored, given) = ("st.param.b32 [r], %x;", "st.param.b32 [p], %r0; st.param.b32 [p+4], %r0;");
    assert_eq!(hazards(&text(stored, given), 1), [""; 0]);
    let found = hazards(&text(stored, "st.param.b32 [p], %r0;"), 1);
    assert!(found.len() == 1 && found[0].ends_with("of local memory, which were never written"), "{found:?}");
    let found = hazards(&text("", given), 1);
    assert!(found.len() == 1 && found[0].starts_with("reads 4 bytes"), "{found:?}");
    // What an earlier call has given back is gone.
    let twice = text(
        "setp.eq.u32 %p, %x, 3; @%p st.param.b32 [r], %x;",
        "st.param.b32 [p], %r0; st.param.b32 [p+4], %r0; call (q), f, (p); ld.param.b32 %r1, [q]; st.param.b32 [p], 4;",
    )
    .replace(".reg .b32 %x, %y;", ".reg .b32 %x, %y; .reg .pred %p;")
    .replace("add.u32 %x, %x, %y;", "");
    assert_eq!(hazards(&twice, 1).len(), 1);
}

#[test]
fn loads_that_are_not_coherent() {
    let lines = "st.global.u32 [%rd0], 5;\nld.global.nc.u32 %r0, [%rd0];\nst.global.u32 [%rd0+8], %r0;";
    assert_eq!(
        hazards(&kernel(lines), 1),
        ["reads 4 bytes at 0x10000 by `ld.global.nc`, which the kernel wrote at line 8"]
    );
    // By another thread, behind a barrier.
    let lines = "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; @%p0 st.global.u32 [%rd0], 5; bar.sync 0;\n\
                 ld.global.nc.v2.u32 {%r0, %r1}, [%rd0];";
    assert_eq!(hazards(&kernel(lines), 64).len(), 1);
    for lines in [
        "st.global.u32 [%rd0], 5; ld.global.u32 %r0, [%rd0]; ld.global.nc.u32 %r0, [%rd0+4];",
        "ld.global.nc.u32 %r0, [%rd0]; st.global.u32 [%rd0], %r0;",
    ] {
        let outcome = outcome(&kernel(lines), 1, Checks { races: true, uninitialised: false });
        assert_eq!((outcome.mistake, outcome.hazards), (None, Vec::new()), "{lines}");
    }
}

#[test]
fn barriers_in_shared_memory_have_a_beginning_and_an_end() {
    let found = |lines: &str| {
        hazards(&kernel(&format!(".shared .align 8 .b64 b; .shared .align 8 .b64 c; {lines}")), 1)
    };
    let (init, inval) = ("mbarrier.init.shared.b64 [b], 1;", "mbarrier.inval.shared.b64 [b];");
    let arrive = "mbarrier.arrive.shared.b64 %rd1, [b];";
    let wait = "mbarrier.test_wait.shared.b64 %p0, [b], %rd1;";
    let generic = "mov.u64 %rd2, b; cvta.shared.u64 %rd2, %rd2; mbarrier.arrive.b64 %rd1, [%rd2];";
    for lines in [
        format!("{init} {arrive} {wait} {inval}"),
        format!("{init} {inval} {init} {arrive} {inval}"),
        format!("{init} {generic} {inval}"),
        format!("{init} {arrive} mbarrier.init.shared.b64 [c], 1;"),
        format!("{init} mbarrier.arrive_drop.shared.b64 %rd1, [b]; {wait} {inval}"),
    ] {
        assert_eq!(found(&lines), [""; 0], "{lines}");
    }
    let uses = "uses the barrier at 0x0 of shared memory, which is not initialised";
    let begins = "initialises the barrier at 0x0 of shared memory, which is initialised";
    for (lines, expected) in [
        (format!("{init} {inval} {arrive}"), uses),
        (format!("{init} {inval} {generic}"), uses),
        (format!("{init} {inval} {inval}"), uses),
        (format!("{init} {init}"), begins),
        (format!("st.shared.u64 [b], 0; {inval} {init}"), uses),
    ] {
        assert_eq!(found(&lines), [expected], "{lines}");
    }
    // Before the beginning, the bytes are unwritten, too.
    assert!(found(arrive).iter().any(|found| found == uses));
}

#[test]
fn a_copy_of_more_bytes_than_its_target_has() {
    let lines = |bytes: u32| {
        format!(
            ".shared .align 16 .b8 s[64]; mov.u32 %r0, {bytes}; cp.async.ca.shared.global [s], [%rd0], 8, %r0; cp.async.wait_all;"
        )
    };
    assert_eq!(run(&lines(8), 1, 8).unwrap(), [0; 8]);
    assert_eq!(run(&lines(0), 1, 8).unwrap(), [0; 8]);
    for bytes in [9, 16, u32::MAX] {
        let found = run(&lines(bytes), 1, 8).unwrap_err().mistake;
        assert_eq!(found, Mistake::CopySize { source_bytes: bytes.into(), size_bytes: 8 });
    }
}
