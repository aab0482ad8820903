//! Approximate functions are within the errors that the manual of PTX documents, and have the results that it lists for special values.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use half::{bf16, f16};
use std::ffi::CString;
use std::ptr::null_mut;

const BLOCK_THREADS: u32 = 256;
const LEN: usize = 1 << 16;

/// The text of a kernel that computes `c[i]` of `a[i]` and `b[i]`, words of 32 bits.
fn text(instruction: &str) -> String {
    format!(
        ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{\n\
         .reg .b32 %r<4>; .reg .b16 %h<2>; .reg .f32 %f<3>; .reg .b64 %a<3>; .reg .b64 %at;\n\
         ld.param.u64 %a0, [a]; ld.param.u64 %a1, [b]; ld.param.u64 %a2, [c];\n\
         mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0; mul.wide.u32 %at, %r0, 4;\n\
         add.u64 %a0, %a0, %at; add.u64 %a1, %a1, %at; add.u64 %a2, %a2, %at;\n\
         ld.global.f32 %f1, [%a0]; ld.global.f32 %f2, [%a1]; ld.global.u16 %h1, [%a0]; mov.f32 %f0, 0f00000000; mov.u16 %h0, 0;\n\
         {instruction}\nst.global.f32 [%a2], %f0;\n}}"
    )
}

/// What an instruction makes of each pair of words.
fn run(raw: &Raw, instruction: &str, inputs: [&[u32]; 2]) -> Vec<u32> {
    let text = CString::new(text(instruction)).unwrap();
    let (mut module, mut function, driver) = (null_mut(), null_mut(), &raw.driver);
    let mut places: [CUdeviceptr; 3] = [(); 3].map(|()| raw.alloc(4 * LEN).unwrap());
    let mut output = vec![0_u32; LEN];
    let mut parameters = places.each_mut().map(|place| std::ptr::from_mut(place).cast());
    // SAFETY: pointers are to locals that outlive the calls, as large as the calls say; the kernel stays within the allocations.
    unsafe {
        driver.cuModuleLoadData(&mut module, text.as_ptr().cast()).unwrap();
        driver.cuModuleGetFunction(&mut function, module, c"k".as_ptr()).unwrap();
        for (place, input) in places.into_iter().zip(inputs) {
            assert_eq!(input.len(), LEN);
            driver.cuMemcpyHtoD_v2(place, input.as_ptr().cast(), 4 * LEN).unwrap();
        }
        let (blocks, threads) = (LEN as u32 / BLOCK_THREADS, BLOCK_THREADS);
        let parameters = parameters.as_mut_ptr();
        driver
            .cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, null_mut(), parameters, null_mut())
            .unwrap();
        driver.cuMemcpyDtoH_v2(output.as_mut_ptr().cast(), places[2], 4 * LEN).unwrap();
        driver.cuModuleUnload(module).unwrap();
        places.into_iter().for_each(|place| driver.cuMemFree_v2(place).unwrap());
    }
    output
}

/// Numbers of both signs from 2 to the power of one number up to that of another, spread over their exponents.
fn spread(lowest: f64, highest: f64, is_signed: bool) -> Vec<u32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let number = |_| {
        let random = next();
        let exponent = lowest + (highest - lowest) * (random >> 11) as f64 / (1_u64 << 53) as f64;
        let magnitude = exponent.exp2() as f32;
        (if is_signed && random & 1 == 1 { -magnitude } else { magnitude }).to_bits()
    };
    (0..LEN).map(number).collect()
}

/// Numbers of an interval, all as likely.
fn uniform(end: f64) -> Vec<u32> {
    (0..LEN).map(|at| ((2.0 * at as f64 / LEN as f64 - 1.0) * end) as f32).map(f32::to_bits).collect()
}

/// A bound of an error, which is relative to the exact result or not.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Relative(f64),
    Absolute(f64),
    /// In units of the last place of a number of 32 bits.
    Units(f64),
}

impl Bound {
    fn holds(self, found: f64, exact: f64) -> bool {
        let error = (found - exact).abs();
        error
            <= match self {
                Self::Relative(power) => power.exp2() * exact.abs(),
                Self::Absolute(power) => power.exp2(),
                Self::Units(count) => count * (exact.abs().log2().floor().max(-126.0) - 23.0).exp2(),
            }
    }
}

