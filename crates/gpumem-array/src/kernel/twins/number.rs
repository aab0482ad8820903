//! [`TwinNumber`]: the arithmetic of the kernels, and how they receive counts.

use gpumem_sim::{KernelFault, Launch};

/// The arithmetic of `common.cuh`: integers wrap, and one divided by zero is zero.
pub(crate) trait TwinNumber: bytemuck::Pod {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($type:ty),*) => {
        $(
            impl TwinNumber for $type {
                const ZERO: Self = 0.0;
                #[inline]
                fn plus(self, other: Self) -> Self {
                    self + other
                }
                #[inline]
                fn minus(self, other: Self) -> Self {
                    self - other
                }
                #[inline]
                fn times(self, other: Self) -> Self {
                    self * other
                }
                #[inline]
                fn over(self, other: Self) -> Self {
                    self / other
                }
            }
        )*
    };
}
floats!(f32, f64);

macro_rules! integers {
    ($($type:ty),*) => {
        $(
            impl TwinNumber for $type {
                const ZERO: Self = 0;
                #[inline]
                fn plus(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                #[inline]
                fn minus(self, other: Self) -> Self {
                    self.wrapping_sub(other)
                }
                #[inline]
                fn times(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                #[inline]
                fn over(self, other: Self) -> Self {
                    if other == 0 { 0 } else { self.wrapping_div(other) }
                }
            }
        )*
    };
}
integers!(i32, i64);

/// A parameter that counts elements.
pub(super) fn count(launch: &mut Launch<'_>) -> Result<usize, KernelFault> {
    Ok(launch.arg::<u64>()? as usize)
}
