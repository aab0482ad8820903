//! Loads, stores, atomics, copies, and conversions of addresses.

use super::modifiers::Modifiers;
use super::transaction::{ARRIVED, RELEASING};
use super::{Lower, Result};
use crate::number::convert::{narrowed, widened};
use crate::number::half::{Half, greatest, least};
use crate::number::{Alu, alu};
use crate::program::{
    Access, LOCAL_WINDOW, Op, Order, PARAMETER_WINDOW, SHARED_WINDOW, Scope, Slot, WINDOW_BYTES,
};
use crate::syntax::{Instruction, Operand, Space, Type};
use half::{bf16, f16};

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn memory(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        if matches!(modifiers.name, "ld" | "ldu" | "st" | "atom" | "red")
            && instruction.opcode.split('.').any(|part| part == "L2::cache_hint")
        {
            let last = instruction.operands.len().saturating_sub(1);
            self.value(self.operand(instruction, last)?, Type::U64)?;
        }
        match modifiers.name {
            "ld" | "ldu" => self.load(instruction, &mut modifiers)?,
            "st" => self.store(instruction, &mut modifiers)?,
            "atom" | "red" => self.atomic(instruction, &mut modifiers)?,
            "cvta" => self.convert_address(instruction, &mut modifiers)?,
            "isspacep" => self.is_space(instruction, &mut modifiers)?,
            "cp" => self.copy(instruction, &mut modifiers)?,
            // Hints.
            "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                self.hint(instruction, &mut modifiers)?
            }
            "membar" | "fence" => {
                if let Some(order) = Self::fence(&mut modifiers)? {
                    self.push(Op::Fence(order));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What a fence orders. `None` for one between the proxies of a thread, which are one here: it orders nothing for other threads.
    fn fence(modifiers: &mut Modifiers<'s, 't>) -> Result<Option<Order>> {
        if modifiers.take("proxy") {
            modifiers.take_one(&["alias", "async"]).ok_or_else(|| modifiers.unknown())?;
            modifiers.take_one(&["global", "shared::cta", "shared::cluster"]);
            modifiers.finish()?;
            return Ok(None);
        }
        let semantics = modifiers.take_one(&["sc", "acq_rel", "acquire", "release"]);
        // Of the initialisation of a barrier in shared memory.
        let _ = semantics == Some("release") && modifiers.take("mbarrier_init");
        let scopes: &[_] = if modifiers.name == "membar" {
            &["cta", "gl", "sys"]
        } else {
            &["cta", "cluster", "gpu", "sys"]
        };
        let scope = modifiers.take_one(scopes).ok_or_else(|| modifiers.unknown())?;
        modifiers.finish()?;
        if modifiers.name == "membar" && semantics.is_some() {
            return Err(modifiers.unknown());
        }
        Ok(Some(Order {
            is_strong: true,
            is_acquire: semantics != Some("release"),
            is_release: semantics != Some("acquire"),
            scope: if matches!(scope, "cta" | "cluster") { Scope::Block } else { Scope::Device },
            ..Order::default()
        }))
    }

    pub(super) fn parts(&self, operand: &'s Operand<'t>) -> &'s [Operand<'t>] {
        match operand {
            Operand::Vector(parts) => parts,
            other => core::slice::from_ref(other),
        }
    }

    fn vector_len(modifiers: &mut Modifiers<'s, 't>) -> usize {
        match modifiers.take_one(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    fn check_elements(&self, found: usize, stated: usize) -> Result<()> {
        match found == stated {
            true => Ok(()),
            false => {
                Err(self
                    .wrong(format!("an operand has {found} elements, and the instruction states {stated}")))
            }
        }
    }

    fn load(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let space = modifiers.space();
        let order = modifiers.take_order();
        let len = Self::vector_len(modifiers);
        let of = modifiers.one_type()?;
        modifiers.finish()?;
        let parts = self.parts(self.operand(instruction, 0)?);
        if of == Type::Pred || of == Type::B128 {
            return Err(self.unknown(instruction));
        }
        self.check_elements(parts.len(), len)?;
        if parts.iter().all(|part| *part == Operand::Sink) {
            return Err(self.wrong("all targets are left out"));
        }
        let address = self.operand(instruction, 1)?;
        let mut from = self.access(address, space, of, len as u8)?;
        self.check_formal(address, false)?;
        from.order = order;
        let mut to = Vec::new();
        let mut extended = Vec::new();
        for part in parts {
            if *part == Operand::Sink {
                to.push(None);
                continue;
            }
            let register = self.wide_target(part, of)?;
            let width = self.register_type(register).bytes();
            to.push(Some(register));
            if of.is_signed() && width > of.bytes() {
                extended.push((register, width));
            }
        }
        self.push(Op::Load { to: to.into(), from });
        for (register, width) in extended {
            self.extend(Slot::Register(register), of, register, width)?;
        }
        Ok(())
    }

    /// Writes a number of a narrow type to a register, with its sign.
    pub(super) fn extend(&mut self, from: Slot, of: Type, to: u32, width: u32) -> Result<()> {
        let none = self.bits(0);
        let wide = self.temporary();
        let function = widened(of).ok_or_else(|| self.wrong("the target has another type"))?;
        self.push(Op::Alu { function, to: wide, inputs: [from, none, none] });
        self.push(Op::Alu { function: narrowed(width), to, inputs: [Slot::Register(wide), none, none] });
        Ok(())
    }

    fn store(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let space = modifiers.space();
        let order = modifiers.take_order();
        let len = Self::vector_len(modifiers);
        let of = modifiers.one_type()?;
        modifiers.finish()?;
        let parts = self.parts(self.operand(instruction, 1)?);
        if of == Type::Pred || of == Type::B128 {
            return Err(self.unknown(instruction));
        }
        self.check_elements(parts.len(), len)?;
        let values = parts.iter().map(|part| self.wide_value(part, of)).collect::<Result<_>>()?;
        let address = self.operand(instruction, 0)?;
        let mut to = self.access(address, space, of, len as u8)?;
        self.check_formal(address, true)?;
        to.order = order;
        self.push(Op::Store { values, to });
        Ok(())
    }

    fn atomic(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let space = modifiers.space();
        // An atomic without an order is relaxed, which is strong.
        let order = Order { is_strong: true, ..modifiers.take_order() };
        let len = Self::vector_len(modifiers);
        let of = modifiers.one_type()?;
        let names = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
        let name = modifiers.take_one(&names).ok_or_else(|| modifiers.unknown())?;
        modifiers.finish()?;
        if modifiers.name == "red" && matches!(name, "exch" | "cas") {
            return Err(modifiers.unknown());
        }
        let function = |space| atomic_function(name, of, space).ok_or_else(|| modifiers.unknown());
        let (function, in_shared) = (function(Space::Global)?, function(Space::Shared)?);
        let first = usize::from(modifiers.name == "atom");
        if len > 1 {
            return self.atomic_vector(instruction, [function, in_shared], (space, of, len), order);
        }
        let b = self.value(self.operand(instruction, first + 1)?, of)?;
        let c = match name {
            "cas" => self.value(self.operand(instruction, first + 2)?, of)?,
            _ => b,
        };
        let mut at = self.access(self.operand(instruction, first)?, space, of, 1)?;
        at.order = order;
        let to = match first {
            0 => None,
            _ => Some(self.target_or_none(self.operand(instruction, 0)?, of)?),
        };
        self.push(Op::Atomic { function, in_shared, to, at, inputs: [b, c] });
        Ok(())
    }

    /// An atomic for each element.
    fn atomic_vector(
        &mut self,
        instruction: &'s Instruction<'t>,
        [function, in_shared]: [fn(u64, u64, u64) -> u64; 2],
        (space, of, len): (Space, Type, usize),
        order: Order,
    ) -> Result<()> {
        let first = instruction.operands.len().saturating_sub(2);
        let values = self.parts(self.operand(instruction, first + 1)?);
        let targets = match first {
            0 => &[],
            _ => self.parts(self.operand(instruction, 0)?),
        };
        if first > 1 || values.len() != len || first == 1 && targets.len() != len {
            return Err(self.unknown(instruction));
        }
        let mut at = self.access(self.operand(instruction, first)?, space, of, len as u8)?;
        at.order = order;
        // A target may be a value of a later element, or the address.
        at.at = Slot::Register(self.copy_of(at.at));
        let mut copies = Vec::new();
        for value in values {
            let value = self.value(value, of)?;
            copies.push(Slot::Register(self.copy_of(value)));
        }
        for (index, value) in copies.into_iter().enumerate() {
            let to = match targets.get(index) {
                Some(target) => Some(self.target(target, of)?),
                None => None,
            };
            let offset_bytes = at.offset_bytes.wrapping_add(i64::from(of.bytes()) * index as i64);
            let at = Access { offset_bytes, count: 1, ..at };
            self.push(Op::Atomic { function, in_shared, to, at, inputs: [value; 2] });
        }
        Ok(())
    }

    fn convert_address(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        let is_to = modifiers.take("to");
        let space = modifiers.space();
        let of = modifiers.one_type()?;
        modifiers.finish()?;
        let to = self.target(self.operand(instruction, 0)?, of)?;
        let operand = self.operand(instruction, 1)?;
        let input = if is_to { self.value(operand, of)? } else { self.named_value(operand, of)? };
        if self.space_of(operand).is_some_and(|declared| declared != space) || self.is_function(operand) {
            return Err(self.wrong("the address is one of another kind of memory"));
        }
        if of.bytes() != 8 {
            return Err(self.unknown(instruction));
        }
        let function = match (space, is_to) {
            (Space::Shared, false) => alu!(|a: u64| a.wrapping_add(SHARED_WINDOW)),
            (Space::Shared, true) => alu!(|a: u64| a.wrapping_sub(SHARED_WINDOW)),
            (Space::Local, false) => alu!(|a: u64| a.wrapping_add(LOCAL_WINDOW)),
            (Space::Local, true) => alu!(|a: u64| a.wrapping_sub(LOCAL_WINDOW)),
            (Space::Param, false) => alu!(|a: u64| a.wrapping_add(PARAMETER_WINDOW)),
            (Space::Param, true) => alu!(|a: u64| a.wrapping_sub(PARAMETER_WINDOW)),
            (Space::Global | Space::Const, _) => Alu::One(|a| *a),
            (Space::Generic, _) => return Err(self.unknown(instruction)),
        };
        let none = self.bits(0);
        self.push(Op::Alu { function, to, inputs: [input, none, none] });
        Ok(())
    }

    fn is_space(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        let space = modifiers.space();
        modifiers.finish()?;
        let to = self.target(self.operand(instruction, 0)?, Type::Pred)?;
        let operand = self.operand(instruction, 1)?;
        // A narrow one is an address of no window.
        let of = match operand {
            Operand::Register(register) if self.register_type(*register).bytes() == 4 => Type::U32,
            _ => Type::U64,
        };
        let input = self.value(operand, of)?;
        let function = match space {
            Space::Shared => alu!(|a: u64| is_in(a, SHARED_WINDOW)),
            Space::Local => alu!(|a: u64| is_in(a, LOCAL_WINDOW)),
            Space::Param => alu!(|a: u64| is_in(a, PARAMETER_WINDOW)),
            Space::Global => {
                alu!(|a: u64| ![SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW].iter().any(|w| is_in(a, *w)))
            }
            Space::Const | Space::Generic => return Err(self.unknown(instruction)),
        };
        let none = self.bits(0);
        self.push(Op::Alu { function, to, inputs: [input, none, none] });
        Ok(())
    }

    /// What caches prefer to keep. Nothing is accessed.
    fn hint(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let space = modifiers.space();
        let is_space = match modifiers.name {
            "prefetch" => !matches!(space, Space::Shared),
            _ => matches!(space, Space::Global | Space::Generic),
        };
        if !is_space {
            return Err(self.wrong("the instruction does not access this kind of memory"));
        }
        self.access(self.operand(instruction, 0)?, space, Type::B8, 1)?;
        match instruction.operands.get(1) {
            None | Some(Operand::Integer(128)) => Ok(()),
            Some(_) => Err(self.wrong("the size is 128 bytes")),
        }
    }

    /// A copy to shared memory takes place at once, which is one of the times at which it may.
    fn copy(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        if !modifiers.take("async") || modifiers.take("bulk") {
            return Err(self.unknown(instruction));
        }
        if let Some(what) = modifiers.take_one(&["commit_group", "wait_group", "wait_all"]) {
            modifiers.finish()?;
            if instruction.operands.len() != usize::from(what == "wait_group") {
                return Err(self.wrong("the instruction has another number of operands"));
            }
            let op = match (what, instruction.operands.first()) {
                ("commit_group", _) => Op::CommitCopies,
                ("wait_all", _) => Op::WaitForCopies { pending: None },
                (_, Some(Operand::Integer(pending))) => {
                    Op::WaitForCopies { pending: Some(u32::try_from(*pending).unwrap_or(u32::MAX)) }
                }
                _ => return Err(self.wrong("a number of groups is expected")),
            };
            self.push(op);
            return Ok(());
        }
        if modifiers.take("mbarrier") {
            return self.arrive_after_copies(instruction, modifiers);
        }
        let has_policy = modifiers.take("L2::cache_hint");
        let level = modifiers.take_one(&["ca", "cg"]);
        let Some(level) = level else { return Err(self.wrong("`cp.async` has one of `.ca` and `.cg`")) };
        modifiers.take_one(&["L2::64B", "L2::128B", "L2::256B"]);
        let is_known = modifiers.take("shared") || modifiers.take("shared::cta");
        if !is_known || !modifiers.take("global") {
            return Err(self.unknown(instruction));
        }
        modifiers.finish()?;
        let size_bytes = match self.operand(instruction, 2)? {
            Operand::Integer(16) => 16,
            Operand::Integer(size @ (4 | 8)) if level == "ca" => *size as u32,
            _ if level == "cg" => return Err(self.wrong("`cp.async.cg` copies 16 bytes")),
            _ => return Err(self.wrong("`cp.async.ca` copies 4, 8 or 16 bytes")),
        };
        let end = instruction.operands.len() - usize::from(has_policy);
        if !(3..=4).contains(&end) {
            return Err(self.wrong("the instruction has another number of operands"));
        }
        if has_policy {
            self.value(self.operand(instruction, end)?, Type::U64)?;
        }
        let source_bytes = match instruction.operands.get(3) {
            Some(Operand::Integer(bytes)) if end > 3 && *bytes > u64::from(size_bytes) => {
                return Err(self.wrong(format!("{bytes} bytes are more than the {size_bytes} of the copy")));
            }
            Some(operand) if end > 3 => Some(self.source_bytes(operand, size_bytes)?),
            _ => None,
        };
        let mut to = self.access(self.operand(instruction, 0)?, Space::Shared, Type::B8, 1)?;
        let source = self.operand(instruction, 1)?;
        self.check_wide(source)?;
        let mut from = self.access(source, Space::Global, Type::B8, 1)?;
        for access in [&mut to, &mut from] {
            *access = Access { bytes: 4.min(size_bytes) as u8, count: (size_bytes / 4) as u8, ..*access };
        }
        self.push(Op::Copy { to, from, size_bytes, source_bytes });
        Ok(())
    }

    /// The bytes that a copy reads, or a predicate that keeps it from reading any.
    fn source_bytes(&mut self, operand: &Operand<'t>, size_bytes: u32) -> Result<Slot> {
        let register = match operand {
            Operand::Register(register) | Operand::Not(register) => *register,
            _ => return self.value(operand, Type::U32),
        };
        if self.register_type(register) != Type::Pred {
            return self.value(operand, Type::U32);
        }
        let [is_left_out, all, none] =
            [self.value(operand, Type::Pred)?, self.bits(size_bytes.into()), self.bits(0)];
        let to = self.temporary();
        let function = alu!(|all: u32, none: u32, is_left_out: bool| if is_left_out { none } else { all });
        self.push(Op::Alu { function, to, inputs: [all, none, is_left_out] });
        Ok(Slot::Register(to))
    }

    /// Copies are done at once: what arrives after them arrives now. Without `noinc` the barrier first counts one arrival more, and nothing
    /// changes. Who waits at the barrier waits for the copies.
    fn arrive_after_copies(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        let is_counted = modifiers.take("noinc");
        let is_generic = modifiers.space() == Space::Generic;
        if !modifiers.take("arrive") || !modifiers.take("b64") {
            return Err(modifiers.unknown());
        }
        modifiers.finish()?;
        if instruction.operands.len() != 1 {
            return Err(self.wrong("the instruction has another number of operands"));
        }
        let mut at = self.shared_access(self.operand(instruction, 0)?, is_generic, Type::B64)?;
        at.order = RELEASING;
        self.push(Op::WaitForCopies { pending: None });
        if is_counted {
            let none = self.bits(0);
            self.push(Op::Atomic { function: ARRIVED, in_shared: ARRIVED, to: None, at, inputs: [none; 2] });
        }
        Ok(())
    }
}

fn is_in(address: u64, window: u64) -> bool {
    address.wrapping_sub(window) < WINDOW_BYTES
}

/// The function of an atomic: from the old value and the operands to the new value. Sums of `f32` flush in global memory.
fn atomic_function(name: &str, of: Type, space: Space) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match (name, of) {
        ("exch", Type::B32 | Type::B64) => |_, b, _| b,
        ("cas", Type::B16 | Type::B32 | Type::B64) => |old, b, c| if old == b { c } else { old },
        ("and", Type::B32 | Type::B64) => |old, b, _| old & b,
        ("or", Type::B32 | Type::B64) => |old, b, _| old | b,
        ("xor", Type::B32 | Type::B64) => |old, b, _| old ^ b,
        ("add", Type::U32 | Type::S32) => |old, b, _| u64::from((old as u32).wrapping_add(b as u32)),
        ("add", Type::U64) => |old, b, _| old.wrapping_add(b),
        ("min", Type::U32 | Type::U64) => |old, b, _| old.min(b),
        ("max", Type::U32 | Type::U64) => |old, b, _| old.max(b),
        ("min", Type::S32) => |old, b, _| (old as i32).min(b as i32) as u32 as u64,
        ("max", Type::S32) => |old, b, _| (old as i32).max(b as i32) as u32 as u64,
        ("min", Type::S64) => |old, b, _| (old as i64).min(b as i64) as u64,
        ("max", Type::S64) => |old, b, _| (old as i64).max(b as i64) as u64,
        ("inc", Type::U32) => |old, b, _| if old >= b { 0 } else { old + 1 },
        ("dec", Type::U32) => |old, b, _| if old == 0 || old > b { b } else { old - 1 },
        ("add", Type::F32) if space == Space::Shared => |old, b, _| {
            let sum = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            u64::from(crate::number::float::nan_32(sum).to_bits())
        },
        ("add", Type::F32) => |old, b, _| {
            let sum = crate::number::float::flushed(f32::from_bits(old as u32))
                + crate::number::float::flushed(f32::from_bits(b as u32));
            u64::from(crate::number::float::flushed(crate::number::float::nan_32(sum)).to_bits())
        },
        ("add", Type::F64) => |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        ("add", Type::F16) => |old, b, _| u64::from(half_sum(old as u16, b as u16)),
        ("add", Type::Bf16) => |old, b, _| u64::from(bfloat_sum(old as u16, b as u16)),
        ("add", Type::F16x2) => |old, b, _| {
            u64::from(half_sum(old as u16, b as u16))
                | u64::from(half_sum((old >> 16) as u16, (b >> 16) as u16)) << 16
        },
        ("add", Type::Bf16x2) => |old, b, _| {
            u64::from(bfloat_sum(old as u16, b as u16))
                | u64::from(bfloat_sum((old >> 16) as u16, (b >> 16) as u16)) << 16
        },
        ("min" | "max", Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => {
            return half_extreme(name == "min", of);
        }
        _ => return None,
    })
}

/// The smaller or the larger of numbers of 16 bits.
fn half_extreme(is_min: bool, of: Type) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match (of, is_min) {
        (Type::F16, true) => |old, b, _| extreme::<f16>(old, b, 1, least),
        (Type::F16, false) => |old, b, _| extreme::<f16>(old, b, 1, greatest),
        (Type::F16x2, true) => |old, b, _| extreme::<f16>(old, b, 2, least),
        (Type::F16x2, false) => |old, b, _| extreme::<f16>(old, b, 2, greatest),
        (Type::Bf16, true) => |old, b, _| extreme::<bf16>(old, b, 1, least),
        (Type::Bf16, false) => |old, b, _| extreme::<bf16>(old, b, 1, greatest),
        (Type::Bf16x2, true) => |old, b, _| extreme::<bf16>(old, b, 2, least),
        (Type::Bf16x2, false) => |old, b, _| extreme::<bf16>(old, b, 2, greatest),
        _ => return None,
    })
}

fn extreme<H: Half>(a: u64, b: u64, count: u32, of: fn(H, H) -> H) -> u64 {
    (0..count).map(|part| 16 * part).fold(0, |all, shift| {
        let part = of(H::of_raw((a >> shift) as u16), H::of_raw((b >> shift) as u16));
        all | u64::from(part.raw()) << shift
    })
}

fn half_sum(a: u16, b: u16) -> u16 {
    f16::from_f32(f16::from_bits(a).to_f32() + f16::from_bits(b).to_f32()).to_bits()
}

fn bfloat_sum(a: u16, b: u16) -> u16 {
    bf16::from_f32(bf16::from_bits(a).to_f32() + bf16::from_bits(b).to_f32()).to_bits()
}
