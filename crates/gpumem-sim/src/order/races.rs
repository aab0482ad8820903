//! Race detection: every access of queued work is held against what touched the same bytes before.
//!
//! Two accesses to the same bytes, at least one of them a write, must be ordered by something that holds under every
//! schedule: one stream's own order, an event that was recorded and waited for, a synchronisation or a successful
//! query by the host between the two calls, the legacy stream's rules. If nothing does, it is a race, whatever order
//! the seed chose this time. The call that asked for the work succeeds and the work is done, as on a GPU; what is
//! found is kept for [`Sim::report`](crate::Sim::report).
//!
//! Allocating in stream order and freeing count as writes of the whole block, so a use that nothing orders after the
//! allocation, or before the free, is found even if it ran at a good moment. With the free the history of its bytes
//! ends: that the pool hands them out again only when the free is behind the new owner's first use is the driver's
//! affair, and orders nothing else.
//!
//! The parts: `clock` knows what is ordered, `shadow` who touched what, `usage` through which mapping, `finding` what is said about it.

use crate::base::handle::Handle;
use crate::order::clock::Clocks;
use crate::order::shadow::{Shadow, Trace};
use crate::order::usage::Usage;
use crate::report::finding::{Access, Finding};

/// What the detector of one instance knows.
#[derive(Default)]
pub(crate) struct Races {
    pub(crate) clocks: Clocks,
    pub(crate) shadow: Shadow,
    pub(crate) usage: Usage,
    pub(crate) is_unwritten_wanted: bool,
}

/// What has been found, up to a number that a person may read.
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
        let is_known = self.list.iter().any(|known| is_same_pair(known, &finding));
        if is_known || self.list.len() == FINDINGS_MAX {
            self.more_count += 1;
        } else {
            self.list.push(finding);
        }
    }
}

/// Whether two races are between the same operations: a row by row copy is one access to a reader.
fn is_same_pair(known: &Finding, finding: &Finding) -> bool {
    match (known, finding) {
        (
            Finding::Race { first, second, .. },
            Finding::Race { first: other_first, second: other_second, .. },
        ) => {
            let key = |access: &Access| (access.kind, access.stream, access.position, access.call);
            key(first) == key(other_first) && key(second) == key(other_second)
        }
        _ => false,
    }
}

/// The operation that runs now.
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
            kind: self.kind,
            stream: self.stream.map(Handle::to_bits),
            stream_number: self.stream_number,
            position: self.position,
            call: self.call,
            address: byte.wrapping_add(self.shift),
        }
    }
}

/// As many findings as are kept; the rest is counted.
const FINDINGS_MAX: usize = 64;
