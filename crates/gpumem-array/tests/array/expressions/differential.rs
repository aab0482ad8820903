//! Random operations × shapes × layouts × types against `ndarray`: arithmetic to the bit, functions within a number of units in the last
//! place. `PROPTEST_CASES` is the number of cases of each property. The package `tests` runs them on a GPU too.

use super::trees::{Formula, Reference, formula, on_host, real_formula, reference, trees};
use gpumem_array::ndarray::{Array3, Axis, Ix3, IxDyn, Slice, Zip};
use gpumem_array::{Arithmetic, Expression, Gpu, GpuArray, GpuView, Lazy, Scalar};
use half::{bf16, f16};
use num_complex::Complex;
use proptest::collection::vec;
use proptest::prelude::*;

/// How a view of three axes is taken from an array.
#[derive(Clone, Debug)]
struct Layout {
    /// By axis: 0 all elements, 1 every second, 2 reversed, 3 a part.
    slices: [u8; 3],
    is_transposed: bool,
    /// The axes of length 1 in place of the shape's.
    is_one: [bool; 3],
}

fn layouts(may_broadcast: bool) -> impl Strategy<Value = Layout> {
    let slice = || prop_oneof![5 => Just(0_u8), 1 => 1..4_u8];
    let one = move || prop::bool::weighted(if may_broadcast { 0.25 } else { 0.0 });
    ([slice(), slice(), slice()], prop::bool::weighted(0.3), [one(), one(), one()])
        .prop_map(|(slices, is_transposed, is_one)| Layout { slices, is_transposed, is_one })
}

fn shapes() -> impl Strategy<Value = [usize; 3]> {
    prop_oneof![
        4 => [1_usize..9, 1..9, 1..9],
        1 => (0_usize..3, 1_usize..9).prop_map(|(a, b)| [a, 1, b]),
        2 => (1_usize..700).prop_map(|len| [1, 1, len]),
        2 => (1_usize..5, 1_usize..5, 1_usize..9).prop_map(|(a, b, groups)| [a, b, 4 * groups]),
        1 => (20_usize..90, 1_usize..4).prop_map(|(rows, columns)| [rows, 1, columns]),
    ]
}

/// A number from random bits, often a special one.
pub(crate) trait Sample: Scalar + std::fmt::Debug {
    fn sample(bits: u32) -> Self;
    /// The distance in units in the last place; 0 for the same bits, or two NaN.
    fn distance(self, other: Self) -> u64;
}

macro_rules! floats {
    ($($type:ty, $unsigned:ty, $tiny:expr;)*) => {$(
        impl Sample for $type {
            fn sample(bits: u32) -> Self {
                let small = (bits % 1024) as $type / 128.0 - 4.0;
                match bits >> 27 {
                    0 => [0.0, -0.0, <$type>::INFINITY, <$type>::NEG_INFINITY, <$type>::NAN, $tiny, <$type>::MAX, 1.0][bits as usize % 8],
                    1 => small.exp2() * 1000.0,
                    _ => small,
                }
            }
            fn distance(self, other: Self) -> u64 {
                let place = |value: $type| {
                    let bits = value.to_bits() as i64 & (<$unsigned>::MAX >> 1) as i64;
                    if value.is_sign_negative() { -bits } else { bits }
                };
                match (self.is_nan(), other.is_nan()) {
                    (true, true) => 0,
                    (false, false) if self == other => u64::from(self.to_bits() != other.to_bits()),
                    (false, false) => place(self).abs_diff(place(other)),
                    _ => u64::MAX,
                }
            }
        }
    )*};
}
floats! {
    f32, u32, 1e-40;
    f64, u64, 1e-310;
}
macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(bits: u32) -> Self {
                match bits >> 29 {
                    0 => [0, 1, <$type>::MIN, <$type>::MAX, (0 as $type).wrapping_sub(1), 7, 2, 100][bits as usize % 8],
                    1 => (bits as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as $type,
                    _ => (bits % 19) as $type,
                }
            }
            fn distance(self, other: Self) -> u64 {
                u64::from(self != other)
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);
macro_rules! halves {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(bits: u32) -> Self {
                Self::from_f32(f32::sample(bits))
            }
            fn distance(self, other: Self) -> u64 {
                u64::from(self.to_bits() != other.to_bits() && !(self.is_nan() && other.is_nan()))
            }
        }
    )*};
}
halves!(f16, bf16);

