//! The lanes of a warp that are at the same place.
//!
//! A warp is split where lanes branch to different places. Of its groups, the one in the deepest call runs first, of several the one at the
//! lowest place. Compilers put the place where branches meet behind the branches, so the groups meet there and become one.

/// Lanes at one place.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) frame: Frame,
    /// The frames of the callers, the first one first.
    pub(crate) callers: Vec<Frame>,
    pub(crate) waiting: Waiting,
}

/// The registers and local memory of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) routine: u32,
    /// The first register.
    pub(crate) registers: u32,
    /// The first byte in the local memory of a thread.
    pub(crate) local: u64,
    /// The place of the call that is running, in a frame of a caller.
    pub(crate) call: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    No,
    /// For the other lanes that the instruction at this place names.
    Lanes,
    /// For the rest of the warp, at a barrier that all of it reaches together.
    Warp,
    /// For a phase of a barrier.
    Barrier {
        number: u32,
        phase: u32,
    },
    /// For a change of memory, in a loop that looks at it again and again. Goes on when nothing else can.
    Change,
}

impl Group {
    pub(crate) fn new(mask: u32, start: u32) -> Self {
        let frame = Frame { routine: 0, registers: 0, local: 0, call: 0 };
        Self { pc: start, mask, frame, callers: Vec::new(), waiting: Waiting::No }
    }

    /// The step of the kernel itself at which it is: that of the first call, if it is in one.
    pub(crate) fn place(&self) -> u32 {
        self.callers.first().map_or(self.pc, |caller| caller.call)
    }

    fn is_at_place_of(&self, other: &Self) -> bool {
        self.pc == other.pc && self.frame == other.frame && self.callers == other.callers
    }

    fn is_at_barrier(&self) -> bool {
        matches!(self.waiting, Waiting::Barrier { .. })
    }
}

/// Joins groups that are at the same place.
pub(crate) fn join(groups: &mut Vec<Group>) {
    let mut first = 0;
    while first + 1 < groups.len() {
        let mut second = first + 1;
        while second < groups.len() {
            let (known, other) = (&groups[first], &groups[second]);
            if known.is_at_barrier() || other.is_at_barrier() || !known.is_at_place_of(other) {
                second += 1;
                continue;
            }
            let joined = groups.swap_remove(second);
            let known = &mut groups[first];
            known.mask |= joined.mask;
            let is_stalled = [known.waiting, joined.waiting] == [Waiting::Change; 2];
            known.waiting = if is_stalled { Waiting::Change } else { Waiting::No };
        }
        first += 1;
    }
}

/// The group that runs next.
pub(crate) fn next(groups: &[Group]) -> Option<usize> {
    let runnable = groups.iter().enumerate().filter(|(_, group)| group.waiting == Waiting::No);
    runnable
        .max_by_key(|(_, group)| (group.callers.len(), core::cmp::Reverse(group.pc)))
        .map(|(index, _)| index)
}

/// The place at which a group that runs meets another one.
pub(crate) fn meeting(groups: &[Group], running: usize) -> u32 {
    let own = &groups[running];
    let others = groups.iter().filter(|other| {
        !other.is_at_barrier() && other.pc > own.pc && other.callers.len() == own.callers.len()
    });
    others.map(|other| other.pc).min().unwrap_or(u32::MAX)
}
