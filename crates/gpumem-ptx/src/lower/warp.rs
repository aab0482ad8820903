//! Instructions between the lanes of a warp.

use super::modifiers::Modifiers;
use super::{Lower, Result};
use crate::program::{Op, Shuffle, ShuffleKind, Slot, Vote};
use crate::syntax::{Instruction, Operand, Type};

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn warp(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        match modifiers.name {
            "shfl" => self.shuffle(instruction, &mut modifiers)?,
            "vote" => self.vote(instruction, &mut modifiers)?,
            "match" => self.match_lanes(instruction, &mut modifiers)?,
            "redux" => self.reduce(instruction, &mut modifiers)?,
            "elect" => {
                modifiers.take("sync");
                modifiers.finish()?;
                let (to, is_elected) = self.pair(self.operand(instruction, 0)?, Type::U32)?;
                if is_elected.is_none() {
                    return Err(self.wrong("the instruction has a predicate as a second target"));
                }
                let mask = self.value(self.operand(instruction, 1)?, Type::U32)?;
                self.push(Op::Elect { to, is_elected, mask });
            }
            "activemask" => {
                self.only_type(&mut modifiers, Type::B32)?;
                let to = self.target(self.operand(instruction, 0)?, Type::B32)?;
                self.push(Op::ActiveMask { to });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The two destinations `d|p`; the second is a predicate.
    fn pair(&self, operand: &Operand<'t>, of: Type) -> Result<(Option<u32>, Option<u32>)> {
        let (first, second) = match operand {
            Operand::Pair(first, second) => (*first, *second),
            Operand::Register(register) => (Some(*register), None),
            Operand::Sink => (None, None),
            _ => return Err(self.wrong("the target is no register")),
        };
        for (register, of) in [(first, of), (second, Type::Pred)] {
            if register.is_some_and(|register| !of.is_of_register(self.register_type(register))) {
                return Err(self.wrong("the target has another type"));
            }
        }
        Ok((first, second))
    }

    /// Checks that this type is the last modifier.
    pub(super) fn only_type(&self, modifiers: &mut Modifiers<'s, 't>, of: Type) -> Result<()> {
        if modifiers.one_type()? != of {
            return Err(modifiers.unknown());
        }
        modifiers.finish()
    }

    /// The lanes that take part, if the instruction names them.
    fn mask(
        &mut self,
        instruction: &'s Instruction<'t>,
        index: usize,
        is_sync: bool,
    ) -> Result<Option<Slot>> {
        if !is_sync {
            return Ok(None);
        }
        Ok(Some(self.value(self.operand(instruction, index)?, Type::U32)?))
    }

    fn shuffle(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let is_sync = modifiers.take("sync");
        let kind = match modifiers.take_one(&["up", "down", "bfly", "idx"]) {
            Some("up") => ShuffleKind::Up,
            Some("down") => ShuffleKind::Down,
            Some("bfly") => ShuffleKind::Butterfly,
            Some(_) => ShuffleKind::Index,
            None => return Err(modifiers.unknown()),
        };
        self.only_type(modifiers, Type::B32)?;
        let (to, is_valid) = self.pair(self.operand(instruction, 0)?, Type::B32)?;
        let Some(to) = to else { return Err(self.wrong(NO_TARGET)) };
        let input = self.value(self.operand(instruction, 1)?, Type::B32)?;
        let lane = self.value(self.operand(instruction, 2)?, Type::B32)?;
        let limits = self.value(self.operand(instruction, 3)?, Type::B32)?;
        let mask = self.mask(instruction, 4, is_sync)?;
        self.push(Op::Shuffle(Box::new(Shuffle { kind, to, is_valid, input, lane, limits, mask })));
        Ok(())
    }

    fn vote(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        let is_sync = modifiers.take("sync");
        let kind = match modifiers.take_one(&["all", "any", "uni", "ballot"]) {
            Some("all") => Vote::All,
            Some("any") => Vote::Any,
            Some("uni") => Vote::Uniform,
            Some(_) => Vote::Ballot,
            None => return Err(modifiers.unknown()),
        };
        let of = if kind == Vote::Ballot { Type::B32 } else { Type::Pred };
        self.only_type(modifiers, of)?;
        let to = self.target(self.operand(instruction, 0)?, of)?;
        let input = self.value(self.operand(instruction, 1)?, Type::Pred)?;
        let mask = self.mask(instruction, 2, is_sync)?;
        self.push(Op::Vote { kind, to, input, mask });
        Ok(())
    }

    fn match_lanes(
        &mut self,
        instruction: &'s Instruction<'t>,
        modifiers: &mut Modifiers<'s, 't>,
    ) -> Result<()> {
        modifiers.take("sync");
        let kind = modifiers.take_one(&["any", "all"]).ok_or_else(|| modifiers.unknown())?;
        let of = modifiers.one_type()?;
        modifiers.finish()?;
        let target = self.operand(instruction, 0)?;
        let (to, is_equal) = self.pair(target, Type::U32)?;
        // `.b32` is an integer here.
        let of = if of == Type::B32 { Type::U32 } else { Type::U64 };
        let input = self.value(self.operand(instruction, 1)?, of)?;
        let mask = self.value(self.operand(instruction, 2)?, Type::U32)?;
        if kind == "all" {
            self.push(Op::MatchAll { to, is_equal, input, mask });
        } else {
            let Some(to) = to else { return Err(self.wrong(NO_TARGET)) };
            if matches!(target, Operand::Pair(..)) {
                return Err(self.wrong("the instruction has no second target"));
            }
            self.push(Op::MatchAny { to, input, mask });
        }
        Ok(())
    }

    fn reduce(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        modifiers.take("sync");
        let of = modifiers.one_type()?;
        let name = modifiers.take_one(&["add", "min", "max", "and", "or", "xor"]);
        modifiers.finish()?;
        let function: fn(u64, u64) -> u64 = match (name, of) {
            (Some("add"), Type::U32 | Type::S32) => |a, b| u64::from((a as u32).wrapping_add(b as u32)),
            (Some("min"), Type::U32) => |a, b| a.min(b),
            (Some("max"), Type::U32) => |a, b| a.max(b),
            (Some("min"), Type::S32) => |a, b| u64::from((a as i32).min(b as i32) as u32),
            (Some("max"), Type::S32) => |a, b| u64::from((a as i32).max(b as i32) as u32),
            (Some("and"), Type::B32) => |a, b| a & b,
            (Some("or"), Type::B32) => |a, b| a | b,
            (Some("xor"), Type::B32) => |a, b| a ^ b,
            _ => return Err(modifiers.unknown()),
        };
        // `.b32` is an integer here.
        let of = if of == Type::B32 { Type::U32 } else { of };
        let to = self.target(self.operand(instruction, 0)?, of)?;
        let input = self.value(self.operand(instruction, 1)?, of)?;
        let mask = self.value(self.operand(instruction, 2)?, Type::U32)?;
        let name = (name.unwrap_or_default(), of);
        self.push(Op::Reduce { function, name, to, input, mask });
        Ok(())
    }
}

const NO_TARGET: &str = "the target of this instruction cannot be left out";
