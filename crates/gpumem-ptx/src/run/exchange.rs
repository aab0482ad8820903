//! Instructions between the lanes of a warp: `shfl`, `vote`, `match`, `redux`, `elect`, `bar.warp.sync`.
//!
//! Lanes that an instruction names execute it together. They may be at several places of the text: what counts is that each executes the same
//! instruction with the same mask.

use crate::fault::Mistake;
use crate::number::{LANES, Lanes};
use crate::program::{Op, Shuffle, ShuffleKind, Slot, Vote};
use crate::run::Run;
use crate::run::group::{Group, Waiting};
use crate::run::undefined::Origin;
use crate::run::warp::{Flow, Warp, bits, set_lanes};

/// Lanes at one place that take part.
#[derive(Clone, Copy)]
struct Party {
    /// The group's number.
    index: usize,
    step: u32,
    /// The first register of its frame.
    base: u32,
    lanes: u32,
}

/// All lanes that execute an instruction together.
struct Meeting {
    own: Party,
    /// Those at other places.
    others: Vec<Party>,
    /// The mask that each of them states; `None` for an instruction without one.
    named: Option<Lanes>,
}

impl Meeting {
    fn parties(&self) -> impl Iterator<Item = &Party> {
        core::iter::once(&self.own).chain(&self.others)
    }

    fn lanes(&self) -> u32 {
        self.parties().fold(0, |lanes, party| lanes | party.lanes)
    }

    /// The lanes that a lane executes it with.
    fn with(&self, lane: usize) -> u32 {
        self.lanes() & self.named.map_or(u32::MAX, |named| named[lane] as u32)
    }

    /// A value for each lane, of the lanes that take part with it.
    fn by_mask(&self, f: impl Fn(u32) -> u32) -> Lanes {
        let lanes = self.lanes();
        let Some(named) = &self.named else { return [u64::from(f(lanes)); LANES] };
        let mut known = (0, 0);
        core::array::from_fn(|lane| {
            let with = lanes & named[lane] as u32;
            if known.0 != with {
                known = (with, f(with));
            }
            u64::from(known.1)
        })
    }
}

impl Warp {
    /// Does an instruction for the lanes `active` of a group, and for those at other places that wait for them.
    pub(crate) fn exchange(
        &mut self,
        run: &mut Run<'_>,
        (index, active): (usize, u32),
        mask: Option<Slot>,
        op: &Op,
    ) -> Flow {
        let Some(meeting) = self.meet(run, (index, active), mask, op) else { return Flow::Changed };
        if !matches!(op, Op::Shuffle(_)) {
            self.note_masks(run, &meeting);
        }
        match op {
            Op::WarpBarrier { .. } => self.meet_at_barrier(run, &meeting),
            Op::Shuffle(shuffle) => self.shuffle(run, &meeting, shuffle),
            Op::Vote { kind, .. } => {
                let votes = self.gather(run, &meeting, |op| match op {
                    Op::Vote { input, .. } => Some(*input),
                    _ => None,
                });
                let yes = set_lanes(&votes);
                let value = meeting.by_mask(|lanes| {
                    let yes = yes & lanes;
                    match kind {
                        Vote::All => u32::from(yes == lanes),
                        Vote::Any => u32::from(yes != 0),
                        Vote::Uniform => u32::from(yes == 0 || yes == lanes),
                        Vote::Ballot => yes,
                        Vote::Count => yes.count_ones(),
                    }
                });
                self.scatter(run, &meeting, &value, |op| match op {
                    Op::Vote { to, .. } => Some(*to),
                    _ => None,
                });
            }
            Op::MatchAny { .. } => {
                let values = self.gather(run, &meeting, |op| match op {
                    Op::MatchAny { input, .. } => Some(*input),
                    _ => None,
                });
                let value = core::array::from_fn(|lane| {
                    let equal = bits(meeting.with(lane)).filter(|other| values[*other] == values[lane]);
                    equal.fold(0, |mask, lane| mask | 1 << lane)
                });
                self.scatter(run, &meeting, &value, |op| match op {
                    Op::MatchAny { to, .. } => Some(*to),
                    _ => None,
                });
            }
            Op::MatchAll { .. } => {
                let values = self.gather(run, &meeting, |op| match op {
                    Op::MatchAll { input, .. } => Some(*input),
                    _ => None,
                });
                let equal: Lanes = core::array::from_fn(|lane| {
                    let lanes = meeting.with(lane);
                    if bits(lanes).all(|other| values[other] == values[lane]) { u64::from(lanes) } else { 0 }
                });
                self.scatter(run, &meeting, &equal, |op| match op {
                    Op::MatchAll { to, .. } => *to,
                    _ => None,
                });
                self.scatter(run, &meeting, &equal.map(|lanes| u64::from(lanes != 0)), |op| match op {
                    Op::MatchAll { is_equal, .. } => *is_equal,
                    _ => None,
                });
            }
            Op::Reduce { function, .. } => {
                let values = self.gather(run, &meeting, |op| match op {
                    Op::Reduce { input, .. } => Some(*input),
                    _ => None,
                });
                let value = core::array::from_fn(|lane| {
                    bits(meeting.with(lane)).map(|lane| values[lane]).reduce(function).unwrap_or(0)
                });
                self.scatter(run, &meeting, &value, |op| match op {
                    Op::Reduce { to, .. } => Some(*to),
                    _ => None,
                });
            }
            Op::Elect { .. } => {
                let leader = meeting.by_mask(u32::trailing_zeros);
                self.scatter(run, &meeting, &leader, |op| match op {
                    Op::Elect { to, .. } => *to,
                    _ => None,
                });
                let is_leader = core::array::from_fn(|lane| u64::from(leader[lane] == lane as u64));
                self.scatter(run, &meeting, &is_leader, |op| match op {
                    Op::Elect { is_elected, .. } => *is_elected,
                    _ => None,
                });
            }
            _ => {}
        }
        if meeting.others.is_empty() && meeting.own.lanes == active {
            return Flow::Next;
        }
        for party in meeting.parties() {
            let group = &mut self.groups[party.index];
            (group.waiting, group.pc) = (Waiting::No, party.step + 1);
        }
        Flow::Changed
    }

