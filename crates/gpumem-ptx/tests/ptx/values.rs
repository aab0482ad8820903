//! What instructions compute.

use crate::support::run;

/// The word that these lines leave in `%r1`.
fn word(lines: &str) -> u32 {
    run(&format!("{lines}\nst.global.u32 [%rd0], %r1;"), 1, 1).unwrap()[0]
}

fn float(lines: &str) -> f32 {
    f32::from_bits(run(&format!("{lines}\nst.global.f32 [%rd0], %f1;"), 1, 1).unwrap()[0])
}

#[test]
fn integers() {
    assert_eq!(word("mov.u32 %r0, 7; mad.lo.s32 %r1, %r0, -3, 1;"), -20_i32 as u32);
    assert_eq!(
        word("mul.wide.u32 %rd1, -1, -1; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1;"),
        u32::MAX - 1
    );
    assert_eq!(word("add.cc.u32 %r0, -1, 1; addc.u32 %r1, 5, 0;"), 6);
    assert_eq!(word("sub.cc.u32 %r0, 0, 1; subc.u32 %r1, 5, 0;"), 4);
    assert_eq!(word("lop3.b32 %r1, 0xf0, 0xcc, 0xaa, 0x96;") & 0xff, 0x96);
    assert_eq!(word("bfi.b32 %r1, 0xf, 0, 8, 4;"), 0xf00);
    assert_eq!(word("dp4a.s32.s32 %r1, 0x01ff02fe, 0x01010101, 10;"), 10);
    assert_eq!(
        word("mov.b32 %r0, 0x00010002; mov.b32 {%h0, %h1}, %r0; mov.b32 %r1, {%h1, %h0};"),
        0x0002_0001
    );
    assert_eq!(word("mov.u32 %r0, 9; sub.u32 %r0, 0, %r0; cvt.s8.s32 %r1, %r0;"), -9_i32 as u32);
    assert_eq!(word("setp.lt.s32 %p0|%p1, -1, 1; selp.u32 %r1, 3, 4, %p0; @%p1 mov.u32 %r1, 9;"), 3);
    assert_eq!(word("setp.lt.u32 %p0, -1, 1; selp.u32 %r1, 3, 4, %p0;"), 4);
    assert_eq!(word("mov.pred %p0, 1; setp.eq.and.s32 %p1, 2, 2, !%p0; selp.u32 %r1, 1, 2, %p1;"), 2);
}

/// A guard is read before the instruction writes it.
#[test]
fn an_instruction_may_write_its_own_guard() {
    assert_eq!(
        word(
            "mov.u32 %r1, 1; setp.eq.s32 %p0, 1, 1; @%p0 setp.ne.or.s32 %p0, 1, 1, %p0; @%p0 mov.u32 %r1, 5;"
        ),
        5
    );
}

#[test]
fn fractions() {
    assert_eq!(float("mov.f32 %f0, 0f3F800000; add.rn.f32 %f1, %f0, 0f33800000;"), 1.0);
    assert_eq!(float("mov.f32 %f0, 0f3F800000; add.rp.f32 %f1, %f0, 0f33800000;"), 1.0_f32.next_up());
    assert_eq!(float("fma.rn.sat.f32 %f1, 0f40000000, 0f40000000, 0f3F800000;"), 1.0);
    assert_eq!(float("mul.rn.ftz.f32 %f1, 0f00400000, 0f40000000;"), 0.0);
    // Tiny before rounding, and the least normal number after it.
    assert_eq!(float("mul.rn.ftz.f32 %f1, 0f3F7FFFFF, 0f00800000;"), 0.0);
    assert_eq!(float("mul.rn.f32 %f1, 0f3F7FFFFF, 0f00800000;"), f32::MIN_POSITIVE);
    assert_eq!(float("sqrt.rm.f32 %f1, 0f40000000;"), core::f32::consts::SQRT_2);
    assert_eq!(float("sqrt.rp.f32 %f1, 0f40000000;"), core::f32::consts::SQRT_2.next_up());
    assert_eq!(word("div.rn.f32 %f0, 0f00000000, 0f00000000; mov.b32 %r1, %f0;"), 0x7fff_ffff);
    assert_eq!(word("max.f32 %f0, 0f80000000, 0f00000000; mov.b32 %r1, %f0;"), 0);
    assert_eq!(word("min.NaN.f32 %f0, 0f7FC00000, 0f00000000; mov.b32 %r1, %f0;"), 0x7fff_ffff);
    assert_eq!(word("mov.f64 %d0, 0d3FF8000000000000; cvt.rni.s32.f64 %r1, %d0;"), 2);
    assert_eq!(word("cvt.rn.f16x2.f32 %r1, 0f3F800000, 0f40000000;"), 0x3c00_4000);
    assert_eq!(word("mov.b32 %r0, 0x3c003c00; fma.rn.f16x2 %r1, %r0, %r0, %r0;"), 0x4000_4000);
}

