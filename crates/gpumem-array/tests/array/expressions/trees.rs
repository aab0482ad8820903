//! Random formulas as trees, with their expressions and what `ndarray` makes of them. The differential test and the fuzzer of arrays draw
//! them.

use gpumem_array::ndarray::{ArrayD, Axis, IxDyn, SliceInfo, SliceInfoElem, Zip};
use gpumem_array::{Arithmetic, Comparable, Expression, Lazy, Real};
use proptest::prelude::*;

/// A formula of three arrays.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, reason = "the fuzzer's operations have it")]
pub enum Tree {
    /// The array with this index.
    Array(usize),
    /// With an operation that all types have.
    Unary(u8, Box<Tree>),
    /// With an operation that the type alone has.
    Special(u8, Box<Tree>),
    /// With another tree.
    Binary(u8, [Box<Tree>; 2]),
    /// With a number on one side.
    Number(u8, bool, i8, Box<Tree>),
    /// The third or the fourth, by a comparison of the others.
    Choice(u8, [Box<Tree>; 4]),
    /// Through another type.
    Through(u8, Box<Tree>),
    /// In reverse order along an axis.
    Reversed(usize, Box<Tree>),
    /// Calculated from transposed arrays, and transposed back.
    Turned(Box<Tree>),
}

pub(crate) fn trees() -> impl Strategy<Value = Tree> {
    (0..3_usize).prop_map(Tree::Array).prop_recursive(5, 24, 4, |inner| {
        let one = || inner.clone().prop_map(Box::new);
        prop_oneof![
            2 => (any::<u8>(), one()).prop_map(|(which, x)| Tree::Unary(which, x)),
            2 => (any::<u8>(), one()).prop_map(|(which, x)| Tree::Special(which, x)),
            5 => (any::<u8>(), [one(), one()]).prop_map(|(which, x)| Tree::Binary(which, x)),
            2 => (any::<u8>(), any::<bool>(), 0..100_i8, one()).prop_map(|(which, is_left, number, x)| Tree::Number(which, is_left, number, x)),
            1 => (any::<u8>(), [one(), one(), one(), one()]).prop_map(|(which, x)| Tree::Choice(which, x)),
            1 => (any::<u8>(), one()).prop_map(|(which, x)| Tree::Through(which, x)),
            1 => (0..3_usize, one()).prop_map(|(axis, x)| Tree::Reversed(axis, x)),
            1 => one().prop_map(Tree::Turned),
        ]
    })
}

/// The expression of a tree.
pub(crate) type Formula<'e, T> = Lazy<Box<dyn Expression<Elem = T, Dim = IxDyn> + 'e>>;

/// A type of numbers with its operations on the host.
pub(crate) trait Reference: Arithmetic + Comparable {
    const LEAST: Self;
    fn number(value: i8) -> Self;
    fn unary(which: u8, a: Self) -> Self;
    fn binary(which: u8, a: Self, b: Self) -> Self;
    fn through(which: u8, a: Self) -> Self;
    fn special(which: u8, a: Self) -> Self;
    fn special_formula<'e>(which: u8, x: Formula<'e, Self>) -> Formula<'e, Self>
    where
        Self: 'e;
}

