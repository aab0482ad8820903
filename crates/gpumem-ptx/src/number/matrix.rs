//! Matrices whose elements are in the registers of a warp: which lane has which element, and products.
//!
//! Tensor cores leave open how a sum of products is rounded. Here a product is exact, the sum begins with the element of the third matrix and
//! goes through the products in their order, in 64 bits, and is rounded to the nearest number of the result's type once. Sums of 64 bits are
//! chains of fused products. Sums of integers are exact before they wrap or are clamped.

use crate::number::eight::Eight;
use crate::number::float::{nan_32, quiet};
use crate::number::half::Half;
use crate::number::{LANES, Lanes};
use ::half::{bf16, f16};

/// The type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U4,
    S4,
    U8,
    S8,
    S32,
    E4m3,
    E5m2,
    F16,
    Bf16,
    /// The upper 19 bits of a number of 32 bits.
    Tf32,
    F32,
    F64,
}

impl Element {
    /// The type of this name, without its dot.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "u4" => Self::U4,
            "s4" => Self::S4,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "s32" => Self::S32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// The bits of an element.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::U4 | Self::S4 => 4,
            Self::U8 | Self::S8 | Self::E4m3 | Self::E5m2 => 8,
            Self::F16 | Self::Bf16 => 16,
            Self::S32 | Self::Tf32 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// The elements in a register, which has 32 bits, or 64 for numbers of 64.
    pub(crate) fn per_register(self) -> usize {
        32_usize.div_ceil(self.bits() as usize)
    }

    /// The value, which is exact in 64 bits.
    fn value(self, bits: u64) -> f64 {
        match self {
            Self::U4 => (bits & 15) as f64,
            Self::S4 => f64::from(((bits as u8) << 4) as i8 >> 4),
            Self::U8 => f64::from(bits as u8),
            Self::S8 => f64::from(bits as i8),
            Self::S32 => f64::from(bits as i32),
            Self::E4m3 => Eight::E4m3.value(bits as u8).into(),
            Self::E5m2 => Eight::E5m2.value(bits as u8).into(),
            Self::F16 => f16::from_bits(bits as u16).single().into(),
            Self::Bf16 => bf16::from_bits(bits as u16).single().into(),
            Self::Tf32 => f32::from_bits(bits as u32 & !0x1fff).into(),
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::F64 => f64::from_bits(bits),
        }
    }

    /// The bits of a sum. An integer that is too large wraps, or becomes the nearest one.
    fn rounded(self, sum: f64, is_clamped: bool) -> u64 {
        match self {
            Self::F16 => f16::from_double(sum).raw().into(),
            Self::F32 => nan_32(sum as f32).to_bits().into(),
            Self::F64 => quiet(sum).to_bits(),
            _ if is_clamped => u64::from(sum as i32 as u32),
            _ => u64::from(sum as i64 as u32),
        }
    }
}

/// A part that a matrix has in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first factor.
    A,
    /// The second factor.
    B,
    /// The sum, before and after. Matrices that `ldmatrix` and the like move are laid out in this way too.
    C,
    /// Of `wmma`, whose layout is not specified: here the lanes have equal parts of the rows, one after the other. If they have more
    /// elements than the matrix, they begin again.
    Any,
}

/// A matrix in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) element: Element,
    pub(crate) role: Role,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The registers of a lane.
    pub(crate) registers: usize,
}

impl Fragment {
    /// The elements of a lane.
    pub(crate) fn per_lane(&self) -> usize {
        self.registers * self.element.per_register()
    }

    /// Row and column of the element of this index in a lane.
    ///
    /// Four lanes have a row of the first factor and of the sum, or a column of the second factor. The registers of a lane go down by eight
    /// rows first, then on by as many columns as four registers hold.
    pub(crate) fn place(&self, lane: usize, index: usize) -> (usize, usize) {
        let (group, member) = (lane / 4, lane % 4);
        let width = self.element.per_register();
        let (register, part) = (index / width, index % width);
        match self.role {
            Role::A => {
                let bands = (self.rows / 8).max(1);
                (group + register % bands * 8, member * width + part + register / bands * 4 * width)
            }
            Role::B => (member * width + part + register * 4 * width, group),
            Role::C => (group + index / 2 * 8, member * 2 + index % 2),
            Role::Any => {
                let number = (lane * self.per_lane() + index) % (self.rows * self.columns);
                (number / self.columns, number % self.columns)
            }
        }
    }

