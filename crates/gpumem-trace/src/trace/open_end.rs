//! [`OpenEnd`]: why a trace says nothing about the memory that its program needs in the end.

use super::{Event, Trace};
use core::fmt;
use gpumem_pool::trace::{RecordedEvent, What};
use std::collections::BTreeMap;

/// The reason that a program may need more memory than its trace shows. A limit that the trace fits into is then a lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenEnd {
    /// The program was refused memory, and allocated less than the refused request afterwards.
    Refused,
    /// The end of the file is missing or damaged.
    CutShort,
    /// Events were lost, or the beginning is gone.
    Incomplete,
    /// A pool had not ended: the program was still running, or was killed.
    Running,
}

impl fmt::Display for OpenEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "the record ends at a refusal",
            Self::CutShort => "the end of the record is missing",
            Self::Incomplete => "the record does not have all events",
            Self::Running => "the record ends while the pool is in use",
        })
    }
}

impl Trace {
    /// The reason that the program may need more memory than the trace shows; `None` if the trace shows the whole program. Records of other
    /// libraries and traces in text do not state whether the program had ended: they count as whole unless they end at a refusal.
    ///
    /// ```
    /// use gpumem_trace::{OpenEnd, Trace};
    ///
    /// let log = "Thread,Time,Action,Pointer,Size,Stream\n7,10:00:00.000000,allocate failure,(nil),4000,0x0\n";
    /// assert_eq!(Trace::read_from(log.as_bytes(), "rmm.csv")?.open_end(), Some(OpenEnd::Refused));
    /// # Ok::<(), gpumem_trace::TraceError>(())
    /// ```
    #[must_use]
    pub fn open_end(&self) -> Option<OpenEnd> {
        if self.ends_at_refusal() {
            return Some(OpenEnd::Refused);
        }
        let is_cut = !self.header().disagreements(self.events().len() as u64, self.peaks()).is_empty();
        self.open_end.or(is_cut.then_some(OpenEnd::CutShort))
    }

    fn ends_at_refusal(&self) -> bool {
        let Some(last) = self.last_refusal() else { return false };
        let Event::Refused { size_bytes: refused_bytes, .. } = self.events()[last] else { return false };
        let allocated = self.events()[last..].iter().map(|event| match event {
            Event::Alloc { size_bytes, .. } => *size_bytes,
            _ => 0,
        });
        allocated.fold(0, u64::saturating_add) < refused_bytes
    }
}

/// True if all pools of a recording had ended. A pool that ends records its reserved memory and its blocks, as it does behind a refusal,
/// and then the release of its memory, if no block is left.
pub(crate) fn all_pools_ended(events: &[RecordedEvent]) -> bool {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Last {
        Other,
        Refusal,
        Reserved,
        End,
    }
    let mut pools: BTreeMap<u32, Last> = BTreeMap::new();
    for event in events {
        let (pool, next): (u32, fn(Last) -> Last) = match event.what {
            What::Refused { pool, .. } | What::Kept { pool, .. } => (pool, |_| Last::Refusal),
            What::Reserved { pool, reserved_bytes, .. } => match (pools.get(&pool), reserved_bytes) {
                (Some(Last::Refusal), _) | (Some(Last::End), 0) => continue,
                _ => (pool, |_| Last::Reserved),
            },
            What::InUse { pool, .. } => {
                (pool, |last| if last == Last::Reserved { Last::End } else { Last::Other })
            }
            What::Alloc { pool, .. } | What::Free { pool, .. } => (pool, |_| Last::Other),
            _ => continue,
        };
        let last = pools.entry(pool).or_insert(Last::Other);
        *last = next(*last);
    }
    pools.values().all(|last| *last == Last::End)
}