pub(crate) fn real_formula<'e, T: Real + 'e>(which: u8, x: Formula<'e, T>) -> Formula<'e, T> {
    match which % 5 {
        0 => x.abs().sqrt().boxed(),
        1 => x.floor().boxed(),
        2 => x.round_ties_even().boxed(),
        3 => x.recip().boxed(),
        _ => x.ceil().boxed(),
    }
}

macro_rules! reference {
    // `$to` and `$from` convert to a type with the operators of Rust, and back with one rounding.
    (floats $($type:ty, $least:expr, $to:expr, $from:expr;)*) => {$(
        impl Reference for $type {
            const LEAST: Self = $least;
            fn number(value: i8) -> Self {
                ($from)(value.into())
            }
            fn unary(which: u8, a: Self) -> Self {
                let a = ($to)(a);
                ($from)(match which % 5 {
                    0 => -a,
                    1 => a.abs(),
                    2 => if a == 0.0 || a.is_nan() { a } else { a.signum() },
                    3 => a * a,
                    _ => a.clamp(1.0, 9.0),
                })
            }
            fn binary(which: u8, a: Self, b: Self) -> Self {
                let (a, b) = (($to)(a), ($to)(b));
                // Zeros are ordered by their signs.
                let is_less = a < b || a == b && a.is_sign_negative();
                ($from)(match which % 7 {
                    0 => a + b,
                    1 => a - b,
                    2 => a * b,
                    3 => a / b,
                    4 => a % b,
                    5 => if a.is_nan() || is_less && !b.is_nan() { b } else { a },
                    _ => if a.is_nan() || !is_less && !b.is_nan() { b } else { a },
                })
            }
            fn through(which: u8, a: Self) -> Self {
                let a = ($to)(a);
                ($from)(match which % 4 {
                    0 => (a as i32) as _,
                    1 => a as f32 as _,
                    2 => (a as u8).into(),
                    _ => u8::from(a != 0.0).into(),
                })
            }
            fn special(which: u8, a: Self) -> Self {
                let a = ($to)(a);
                ($from)(match which % 5 {
                    0 => a.abs().sqrt(),
                    1 => a.floor(),
                    2 => a.round_ties_even(),
                    3 => 1.0 / a,
                    _ => a.ceil(),
                })
            }
            fn special_formula<'e>(which: u8, x: Formula<'e, Self>) -> Formula<'e, Self>
            where
                Self: 'e,
            {
                real_formula(which, x)
            }
        }
    )*};
    (integers $($type:ty)*) => {$(
        impl Reference for $type {
            const LEAST: Self = <$type>::MIN;
            fn number(value: i8) -> Self {
                value as $type
            }
            fn unary(which: u8, a: Self) -> Self {
                match which % 5 {
                    0 => a.wrapping_neg(),
                    1 => if a < Self::ZERO { a.wrapping_neg() } else { a },
                    2 => if a > 0 { 1 } else if a == 0 { 0 } else { Self::ZERO.wrapping_sub(1) },
                    3 => a.wrapping_mul(a),
                    _ => a.clamp(1, 9),
                }
            }
            fn binary(which: u8, a: Self, b: Self) -> Self {
                match which % 7 {
                    0 => a.wrapping_add(b),
                    1 => a.wrapping_sub(b),
                    2 => a.wrapping_mul(b),
                    3 => a.checked_div(b).unwrap_or(if b == 0 { 0 } else { a }),
                    4 => a.checked_rem(b).unwrap_or(0),
                    5 => a.max(b),
                    _ => a.min(b),
                }
            }
            fn through(which: u8, a: Self) -> Self {
                match which % 4 {
                    0 => a as i32 as $type,
                    1 => a as f32 as $type,
                    2 => a as u8 as $type,
                    _ => (a != 0).into(),
                }
            }
            fn special(which: u8, a: Self) -> Self {
                if which % 2 == 0 { Self::binary(4, a, 7) } else { a.max(3) }
            }
            fn special_formula<'e>(which: u8, x: Formula<'e, Self>) -> Formula<'e, Self>
            where
                Self: 'e,
            {
                if which % 2 == 0 { (x % 7).boxed() } else { x.max(3).boxed() }
            }
        }
    )*};
}
#[allow(unused_imports, reason = "the fuzzer has no other types")]
pub(crate) use reference;
reference! { floats
    f32, f32::NEG_INFINITY, |a: f32| a, |a: f32| a;
    f64, f64::NEG_INFINITY, |a: f64| a, |a: f64| a;
}
reference! { integers i8 i16 i32 i64 u8 u16 u32 u64 }

