//! The kernels of this crate, each declared once: [`Kernel`] names them, [`ROWS`] has the rest.
//!
//! A family is a source in `kernels/`, with the types that its kernels are compiled for. A row has a kernel's name between `gpumem_` and the
//! type, and its parameters. `T` stands for the type. Tests compare each row with the PTX.

use crate::element::NumericType;
use crate::kernel::parameters::{AxisWords, OuterAxes};
use crate::kernel::source::{DeclaredKernel, KernelParameter};

/// A kernel, for all of its types.
pub(crate) struct KernelRow {
    /// The PTX of each type, or one text for all types.
    texts: &'static [&'static str],
    /// The declaration for each type.
    kernels: &'static [DeclaredKernel],
}

impl KernelRow {
    /// The PTX and the declaration for a type.
    pub(crate) fn of(&self, column: usize) -> (&'static str, &'static DeclaredKernel) {
        let text = if self.texts.len() == 1 { self.texts[0] } else { self.texts[column] };
        (text, &self.kernels[column])
    }

    /// True if each numeric type has a text of its own.
    pub(crate) fn is_numeric(&self) -> bool {
        self.texts.len() > 1
    }
}

/// The size in bytes that a kernel moves at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    One,
    Two,
    Four,
    Eight,
    Sixteen,
}

impl Unit {
    pub(crate) const ALL: [Self; 5] = [Self::One, Self::Two, Self::Four, Self::Eight, Self::Sixteen];

    /// The unit of a power of two up to 16.
    pub(crate) fn of(bytes: usize) -> Self {
        match bytes {
            1 => Self::One,
            2 => Self::Two,
            4 => Self::Four,
            8 => Self::Eight,
            _ => Self::Sixteen,
        }
    }
}

/// The type of a kernel that exists for one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    One,
}

/// A list with an item for each type of an enum, in its order, made by a macro that is given the end of the kernel's name. `T` is the type.
macro_rules! for_types {
    (NumericType, $item:ident $arguments:tt) => {
        for_types!(@ $item $arguments; "_f32" f32, "_f64" f64, "_i32" i32, "_i64" i64)
    };
    (Unit, $item:ident $arguments:tt) => {
        for_types!(@ $item $arguments; "_1" u8, "_2" u16, "_4" u32, "_8" u64, "_16" u128)
    };
    (Only, $item:ident $arguments:tt) => { for_types!(@ $item $arguments; "" u8) };
    (@ $item:ident $arguments:tt; $($suffix:literal $type:ty),*) => {
        &[$(for_types!(= $item $arguments; $suffix $type)),*]
    };
    (= $item:ident $arguments:tt; $suffix:literal $type:ty) => {{
        type T = $type;
        // Few rows use it.
        const _: Option<T> = None;
        $item!($suffix $arguments)
    }};
}

macro_rules! declared {
    ($suffix:literal ($name:literal ($($parameter:ident: $type:ty),*))) => {
        DeclaredKernel::new(
            concat!("gpumem_", $name, $suffix),
            const { &[$(KernelParameter::of::<$type>(stringify!($parameter))),*] },
        )
    };
}

macro_rules! table {
    ($($types:ident $texts:ident {
        $($kernel:ident $name:literal $parameters:tt;)*
    })*) => {
        /// A kernel of this crate, for one type.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kernel {
            $($($kernel($types),)*)*
        }

        /// The kernels without their types, as indices of [`ROWS`].
        enum Index {
            $($($kernel,)*)*
        }

        const TABLE: &[KernelRow] = &[
            $($(KernelRow {
                texts: $texts,
                kernels: for_types!($types, declared($name $parameters)),
            },)*)*
        ];

        impl Kernel {
            /// Its row, and the index of its type in the row.
            #[inline]
            pub(crate) fn place(self) -> (usize, usize) {
                match self {
                    $($(Self::$kernel(column) => (Index::$kernel as usize, column as usize),)*)*
                }
            }
        }
    };
}