/// `a * b + c`, rounded to the type once.
trait Fused: Sized {
    fn fused(a: Self, b: Self, c: Self) -> Self;
}
macro_rules! fused {
    ($($type:ty),*) => {$(
        impl Fused for $type {
            fn fused(a: Self, b: Self, c: Self) -> Self {
                // The product is exact, and so is the sum of the two parts.
                let (product, c) = (a.to_f64() * b.to_f64(), c.to_f64());
                let sum = product + c;
                let back = sum - product;
                let rest = (product - (sum - back)) + (c - back);
                // An inexact number whose last bit is 1 is never between two candidates, so another rounding takes the right one.
                let mut double = sum.to_bits();
                if sum.is_finite() && rest != 0.0 && double % 2 == 0 {
                    double = if (rest > 0.0) == (sum > 0.0) { double + 1 } else { double - 1 };
                }
                let exact = f64::from_bits(double);
                let mut single = (exact as f32).to_bits();
                let rounded = f64::from(exact as f32);
                if rounded != exact && !exact.is_nan() && single % 2 == 0 {
                    single = if rounded.abs() < exact.abs() { single + 1 } else { single - 1 };
                }
                Self::from_f32(f32::from_bits(single))
            }
        }
    )*};
}
fused!(f16, bf16);
macro_rules! complex {
    ($($part:ident),*) => {$(
        impl Sample for Complex<$part> {
            fn sample(bits: u32) -> Self {
                Self::new($part::sample(bits), $part::sample(bits.rotate_left(16) ^ 0x5A5A))
            }
            fn distance(self, other: Self) -> u64 {
                self.re.distance(other.re).max(self.im.distance(other.im))
            }
        }
    )*};
}
complex!(f32, f64);
impl Sample for bool {
    fn sample(bits: u32) -> Self {
        bits.is_multiple_of(2)
    }
    fn distance(self, other: Self) -> u64 {
        u64::from(self != other)
    }
}

/// An array on both sides, and the view of it that both take.
struct Pair<T> {
    gpu: GpuArray<T, Ix3>,
    host: Array3<T>,
    layout: Layout,
}

impl<T: Sample> Pair<T> {
    fn new(gpu: &Gpu, shape: [usize; 3], layout: Layout, bits: &[u32]) -> Self {
        let mut outer = [0; 3];
        for (axis, len) in outer.iter_mut().enumerate() {
            let from = if layout.is_transposed { 2 - axis } else { axis };
            *len = if layout.is_one[from] { 1 } else { shape[from] };
        }
        for (len, slice) in outer.iter_mut().zip(layout.slices) {
            match slice {
                1 => *len *= 2,
                3 => *len += 3,
                _ => {}
            }
        }
        let mut bits = bits.iter().cycle().scan(1_u32, |salt, bits| {
            *salt = salt.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(bits ^ *salt)
        });
        let host = Array3::from_shape_simple_fn(outer, || T::sample(bits.next().unwrap_or_default()));
        Self { gpu: GpuArray::from_array(gpu, &host).unwrap(), host, layout }
    }

    fn slice(&self, axis: usize) -> Slice {
        match self.layout.slices[axis] {
            1 => Slice::new(0, None, 2),
            2 => Slice::new(0, None, -1),
            3 => Slice::new(1, Some(-2), 1),
            _ => Slice::from(..),
        }
    }

    fn view(&self) -> GpuView<'_, T, Ix3> {
        let sliced =
            (0..3).fold(self.gpu.view(), |view, axis| view.slice_axis(Axis(axis), self.slice(axis)).unwrap());
        if self.layout.is_transposed { sliced.t() } else { sliced }
    }

    /// Calculates into the view.
    fn assign<E: Expression<Elem = T, Dim = Ix3>>(&mut self, expression: Lazy<E>) {
        let [a, b, c] = [0, 1, 2].map(|axis| self.slice(axis));
        let planes = self.gpu.slice_axis_mut(Axis(0), a).unwrap();
        let rows = planes.slice_axis_mut(Axis(1), b).unwrap();
        let mut view = rows.slice_axis_mut(Axis(2), c).unwrap();
        if self.layout.is_transposed {
            view.permuted_axes_mut([2, 1, 0]).unwrap().assign_expr(expression).unwrap();
        } else {
            view.assign_expr(expression).unwrap();
        }
    }

    fn array(&self, shape: [usize; 3]) -> Array3<T> {
        let mut view = self.host.view();
        (0..3).for_each(|axis| view.slice_axis_inplace(Axis(axis), self.slice(axis)));
        let view = if self.layout.is_transposed { view.reversed_axes() } else { view };
        view.broadcast(shape).unwrap().to_owned()
    }
}

