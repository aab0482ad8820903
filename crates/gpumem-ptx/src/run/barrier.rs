//! Barriers of the block, as a warp comes to them: together, or lane by lane.

use crate::fault::{Mistake, place};
use crate::number::LANES;
use crate::program::{BARRIERS, Barrier, BarrierKind, Op};
use crate::run::block::{Arrival, Barriers};
use crate::run::group::Waiting;
use crate::run::surroundings::Surroundings;
use crate::run::warp::{Failed, Flow, Warp, bits, set_lanes};
use crate::run::{Run, Stopped};
use std::rc::Rc;

impl Warp {
    /// If lanes wait for the rest of the warp: the lanes that were never at that barrier, and the steps around it.
    pub(crate) fn lanes_waited_for(&self) -> Option<(u32, Rc<Surroundings>)> {
        let waiting = self.groups.iter().find(|group| group.waiting == Waiting::Warp)?;
        let arrived =
            self.arrived.iter().find(|(step, _)| *step == waiting.pc).map_or(0, |(_, lanes)| *lanes);
        let (_, surroundings) = self.surroundings.as_ref()?;
        Some((!arrived, Rc::clone(surroundings)))
    }

    /// The mistake of lanes that wait at a barrier for the rest of their warp, which does not come.
    pub(crate) fn divergence(&mut self, run: &mut Run<'_>) -> Option<Stopped> {
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

    pub(crate) fn barrier(
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
        // Those that wait arrive for the checks when it opens.
        if let Some(checker) = run.checker.as_mut().filter(|_| is_arrive) {
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
}
