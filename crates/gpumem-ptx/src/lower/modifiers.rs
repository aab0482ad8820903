//! The parts of an opcode.

use super::forms;
use crate::error::PtxError;
use crate::number::float::Rounding;
use crate::program::{ObjectUse, Order, Scope};
use crate::syntax::{Instruction, Space, Type};

/// The name of an instruction, and its modifiers that are not taken yet.
#[derive(Clone)]
pub(super) struct Modifiers<'s, 't> {
    pub(super) name: &'t str,
    rest: Vec<&'t str>,
    instruction: &'s Instruction<'t>,
    version: (u32, u32),
}

impl<'s, 't> Modifiers<'s, 't> {
    pub(super) fn new(instruction: &'s Instruction<'t>, version: (u32, u32)) -> Self {
        let mut parts = instruction.opcode.split('.');
        Self { name: parts.next().unwrap_or_default(), rest: parts.collect(), instruction, version }
    }

    /// Takes a modifier if it is there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        let found = self.rest.iter().position(|part| *part == modifier);
        if let Some(index) = found {
            self.rest.remove(index);
        }
        found.is_some()
    }

    /// Takes the first of these modifiers that is there.
    pub(super) fn take_one(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().find(|modifier| self.take(modifier)).copied()
    }

    /// Takes all modifiers for which `f` gives a value.
    pub(super) fn take_all<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        self.rest.retain(|part| match f(part) {
            Some(value) => {
                found.push(value);
                false
            }
            None => true,
        });
        found
    }

    pub(super) fn types(&mut self) -> Vec<Type> {
        self.take_all(Type::of)
    }

    /// The only type.
    pub(super) fn one_type(&mut self) -> Result<Type, PtxError> {
        match self.types()[..] {
            [of] => Ok(of),
            _ => Err(self.unknown()),
        }
    }

    /// True if this type is the first one of the instruction, which is the target's.
    pub(super) fn is_first(&self, name: &str) -> bool {
        let mut parts = self.instruction.opcode.split('.');
        let is_type = |part: &&str| *part == name || Type::of(part).is_some();
        parts.find(is_type) == Some(name)
    }

    pub(super) fn rounding(&mut self) -> Option<Rounding> {
        self.take_all(Rounding::of).first().copied()
    }

    pub(super) fn space(&mut self) -> Space {
        self.take_all(Space::of).first().copied().unwrap_or(Space::Generic)
    }

    /// Takes what says when others see an access, how long it stays in caches, and how far it reaches. Nothing of it changes the
    /// values here, where one thread runs at a time and there are no caches; the order counts for the search for races.
    pub(super) fn take_order(&mut self) -> Order {
        let has = |words: &[&str]| self.rest.iter().any(|part| words.contains(part));
        let scope = if has(&["cta", "cluster"]) { Scope::Block } else { Scope::Device };
        let order = Order {
            is_strong: has(&STRONG),
            is_acquire: has(&ACQUIRE),
            is_release: has(&RELEASE),
            scope,
            is_noncoherent: has(&["nc"]),
            object: ObjectUse::None,
        };
        self.rest.retain(|part| {
            !ORDER.contains(part) && !["L1::", "L2::", "level::"].iter().any(|level| part.starts_with(level))
        });
        order
    }

    pub(super) fn unknown(&self) -> PtxError {
        forms::unknown(self.instruction, self.version)
    }

    /// Checks that all modifiers were taken.
    pub(super) fn finish(&self) -> Result<(), PtxError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.unknown()) }
    }
}

const STRONG: [&str; 7] = ["volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"];
const ACQUIRE: [&str; 3] = ["acquire", "acq_rel", "sc"];
const RELEASE: [&str; 3] = ["release", "acq_rel", "sc"];
const ORDER: [&str; 23] = [
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio", "cta", "cluster", "gpu",
    "sys", "gl", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "noftz",
];
