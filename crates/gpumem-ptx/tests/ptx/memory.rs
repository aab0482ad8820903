//! Accesses of every kind of memory, and the record of them.

use crate::support::{Memory, kernel, launch, module, run, run_touching};
use gpumem_ptx::Mistake;

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
    assert_eq!(module.entry("k").unwrap().run(launch, &memory).unwrap().mistake, None);
    assert_eq!(memory.words(out), [6, 7]);
}

/// As in C, what a pair of braces leaves out is zero.
#[test]
fn initial_contents_of_arrays_in_arrays() {
    let words = |declaration: &str| -> Vec<u32> {
        let module = module(&format!(".global .align 16 {declaration};"));
        let bytes = module.variables()[0].contents(&[0]);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    assert_eq!(words(".u32 x[3][2] = {{1, 2}, {3}}"), [1, 2, 3, 0, 0, 0]);
    assert_eq!(words(".u32 x[2][3] = {{1}, {2, 3}}"), [1, 0, 0, 2, 3, 0]);
    assert_eq!(words(".u32 x[2][2][2] = {{{1}, {2}}, {{3}}}"), [1, 0, 2, 0, 3, 0, 0, 0]);
    assert_eq!(words(".u32 x[][2] = {{1}, {2}}"), [1, 0, 2, 0]);
    assert_eq!(words(".v4 .u32 x[2] = {{1, 2}, {3}}"), [1, 2, 0, 0, 3, 0, 0, 0]);
    assert_eq!(words(".u32 x[2][2] = {1, 2, 3}"), [1, 2, 3, 0]);
}

#[test]
fn elements_of_arrays_by_constant_indices() {
    let lines = ".shared .u32 s[4]; .local .v2 .u32 l[2]; st.shared.u32 s[1+1], 7; ld.shared.u32 %r0, [s+8];\n\
                 st.local.v2.u32 l[1], {5, 6}; ld.local.u32 %r1, [l+12]; st.global.v2.u32 [%rd0], {%r0, %r1};";
    assert_eq!(run(lines, 1, 2).unwrap(), [7, 6]);
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

#[test]
fn atomics_of_vectors() {
    let lines = "mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000; atom.global.add.v2.f32 {%f0, %f1}, [%rd0], {%f0, %f1};
                 mov.b32 %r0, 0x3c004000; red.global.max.noftz.v2.f16x2 [%rd0+8], {%r0, %r0};";
    assert_eq!(run(lines, 3, 4).unwrap(), [3_f32.to_bits(), 6_f32.to_bits(), 0x3c00_4000, 0x3c00_4000]);
}

/// Two warps: one fills shared memory, the other waits for it at a barrier in shared memory, three times.
#[test]
fn barriers_in_shared_memory_count_phases() {
    let lines = |arrive: &str| {
        format!(
            ".shared .b64 full; .shared .b64 empty; .shared .b32 value; mov.u32 %r0, %tid.x; mov.u32 %r1, 0; mov.u32 %r2, 0;
             setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [full], 1; @%p0 mbarrier.init.shared::cta.b64 [empty], 32; bar.sync 0;
             setp.ge.u32 %p1, %r0, 32; @%p1 bra TAKE;
             PUT: @!%p0 bra DONE; xor.b32 %r3, %r1, 1; and.b32 %r3, %r3, 1;
             A: mbarrier.try_wait.parity.shared.b64 %p2, [empty], %r3; @!%p2 bra A;
             add.u32 %r4, %r1, 5; st.shared.u32 [value], %r4; {arrive}
             add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra PUT; bra DONE;
             TAKE: and.b32 %r3, %r1, 1;
             B: mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [full], %r3; @!%p2 bra B;
             ld.shared.u32 %r4, [value]; add.u32 %r2, %r2, %r4; mbarrier.arrive.shared.b64 _, [empty];
             add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra TAKE;
             sub.u32 %r0, %r0, 32; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r2; DONE:"
        )
    };
    for arrive in [
        "mbarrier.arrive.release.cta.shared.b64 %rd2, [full];",
        "mbarrier.arrive.expect_tx.shared.b64 %rd2, [full], 8; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [full], 8;",
        "cp.async.ca.shared.global [value], [%rd0], 4, 0; st.shared.u32 [value], %r4; cp.async.mbarrier.arrive.noinc.shared.b64 [full];",
        "cvta.shared.u64 %rd3, full; mbarrier.arrive.b64 %rd2, [%rd3];",
    ] {
        assert_eq!(run(&lines(arrive), 64, 32).unwrap(), [18; 32], "{arrive}");
    }
    let state = "mbarrier.init.shared.b64 [full], 2; mbarrier.arrive.shared.b64 %rd1, [full]; mbarrier.pending_count.b64 %r0, %rd1;
                 mbarrier.arrive_drop.shared.b64 %rd2, [full]; mbarrier.test_wait.shared.b64 %p0, [full], %rd1;
                 mbarrier.arrive.shared.b64 %rd1, [full]; mbarrier.test_wait.shared.b64 %p1, [full], %rd1;
                 selp.u32 %r1, 1, 0, %p0; selp.u32 %r2, 1, 0, %p1; st.global.v2.u32 [%rd0], {%r1, %r2}; mbarrier.inval.shared.b64 [full];";
    assert_eq!(run(&format!(".shared .b64 full; {state}"), 1, 2).unwrap(), [1, 1]);
}

#[test]
fn hints_change_no_value() {
    let lines = "createpolicy.fractional.L2::evict_last.b64 %rd1, 1.0; ld.global.L2::cache_hint.u32 %r1, [%rd0], %rd1;
                 cp.async.cg.shared.global.L2::cache_hint [s], [%rd0], 16, 16, %rd1; prefetch.global.L2 [%rd0]; prefetchu.L1 [%rd0];
                 applypriority.global.L2::evict_normal [%rd0], 128; nanosleep.u32 20; griddepcontrol.wait;
                 setp.eq.u32 %p0, 1, 1; mov.u32 %r2, 9; st.shared.u32 [s], %r2; cp.async.ca.shared.global [s+4], [%rd0], 4, %p0; ld.shared.v2.u32 {%r3, %r4}, [s];
                 fence.proxy.async; mov.u32 %r5, %cluster_nctaid.y; mov.u32 %r6, %clusterid.x; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, %r6;
                 st.global.u32 [%rd0], %r3;";
    assert_eq!(run(&format!(".shared .align 16 .b8 s[16]; {lines}"), 1, 4).unwrap()[0], 10);
}

/// What it fills with zeros may lie behind the end of an array.
#[test]
fn a_copy_reads_no_more_than_its_source_has() {
    let lines = |len: u32| {
        format!(
            ".shared .align 16 .b8 tile[16]; mov.u32 %r0, tile; mov.u32 %r1, {len}; add.u64 %rd1, %rd0, 16;\n\
             cp.async.ca.shared.global [%r0], [%rd1], 16, %r1; cp.async.wait_all; ld.shared.u32 %r2, [tile+4]; st.global.u32 [%rd0], %r2;"
        )
    };
    let (_, _, outcome) = run_touching(&kernel(&lines(4)), 1, 5);
    assert_eq!(outcome.unwrap().reads, [0x1_0010..0x1_0014]);
    let (_, _, outcome) = run_touching(&kernel(&lines(8)), 1, 5);
    assert!(matches!(outcome.unwrap_err().mistake, Mistake::Refused { .. }));
}

/// The memory of the access that stops a kernel, its offset, and the limit.
fn out_of_bounds(text: &str, shared_bytes: u32) -> Option<(&'static str, u64, u64)> {
    let module = module(text);
    let mut memory = Memory::default();
    let parameters = memory.alloc(&[0; 64]).to_le_bytes();
    let launch = gpumem_ptx::Launch { shared_bytes, ..launch(&parameters, 1, 1) };
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    outcome.mistake.map(|mistake| match mistake.mistake {
        Mistake::OutOfBounds { space, offset_bytes, limit_bytes, .. } => (space, offset_bytes, limit_bytes),
        other => panic!("{other}"),
    })
}

#[test]
fn shared_memory_ends_with_its_variable() {
    // One variable whose size is no multiple of its alignment.
    let one = |store: &str| kernel(&format!(".shared .align 16 .b8 tile[260];\nmov.u32 %r0, 1;\n{store}"));
    assert_eq!(out_of_bounds(&one("st.shared.u32 [tile+256], %r0;"), 0), None);
    assert_eq!(out_of_bounds(&one("st.shared.u32 [tile+260], %r0;"), 0), Some(("shared", 260, 260)));
    // A neighbour, in the variable's own space and by a generic address.
    let two = |store: &str| {
        kernel(&format!(
            ".shared .align 4 .b8 first[64]; .shared .align 4 .b8 second[64];\nmov.u32 %r0, 1; st.shared.u32 [first], %r0;\n\
             st.shared.u32 [second+60], %r0; mov.u64 %rd1, first; cvta.shared.u64 %rd1, %rd1;\n{store}"
        ))
    };
    assert_eq!(out_of_bounds(&two("st.shared.u32 [first+60], %r0; st.u32 [%rd1+60], %r0;"), 0), None);
    for store in ["st.shared.u32 [first+64], %r0;", "st.u32 [%rd1+64], %r0;", "st.shared.u8 [first+79], %r0;"]
    {
        assert!(matches!(out_of_bounds(&two(store), 0), Some(("shared", _, 64))), "{store}");
    }
    assert!(out_of_bounds(&two("st.shared.u32 [second+64], %r0;"), 0).is_some());
    // The dynamic memory behind a variable.
    let dynamic = |store: &str| {
        ".extern .shared .align 16 .b8 dynamic[];\n".to_string()
            + &kernel(&format!(
                ".shared .align 4 .b8 tile[20];\nmov.u32 %r0, 1; st.shared.u32 [tile], %r0;\n{store}"
            ))
    };
    assert_eq!(out_of_bounds(&dynamic("st.shared.u32 [dynamic+4], %r0;"), 8), None);
    assert_eq!(out_of_bounds(&dynamic("st.shared.u32 [tile+20], %r0;"), 8), Some(("shared", 20, 20)));
    assert!(out_of_bounds(&dynamic("st.shared.u32 [dynamic+8], %r0;"), 8).is_some());
    assert!(out_of_bounds(&dynamic("st.shared.u32 [dynamic], %r0;"), 0).is_some());
}

#[test]
fn gaps_between_variables_do_not_count_as_shared_memory() {
    let lines = ".shared .align 4 .b8 first[4]; .shared .align 8 .b8 second[8];\nst.shared.u32 [first], 1; st.shared.u64 [second], 1;\n\
                 mov.u32 %r0, %total_smem_size; st.global.u32 [%rd0], %r0;";
    assert_eq!(module(&kernel(lines)).entry("k").unwrap().shared_bytes(), 16);
    assert_eq!(run(lines, 1, 1).unwrap(), [16]);
}

#[test]
fn local_memory_ends_with_the_frame() {
    let lines = |size: u32, store: &str| {
        kernel(&format!(
            ".local .align 4 .b8 depot[{size}];\nmov.u32 %r0, 1; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1;\n{store}"
        ))
    };
    assert_eq!(out_of_bounds(&lines(20, "st.local.u32 [depot+16], %r0; st.u32 [%rd1+16], %r0;"), 0), None);
    assert_eq!(out_of_bounds(&lines(20, "st.local.u32 [depot+20], %r0;"), 0), Some(("local", 20, 20)));
    assert_eq!(out_of_bounds(&lines(20, "st.u32 [%rd1+20], %r0;"), 0), Some(("local", 20, 20)));
    // In a callee, whose frame is one of three in each other, and in the caller when it has returned.
    let calls = |inner: &str, outer: &str| {
        format!(
            ".func inner() {{\n.local .align 4 .b8 depot[20]; .reg .b32 %r<2>;\nmov.u32 %r0, 1;\n{inner}\nret;\n}}\n\
             .func outer() {{\n.local .align 4 .b8 depot[36];\ncall inner;\nst.local.u32 [depot+32], 1;\nret;\n}}\n{}",
            kernel(&format!(".local .align 4 .b8 depot[20];\nmov.u32 %r0, 1; call outer;\n{outer}"))
        )
    };
    let fits = "st.local.u32 [depot+16], %r0;";
    assert_eq!(out_of_bounds(&calls(fits, fits), 0), None);
    // The frames begin at multiples of 16: at 32, and at 80.
    assert_eq!(out_of_bounds(&calls("st.local.u32 [depot+20], %r0;", fits), 0), Some(("local", 100, 100)));
    assert_eq!(out_of_bounds(&calls(fits, "st.local.u32 [depot+20], %r0;"), 0), Some(("local", 20, 20)));
}

/// Sums of `f32` flush subnormal numbers in global memory, and keep them in shared memory, also at a generic address.
#[test]
fn atomic_sums_flush_by_the_memory_of_the_address() {
    let lines = ".shared .align 4 .b8 slot[8];\nmov.b32 %f0, 0x00000001; mov.b32 %r0, 0x00000003;\n\
                 st.shared.u32 [slot], %r0; st.shared.u32 [slot+4], %r0; st.global.u32 [%rd0+8], %r0; st.global.u32 [%rd0+12], %r0;\n\
                 mov.u64 %rd1, slot; cvta.shared.u64 %rd1, %rd1;\n\
                 atom.shared.add.f32 %f1, [slot], %f0; atom.add.f32 %f1, [%rd1+4], %f0;\n\
                 atom.global.add.f32 %f1, [%rd0+8], %f0; atom.add.f32 %f1, [%rd0+12], %f0;\n\
                 ld.shared.u32 %r1, [slot]; ld.shared.u32 %r2, [slot+4]; st.global.v2.u32 [%rd0], {%r1, %r2};";
    assert_eq!(run(lines, 1, 4).unwrap(), [4, 4, 0, 0]);
}
