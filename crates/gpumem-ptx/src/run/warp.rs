//! A warp: its registers, its groups, and what each instruction does to them.

use crate::check::Checker;
use crate::fault::{Mistake, place};
use crate::number::integer::{inserted, lop3};
use crate::number::{Alu, LANES, Lanes};
use crate::program::{ClockPart, Memory, Op, Slot, Special};
use crate::run::access::{LocalFrame, ThreadMemory};
use crate::run::block::Barriers;
use crate::run::group::{self, Frame, Group, Waiting};
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
    pub(crate) surroundings: Option<(u32, Rc<Surroundings>)>,
    /// How far the lanes have come that were not there.
    pub(crate) reached: Reached,
    /// The lanes that have gone around it while others waited.
    pub(crate) passing: u32,
    /// The barriers at which the warp has arrived, with all lanes that did.
    pub(crate) arrived: Vec<(u32, u32)>,
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

/// The mistake of an instruction, and its lane.
pub(crate) type Failed = (Mistake, u32);

/// The lanes that execute an instruction, their registers, and the memory of a block and of a call that they may access.
#[derive(Clone, Copy)]
pub(crate) struct Executing<'s> {
    pub(crate) lanes: u32,
    /// The first register of the frame.
    pub(crate) base: u32,
    pub(crate) shared: &'s [Cell<u8>],
    pub(crate) local: LocalFrame,
}

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
                        let flow = self.execute(run, (shared, barriers), (index, active), op);
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
    pub(crate) fn polls(&mut self, step: u32, address: u64) {
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

    /// A group has changed memory that others see. Those that wait for it go on.
    pub(crate) fn changes(&mut self, run: &mut Run<'_>, index: usize) -> Flow {
        run.is_memory_changed = true;
        self.is_polling = false;
        if !self.wake() {
            return Flow::Next;
        }
        self.groups[index].pc += 1;
        Flow::Changed
    }

    pub(crate) fn lanes<'a>(&'a self, run: &'a Run<'_>, base: u32, slot: Slot) -> &'a Lanes {
        lanes_of(&self.registers, &run.constants, &self.specials, base, slot)
    }

    /// Does an instruction, other than arithmetic, for the lanes `active`, of which there is at least one.
    fn execute(
        &mut self,
        run: &mut Run<'_>,
        (shared, barriers): (&[Cell<u8>], &mut Barriers),
        (index, active): (usize, u32),
        op: &Op,
    ) -> Result<Flow, Failed> {
        let Frame { registers: base, local: start, routine, .. } = self.groups[index].frame;
        let local = LocalFrame { start, bytes: run.program.routines[routine as usize].frame_bytes };
        let on = Executing { lanes: active, base, shared, local };
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
                self.write(base + to, &[start.wrapping_add(*offset_bytes); LANES], active);
            }
            Op::ActiveMask { to } => self.write(base + to, &[u64::from(active); LANES], active),
            Op::Clock { to, part } => self.write(base + to, &[clock(run.steps, *part); LANES], active),
            // Memory: `transfer.rs`, `matrix.rs`, `print.rs`.
            Op::Load { to, from } => self.load(run, on, to, from)?,
            Op::Store { values, to } => {
                self.store(run, on, values, to)?;
                if !matches!(to.space, Memory::Local | Memory::Frame) {
                    return Ok(self.changes(run, index));
                }
            }
            Op::Atomic { function, in_shared, to, at, inputs } => {
                if self.atomic(run, on, [*function, *in_shared], *to, at, *inputs)? {
                    return Ok(self.changes(run, index));
                }
            }
            Op::Copy { to, from, size_bytes, source_bytes } => {
                self.copy(run, on, [to, from], *size_bytes, *source_bytes)?;
                return Ok(self.changes(run, index));
            }
            Op::Matrix(matrix) => return self.matrix(run, on, index, matrix),
            Op::Print { to, format, arguments, site } => {
                self.print(run, on, routine, *to, [*format, *arguments], *site)?;
            }
            // What the checks alone see. Copies are done at once, which is one of the times at which they may be.
            Op::Fence(order) => self.check(run, active, |checker, thread, time| {
                checker.fence(thread, *order, time);
            }),
            Op::CommitCopies => self.check(run, active, |checker, thread, _| checker.commit_copies(thread)),
            Op::WaitForCopies { pending } => self.check(run, active, |checker, thread, time| {
                checker.wait_for_copies(thread, *pending, time);
            }),
            // Where lanes go: here and in `call.rs`.
            Op::Branch { target } => return Ok(self.branch(index, active, *target)),
            Op::BranchTable { targets, index: slot } => {
                return self.branch_by_table(run, (index, active), targets, *slot);
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
            Op::Trap => return Err((Mistake::Trap, active.trailing_zeros())),
            Op::Assert(assertion) => {
                let lane = active.trailing_zeros() as usize;
                let thread = self.thread(lane, shared, local);
                let value = |run: &Run<'_>, slot| self.lanes(run, base, slot)[lane];
                return Err((run.failed(assertion, value, &thread), lane as u32));
            }
            // Lanes and warps that wait for each other: `barrier.rs`, `exchange.rs`.
            Op::Barrier(barrier) => return self.barrier(run, barriers, index, active, barrier),
            Op::WarpBarrier { mask }
            | Op::MatchAny { mask, .. }
            | Op::MatchAll { mask, .. }
            | Op::Reduce { mask, .. }
            | Op::Elect { mask, .. } => return Ok(self.exchange(run, (index, active), Some(*mask), op)),
            Op::Shuffle(shuffle) => return Ok(self.exchange(run, (index, active), shuffle.mask, op)),
            Op::Vote { mask, .. } => return Ok(self.exchange(run, (index, active), *mask, op)),
        }
        Ok(Flow::Next)
    }

    /// Tells the checks what threads do.
    fn check(&self, run: &mut Run<'_>, active: u32, mut tell: impl FnMut(&mut Checker<'_>, u32, u64)) {
        if let Some(checker) = &mut run.checker {
            let first = self.number * LANES as u32;
            bits(active).for_each(|lane| tell(checker, first + lane as u32, run.steps));
        }
    }

    /// Some lanes of a group branch, and some do not.
    fn branch(&mut self, index: usize, active: u32, target: u32) -> Flow {
        let group = &mut self.groups[index];
        let pc = core::mem::replace(&mut group.pc, target);
        let rest = Group { mask: group.mask & !active, pc: pc + 1, ..group.clone() };
        group.mask = active;
        self.groups.push(rest);
        if self.is_polling && target <= pc {
            self.stall(index);
        }
        Flow::Changed
    }

    /// Lanes branch to the places that a table has for their numbers: first those with the number of the first lane.
    fn branch_by_table(
        &mut self,
        run: &Run<'_>,
        (index, active): (usize, u32),
        targets: &[u32],
        slot: Slot,
    ) -> Result<Flow, Failed> {
        let numbers = *self.lanes(run, self.groups[index].frame.registers, slot);
        let first = active.trailing_zeros();
        let number = numbers[first as usize];
        let target = usize::try_from(number).ok().and_then(|number| targets.get(number));
        let wrong = Mistake::WrongIndex { index: number, len: targets.len() };
        let target = *target.ok_or((wrong, first))?;
        let same =
            bits(active).filter(|lane| numbers[*lane] == number).fold(0, |mask, lane| mask | 1 << lane);
        self.split_guarded(index, active);
        self.split(index, same).pc = target;
        Ok(Flow::Changed)
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
}

/// The lanes of which a predicate is set.
pub(crate) fn set_lanes(predicate: &Lanes) -> u32 {
    predicate.iter().enumerate().fold(0, |mask, (lane, value)| mask | ((value & 1) as u32) << lane)
}

/// What a clock shows. It counts steps.
fn clock(steps: u64, part: ClockPart) -> u64 {
    match part {
        ClockPart::Low => steps & 0xffff_ffff,
        ClockPart::High => steps >> 32,
        ClockPart::Whole => steps,
    }
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
        Special::MultiprocessorCount => of_lanes(&|_| launch.multiprocessors),
        Special::One => [1; LANES],
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