table! {
    NumericType MATVEC {
        Rows "rows"
            (out: u64, x: u64, row_step: u64, v: u64, rows: u64, columns: u64, columns_a_part: u64);
        // Without a vector, the sums of the columns.
        Columns "columns"
            (out: u64, x: u64, row_step: u64, v: u64, rows: u64, columns: u64, rows_a_part: u64);
    }
    NumericType PRODUCT {
        Product "product"
            (out: u64, a: u64, b: u64, rows: u64, columns: u64, terms: u64, terms_a_part: u64, stacks: u64, a_row: i64,
             a_term: i64, b_term: i64, b_column: i64, outer: OuterAxes);
    }
    NumericType SPARSE {
        SparseRows "sparse_rows"
            (out: u64, offsets: u64, offset_bytes: u64, indices: u64, index_bytes: u64, values: u64, right: u64, rows: u64,
             terms: u64, columns: u64, elements: u64, right_row: i64, right_column: i64);
    }
    Only PRODUCT_WIDE {
        ProductWide "product_wide"
            (out: u64, a: u64, b: u64, rows: u64, columns: u64, terms: u64, terms_a_part: u64, stacks: u64, a_row: i64,
             a_term: i64, b_term: i64, b_column: i64, outer: OuterAxes);
    }
    Only PRODUCT_HALF {
        // By tensor cores.
        ProductHalf "product_half"
            (out: u64, a: u64, b: u64, rows: u64, columns: u64, terms: u64, terms_a_part: u64, stacks: u64, a_row: i64,
             a_term: i64, b_term: i64, b_column: i64, kind: u64, outer: OuterAxes);
    }
    Unit STRIDED {
        Copy "copy"
            (to: u64, from: u64, len: u64, to_step: i64, from_step: i64, rows: u64, axes: OuterAxes);
        // A copy whose fastest axes differ, by tiles.
        Transpose "transpose"
            (to: u64, from: u64, row: AxisWords, column: AxisWords, count: u64, axes: OuterAxes);
    }
    Only STRIDED {
        // A copy of rows of bytes without gaps, at any addresses.
        Dense "dense_1"
            (to: u64, from: u64, len: u64, to_step: i64, from_step: i64, rows: u64, axes: OuterAxes);
    }
    Only INDEX {
        Gather "gather"
            (out: u64, from: u64, index: u64, kind: u64, count: u64, len: u64, width: u64, outer: u64, unit: u64);
        TrueCount "true_count" (counts: u64, mask: u64, n: u64, part: u64);
        TruePlaces "true_places" (out: u64, mask: u64, counts: u64, n: u64, part: u64);
        Keys "keys" (keys: u64, places: u64, index: u64, kind: u64, n: u64, rows: u64);
        DigitCount "digit_count" (counts: u64, keys: u64, n: u64, shift: u64, part: u64);
        DigitScan "digit_scan" (counts: u64, len: u64);
        DigitMove "digit_move"
            (keys_out: u64, places_out: u64, keys: u64, places: u64, starts: u64, n: u64, shift: u64, part: u64);
        Scatter "scatter"
            (out: u64, values: u64, keys: u64, places: u64, parts: u64, n: u64, rows: u64, width: u64, outer: u64,
             kind: u64);
        ScatterRest "scatter_rest"
            (out: u64, keys: u64, parts: u64, n: u64, rows: u64, width: u64, outer: u64, kind: u64);
    }
    Only RANDOM {
        RandomU32 "random_u32" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
        RandomU64 "random_u64" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
        RandomF32 "random_f32" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
        RandomF64 "random_f64" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
        NormalF32 "normal_f32" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
        NormalF64 "normal_f64" (out: u64, n: u64, seed: u64, stream: u64, first: u64);
    }
    Only PACK {
        // Fills many arrays from one buffer.
        Unpack "unpack" (buffer: u64, count: u64);
    }
}

/// All rows, by [`Kernel::place`].
pub(crate) static ROWS: &[KernelRow] = TABLE;

/// The number of kernels, with all types.
pub(crate) const KERNEL_COUNT: usize = FIRSTS[TABLE.len()];

/// The number of a kernel, below [`KERNEL_COUNT`].
#[inline]
pub(crate) fn index(row: usize, column: usize) -> usize {
    FIRSTS[row] + column
}

/// The numbers of kernels in all rows before one.
const FIRSTS: [usize; TABLE.len() + 1] = {
    let (mut firsts, mut row) = ([0; TABLE.len() + 1], 0);
    while row < TABLE.len() {
        firsts[row + 1] = firsts[row] + TABLE[row].kernels.len();
        row += 1;
    }
    firsts
};

/// The texts of a source that is compiled for each numeric type.
macro_rules! numeric_texts {
    ($source:literal) => {
        &[
            include_str!(concat!("../../kernels/", $source, ".f32.ptx")),
            include_str!(concat!("../../kernels/", $source, ".f64.ptx")),
            include_str!(concat!("../../kernels/", $source, ".i32.ptx")),
            include_str!(concat!("../../kernels/", $source, ".i64.ptx")),
        ]
    };
}

const MATVEC: &[&str] = numeric_texts!("matvec");
const PRODUCT: &[&str] = numeric_texts!("product");
const SPARSE: &[&str] = numeric_texts!("sparse");
const PRODUCT_WIDE: &[&str] = &[include_str!("../../kernels/product_wide.ptx")];
const PRODUCT_HALF: &[&str] = &[include_str!("../../kernels/product_half.ptx")];
const STRIDED: &[&str] = &[include_str!("../../kernels/strided.ptx")];
const INDEX: &[&str] = &[include_str!("../../kernels/index.ptx")];
const RANDOM: &[&str] = &[include_str!("../../kernels/random.ptx")];
const PACK: &[&str] = &[include_str!("../../kernels/pack.ptx")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::signature::Signatures;

    #[test]
    fn the_ptx_has_each_kernel_with_these_parameters() {
        let mut parsed: Vec<(&str, Signatures)> = Vec::new();
        for row in ROWS {
            for (column, kernel) in row.kernels.iter().enumerate() {
                let (text, _) = row.of(column);
                if !parsed.iter().any(|(known, _)| core::ptr::eq(*known, text)) {
                    parsed.push((text, Signatures::parse(text)));
                }
                let (_, found) = parsed.iter().find(|(known, _)| core::ptr::eq(*known, text)).unwrap();
                let found = found.of(kernel.name()).unwrap_or_else(|| panic!("no {}", kernel.name()));
                assert_eq!(kernel.differs(&found), None, "{}", kernel.name());
            }
        }
    }
}