#[test]
fn special_registers() {
    let lines = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %rd0;\n\
                 mov.u32 %r2, %laneid; mov.u32 %r3, %warpid; shl.b32 %r3, %r3, 8; or.b32 %r2, %r2, %r3;\n\
                 mov.u32 %r4, %lanemask_lt; popc.b32 %r4, %r4; shl.b32 %r4, %r4, 16; or.b32 %r2, %r2, %r4;\n\
                 st.global.u32 [%rd1], %r2;";
    let expected = (0..70).map(|thread| thread % 32 * 0x1_0001 + thread / 32 * 0x100);
    assert!(run(lines, 70, 70).unwrap().into_iter().eq(expected));
}

#[test]
fn lanes_exchange_values() {
    let at_thread = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;";
    let of = |lines: &str| run(&format!("{at_thread}{lines} st.global.u32 [%rd1], %r1;"), 32, 32).unwrap();
    assert!(of("shfl.sync.down.b32 %r1|%p1, %r0, 3, 31, -1;").into_iter().eq((0..32).map(|l| if l < 29 {
        l + 3
    } else {
        l
    })));
    assert!(of("shfl.sync.up.b32 %r1, %r0, 3, 0, -1;").into_iter().eq((0..32).map(|l: u32| if l < 3 {
        l
    } else {
        l - 3
    })));
    assert!(of("shfl.sync.bfly.b32 %r1, %r0, 5, 31, -1;").into_iter().eq((0..32).map(|l| l ^ 5)));
    // In segments of eight.
    assert!(of("shfl.sync.idx.b32 %r1, %r0, 2, 0x181f, -1;").into_iter().eq((0..32).map(|l| l / 8 * 8 + 2)));
    assert_eq!(of("setp.lt.u32 %p0, %r0, 5; vote.sync.ballot.b32 %r1, %p0, -1;"), [0b11111; 32]);
    assert!(
        of("shr.u32 %r2, %r0, 3; match.any.sync.b32 %r1, %r2, -1;")
            .into_iter()
            .eq((0..32).map(|l| 0xff << (l / 8 * 8)))
    );
    assert_eq!(of("redux.sync.add.u32 %r1, %r0, -1;"), [496; 32]);
}