fn same<T: Sample>(found: &Array3<T>, wanted: &Array3<T>, units: u64, what: &str) {
    assert_eq!(found.shape(), wanted.shape(), "{what}");
    for (place, wanted) in wanted.indexed_iter() {
        let found = found[place];
        assert!(found.distance(*wanted) <= units, "{what} at {place:?}: {found:?} is not {wanted:?}");
    }
}

fn cases() -> impl Strategy<Value = ([usize; 3], Layout, Layout, Vec<u32>)> {
    (shapes(), layouts(false), layouts(true), vec(any::<u32>(), 7..40))
}

/// Each row: a name, how far the results may be apart, an expression, and the same for single elements.
macro_rules! each {
    ($gpu:expr, $($type:ty)+; $row:tt) => {$( each!(@ $gpu, $type; $row); )+};
    (@ $gpu:expr, $type:ty; {$($name:literal $units:literal |$x:ident, $y:ident| $expr:expr, |$a:ident, $b:ident| $host:expr;)*}) => {
        proptest!(|((shape, left, right, bits) in cases(), row in 0..[$($name),*].len())| {
            let (x, y) = (Pair::<$type>::new($gpu, shape, left, &bits), Pair::<$type>::new($gpu, shape, right, &bits[3..]));
            let (a, b) = (x.array(shape), y.array(shape));
            let mut index = 0;
            $(
                if index == row {
                    type T = $type;
                    const _: Option<T> = None;
                    let (view_x, view_y) = (x.view(), y.view());
                    let ($x, $y) = (view_x.lazy(), view_y.lazy());
                    let found = $expr.eval().unwrap().to_array().unwrap();
                    let wanted = Zip::from(&a).and(&b).map_collect(|$a, $b| { let ($a, $b) = (*$a, *$b); $host });
                    same(&found, &wanted, $units, concat!(stringify!($type), " ", $name));
                }
                index += 1;
            )*
            let _ = index;
        });
    };
}

