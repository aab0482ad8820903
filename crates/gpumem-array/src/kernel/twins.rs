//! The kernels of this crate in Rust, for the simulator, with the same names, parameters and results.
//!
//! Sums may be taken in another order than on a GPU, so floats agree within rounding; everything else agrees exactly. Elements are cells
//! because operands may be the same memory, and loops run over fixed numbers of lanes so that the compiler can vectorise them.

mod cast;
mod elementwise;
mod gather;
mod matvec;
mod number;
mod pack;
mod pattern;
mod random;
mod reduce;
mod strided;
mod triangle;

use crate::kernel::twins::elementwise::{Add, Div, Mul, Sub, array_scalar, arrays, scalar_array};
use crate::kernel::twins::matvec::{columns, columns_sum, rows, rows_in_parts, rows_sum};
use crate::kernel::twins::reduce::{dot, sum};
use gpumem_sim::{Kernel, Sim};

/// Registers the twins with a simulator.
pub(crate) fn register(sim: &Sim) {
    sim.register(F32);
    sim.register(F64);
    sim.register(I32);
    sim.register(I64);
    sim.register(FILL);
    sim.register(STRIDED);
    sim.register(RANDOM);
    sim.register(PACK);
    sim.register(CAST);
    #[cfg(feature = "half")]
    sim.register(CAST_HALF);
    sim.register(GATHER);
}

static FILL: &[Kernel] = &[
    Kernel::new("gpumem_pattern_1", pattern::repeat::<u8>),
    Kernel::new("gpumem_pattern_2", pattern::repeat::<u16>),
    Kernel::new("gpumem_pattern_4", pattern::repeat::<u32>),
    Kernel::new("gpumem_pattern_8", pattern::repeat::<u64>),
    Kernel::new("gpumem_pattern_16", pattern::repeat::<u128>),
];

static RANDOM: &[Kernel] = &[
    Kernel::new("gpumem_random_u32", random::random_u32),
    Kernel::new("gpumem_random_u64", random::random_u64),
    Kernel::new("gpumem_random_f32", random::random_f32),
    Kernel::new("gpumem_random_f64", random::random_f64),
    Kernel::new("gpumem_normal_f32", random::normal_f32),
    Kernel::new("gpumem_normal_f64", random::normal_f64),
];

static PACK: &[Kernel] = &[Kernel::new("gpumem_unpack", pack::unpack)];

static CAST: &[Kernel] = &[
    Kernel::new("gpumem_cast_f32_f64", cast::cast::<f32, f64>),
    Kernel::new("gpumem_cast_f64_f32", cast::cast::<f64, f32>),
];

#[cfg(feature = "half")]
static CAST_HALF: &[Kernel] = &[
    Kernel::new("gpumem_cast_f32_f16", cast::cast::<f32, half::f16>),
    Kernel::new("gpumem_cast_f32_bf16", cast::cast::<f32, half::bf16>),
    Kernel::new("gpumem_cast_f64_f16", cast::cast::<f64, half::f16>),
    Kernel::new("gpumem_cast_f64_bf16", cast::cast::<f64, half::bf16>),
    Kernel::new("gpumem_cast_f16_f32", cast::cast::<half::f16, f32>),
    Kernel::new("gpumem_cast_f16_f64", cast::cast::<half::f16, f64>),
    Kernel::new("gpumem_cast_f16_bf16", cast::cast::<half::f16, half::bf16>),
    Kernel::new("gpumem_cast_bf16_f32", cast::cast::<half::bf16, f32>),
    Kernel::new("gpumem_cast_bf16_f64", cast::cast::<half::bf16, f64>),
    Kernel::new("gpumem_cast_bf16_f16", cast::cast::<half::bf16, half::f16>),
];

static GATHER: &[Kernel] = &[
    Kernel::new("gpumem_gather_1", gather::gather::<u8>),
    Kernel::new("gpumem_gather_2", gather::gather::<u16>),
    Kernel::new("gpumem_gather_4", gather::gather::<u32>),
    Kernel::new("gpumem_gather_8", gather::gather::<u64>),
    Kernel::new("gpumem_gather_16", gather::gather::<u128>),
];

static STRIDED: &[Kernel] = &[
    Kernel::new("gpumem_copy_1", strided::copy::<u8>),
    Kernel::new("gpumem_copy_2", strided::copy::<u16>),
    Kernel::new("gpumem_copy_4", strided::copy::<u32>),
    Kernel::new("gpumem_copy_8", strided::copy::<u64>),
    Kernel::new("gpumem_copy_16", strided::copy::<u128>),
    Kernel::new("gpumem_dense_1", strided::copy::<u8>),
    Kernel::new("gpumem_transpose_1", strided::transpose::<u8>),
    Kernel::new("gpumem_transpose_2", strided::transpose::<u16>),
    Kernel::new("gpumem_transpose_4", strided::transpose::<u32>),
    Kernel::new("gpumem_transpose_8", strided::transpose::<u64>),
    Kernel::new("gpumem_transpose_16", strided::transpose::<u128>),
    Kernel::new("gpumem_fill_1", strided::fill::<u8>),
    Kernel::new("gpumem_fill_2", strided::fill::<u16>),
    Kernel::new("gpumem_fill_4", strided::fill::<u32>),
    Kernel::new("gpumem_fill_8", strided::fill::<u64>),
    Kernel::new("gpumem_fill_16", strided::fill::<u128>),
];

macro_rules! twins {
    ($($table:ident: $type:ty, $suffix:literal;)*) => {
        $(
            static $table: &[Kernel] = &[
                Kernel::new(concat!("gpumem_add_", $suffix), arrays::<$type, Add>),
                Kernel::new(concat!("gpumem_sub_", $suffix), arrays::<$type, Sub>),
                Kernel::new(concat!("gpumem_mul_", $suffix), arrays::<$type, Mul>),
                Kernel::new(concat!("gpumem_div_", $suffix), arrays::<$type, Div>),
                Kernel::new(concat!("gpumem_add_scalar_", $suffix), array_scalar::<$type, Add>),
                Kernel::new(concat!("gpumem_sub_scalar_", $suffix), array_scalar::<$type, Sub>),
                Kernel::new(concat!("gpumem_mul_scalar_", $suffix), array_scalar::<$type, Mul>),
                Kernel::new(concat!("gpumem_div_scalar_", $suffix), array_scalar::<$type, Div>),
                Kernel::new(concat!("gpumem_scalar_sub_", $suffix), scalar_array::<$type, Sub>),
                Kernel::new(concat!("gpumem_scalar_div_", $suffix), scalar_array::<$type, Div>),
                Kernel::new(concat!("gpumem_sum_", $suffix), sum::<$type>),
                Kernel::new(concat!("gpumem_dot_", $suffix), dot::<$type>),
                Kernel::new(concat!("gpumem_rows_warp_", $suffix), rows::<$type>),
                Kernel::new(concat!("gpumem_rows_block_", $suffix), rows_in_parts::<$type>),
                Kernel::new(concat!("gpumem_rows_sum_", $suffix), rows_sum::<$type>),
                Kernel::new(concat!("gpumem_columns_", $suffix), columns::<$type>),
                Kernel::new(concat!("gpumem_columns_sum_", $suffix), columns_sum::<$type>),
                Kernel::new(concat!("gpumem_triangle_rows_", $suffix), triangle::triangle::<$type>),
                Kernel::new(concat!("gpumem_triangle_columns_", $suffix), triangle::triangle::<$type>),
            ];
        )*
    };
}

twins! {
    F32: f32, "f32";
    F64: f64, "f64";
    I32: i32, "i32";
    I64: i64, "i64";
}