/// Compares all results of an instruction with exact ones.
fn compare(
    raw: &Raw,
    instruction: &str,
    inputs: [&[u32]; 2],
    exact: fn(f64, f64) -> f64,
    bound: fn(f64) -> Bound,
) {
    let found = run(raw, instruction, inputs);
    for (at, found) in found.into_iter().enumerate() {
        let [a, b] = inputs.map(|input| f64::from(f32::from_bits(input[at])));
        let (found, exact) = (f64::from(f32::from_bits(found)), exact(a, b));
        assert!(
            bound(a).holds(found, exact),
            "{instruction} of {a:e} and {b:e}: {found:e} in place of {exact:e}, {:?}",
            bound(a)
        );
    }
}

/// The results for special values: bits of the input, and the result, in which all NaNs are one.
fn compare_special(raw: &Raw, instruction: &str, cases: &[(f32, f32)]) {
    let mut input = vec![0_u32; LEN];
    input.iter_mut().zip(cases).for_each(|(bits, (value, _))| *bits = value.to_bits());
    let found = run(raw, instruction, [&input, &input]);
    for ((value, expected), found) in cases.iter().zip(found) {
        let found = f32::from_bits(found);
        let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(is_same, "{instruction} of {value:e}: {found:e} in place of {expected:e}");
    }
}

const INFINITE: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
const PI: f64 = std::f64::consts::PI;