/// Floating-point numbers: arithmetic and what has an instruction.
pub(crate) fn floats(gpu: &Gpu) {
    each! { gpu, f32 f64; {
        "copy" 0 |x, _y| x, |a, _b| a;
        "chain" 0 |x, y| (x * 2.0 + y) * 0.5 - x, |a, b| (a * 2.0 + b) * 0.5 - a;
        "left" 0 |x, y| 1.0 / (2.0 - x) + 3.0 * y, |a, b| 1.0 / (2.0 - a) + 3.0 * b;
        "rest" 0 |x, y| x % y, |a, b| a % b;
        "root" 0 |x, y| x.abs().sqrt() - y.recip() + x.square(), |a, b| a.abs().sqrt() - b.recip() + a * a;
        "fused" 0 |x, y| x.mul_add(y, 0.5), |a, b| a.mul_add(b, 0.5);
        "choice" 0 |x, y| x.gt(0.5).and(y.lt(0.0)).select(x, y), |a, b| if a > 0.5 && b < 0.0 { a } else { b };
        "mask" 0 |x, y| (!x.ge(y)).or(x.equals(1.0)).xor(y.differs(0.0)), |a, b| ((a < b) | a.is_nan() | b.is_nan() | (a == 1.0)) ^ (b != 0.0);
        "clamp" 0 |x, y| x.clamp(-1.0, 1.5) - y, |a, b| a.clamp(-1.0, 1.5) - b;
        "extremes" 0 |x, y| (x + 10.0).max(y + 10.0) - (x - 20.0).min(y - 20.0), |a, b| (a + 10.0).max(b + 10.0) - (a - 20.0).min(b - 20.0);
        "whole" 0 |x, y| x.round_ties_even() + y.floor() * y.ceil() - x.trunc(), |a, b| a.round_ties_even() + b.floor() * b.ceil() - a.trunc();
        "sign" 0 |x, y| x.sign() - y, |a, b| (if a == 0.0 { a } else { a.signum() }) - b;
        "to bytes" 0 |x, y| (x * 100.0).cast::<u8>().cast::<i32>() - (y * 1e10).cast::<i32>().abs().min(1000), |a, b| i32::from((a * 100.0) as u8).wrapping_sub(((b * 1e10) as i32).wrapping_abs().min(1000));
        "to short" 0 |x, y| (x * 1e4).cast::<i16>().cast::<i64>() + (y * 70.0).cast::<i8>().cast::<i64>(), |a, b| i64::from((a * 1e4) as i16) + i64::from((b * 70.0) as i8);
        "to unsigned" 0 |x, y| (x * 1e9).cast::<u32>().cast::<u64>() + (y * 1e18).cast::<u64>() / 2, |a, b| u64::from((a * 1e9) as u32).wrapping_add((b * 1e18) as u64 / 2);
        "to long" 0 |x, y| (x / (y * 0.0)).cast::<i64>(), |a, b| (a / (b * 0.0)) as i64;
        "to other" 0 |x, y| x.cast::<f64>() + y.cast::<f32>().cast::<f64>(), |a, b| a as f64 + f64::from(b as f32);
        "to truth" 0 |x, y| x.cast::<bool>().and(y.is_finite()).or(y.is_nan()), |a, b| (a != 0.0) & b.is_finite() | b.is_nan();
    }}
}

/// Functions, within the units in the last place that the documentation states.
pub(crate) fn functions(gpu: &Gpu) {
    each! { gpu, f32 f64; {
        "exp" 4 |x, _y| x.exp(), |a, _b| a.exp();
        "exp2" 4 |x, _y| x.exp2(), |a, _b| a.exp2();
        "exp_m1" 4 |x, _y| x.exp_m1(), |a, _b| a.exp_m1();
        "ln" 4 |x, _y| x.abs().ln(), |a, _b| a.abs().ln();
        "log2" 4 |x, _y| x.abs().log2(), |a, _b| a.abs().log2();
        "log10" 4 |x, _y| x.abs().log10(), |a, _b| a.abs().log10();
        "ln_1p" 4 |x, _y| x.abs().ln_1p(), |a, _b| a.abs().ln_1p();
        "sin" 4 |x, _y| x.sin(), |a, _b| a.sin();
        "cos" 4 |x, _y| x.cos(), |a, _b| a.cos();
        "tan" 6 |x, _y| x.tan(), |a, _b| a.tan();
        "asin" 4 |x, _y| (x * 0.24).asin(), |a, _b| (a * 0.24).asin();
        "acos" 4 |x, _y| (x * 0.24).acos(), |a, _b| (a * 0.24).acos();
        "atan" 4 |x, _y| x.atan(), |a, _b| a.atan();
        "sinh" 6 |x, _y| x.sinh(), |a, _b| a.sinh();
        "cosh" 4 |x, _y| x.cosh(), |a, _b| a.cosh();
        "tanh" 4 |x, _y| x.tanh(), |a, _b| a.tanh();
        "cbrt" 4 |x, _y| x.cbrt(), |a, _b| a.cbrt();
        "pow" 16 |x, y| x.abs().pow(y), |a, b| a.abs().powf(b);
        "atan2" 4 |x, y| x.atan2(y), |a, b| a.atan2(b);
        "hypot" 2 |x, y| x.hypot(y), |a, b| a.hypot(b);
        "powi" 0 |x, _y| x.powi(-3) + x.powi(5), |a, _b| 1.0 / (a * (a * a)) + a * (a * a * (a * a));
    }}
}

