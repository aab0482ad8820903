//! The kernels of this crate, each declared once: [`Kernel`] names them, [`ROWS`] has the rest.
//!
//! A family is a source in `kernels/`, with the types that its kernels are compiled for. A row has a kernel's name between `gpumem_` and the
//! type. The parameters are those of the PTX.

use crate::element::NumericType;
use crate::kernel::text::{KernelText, TextElements};

/// A kernel, for all of its types.
pub(crate) struct KernelRow {
    /// The PTX of each type, or one text for all types.
    texts: &'static [KernelText],
    /// The name for each type.
    names: &'static [&'static str],
}

impl KernelRow {
    /// The PTX and the name for a type.
    pub(crate) fn of(&self, column: usize) -> (KernelText, &'static str) {
        let text = if self.texts.len() == 1 { self.texts[0] } else { self.texts[column] };
        (text, self.names[column])
    }

    /// The number of its types.
    pub(crate) const fn count(&self) -> usize {
        self.names.len()
    }
}

/// The size in bytes that a kernel moves at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
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
pub(crate) enum Only {
    One,
}

/// The names of a kernel, one for each type of an enum, in its order.
macro_rules! names {
    (NumericType $name:literal) => { names!(@ $name; "_f32", "_f64", "_i32", "_i64") };
    (Unit $name:literal) => { names!(@ $name; "_1", "_2", "_4", "_8", "_16") };
    (Only $name:literal) => { names!(@ $name; "") };
    (@ $name:literal; $($suffix:literal),*) => { &[$(concat!("gpumem_", $name, $suffix)),*] };
}

macro_rules! table {
    ($($types:ident $texts:ident {
        $($kernel:ident $name:literal;)*
    })*) => {
        /// A kernel of this crate, for one type.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kernel {
            $($($kernel($types),)*)*
        }

        /// The kernels without their types, as indices of [`ROWS`].
        enum Index {
            $($($kernel,)*)*
        }

        const TABLE: &[KernelRow] = &[
            $($(KernelRow {
                texts: $texts,
                names: names!($types $name),
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
        Rows "rows";
        // Without a vector, the sums of the columns.
        Columns "columns";
    }
    NumericType PRODUCT {
        Product "product";
    }
    NumericType SPARSE {
        SparseRows "sparse_rows";
    }
    NumericType SCAN {
        // Sums up to each element, by blocks and by threads.
        ScanRows "scan_rows";
        ScanColumns "scan_columns";
    }
    Only PRODUCT_WIDE {
        ProductWide "product_wide";
    }
    Only PRODUCT_HALF {
        // By tensor cores.
        ProductHalf "product_half";
    }
    Unit COPY {
        Copy "copy";
    }
    Unit TRANSPOSE {
        // A copy whose fastest axes differ, by tiles.
        Transpose "transpose";
    }
    Only STRIDED {
        // A copy of rows of bytes without gaps, at any addresses.
        Dense "dense_1";
    }
    Unit GATHER {
        Gather "gather";
    }
    Only INDEX {
        TrueCount "true_count";
        TruePlaces "true_places";
        Keys "keys";
        DigitCount "digit_count";
        DigitScan "digit_scan";
        DigitMove "digit_move";
        Scatter "scatter";
        ScatterRest "scatter_rest";
    }
    Only RANDOM {
        // Uniform and normal numbers of all types.
        Random "random";
    }
    Only PACK {
        // Fills many arrays from one buffer.
        Unpack "unpack";
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
        firsts[row + 1] = firsts[row] + TABLE[row].count();
        row += 1;
    }
    firsts
};

macro_rules! text {
    ($file:expr, $elements:expr) => {
        KernelText { checked_in: include_str!(concat!("../../kernels/", $file, ".ptx")), elements: $elements }
    };
    ($file:expr) => {
        &[text!($file, TextElements::Own)]
    };
}

/// The texts of a source that is compiled for `f32` and `f64`.
macro_rules! numeric_texts {
    ($source:literal) => {
        &[
            text!(concat!($source, ".f32"), TextElements::Own),
            text!(concat!($source, ".f64"), TextElements::Own),
            text!(concat!($source, ".f32"), TextElements::I32),
            text!(concat!($source, ".f64"), TextElements::I64),
        ]
    };
}

/// The texts of a source that is compiled for units of 16 bytes.
macro_rules! unit_texts {
    ($source:literal) => {
        &[
            text!($source, TextElements::Narrow { bytes: 1 }),
            text!($source, TextElements::Narrow { bytes: 2 }),
            text!($source, TextElements::Narrow { bytes: 4 }),
            text!($source, TextElements::Narrow { bytes: 8 }),
            text!($source, TextElements::Own),
        ]
    };
}

const MATVEC: &[KernelText] = numeric_texts!("matvec");
const PRODUCT: &[KernelText] = numeric_texts!("product");
const SPARSE: &[KernelText] = numeric_texts!("sparse");
const SCAN: &[KernelText] = numeric_texts!("scan");
const PRODUCT_WIDE: &[KernelText] = text!("product_wide");
const PRODUCT_HALF: &[KernelText] = text!("product_half");
const COPY: &[KernelText] = unit_texts!("copy");
const GATHER: &[KernelText] = unit_texts!("gather");
const STRIDED: &[KernelText] = text!("strided");
const TRANSPOSE: &[KernelText] = &[
    text!("strided", TextElements::Own),
    text!("strided", TextElements::Own),
    text!("strided", TextElements::Own),
    text!("transpose_wide", TextElements::Narrow { bytes: 8 }),
    text!("transpose_wide", TextElements::Own),
];
const INDEX: &[KernelText] = text!("index");
const RANDOM: &[KernelText] = text!("random");
const PACK: &[KernelText] = text!("pack");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::signature::Signatures;

    #[test]
    fn the_ptx_has_each_kernel() {
        for row in ROWS {
            for column in 0..row.count() {
                let (text, name) = row.of(column);
                let filled = text.filled();
                let signature = Signatures::of_entry(&filled, name);
                assert!(signature.is_some_and(|parameters| !parameters.is_empty()), "{name}");
                match text.elements {
                    TextElements::I32 => {
                        assert!(!filled.contains(".f32") && filled.contains("add.s32"), "{name}")
                    }
                    TextElements::I64 => {
                        assert!(!filled.contains(".f64") && filled.contains("add.s64"), "{name}")
                    }
                    TextElements::Narrow { .. } => {
                        assert!(!filled.contains(".v2.") && !filled.contains(".v4."), "{name}")
                    }
                    TextElements::Own => {}
                }
            }
        }
    }
}
