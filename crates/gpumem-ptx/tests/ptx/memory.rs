//! Accesses of every kind of memory, and the record of them.

use crate::support::{Memory, kernel, launch, module, run, run_touching};

#[test]
fn vectors_narrow_types_and_signs() {
    let lines = "mov.u32 %r0, 1; mov.u32 %r1, 2; mov.u32 %r2, 3; mov.u32 %r3, 0xfffffff0;\n\
                 st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};\nld.global.v2.u32 {%r4, _}, [%rd0+8];\n\
                 ld.global.s8 %r5, [%rd0+12]; st.global.u32 [%rd0+16], %r5;\nld.global.u8 %h0, [%rd0+12]; st.global.u16 [%rd0+20], %h0;\n\
                 st.global.u32 [%rd0+24], %r4;";
    assert_eq!(run(lines, 1, 7).unwrap(), [1, 2, 3, 0xffff_fff0, 0xffff_fff0, 0xf0, 3]);
}

#[test]
fn threads_have_local_memory() {
    let lines = ".local .align 4 .b8 depot[64];\nmov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;\n\
                 mov.u64 %rd2, depot; cvta.local.u64 %rd3, %rd2; add.u64 %rd3, %rd3, 8;\nst.u32 [%rd3], %r0; ld.local.u32 %r1, [depot+8];\n\
                 st.global.u32 [%rd1], %r1;";
    assert!(run(lines, 33, 33).unwrap().into_iter().eq(0..33));
}

#[test]
fn shared_memory_has_generic_addresses() {
    let lines = ".shared .align 8 .b8 slots[16];\nmov.u64 %rd1, slots; cvta.shared.u64 %rd1, %rd1; mov.u32 %r0, 7; st.u32 [%rd1+4], %r0;\n\
                 isspacep.shared %p0, %rd1; isspacep.global %p1, %rd1; selp.u32 %r2, 1, 0, %p0; @%p1 mov.u32 %r2, 9;\n\
                 ld.shared.u32 %r1, [slots+4]; st.global.v2.u32 [%rd0], {%r1, %r2};";
    assert_eq!(run(lines, 1, 2).unwrap(), [7, 1]);
}

#[test]
fn variables_and_dynamic_shared_memory() {
    let text =
        ".global .align 4 .u32 table[3] = {5, 6, 7};\n.global .align 8 .u64 pointer = generic(table)+4;\n\
                .extern .shared .align 16 .b8 dynamic[];\n"
            .to_string()
            + &kernel(
                "ld.global.u64 %rd1, [pointer]; ld.global.u32 %r0, [%rd1]; ld.global.u32 %r1, [table+8];\n\
             st.shared.u32 [dynamic+4], %r1; ld.shared.u32 %r1, [dynamic+4]; st.global.v2.u32 [%rd0], {%r0, %r1};",
            );
    let module = module(&text);
    let mut memory = Memory::default();
    let out = memory.alloc(&[0, 0]);
    let addresses: Vec<u64> = [0x2_0000, 0x3_0000, 0].into();
    for (variable, address) in module.variables().iter().zip(&addresses).take(2) {
        assert!(variable.is_used);
        let bytes = variable.contents(&addresses);
        let words: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(memory.alloc(&words), *address);
    }
    let parameters = out.to_le_bytes();
    let launch = gpumem_ptx::Launch { variables: &addresses, shared_bytes: 8, ..launch(&parameters, 1, 1) };
    module.entry("k").unwrap().run(launch, &memory).1.unwrap();
    assert_eq!(memory.words(out), [6, 7]);
}

#[test]
fn atomics_of_all_threads_count() {
    let lines = "mov.u32 %r0, %tid.x; red.global.add.u32 [%rd0], %r0; atom.global.max.u32 %r1, [%rd0+4], %r0;\n\
                 atom.global.inc.u32 %r2, [%rd0+8], 9; mov.f32 %f0, 0f3F000000; red.global.add.f32 [%rd0+12], %f0;";
    assert_eq!(run(lines, 100, 4).unwrap(), [4950, 99, 0, 50_f32.to_bits()]);
}

#[test]
fn what_was_touched_is_known_to_the_byte() {
    let text = kernel(
        "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 8; add.u64 %rd1, %rd1, %rd0;\n\
         ld.global.u16 %h0, [%rd1]; st.global.u32 [%rd0+512], %r0;",
    );
    let (_, address, touched) = run_touching(&text, 32, 256);
    let touched = touched.unwrap();
    assert!(
        touched.reads.into_iter().eq((0..32).map(|thread| address + 8 * thread..address + 8 * thread + 2))
    );
    assert_eq!(touched.writes, [address + 512..address + 516]);
}