/// Integers of all sizes. They wrap, and divided by zero they are zero.
pub(crate) fn integers(gpu: &Gpu) {
    each! { gpu, i8 i16 i32 i64 u8 u16 u32 u64; {
        "copy" 0 |x, _y| x, |a, _b| a;
        "sums" 0 |x, y| (x + y) * (x - y) + 3, |a, b| a.wrapping_add(b).wrapping_mul(a.wrapping_sub(b)).wrapping_add(3);
        "quotient" 0 |x, y| x / y + 100 / x, |a, b| a.checked_div(b).unwrap_or(if b == 0 { 0 } else { a }).wrapping_add((T::ONE * 100).checked_div(a).unwrap_or(0));
        "rest" 0 |x, y| x % y, |a, b| a.checked_rem(b).unwrap_or(0);
        "opposite" 0 |x, y| (-x).max(y).min(100), |a, b| T::ZERO.wrapping_sub(a).max(b).min(100);
        "choice" 0 |x, y| x.le(y).select(x.square(), y), |a, b| if a <= b { a.wrapping_mul(a) } else { b };
        "mask" 0 |x, y| x.cast::<bool>().and(y.gt(3)).or(x.equals(y)), |a, b| (a != 0) & (b > 3) | (a == b);
        "clamp" 0 |x, y| x.clamp(3, 9) - y.sign(), |a, b| a.clamp(3, 9).wrapping_sub(if b > 0 { 1 } else if b == 0 { 0 } else { T::ZERO.wrapping_sub(1) });
        "small" 0 |x, y| x.cast::<i8>().cast::<i32>() + y.cast::<u16>().cast::<i32>(), |a, b| i32::from(a as i8) + i32::from(b as u16);
        "large" 0 |x, y| x.cast::<i64>() / 3 - y.cast::<u64>().cast::<i64>() % 1000, |a, b| (a as i64 / 3).wrapping_sub(b as u64 as i64 % 1000);
        "float" 0 |x, y| x.cast::<f32>() / 2.0 + y.cast::<f64>().cast::<f32>(), |a, b| a as f32 / 2.0 + b as f64 as f32;
    }}
}

/// Floating-point numbers of 16 bits: each operation is rounded.
pub(crate) fn halves(gpu: &Gpu) {
    each! { gpu, f16 bf16; {
        "copy" 0 |x, _y| x, |a, _b| a;
        "chain" 0 |x, y| (x * T::from_f32(2.0) + y) / T::from_f32(3.0) - x, |a, b| (a * T::from_f32(2.0) + b) / T::from_f32(3.0) - a;
        "root" 0 |x, y| (-x).abs().sqrt() - y.square(), |a, b| T::from_f32(a.to_f32().abs().sqrt()) - b * b;
        "fused" 0 |x, y| x.mul_add(y, T::ONE), |a, b| T::fused(a, b, T::ONE);
        "fused sum" 0 |x, y| (x / T::from_f32(256.0)).mul_add(y, x), |a, b| T::fused(a / T::from_f32(256.0), b, a);
        "choice" 0 |x, y| x.gt(y).select(x, T::ONE), |a, b| if a > b { a } else { T::ONE };
        "to single" 0 |x, y| x.cast::<f32>() * y.cast::<f32>(), |a, b| a.to_f32() * b.to_f32();
        "from double" 0 |x, y| (x.cast::<f64>() * 1.000_001 + y.cast::<f64>()).cast::<f32>(), |a, b| (a.to_f64() * 1.000_001 + b.to_f64()) as f32;
        "from integers" 0 |x, y| (x.cast::<i32>() + 3).cast::<T>() + y.gt(x).cast::<T>(), |a, b| T::from_f32((a.to_f32() as i32).wrapping_add(3) as f32) + T::from_f32(f32::from(u8::from(b > a)));
    }}
}

