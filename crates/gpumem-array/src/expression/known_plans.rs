//! [`KnownPlans`]: the plans of a thread's recent element-wise expressions, so that one that is repeated is not planned again.

use crate::error::ArrayError;
use crate::expression::plan::KernelPlan;
use crate::expression::tape::{LeafElement, Notes};
use crate::kernel::generated::hash;

/// Plans by all that they depend on: the recording without the values of its numbers, and without the addresses of its arrays but for their
/// alignment.
#[derive(Default)]
pub(crate) struct KnownPlans {
    /// By the hashes of their signatures.
    slots: Vec<KnownPlan>,
    signature: Vec<u64>,
}

#[derive(Default)]
struct KnownPlan {
    /// Empty if there is no plan.
    signature: Vec<u64>,
    plan: KernelPlan,
}

impl KnownPlans {
    /// The plan of an element-wise kernel for elements of this shape, with the numbers of the recording.
    pub(crate) fn each(&mut self, notes: &Notes, shape: &[usize]) -> Result<&KernelPlan, ArrayError> {
        let Self { slots, signature, .. } = self;
        notes.check_counts()?;
        sign(signature, notes, shape);
        if slots.is_empty() {
            slots.resize_with(PLANS_MAX, KnownPlan::default);
        }
        let known = &mut slots[hash(bytemuck::cast_slice(signature)) % PLANS_MAX];
        if known.signature == *signature {
            known.plan.set_numbers(notes);
            return Ok(&known.plan);
        }
        // A plan that fails is none.
        known.signature.clear();
        known.plan.each(notes, shape)?;
        known.signature.clone_from(signature);
        Ok(&known.plan)
    }
}

/// Writes all that a plan depends on. Each list has its length before it.
fn sign(signature: &mut Vec<u64>, notes: &Notes, shape: &[usize]) {
    let (targets, elements, tokens) = (notes.targets(), notes.elements(), notes.tokens.as_slice());
    signature.clear();
    // No count but that of the tokens exceeds a byte.
    let counts = [targets.len(), elements.len(), notes.array_count(), notes.numbers.len()];
    signature.push(counts.iter().fold(tokens.len() as u64, |word, count| word << 8 | *count as u64));
    signature.push(shape.len() as u64);
    // Few words each, for which a loop takes less time than `extend`.
    shape.iter().for_each(|len| signature.push(*len as u64));
    for LeafElement { of, argument, address, axes } in targets.iter().chain(elements) {
        let of = of.map_or(0xFF, |of| of as u64);
        signature
            .push((axes.len() as u64) << 32 | argument.word() << 16 | of << 8 | (address % ALIGNMENT_MAX));
        for (len, stride) in axes {
            signature.push(*len as u64);
            signature.push(*stride as u64);
        }
    }
    let (words, rest) = tokens.as_chunks::<8>();
    words.iter().for_each(|word| signature.push(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    signature.push(u64::from_le_bytes(last));
}

const PLANS_MAX: usize = 64;
/// The widest load or store.
const ALIGNMENT_MAX: u64 = 16;
