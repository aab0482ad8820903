//! A warp: its registers, its groups, and what each instruction does to them.

use crate::check::Touch;
use crate::fault::{Mistake, place};
use crate::memory::{get, set};
use crate::number::integer::{inserted, lop3};
use crate::number::{Alu, LANES, Lanes};
use crate::program::{Access, BARRIERS, Barrier, BarrierKind, ClockPart, Matrix, Memory, Op, Slot, Special};
use crate::run::access::{LocalFrame, ThreadMemory, by_window, element, set_element};
use crate::run::block::{Arrival, Barriers};
use crate::run::group::{self, Group, Waiting};
use crate::run::surroundings::{Reached, Surroundings};
use crate::run::undefined::Undefined;
use crate::run::{Run, Stopped};
use core::cell::Cell;
use std::rc::Rc;

/// A warp of a block.
#[derive(Default)]
pub(crate) struct Warp {
    pub(crate) number: u32,
    pub(crate) registers: Vec<Lanes>,
    pub(crate) specials: Vec<Lanes>,
    /// The local memory of its threads, `stride` bytes each.
    pub(crate) local: Vec<Cell<u8>>,
    pub(crate) stride: usize,
    pub(crate) groups: Vec<Group>,
    /// Any group may run next, because one of them may wait for another in a loop.
    is_any_next: bool,
    /// Values that shuffles left undefined, if they are looked for.
    pub(crate) undefined: Undefined,
    /// A lane that has gone around a barrier at which others waited for it, and has ended.
    pub(crate) missed: Option<u32>,
    /// The place of the barrier at which lanes waited last for the rest of the warp, and what the steps around it say.
    surroundings: Option<(u32, Rc<Surroundings>)>,
    /// How far the lanes have come that were not there.
    reached: Reached,
    /// The lanes that have gone around it while others waited.
    pub(crate) passing: u32,
    /// The barriers at which the warp has arrived, with all lanes that did.
    arrived: Vec<(u32, u32)>,
    /// The last look at memory that may be one of a loop that waits: the step and the address.
    poll: (u32, u64),
    /// The group that runs has looked at one place twice, and has changed nothing since.
    is_polling: bool,
    /// Groups wait for a change of memory.
    has_stalled: bool,
}

pub(crate) enum Pause {
    Done,
    Waiting,
    Slow,
    /// What can run waits for a change of memory.
    Stalled,
}

/// What becomes of a group after an instruction.
pub(crate) enum Flow {
    Next,
    /// The groups have changed.
    Changed,
}

type Failed = (Mistake, u32);

/// The elements of a load, at most.
const VECTOR_MAX: usize = 8;

/// The lanes of a mask.
pub(crate) fn bits(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    core::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

/// The values of an operand.
#[inline]
pub(crate) fn lanes_of<'a>(
    registers: &'a [Lanes],
    constants: &'a [Lanes],
    specials: &'a [Lanes],
    base: u32,
    slot: Slot,
) -> &'a Lanes {
    match slot {
        Slot::Register(register) => &registers[(base + register) as usize],
        Slot::Constant(constant) => &constants[constant as usize],
        Slot::Special(special) => &specials[special as usize],
    }
}

impl Warp {
    /// Begins with the threads of this number.
    pub(crate) fn start(&mut self, run: &Run<'_>, number: u32, threads: u32, block: [u32; 3]) {
        let routine = &run.program.routines[0];
        self.number = number;
        if self.registers.len() < routine.registers as usize {
            self.registers.resize(routine.registers as usize, [0; LANES]);
        }
        routine.cleared.iter().for_each(|register| self.registers[*register as usize] = [0; LANES]);
        self.stride = routine.frame_bytes as usize;
        self.local.clear();
        self.local.resize(self.stride * LANES, Cell::new(0));
        let specials = &run.program.specials;
        if self.specials.len() == specials.len() {
            // It was this warp of another block of the same launch.
            for (known, special) in self.specials.iter_mut().zip(specials) {
                if let Special::Block(axis) = special {
                    *known = [block[usize::from(*axis)].into(); LANES];
                }
            }
        } else {
            self.specials =
                specials.iter().map(|special| self::special(*special, run, number, block)).collect();
        }
        let lanes = (threads - number * LANES as u32).min(LANES as u32);
        let mask = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
        self.undefined.clear();
        self.groups.clear();
        self.groups.push(Group::new(mask, routine.start));
        (self.is_any_next, self.missed, self.passing) = (false, None, 0);
        self.surroundings = None;
        self.arrived.clear();
        (self.poll, self.is_polling, self.has_stalled) = ((u32::MAX, 0), false, false);
    }

