//! Matrices in registers: each product against plain arithmetic, and how the elements get there.

use crate::support::{Memory, kernel, launch, module, run};
use half::{bf16, f16};

/// Numbers from -4 to 3, without an order.
fn small(len: usize, seed: u32) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 20 & 7) as i32 - 4
    };
    (0..len).map(|_| next()).collect()
}

/// Sums of products, for a second factor of `columns` columns.
fn product(a: &[i32], b: &[i32], columns: usize) -> Vec<i32> {
    let inner = b.len() / columns;
    let element = |row: &[i32], column: usize| {
        row.iter().zip(b.iter().skip(column).step_by(columns)).map(|(a, b)| a * b).sum()
    };
    a.chunks(inner).flat_map(|row| (0..columns).map(move |column| element(row, column))).collect()
}

/// Words with these halves.
fn halves(values: &[i32], bits: fn(f32) -> u16) -> Vec<u32> {
    let bits = |value: i32| u32::from(bits(value as f32));
    values.chunks(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect()
}

/// 64 × 64, by one warp: both factors are copied to shared memory, rows come from there by `ldmatrix`.
#[test]
fn a_product_of_64_rows_and_columns() {
    for (name, bits) in [
        ("f16", (|value| f16::from_f32(value).to_bits()) as fn(f32) -> u16),
        ("bf16", |value| bf16::from_f32(value).to_bits()),
    ] {
        let text = format!(
            ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{
            .reg .pred %p; .reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %rd<8>;
            .shared .align 16 .b8 left[8192]; .shared .align 16 .b8 right[8192];
            ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd2, [c];
            mov.u32 %r0, %laneid;
            mov.u32 %r1, left; mov.u32 %r2, right;
            shl.b32 %r3, %r0, 4;
            cvt.u64.u32 %rd3, %r3; add.u64 %rd4, %rd0, %rd3; add.u64 %rd5, %rd1, %rd3;
            add.u32 %r4, %r1, %r3; add.u32 %r5, %r2, %r3; mov.u32 %r6, 0;
            COPY:
            cp.async.cg.shared.global [%r4], [%rd4], 16; cp.async.cg.shared.global [%r5], [%rd5], 16;
            add.u64 %rd4, %rd4, 512; add.u64 %rd5, %rd5, 512; add.u32 %r4, %r4, 512; add.u32 %r5, %r5, 512;
            add.u32 %r6, %r6, 1; setp.lt.u32 %p, %r6, 16; @%p bra COPY;
            cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
            // The address of the row that this lane gives: rows of 128 bytes, and 16 bytes more for the lanes of the upper half.
            and.b32 %r7, %r0, 15; shl.b32 %r7, %r7, 7; shr.u32 %r8, %r0, 4; shl.b32 %r8, %r8, 4; add.u32 %r7, %r7, %r8;
            add.u32 %r9, %r1, %r7; mov.u32 %r10, 0;
            ROWS:
            and.b32 %r11, %r0, 15; shl.b32 %r11, %r11, 7; add.u32 %r11, %r2, %r11; mov.u32 %r12, 0;
            COLUMNS:
            mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
            mov.u32 %r13, %r9; mov.u32 %r14, %r11; mov.u32 %r15, 0;
            INNER:
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r13];
            ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r24, %r25}}, [%r14];
            mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32
                {{%f0, %f1, %f2, %f3}}, {{%r20, %r21, %r22, %r23}}, {{%r24, %r25}}, {{%f0, %f1, %f2, %f3}};
            add.u32 %r13, %r13, 32; add.u32 %r14, %r14, 2048;
            add.u32 %r15, %r15, 1; setp.lt.u32 %p, %r15, 4; @%p bra INNER;
            // Row lane / 4, columns 2 * (lane % 4) and the next one.
            shr.u32 %r16, %r0, 2; mad.lo.u32 %r16, %r10, 16, %r16; and.b32 %r17, %r0, 3; shl.b32 %r17, %r17, 1;
            mad.lo.u32 %r17, %r12, 8, %r17; mad.lo.u32 %r16, %r16, 64, %r17;
            mul.wide.u32 %rd6, %r16, 4; add.u64 %rd6, %rd2, %rd6;
            st.global.v2.f32 [%rd6], {{%f0, %f1}}; st.global.v2.f32 [%rd6+2048], {{%f2, %f3}};
            add.u32 %r11, %r11, 16; add.u32 %r12, %r12, 1; setp.lt.u32 %p, %r12, 8; @%p bra COLUMNS;
            add.u32 %r9, %r9, 2048; add.u32 %r10, %r10, 1; setp.lt.u32 %p, %r10, 4; @%p bra ROWS;
            ret; }}"
        );
        let (a, b) = (small(4096, 1), small(4096, 2));
        let mut memory = Memory::default();
        let addresses =
            [memory.alloc(&halves(&a, bits)), memory.alloc(&halves(&b, bits)), memory.alloc(&[0; 4096])];
        let parameters: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
        let module = module(&text);
        let entry = module.entry("k").unwrap();
        assert_eq!(entry.unsupported(), None);
        assert_eq!(entry.run(launch(&parameters, 1, 32), &memory).unwrap().mistake, None);
        let found = memory.words(addresses[2]).into_iter().map(|bits| f32::from_bits(bits) as i32);
        assert!(found.eq(product(&a, &b, 64)), "{name}");
    }
}