/// The expression of a tree of arrays with this number of axes. `array` makes that of an array by its index, transposed or not.
pub(crate) fn formula<'e, T: Reference + 'e>(
    tree: &Tree,
    array: &dyn Fn(usize, bool) -> Formula<'e, T>,
    axis_count: usize,
    is_turned: bool,
) -> Formula<'e, T> {
    let of = |tree: &Tree| formula(tree, array, axis_count, is_turned);
    match tree {
        Tree::Array(index) => array(*index, is_turned),
        Tree::Unary(which, x) => match which % 5 {
            0 => (-of(x)).boxed(),
            1 => of(x).abs().boxed(),
            2 => of(x).sign().boxed(),
            3 => of(x).square().boxed(),
            _ => of(x).clamp(T::number(1), T::number(9)).boxed(),
        },
        Tree::Special(which, x) => T::special_formula(*which, of(x)),
        Tree::Binary(which, [x, y]) => match which % 7 {
            0 => (of(x) + of(y)).boxed(),
            1 => (of(x) - of(y)).boxed(),
            2 => (of(x) * of(y)).boxed(),
            3 => (of(x) / of(y)).boxed(),
            4 => (of(x) % of(y)).boxed(),
            5 => of(x).max(of(y)).boxed(),
            _ => of(x).min(of(y)).boxed(),
        },
        Tree::Number(which, is_left, number, x) => {
            let (x, number) = (of(x), T::number(*number));
            match (which % 3, is_left) {
                (0, _) => (x + number).boxed(),
                (1, false) => (x - number).boxed(),
                // A number is not a left operand in a generic function.
                (1, true) => (-x + number).boxed(),
                _ => (x * number).boxed(),
            }
        }
        Tree::Choice(which, [a, b, x, y]) => {
            let (a, b, x, y) = (of(a), of(b), of(x), of(y));
            match which % 4 {
                0 => a.lt(b).select(x, y).boxed(),
                1 => a.ge(b).select(x, y).boxed(),
                2 => a.equals(b).select(x, y).boxed(),
                _ => a.differs(b).select(x, y).boxed(),
            }
        }
        Tree::Through(which, x) => match which % 4 {
            0 => of(x).cast::<i32>().cast().boxed(),
            1 => of(x).cast::<f32>().cast().boxed(),
            2 => of(x).cast::<u8>().cast().boxed(),
            _ => of(x).cast::<bool>().cast().boxed(),
        },
        Tree::Reversed(axis, x) => {
            let Some(axis) = axis.checked_rem(axis_count) else { return of(x) };
            let axis = if is_turned { axis_count - 1 - axis } else { axis };
            let step = |index| if index == axis { -1 } else { 1 };
            let slices: Vec<_> = (0..axis_count)
                .map(|index| SliceInfoElem::Slice { start: 0, end: None, step: step(index) })
                .collect();
            let slices = SliceInfo::<_, IxDyn, IxDyn>::try_from(slices).expect("ranges keep their axes");
            of(x).slice(slices).boxed()
        }
        Tree::Turned(x) => formula(x, array, axis_count, !is_turned).t().boxed(),
    }
}

/// Evaluates a tree with `ndarray`.
pub(crate) fn on_host<T: Reference>(tree: &Tree, arrays: &[ArrayD<T>; 3]) -> ArrayD<T> {
    let of = |tree: &Tree| on_host(tree, arrays);
    match tree {
        Tree::Array(index) => arrays[*index].clone(),
        Tree::Unary(which, x) => of(x).mapv(|a| T::unary(*which, a)),
        Tree::Special(which, x) => of(x).mapv(|a| T::special(*which, a)),
        Tree::Binary(which, [x, y]) => {
            Zip::from(&of(x)).and(&of(y)).map_collect(|a, b| T::binary(*which, *a, *b))
        }
        Tree::Number(which, is_left, number, x) => of(x).mapv(|a| match (which % 3, is_left) {
            (1, true) => T::binary(0, T::unary(0, a), T::number(*number)),
            (which, _) => T::binary(which, a, T::number(*number)),
        }),
        Tree::Choice(which, [a, b, x, y]) => {
            let (a, b) = (of(a), of(b));
            let mask = Zip::from(&a).and(&b).map_collect(|a, b| match which % 4 {
                0 => a < b,
                1 => a >= b,
                2 => a == b,
                _ => a != b,
            });
            Zip::from(&mask).and(&of(x)).and(&of(y)).map_collect(|is, x, y| if *is { *x } else { *y })
        }
        Tree::Through(which, x) => of(x).mapv(|a| T::through(*which, a)),
        Tree::Reversed(axis, x) => {
            let mut x = of(x);
            if let Some(axis) = axis.checked_rem(x.ndim()) {
                x.invert_axis(Axis(axis));
            }
            x
        }
        Tree::Turned(x) => of(x),
    }
}