    /// Nothing of the launch is left but the memory.
    pub(crate) fn forget_launch(&mut self) {
        self.specials.clear();
        self.surroundings = None;
    }

    /// The bytes of its registers and of the local memory of its threads.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.registers.capacity() * size_of::<Lanes>() + self.local.capacity()) as u64
    }

    /// The lanes that have not ended.
    pub(crate) fn alive(&self) -> u32 {
        self.groups.iter().fold(0, |mask, group| mask | group.mask)
    }

    pub(crate) fn write(&mut self, register: u32, value: &Lanes, mask: u32) {
        let target = &mut self.registers[register as usize];
        if mask == u32::MAX {
            *target = *value;
        } else {
            for lane in 0..LANES {
                if mask >> lane & 1 == 1 {
                    target[lane] = value[lane];
                }
            }
        }
    }

    /// Runs until all lanes have ended or wait, or the run has taken `end` steps.
    pub(crate) fn run(
        &mut self,
        run: &mut Run<'_>,
        shared: &[Cell<u8>],
        barriers: &mut Barriers,
        end: u64,
    ) -> Result<Pause, Stopped> {
        let program = run.program;
        let is_checked = run.checker.is_some();
        self.wake();
        loop {
            group::join(&mut self.groups);
            let next = group::next(&self.groups);
            if next.is_none() && self.wake() {
                return Ok(Pause::Stalled);
            }
            if (next.is_none() || self.missed.is_some())
                && let Some(stopped) = self.divergence(run)
            {
                return Err(stopped);
            }
            let Some(mut index) = next else {
                return Ok(if self.groups.is_empty() { Pause::Done } else { Pause::Waiting });
            };
            if self.is_any_next {
                self.is_any_next = false;
                let runnable =
                    self.groups.iter().enumerate().filter(|(_, group)| group.waiting == Waiting::No);
                let runnable: Vec<usize> = runnable.map(|(index, _)| index).collect();
                index = runnable[run.next_random() as usize % runnable.len()];
            }
            let stop = group::meeting(&self.groups, index);
            let Group { mut pc, mask, frame, .. } = self.groups[index];
            let base = frame.registers;
            let waited_for = self.lanes_waited_for();
            self.is_polling = false;
            loop {
                if run.steps >= end {
                    self.groups[index].pc = pc;
                    self.is_any_next = true;
                    return Ok(Pause::Slow);
                }
                run.steps += 1;
                if let Some((lanes, surroundings)) = &waited_for {
                    self.passing |= surroundings.gone_around(pc, mask & lanes, &mut self.reached);
                }
                let step = &program.steps[pc as usize];
                let active = match step.guard {
                    None => mask,
                    Some(guard) => {
                        let holds = set_lanes(&self.registers[(base + guard.register) as usize]);
                        mask & if guard.is_negated { !holds } else { holds }
                    }
                };
                if is_checked && !self.undefined.is_empty() {
                    self.follow(run, pc, base, (mask, active));
                }
                match &step.op {
                    Op::Alu { function, to, inputs } => {
                        if active != 0 {
                            let input = |index: usize| {
                                lanes_of(&self.registers, &run.constants, &self.specials, base, inputs[index])
                            };
                            let value = match function {
                                Alu::One(f) => f(input(0)),
                                Alu::Two(f) => f(input(0), input(1)),
                                Alu::Three(f) => f(input(0), input(1), input(2)),
                            };
                            self.write(base + to, &value, active);
                        }
                        pc += 1;
                    }
                    Op::Branch { target } if active == mask => {
                        let is_stalled = self.is_polling && *target <= pc;
                        pc = *target;
                        if is_stalled {
                            self.groups[index].pc = pc;
                            self.stall(index);
                            break;
                        }
                    }
                    _ if active == 0 => pc += 1,
                    op => {
                        self.groups[index].pc = pc;
                        run.at = pc;
                        let flow = self.other(run, (shared, barriers), (index, active), op);
                        match flow.map_err(|(mistake, lane)| Stopped {
                            mistake,
                            step: pc,
                            thread: self.number * LANES as u32 + lane,
                        })? {
                            Flow::Next => pc += 1,
                            Flow::Changed => break,
                        }
                    }
                }
                if pc >= stop {
                    self.groups[index].pc = pc;
                    break;
                }
            }
        }
    }

    /// Notes a look at memory that may be one of a loop that waits for another thread: a strong read, or an atomic that changes nothing.
    fn polls(&mut self, step: u32, address: u64) {
        self.is_polling = self.poll == (step, address);
        self.poll = (step, address);
    }

    /// Lets a group wait for a change of memory.
    fn stall(&mut self, index: usize) {
        self.groups[index].waiting = Waiting::Change;
        self.has_stalled = true;
    }

    /// Lets the groups go on that wait for a change of memory. Returns true if there are any.
    fn wake(&mut self) -> bool {
        if !core::mem::take(&mut self.has_stalled) {
            return false;
        }
        let stalled = self.groups.iter_mut().filter(|group| group.waiting == Waiting::Change);
        stalled.map(|group| group.waiting = Waiting::No).count() > 0
    }

    /// Memory has changed that others see. Returns true if they go on.
    fn changes(&mut self, run: &mut Run<'_>, index: usize) -> bool {
        run.is_memory_changed = true;
        self.is_polling = false;
        let is_waited_for = self.wake();
        if is_waited_for {
            self.groups[index].pc += 1;
        }
        is_waited_for
    }

    /// If lanes wait for the rest of the warp: the lanes that were never at that barrier, and the steps around it.
    fn lanes_waited_for(&self) -> Option<(u32, Rc<Surroundings>)> {
        let waiting = self.groups.iter().find(|group| group.waiting == Waiting::Warp)?;
        let arrived =
            self.arrived.iter().find(|(step, _)| *step == waiting.pc).map_or(0, |(_, lanes)| *lanes);
        let (_, surroundings) = self.surroundings.as_ref()?;
        Some((!arrived, Rc::clone(surroundings)))
    }

    pub(crate) fn lanes<'a>(&'a self, run: &'a Run<'_>, base: u32, slot: Slot) -> &'a Lanes {
        lanes_of(&self.registers, &run.constants, &self.specials, base, slot)
    }

    /// Does an instruction for the lanes `active`, of which there is at least one.
    fn other(
        &mut self,
        run: &mut Run<'_>,
        (shared, barriers): (&[Cell<u8>], &mut Barriers),
        (index, active): (usize, u32),
        op: &Op,
    ) -> Result<Flow, Failed> {
        let Group { pc, mask, frame, .. } = self.groups[index];
        let base = frame.registers;
        let local = LocalFrame {
            start: frame.local,
            bytes: run.program.routines[frame.routine as usize].frame_bytes,
        };
        match op {
            Op::Alu { .. } => {}
            Op::Logic { to, inputs, table } => {
                let [a, b, c] = inputs.map(|slot| *self.lanes(run, base, slot));
                let value = core::array::from_fn(|lane| {
                    u64::from(lop3(a[lane] as u32, b[lane] as u32, c[lane] as u32, *table))
                });
                self.write(base + to, &value, active);
            }
            Op::Insert { to, inputs, width } => {
                let [a, b, at, len] = inputs.map(|slot| *self.lanes(run, base, slot));
                let value = core::array::from_fn(|lane| {
                    inserted(a[lane], b[lane], at[lane] as u32, len[lane] as u32, *width)
                });
                self.write(base + to, &value, active);
            }
            Op::FrameAddress { to, offset_bytes } => {
                self.write(base + to, &[frame.local.wrapping_add(*offset_bytes); LANES], active);
            }
            Op::Load { to, from } => {
                if from.order.is_strong {
                    let address = self.lanes(run, base, from.at)[active.trailing_zeros() as usize];
                    self.polls(pc, address.wrapping_add_signed(from.offset_bytes));
                }
                self.load(run, shared, active, (to, from, local), base)?;
            }
            Op::Store { values, to } => {
                self.store(run, shared, active, (values, to, local), base)?;
                if !matches!(to.space, Memory::Local | Memory::Frame) && self.changes(run, index) {
                    return Ok(Flow::Changed);
                }
            }
            Op::Atomic { function, in_shared, to, at, inputs } => {
                let addresses = *self.lanes(run, base, at.at);
                let [b, c] = inputs.map(|slot| *self.lanes(run, base, slot));
                let mut is_changed = false;
                for lane in bits(active) {
                    let address = addresses[lane].wrapping_add_signed(at.offset_bytes);
                    let thread = self.thread(lane, shared, local);
                    let cells =
                        run.cells(at, address, &thread, true).map_err(|mistake| (mistake, lane as u32))?;
                    run.note(at, address, &thread, || Touch::Atomic);
                    let old = get(cells);
                    let function = if at.is_shared(address) { in_shared } else { function };
                    set(cells, function(old, b[lane], c[lane]));
                    is_changed |= get(cells) != old;
                    if let Some(to) = to {
                        self.registers[(base + to) as usize][lane] = old;
                    }
                }
                if is_changed {
                    if self.changes(run, index) {
                        return Ok(Flow::Changed);
                    }
                } else if to.is_some() {
                    let address = addresses[active.trailing_zeros() as usize];
                    self.polls(pc, address.wrapping_add_signed(at.offset_bytes));
                }
            }
            Op::Copy { to, from, size_bytes, source_bytes } => {
                let [targets, sources] = [to.at, from.at].map(|slot| *self.lanes(run, base, slot));
                let lens = source_bytes.map(|slot| *self.lanes(run, base, slot));
                for lane in bits(active) {
                    let failed = |mistake| (mistake, lane as u32);
                    let len = lens.map_or(*size_bytes, |lens| lens[lane] as u32);
                    if len > *size_bytes {
                        let [source_bytes, size_bytes] = [len, *size_bytes].map(u64::from);
                        return Err(failed(Mistake::CopySize { source_bytes, size_bytes }));
                    }
                    let len = len as usize;
                    let mut bytes = [0; 16];
                    let thread = self.thread(lane, shared, local);
                    if len > 0 {
                        let source = sources[lane].wrapping_add_signed(from.offset_bytes);
                        if source & u64::from(size_bytes - 1) != 0 {
                            let size_bytes = u64::from(*size_bytes);
                            let mistake = Mistake::Misaligned {
                                space: "global",
                                address: source,
                                size_bytes,
                                is_write: false,
                            };
                            return Err(failed(mistake));
                        }
                        // Only what is copied is read.
                        let from = Access { bytes: 1, count: len as u8, ..*from };
                        let cells = run.cells(&from, source, &thread, false).map_err(failed)?;
                        run.note(&from, source, &thread, || Touch::Read);
                        bytes.iter_mut().zip(&cells[..len]).for_each(|(byte, cell)| *byte = cell.get());
                    }
                    let target = targets[lane].wrapping_add_signed(to.offset_bytes);
                    let cells = run.cells(to, target, &thread, true).map_err(failed)?;
                    run.note(to, target, &thread, || Touch::Copy);
                    cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(byte));
                }
                if self.changes(run, index) {
                    return Ok(Flow::Changed);
                }
            }
            Op::Branch { target } => {
                // Some lanes branch, and some do not.
                let group = &mut self.groups[index];
                group.pc = *target;
                let rest = Group { mask: mask & !active, pc: pc + 1, ..group.clone() };
                group.mask = active;
                self.groups.push(rest);
                if self.is_polling && *target <= pc {
                    self.stall(index);
                }
                return Ok(Flow::Changed);
            }
            Op::BranchTable { targets, index: slot } => {
                let numbers = *self.lanes(run, base, *slot);
                let first = active.trailing_zeros();
                let number = numbers[first as usize];
                let target = usize::try_from(number).ok().and_then(|number| targets.get(number));
                let wrong = Mistake::WrongIndex { index: number, len: targets.len() };
                let target = *target.ok_or((wrong, first))?;
                let same = bits(active)
                    .filter(|lane| numbers[*lane] == number)
                    .fold(0, |mask, lane| mask | 1 << lane);
                self.split_guarded(index, active);
                self.split(index, same).pc = target;
                return Ok(Flow::Changed);
            }
            Op::Call(call) => {
                self.split_guarded(index, active);
                self.call(run, index, active, call)?;
                return Ok(Flow::Changed);
            }
            Op::Return => {
                self.split_guarded(index, active);
                self.leave(run, index, active);
                return Ok(Flow::Changed);
            }
            Op::Exit => {
                self.split_guarded(index, active);
                self.end(index, active);
                return Ok(Flow::Changed);
            }
            Op::Fence(order) => {
                if let Some(checker) = &mut run.checker {
                    let first = self.number * LANES as u32;
                    bits(active).for_each(|lane| checker.fence(first + lane as u32, *order, run.steps));
                }
            }
            // Copies are done at once, which is one of the times at which they may be.
            Op::CommitCopies => {
                if let Some(checker) = &mut run.checker {
                    let first = self.number * LANES as u32;
                    bits(active).for_each(|lane| checker.commit_copies(first + lane as u32));
                }
            }
            Op::WaitForCopies { pending } => {
                if let Some(checker) = &mut run.checker {
                    let first = self.number * LANES as u32;
                    bits(active)
                        .for_each(|lane| checker.wait_for_copies(first + lane as u32, *pending, run.steps));
                }
            }
            Op::Print { to, format, arguments, site } => {
                let [formats, arguments] = [format, arguments].map(|slot| *self.lanes(run, base, *slot));
                let routine = self.groups[index].frame.routine;
                for lane in bits(active) {
                    let thread = self.thread(lane, shared, local);
                    let count = run.print(formats[lane], (arguments[lane], routine), *site, &thread);
                    let count = count.map_err(|mistake| (mistake, lane as u32))?;
                    self.registers[(base + to) as usize][lane] = count.into();
                }
            }
            Op::Assert(assertion) => {
                let lane = active.trailing_zeros() as usize;
                let thread = self.thread(lane, shared, local);
                let value = |run: &Run<'_>, slot| self.lanes(run, base, slot)[lane];
                return Err((run.failed(assertion, value, &thread), lane as u32));
            }
            Op::Trap => return Err((Mistake::Trap, active.trailing_zeros())),
            Op::Barrier(barrier) => return self.barrier(run, barriers, index, active, barrier),
            Op::WarpBarrier { mask }
            | Op::MatchAny { mask, .. }
            | Op::MatchAll { mask, .. }
            | Op::Reduce { mask, .. }
            | Op::Elect { mask, .. } => return Ok(self.exchange(run, (index, active), Some(*mask), op)),
            Op::Shuffle(shuffle) => return Ok(self.exchange(run, (index, active), shuffle.mask, op)),
            Op::Vote { mask, .. } => return Ok(self.exchange(run, (index, active), *mask, op)),
            Op::Matrix(matrix) => {
                // All lanes execute it at one place.
                if active != self.alive() {
                    self.split_guarded(index, active);
                    self.groups[index].waiting = Waiting::Lanes;
                    return Ok(Flow::Changed);
                }
                self.matrix(run, shared, active, (local, base), matrix)?;
                if matches!(**matrix, Matrix::StoreRows { .. } | Matrix::Store { .. }) {
                    // All lanes are here, so none of the warp waits for it.
                    self.changes(run, index);
                }
            }
            Op::ActiveMask { to } => self.write(base + to, &[u64::from(active); LANES], active),
            Op::Clock { to, part } => {
                let now = match part {
                    ClockPart::Low => run.steps & 0xffff_ffff,
                    ClockPart::High => run.steps >> 32,
                    ClockPart::Whole => run.steps,
                };
                self.write(base + to, &[now; LANES], active);
            }
        }
        Ok(Flow::Next)
    }

    /// The memory of a thread.
    pub(crate) fn thread<'b>(
        &'b self,
        lane: usize,
        shared: &'b [Cell<u8>],
        frame: LocalFrame,
    ) -> ThreadMemory<'b> {
        let local = &self.local[lane * self.stride..][..(frame.start + frame.bytes) as usize];
        ThreadMemory { shared, local, frame: frame.start, number: self.number * LANES as u32 + lane as u32 }
    }

    /// Sends the lanes of a group for which the guard does not hold on to the next instruction.
    pub(crate) fn split_guarded(&mut self, index: usize, active: u32) {
        let group = &mut self.groups[index];
        if group.mask != active {
            let rest = Group { mask: group.mask & !active, pc: group.pc + 1, ..group.clone() };
            group.mask = active;
            self.groups.push(rest);
        }
    }

    /// The mistake of lanes that wait at a barrier for the rest of their warp, which does not come.
    fn divergence(&mut self, run: &mut Run<'_>) -> Option<Stopped> {
        let waiting = self.groups.iter().position(|group| group.waiting == Waiting::Warp)?;
        let (pc, mask, base) = {
            let group = &self.groups[waiting];
            (group.pc, group.mask, group.frame.registers)
        };
        let Op::Barrier(barrier) = &run.program.steps[pc as usize].op else { return None };
        let first = mask.trailing_zeros();
        let number = self.lanes(run, base, barrier.number)[first as usize] as u32;
        let lane = self.missed.unwrap_or_else(|| (self.alive() & !mask).trailing_zeros());
        let warp = self.number * LANES as u32;
        let missing = place(u64::from(warp + lane), run.launch.block);
        let mistake = Mistake::Divergence { number, missing };
        Some(Stopped { mistake, step: pc, thread: warp + first })
    }

    /// Lanes wait at a barrier at which none of the warp did last.
    fn wait_at(&mut self, run: &mut Run<'_>, place: u32) {
        let surroundings = run.surroundings(place);
        for group in self.groups.iter().filter(|group| group.waiting != Waiting::Warp) {
            let reached = surroundings.reached_at(group.place());
            bits(group.mask).for_each(|lane| self.reached[lane] = reached);
        }
        self.surroundings = Some((place, surroundings));
        self.passing = 0;
    }

    fn barrier(
        &mut self,
        run: &mut Run<'_>,
        barriers: &mut Barriers,
        index: usize,
        active: u32,
        barrier: &Barrier,
    ) -> Result<Flow, Failed> {
        let base = self.groups[index].frame.registers;
        let first = active.trailing_zeros();
        let number = self.lanes(run, base, barrier.number)[first as usize];
        if number >= BARRIERS {
            return Err((Mistake::WrongBarrier { number }, first));
        }
        if barrier.is_aligned && active != self.alive() {
            self.split_guarded(index, active);
            self.groups[index].waiting = Waiting::Warp;
            let place = self.groups[index].place();
            if self.surroundings.as_ref().is_none_or(|(of, _)| *of != place) {
                self.wait_at(run, place);
            }
            return Ok(Flow::Changed);
        }
        self.passing = 0;
        let pc = self.groups[index].pc;
        match self.arrived.iter_mut().find(|(step, _)| *step == pc) {
            Some((_, lanes)) => *lanes |= active,
            None => self.arrived.push((pc, active)),
        }
        let counts = barrier.count.map(|count| self.lanes(run, base, count));
        let numbers = self.lanes(run, base, barrier.number);
        let is_same = |lane: &usize| {
            numbers[*lane] == number && counts.is_none_or(|counts| counts[*lane] == counts[first as usize])
        };
        let same = bits(active).filter(is_same).fold(0, |mask, lane| mask | 1 << lane);
        if same != active && barrier.is_aligned {
            let other = self.number * LANES as u32 + (active & !same).trailing_zeros();
            let other = place(other.into(), run.launch.block);
            return Err((Mistake::BarrierOperands { other }, first));
        }
        if same != active {
            // Lanes at another barrier arrive there next.
            self.split_guarded(index, active);
            self.split(index, same);
            return self.barrier(run, barriers, index, same, barrier);
        }
        let is_arrive = matches!(barrier.kind, BarrierKind::Arrive);
        // A number of 0 stands for none, where there may be none.
        let expected = counts.map(|counts| counts[first as usize] as u32);
        let expected = expected.filter(|expected| *expected != 0 || is_arrive);
        let no = match barrier.kind {
            BarrierKind::Combine { input, .. } => !set_lanes(self.lanes(run, base, input)) & active,
            _ => 0,
        };
        let number = number as u32;
        let phase = barriers.phase(number);
        let (threads, alive) = (active.count_ones(), self.alive());
        let there = self.groups.iter().filter(|group| group.waiting == (Waiting::Barrier { number, phase }));
        let there = there.fold(active, |mask, group| mask | group.mask);
        // A stated number of threads counts whole warps: with its last lane, those of a warp that have ended or do not exist.
        let counted = match barrier.is_aligned {
            true => LANES as u32,
            false if there == alive => threads + LANES as u32 - alive.count_ones(),
            false => threads,
        };
        // At a barrier of the whole block, what each knew does not matter.
        if let Some(checker) = run.checker.as_mut().filter(|_| expected.is_some()) {
            let first = self.number * LANES as u32;
            checker.arrive((number, phase), bits(active).map(|lane| first + lane as u32), run.steps);
        }
        let is_combining = matches!(barrier.kind, BarrierKind::Combine { .. });
        let arrival = Arrival { number, threads, counted, expected, is_combining, no: no.count_ones() };
        let block = run.launch.block.into_iter().product::<u32>().next_multiple_of(LANES as u32);
        barriers.arrive(&arrival, block).map_err(|mistake| (mistake, first))?;
        self.split_guarded(index, active);
        if is_arrive {
            self.groups[index].pc += 1;
            return Ok(Flow::Changed);
        }
        self.groups[index].waiting = Waiting::Barrier { number, phase };
        Ok(Flow::Changed)
    }

    fn load(
        &mut self,
        run: &mut Run<'_>,
        shared: &[Cell<u8>],
        active: u32,
        (to, from, local): (&[Option<u32>], &Access, LocalFrame),
        base: u32,
    ) -> Result<(), Failed> {
        let addresses = *self.lanes(run, base, from.at);
        if let Some(together) = run.together(from, &addresses, active, shared, false) {
            for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                let offset = index * usize::from(from.bytes);
                together.read(offset, from.bytes, &mut self.registers[(base + to) as usize]);
            }
            return Ok(());
        }
        if let (Memory::Parameters, Slot::Constant(_)) = (from.space, from.at) {
            let address = addresses[0].wrapping_add_signed(from.offset_bytes);
            for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                let value = run.parameter(from, address, index as u8);
                let value = value.map_err(|mistake| (mistake, active.trailing_zeros()))?;
                self.write(base + to, &[value; LANES], active);
            }
            return Ok(());
        }
        for lane in bits(active) {
            let failed = |mistake| (mistake, lane as u32);
            let address = addresses[lane].wrapping_add_signed(from.offset_bytes);
            let parameter = match from.space {
                Memory::Parameters => Some(address),
                Memory::Generic => match by_window(address) {
                    (Memory::Parameters, address) => Some(address),
                    _ => None,
                },
                _ => None,
            };
            if let Some(address) = parameter {
                for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                    let value = run.parameter(from, address, index as u8).map_err(failed)?;
                    self.registers[(base + to) as usize][lane] = value;
                }
                continue;
            }
            let thread = self.thread(lane, shared, local);
            let cells = run.cells(from, address, &thread, false).map_err(failed)?;
            run.note(from, address, &thread, || Touch::Read);
            if let [Some(to)] = to {
                self.registers[(base + to) as usize][lane] = get(cells);
                continue;
            }
            let values: [u64; VECTOR_MAX] = core::array::from_fn(|index| match to.get(index) {
                Some(Some(_)) => element(cells, index, from.bytes),
                _ => 0,
            });
            for (to, value) in to.iter().zip(values).filter_map(|(to, value)| Some(((*to)?, value))) {
                self.registers[(base + to) as usize][lane] = value;
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        run: &mut Run<'_>,
        shared: &[Cell<u8>],
        active: u32,
        (values, to, local): (&[Slot], &Access, LocalFrame),
        base: u32,
    ) -> Result<(), Failed> {
        let addresses = *self.lanes(run, base, to.at);
        if let Some(together) = run.together(to, &addresses, active, shared, true) {
            for (index, value) in values.iter().enumerate() {
                let offset = index * usize::from(to.bytes);
                together.write(offset, to.bytes, self.lanes(run, base, *value));
            }
            return Ok(());
        }
        for lane in bits(active) {
            let address = addresses[lane].wrapping_add_signed(to.offset_bytes);
            let thread = self.thread(lane, shared, local);
            let cells = run.cells(to, address, &thread, true).map_err(|mistake| (mistake, lane as u32))?;
            if run.checker.is_some() {
                let is_same = values.iter().enumerate().all(|(index, value)| {
                    let kept = self.lanes(run, base, *value)[lane] << (64 - 8 * u32::from(to.bytes));
                    kept == element(cells, index, to.bytes) << (64 - 8 * u32::from(to.bytes))
                });
                run.note(to, address, &thread, || Touch::Write { is_same });
            }
            for (index, value) in values.iter().enumerate() {
                let value = lanes_of(&self.registers, &run.constants, &self.specials, base, *value)[lane];
                set_element(cells, index, to.bytes, value);
            }
        }
        Ok(())
    }
}

