//! Calls and returns: frames, and the values that go between them.

use crate::fault::Mistake;
use crate::number::Lanes;
use crate::program::{Call, Callee, FRAME_ALIGN, FUNCTIONS, Location, Op, Passed, Routine};
use crate::run::group::{Frame, Group, Waiting};
use crate::run::warp::{Warp, bits, lanes_of};
use crate::run::{HELD_BYTES_MAX, Run};
use core::cell::Cell;

impl Warp {
    /// Calls a function for the lanes of a group that call the same one; the others call later. `active` are those that call.
    pub(crate) fn call(
        &mut self,
        run: &mut Run<'_>,
        index: usize,
        active: u32,
        call: &Call,
    ) -> Result<(), (Mistake, u32)> {
        let group = &self.groups[index];
        let first = active.trailing_zeros();
        let (routine, mask) = match call.target {
            Callee::Routine(routine) => (routine, active),
            Callee::Register(slot) => {
                let targets =
                    *lanes_of(&self.registers, &run.constants, &self.specials, group.frame.registers, slot);
                let target = targets[first as usize];
                let routine = run.program.pointed.get(&target.wrapping_sub(FUNCTIONS)).copied();
                let routine = routine.ok_or((Mistake::WrongTarget(target), first))?;
                let [parameters, results] = &run.program.routines[routine as usize].sizes;
                let fits = |passed: &[Passed], sizes: &[u64]| {
                    passed.iter().map(|passed| u64::from(passed.size_bytes)).eq(sizes.iter().copied())
                };
                if !fits(&call.arguments, parameters) || !fits(&call.results, results) {
                    return Err((Mistake::WrongPrototype(target), first));
                }
                let same = bits(active)
                    .filter(|lane| targets[*lane] == target)
                    .fold(0, |mask, lane| mask | 1 << lane);
                (routine, same)
            }
        };
        let callee = &run.program.routines[routine as usize];
        let (pc, caller) = (group.pc, group.frame);
        let own = &run.program.routines[caller.routine as usize];
        let frame = Frame {
            routine,
            registers: caller.registers + own.registers,
            local: (caller.local + own.frame_bytes).next_multiple_of(FRAME_ALIGN),
            call: 0,
        };
        if group.callers.len() >= CALLS_MAX
            || frame.local + callee.frame_bytes > LOCAL_BYTES_MAX
            || frame.registers + callee.registers > REGISTERS_MAX
            || !self.make_room(run, &frame, callee)
        {
            return Err((Mistake::StackOverflow, first));
        }
        if let Some(checker) = &mut run.checker {
            let first = self.number * 32;
            bits(mask)
                .for_each(|lane| checker.enters_frame(first + lane as u32, frame.local, callee.frame_bytes));
        }
        for register in &callee.cleared {
            let register = &mut self.registers[(frame.registers + register) as usize];
            bits(mask).for_each(|lane| register[lane] = 0);
        }
        for (passed, location) in call.arguments.iter().zip(&callee.parameters) {
            self.pass(run, mask, passed.size_bytes, (passed.from, caller), (*location, frame));
        }
        // The callee has values of its own in the registers.
        self.undefined.remove_from(frame.registers, mask);
        let group = self.split(index, mask);
        group.callers.push(Frame { call: pc, ..caller });
        group.frame = frame;
        group.pc = callee.start;
        Ok(())
    }

    /// Returns from a function, or ends the lanes if they are in the kernel itself.
    pub(crate) fn leave(&mut self, run: &mut Run<'_>, index: usize, active: u32) {
        let group = &self.groups[index];
        let from = group.frame;
        let Some(&to) = group.callers.last() else { return self.end(index, active) };
        let routine = &run.program.routines[from.routine as usize];
        if let Op::Call(call) = &run.program.steps[to.call as usize].op {
            for (passed, location) in call.results.iter().zip(&routine.results) {
                self.pass(run, active, passed.size_bytes, (*location, from), (passed.from, to));
            }
        }
        let group = self.split(index, active);
        group.callers.pop();
        group.frame = Frame { call: 0, ..to };
        group.pc = to.call + 1;
    }

    /// Ends lanes.
    pub(crate) fn end(&mut self, index: usize, active: u32) {
        let group = &mut self.groups[index];
        group.mask &= !active;
        if group.mask == 0 {
            self.groups.swap_remove(index);
        } else {
            group.pc += 1;
        }
        for group in &mut self.groups {
            match group.waiting {
                Waiting::Warp if self.passing & active != 0 => {
                    self.missed = Some((self.passing & active).trailing_zeros());
                }
                // Those that have ended are not waited for.
                Waiting::Lanes | Waiting::Warp => group.waiting = Waiting::No,
                Waiting::No | Waiting::Change | Waiting::Barrier { .. } => {}
            }
        }
    }

