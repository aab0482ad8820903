//! What lanes that others wait for at a barrier run, while they are not there.
//!
//! Lanes that end are not waited for, and a kernel may end some of them early. But lanes that go around a barrier, and then run what those at
//! the barrier will run too, have evaluated the condition of the barrier in another way, which `bar.sync` does not allow: all threads of a
//! warp execute the same one (PTX ISA, `barrier`). From Volta on, each thread has a program counter of its own, and where lanes reconverge
//! is up to the compiler and the scheduler. So lanes may come to the barrier by several ways and one after the other, and may end before it.
//!
//! A step comes behind the barrier in any case if it is on every way from there to the end (it post-dominates the barrier). In a loop, it may
//! also be on every way to the barrier (it dominates it). Lanes that run such a step for the first time are still on their way, as the waiting
//! ones were when they ran it. The second time, they have gone around.

use crate::number::LANES;
use crate::program::Program;
use std::collections::HashSet;

/// The steps of a kernel, as seen from one of its barriers.
pub(crate) struct Surroundings {
    steps: Vec<Passing>,
    /// For each step, how many of those on every way to the barrier are on every way to the step.
    before: Vec<u32>,
}

/// What a lane says by running a step, if it was never at the barrier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    Nothing,
    /// It has gone around the barrier.
    Around,
    /// It has gone around the barrier if it has run the step before: it is the one with this number of those on every way to the barrier.
    Again(u32),
}

/// How far each lane has come on the ways to a barrier: the steps on every one of them that it has run.
pub(crate) type Reached = [u32; LANES];

impl Surroundings {
    pub(crate) fn of(program: &Program, barrier: u32) -> Self {
        let behind = common_behind(program, barrier);
        let steps: Vec<Passing> = behind
            .into_iter()
            .map(|is_behind| if is_behind { Passing::Around } else { Passing::Nothing })
            .collect();
        let mut surroundings = Self { steps, before: Vec::new() };
        if surroundings.steps.contains(&Passing::Around) {
            surroundings.find_ways_to(program, barrier);
        }
        surroundings
    }

    /// Finds the steps that are on every way to the barrier as well as behind it.
    fn find_ways_to(&mut self, program: &Program, barrier: u32) {
        let dominators = Dominators::of(program);
        let above = |step: u32| dominators.of[step as usize].filter(|above| *above != step);
        let mut chain: Vec<u32> = core::iter::successors(above(barrier), |step| above(*step)).collect();
        let is_looping = dominators.loops_before(barrier, &chain);
        chain.retain(|step| {
            let is_behind = self.steps[*step as usize] == Passing::Around;
            if is_looping[*step as usize] {
                self.steps[*step as usize] = Passing::Nothing;
            }
            is_behind && !is_looping[*step as usize]
        });
        if chain.is_empty() {
            return;
        }
        for (number, step) in chain.into_iter().rev().enumerate() {
            self.steps[step as usize] = Passing::Again(number as u32);
        }
        self.before = vec![0; program.steps.len()];
        for &step in &dominators.order {
            if let Some(above) = above(step) {
                let counts = matches!(self.steps[above as usize], Passing::Again(_));
                self.before[step as usize] = self.before[above as usize] + u32::from(counts);
            }
        }
    }

    /// The steps on every way to the barrier that a lane at this step has run in any case.
    pub(crate) fn reached_at(&self, step: u32) -> u32 {
        self.before.get(step as usize).copied().unwrap_or(0)
    }

    /// Of lanes that run a step, those that have gone around the barrier.
    #[inline]
    pub(crate) fn gone_around(&self, step: u32, lanes: u32, reached: &mut Reached) -> u32 {
        match self.steps[step as usize] {
            Passing::Nothing => 0,
            Passing::Around => lanes,
            Passing::Again(number) => {
                let mut again = 0;
                for (lane, reached) in
                    reached.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1)
                {
                    if *reached > number {
                        again |= 1 << lane;
                    } else {
                        *reached = number + 1;
                    }
                }
                again
            }
        }
    }
}

/// For each step of the kernel, the last other one that is on every way to it.
struct Dominators {
    /// The steps that the kernel can run, each behind one that leads to it (in reverse postorder).
    order: Vec<u32>,
    /// The first step has itself. A step that the kernel does not run has none.
    of: Vec<Option<u32>>,
    /// The steps that lead to each.
    before: Vec<Vec<u32>>,
    /// The places of the steps in the order.
    index_of: Vec<usize>,
}