cases! {
    fn quotients_and_roots(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (one, other) = (spread(-60.0, 60.0, true), {
            let mut other = spread(-60.0, 60.0, true);
            other.reverse();
            other
        });
        let (signed, positive) = (spread(-125.0, 125.0, true), spread(-125.0, 127.0, false));
        compare(&raw, "div.approx.f32 %f0, %f1, %f2;", [&one, &other], |a, b| a / b, |_| Bound::Units(2.0));
        compare(&raw, "div.full.f32 %f0, %f1, %f2;", [&one, &other], |a, b| a / b, |_| Bound::Units(2.0));
        compare(&raw, "rcp.approx.ftz.f32 %f0, %f1;", [&signed, &one], |a, _| 1.0 / a, |_| Bound::Relative(-23.0));
        compare(&raw, "rcp.approx.f32 %f0, %f1;", [&signed, &one], |a, _| 1.0 / a, |_| Bound::Relative(-23.0));
        compare(&raw, "sqrt.approx.f32 %f0, %f1;", [&positive, &one], |a, _| a.sqrt(), |_| Bound::Relative(-23.0));
        compare(&raw, "rsqrt.approx.f32 %f0, %f1;", [&positive, &one], |a, _| 1.0 / a.sqrt(), |_| Bound::Relative(-22.9));
        let zeros = [(0.0, INFINITE), (-0.0, -INFINITE), (INFINITE, 0.0), (NAN, NAN)];
        compare_special(&raw, "rcp.approx.f32 %f0, %f1;", &[&zeros[..], &[(-INFINITE, -0.0)]].concat());
        compare_special(&raw, "rsqrt.approx.f32 %f0, %f1;", &[&zeros[..], &[(-1.0, NAN), (-INFINITE, NAN)]].concat());
        compare_special(
            &raw,
            "sqrt.approx.f32 %f0, %f1;",
            &[(0.0, 0.0), (-0.0, -0.0), (INFINITE, INFINITE), (-1.0, NAN), (-INFINITE, NAN), (NAN, NAN)],
        );
    }

    fn powers_and_logarithms(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (powers, small) = (uniform(125.0), spread(-40.0, 0.0, true));
        for powers in [powers, small] {
            compare(&raw, "ex2.approx.ftz.f32 %f0, %f1;", [&powers, &powers], |a, _| a.exp2(), |_| Bound::Relative(-22.0));
            compare(&raw, "ex2.approx.f32 %f0, %f1;", [&powers, &powers], |a, _| a.exp2(), |_| Bound::Relative(-22.0));
        }
        let of_logarithm = |a: f64| if a > 0.5 && a < 2.0 { Bound::Absolute(-22.0) } else { Bound::Relative(-22.0) };
        for numbers in [spread(-125.0, 127.0, false), spread(-1.5, 1.5, false)] {
            compare(&raw, "lg2.approx.f32 %f0, %f1;", [&numbers, &numbers], |a, _| a.log2(), of_logarithm);
        }
        compare_special(
            &raw,
            "ex2.approx.f32 %f0, %f1;",
            &[(0.0, 1.0), (-0.0, 1.0), (INFINITE, INFINITE), (-INFINITE, 0.0), (129.0, INFINITE), (-200.0, 0.0), (NAN, NAN), (3.0, 8.0)],
        );
        compare_special(
            &raw,
            "lg2.approx.f32 %f0, %f1;",
            &[(0.0, -INFINITE), (-0.0, -INFINITE), (INFINITE, INFINITE), (-1.0, NAN), (-INFINITE, NAN), (NAN, NAN), (8.0, 3.0)],
        );
    }

    fn sines_and_tangents(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (near, far, small) = (uniform(2.0 * PI), uniform(100.0 * PI), spread(-30.0, 0.0, true));
        let of_sine = |a: f64| Bound::Absolute(if a.abs() <= 2.0 * PI { -20.4 } else { -14.7 });
        for numbers in [&near, &far, &small] {
            compare(&raw, "sin.approx.f32 %f0, %f1;", [numbers, numbers], |a, _| a.sin(), of_sine);
            compare(&raw, "cos.approx.f32 %f0, %f1;", [numbers, numbers], |a, _| a.cos(), of_sine);
        }
        for numbers in [uniform(12.0), small] {
            compare(&raw, "tanh.approx.f32 %f0, %f1;", [&numbers, &numbers], |a, _| a.tanh(), |_| Bound::Relative(-11.0));
        }
        let specials = [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN)];
        compare_special(&raw, "sin.approx.f32 %f0, %f1;", &[&specials[..], &[(INFINITE, NAN), (-INFINITE, NAN)]].concat());
        compare_special(&raw, "cos.approx.f32 %f0, %f1;", &[(0.0, 1.0), (-0.0, 1.0), (INFINITE, NAN), (-INFINITE, NAN), (NAN, NAN)]);
        compare_special(&raw, "tanh.approx.f32 %f0, %f1;", &[&specials[..], &[(INFINITE, 1.0), (-INFINITE, -1.0)]].concat());
    }

    /// All numbers of 16 bits.
    fn functions_of_half_numbers(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let all: Vec<u32> = (0..LEN as u32).collect();
        type Number = fn(u32) -> f64;
        let half: Number = |bits| f16::from_bits(bits as u16).to_f64();
        let brain: Number = |bits| bf16::from_bits(bits as u16).to_f64();
        let power: fn(f64) -> f64 = |a| a.exp2();
        let tangent: fn(f64) -> f64 = |a| a.tanh();
        // The least normal number, below which the error is that of the steps between the others.
        for (name, number, exact, bound, least) in [
            ("ex2.approx.f16", half, power, Bound::Relative(-9.9), -14.0),
            ("ex2.approx.ftz.bf16", brain, power, Bound::Relative(-7.0), -126.0),
            ("tanh.approx.f16", half, tangent, Bound::Absolute(-10.987), f64::NEG_INFINITY),
            ("tanh.approx.bf16", brain, tangent, Bound::Absolute(-7.99), f64::NEG_INFINITY),
        ] {
            let found = run(&raw, &format!("{name} %h0, %h1; mov.b32 %r3, {{%h0, %h0}}; mov.b32 %f0, %r3;"), [&all, &all]);
            for (bits, found) in all.iter().zip(found) {
                let (input, found) = (number(*bits), number(found & 0xffff));
                let exact = exact(input);
                let largest = if name.ends_with("bf16") { 128.0 } else { 16.0 };
                let is_right = if exact.is_nan() {
                    found.is_nan()
                } else if exact.abs() >= f64::exp2(largest) * (1.0 - f64::exp2(-9.0)) {
                    found == f64::INFINITY || bound.holds(found, exact)
                } else if exact.abs() < f64::exp2(least) {
                    (found - exact).abs() <= f64::exp2(least) * f64::exp2(-7.0) || found == 0.0
                } else {
                    bound.holds(found, exact)
                };
                assert!(is_right, "{name} of {input:e}: {found:e} in place of {exact:e}");
            }
        }
    }
}