/// The elements of a lane in a product of `rows` × 8, as the manual of PTX places them: rows and columns of the first factor, and of the
/// second, for registers of `width` elements.
fn places(lane: usize, registers: usize, width: usize, bands: usize) -> Vec<(usize, usize)> {
    let element = |index: usize| {
        let (register, part) = (index / width, index % width);
        (lane / 4 + register % bands * 8, lane % 4 * width + part + register / bands * 4 * width)
    };
    (0..registers * width).map(element).collect()
}

/// Runs one instruction on the registers of a warp, and gives the target's: `counts` registers of the target, the first factor, the second
/// and the sum, each of `words` words.
fn run_product(opcode: &str, [d, a, b, c]: [usize; 4], words: usize, inputs: &[Vec<u32>]) -> Vec<u32> {
    let list = |name: char, count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("%{name}{number}")).collect();
        names.join(", ")
    };
    let of = if words == 2 { "b64" } else { "b32" };
    let mut lines = format!(
        ".reg .{of} %a<16>; .reg .{of} %b<16>; .reg .{of} %c<16>; .reg .{of} %e<16>; mov.u32 %r0, %laneid;
         mad.wide.u32 %rd1, %r0, {}, %rd0;",
        inputs[0].len() * 4
    );
    let mut offset = 0;
    for (name, count) in [('a', a), ('b', b), ('c', c)] {
        for number in 0..count {
            lines += &format!("ld.global.{of} %{name}{number}, [%rd1+{offset}];\n");
            offset += 4 * words;
        }
    }
    lines += &format!(
        "{opcode} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        list('e', d),
        list('a', a),
        list('b', b),
        list('c', c)
    );
    for number in 0..d {
        lines += &format!("st.global.{of} [%rd1+{}], %e{number};\n", number * 4 * words);
    }
    let module = module(&kernel(&lines));
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None);
    let mut memory = Memory::default();
    let address = memory.alloc(&inputs.concat());
    assert_eq!(entry.run(launch(&address.to_le_bytes(), 1, 32), &memory).unwrap().mistake, None);
    let found = memory.words(address);
    found.chunks(inputs[0].len()).flat_map(|lane| &lane[..d * words]).copied().collect()
}

