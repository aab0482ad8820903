//! `mbarrier`: barriers in shared memory, which are counters.
//!
//! A barrier is a word of 64 bits: from the lowest bit on, the arrivals that are pending and those of each phase, 20 bits each, the pending
//! transactions, 22 bits, and in the highest bit the parity of the phase. The state that an arrival gives is the word before it.

use super::modifiers::Modifiers;
use super::{Lower, Result};
use crate::number::alu;
use crate::program::{ObjectUse, Op, Order, Scope, Slot};
use crate::syntax::{Instruction, Operand, Space, Type};

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn transaction(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        if modifiers.name != "mbarrier" {
            return Ok(false);
        }
        let is_generic = modifiers.space() == Space::Generic;
        modifiers.take_order();
        let names = [
            "init",
            "inval",
            "arrive_drop",
            "arrive",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "pending_count",
        ];
        let name = modifiers.take_one(&names).ok_or_else(|| modifiers.unknown())?;
        // The second name of `arrive.expect_tx`.
        let is_expecting = name == "expect_tx" || modifiers.take("expect_tx");
        let is_parity = modifiers.take("parity");
        let is_incomplete = modifiers.take("noComplete");
        modifiers.take("b64");
        modifiers.finish()?;
        match name {
            "pending_count" => {
                let to = self.target(self.operand(instruction, 0)?, Type::U32)?;
                let state = self.value(self.operand(instruction, 1)?, Type::U64)?;
                self.push(Op::Alu { function: alu!(|word: u64| word & COUNT), to, inputs: [state; 3] });
            }
            "init" | "inval" => {
                let mut to = self.shared_access(self.operand(instruction, 0)?, is_generic, Type::B64)?;
                to.order.object = if name == "init" { ObjectUse::Begin } else { ObjectUse::End };
                let word = if name == "init" {
                    let count = self.value(self.operand(instruction, 1)?, Type::U32)?;
                    self.step(alu!(|count: u64| (count & COUNT) << EXPECTED | count & COUNT), count)
                } else {
                    self.bits(0)
                };
                self.push(Op::Store { values: [word].into(), to });
            }
            "test_wait" | "try_wait" => {
                let to = self.target(self.operand(instruction, 0)?, Type::Pred)?;
                let mut from = self.shared_access(self.operand(instruction, 1)?, is_generic, Type::B64)?;
                let of = if is_parity { Type::U32 } else { Type::U64 };
                let phase = self.operand(instruction, 2)?;
                if is_parity && matches!(phase, Operand::Integer(parity) if *parity > 1) {
                    return Err(self.wrong("a parity is 0 or 1"));
                }
                let phase = self.value(phase, of)?;
                // How long it waits at most.
                if let Some(time) = instruction.operands.get(3) {
                    self.value(time, Type::U32)?;
                }
                from.order = RELEASING;
                let word = self.temporary();
                self.push(Op::Load { to: [Some(word)].into(), from });
                let function = if is_parity {
                    alu!(|word: u64, parity: u64| word >> PHASE != parity & 1)
                } else {
                    alu!(|word: u64, state: u64| (word ^ state) >> PHASE != 0)
                };
                self.push(Op::Alu { function, to, inputs: [Slot::Register(word), phase, phase] });
            }
            _ => self.arrive(instruction, (name, is_expecting), is_generic, is_incomplete)?,
        }
        Ok(true)
    }

    /// Arrivals and transactions, which have a result if they arrive.
    fn arrive(
        &mut self,
        instruction: &'s Instruction<'t>,
        (name, is_expecting): (&str, bool),
        is_generic: bool,
        needs_count: bool,
    ) -> Result<()> {
        let is_arrival = name.starts_with("arrive");
        let mut operands = &instruction.operands[..];
        let mut to = None;
        if is_arrival {
            to = Some(self.target_or_none(self.operand(instruction, 0)?, Type::U64)?);
            operands = &operands[1..];
        }
        let [address, rest @ ..] = operands else { return Err(self.wrong("an operand is missing")) };
        if rest.is_empty() && (is_expecting || needs_count || !is_arrival) {
            return Err(self.wrong("an operand is missing"));
        }
        let mut at = self.shared_access(address, is_generic, Type::B64)?;
        at.order = RELEASING;
        let count = match rest.first() {
            Some(count) => self.value(count, Type::U32)?,
            None => self.bits(1),
        };
        let function: fn(u64, u64, u64) -> u64 = match (name, is_expecting) {
            ("arrive", false) => |word, count, _| arrived(word, count, 0, 0),
            ("arrive", true) => |word, bytes, _| arrived(word, 1, 0, bytes),
            ("arrive_drop", false) => |word, count, _| arrived(word, count, count, 0),
            ("arrive_drop", true) => |word, bytes, _| arrived(word, 1, 1, bytes),
            ("expect_tx", _) => |word, bytes, _| with_transactions(word, bytes),
            ("complete_tx", false) => {
                |word, bytes, _| completed(with_transactions(word, bytes.wrapping_neg()))
            }
            _ => return Err(self.unknown(instruction)),
        };
        self.push(Op::Atomic { function, in_shared: function, to, at, inputs: [count; 2] });
        Ok(())
    }
}

/// Arrivals of an asynchronous copy, which is done at once here: it arrives if the barrier counts on it.
pub(super) const ARRIVED: fn(u64, u64, u64) -> u64 = |word, _, _| arrived(word, 1, 0, 0);

/// Of arrivals and of waits: what came before an arrival comes before what follows the wait.
pub(super) const RELEASING: Order = Order {
    is_strong: true,
    is_acquire: true,
    is_release: true,
    scope: Scope::Block,
    is_noncoherent: false,
    object: ObjectUse::Use,
};
const COUNT: u64 = (1 << 20) - 1;
const EXPECTED: u32 = 20;
const TRANSACTIONS: u32 = 40;
const TRANSACTION_COUNT: u64 = (1 << 22) - 1;
const PHASE: u32 = 63;

fn with_transactions(word: u64, bytes: u64) -> u64 {
    let sum = (word >> TRANSACTIONS).wrapping_add(bytes) & TRANSACTION_COUNT;
    word & !(TRANSACTION_COUNT << TRANSACTIONS) | sum << TRANSACTIONS
}

/// The word after arrivals, of which `dropped` do not take part in later phases, and which wait for `bytes` of transactions.
fn arrived(word: u64, count: u64, dropped: u64, bytes: u64) -> u64 {
    let word = with_transactions(word, bytes);
    let pending = (word & COUNT).wrapping_sub(count) & COUNT;
    let expected = (word >> EXPECTED & COUNT).wrapping_sub(dropped) & COUNT;
    completed(word & !(COUNT << EXPECTED | COUNT) | expected << EXPECTED | pending)
}

/// Begins the next phase if nothing is pending.
fn completed(word: u64) -> u64 {
    if word & COUNT == 0 && word >> TRANSACTIONS & TRANSACTION_COUNT == 0 {
        (word | word >> EXPECTED & COUNT) ^ 1 << PHASE
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_all_arrived_and_all_bytes_came() {
        let word = 2 << EXPECTED | 2;
        let one = arrived(word, 1, 0, 16);
        assert_eq!(one >> PHASE, 0);
        let two = arrived(one, 1, 0, 0);
        assert_eq!((two >> PHASE, two & COUNT), (0, 0));
        let done = completed(with_transactions(two, 16_u64.wrapping_neg()));
        assert_eq!((done >> PHASE, done & COUNT), (1, 2));
        assert_eq!(arrived(done, 2, 1, 0), 1 << EXPECTED | 1);
    }
}