/// The lanes of which a predicate is set.
pub(crate) fn set_lanes(predicate: &Lanes) -> u32 {
    predicate.iter().enumerate().fold(0, |mask, (lane, value)| mask | ((value & 1) as u32) << lane)
}

/// The values of a special register.
fn special(special: Special, run: &Run<'_>, warp: u32, block: [u32; 3]) -> Lanes {
    let launch = &run.launch;
    let of_lanes = |f: &dyn Fn(u32) -> u32| core::array::from_fn(|lane| u64::from(f(lane as u32)));
    let threads: u32 = launch.block.into_iter().product();
    match special {
        Special::Thread(axis) => {
            of_lanes(&|lane| place(u64::from(warp * LANES as u32 + lane), launch.block)[usize::from(axis)])
        }
        Special::BlockSize(axis) => of_lanes(&|_| launch.block[usize::from(axis)]),
        Special::Block(axis) => of_lanes(&|_| block[usize::from(axis)]),
        Special::GridSize(axis) => of_lanes(&|_| launch.grid[usize::from(axis)]),
        Special::Lane => of_lanes(&|lane| lane),
        Special::Warp => of_lanes(&|_| warp),
        Special::WarpCount => of_lanes(&|_| threads.div_ceil(LANES as u32)),
        Special::Multiprocessor | Special::Zero | Special::Grid => [0; LANES],
        Special::MultiprocessorCount | Special::One => [1; LANES],
        Special::LanesEqual => of_lanes(&|lane| 1 << lane),
        Special::LanesLess => of_lanes(&|lane| (1 << lane) - 1),
        Special::LanesLessEqual => of_lanes(&|lane| u32::MAX >> (31 - lane)),
        Special::LanesGreater => of_lanes(&|lane| !(u32::MAX >> (31 - lane))),
        Special::LanesGreaterEqual => of_lanes(&|lane| !((1 << lane) - 1)),
        Special::DynamicSharedBytes => of_lanes(&|_| launch.shared_bytes),
        Special::TotalSharedBytes => {
            let declared = run.program.shared_bytes.next_multiple_of(run.program.dynamic_align);
            of_lanes(&|_| declared as u32 + launch.shared_bytes)
        }
    }
}