    /// The lanes that execute an instruction together with those of a group. `None` if lanes that it names are elsewhere: then the group waits
    /// for them.
    fn meet(
        &mut self,
        run: &Run<'_>,
        (index, active): (usize, u32),
        mask: Option<Slot>,
        op: &Op,
    ) -> Option<Meeting> {
        let group = &self.groups[index];
        let mut own = Party { index, step: group.pc, base: group.frame.registers, lanes: active };
        let mut named = mask.map(|mask| *self.lanes(run, own.base, mask));
        let mut others = Vec::new();
        let is_whole = active == group.mask && self.groups.len() == 1;
        if let Some(named) = named.as_mut().filter(|_| !is_whole) {
            let alive = self.alive();
            own.lanes = lanes_of_one_wait(named, active, alive);
            if own.lanes != active {
                self.split_guarded(index, active);
                self.split_waiting(index, own.lanes);
            }
            let mut there = own.lanes;
            loop {
                let wanted = bits(there).fold(0, |mask, lane| mask | named[lane] as u32) & alive;
                let missing = wanted & !there;
                if missing == 0 {
                    break;
                }
                let Some((party, masks)) = self.party_of(run, missing, (there, named), op) else {
                    self.split_guarded(index, own.lanes);
                    self.groups[index].waiting = Waiting::Lanes;
                    return None;
                };
                bits(party.lanes).for_each(|lane| named[lane] = masks[lane]);
                there |= party.lanes;
                others.push(party);
            }
        }
        if !others.is_empty() {
            // Those that execute the next instruction later must not count as having executed this one.
            self.split_guarded(index, own.lanes);
        }
        Some(Meeting { own, others, named })
    }

    /// Leaves lanes of a group at their place, in a group of their own.
    fn split_waiting(&mut self, index: usize, lanes: u32) {
        let group = &mut self.groups[index];
        let rest = Group { mask: group.mask & !lanes, ..group.clone() };
        group.mask = lanes;
        self.groups.push(rest);
    }

    /// A group at another place that waits at the same instruction with the same mask, and has some of the lanes that are missing.
    fn party_of(
        &self,
        run: &Run<'_>,
        missing: u32,
        (there, named): (u32, &Lanes),
        op: &Op,
    ) -> Option<(Party, Lanes)> {
        let waiting = self.groups.iter().enumerate().filter(|(_, group)| group.waiting == Waiting::Lanes);
        waiting.filter(|(_, group)| group.mask & missing != 0).find_map(|(index, group)| {
            let (step, base) = (group.pc, group.frame.registers);
            let masks = *self.lanes(run, base, same_exchange(op, &run.program.steps[step as usize].op)?);
            let is_same = |lane| bits(there).any(|own| named[own] as u32 == masks[lane] as u32);
            let party = Party { index, step, base, lanes: group.mask };
            bits(group.mask & missing).all(is_same).then_some((party, masks))
        })
    }

