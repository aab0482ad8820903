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

/// The findings, up to a maximum number of each kind: refused calls of a program must not hide its faults.
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
        let kind = core::mem::discriminant(finding);
        let of_kind = self.list.iter().filter(|known| core::mem::discriminant(*known) == kind);
        of_kind.clone().count() < FINDINGS_MAX && !of_kind.clone().any(|known| is_same_pair(known, finding))
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

/// The maximum number of findings of a kind that are kept; the others are counted.
const FINDINGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::finding::{FaultKind, Misuse};
    use gpumem_sys::types::CUresult;

    #[test]
    fn findings_of_one_kind_hide_none_of_another() {
        let mut findings = Findings::default();
        let code = CUresult::CUDA_ERROR_INVALID_VALUE;
        for address in 1..=FINDINGS_MAX as u64 + 6 {
            let (misuse, call) = (Misuse::ForeignFree, "cuMemFree_v2");
            findings.add(Finding::Refused { misuse, call, code, address, allocation: None });
        }
        let (kind, text) = (FaultKind::OutOfBounds, "past the end".into());
        findings.add(Finding::Fault { kind, code, text, allocation: None, place: None });
        assert_eq!((findings.list().len(), findings.more_count), (FINDINGS_MAX + 1, 6));
        assert!(matches!(findings.list().last(), Some(Finding::Fault { .. })));
    }
}