/// Complex numbers: each operation has the bits of `num-complex`, but for the absolute value.
pub(crate) fn complex(gpu: &Gpu) {
    each! { gpu, Complex<f32> Complex<f64>; {
        "copy" 0 |x, _y| x, |a, _b| a;
        "sums" 0 |x, y| x + y - T::i() + (-x), |a, b| a + b - T::i() + (-a);
        "product" 0 |x, y| x * y * T::new(0.0, 2.0), |a, b| a * b * T::new(0.0, 2.0);
        "quotient" 0 |x, y| x / y, |a, b| a / b;
        "left" 0 |x, y| T::new(1.0, -1.0) / x - T::ONE * y.square(), |a, b| T::new(1.0, -1.0) / a - T::ONE * (b * b);
        "conjugate" 0 |x, y| x.conj() * y, |a, b| a.conj() * b;
        "parts" 0 |x, y| (x.re() + y.im()).complex(x.im() - 1.0), |a, b| T::new(a.re + b.im, a.im - 1.0);
        "absolute" 2 |x, _y| x.abs(), |a, _b| a.re.hypot(a.im);
        "choice" 0 |x, y| x.equals(y).or(x.re().gt(0.0)).select(x, T::i()), |a, b| if a == b || a.re > 0.0 { a } else { T::i() };
        "differs" 0 |x, y| x.differs(y), |a, b| a != b;
        "to other" 0 |x, y| x.cast::<Complex<f64>>() + y.re().cast::<Complex<f64>>(), |a, b| Complex::new(double(a.re), double(a.im)) + Complex::new(double(b.re), 0.0);
    }}
}

/// Truth values.
pub(crate) fn truths(gpu: &Gpu) {
    each! { gpu, bool; {
        "copy" 0 |x, _y| x, |a, _b| a;
        "logic" 0 |x, y| (!x).and(y).or(x.xor(true)), |a, b| (!a & b) | !a;
        "order" 0 |x, y| x.lt(y).or(x.equals(y)), |a, b| a <= b;
        "choice" 0 |x, y| x.select(y, x), |a, b| if a { b } else { a };
        "number" 0 |x, y| x.cast::<u8>() + y.cast::<u8>() * 2, |a, b| u8::from(a) + 2 * u8::from(b);
        "float" 0 |x, y| x.select(1.5_f32, y.cast::<f32>()), |a, b| if a { 1.5 } else { f32::from(u8::from(b)) };
    }}
}

/// Each row: a name, how far the results may be apart, a reduction of all elements and along an axis, and the same for a lane.
macro_rules! reductions {
    ($gpu:expr, $($type:ty)+; $row:tt) => {$( reductions!(@ $gpu, $type; $row); )+};
    (@ $gpu:expr, $type:ty; {$($name:literal $units:literal |$x:ident, $y:ident| $expr:expr, |$a:ident, $b:ident| $host:expr, $all:ident $along:ident $([$ddof:expr])? |$lane:ident| $wanted:expr;)*}) => {
        proptest!(|((shape, left, right, bits) in cases(), row in 0..[$($name),*].len(), axis in 0..3_usize)| {
            prop_assume!(shape.iter().all(|len| *len > 0));
            let (x, y) = (Pair::<$type>::new($gpu, shape, left, &bits), Pair::<$type>::new($gpu, shape, right, &bits[3..]));
            let (a, b) = (x.array(shape), y.array(shape));
            let mut index = 0;
            $(
                if index == row {
                    type T = $type;
                    const _: Option<T> = None;
                    let (view_x, view_y) = (x.view(), y.view());
                    let ($x, $y) = (view_x.lazy(), view_y.lazy());
                    let elements = Zip::from(&a).and(&b).map_collect(|$a, $b| { let ($a, $b) = (*$a, *$b); $host });
                    let what = concat!(stringify!($type), " ", $name);
                    let found = $expr.$all($($ddof)?).unwrap().into_scalar().unwrap();
                    let $lane: Vec<_> = elements.iter().copied().collect();
                    let wanted = $wanted;
                    assert!(found.distance(wanted) <= $units, "{what} of all: {found:?} is not {wanted:?}");
                    let found = $expr.$along(Axis(axis) $(, $ddof)?).unwrap().to_array().unwrap();
                    let wanted = elements.map_axis(Axis(axis), |lane| {
                        let $lane: Vec<_> = lane.iter().copied().collect();
                        $wanted
                    });
                    assert_eq!(found.shape(), wanted.shape(), "{what}");
                    for (found, wanted) in found.iter().zip(&wanted) {
                        assert!(found.distance(*wanted) <= $units, "{what} along {axis} of {shape:?}: {found:?} is not {wanted:?}");
                    }
                }
                index += 1;
            )*
            let _ = index;
        });
    };
}

/// The place of the best element, and of several the first. NaN is passed over.
fn best<T: Copy>(lane: &[T], is_better: impl Fn(T, T) -> bool, is_nan: impl Fn(T) -> bool) -> i64 {
    let places = lane.iter().enumerate().filter(|(_, value)| !is_nan(**value));
    places
        .reduce(|best, other| if is_better(*other.1, *best.1) { other } else { best })
        .map_or(0, |(place, _)| place as i64)
}