    /// The values of an operand, of each lane at its place.
    fn gather(&self, run: &Run<'_>, meeting: &Meeting, operand: impl Fn(&Op) -> Option<Slot>) -> Lanes {
        let mut values = [0; LANES];
        for (number, party) in meeting.parties().enumerate() {
            let Some(slot) = operand(&run.program.steps[party.step as usize].op) else { continue };
            let of_party = self.lanes(run, party.base, slot);
            if number == 0 {
                values = *of_party;
            } else {
                bits(party.lanes).for_each(|lane| values[lane] = of_party[lane]);
            }
        }
        values
    }

    /// Writes a result, of each lane at its place.
    fn scatter(
        &mut self,
        run: &Run<'_>,
        meeting: &Meeting,
        value: &Lanes,
        target: impl Fn(&Op) -> Option<u32>,
    ) {
        for party in meeting.parties() {
            if let Some(to) = target(&run.program.steps[party.step as usize].op) {
                self.write(party.base + to, value, party.lanes);
            }
        }
    }

    /// Reports lanes that their own masks leave out, for which the instruction has no meaning.
    fn note_masks(&self, run: &mut Run<'_>, meeting: &Meeting) {
        let (Some(named), Some(checker)) = (&meeting.named, &mut run.checker) else { return };
        for party in meeting.parties() {
            for lane in bits(party.lanes).filter(|lane| named[*lane] >> lane & 1 == 0) {
                let thread = self.number * LANES as u32 + lane as u32;
                let mistake = Mistake::NotInMask { mask: named[lane] as u32 };
                checker.report((party.step, thread), party.step, mistake);
            }
        }
    }

    fn meet_at_barrier(&self, run: &mut Run<'_>, meeting: &Meeting) {
        let (Some(named), Some(checker)) = (&meeting.named, &mut run.checker) else { return };
        // Lanes meet those alone that state the same mask.
        let mut rest = meeting.lanes();
        while rest != 0 {
            let mask = named[rest.trailing_zeros() as usize] as u32;
            let same =
                bits(rest).filter(|lane| named[*lane] as u32 == mask).fold(0, |same, lane| same | 1 << lane);
            checker.warp_meets(self.number, same & mask, run.steps);
            rest &= !same;
        }
    }

    fn shuffle(&mut self, run: &Run<'_>, meeting: &Meeting, shuffle: &Shuffle) {
        let is_followed = run.checker.as_ref().is_some_and(|checker| checker.is_following_values());
        let operand = |of: fn(&Shuffle) -> Slot| {
            self.gather(run, meeting, |op| match op {
                Op::Shuffle(shuffle) => Some(of(shuffle)),
                _ => None,
            })
        };
        let input = operand(|shuffle| shuffle.input);
        let by = operand(|shuffle| shuffle.lane);
        let limits = operand(|shuffle| shuffle.limits);
        let mut sources = [0; LANES];
        let mut value = [0; LANES];
        let mut valid = [0; LANES];
        for lane in bits(meeting.lanes()) {
            let (by, limit, segment) =
                (by[lane] as u32 & 31, limits[lane] as u32 & 31, limits[lane] as u32 >> 8 & 31);
            let own = lane as u32;
            let (low, high) = (own & segment, own & segment | limit & !segment);
            let (source, is_valid) = match shuffle.kind {
                ShuffleKind::Up => (own.wrapping_sub(by), own as i32 - by as i32 >= high as i32),
                ShuffleKind::Down => (own + by, own + by <= high),
                ShuffleKind::Butterfly => (own ^ by, own ^ by <= high),
                ShuffleKind::Index => (low | by & !segment, low | by & !segment <= high),
            };
            sources[lane] = if is_valid { source & 31 } else { own };
            value[lane] = input[sources[lane] as usize];
            valid[lane] = u64::from(is_valid);
        }
        if is_followed {
            self.follow_shuffle(run, meeting, &sources);
        }
        self.scatter(run, meeting, &value, |op| match op {
            Op::Shuffle(shuffle) => Some(shuffle.to),
            _ => None,
        });
        self.scatter(run, meeting, &valid, |op| match op {
            Op::Shuffle(shuffle) => shuffle.is_valid,
            _ => None,
        });
    }

