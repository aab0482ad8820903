//! Arithmetic, logic, comparisons, moves and conversions.

use super::modifiers::Modifiers;
use super::{Lower, Result, is_of_special};
use crate::error::short;
use crate::number::compare::{self, property};
use crate::number::convert;
use crate::number::eight::Eight;
use crate::number::float::{self, FLUSH_32, FLUSH_64, FLUSH_TINY_32, Rounding, SATURATE_32, SATURATE_64};
use crate::number::integer::{self, dot, nth_set};
use crate::number::{Alu, alu, half, packed};
use crate::program::{Op, Slot};
use crate::syntax::{Instruction, Operand, Type};

/// The comparisons, and the three ways in which a comparison is combined with a predicate.
const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];
const COMBINATIONS: [&str; 3] = ["and", "or", "xor"];

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn arithmetic(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        match modifiers.name {
            "mov" => self.mov(instruction, &mut modifiers)?,
            "cvt" => self.convert(instruction, &mut modifiers)?,
            "setp" => self.set_predicate(instruction, &mut modifiers)?,
            "set" => self.set(instruction, &mut modifiers)?,
            "lop3" => self.logic(instruction, &mut modifiers)?,
            "bfi" => self.insert(instruction, &mut modifiers)?,
            "dp4a" | "dp2a" => self.dot(instruction, &mut modifiers)?,
            "testp" => {
                let kinds = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
                let kind = modifiers.take_one(&kinds).ok_or_else(|| modifiers.unknown())?;
                let of = modifiers.one_type()?;
                modifiers.finish()?;
                let function = property(kind, of).ok_or_else(|| modifiers.unknown())?;
                self.apply(instruction, function, [of; 3], Type::Pred)?;
            }
            "fns" => {
                modifiers.types();
                modifiers.finish()?;
                let function = alu!(|mask: u32, base: u32, n: i32| nth_set(mask, base, n));
                self.apply(instruction, function, [Type::B32, Type::B32, Type::S32], Type::B32)?;
            }
            "vadd2" | "vadd4" | "vsub2" | "vsub4" | "vabsdiff2" | "vabsdiff4" | "vavrg2" | "vavrg4"
            | "vmin2" | "vmin4" | "vmax2" | "vmax4" => self.video(instruction, &mut modifiers)?,
            // What caches prefer to keep changes no value.
            "createpolicy" => {
                let to = self.target(self.operand(instruction, 0)?, Type::U64)?;
                self.check_policy(instruction, &mut modifiers)?;
                let none = self.bits(0);
                self.push(Op::Alu { function: Alu::One(|a| *a), to, inputs: [none; 3] });
            }
            _ => return self.general(instruction, modifiers),
        }
        Ok(true)
    }

    /// Applies a function to the operands behind the first, which is the target.
    fn apply(
        &mut self,
        instruction: &'s Instruction<'t>,
        function: Alu,
        types: [Type; 3],
        result: Type,
    ) -> Result<()> {
        let (to, inputs) = self.inputs(instruction, function, types, result)?;
        self.push(Op::Alu { function, to, inputs });
        Ok(())
    }

    /// The target and the inputs of a function.
    fn inputs(
        &mut self,
        instruction: &'s Instruction<'t>,
        function: Alu,
        types: [Type; 3],
        result: Type,
    ) -> Result<(u32, [Slot; 3])> {
        let count = match function {
            Alu::One(_) => 1,
            Alu::Two(_) => 2,
            Alu::Three(_) => 3,
        };
        if instruction.operands.len() != count + 1 {
            return Err(self.wrong(format!("{} operands are expected", count + 1)));
        }
        let mut inputs = [self.bits(0); 3];
        for (index, input) in inputs.iter_mut().enumerate().take(count) {
            *input = self.value(&instruction.operands[index + 1], types[index])?;
        }
        Ok((self.target(&instruction.operands[0], result)?, inputs))
    }

    /// Lowers an instruction of one type that is no special case above.
    fn general(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        let types = modifiers.types();
        let Some(&of) = types.first() else { return Ok(false) };
        let name = modifiers.name;
        let is_flushing = modifiers.take("ftz");
        let is_saturating = modifiers.take("sat");
        if name == "slct" {
            modifiers.finish()?;
            return self.select(instruction, of, types.get(1).copied(), is_flushing).map(|()| true);
        }
        if of.is_float() || is_half_pair(of) {
            return self.float(instruction, modifiers, (of, is_flushing, is_saturating));
        }
        if matches!(of, Type::U16x2 | Type::S16x2) {
            let full = if modifiers.take("relu") { format!("{name}.relu") } else { name.into() };
            modifiers.finish()?;
            let Some(function) = packed::choose(&full, of) else { return Ok(false) };
            return self.apply(instruction, function, [of; 3], of).map(|()| true);
        }
        let is_carry_out = modifiers.take("cc");
        let mut full = name.to_string();
        let parts = [
            "lo", "hi", "wide", "l", "r", "wrap", "clamp", "shiftamt", "f4e", "b4e", "rc8", "ecl", "ecr",
            "rc16", "relu",
        ];
        for part in parts {
            if modifiers.take(part) {
                full = format!("{full}.{part}");
            }
        }
        if is_saturating {
            full.push_str(".sat");
        }
        modifiers.finish()?;
        if is_carry_out || matches!(name, "addc" | "subc" | "madc") {
            return self.with_carry(instruction, &full, of, is_carry_out).map(|()| true);
        }
        let wide = if of.bytes() == 2 { Type::B32 } else { Type::B64 };
        let types = match name {
            "shl" | "shr" => [of, Type::U32, of],
            "shf" => [of, of, Type::U32],
            "bmsk" => [Type::U32; 3],
            "selp" => [of, of, Type::Pred],
            "bfe" => [of, Type::U32, Type::U32],
            "mad" if full == "mad.wide" => [of, of, wide],
            _ => [of; 3],
        };
        let result = match name {
            "popc" | "clz" | "bfind" => Type::B32,
            "mul" | "mad" if full.ends_with(".wide") => wide,
            _ => of,
        };
        let Some(function) = integer::choose(&full, of) else { return Ok(false) };
        self.apply(instruction, function, types, result)?;
        Ok(true)
    }

    fn float(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
        (of, is_flushing, is_saturating): (Type, bool, bool),
    ) -> Result<bool> {
        let rounding = modifiers.rounding();
        let mut full = modifiers.name.to_string();
        for (part, suffix) in
            [("approx", ".approx"), ("full", ".full"), ("NaN", ".nan"), ("xorsign", ".xorsign")]
        {
            if modifiers.take(part) {
                full.push_str(suffix);
            }
        }
        let _ = full.ends_with(".xorsign") && modifiers.take("abs");
        // The suffix of a function that is not exact is enough.
        if rounding.is_none() && matches!(&*full, "fma" | "mad" | "div" | "sqrt" | "rcp") {
            return Err(self.wrong(format!("`{}` needs a rounding", modifiers.name)));
        }
        let rounding = rounding.unwrap_or(Rounding::Near);
        let is_positive = modifiers.name == "fma" && modifiers.take("relu");
        modifiers.finish()?;
        if full == "selp" {
            let Some(function) = integer::choose(&full, bits_of(of)) else { return Ok(false) };
            self.apply(instruction, function, [of, of, Type::Pred], of)?;
            return Ok(true);
        }
        let is_half = !matches!(of, Type::F32 | Type::F64);
        let found = if is_half { half::choose(&full, of) } else { float::choose(&full, of, rounding) };
        let Some(function) = found else { return Ok(false) };
        let [flush, saturate, positive] = match of {
            Type::F32 => [Some(FLUSH_32), Some(SATURATE_32), None],
            Type::F64 => [Some(FLUSH_64), Some(SATURATE_64), None],
            _ => [".ftz", ".sat", ".relu"].map(|name| half::choose(name, of)),
        };
        let (to, mut inputs) = self.inputs(instruction, function, [of; 3], of)?;
        let none = self.bits(0);
        let flush = flush.filter(|_| is_flushing);
        if let Some(flush) = flush {
            for input in &mut inputs {
                if *input != none {
                    *input = self.step(flush, *input);
                }
            }
        }
        let mut chain = Vec::new();
        let tiny = if is_flushing && of == Type::F32 { float::tiny_32(&full, rounding) } else { None };
        chain.extend(flush.filter(|_| tiny.is_none()));
        for (after, is_wanted) in [(saturate, is_saturating), (positive, is_positive)] {
            match after {
                Some(after) if is_wanted => chain.push(after),
                None if is_wanted => return Ok(false),
                _ => {}
            }
        }
        if chain.is_empty() && tiny.is_none() {
            self.push(Op::Alu { function, to, inputs });
            return Ok(true);
        }
        let mut result = self.temporary();
        self.push(Op::Alu { function, to: result, inputs });
        if let Some(tiny) = tiny {
            let (is_tiny, flushed) = (self.temporary(), self.temporary());
            self.push(Op::Alu { function: tiny, to: is_tiny, inputs });
            let inputs = [Slot::Register(result), Slot::Register(is_tiny), none];
            self.push(Op::Alu { function: FLUSH_TINY_32, to: flushed, inputs });
            result = flushed;
        }
        self.chain(chain, Slot::Register(result), to);
        Ok(true)
    }

    /// `slct`: the third operand chooses by its sign.
    fn select(
        &mut self,
        instruction: &'s Instruction<'t>,
        of: Type,
        which: Option<Type>,
        is_flushing: bool,
    ) -> Result<()> {
        let by = which.unwrap_or(of);
        let name = match which {
            Some(Type::S32) => "slct",
            // A tiny number that is flushed keeps its sign, which does not matter for zero.
            Some(Type::F32) if is_flushing => "slct.ftz",
            Some(Type::F32) => "slct.f32",
            _ => return Err(self.unknown(instruction)),
        };
        let function = integer::choose(name, bits_of(of)).ok_or_else(|| self.unknown(instruction))?;
        self.apply(instruction, function, [of, of, by], of)
    }

    /// Instructions on two or four numbers in a register, of which all are combined.
    fn video(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let types = modifiers.types();
        let (is_clamped, is_summed) = (modifiers.take("sat"), modifiers.take("add"));
        modifiers.finish()?;
        let are_signed = match types[..] {
            [to @ (Type::U32 | Type::S32), a @ (Type::U32 | Type::S32), b @ (Type::U32 | Type::S32)] => {
                [to, a, b].map(Type::is_signed)
            }
            _ => return Err(modifiers.unknown()),
        };
        let is_signed = are_signed[0];
        // What is summed of numbers with different signs is known for none.
        if is_summed && are_signed != [is_signed; 3] {
            return Err(modifiers.unknown());
        }
        let function = packed::video(modifiers.name, are_signed, is_clamped);
        let function = function.ok_or_else(|| modifiers.unknown())?;
        let to = self.target(self.operand(instruction, 0)?, Type::U32)?;
        let mut inputs = [self.bits(0); 3];
        for (index, input) in inputs.iter_mut().enumerate() {
            let operand = self.operand(instruction, index + 1)?;
            if matches!(operand, Operand::Integer(_)) {
                return Err(self.wrong("a register is expected"));
            }
            *input = self.value(operand, Type::U32)?;
        }
        if !is_summed {
            self.push(Op::Alu { function, to, inputs });
            return Ok(());
        }
        let parts = self.temporary();
        self.push(Op::Alu { function, to: parts, inputs });
        let function = packed::sum(modifiers.name.ends_with('4'), is_signed);
        self.push(Op::Alu { function, to, inputs: [Slot::Register(parts), inputs[2], inputs[2]] });
        Ok(())
    }

    /// Applies a function of one operand and gives the new register.
    pub(super) fn step(&mut self, function: Alu, input: Slot) -> Slot {
        let to = self.temporary();
        let none = self.bits(0);
        self.push(Op::Alu { function, to, inputs: [input, none, none] });
        Slot::Register(to)
    }

    /// Applies functions of one operand one after the other. Only the last writes `to`.
    fn chain(&mut self, functions: Vec<Alu>, input: Slot, to: u32) {
        let none = self.bits(0);
        let mut input = input;
        let last = functions.len().saturating_sub(1);
        if functions.is_empty() {
            self.push(Op::Alu { function: Alu::One(|a| *a), to, inputs: [input, none, none] });
        }
        for (index, function) in functions.into_iter().enumerate() {
            if index == last {
                self.push(Op::Alu { function, to, inputs: [input, none, none] });
            } else {
                input = self.step(function, input);
            }
        }
    }

    /// Sums with a carry, which is a register of each function.
    fn with_carry(
        &mut self,
        instruction: &'s Instruction<'t>,
        full: &str,
        of: Type,
        is_carry_out: bool,
    ) -> Result<()> {
        let carry = self.carry();
        let is_subtraction = full.starts_with("sub");
        let (to, mut inputs) = if full.starts_with("mad") {
            // The product first: the carry is that of the sum.
            let part = if full.contains(".hi") { "mul.hi" } else { "mul.lo" };
            let product = integer::choose(part, of).ok_or_else(|| self.unknown(instruction))?;
            let operands = &instruction.operands;
            if operands.len() != 4 {
                return Err(self.wrong("4 operands are expected"));
            }
            let (a, b) = (self.value(&operands[1], of)?, self.value(&operands[2], of)?);
            let c = self.value(&operands[3], of)?;
            let temporary = self.temporary();
            self.push(Op::Alu { function: product, to: temporary, inputs: [a, b, c] });
            (self.target(&operands[0], of)?, [Slot::Register(temporary), c, c])
        } else {
            let function = integer::choose(if is_subtraction { "sub" } else { "add" }, of);
            let function = function.ok_or_else(|| self.unknown(instruction))?;
            self.inputs(instruction, function, [of; 3], of)?
        };
        let takes_carry = full.starts_with("addc") || full.starts_with("subc") || full.starts_with("madc");
        inputs[2] = Slot::Register(carry);
        let names = match (is_subtraction, takes_carry) {
            (false, false) => ("add", "add.carry"),
            (false, true) => ("addc", "addc.carry"),
            (true, false) => ("sub", "sub.carry"),
            (true, true) => ("subc", "subc.carry"),
        };
        let chosen = integer::choose(names.0, of).zip(integer::choose(names.1, of));
        let (function, carries) = chosen.ok_or_else(|| self.unknown(instruction))?;
        let result = self.temporary();
        self.push(Op::Alu { function, to: result, inputs });
        if is_carry_out {
            self.push(Op::Alu { function: carries, to: carry, inputs });
        }
        self.chain(Vec::new(), Slot::Register(result), to);
        Ok(())
    }

    fn mov(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let of = modifiers.one_type()?;
        let len = modifiers.take_one(&["v2", "v4"]);
        modifiers.finish()?;
        let (first, second) = (self.operand(instruction, 0)?, self.operand(instruction, 1)?);
        if let Some(len) = len {
            return self.mov_vector(instruction, if len == "v2" { 2 } else { 4 }, of);
        }
        match (first, second) {
            (Operand::Vector(parts), _) => {
                if !of.is_bits() {
                    return Err(self.wrong("the parts of a register are bits"));
                }
                if parts.iter().all(|part| *part == Operand::Sink) {
                    return Err(self.wrong("all targets are left out"));
                }
                let input = self.named_value(second, of)?;
                let width = part_bytes(of, parts.len()).ok_or_else(|| match of {
                    Type::B128 => self.unknown(instruction),
                    _ => self.wrong(format!("a register has no {} parts", parts.len())),
                })?;
                // A part may be the register that is split.
                let input = Slot::Register(self.copy_of(input));
                for (index, part) in parts.iter().enumerate().filter(|(_, part)| **part != Operand::Sink) {
                    let to = self.target(part, bits_of_bytes(width))?;
                    let by = self.bits(8 * u64::from(width) * index as u64);
                    let shifted = self.temporary();
                    let function = alu!(|a: u64, by: u32| a >> by);
                    self.push(Op::Alu { function, to: shifted, inputs: [input, by, by] });
                    self.chain(vec![convert::narrowed(width)], Slot::Register(shifted), to);
                }
            }
            (_, Operand::Vector(parts)) => {
                if !of.is_bits() {
                    return Err(self.wrong("the parts of a register are bits"));
                }
                let width = part_bytes(of, parts.len()).ok_or_else(|| match of {
                    Type::B128 => self.unknown(instruction),
                    _ => self.wrong(format!("a register has no {} parts", parts.len())),
                })?;
                let part_type = bits_of_bytes(width);
                let mut all = self.bits(0);
                for (index, part) in parts.iter().enumerate() {
                    let part = match part {
                        Operand::Special(_) => self.named_value(part, part_type)?,
                        _ => self.value(part, part_type)?,
                    };
                    let part = self.step(convert::narrowed(width), part);
                    let by = self.bits(8 * u64::from(width) * index as u64);
                    let joined = self.temporary();
                    let function = alu!(|all: u64, part: u64, by: u32| all | part << by);
                    self.push(Op::Alu { function, to: joined, inputs: [all, part, by] });
                    all = Slot::Register(joined);
                }
                let to = self.target(first, of)?;
                self.chain(Vec::new(), all, to);
            }
            _ => {
                let input = self.named_value(second, of)?;
                let to = self.target(first, of)?;
                self.chain(Vec::new(), input, to);
            }
        }
        Ok(())
    }

    /// Moves vectors element by element; one operand may be a special register with all of its elements.
    fn mov_vector(&mut self, instruction: &'s Instruction<'t>, len: usize, of: Type) -> Result<()> {
        let to = self.parts(self.operand(instruction, 0)?);
        let from = self.operand(instruction, 1)?;
        let mut inputs = Vec::new();
        match from {
            Operand::Special(name) => {
                for element in ["x", "y", "z", "w"] {
                    inputs.push(self.read_special(&format!("{name}.{element}"), Some(of))?);
                }
            }
            other => {
                for part in self.parts(other) {
                    inputs.push(self.value(part, of)?);
                }
            }
        }
        if to.len() != len || inputs.len() != len {
            return Err(self.unknown(instruction));
        }
        // A target may be an element that is read later.
        let copies: Vec<Slot> = inputs.into_iter().map(|input| Slot::Register(self.copy_of(input))).collect();
        for (to, from) in to.iter().zip(copies) {
            let to = self.target_or_none(to, of)?;
            self.chain(Vec::new(), from, to);
        }
        Ok(())
    }

    fn convert(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let types = modifiers.types();
        if modifiers.take("pack") {
            let is_saturating = modifiers.take("sat");
            let few = modifiers.take_one(&["u4", "s4", "u2", "s2"]);
            modifiers.finish()?;
            let function = match types[..] {
                [Type::S32, Type::B32] => few.and_then(packed::clamped_few),
                _ if few.is_some() => None,
                [to @ (Type::U16 | Type::S16), Type::S32] => packed::clamped(to),
                [to @ (Type::U8 | Type::S8), Type::S32, Type::B32] => packed::clamped(to),
                _ => None,
            };
            let function = function.filter(|_| is_saturating).ok_or_else(|| modifiers.unknown())?;
            return self.apply(instruction, function, [Type::S32, Type::S32, Type::B32], Type::U32);
        }
        if let Some(kind) = modifiers.take_one(&["e4m3x2", "e5m2x2", "tf32"]) {
            return self.convert_narrow(instruction, modifiers, kind, &types);
        }
        let is_flushing = modifiers.take("ftz");
        let is_saturating = modifiers.take("sat");
        let is_positive = modifiers.take("relu");
        let is_finite = modifiers.take("satfinite");
        let rounding = modifiers.rounding();
        modifiers.finish()?;
        let &[to_type, from_type] = &types[..] else { return Err(self.unknown(instruction)) };
        let to = self.wide_target(self.operand(instruction, 0)?, to_type)?;
        let width = self.register_type(to).bytes();
        let mut behind = Vec::new();
        for (name, is_wanted) in [(".satfinite", is_finite), (".relu", is_positive)] {
            if is_wanted {
                let function = half::choose(name, to_type).filter(|_| from_type == Type::F32);
                behind.push(function.ok_or_else(|| self.unknown(instruction))?);
            }
        }
        if is_half_pair(to_type) {
            let function = rounding.and_then(|rounding| convert::pair(to_type, rounding));
            let function = function.ok_or_else(|| self.unknown(instruction))?;
            if from_type != Type::F32 {
                return Err(self.unknown(instruction));
            }
            let (to, inputs) = self.inputs(instruction, function, [Type::F32; 3], to_type)?;
            let pair = self.temporary();
            self.push(Op::Alu { function, to: pair, inputs });
            self.chain(behind, Slot::Register(pair), to);
            return Ok(());
        }
        if instruction.operands.len() != 2 {
            return Err(self.wrong("2 operands are expected"));
        }
        let mut input = match self.operand(instruction, 1)? {
            Operand::Special(name) if to_type.is_integer() => {
                let is_wide = is_of_special(name, Type::U64);
                let of = if is_wide { Type::U64 } else { Type::U32 };
                if from_type.bytes() > of.bytes() || !from_type.is_integer() {
                    return Err(self.wrong(format!("`{}` is no value of this type", short(name))));
                }
                self.read_special(name, Some(of))?
            }
            operand => self.wide_value(operand, from_type)?,
        };
        if is_flushing && from_type == Type::F32 {
            input = self.step(alu!(|a: f32| float::nan_32(float::flushed(a))), input);
        }
        let chain = convert::chain(from_type, to_type, rounding, is_saturating);
        let mut chain = chain.ok_or_else(|| self.unknown(instruction))?;
        if is_flushing && to_type == Type::F32 {
            chain.push(FLUSH_32);
        }
        chain.extend(behind);
        if to_type.is_signed() && width > to_type.bytes() {
            let narrow = self.temporary();
            self.chain(chain, input, narrow);
            return self.extend(Slot::Register(narrow), to_type, to, width);
        }
        self.chain(chain, input, to);
        Ok(())
    }

    /// Conversions to and from pairs of numbers of 8 bits, and to numbers of 19 bits.
    fn convert_narrow(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
        kind: &str,
        types: &[Type],
    ) -> Result<()> {
        let is_positive = modifiers.take("relu");
        let is_away = modifiers.take("rna");
        let (rounding, is_clamped) = (modifiers.rounding(), modifiers.take("satfinite"));
        modifiers.finish()?;
        macro_rules! of_kind {
            (|$eight:ident| $function:expr) => {
                if kind == "e4m3x2" {
                    const $eight: Eight = Eight::E4m3;
                    $function
                } else {
                    const $eight: Eight = Eight::E5m2;
                    $function
                }
            };
        }
        let is_near = rounding == Some(Rounding::Near);
        // Of the types, this one was taken.
        let is_target = modifiers.is_first(kind);
        let (function, positive) = match (kind, types) {
            ("tf32", [Type::F32]) if !is_clamped && is_target => {
                let function = match rounding {
                    None if is_away => alu!(|a: f32| convert::nineteen(a, 0x1000)),
                    Some(Rounding::Near) => {
                        alu!(|a: f32| convert::nineteen(a, 0xfff + (a.to_bits() >> 13 & 1)))
                    }
                    Some(Rounding::Zero) => alu!(|a: f32| convert::nineteen(a, 0)),
                    _ => return Err(modifiers.unknown()),
                };
                (function, float::choose(".relu", Type::F32, Rounding::Near))
            }
            (_, [Type::F32]) if is_near && is_clamped && is_target => {
                (of_kind!(|EIGHT| alu!(|high: f32, low: f32| EIGHT.nearest_pair(high, low))), None)
            }
            (_, [Type::F16x2]) if is_near && is_clamped && is_target => {
                (of_kind!(|EIGHT| alu!(|pair: u32| half::narrowed(pair, EIGHT))), None)
            }
            (_, [Type::F16x2]) if is_near && !is_clamped && !is_target => {
                (of_kind!(|EIGHT| alu!(|pair: u16| EIGHT.pair(pair))), half::choose(".relu", Type::F16x2))
            }
            _ => return Err(modifiers.unknown()),
        };
        let from = if is_target { types[0] } else { Type::B16 };
        let result = match kind {
            "tf32" => Type::B32,
            _ if is_target => Type::B16,
            _ => Type::B32,
        };
        let (to, mut inputs) = self.inputs(instruction, function, [from; 3], result)?;
        if !is_positive {
            self.push(Op::Alu { function, to, inputs });
            return Ok(());
        }
        if let Some(positive) = positive {
            let result = self.temporary();
            self.push(Op::Alu { function, to: result, inputs });
            self.chain(vec![positive], Slot::Register(result), to);
            return Ok(());
        }
        let positive = match from {
            Type::F32 => float::choose(".relu", Type::F32, Rounding::Near),
            _ => half::choose(".relu", from),
        };
        let positive = positive.ok_or_else(|| modifiers.unknown())?;
        for input in &mut inputs {
            *input = self.step(positive, *input);
        }
        self.push(Op::Alu { function, to, inputs });
        Ok(())
    }

    /// The result of a comparison, combined with a predicate if the instruction has one. Then its inverse, combined too; of pairs, the result
    /// of the upper halves.
    fn comparison(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
        of: Type,
    ) -> Result<[Slot; 2]> {
        let combination = modifiers.take_one(&COMBINATIONS);
        let is_flushing = modifiers.take("ftz");
        let name = modifiers.take_one(&COMPARISONS).ok_or_else(|| modifiers.unknown())?;
        modifiers.finish()?;
        let mut inputs = [self.bits(0); 3];
        for (index, input) in inputs.iter_mut().enumerate().take(2) {
            *input = self.value(self.operand(instruction, index + 1)?, of)?;
            if is_flushing && of == Type::F32 {
                *input = self.step(FLUSH_32, *input);
            }
        }
        let is_pair = is_half_pair(of);
        if is_flushing && !is_pair && !matches!(of, Type::F16 | Type::Bf16 | Type::F32) {
            return Err(modifiers.unknown());
        }
        let element = match of {
            Type::F16x2 => Type::F16,
            Type::Bf16x2 => Type::Bf16,
            _ => of,
        };
        if is_flushing && (is_pair || element.bytes() == 2) {
            let flush = half::choose(".ftz", of).ok_or_else(|| modifiers.unknown())?;
            inputs = [self.step(flush, inputs[0]), self.step(flush, inputs[1]), inputs[2]];
        }
        let function = compare::choose(name, element).ok_or_else(|| modifiers.unknown())?;
        let first = self.temporary();
        self.push(Op::Alu { function, to: first, inputs });
        let is_inverse_wanted = is_pair || matches!(self.operand(instruction, 0)?, Operand::Pair(..));
        let first = Slot::Register(first);
        let mut found = [first, first];
        if is_pair {
            let upper = alu!(|pair: u32| pair >> 16);
            let inputs = [self.step(upper, inputs[0]), self.step(upper, inputs[1]), inputs[2]];
            let second = self.temporary();
            self.push(Op::Alu { function, to: second, inputs });
            found[1] = Slot::Register(second);
        } else if is_inverse_wanted {
            found[1] = self.step(alu!(|a: bool| !a), first);
        }
        if let Some(combination) = combination {
            let third = self.value(self.operand(instruction, 3)?, Type::Pred)?;
            let function = integer::choose_predicate(combination).ok_or_else(|| modifiers.unknown())?;
            for found in found.iter_mut().take(1 + usize::from(is_inverse_wanted)) {
                let to = self.temporary();
                self.push(Op::Alu { function, to, inputs: [*found, third, third] });
                *found = Slot::Register(to);
            }
        }
        Ok(found)
    }

    fn set_predicate(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        let of = modifiers.one_type()?;
        let [first, second] = self.comparison(instruction, modifiers, of)?;
        match self.operand(instruction, 0)? {
            Operand::Pair(to, inverse) => {
                let is_other = |register: &u32| self.register_type(*register) != Type::Pred;
                if to.iter().chain(inverse).any(is_other) {
                    return Err(self.wrong("the target has another type"));
                }
                if let Some(to) = *to {
                    self.chain(Vec::new(), first, to);
                }
                if let Some(inverse) = *inverse {
                    self.chain(Vec::new(), second, inverse);
                }
            }
            other => {
                let to = self.target_or_none(other, Type::Pred)?;
                // The result is computed where it is wanted, if nothing else reads it.
                match (self.program.steps.last_mut(), first) {
                    (Some(step), Slot::Register(register)) if register + 1 == self.registers => {
                        if let Op::Alu { to: last, .. } = &mut step.op
                            && *last == register
                        {
                            *last = to;
                        }
                    }
                    _ => self.chain(Vec::new(), first, to),
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let types = modifiers.types();
        let &[to_type, of] = &types[..] else { return Err(self.unknown(instruction)) };
        let [first, second] = self.comparison(instruction, modifiers, of)?;
        let to = self.target(self.operand(instruction, 0)?, to_type)?;
        if is_half_pair(of) {
            let function = match to_type {
                Type::U32 | Type::S32 => alu!(|a: bool, b: bool| halves([a, b], 0xffff)),
                Type::F16x2 if of == to_type => alu!(|a: bool, b: bool| halves([a, b], 0x3c00)),
                Type::Bf16x2 if of == to_type => alu!(|a: bool, b: bool| halves([a, b], 0x3f80)),
                _ => return Err(self.unknown(instruction)),
            };
            self.push(Op::Alu { function, to, inputs: [first, second, second] });
            return Ok(());
        }
        let function = match to_type {
            Type::U32 | Type::S32 => alu!(|a: bool| if a { u32::MAX } else { 0 }),
            Type::F32 => alu!(|a: bool| if a { 1.0_f32 } else { 0.0 }),
            Type::F16 => alu!(|a: bool| if a { ::half::f16::ONE } else { ::half::f16::ZERO }),
            Type::Bf16 => alu!(|a: bool| if a { ::half::bf16::ONE } else { ::half::bf16::ZERO }),
            Type::U16 | Type::S16 => alu!(|a: bool| if a { u16::MAX } else { 0 }),
            _ => return Err(self.unknown(instruction)),
        };
        self.chain(vec![function], first, to);
        Ok(())
    }

    fn logic(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        modifiers.types();
        let combination = modifiers.take_one(&["and", "or"]);
        modifiers.finish()?;
        let Operand::Integer(table) = *self.operand(instruction, 4)? else {
            return Err(self.wrong("the table is no integer"));
        };
        let target = self.operand(instruction, 0)?;
        let (to, is_set) = match (target, combination) {
            (Operand::Pair(to, Some(is_set)), Some(_)) => (*to, Some(*is_set)),
            (_, Some(_)) => return Err(self.wrong("the instruction has a predicate as a second target")),
            _ => (Some(self.target(target, Type::B32)?), None),
        };
        if to.is_some_and(|to| !Type::B32.is_of_register(self.register_type(to)))
            || is_set.is_some_and(|is_set| self.register_type(is_set) != Type::Pred)
        {
            return Err(self.wrong("the target has another type"));
        }
        let mut inputs = [self.bits(0); 3];
        for (index, input) in inputs.iter_mut().enumerate() {
            *input = self.value(self.operand(instruction, index + 1)?, Type::B32)?;
        }
        let table = table as u32;
        let (Some(is_set), Some(combination)) = (is_set, combination) else {
            let to = to.unwrap_or_else(|| self.temporary());
            self.push(Op::Logic { to, inputs, table });
            return Ok(());
        };
        let predicate = self.value(self.operand(instruction, 5)?, Type::Pred)?;
        let found = self.temporary();
        self.push(Op::Logic { to: found, inputs, table });
        let function = match combination {
            "and" => alu!(|found: u32, predicate: bool| found != 0 && predicate),
            _ => alu!(|found: u32, predicate: bool| found != 0 || predicate),
        };
        let found = Slot::Register(found);
        self.push(Op::Alu { function, to: is_set, inputs: [found, predicate, predicate] });
        if let Some(to) = to {
            self.chain(Vec::new(), found, to);
        }
        Ok(())
    }

    fn insert(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let of = modifiers.one_type()?;
        modifiers.finish()?;
        let to = self.target(self.operand(instruction, 0)?, of)?;
        let mut inputs = [self.bits(0); 4];
        for (index, input) in inputs.iter_mut().enumerate() {
            let of = if index < 2 { of } else { Type::U32 };
            *input = self.value(self.operand(instruction, index + 1)?, of)?;
        }
        self.push(Op::Insert { to, inputs, width: 8 * of.bytes() });
        Ok(())
    }

    fn dot(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let half = modifiers.take_one(&["lo", "hi"]);
        let types = modifiers.types();
        modifiers.finish()?;
        macro_rules! bytes {
            ($value:expr, $byte:ty) => {
                $value.to_le_bytes().map(|byte| i64::from(byte as $byte))
            };
        }
        macro_rules! halves {
            ($value:expr, $half:ty) => {
                [i64::from($value as $half), i64::from(($value >> 16) as $half), 0, 0]
            };
        }
        macro_rules! sums {
            ($a:ty, $b:ty, $half_a:ty) => {
                match (modifiers.name, half) {
                    ("dp4a", None) => {
                        alu!(|a: u32, b: u32, c: i32| dot(bytes!(a, $a), bytes!(b, $b), c.into()))
                    }
                    ("dp2a", Some("lo")) => {
                        alu!(|a: u32, b: u32, c: i32| dot(halves!(a, $half_a), bytes!(b, $b), c.into()))
                    }
                    ("dp2a", Some(_)) => {
                        alu!(|a: u32, b: u32, c: i32| dot(halves!(a, $half_a), bytes!(b >> 16, $b), c.into()))
                    }
                    _ => return Err(modifiers.unknown()),
                }
            };
        }
        let function = match &types[..] {
            [Type::U32, Type::U32] => sums!(u8, u8, u16),
            [Type::U32, Type::S32] => sums!(u8, i8, u16),
            [Type::S32, Type::U32] => sums!(i8, u8, i16),
            [Type::S32, Type::S32] => sums!(i8, i8, i16),
            _ => return Err(modifiers.unknown()),
        };
        self.apply(instruction, function, [Type::U32; 3], Type::U32)
    }

    /// The operands of a `createpolicy` behind its target.
    fn check_policy(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        let operands = &instruction.operands[1..];
        match (modifiers.take_one(&["fractional", "range", "cvt"]), operands) {
            (Some("fractional"), []) => Ok(()),
            (Some("fractional"), [part]) => {
                let is_part = match part {
                    Operand::Single(bits) => (0.0..=1.0).contains(&f32::from_bits(*bits)),
                    Operand::Double(bits) => (0.0..=1.0).contains(&f64::from_bits(*bits)),
                    _ => true,
                };
                self.value(part, Type::F32)?;
                if is_part { Ok(()) } else { Err(self.wrong("a part is from 0 to 1")) }
            }
            (Some("range"), [address, first, all]) => {
                let space = modifiers.space();
                self.access(address, space, Type::B8, 1)?;
                self.value(first, Type::U32)?;
                self.value(all, Type::U32)?;
                Ok(())
            }
            (Some("cvt"), [policy]) => self.value(policy, Type::U64).map(|_| ()),
            _ => Err(self.wrong("the instruction has another number of operands")),
        }
    }

    /// The register of the carry.
    fn carry(&mut self) -> u32 {
        match self.carry {
            Some(register) => register,
            None => {
                let register = self.temporary();
                self.carry = Some(register);
                register
            }
        }
    }
}

fn is_half_pair(of: Type) -> bool {
    matches!(of, Type::F16x2 | Type::Bf16x2)
}

/// A register with these bits in the halves for which the flag is set.
fn halves([low, high]: [bool; 2], bits: u32) -> u32 {
    (if low { bits } else { 0 }) | if high { bits << 16 } else { 0 }
}

/// The type of the same width without a meaning.
fn bits_of(of: Type) -> Type {
    bits_of_bytes(of.bytes())
}

fn bits_of_bytes(bytes: u32) -> Type {
    match bytes {
        1 => Type::B8,
        2 => Type::B16,
        4 => Type::B32,
        _ => Type::B64,
    }
}

/// The width of the parts of a value.
fn part_bytes(of: Type, parts: usize) -> Option<u32> {
    let width = of.bytes().checked_div(parts as u32)?;
    (width > 0 && width < of.bytes() && width * parts as u32 == of.bytes() && of != Type::B128)
        .then_some(width)
}