    /// Makes a group of the lanes in `mask`, and gives it. The other lanes of the group stay at their place, to get there later.
    pub(crate) fn split(&mut self, index: usize, mask: u32) -> &mut Group {
        let rest = self.groups[index].mask & !mask;
        if rest != 0 {
            let other = Group { mask: rest, ..self.groups[index].clone() };
            self.groups.push(other);
            self.groups[index].mask = mask;
        }
        &mut self.groups[index]
    }

    /// Makes room for a frame. Returns false if the blocks that run hold too much memory for it.
    fn make_room(&mut self, run: &mut Run<'_>, frame: &Frame, callee: &Routine) -> bool {
        let registers = (frame.registers + callee.registers) as usize;
        let stride = (frame.local + callee.frame_bytes) as usize;
        if registers <= self.registers.len() && stride <= self.stride {
            return true;
        }
        let before = self.held_bytes();
        let wanted = registers * size_of::<Lanes>() + 32 * stride;
        if run.held_bytes.saturating_sub(before).saturating_add(wanted as u64) > HELD_BYTES_MAX {
            return false;
        }
        if self.registers.len() < registers {
            self.registers.resize(registers, [0; 32]);
        }
        if self.stride < stride {
            let stride = stride.next_power_of_two();
            let mut local = vec![Cell::new(0); stride * 32];
            for lane in 0..32 {
                let old = &self.local[lane * self.stride..(lane + 1) * self.stride];
                local[lane * stride..][..self.stride].clone_from_slice(old);
            }
            (self.local, self.stride) = (local, stride);
        }
        run.held_bytes = run.held_bytes.saturating_sub(before).saturating_add(self.held_bytes());
        true
    }

    /// Tells the checks that a value was passed in local memory.
    fn passed(&self, run: &mut Run<'_>, lane: usize, offset_bytes: u64, size_bytes: u32) {
        if let Some(checker) = &mut run.checker {
            checker.passed(self.number * 32 + lane as u32, offset_bytes, size_bytes.into());
        }
    }

    /// Copies a value from one frame to another.
    fn pass(
        &mut self,
        run: &mut Run<'_>,
        mask: u32,
        size_bytes: u32,
        (from, source): (Location, Frame),
        (to, target): (Location, Frame),
    ) {
        // A function that a register names may have parameters of other sizes.
        let room = |location: Location, frame: Frame| match location {
            Location::Slot(_) => u64::from(size_bytes),
            Location::Frame(offset) => {
                run.program.routines[frame.routine as usize].frame_bytes.saturating_sub(offset)
            }
        };
        let size = room(from, source).min(room(to, target)).min(size_bytes.into()) as usize;
        if size == 0 {
            return;
        }
        let slot = |warp: &Self, slot| -> Lanes {
            *lanes_of(&warp.registers, &run.constants, &warp.specials, source.registers, slot)
        };
        let place = |warp: &Self, lane: usize, frame: Frame, offset: u64| {
            lane * warp.stride + (frame.local + offset) as usize
        };
        match (from, to) {
            (Location::Slot(from), Location::Slot(crate::program::Slot::Register(to))) => {
                let value = slot(self, from);
                self.undefined.remove(target.registers + to, mask);
                self.write(target.registers + to, &value, mask);
            }
            (Location::Slot(from), Location::Frame(offset)) => {
                let value = slot(self, from);
                for lane in bits(mask) {
                    let start = place(self, lane, target, offset);
                    self.passed(run, lane, target.local + offset, size_bytes);
                    for (cell, byte) in self.local[start..].iter().zip(value[lane].to_le_bytes()).take(size) {
                        cell.set(byte);
                    }
                }
            }
            (Location::Frame(offset), Location::Slot(crate::program::Slot::Register(to))) => {
                let mut value = [0; 32];
                for lane in bits(mask) {
                    let start = place(self, lane, source, offset);
                    let cells = &self.local[start..][..size.min(8)];
                    value[lane] =
                        cells.iter().rev().fold(0, |value, cell| value << 8 | u64::from(cell.get()));
                }
                self.undefined.remove(target.registers + to, mask);
                self.write(target.registers + to, &value, mask);
            }
            (Location::Frame(from), Location::Frame(to)) => {
                for lane in bits(mask) {
                    if let Some(checker) = &mut run.checker {
                        let thread = self.number * 32 + lane as u32;
                        checker.passed_on(thread, source.local + from, target.local + to, size as u64);
                    }
                    let (from, to) = (place(self, lane, source, from), place(self, lane, target, to));
                    for byte in 0..size {
                        self.local[to + byte].set(self.local[from + byte].get());
                    }
                }
            }
            _ => {}
        }
    }
}

/// The registers of all calls in each other, at most.
const REGISTERS_MAX: u32 = 1 << 18;
/// The calls in each other, and the local memory of a thread, at most.
const CALLS_MAX: usize = 4096;
const LOCAL_BYTES_MAX: u64 = 512 << 10;
