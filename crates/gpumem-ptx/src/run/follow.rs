//! Values that a shuffle leaves undefined: those of a lane that does not take part. Such a value does no harm until it decides something,
//! so it is followed through registers, and reported where an address, a branch, or memory that others see gets it.
//!
//! A result depends on an undefined operand if other values of the operand give other results: `selp` by a predicate that does not
//! choose it, or a sum that a guard leaves out, is defined.

use crate::fault::{Mistake, TextLine};
use crate::number::integer::{inserted, lop3};
use crate::number::{Alu, LANES, Lanes};
use crate::program::{Access, BarrierKind, Callee, Matrix, Memory, Op, Slot};
use crate::run::Run;
use crate::run::undefined::Origin;
use crate::run::warp::{Warp, bits};

impl Warp {
    /// The undefined lanes of an operand.
    fn undefined_lanes(&self, base: u32, slot: Slot, active: u32) -> Option<Origin> {
        match slot {
            Slot::Register(register) => self.undefined.among(base + register, active),
            _ => None,
        }
    }

    /// Follows undefined values through an instruction that the lanes `active` of `mask` are about to execute.
    #[cold]
    pub(crate) fn follow(&mut self, run: &mut Run<'_>, pc: u32, base: u32, (mask, active): (u32, u32)) {
        let step = &run.program.steps[pc as usize];
        let guard = step.guard.and_then(|guard| self.undefined.among(base + guard.register, mask));
        let target = match step.op {
            Op::Alu { to, .. } | Op::Logic { to, .. } | Op::Insert { to, .. } => Some(base + to),
            _ => None,
        };
        if let (Some(guard), Some(_), None) = (step.guard, guard, target) {
            self.used(run, pc, base, &[Slot::Register(guard.register)], mask);
        }
        self.follow_values(run, pc, base, active);
        // Whether the target has the new value is open.
        if let (Some(origin), Some(target)) = (guard, target) {
            self.undefined.add(target, origin);
        }
    }

    /// The same, without the guard.
    fn follow_values(&mut self, run: &mut Run<'_>, pc: u32, base: u32, active: u32) {
        if active == 0 {
            return;
        }
        let step = &run.program.steps[pc as usize];
        match &step.op {
            Op::Alu { function, to, inputs } => {
                let compute = |inputs: &[Lanes]| match function {
                    Alu::One(f) => f(&inputs[0]),
                    Alu::Two(f) => f(&inputs[0], &inputs[1]),
                    Alu::Three(f) => f(&inputs[0], &inputs[1], &inputs[2]),
                };
                let count = match function {
                    Alu::One(_) => 1,
                    Alu::Two(_) => 2,
                    Alu::Three(_) => 3,
                };
                self.computed(run, (base, *to), &inputs[..count], active, compute);
            }
            Op::Logic { to, inputs, table } => {
                let table = *table;
                self.computed(run, (base, *to), inputs, active, |inputs| {
                    core::array::from_fn(|lane| {
                        let [a, b, c] = [0, 1, 2].map(|index| inputs[index][lane] as u32);
                        u64::from(lop3(a, b, c, table))
                    })
                });
            }
            Op::Insert { to, inputs, width } => {
                let width = *width;
                self.computed(run, (base, *to), inputs, active, |inputs| {
                    core::array::from_fn(|lane| {
                        let [a, b, at, len] = [0, 1, 2, 3].map(|index| inputs[index][lane]);
                        inserted(a, b, at as u32, len as u32, width)
                    })
                });
            }
            Op::Load { to, from } => {
                self.used(run, pc, base, &[from.at], active);
                to.iter().flatten().for_each(|to| self.undefined.remove(base + to, active));
            }
            Op::Store { values, to } => {
                self.used(run, pc, base, &[to.at], active);
                if is_seen_by_others(to) {
                    self.used(run, pc, base, values, active);
                }
            }
            Op::Atomic { to, at, inputs, .. } => {
                self.used(run, pc, base, &[at.at, inputs[0], inputs[1]], active);
                to.iter().for_each(|to| self.undefined.remove(base + to, active));
            }
            Op::Copy { to, from, source_bytes, .. } => {
                let at = [to.at, from.at, source_bytes.unwrap_or(to.at)];
                self.used(run, pc, base, &at, active);
            }
            Op::BranchTable { index, .. } => self.used(run, pc, base, &[*index], active),
            Op::Call(call) => {
                if let Callee::Register(slot) = call.target {
                    self.used(run, pc, base, &[slot], active);
                }
            }
            Op::FrameAddress { to, .. }
            | Op::ActiveMask { to }
            | Op::Clock { to, .. }
            | Op::Vote { to, .. }
            | Op::MatchAny { to, .. }
            | Op::Reduce { to, .. }
            | Op::Print { to, .. } => self.undefined.remove(base + to, active),
            Op::MatchAll { to, is_equal: second, .. } | Op::Elect { to, is_elected: second, .. } => {
                to.iter().chain(second).for_each(|to| self.undefined.remove(base + to, active));
            }
            Op::Barrier(barrier) => {
                if let BarrierKind::Combine { to, .. } = barrier.kind {
                    self.undefined.remove(base + to, active);
                }
            }
            Op::Matrix(matrix) => {
                if let Matrix::LoadRows { to, .. } | Matrix::Load { to, .. } | Matrix::Multiply { to, .. } =
                    &**matrix
                {
                    to.iter().for_each(|to| self.undefined.remove(base + to, active));
                } else if let Matrix::Transpose { to, .. } = &**matrix {
                    self.undefined.remove(base + to, active);
                }
            }
            // A shuffle does it itself. The others write no registers.
            _ => {}
        }
    }

