//! The operations of expressions. One more is one line of the table: its method, the types that it is for, and its instructions.
//!
//! A function that has no instruction of its own is also a line of `kernels/functions.cu`.

use crate::element::ScalarType;
use crate::expression::convert::as_word;
use crate::expression::emit::{EmittedValue, Emitter, Register};
use crate::expression::node::{Binary, Broadcast, Calculation, Expression, Lazy, Operand, Unary};
use crate::expression::scalar::{Arithmetic, Comparable, Real, Scalar};
use crate::expression::tape::OPERATIONS;
use core::marker::PhantomData;

/// How the kernel calculates an operation.
pub(crate) struct OperationRow {
    /// The name of its method.
    pub(crate) name: &'static str,
    pub(crate) operand_count: usize,
    pub(crate) emit: fn(&mut Emitter, &[EmittedValue]) -> EmittedValue,
}

/// The row of a token.
pub(crate) fn row(token: u8) -> Option<&'static OperationRow> {
    TABLE.get(usize::from(token.checked_sub(OPERATIONS)?))
}

macro_rules! operations {
    ($($count:tt $bound:tt => $result:tt { $(
        $(#[$attribute:meta])*
        $name:ident $method:ident |$emitter:ident, $operands:ident| $emit:expr;
    )* })*) => {
        #[derive(Clone, Copy)]
        #[cfg_attr(not(feature = "complex"), allow(dead_code, reason = "nothing has parts"))]
        enum Index {
            $($($name,)*)*
        }

        const TABLE: &[OperationRow] = &[
            $($(OperationRow { name: stringify!($method), operand_count: $count, emit: |$emitter, $operands| $emit },)*)*
        ];

        $($(
            /// The operation of the method with this name.
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            operations!(@calculation $bound $result $name $method);
            operations!(@method $count $(#[$attribute])* $name $method);
        )*)*
    };
    (@calculation bool $result:tt $name:ident $method:ident) => {
        impl Calculation<bool> for $name {
            operations!(@body bool, $name $method);
        }
    };
    (@calculation Number same $name:ident $method:ident) => {
        impl<T: Arithmetic + Comparable> Calculation<T> for $name {
            operations!(@body T, $name $method);
        }
    };
    // Of a complex number, or of its parts.
    (@calculation $elem:tt part $name:ident $method:ident) => {
        #[cfg(feature = "complex")]
        operations!(@parts $name $method; num_complex::Complex<f32> => f32, num_complex::Complex<f64> => f64);
    };
    (@calculation $elem:tt complex $name:ident $method:ident) => {
        #[cfg(feature = "complex")]
        operations!(@parts $name $method; f32 => num_complex::Complex<f32>, f64 => num_complex::Complex<f64>);
    };
    (@calculation Complex same $name:ident $method:ident) => {
        #[cfg(feature = "complex")]
        operations!(@parts $name $method; num_complex::Complex<f32> => num_complex::Complex<f32>, num_complex::Complex<f64> => num_complex::Complex<f64>);
    };
    (@parts $name:ident $method:ident; $($from:ty => $to:ty),*) => {$(
        impl Calculation<$from> for $name {
            operations!(@body $to, $name $method);
        }
    )*};
    (@calculation $bound:tt same $name:ident $method:ident) => {
        impl<T: $bound> Calculation<T> for $name {
            operations!(@body T, $name $method);
        }
    };
    (@calculation $bound:tt bool $name:ident $method:ident) => {
        impl<T: $bound> Calculation<T> for $name {
            operations!(@body bool, $name $method);
        }
    };
    (@body $out:ty, $name:ident $method:ident) => {
        type Out = $out;
        const TOKEN: u8 = OPERATIONS + Index::$name as u8;
    };
    (@method 1 $(#[$attribute:meta])* $name:ident $method:ident) => {
        impl<E: Expression> Lazy<E> {
            $(#[$attribute])*
            pub fn $method(self) -> Lazy<Unary<$name, E>>
            where
                $name: Calculation<E::Elem>,
            {
                Lazy(Unary(self.0, PhantomData))
            }
        }
    };
    (@method 2 $(#[$attribute:meta])* $name:ident $method:ident) => {
        impl<E: Expression> Lazy<E> {
            $(#[$attribute])*
            pub fn $method<R: Operand<E::Elem>>(self, other: R) -> Lazy<Binary<$name, E, R::Expression>>
            where
                $name: Calculation<E::Elem>,
                E::Dim: Broadcast<R::Dim>,
            {
                Lazy(Binary(self.0, other.into_expression(), PhantomData))
            }
        }
    };
    // Operators, and methods with other operands, are written out in `lazy.rs`.
    (@method (1) $(#[$attribute:meta])* $name:ident $method:ident) => {};
    (@method (2) $(#[$attribute:meta])* $name:ident $method:ident) => {};
    (@method (3) $(#[$attribute:meta])* $name:ident $method:ident) => {};
}

#[cfg(feature = "complex")]
macro_rules! magnitudes {
    ($($part:ident)*) => {$(
        impl Calculation<num_complex::Complex<$part>> for Abs {
            type Out = $part;
            const TOKEN: u8 = <Self as Calculation<$part>>::TOKEN;
        }
    )*};
}
#[cfg(feature = "complex")]
magnitudes! { f32 f64 }

operations! {
    (2) Arithmetic => same {
    Add add |e, x| by_parts(e, x, |e, x| rounded(e, "add", x));
    Sub sub |e, x| by_parts(e, x, |e, x| rounded(e, "sub", x));
    Mul mul |e, x| product(e, x);
    // An integer divided by zero is zero, and so is its rest.
    Div div |e, x| quotient(e, x);
    }
    (1) Arithmetic => same {
    Neg neg |e, x| by_parts(e, x, |e, x| opposite(e, x[0]));
    }
    1 Arithmetic => same {
    /// The product with itself.
    Square square |e, x| product(e, &[x[0], x[0]]);
    }
    (2) Number => same {
    Rem rem |e, x| rest(e, x);
    }
    2 Number => same {
    /// The larger one. NaN is passed over.
    Max max |e, x| exact(e, "max", x);
    /// The smaller one. NaN is passed over.
    Min min |e, x| exact(e, "min", x);
    }
    1 Number => same {
    /// The absolute value. Of a complex number it is real, and does not overflow unless the result does.
    Abs abs |e, x| magnitude(e, x);
    /// -1, 0 or 1. NaN stays NaN.
    Sign sign |e, x| sign(e, x[0]);
    }
    1 Complex => same {
    /// The complex conjugate.
    Conj conj |e, x| conjugate(e, x[0]);
    }
    1 Complex => part {
    /// The real part of a complex number.
    Re re |_e, x| x[0].parts()[0];
    /// The imaginary part of a complex number.
    Im im |_e, x| x[0].parts()[1];
    }
    2 Real => complex {
    /// The complex number with this real part and another number as its imaginary part.
    FromParts complex |_e, x| EmittedValue::complex(x[0], x[1]);
    }
    1 Real => same {
    /// The square root, correctly rounded.
    Sqrt sqrt |e, x| rounded(e, "sqrt", x);
    /// `1 / self`, correctly rounded.
    Recip recip |e, x| rounded(e, "rcp", x);
    /// The largest whole number that is not above.
    Floor floor |e, x| whole(e, "rmi", x[0]);
    /// The smallest whole number that is not below.
    Ceil ceil |e, x| whole(e, "rpi", x[0]);
    /// The whole number between this one and zero.
    Trunc trunc |e, x| whole(e, "rzi", x[0]);
    /// The nearest whole number, with ties to even.
    RoundTiesEven round_ties_even |e, x| whole(e, "rni", x[0]);
    /// e to the power of `self`.
    Exp exp |e, x| e.call("exp", x);
    /// 2 to the power of `self`.
    Exp2 exp2 |e, x| e.call("exp2", x);
    /// `exp(self) - 1`, exact for small numbers.
    ExpM1 exp_m1 |e, x| e.call("exp_m1", x);
    /// The natural logarithm.
    Ln ln |e, x| e.call("ln", x);
    /// The logarithm to the base 2.
    Log2 log2 |e, x| e.call("log2", x);
    /// The logarithm to the base 10.
    Log10 log10 |e, x| e.call("log10", x);
    /// `ln(1 + self)`, exact for small numbers.
    Ln1p ln_1p |e, x| e.call("ln_1p", x);
    /// The sine.
    Sin sin |e, x| e.call("sin", x);
    /// The cosine.
    Cos cos |e, x| e.call("cos", x);
    /// The tangent.
    Tan tan |e, x| e.call("tan", x);
    /// The arcsine.
    Asin asin |e, x| e.call("asin", x);
    /// The arccosine.
    Acos acos |e, x| e.call("acos", x);
    /// The arctangent.
    Atan atan |e, x| e.call("atan", x);
    /// The hyperbolic sine.
    Sinh sinh |e, x| e.call("sinh", x);
    /// The hyperbolic cosine.
    Cosh cosh |e, x| e.call("cosh", x);
    /// The hyperbolic tangent.
    Tanh tanh |e, x| e.call("tanh", x);
    /// The error function.
    Erf erf |e, x| e.call("erf", x);
    /// 1 less the error function, exact for large numbers.
    Erfc erfc |e, x| e.call("erfc", x);
    /// The cube root.
    Cbrt cbrt |e, x| e.call("cbrt", x);
    }
    2 Real => same {
    /// `self` to the power of the other.
    Pow pow |e, x| e.call("pow", x);
    /// The angle of the point (`other`, `self`).
    Atan2 atan2 |e, x| e.call("atan2", x);
    /// The square root of the sum of both squares, which do not overflow unless the result does.
    Hypot hypot |e, x| e.call("hypot", x);
    }
    2 Comparable => bool {
    /// True where `self` is less.
    Less lt |e, x| comparison(e, "lt", x);
    /// True where `self` is less or equal.
    LessOrEqual le |e, x| comparison(e, "le", x);
    /// True where `self` is greater.
    Greater gt |e, x| comparison(e, "gt", x);
    /// True where `self` is greater or equal.
    GreaterOrEqual ge |e, x| comparison(e, "ge", x);
    }
    2 Scalar => bool {
    /// True where both are equal.
    Equal equals |e, x| equality(e, x);
    /// True where both differ.
    Different differs |e, x| difference(e, x);
    }
    1 Real => bool {
    /// True where the number is NaN.
    IsNan is_nan |e, x| comparison(e, "nan", &[x[0], x[0]]);
    /// True where the number is neither infinite nor NaN.
    IsFinite is_finite |e, x| flag(e, &format!("testp.finite.{}", x[0].of.name()), x);
    }
    2 bool => bool {
    /// True where both are true.
    And and |e, x| flag(e, "and.pred", x);
    /// True where one or both are true.
    Or or |e, x| flag(e, "or.pred", x);
    /// True where exactly one is true.
    Xor xor |e, x| flag(e, "xor.pred", x);
    }
    (1) bool => bool {
    Not not |e, x| flag(e, "not.pred", x);
    }
    (2) Real => same {
    Powi powi |e, x| e.call("powi", x);
    }
    (3) Scalar => same {
    Select select |e, x| choice(e, x[0], x[1], x[2]);
    }
    (3) Real => same {
    Fma mul_add |e, x| fused(e, x);
    }
    (3) Number => same {
    Clamp clamp |e, x| clamped(e, x);
    }
}

/// An instruction with `.rn` for floating-point numbers.
fn rounded(e: &mut Emitter, name: &str, x: &[EmittedValue]) -> EmittedValue {
    let of = x[0].of;
    let rounding = if of.is_float() { ".rn" } else { "" };
    instruction(e, &format!("{name}{rounding}.{}", of.name()), x)
}

/// A product and a sum, rounded once. Of 16 bits they are calculated in `f32`, rounded to odd: an inexact result has the last bit 1, so it
/// is never halfway between two numbers of 16 bits, and rounding it to them is the only rounding that matters.
fn fused(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    let of = x[0].of;
    if !matches!(of, ScalarType::F16 | ScalarType::Bf16) {
        return rounded(e, "fma", x);
    }
    let operands: Vec<_> = x.iter().map(|value| &value.register as &dyn core::fmt::Display).collect();
    let [cut, below, above] =
        ["rz", "rm", "rp"].map(|to| e.value(ScalarType::F32, &format!("fma.{to}.f32"), &operands));
    let is_inexact = e.value(ScalarType::Bool, "setp.ne.f32", &[&below, &above]);
    let bits = e.value(ScalarType::U32, "mov.b32", &[&cut]);
    let odd = e.value(ScalarType::U32, "or.b32", &[&bits, &1]);
    let bits = e.value(ScalarType::U32, "selp.b32", &[&odd, &bits, &is_inexact]);
    let wide = e.value(ScalarType::F32, "mov.b32", &[&bits]);
    EmittedValue::new(of, e.finished(of, wide))
}

/// An instruction whose result needs no rounding.
fn exact(e: &mut Emitter, name: &str, x: &[EmittedValue]) -> EmittedValue {
    instruction(e, &format!("{name}.{}", x[0].of.name()), x)
}

fn instruction(e: &mut Emitter, name: &str, x: &[EmittedValue]) -> EmittedValue {
    let of = x[0].of;
    let operands: Vec<_> = x.iter().map(|value| &value.register as &dyn core::fmt::Display).collect();
    let wide = e.value(of.wide(), name, &operands);
    EmittedValue::new(of, e.finished(of, wide))
}

fn flag(e: &mut Emitter, name: &str, x: &[EmittedValue]) -> EmittedValue {
    let operands: Vec<_> = x.iter().map(|value| &value.register as &dyn core::fmt::Display).collect();
    EmittedValue::new(ScalarType::Bool, e.value(ScalarType::Bool, name, &operands))
}

/// An operation on the real and on the imaginary parts of complex numbers; on other numbers as it is.
fn by_parts(
    e: &mut Emitter,
    x: &[EmittedValue],
    operation: impl Fn(&mut Emitter, &[EmittedValue]) -> EmittedValue,
) -> EmittedValue {
    if !x[0].of.is_complex() {
        return operation(e, x);
    }
    let [re, im] = [0, 1].map(|part| {
        let parts: Vec<_> = x.iter().map(|value| value.parts()[part]).collect();
        operation(e, &parts)
    });
    EmittedValue::complex(re, im)
}

fn magnitude(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    match x[0].of {
        of if of.is_complex() => e.call("hypot", &x[0].parts()),
        of if of.is_float() => exact(e, "abs", x),
        // ptxas takes the result of `abs` for positive, which that of the least number is not.
        of if of.is_signed() => {
            let minus = EmittedValue::new(of, below_zero(e, x[0]));
            exact(e, "max", &[x[0], minus])
        }
        _ => x[0],
    }
}

fn conjugate(e: &mut Emitter, x: EmittedValue) -> EmittedValue {
    let [re, im] = x.parts();
    EmittedValue::complex(re, opposite(e, im))
}

/// The sum of two products, or their difference.
fn of_products(
    e: &mut Emitter,
    name: &str,
    [a, b]: [EmittedValue; 2],
    [c, d]: [EmittedValue; 2],
) -> EmittedValue {
    let products = [rounded(e, "mul", &[a, b]), rounded(e, "mul", &[c, d])];
    rounded(e, name, &products)
}

pub(crate) fn product(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    if x[0].of.is_complex() {
        let ([a, b], [c, d]) = (x[0].parts(), x[1].parts());
        let re = of_products(e, "sub", [a, c], [b, d]);
        return EmittedValue::complex(re, of_products(e, "add", [a, d], [b, c]));
    }
    if x[0].of.is_float() { rounded(e, "mul", x) } else { exact(e, "mul.lo", x) }
}

fn opposite(e: &mut Emitter, x: EmittedValue) -> EmittedValue {
    if x.of.is_float() {
        return exact(e, "neg", &[x]);
    }
    let wide = below_zero(e, x);
    EmittedValue::new(x.of, e.finished(x.of, wide))
}

/// Zero less an integer, which wraps, before it is narrowed: the complement of the number below it. ptxas of CUDA 12.9 and 13.0 loses the sign of
/// a `neg`, and of what it takes for one, that is the second operand of a largest or least of three numbers of 32 bits, for sm_90 and sm_100.
fn below_zero(e: &mut Emitter, x: EmittedValue) -> Register {
    let wide = x.of.wide();
    let bits = if matches!(wide, ScalarType::I64 | ScalarType::U64) { 64 } else { 32 };
    let below = e.value(wide, &format!("add.u{bits}"), &[&x.register, &-1]);
    e.value(wide, &format!("not.b{bits}"), &[&below])
}

/// A divisor that an instruction is defined for, and whether the real one is zero or -1.
fn divisor(e: &mut Emitter, x: EmittedValue) -> [EmittedValue; 3] {
    let (name, bits, flag) = (x.of.name(), x.of.bits(), ScalarType::Bool);
    let is_zero = e.value(flag, &format!("setp.eq.{name}"), &[&x.register, &0]);
    let by = e.value(x.of, &format!("selp.{bits}"), &[&1, &x.register, &is_zero]);
    // The least number divided by -1 wraps.
    let (is_minus, by) = if x.of.is_signed() {
        let is_minus = e.value(flag, &format!("setp.eq.{name}"), &[&x.register, &-1]);
        (is_minus, e.value(x.of, &format!("selp.{bits}"), &[&1, &by, &is_minus]))
    } else {
        (is_zero, by)
    };
    let is = |register| EmittedValue::new(flag, register);
    [EmittedValue::new(x.of, by), is(is_zero), is(is_minus)]
}

fn quotient(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    let of = x[0].of;
    if of.is_complex() {
        let ([a, b], [c, d]) = (x[0].parts(), x[1].parts());
        let by = of_products(e, "add", [c, c], [d, d]);
        let [re, im] = [of_products(e, "add", [a, c], [b, d]), of_products(e, "sub", [b, c], [a, d])];
        let [re, im] = [re, im].map(|part| rounded(e, "div", &[part, by]));
        return EmittedValue::complex(re, im);
    }
    if of.is_float() {
        return rounded(e, "div", x);
    }
    let [by, is_zero, is_minus] = divisor(e, x[1]);
    let mut result = exact(e, "div", &[x[0], by]);
    if of.is_signed() {
        let opposite = opposite(e, x[0]);
        result = choice(e, is_minus, opposite, result);
    }
    let zero = EmittedValue::new(of, e.value(of, &format!("mov.{}", of.bits()), &[&0]));
    choice(e, is_zero, zero, result)
}

fn rest(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    if x[0].of.is_float() {
        return e.call("rem", x);
    }
    // Of 1, which stands for zero and -1, it is zero.
    let [by, ..] = divisor(e, x[1]);
    exact(e, "rem", &[x[0], by])
}

fn sign(e: &mut Emitter, x: EmittedValue) -> EmittedValue {
    let (of, name, bits) = (x.of, x.of.name(), x.of.bits());
    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|value| of.literal(value));
    let is_above = e.value(ScalarType::Bool, &format!("setp.gt.{name}"), &[&x.register, &zero]);
    if !of.is_signed() {
        return EmittedValue::new(of, e.value(of, &format!("selp.{bits}"), &[&one, &zero, &is_above]));
    }
    let is_below = e.value(ScalarType::Bool, &format!("setp.lt.{name}"), &[&x.register, &zero]);
    let select = if of.is_float() { name } else { bits };
    // NaN and zero are neither.
    let above = e.value(of, &format!("selp.{select}"), &[&one, &x.register, &is_above]);
    EmittedValue::new(of, e.value(of, &format!("selp.{select}"), &[&minus, &above, &is_below]))
}

fn whole(e: &mut Emitter, rounding: &str, x: EmittedValue) -> EmittedValue {
    let name = x.of.name();
    instruction(e, &format!("cvt.{rounding}.{name}.{name}"), &[x])
}

fn comparison(e: &mut Emitter, name: &str, x: &[EmittedValue]) -> EmittedValue {
    // Truth values are compared as numbers.
    let x = [as_word(e, x[0]), as_word(e, x[1])];
    flag(e, &format!("setp.{name}.{}", x[0].of.name()), &x)
}

fn equality(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    if x[0].of.is_complex() {
        let ([a, b], [c, d]) = (x[0].parts(), x[1].parts());
        let both = [comparison(e, "eq", &[a, c]), comparison(e, "eq", &[b, d])];
        return flag(e, "and.pred", &both);
    }
    comparison(e, "eq", x)
}

fn difference(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    if x[0].of.is_float() {
        // True for NaN.
        let is_equal = equality(e, x);
        return flag(e, "not.pred", &[is_equal]);
    }
    comparison(e, "ne", x)
}

/// The first where the mask is true, otherwise the second.
pub(crate) fn choice(e: &mut Emitter, mask: EmittedValue, a: EmittedValue, b: EmittedValue) -> EmittedValue {
    if a.of.is_complex() {
        return by_parts(e, &[a, b], |e, x| choice(e, mask, x[0], x[1]));
    }
    if a.of == ScalarType::Bool {
        let one = flag(e, "and.pred", &[mask, a]);
        let no = flag(e, "not.pred", &[mask]);
        let other = flag(e, "and.pred", &[no, b]);
        return flag(e, "or.pred", &[one, other]);
    }
    let name = if a.of.is_float() { a.of.name() } else { a.of.bits() };
    let register = e.value(a.of, &format!("selp.{name}"), &[&a.register, &b.register, &mask.register]);
    EmittedValue::new(a.of, register)
}

/// NaN stays NaN.
fn clamped(e: &mut Emitter, x: &[EmittedValue]) -> EmittedValue {
    let is_below = comparison(e, "lt", &[x[0], x[1]]);
    let above = choice(e, is_below, x[1], x[0]);
    let is_above = comparison(e, "gt", &[above, x[2]]);
    choice(e, is_above, x[2], above)
}
