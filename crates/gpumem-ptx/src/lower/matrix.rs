//! Instructions on matrices that the lanes of a warp hold together.

use super::modifiers::Modifiers;
use super::{Lower, Result};
use crate::error::PtxError;
use crate::number::alu;
use crate::number::matrix::{Element, Fragment, Product, Role};
use crate::program::{Access, Lines, Matrix, Memory, Op, SHARED_WINDOW, Slot};
use crate::syntax::{Instruction, Operand, Space, Type};

/// Rows, columns, and the columns of the first factor.
type Shape = [usize; 3];

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn matrix(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        if !matches!(modifiers.name, "ldmatrix" | "stmatrix" | "movmatrix" | "mma" | "wmma") {
            return Ok(false);
        }
        if !modifiers.take("sync") || !modifiers.take("aligned") {
            return Err(modifiers.unknown());
        }
        let name = modifiers.name;
        let matrix = match name {
            "mma" => self.multiply(instruction, &mut modifiers, false)?,
            "wmma" if modifiers.take("mma") => self.multiply(instruction, &mut modifiers, true)?,
            "wmma" => self.move_any(instruction, &mut modifiers)?,
            _ => self.move_rows(instruction, &mut modifiers)?,
        };
        self.push(Op::Matrix(Box::new(matrix)));
        Ok(true)
    }

    /// `ldmatrix`, `stmatrix` and `movmatrix`, of matrices of 8 rows of 8 halves.
    fn move_rows(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<Matrix> {
        let is_transposed = modifiers.take("trans");
        let count = modifiers.take_one(&["x1", "x2", "x4"]);
        let is_generic = modifiers.space() == Space::Generic;
        if !modifiers.take("m8n8") || !modifiers.take("b16") {
            return Err(modifiers.unknown());
        }
        modifiers.finish()?;
        let (first, second) = (self.operand(instruction, 0)?, self.operand(instruction, 1)?);
        let count = match (modifiers.name, count) {
            ("movmatrix", None) if is_transposed => {
                if !matches!(second, Operand::Register(_)) {
                    return Err(self.wrong("a register is expected"));
                }
                let (input, to) = (self.value(second, Type::U32)?, self.target(first, Type::U32)?);
                return Ok(Matrix::Transpose { to, input });
            }
            ("ldmatrix" | "stmatrix", Some("x1")) => 1,
            ("ldmatrix" | "stmatrix", Some("x2")) => 2,
            ("ldmatrix" | "stmatrix", Some(_)) => 4,
            _ => return Err(modifiers.unknown()),
        };
        Ok(if modifiers.name == "ldmatrix" {
            let to = self.targets(first, Type::B32, count)?;
            let from = self.row_access(second, is_generic)?;
            Matrix::LoadRows { to, from, is_transposed }
        } else {
            let values = self.values(second, Type::B32, count)?;
            let to = self.row_access(first, is_generic)?;
            Matrix::StoreRows { values, to, is_transposed }
        })
    }

    /// The shared memory of a row.
    fn row_access(&mut self, operand: &Operand<'t>, is_generic: bool) -> Result<Access> {
        let access = self.shared_access(operand, is_generic, Type::B64)?;
        Ok(Access { count: 2, ..access })
    }

    /// NVIDIA's assembler takes a narrow register for the address of a matrix, a barrier or a copy.
    pub(super) fn check_wide(&self, operand: &Operand<'t>) -> Result<()> {
        match operand {
            Operand::Address(base, _) => match **base {
                Operand::Register(register) if matches!(self.register_type(register).bytes(), 2 | 4) => {
                    Err(PtxError::unsupported(self.place, "a generic address of less than 64 bits"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// An access that must be one to shared memory, although its address may be generic.
    pub(super) fn shared_access(
        &mut self,
        operand: &Operand<'t>,
        is_generic: bool,
        element: Type,
    ) -> Result<Access> {
        if !is_generic {
            return self.access(operand, Space::Shared, element, 1);
        }
        self.check_wide(operand)?;
        let access = self.access(operand, Space::Generic, element, 1)?;
        let at = self.step(alu!(|a: u64| a.wrapping_sub(SHARED_WINDOW)), access.at);
        Ok(Access { space: Memory::Shared, at, ..access })
    }

    /// `mma`, or `wmma.mma` if `is_any`: then the instruction does not say which lane has which element, and has as many registers as it names.
    fn multiply(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
        is_any: bool,
    ) -> Result<Matrix> {
        let shapes = modifiers.take_all(shape);
        let types = modifiers.take_all(Element::of);
        let is_clamped = modifiers.take("satfinite");
        let layouts = modifiers.take_all(|part| matches!(part, "row" | "col").then_some(part == "row"));
        let _ = is_any && modifiers.take("rn");
        modifiers.finish()?;
        let types = match types[..] {
            [d, c] if is_any => Some([d, Element::F16, Element::F16, c]),
            [d, a, b, c] => Some([d, a, b, c]),
            _ => None,
        };
        let (&[shape @ [rows, columns, inner]], Some([d, a, b, c])) = (&shapes[..], types) else {
            return Err(modifiers.unknown());
        };
        let is_known = if is_any {
            // Each lane has the same elements of either layout.
            has_any(shape, a) && a == b && are_sums(a, [c, d])
        } else {
            layouts == [true, false] && has_product(shape, [d, a, b, c])
        };
        if !is_known || is_clamped && d != Element::S32 {
            return Err(modifiers.unknown());
        }
        let fragment = |index: usize, element: Element, role, rows: usize, columns: usize| {
            if is_any {
                let registers = self.parts(self.operand(instruction, index)?).len();
                return self.any(Fragment { element, role: Role::Any, rows, columns, registers });
            }
            let registers = rows * columns / 32 / element.per_register();
            Ok(Fragment { element, role, rows, columns, registers })
        };
        let product = Product {
            d: fragment(0, d, Role::C, rows, columns)?,
            a: fragment(1, a, Role::A, rows, inner)?,
            b: fragment(2, b, Role::B, inner, columns)?,
            c: fragment(3, c, Role::C, rows, columns)?,
            is_clamped,
        };
        self.product(instruction, product)
    }

    /// The operands of a product, whose registers must be as many as the fragments have.
    fn product(&mut self, instruction: &'s Instruction<'t>, product: Product) -> Result<Matrix> {
        if instruction.operands.len() != 4 {
            return Err(self.wrong("4 operands are expected"));
        }
        let of = register_of(product.d.element);
        let to = self.targets(self.operand(instruction, 0)?, of, product.d.registers)?;
        let mut values = |index: usize, fragment: &Fragment| {
            let operand = self.operand(instruction, index)?;
            self.values(operand, register_of(fragment.element), fragment.registers)
        };
        let a = values(1, &product.a)?;
        let b = values(2, &product.b)?;
        let c = values(3, &product.c)?;
        Ok(Matrix::Multiply { product, to, a, b, c })
    }

    /// `wmma.load` and `wmma.store`
    fn move_any(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<Matrix> {
        let is_load = modifiers.take("load");
        if !matches!(instruction.operands.len(), 2 | 3) {
            return Err(self.wrong("2 or 3 operands are expected"));
        }
        if !is_load && !modifiers.take("store") {
            return Err(modifiers.unknown());
        }
        let part = modifiers.take_one(&["a", "b", "c", "d"]);
        let (shapes, types) = (modifiers.take_all(shape), modifiers.take_all(Element::of));
        let are_columns = modifiers.take_one(&["row", "col"]) == Some("col");
        let space = modifiers.space();
        modifiers.finish()?;
        let (&[shape @ [rows, columns, inner]], &[element]) = (&shapes[..], &types[..]) else {
            return Err(modifiers.unknown());
        };
        let is_known = match part {
            Some("a" | "b") => is_load && has_any(shape, element),
            Some("c") => is_load && is_shape(shape),
            Some(_) => !is_load && is_shape(shape),
            None => false,
        };
        let factor = matches!(part, Some("a" | "b"));
        if !is_known
            || !factor && !matches!(element, Element::F16 | Element::F32 | Element::F64 | Element::S32)
        {
            return Err(modifiers.unknown());
        }
        let (rows, columns) = match part {
            Some("a") => (rows, inner),
            Some("b") => (inner, columns),
            _ => (rows, columns),
        };
        let [registers, address] = if is_load { [0, 1] } else { [1, 0] };
        let registers = self.operand(instruction, registers)?;
        let address = self.operand(instruction, address)?;
        let stride = match instruction.operands.get(2) {
            Some(stride) => self.value(stride, Type::U32)?,
            None => self.bits(if are_columns { rows } else { columns } as u64),
        };
        let len = self.parts(registers).len();
        let fragment = self.any(Fragment { element, role: Role::Any, rows, columns, registers: len })?;
        let lines = Lines { are_columns, stride };
        let bytes = match element.bits() {
            8 => Type::B8,
            16 => Type::B16,
            32 => Type::B32,
            _ => Type::B64,
        };
        Ok(if is_load {
            let to = self.targets(registers, register_of(element), len)?;
            Matrix::Load { to, from: self.access(address, space, bytes, 1)?, fragment, lines }
        } else {
            let values = self.values(registers, register_of(element), len)?;
            Matrix::Store { values, to: self.access(address, space, bytes, 1)?, fragment, lines }
        })
    }

    /// A fragment whose lanes have its elements as often as each other.
    fn any(&self, fragment: Fragment) -> Result<Fragment> {
        let elements = fragment.rows * fragment.columns;
        if matches!(fragment.registers, 1..=8) && (32 * fragment.per_lane()).is_multiple_of(elements) {
            Ok(fragment)
        } else {
            Err(self.wrong("the matrix has another number of registers"))
        }
    }

    fn targets(&mut self, operand: &'s Operand<'t>, of: Type, count: usize) -> Result<Box<[u32]>> {
        let parts = self.parts(operand);
        if parts.len() != count {
            return Err(self.wrong(format!("{count} registers are expected")));
        }
        parts.iter().map(|part| self.target(part, of)).collect()
    }

    fn values(&mut self, operand: &'s Operand<'t>, of: Type, count: usize) -> Result<Box<[Slot]>> {
        let parts = self.parts(operand);
        if parts.len() != count {
            return Err(self.wrong(format!("{count} registers are expected")));
        }
        parts.iter().map(|part| self.value(part, of)).collect()
    }
}

/// The type of the registers of a matrix.
fn register_of(element: Element) -> Type {
    if element == Element::F64 { Type::B64 } else { Type::B32 }
}

/// `m16n8k16`, without its dot.
fn shape(name: &str) -> Option<Shape> {
    let (rows, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (columns, inner) = rest.split_once('k')?;
    Some([rows.parse().ok()?, columns.parse().ok()?, inner.parse().ok()?])
}

/// True if `mma` has a product of this shape, with the types of the result, the factors and the sum.
fn has_product(shape: Shape, [d, a, b, c]: [Element; 4]) -> bool {
    use Element::*;
    let shapes: &[Shape] = match (a, b) {
        (F16, F16) | (Bf16, Bf16) => &[[16, 8, 8], [16, 8, 16]],
        (Tf32, Tf32) => &[[16, 8, 4], [16, 8, 8]],
        (F64, F64) => &[[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]],
        (S8 | U8, S8 | U8) => &[[8, 8, 16], [16, 8, 16], [16, 8, 32]],
        (S4 | U4, S4 | U4) => &[[8, 8, 32], [16, 8, 32], [16, 8, 64]],
        (E4m3 | E5m2, E4m3 | E5m2) => &[[16, 8, 16], [16, 8, 32]],
        _ => &[],
    };
    shapes.contains(&shape) && c == d && are_sums(a, [c, d])
}

/// True if `wmma` has a product of this shape.
fn has_any(shape: Shape, factor: Element) -> bool {
    use Element::*;
    let shapes: &[Shape] = match factor {
        F16 | Bf16 | S8 | U8 => &[[16, 16, 16], [32, 8, 16], [8, 32, 16]],
        Tf32 => &[[16, 16, 8]],
        F64 => &[[8, 8, 4]],
        _ => &[],
    };
    shapes.contains(&shape)
}

/// True if `wmma` has products of this shape.
fn is_shape(shape: Shape) -> bool {
    [Element::F16, Element::Tf32, Element::F64].into_iter().any(|factor| has_any(shape, factor))
}

/// True if products of this type are summed in these types.
fn are_sums(factor: Element, sums: [Element; 2]) -> bool {
    use Element::*;
    sums.into_iter().all(|sum| match factor {
        F16 | E4m3 | E5m2 => matches!(sum, F16 | F32),
        Bf16 | Tf32 => sum == F32,
        F64 => sum == F64,
        S4 | U4 | S8 | U8 => sum == S32,
        S32 | F32 => false,
    })
}