impl Dominators {
    /// The steps of loops that lie on the way to a barrier, and do not contain it. `above` are the steps on every way to it.
    fn loops_before(&self, barrier: u32, above: &[u32]) -> Vec<bool> {
        let Self { before, index_of, .. } = self;
        let mut is_above = vec![false; before.len()];
        above.iter().for_each(|step| is_above[*step as usize] = true);
        let mut is_looping = vec![false; before.len()];
        for head in above {
            let first = index_of[*head as usize];
            let backs = before[*head as usize].iter().filter(|back| index_of[**back as usize] >= first);
            // What leads back to the head from a step on every way to the barrier is a loop of its own, that may have the head of another one.
            let (own, others): (Vec<u32>, Vec<u32>) = backs.partition(|back| is_above[**back as usize]);
            let all = own.into_iter().map(|back| vec![back]).chain([others]);
            for backs in all.filter(|backs| !backs.is_empty()) {
                let mut found = vec![*head];
                let mut is_found = HashSet::from([*head]);
                let mut open = backs;
                while let Some(step) = open.pop() {
                    if index_of[step as usize] >= first && is_found.insert(step) {
                        found.push(step);
                        open.extend(&before[step as usize]);
                    }
                }
                if !is_found.contains(&barrier) {
                    found.iter().for_each(|step| is_looping[*step as usize] = true);
                }
            }
        }
        is_looping
    }

    /// By the algorithm of Cooper, Harvey and Kennedy.
    fn of(program: &Program) -> Self {
        let len = program.steps.len();
        let start = program.routines[0].start;
        let mut order = Vec::new();
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); len];
        let mut is_seen = vec![false; len];
        let mut open = vec![(start, program.successors(start).0)];
        is_seen[start as usize] = true;
        while let Some((step, nexts)) = open.last_mut() {
            let step = *step;
            let Some(next) = nexts.pop() else {
                order.push(step);
                open.pop();
                continue;
            };
            before[next as usize].push(step);
            if !core::mem::replace(&mut is_seen[next as usize], true) {
                open.push((next, program.successors(next).0));
            }
        }
        order.reverse();
        let mut index_of = vec![usize::MAX; len];
        order.iter().enumerate().for_each(|(index, step)| index_of[*step as usize] = index);
        let mut of: Vec<Option<u32>> = vec![None; len];
        of[start as usize] = Some(start);
        let mut is_changed = true;
        while core::mem::take(&mut is_changed) {
            for step in &order[1..] {
                let mut found: Option<u32> = None;
                for other in before[*step as usize].iter().filter(|other| of[**other as usize].is_some()) {
                    found = Some(match found {
                        Some(found) => common(&of, &index_of, found, *other),
                        None => *other,
                    });
                }
                if of[*step as usize] != found {
                    of[*step as usize] = found;
                    is_changed = true;
                }
            }
        }
        Self { order, of, before, index_of }
    }
}

/// The last step that is on every way to both.
fn common(of: &[Option<u32>], index_of: &[usize], mut one: u32, mut other: u32) -> u32 {
    while one != other {
        let later = if index_of[one as usize] > index_of[other as usize] { &mut one } else { &mut other };
        match of[*later as usize] {
            Some(above) if above != *later => *later = above,
            _ => return *later,
        }
    }
    one
}

/// The steps of the kernel that come behind a step on every way to the end, without those that end it.
pub(crate) fn common_behind(program: &Program, step: u32) -> Vec<bool> {
    let mut common = vec![false; program.steps.len()];
    let starts = program.successors(step).0;
    let Some(way) = way_to_the_end(program, &starts) else { return common };
    // Where a step is on that one way.
    let mut index_of = vec![usize::MAX; program.steps.len()];
    way.iter().enumerate().for_each(|(index, step)| index_of[*step as usize] = index);
    let mut is_seen = vec![false; program.steps.len()];
    // The last step of the way that another way comes to, without those between.
    let mut furthest = 0;
    let mut open: Vec<u32> = starts;
    for (index, step) in way.iter().enumerate() {
        while let Some(next) = open.pop() {
            match index_of[next as usize] {
                usize::MAX if core::mem::replace(&mut is_seen[next as usize], true) => {}
                usize::MAX => {
                    let (nexts, may_end) = program.successors(next);
                    if may_end {
                        return common;
                    }
                    open.extend(nexts);
                }
                reached => furthest = furthest.max(reached),
            }
        }
        let (nexts, may_end) = program.successors(*step);
        if furthest == index && !may_end {
            common[*step as usize] = true;
        }
        if may_end {
            return common;
        }
        open.extend(nexts);
    }
    common
}

/// A shortest way from one of several steps to an end.
fn way_to_the_end(program: &Program, starts: &[u32]) -> Option<Vec<u32>> {
    let mut before = vec![None; program.steps.len()];
    let mut found: Vec<u32> = Vec::new();
    for start in starts {
        if before[*start as usize].replace(*start).is_none() {
            found.push(*start);
        }
    }
    let mut next = 0;
    while let Some(&step) = found.get(next) {
        let (nexts, may_end) = program.successors(step);
        if may_end {
            let mut way = vec![step];
            while let Some(Some(earlier)) = way.last().map(|last| before[*last as usize])
                && Some(&earlier) != way.last()
            {
                way.push(earlier);
            }
            way.reverse();
            return Some(way);
        }
        for other in nexts {
            if before[other as usize].is_none() {
                before[other as usize] = Some(step);
                found.push(other);
            }
        }
        next += 1;
    }
    None
}