    /// Follows undefined values through arithmetic: what comes out if the undefined operands have other values?
    fn computed(
        &mut self,
        run: &Run<'_>,
        (base, to): (u32, u32),
        inputs: &[Slot],
        active: u32,
        compute: impl Fn(&[Lanes]) -> Lanes,
    ) {
        let origins: Vec<Option<Origin>> =
            inputs.iter().map(|slot| self.undefined_lanes(base, *slot, active)).collect();
        let Some(first) = origins.iter().flatten().next().copied() else {
            self.undefined.remove(base + to, active);
            return;
        };
        let values: Vec<Lanes> = inputs.iter().map(|slot| *self.lanes(run, base, *slot)).collect();
        let known = compute(&values);
        let mut differing = 0;
        // Two operands that are one register have one value; others have different ones. A comparison may be for equality.
        let fixed = OTHERS.iter().map(|other| [*other; LANES]);
        for other in fixed.chain(values.iter().copied()) {
            let mut values = values.clone();
            for ((value, origin), slot) in values.iter_mut().zip(&origins).zip(inputs) {
                let Slot::Register(register) = slot else { continue };
                for lane in bits(origin.map_or(0, |origin| origin.lanes)) {
                    let is_mixed = other[lane] == MIXED;
                    value[lane] =
                        if is_mixed { MIXED.wrapping_mul(2 * u64::from(*register) + 1) } else { other[lane] };
                }
            }
            let found = compute(&values);
            let lanes = (0..LANES).filter(|lane| found[*lane] != known[*lane]);
            differing |= lanes.fold(0, |mask, lane| mask | 1 << lane);
        }
        let lanes = origins.iter().flatten().fold(0, |mask, origin| mask | origin.lanes) & differing;
        self.undefined.remove(base + to, active);
        self.undefined.add(base + to, Origin { lanes, ..first });
    }

    /// Reports undefined values among operands that decide something. From then on they count as defined.
    fn used(&mut self, run: &mut Run<'_>, pc: u32, base: u32, slots: &[Slot], active: u32) {
        for slot in slots {
            let Some(origin) = self.undefined_lanes(base, *slot, active) else { continue };
            let use_line = TextLine::of(run.program, pc);
            let mistake = Mistake::UndefinedLane { lane: origin.source, use_line };
            let thread = self.number * LANES as u32 + origin.lanes.trailing_zeros();
            if let Some(checker) = &mut run.checker {
                checker.report((origin.step, thread), pc, mistake);
            }
            if let Slot::Register(register) = slot {
                self.undefined.remove(base + register, origin.lanes);
            }
        }
    }
}

/// Spills to local memory decide nothing, and are not followed.
fn is_seen_by_others(access: &Access) -> bool {
    matches!(access.space, Memory::Global | Memory::Shared | Memory::Generic)
}

/// Values in place of undefined ones.
const OTHERS: [u64; 5] = [0, u64::MAX, 0x8000_0000_8000_0000, 0x7fff_ffff_7fff_ffff, MIXED];
const MIXED: u64 = 0x9e37_79b9_7f4a_7c15;