/// By two passes.
fn variance<T: Copy + Into<f64>>(lane: &[T]) -> f64 {
    let mean = lane.iter().map(|x| double(*x)).sum::<f64>() / lane.len() as f64;
    lane.iter().map(|x| (double(*x) - mean).powi(2)).sum::<f64>() / lane.len() as f64
}

fn double<T: Into<f64>>(value: T) -> f64 {
    value.into()
}

pub(crate) fn reductions(gpu: &Gpu) {
    reductions! { gpu, Complex<f32> Complex<f64>; {
        // Small whole numbers are added without an error. Units of a product: the sign of a zero depends on the order.
        "sum" 0 |x, y| x.re().gt(0.0).select(T::i(), T::new(2.0, -1.0)) * y.re().gt(0.0).select(T::ONE, -T::ONE), |a, b| if a.re > 0.0 { T::i() } else { T::new(2.0, -1.0) } * if b.re > 0.0 { T::ONE } else { -T::ONE }, sum sum_axis |lane| lane.iter().sum::<T>() + T::ZERO;
        "product" 1 |x, y| x.re().gt(0.0).select(T::i(), -T::ONE) * y.re().gt(0.0).select(T::ONE, T::i()), |a, b| if a.re > 0.0 { T::i() } else { -T::ONE } * if b.re > 0.0 { T::ONE } else { T::i() }, product product_axis |lane| lane.iter().product::<T>() + T::ZERO;
    }}
    reductions! { gpu, i8 i32 i64 u16 u32 u64; {
        "sum" 0 |x, y| x * 3 - y, |a, b| a.wrapping_mul(3).wrapping_sub(b), sum sum_axis |lane| lane.iter().fold(0, |sum: T, value| sum.wrapping_add(*value));
        "product" 0 |x, y| x + y, |a, b| a.wrapping_add(b), product product_axis |lane| lane.iter().fold(1, |product: T, value| product.wrapping_mul(*value));
        "max" 0 |x, y| x - y, |a, b| a.wrapping_sub(b), max_element max_axis |lane| *lane.iter().max().unwrap();
        "min" 0 |x, y| x + y, |a, b| a.wrapping_add(b), min_element min_axis |lane| *lane.iter().min().unwrap();
        // The opposite of the least number is itself.
        "largest opposite" 0 |x, _y| -x, |a, _b| a.wrapping_neg(), max_element max_axis |lane| *lane.iter().max().unwrap();
        "least opposite" 0 |x, y| -x.min(y), |a, b| a.min(b).wrapping_neg(), min_element min_axis |lane| *lane.iter().min().unwrap();
        "argmax" 0 |x, y| x - y, |a, b| a.wrapping_sub(b), argmax argmax_axis |lane| best(&lane, |a, b| a > b, |_| false);
        "argmin" 0 |x, _y| x, |a, _b| a, argmin argmin_axis |lane| best(&lane, |a, b| a < b, |_| false);
        "any" 0 |x, y| x.equals(y), |a, b| a == b, any any_axis |lane| lane.contains(&true);
        "all" 0 |x, y| x.differs(y), |a, b| a != b, all all_axis |lane| !lane.contains(&false);
        "count" 0 |x, y| x.le(y), |a, b| a <= b, count count_axis |lane| lane.iter().filter(|is| **is).count() as i64;
    }}
    reductions! { gpu, f32 f64; {
        // Eighths of small numbers are added without an error.
        "sum" 0 |x, _y| (x.clamp(-4.0, 4.0) * 8.0).floor() / 8.0, |a, _b| (a.clamp(-4.0, 4.0) * 8.0).floor() / 8.0, sum sum_axis |lane| if lane.iter().any(|value| value.is_nan()) { T::NAN } else { lane.iter().sum::<T>() + 0.0 };
        "mean" 0 |x, _y| x.gt(0.0).select(0.5 as T, -1.0 as T), |a, _b| if a > 0.0 { 0.5 as T } else { -1.0 }, mean mean_axis |lane| lane.iter().sum::<T>() / lane.len() as T;
        "max" 0 |x, y| x + y, |a, b| a + b, max_element max_axis |lane| lane.iter().fold(T::NEG_INFINITY, |best, value| best.max(*value));
        "min" 0 |x, _y| x - 0.5, |a, _b| a - 0.5, min_element min_axis |lane| lane.iter().fold(T::INFINITY, |best, value| best.min(*value));
        "argmax" 0 |x, y| x - y, |a, b| a - b, argmax argmax_axis |lane| best(&lane, |a, b| a > b, T::is_nan);
        "argmin" 0 |x, y| x + y, |a, b| a + b, argmin argmin_axis |lane| best(&lane, |a, b| a < b, T::is_nan);
        // Whole numbers and their squares are added without an error, and roots are correctly rounded.
        "norm" 0 |x, y| x.clamp(-4.0, 4.0).floor() + y.gt(0.0).cast::<T>(), |a, b| a.clamp(-4.0, 4.0).floor() + T::from(u8::from(b > 0.0)), norm norm_axis |lane| lane.iter().map(|x| x * x).sum::<T>().sqrt();
    }}
    reductions! { gpu, f32 f64; {
        // The error of a distance from the mean is that of the mean, which is up to 20 times larger.
        "var" 600 |x, y| x.gt(y).select(10.0 as T, 11.0), |a, b| if a > b { 10.0 } else { 11.0 }, var var_axis [0.0] |lane| variance(&lane) as T;
        "std" 600 |x, y| x.gt(y).select(-2.0 as T, 1.0), |a, b| if a > b { -2.0 } else { 1.0 }, std std_axis [0.0] |lane| variance(&lane).sqrt() as T;
    }}
}

