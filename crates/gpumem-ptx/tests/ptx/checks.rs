//! What is looked for on request, and what kernels print.

use crate::support::{Memory, kernel, launch, module};
use gpumem_ptx::{Checks, Launch, Mistake, Outcome};

const AT_THREAD: &str = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd1, %rd0; mov.u64 %rd3, tile; \
                         add.u64 %rd3, %rd3, %rd1;";

/// Runs a kernel with these lines and 256 bytes of shared memory, with all checks.
fn checked(lines: &str, block: u32) -> Outcome {
    let text = kernel(&format!(".shared .align 4 .b8 tile[256];\n{AT_THREAD}\n{lines}"));
    let module = module(&text);
    let mut memory = Memory::default();
    let parameters = memory.alloc(&[0; 64]).to_le_bytes();
    let checks = Checks { races: true, uninitialised: true };
    let launch = Launch { checks, ..launch(&parameters, 2, block) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    assert_eq!(outcome.mistake, None);
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

#[test]
fn a_value_that_is_passed_by_an_atomic_needs_a_fence() {
    // Thread 0 of each block adds to a word, and the one that comes second reads what the other has left.
    let lines = |fence: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd4, %rd0; st.global.u32 [%rd4+16], %r1;\n{fence}\n\
             atom.global.add.u32 %r2, [%rd0], 1;\nsetp.eq.u32 %p0, %r2, 1;\n@%p0 ld.global.u32 %r3, [%rd0+16];\n\
             @%p0 ld.global.u32 %r4, [%rd0+20];"
        )
    };
    assert_eq!(hazards(&lines("membar.gl;"), 1), [""; 0]);
    assert_eq!(hazards(&lines("fence.acq_rel.gpu;"), 1), [""; 0]);
    let found = checked(&lines(""), 1).hazards;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(matches!(found[0].mistake, Mistake::Race { space: "global", .. }), "{found:?}");
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
