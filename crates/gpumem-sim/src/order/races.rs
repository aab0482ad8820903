//! Race detection: each access of queued work is compared with earlier accesses to the same bytes.
//!
//! Two accesses to the same bytes, at least one of them a write, must be ordered under every schedule: by the order of one
//! stream, an event that was recorded and waited for, a synchronisation or a successful query by the host between the two calls,
//! or the rules of the legacy stream. Otherwise they are a race, whatever order the seed chose. The call succeeds and the work is
//! done, as on a GPU; the finding is kept for [`Sim::report`](crate::Sim::report).
//!
//! A stream-ordered allocation and a free count as writes of the whole block, so a use that is not ordered after the allocation,
//! or before the free, is detected even if it ran in time. A free ends the history of its bytes: the driver orders the free
//! before the first use of the next owner, and nothing else.
//!
//! The parts: `clock` has the order, `shadow` the accesses to bytes, `usage` the accesses through each mapping, `finding` the
//! reports.

use crate::base::handle::Handle;
use crate::order::clock::Clocks;
use crate::order::shadow::{Shadow, Trace};
use crate::order::usage::Usage;
use crate::report::finding::{Access, Finding};

/// The detector of one instance.
#[derive(Default)]
pub(crate) struct Races {
    pub(crate) clocks: Clocks,
    pub(crate) shadow: Shadow,
    pub(crate) usage: Usage,
    pub(crate) is_unwritten_wanted: bool,
}

/// The findings, up to a maximum number.
#[derive(Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    pub(crate) more_count: usize,
}

impl Findings {
    pub(crate) fn list(&self) -> &[Finding] {
        &self.list
    }

    pub(crate) fn take(&mut self) -> Vec<Finding> {
        self.more_count = 0;
        core::mem::take(&mut self.list)
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.is_kept(&finding) {
            self.list.push(finding);
        } else {
            self.more_count += 1;
        }
    }

    /// True for a finding that would be kept, not counted.
    pub(crate) fn is_kept(&self, finding: &Finding) -> bool {
        self.list.len() < FINDINGS_MAX && !self.list.iter().any(|known| is_same_pair(known, finding))
    }
}

/// True if two races are between the same operations, because to a reader a copy row by row is one access; or if one module is refused again.
fn is_same_pair(known: &Finding, finding: &Finding) -> bool {
    match (known, finding) {
        (
            Finding::Race { first, second, .. },
            Finding::Race { first: other_first, second: other_second, .. },
        ) => {
            let is_same = |one: &Access, other: &Access| {
                one.kind == other.kind
                    && (one.stream, one.position, one.call) == (other.stream, other.position, other.call)
            };
            is_same(first, other_first) && is_same(second, other_second)
        }
        _ => matches!(finding, Finding::Module { .. }) && known == finding,
    }
}

/// The operation that is running.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) stream: Handle,
    pub(crate) position: u64,
    pub(crate) call: u64,
}

impl Races {
    pub(crate) fn new(is_unwritten_wanted: bool) -> Self {
        Self { is_unwritten_wanted, ..Self::default() }
    }
}

impl Trace {
    pub(crate) fn access(&self, byte: u64) -> Access {
        Access {
            kind: self.kind.clone(),
            stream: self.stream.map(Handle::to_bits),
            stream_number: self.stream_number,
            position: self.position,
            call: self.call,
            address: byte.wrapping_add(self.shift),
            place: None,
        }
    }
}

/// The maximum number of findings that are kept; the others are counted.
const FINDINGS_MAX: usize = 64;
