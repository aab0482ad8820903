//! [`KnownPlans`]: the plans of a thread's recent element-wise expressions, so that one that is repeated is not planned again.

use crate::error::ArrayError;
use crate::expression::notes::Notes;
use crate::expression::plan::KernelPlan;
use crate::expression::tape::TapeRecording;

/// Plans by the words of their recordings.
#[derive(Default)]
pub(crate) struct KnownPlans {
    /// By the hashes of the words.
    slots: Vec<KnownPlan>,
}

/// The plan of an element-wise kernel.
#[derive(Default)]
pub(crate) struct KnownPlan {
    /// Empty if there is no plan.
    words: Vec<u64>,
    pub(crate) plan: KernelPlan,
    /// The shape of the targets.
    pub(crate) shape: Vec<usize>,
    /// True if a new target is in column-major order.
    pub(crate) is_by_columns: bool,
}

impl KnownPlans {
    /// The plan of a recording that has targets, with its numbers. Errors name `operation`.
    #[inline]
    pub(crate) fn find(
        &mut self,
        recording: &TapeRecording,
        notes: &mut Notes,
        operation: &'static str,
    ) -> Result<&KnownPlan, ArrayError> {
        recording.check_counts(operation)?;
        if self.slots.is_empty() {
            self.slots.resize_with(PLANS_MAX, KnownPlan::default);
        }
        let known = &mut self.slots[hash(&recording.words) % PLANS_MAX];
        if known.words == recording.words {
            known.plan.set_numbers(&recording.numbers);
        } else {
            known.make(recording, notes, operation)?;
        }
        Ok(known)
    }
}

impl KnownPlan {
    #[cold]
    fn make(
        &mut self,
        recording: &TapeRecording,
        notes: &mut Notes,
        operation: &'static str,
    ) -> Result<(), ArrayError> {
        // A plan that fails is none.
        self.words.clear();
        notes.read(recording, operation)?;
        self.shape = notes.shape();
        self.is_by_columns = notes.is_by_columns();
        self.plan.each(notes, &self.shape);
        self.words.clone_from(&recording.words);
        Ok(())
    }
}

/// Two words at a time, whose products do not wait for each other.
#[inline]
fn hash(words: &[u64]) -> usize {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let (pairs, last) = words.as_chunks::<2>();
    let (mut one, mut other) = (last.first().copied().unwrap_or_default(), 0_u64);
    for [a, b] in pairs {
        one = one.rotate_left(23) ^ a.wrapping_mul(FACTOR);
        other = other.rotate_left(29) ^ b.wrapping_mul(FACTOR);
    }
    ((one ^ other).wrapping_mul(FACTOR) >> 32) as usize
}

const PLANS_MAX: usize = 64;
