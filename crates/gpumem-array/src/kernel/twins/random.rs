//! The twins of `random.cu`: the same numbers, to the last bit.
//!
//! Floats are made with additions, multiplications, divisions and square roots in the order of the CUDA text. All of them are exactly
//! rounded on both sides, and neither side contracts them.

use super::number::count;
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};

/// The four random words of a block: a function of seed, stream and block number.
fn philox(seed: u64, stream: u64, block: u64) -> [u32; 4] {
    let low = |wide: u64| wide as u32;
    let high = |wide: u64| (wide >> 32) as u32;
    let mut c = [low(block), high(block), low(stream), high(stream)];
    let mut key = [low(seed), high(seed)];
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53 * u64::from(c[0]), 0xCD9E_8D57 * u64::from(c[2]));
        c = [high(b) ^ c[1] ^ key[0], low(b), high(a) ^ c[3] ^ key[1], low(a)];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Fills with the elements that each block of words becomes.
fn fill<T: Pod, const COUNT: usize>(
    launch: &mut Launch<'_>,
    elements: fn([u32; 4]) -> [T; COUNT],
) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let n = count(launch)?;
    let (seed, stream, first): (u64, u64, u64) = (launch.arg()?, launch.arg()?, launch.arg()?);
    for (block, out) in (0..).zip(launch.write::<T>(out, n)?.chunks(COUNT)) {
        let elements = elements(philox(seed, stream, first.wrapping_add(block)));
        out.iter().zip(elements).for_each(|(out, element)| out.set(element));
    }
    Ok(())
}

/// Two words as one.
fn pairs(words: [u32; 4]) -> [u64; 2] {
    [0, 2].map(|k| u64::from(words[k]) | u64::from(words[k + 1]) << 32)
}

pub(crate) fn random_u32(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, |words| words)
}

pub(crate) fn random_u64(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, pairs)
}

pub(crate) fn random_f32(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, |words| words.map(|word| (word >> 8) as f32 * (1.0 / 16_777_216.0)))
}

pub(crate) fn random_f64(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, |words| pairs(words).map(|word| (word >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)))
}

pub(crate) fn normal_f32(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, |words| {
        let pair = |word: u32, angle: u32| {
            let u = word as f32 * (1.0 / 4_294_967_296.0) + 0.5 / 4_294_967_296.0;
            let quarters = angle.wrapping_add(0x2000_0000) >> 30;
            let rest = angle.wrapping_sub(quarters << 30).cast_signed() as f32 * 1.462_918_1e-9;
            single::normals(u, quarters, rest)
        };
        let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
        [a, b, c, d]
    })
}

pub(crate) fn normal_f64(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    fill(launch, |words| {
        let [word, angle] = pairs(words);
        let u = ((word >> 11) as f64 + 0.5) * (1.0 / 9_007_199_254_740_992.0);
        let quarters = angle.wrapping_add(0x2000_0000_0000_0000) >> 62;
        let rest = angle.wrapping_sub(quarters << 62).cast_signed() as f64 * 3.406_121_580_086_554_5e-19;
        double::normals(u, quarters as u32, rest)
    })
}

/// The series of `random.cu`, for one type.
macro_rules! precision {
    ($module:ident: $type:ty, $root_half:literal, $mantissa:literal, $ln2:expr;
     log $log:expr; sin $sin:expr; cos $cos:expr) => {
        mod $module {
            const LOG: &[$type] = &$log;
            const SIN: &[$type] = &$sin;
            const COS: &[$type] = &$cos;

            fn polynomial(c: &[$type], x: $type) -> $type {
                c.iter().rev().copied().reduce(|sum, c| sum * x + c).unwrap_or(0.0)
            }

            /// The natural logarithm, from an exponent and a mantissa between √½ and √2.
            fn ln(u: $type) -> $type {
                let bits = u.to_bits().wrapping_sub($root_half);
                let exponent = (bits.cast_signed() >> (<$type>::MANTISSA_DIGITS - 1)) as $type;
                let mantissa = <$type>::from_bits((bits & $mantissa) + $root_half);
                let s = (mantissa - 1.0) / (mantissa + 1.0);
                exponent * $ln2 + s * polynomial(LOG, s * s)
            }

            /// Two normals, from `u` in (0, 1] and an angle.
            pub(super) fn normals(u: $type, quarters: u32, rest: $type) -> [$type; 2] {
                let radius = (-2.0 * ln(u)).sqrt();
                let square = rest * rest;
                let (sin, cos) = (rest * polynomial(SIN, square), polynomial(COS, square));
                let (x, y) = if quarters & 1 != 0 { (-sin, cos) } else { (cos, sin) };
                if quarters & 2 != 0 { [radius * -x, radius * -y] } else { [radius * x, radius * y] }
            }
        }
    };
}

precision! {
    single: f32, 0x3F35_04F3, 0x007F_FFFF, core::f32::consts::LN_2;
    log [2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0];
    sin [1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0];
    cos [1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0]
}

precision! {
    double: f64, 0x3FE6_A09E_667F_3BCD, 0x000F_FFFF_FFFF_FFFF, core::f64::consts::LN_2;
    log [
        2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0, 2.0 / 17.0, 2.0 / 19.0,
        2.0 / 21.0,
    ];
    sin [
        1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0, 1.0 / 6_227_020_800.0,
        -1.0 / 1_307_674_368_000.0, 1.0 / 355_687_428_096_000.0,
    ];
    cos [
        1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0, 1.0 / 479_001_600.0,
        -1.0 / 87_178_291_200.0, 1.0 / 20_922_789_888_000.0,
    ]
}