    /// Follows undefined values through a shuffle. A value is undefined if one of its two lanes does not execute the instruction, or is not in
    /// the mask.
    fn follow_shuffle(&mut self, run: &Run<'_>, meeting: &Meeting, sources: &[u32; LANES]) {
        let shuffle_of = |party: &Party| match &run.program.steps[party.step as usize].op {
            Op::Shuffle(shuffle) => Some(shuffle),
            _ => None,
        };
        let mut found: Vec<(u32, Origin)> = Vec::new();
        for party in meeting.parties() {
            let Some(shuffle) = shuffle_of(party) else { continue };
            let mut undefined: Option<Origin> = None;
            for lane in bits(party.lanes) {
                let (own, source, with) = (lane as u32, sources[lane], meeting.with(lane));
                let giver = meeting.parties().find(|party| party.lanes >> source & 1 == 1);
                let known = match giver.and_then(|giver| Some((giver, shuffle_of(giver)?.input))) {
                    Some((giver, Slot::Register(register))) => {
                        self.undefined.among(giver.base + register, 1 << source)
                    }
                    _ => None,
                };
                let step = party.step;
                let known = match known {
                    _ if with >> own & 1 == 0 => Some(Origin { lanes: 0, step, source: own }),
                    _ if with >> source & 1 == 0 => Some(Origin { lanes: 0, step, source }),
                    known => known,
                };
                if let Some(origin) = known {
                    let lanes = undefined.map_or(0, |origin| origin.lanes) | 1 << lane;
                    undefined = Some(Origin { lanes, ..undefined.unwrap_or(origin) });
                }
            }
            found.extend(undefined.map(|origin| (party.base + shuffle.to, origin)));
        }
        for party in meeting.parties() {
            let Some(shuffle) = shuffle_of(party) else { continue };
            shuffle
                .is_valid
                .iter()
                .for_each(|is_valid| self.undefined.remove(party.base + is_valid, party.lanes));
            self.undefined.remove(party.base + shuffle.to, party.lanes);
        }
        found.into_iter().for_each(|(register, origin)| self.undefined.add(register, origin));
    }
}

/// Of lanes at one place, those that go on together: all that wait for nobody elsewhere, or else the first and those that its wait is about.
fn lanes_of_one_wait(named: &Lanes, active: u32, alive: u32) -> u32 {
    let mut complete = active;
    loop {
        let waits = |lane: &usize| named[*lane] as u32 & alive & !complete != 0;
        let waiting = bits(complete).filter(waits).fold(0, |waiting, lane| waiting | 1 << lane);
        if waiting == 0 {
            break;
        }
        complete &= !waiting;
    }
    if complete != 0 {
        return complete;
    }
    let mut together = active & active.wrapping_neg();
    loop {
        let naming = bits(active).filter(|lane| named[*lane] as u32 & together != 0);
        let naming = naming.fold(0, |naming, lane| naming | 1 << lane);
        let by_them = bits(together).fold(0, |mask, lane| mask | named[lane] as u32) & active;
        let more = together | naming | by_them;
        if more == together {
            return together;
        }
        together = more;
    }
}

/// The mask of an instruction at another place, if it is the same one: lanes at both may execute it together.
fn same_exchange(op: &Op, other: &Op) -> Option<Slot> {
    match (op, other) {
        (Op::WarpBarrier { .. }, Op::WarpBarrier { mask })
        | (Op::MatchAny { .. }, Op::MatchAny { mask, .. })
        | (Op::MatchAll { .. }, Op::MatchAll { mask, .. })
        | (Op::Elect { .. }, Op::Elect { mask, .. }) => Some(*mask),
        (Op::Reduce { name, .. }, Op::Reduce { name: other, mask, .. }) => (name == other).then_some(*mask),
        (Op::Vote { kind, .. }, Op::Vote { kind: other, mask, .. }) => mask.filter(|_| kind == other),
        (Op::Shuffle(shuffle), Op::Shuffle(other)) => other.mask.filter(|_| shuffle.kind == other.kind),
        _ => None,
    }
}
