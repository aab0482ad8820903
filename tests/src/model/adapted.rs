//! Adaptors around the pools of a case, and checks of their counters.
//!
//! All pools of a case share them, outermost first: a budget, debug bytes, guards, injected failures. The failures are innermost,
//! so each one requires the adaptors outside it to undo their work.

use super::objects::{Adapted, FAILURES};
use super::step::Step;
use super::world::World;
use crate::pool::{PoolError, RefusedBy};

impl World<'_> {
    /// The bytes that guards add to a request.
    pub(super) fn guards_bytes(&self, size_bytes: u64, alignment: u64) -> u64 {
        let unit = size_bytes.wrapping_neg() & 255;
        if self.adapted.is_some() { alignment.max(256).saturating_add(unit + 256) } else { 0 }
    }

    /// True if an adaptor refused a request, and its budget or an injected failure justifies the error.
    pub(super) fn is_adaptors_right(&mut self, error: &PoolError, more_bytes: u64) -> bool {
        let (_, held_bytes) = self.budgeted_bytes();
        let Some(adapted) = &mut self.adapted else { return false };
        match error {
            PoolError::Refused { adaptor, .. } if adaptor == FAILURES => {
                adapted.met_count += 1;
                true
            }
            PoolError::LimitReached(report) if report.refused_by == RefusedBy::Budget => {
                report.limit_bytes.is_some_and(|limit_bytes| {
                    limit_bytes == adapted.budget.limit_bytes()
                        && held_bytes.saturating_add(more_bytes).saturating_add(255) > limit_bytes
                })
            }
            _ => false,
        }
    }

    /// The value of each byte of a block before the first write, if an adaptor fills blocks.
    pub(super) fn fresh_byte(&self) -> Option<u8> {
        self.adapted.as_ref().map(|_| DEBUG_BYTE)
    }

    /// Checked after every step: the budget agrees with the twin's counters, and the program received every injected failure.
    pub(super) fn compare_adapted(&self) -> Step {
        let Some(Adapted { budget, failures, met_count, .. }) = &self.adapted else { return Ok(()) };
        let (least_bytes, most_bytes) = self.budgeted_bytes();
        let in_use_bytes = budget.in_use_bytes();
        if !(least_bytes..=most_bytes).contains(&in_use_bytes) || in_use_bytes > budget.limit_bytes() {
            return Err(format!("{budget:?} should have {least_bytes} to {most_bytes} bytes"));
        }
        match failures.failed_count() == *met_count {
            true => Ok(()),
            false => Err(format!("the program has met {met_count} failures of {failures:?}")),
        }
    }

    /// The bytes that the budget counts, and its maximum while graphs have memory.
    fn budgeted_bytes(&self) -> (u64, u64) {
        let known_bytes = self.twin.whole_bytes();
        (known_bytes, known_bytes + self.twin.chunks_bytes_max())
    }
}

/// The byte that `Fill::debug` writes.
const DEBUG_BYTE: u8 = 0xA5;