#[test]
fn products_of_each_shape_and_type() {
    // Bits of an element of the factors, and its value's; bits of the sum.
    type Form = (&'static str, u32, fn(i32) -> u64, &'static str);
    let f64_bits: fn(i32) -> u64 = |value| f64::from(value).to_bits();
    let forms: [Form; 13] = [
        ("f16", 16, |value| f16::from_f32(value as f32).to_bits().into(), "f32"),
        ("f16", 16, |value| f16::from_f32(value as f32).to_bits().into(), "f16"),
        ("bf16", 16, |value| bf16::from_f32(value as f32).to_bits().into(), "f32"),
        ("tf32", 32, |value| (value as f32).to_bits().into(), "f32"),
        ("f64", 64, f64_bits, "f64"),
        ("s8", 8, |value| u64::from(value as u8), "s32"),
        ("u8", 8, |value| u64::from(value as u8), "s32"),
        ("s4", 4, |value| u64::from(value as u8 & 15), "s32"),
        ("u4", 4, |value| u64::from(value as u8 & 15), "s32"),
        ("e5m2", 8, |value| u64::from(f16::from_f32(value as f32).to_bits() >> 8), "f32"),
        ("e4m3", 8, |value| [0xc8, 0xc4, 0xc0, 0xb8, 0x00, 0x38, 0x40, 0x44][(value + 4) as usize], "f32"),
        ("e4m3", 8, |value| [0xc8, 0xc4, 0xc0, 0xb8, 0x00, 0x38, 0x40, 0x44][(value + 4) as usize], "f16"),
        ("s8", 8, |value| u64::from(value as u8), "s32.satfinite"),
    ];
    for (of, bits, encoded, sum) in forms {
        let shapes: &[(usize, usize)] = match of {
            "f16" | "bf16" => &[(16, 8), (16, 16)],
            "tf32" => &[(16, 4), (16, 8)],
            "f64" => &[(8, 4), (16, 4), (16, 8), (16, 16)],
            "s8" | "u8" => &[(8, 16), (16, 16), (16, 32)],
            "s4" | "u4" => &[(8, 32), (16, 32), (16, 64)],
            _ => &[(16, 16), (16, 32)],
        };
        let (register_bits, words) = if bits == 64 { (64, 2) } else { (32, 1) };
        let width = (register_bits / bits) as usize;
        let unsigned = of.starts_with('u');
        let (sum, suffix) = sum.split_once('.').map_or((sum, ""), |_| ("s32", ".satfinite"));
        for &(rows, inner) in shapes {
            let of_kind = |values: Vec<i32>| -> Vec<i32> {
                values.into_iter().map(|value| if unsigned { value + 4 } else { value }).collect()
            };
            let (a, b) = (of_kind(small(rows * inner, 3)), of_kind(small(inner * 8, 4)));
            let c = small(rows * 8, 5);
            let counts = [rows * inner / 32 / width, inner * 8 / 32 / width];
            let sum_width = if sum == "f16" { 2 } else { 1 };
            let sums = rows * 8 / 32 / sum_width;
            let encoded_sum = |value: i32| match sum {
                "f16" => f16::from_f32(value as f32).to_bits().into(),
                "f32" => u64::from((value as f32).to_bits()),
                "f64" => f64::from(value).to_bits(),
                _ => u64::from(value as u32),
            };
            let packed = |values: Vec<u64>, width: usize| -> Vec<u32> {
                let part = register_bits / width as u32;
                let registers = values.chunks(width).map(|parts| {
                    parts.iter().enumerate().fold(0, |all, (at, bits)| all | bits << (part * at as u32))
                });
                let as_words = |word: u64| [word as u32, (word >> 32) as u32].into_iter().take(words);
                registers.flat_map(as_words).collect()
            };
            let bands = rows / 8;
            let inputs: Vec<Vec<u32>> = (0..32)
                .map(|lane| {
                    let left = places(lane, counts[0], width, bands).into_iter();
                    let left = left.map(|(row, column)| encoded(a[row * inner + column])).collect();
                    let right = places(lane, counts[1], width, 1).into_iter();
                    let right = right.map(|(column, row)| encoded(b[row * 8 + column])).collect();
                    let third = places(lane, bands, 2, bands).into_iter();
                    let third = third.map(|(row, column)| encoded_sum(c[row * 8 + column])).collect();
                    [packed(left, width), packed(right, width), packed(third, sum_width)].concat()
                })
                .collect();
            let opcode = format!("mma.sync.aligned.m{rows}n8k{inner}.row.col{suffix}.{sum}.{of}.{of}.{sum}");
            let found = run_product(&opcode, [sums, counts[0], counts[1], sums], words, &inputs);
            let products = product(&a, &b, 8);
            let expected: Vec<u32> = (0..32)
                .flat_map(|lane| {
                    let places = places(lane, bands, 2, bands).into_iter();
                    let sums = places
                        .map(|(row, column)| encoded_sum(products[row * 8 + column] + c[row * 8 + column]));
                    packed(sums.collect(), sum_width)
                })
                .collect();
            assert_eq!(found, expected, "{opcode}");
        }
    }
}