    /// The bits of an element among those of its register.
    pub(crate) fn part(&self, register: u64, index: usize) -> u64 {
        let by = index % self.element.per_register() * self.element.bits() as usize;
        register >> by & self.mask()
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.element.bits())
    }

    /// Puts the bits of an element into its register.
    pub(crate) fn put(&self, register: &mut u64, index: usize, bits: u64) {
        let by = index % self.element.per_register() * self.element.bits() as usize;
        *register = *register & !(self.mask() << by) | (bits & self.mask()) << by;
    }

    /// The elements in these registers, row by row.
    pub(crate) fn values(&self, registers: &[&Lanes]) -> Vec<f64> {
        let mut values = vec![0.0; self.rows * self.columns];
        for (lane, index) in self.all() {
            let (row, column) = self.place(lane, index);
            let register = registers[index / self.element.per_register()][lane];
            values[row * self.columns + column] = self.element.value(self.part(register, index));
        }
        values
    }

    /// Registers with these sums.
    fn registers(&self, sums: &[f64], is_clamped: bool) -> Vec<Lanes> {
        let mut registers = vec![[0; LANES]; self.registers];
        for (lane, index) in self.all() {
            let (row, column) = self.place(lane, index);
            let bits = self.element.rounded(sums[row * self.columns + column], is_clamped);
            self.put(&mut registers[index / self.element.per_register()][lane], index, bits);
        }
        registers
    }

    fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let per_lane = self.per_lane();
        (0..LANES).flat_map(move |lane| (0..per_lane).map(move |index| (lane, index)))
    }
}

/// A product with a sum: the first factor, the second, the sum before it and after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) a: Fragment,
    pub(crate) b: Fragment,
    pub(crate) c: Fragment,
    pub(crate) d: Fragment,
    /// An integer that is too large becomes the nearest one.
    pub(crate) is_clamped: bool,
}

impl Product {
    /// The registers of the result.
    pub(crate) fn of(&self, a: &[&Lanes], b: &[&Lanes], c: &[&Lanes]) -> Vec<Lanes> {
        let (a, b, mut sums) = (self.a.values(a), self.b.values(b), self.c.values(c));
        let (inner, columns) = (self.a.columns, self.b.columns);
        let is_fused = self.a.element == Element::F64;
        for (row, sums) in a.chunks(inner).zip(sums.chunks_mut(columns)) {
            for (first, second) in row.iter().zip(b.chunks(columns)) {
                for (sum, second) in sums.iter_mut().zip(second) {
                    *sum = if is_fused { first.mul_add(*second, *sum) } else { *sum + first * second };
                }
            }
        }
        self.d.registers(&sums, self.is_clamped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(element: Element, role: Role, rows: usize, columns: usize) -> Fragment {
        let registers = rows * columns / LANES / element.per_register();
        Fragment { element, role, rows, columns, registers }
    }

    #[test]
    fn each_element_is_in_one_lane() {
        use Element::*;
        for (element, rows, inner) in [
            (F16, 16, 8),
            (F16, 16, 16),
            (Tf32, 16, 4),
            (Tf32, 16, 8),
            (F64, 8, 4),
            (F64, 16, 16),
            (S8, 8, 16),
            (U8, 16, 32),
            (S4, 16, 64),
        ] {
            for fragment in [
                fragment(element, Role::A, rows, inner),
                fragment(element, Role::B, inner, 8),
                fragment(F32, Role::C, rows, 8),
                fragment(element, Role::Any, rows, inner),
            ] {
                let mut places: Vec<_> =
                    fragment.all().map(|(lane, index)| fragment.place(lane, index)).collect();
                places.sort_unstable();
                let expected =
                    (0..fragment.rows).flat_map(|row| (0..fragment.columns).map(move |column| (row, column)));
                assert!(places.into_iter().eq(expected), "{fragment:?}");
            }
        }
    }

    /// As the manual has them for `m16n8k16` of halves and `m16n8k32` of bytes.
    #[test]
    fn places_of_the_manual() {
        let a = fragment(Element::F16, Role::A, 16, 16);
        assert_eq!(
            [0, 1, 2, 4, 7].map(|index| a.place(6, index)),
            [(1, 4), (1, 5), (9, 4), (1, 12), (9, 13)]
        );
        let b = fragment(Element::F16, Role::B, 16, 8);
        assert_eq!([0, 1, 2, 3].map(|index| b.place(6, index)), [(4, 1), (5, 1), (12, 1), (13, 1)]);
        let c = fragment(Element::F32, Role::C, 16, 8);
        assert_eq!([0, 1, 2, 3].map(|index| c.place(6, index)), [(1, 4), (1, 5), (9, 4), (9, 5)]);
        let a = fragment(Element::S8, Role::A, 16, 32);
        assert_eq!(
            [0, 3, 4, 8, 15].map(|index| a.place(6, index)),
            [(1, 8), (1, 11), (9, 8), (1, 24), (9, 27)]
        );
    }

    #[test]
    fn integers_wrap_or_are_clamped() {
        assert_eq!(Element::S32.rounded(2_147_483_648.0, false), 0x8000_0000);
        assert_eq!(Element::S32.rounded(2_147_483_648.0, true), 0x7fff_ffff);
        assert_eq!(Element::S32.rounded(-2_147_483_649.0, false), 0x7fff_ffff);
        assert_eq!(Element::S4.value(0xf8), -8.0);
    }
}