#[test]
fn packed_and_narrow_numbers() {
    assert_eq!(
        word(
            "mov.u32 %r0, 0x01ff0310; mov.u32 %r2, 0x02000110; mov.u32 %r3, 7; vabsdiff4.u32.u32.u32.add %r1, %r0, %r2, %r3;"
        ),
        1 + 255 + 2 + 7
    );
    assert_eq!(
        word("mov.u32 %r0, 0x7fff0001; mov.u32 %r2, 0x0001ffff; vadd2.s32.s32.s32.sat %r1, %r0, %r2, %r2;"),
        0x7fff_0000
    );
    assert_eq!(word("mov.u32 %r0, 0xffff0003; mov.u32 %r2, 0xfffeffff; max.relu.s16x2 %r1, %r0, %r2;"), 3);
    assert_eq!(word("min.relu.s32 %r1, 5, -3;"), 0);
    assert_eq!(word("cvt.pack.sat.u8.s32.b32 %r1, 300, -5, 0x1234;"), 0x1234_ff00);
    assert_eq!(word("mad24.hi.u32 %r1, 0x10000, 0x30000, 4;"), 0x3_0004);
    // 448 is the largest number of this type; the first operand is the upper byte.
    assert_eq!(
        word("cvt.rn.satfinite.e4m3x2.f32 %h0, 0f7F800000, 0fBF800000; cvt.u32.u16 %r1, %h0;"),
        0x7eb8
    );
    assert_eq!(word("mov.b16 %h0, 0x38c0; cvt.rn.f16x2.e4m3x2 %r1, %h0;"), 0x3c00_c000);
    assert_eq!(word("mov.b16 %h0, 0x38c0; cvt.rn.relu.f16x2.e4m3x2 %r1, %h0;"), 0x3c00_0000);
    assert_eq!(
        word("mov.b32 %r0, 0xfc003c00; cvt.rn.satfinite.e5m2x2.f16x2 %h0, %r0; cvt.u32.u16 %r1, %h0;"),
        0xfb3c
    );
    assert_eq!(word("cvt.rna.tf32.f32 %r1, 0f3F801000;"), 0x3f80_2000);
    assert_eq!(word("cvt.rn.tf32.f32 %r1, 0f3F801000;"), 0x3f80_0000);
    assert_eq!(word("cvt.rz.bf16x2.f32 %r1, 0f3F80FFFF, 0fBF80FFFF;"), 0x3f80_bf80);
    for (rounding, value, bits) in [
        ("rn", "0d3FF0180000000000", 0x3f81),
        ("rz", "0d3FF0180000000000", 0x3f80),
        ("rp", "0d3FF0000000000001", 0x3f81),
        ("rm", "0dBFF0000000000001", 0xbf81),
        ("rz", "1e300", 0x7f7f),
    ] {
        let line = format!("mov.f64 %d0, {value}; cvt.{rounding}.bf16.f64 %h0, %d0; cvt.u32.u16 %r1, %h0;");
        assert_eq!(word(&line), bits, "{line}");
    }
    assert_eq!(word("cvt.rn.relu.f16x2.f32 %r1, 0fBF800000, 0f3F800000;"), 0x3c00);
    assert_eq!(word("mov.b16 %h0, 0x3e00; cvt.rn.bf16.f16 %h1, %h0; cvt.u32.u16 %r1, %h1;"), 0x3fc0);
}

#[test]
fn halves() {
    assert_eq!(word("mov.b32 %r0, 0x3c003c00; add.rn.sat.f16x2 %r1, %r0, %r0;"), 0x3c00_3c00);
    assert_eq!(
        word(
            "mov.b32 %r0, 0xbc003c00; mov.b32 %r2, 0x3c003c00; mov.b32 %r3, 0; fma.rn.relu.f16x2 %r1, %r0, %r2, %r3;"
        ),
        0x3c00
    );
    // The least numbers of all, whose sum is flushed.
    assert_eq!(word("mov.b32 %r0, 0x80010001; add.ftz.f16x2 %r1, %r0, %r0;"), 0x8000_0000);
    assert_eq!(
        word(
            "mov.b32 %r0, 0x3c004000; mov.b32 %r2, 0x40003c00; setp.lt.f16x2 %p0|%p1, %r0, %r2; selp.u32 %r1, 2, 0, %p0; @%p1 add.u32 %r1, %r1, 1;"
        ),
        1
    );
    assert_eq!(
        word("mov.b32 %r0, 0x3c004000; mov.b32 %r2, 0x40003c00; set.lt.f16x2.f16x2 %r1, %r0, %r2;"),
        0x3c00_0000
    );
    assert_eq!(
        word("mov.b32 %r0, 0x3c004000; mov.b32 %r2, 0x40003c00; set.lt.u32.bf16x2 %r1, %r0, %r2;"),
        0xffff_0000
    );
    assert_eq!(
        word("mov.b16 %h0, 0xc000; mov.b16 %h1, 0x4000; add.rn.bf16 %h2, %h0, %h1; cvt.u32.u16 %r1, %h2;"),
        0
    );
}

#[test]
fn numbers_chosen_by_signs() {
    assert_eq!(word("slct.b32.f32 %r1, 3, 4, 0f80000000;"), 3);
    assert_eq!(word("slct.b32.f32 %r1, 3, 4, 0f80000001;"), 4);
    assert_eq!(word("slct.ftz.b32.f32 %r1, 3, 4, 0f80000001;"), 3);
    assert_eq!(float("slct.f32.f32 %f1, 0f3F800000, 0f40000000, 0f7FC00000;"), 2.0);
    assert_eq!(float("min.xorsign.abs.f32 %f1, 0fC0400000, 0f40000000;"), -2.0);
    assert_eq!(float("max.xorsign.abs.f32 %f1, 0fC0400000, 0fC0000000;"), 3.0);
}