/// Each lane's number in each half, through all ways of moving matrices of 8 rows.
#[test]
fn rows_are_moved_and_transposed() {
    let lines = |store: &str, load: &str| {
        format!(
            ".shared .align 16 .b8 s[512]; mov.u32 %r0, %laneid; mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r1, %r1, %r2;
             mul.lo.u32 %r3, %r0, 131074; add.u32 %r3, %r3, 65536; or.b32 %r4, %r3, 16777472; mov.u32 %r5, 7; mov.u32 %r6, 8;
             {store}
             bar.warp.sync -1;
             {load}
             mul.wide.u32 %rd1, %r0, 16; add.u64 %rd0, %rd0, %rd1; st.global.v4.u32 [%rd0], {{%r7, %r8, %r9, %r10}};"
        )
    };
    let stored = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r3, %r4, %r5, %r6};";
    let transposed = "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%r1], {%r3, %r4, %r5, %r6};";
    let loaded = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r7, %r8, %r9, %r10}, [%r1];";
    let found = run(&lines(stored, loaded), 32, 128).unwrap();
    for (lane, words) in found.chunks(4).enumerate() {
        let first = lane as u32 * 0x2_0002 + 0x1_0000;
        assert_eq!(words, [first, first | 0x100_0100, 7, 8]);
    }
    // The element of row r and column c is 8 * r + c, and the upper half of a register is the next column.
    let flipped = |lane: u32| {
        let at = |row: u32, column: u32| 8 * row + column;
        let (row, column) = (lane / 4, lane % 4 * 2);
        at(column, row) | at(column + 1, row) << 16
    };
    let twice = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r7, %r8, %r9, %r10}, [%r1];";
    let moved = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r1]; movmatrix.sync.aligned.m8n8.trans.b16 %r7, %r9;
                 mov.u32 %r8, %r9; cvta.shared.u64 %rd2, s; cvt.u64.u32 %rd3, %r2; add.u64 %rd2, %rd2, %rd3;
                 ldmatrix.sync.aligned.m8n8.x2.b16 {%r10, %r11}, [%rd2];";
    for (store, load) in [(transposed, loaded), (stored, twice), (stored, moved)] {
        let store = if load == moved { format!("cvta.shared.u64 %rd2, s; {store}") } else { store.into() };
        let found = run(&lines(&store, load), 32, 128).unwrap();
        for (lane, words) in found.chunks(4).enumerate() {
            assert_eq!(words[0], flipped(lane as u32), "{load}");
        }
        if load == moved {
            assert!(found.chunks(4).all(|words| words[1] == words[3]));
        }
    }
}

/// What `<mma.h>` becomes: a product of 16 × 16, with both layouts in memory.
#[test]
fn fragments_without_a_layout() {
    let text = ".visible .entry k(.param .u64 out) {
        .reg .b32 %r<64>; .reg .f32 %f<16>; .reg .b64 %rd<8>; ld.param.u64 %rd0, [out];
        add.u64 %rd1, %rd0, 512; add.u64 %rd2, %rd0, 1024; mov.u32 %r60, 16;
        wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%rd0], %r60;
        wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15}, [%rd1], %r60;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, [%rd2], 16;
        wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15},
            {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, {%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15},
            {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7};
        wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd2], {%f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15}, %r60;
        ret; }";
    let (a, b, c) = (small(256, 6), small(256, 7), small(256, 8));
    let turned: Vec<i32> = (0..256).map(|at| b[at % 16 * 16 + at / 16]).collect();
    let bits = |value: f32| f16::from_f32(value).to_bits();
    let mut words = [halves(&a, bits), halves(&turned, bits)].concat();
    words.extend(c.iter().map(|value| (*value as f32).to_bits()));
    let mut memory = Memory::default();
    let address = memory.alloc(&words);
    let module = module(text);
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None);
    assert_eq!(entry.run(launch(&address.to_le_bytes(), 1, 32), &memory).unwrap().mistake, None);
    let found = memory.words(address).split_off(256).into_iter().map(|bits| f32::from_bits(bits) as i32);
    assert!(found.eq(product(&a, &b, 16).iter().zip(&c).map(|(product, c)| product + c)));
}

#[test]
fn sums_of_integers_wrap_or_are_clamped() {
    let found = |suffix: &str| {
        let lines = format!(
            "mov.u32 %r0, 2139062143; mov.u32 %r1, 2147483600;
             mma.sync.aligned.m8n8k16.row.col{suffix}.s32.s8.s8.s32 {{%r2, %r3}}, {{%r0}}, {{%r0}}, {{%r1, %r1}};
             st.global.u32 [%rd0], %r2;"
        );
        run(&lines, 32, 1).unwrap()[0]
    };
    assert_eq!(found(""), 2_147_483_600 + 16 * 127 * 127);
    assert_eq!(found(".satfinite"), i32::MAX as u32);
}

#[test]
fn rows_that_are_no_shared_memory_are_mistakes() {
    let mistake = |lines: &str| run(lines, 32, 64).unwrap_err().to_string();
    let load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];";
    assert!(
        mistake(&format!(".shared .align 16 .b8 s[128]; mov.u32 %r0, s; add.u32 %r0, %r0, 8; {load}"))
            .ends_with("reads 16 bytes at 0x8 of shared memory: the address is no multiple of 16")
    );
    assert!(
        mistake(&format!(".shared .align 16 .b8 s[128]; mov.u32 %r0, s; add.u32 %r0, %r0, 128; {load}"))
            .ends_with("reads 16 bytes at 128 of 128 bytes of shared memory")
    );
    assert!(
        mistake("ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%rd0];").ends_with("of 0 bytes of shared memory")
    );
    let lanes = "mov.u32 %r0, %laneid; setp.lt.u32 %p0, %r0, 16; @%p0 movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0; bar.sync 0;";
    assert!(mistake(lanes).contains("waits"), "{}", mistake(lanes));
}