reference! { floats
    f16, f16::NEG_INFINITY, |a: f16| a.to_f32(), |a: f32| f16::from_f32(a);
    bf16, bf16::NEG_INFINITY, |a: bf16| a.to_f32(), |a: f32| bf16::from_f32(a);
}

/// Random formulas of random arrays: as a new array, in place, and their largest elements along an axis.
pub(crate) fn formulas(gpu: &Gpu) {
    fn check<T: Reference + Sample>(gpu: &Gpu) {
        let layouts = [layouts(true), layouts(true), layouts(true), layouts(false)];
        proptest!(|(tree in trees(), shape in shapes(), [a, b, c, target] in layouts, bits in vec(any::<u32>(), 9..40), axis in 0..3_usize)| {
            let arrays = [(a, 0), (b, 3), (c, 6)].map(|(layout, from)| Pair::<T>::new(gpu, shape, layout, &bits[from..]));
            let wanted = on_host(&tree, &[0, 1, 2].map(|index| arrays[index].array(shape).into_dyn()));
            let wanted = wanted.into_dimensionality().unwrap();
            let what = format!("{} {tree:?}", std::any::type_name::<T>());
            let array = |index: usize, is_turned| {
                let view = arrays[index].view();
                let view = if is_turned { view.t() } else { view };
                let shape = IxDyn(view.shape());
                view.lazy().broadcast(shape).boxed()
            };
            let formula = formula(&tree, &array, 3, false).broadcast(shape);
            same(&formula.eval().unwrap().to_array().unwrap(), &wanted, 0, &what);
            if shape[axis] > 0 {
                let largest = wanted.fold_axis(Axis(axis), T::LEAST, |a, b| T::binary(5, *a, *b));
                let found = formula.max_axis(Axis(axis)).unwrap().to_array().unwrap();
                prop_assert!(found.iter().zip(&largest).all(|(found, wanted)| found.distance(*wanted) == 0), "{what}");
            }
            let mut target = Pair::<T>::new(gpu, shape, target, &bits);
            target.assign(formula);
            same(&target.view().to_array().unwrap(), &wanted, 0, &what);
        });
    }
    check::<f32>(gpu);
    check::<f64>(gpu);
    check::<f16>(gpu);
    check::<bf16>(gpu);
    check::<i8>(gpu);
    check::<i16>(gpu);
    check::<i32>(gpu);
    check::<i64>(gpu);
    check::<u8>(gpu);
    check::<u16>(gpu);
    check::<u32>(gpu);
    check::<u64>(gpu);
}
