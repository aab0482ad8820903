//! The sentences of an [`OutOfMemory`]: the headline and the advice.

use super::{Advice, Attempt, OutOfMemory, PoolFacts, RefusedBy, UnfinishedStream};
use crate::config::{BackendKind, Bytes, MemoryKind};
use core::time::Duration;

impl OutOfMemory {
    /// The refusing limit or device, and the requested size.
    pub(super) fn headline(&self) -> String {
        let limit = Bytes(self.limit_bytes.unwrap_or(0));
        let requested = match Bytes(self.requested_bytes).to_string() {
            same if same == limit.to_string() && self.limit_bytes != Some(self.requested_bytes) => {
                format!("{} bytes", self.requested_bytes)
            }
            other => other,
        };
        let whose = if self.facts.is_parent_limit { " of the parent pool" } else { "" };
        let memory = match self.kind {
            MemoryKind::Device => "GPU memory",
            MemoryKind::Unified => "unified memory",
            MemoryKind::Host => "pinned host memory",
        };
        let who = match (self.refused_by, self.limit_bytes) {
            (RefusedBy::OnPurpose, _) => "the adaptor `failures`".into(),
            (RefusedBy::Margin, _) => format!("the margin, which allows all pools together {limit},"),
            (RefusedBy::Quota, _) => format!("the quota of {limit}{whose}"),
            (RefusedBy::HardLimit, _) | (_, Some(_)) => format!("the limit of {limit}{whose}"),
            (RefusedBy::Device, None) if self.kind == MemoryKind::Host => "the host".into(),
            (RefusedBy::Device, None) => "the device".into(),
        };
        let place = match self.alignment {
            0 => String::new(),
            alignment => format!(" at a multiple of {}", Bytes(alignment)),
        };
        format!("out of {memory}: {who} refused {requested}{place}")
    }

    /// The blocks that hold the bytes in use.
    pub(super) fn blocks(&self) -> String {
        match (self.block_count, self.growable_bytes) {
            (0, 1..) => "in growable blocks".into(),
            (_, 1..) => format!("{}, and in growable ones", blocks(self.block_count)),
            _ => blocks(self.block_count),
        }
    }

    /// The advice as a sentence: cause, then action.
    pub(super) fn advice_text(&self) -> String {
        let needed = Bytes(self.needed_bytes());
        match self.advice() {
            Advice::RaiseTheLimit => self.raise_the_limit(),
            Advice::FreeTheDevice => self.free_the_device(),
            Advice::Defragment => self.defragment(),
            Advice::TryDifferently => self.try_differently(),
            Advice::DropGraphs => format!(
                "captures and graphs retain {} that the program has freed: drop graphs that are no longer launched (Graph, \
                 GraphExec), or allocate memory that several graphs use in turn before the captures",
                Bytes(self.graph_bytes)
            ),
            Advice::FindTheLeak => {
                "each step of the program leaves blocks allocated: free them, or run each step in a scope \
                 (Pool::scope) and check in the status which tag grows"
                    .into()
            }
            Advice::NeedLess if self.kind == MemoryKind::Host => format!(
                "{needed} is more than the host can pin: pin less, or use pageable memory (HostMemory::pageable)"
            ),
            Advice::NeedLess => format!(
                "{needed} is more than {}: use smaller batches or a smaller type, or free memory earlier",
                self.all_there_is()
            ),
            Advice::Oversubscribe => self.oversubscribe(),
            Advice::WaitForWork => self.wait_for_work(),
        }
    }

    fn wait_for_work(&self) -> String {
        let pending = Bytes(self.pending_bytes);
        match self.unfinished.first() {
            Some(UnfinishedStream { stream, .. }) => format!(
                "{pending} of freed memory waits for work that did not finish in time, first on {stream}: check what that \
                 stream waits for, or wait longer (PoolBuilder::conf or GPUMEM_CONF: wait_deadline_ms:60000)"
            ),
            None => format!(
                "{pending} of freed memory waits for work that this request could not wait for: synchronize first, or end \
                 the active capture"
            ),
        }
    }

    fn oversubscribe(&self) -> String {
        let others = match self.limit_others_bytes > self.in_use_bytes {
            true => format!(" (other pools hold {})", Bytes(self.limit_others_bytes)),
            false => String::new(),
        };
        let drop = match self.limit_bytes {
            Some(limit_bytes) if self.wanted_bytes() > limit_bytes => "",
            _ => "free memory, or ",
        };
        format!(
            "unified memory and all pools of the device must together leave a margin of it free{others}: {drop}let this pool \
             exceed the margin (PoolBuilder::conf or GPUMEM_CONF: oversubscribe:true); pages may then move back and \
             forth"
        )
    }

    /// The memory available to this pool, stated in bytes if that explains the refusal.
    fn all_there_is(&self) -> String {
        let own_bytes = self.device_total_bytes.saturating_sub(self.others_bytes());
        let needed_bytes = self.needed_bytes().saturating_sub(self.limit_others_bytes);
        match self.kind == MemoryKind::Device && needed_bytes > own_bytes {
            true => format!("the {} that this device has for this pool", Bytes(own_bytes)),
            false => "is available".into(),
        }
    }

    fn raise_the_limit(&self) -> String {
        let raised = self.raised();
        let limit = if self.refused_by == RefusedBy::Quota { "quota" } else { "limit" };
        let whose = if self.facts.is_parent_limit { "the parent pool's" } else { "the pool's" };
        match () {
            () if self.limit_others_bytes > self.in_use_bytes => format!(
                "other pools hold {} of the limit: free memory there, or {raised}",
                Bytes(self.limit_others_bytes)
            ),
            () if self.kind == MemoryKind::Device => format!(
                "the device has free memory, but the request would exceed {whose} {limit}: {raised}, or free blocks"
            ),
            () => format!("{whose} {limit} refused the request, not the machine: {raised}, or free blocks"),
        }
    }

    /// The limit that allows the request, and where to set it.
    fn raised(&self) -> String {
        let how = match (self.refused_by, self.facts.is_parent_limit) {
            (RefusedBy::Quota, false) => "at Pool::private, or with Pool::set_hard_limit",
            (RefusedBy::Quota, true) => {
                "at the parent's Pool::private, or with Pool::set_hard_limit of the parent"
            }
            (_, false) => "GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, Pool::set_hard_limit",
            (_, true) => "GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, Pool::set_hard_limit of the parent",
        };
        let needed = Bytes(self.needed_bytes()).rounded_up();
        let more = self
            .facts
            .parent_limit_bytes
            .map(Bytes)
            .map_or(String::new(), |above| format!(", and also the parent pool's limit of {above}"));
        format!("raise it to {needed} or more ({how}){more}")
    }

    fn free_the_device(&self) -> String {
        let others_bytes = self.others_bytes();
        let others = Bytes(others_bytes);
        let largest = self.processes.first().filter(|process| process.in_use_bytes.is_some());
        let foreign_bytes = others_bytes.saturating_sub(self.other_pools_bytes);
        let are_pools = self.other_pools_bytes > foreign_bytes || foreign_bytes < self.context_bytes();
        let advice = match (are_pools, largest) {
            (true, _) => format!(
                "other pools of this program hold {} of this device: free memory there, or share one pool",
                Bytes(self.other_pools_bytes)
            ),
            (false, Some(process)) => format!(
                "other programs and libraries hold {others} of this device, the largest is {process}: end it, or use \
                 another device"
            ),
            (false, None) => format!(
                "other programs and libraries hold {others} of this device: list them with `nvidia-smi` and end them, or \
                 use another device"
            ),
        };
        match self.limit_bytes {
            Some(_) => format!("{advice}; the pool's limit is too low as well: {}", self.raised()),
            None => advice,
        }
    }

    /// The driver does not report why it refused, so the advice lists the likely causes.
    fn try_differently(&self) -> String {
        if self.refused_by == RefusedBy::OnPurpose {
            return "the adaptor `failures` injected this refusal: remove that adaptor where tests do not need it".into();
        }
        let more = match self.facts {
            PoolFacts { can_map: true, .. } => {
                "it may withhold that memory, or another program took it for a moment: request less, or retry later"
            }
            PoolFacts { backend: Some(BackendKind::Caching), .. } => {
                "it has no contiguous range of that size, or withholds it: request smaller blocks"
            }
            _ => {
                "it has no contiguous range of that size, or withholds it: request smaller blocks, or choose \
                 GPUMEM_POOL=caching, which maps separate ranges into one block"
            }
        };
        format!("the driver refused although it reports {} free: {more}", Bytes(self.device_free_bytes))
    }

    fn defragment(&self) -> String {
        let is_fragment = |largest: &u64| (1..self.requested_bytes).contains(largest);
        let largest = self.largest_free_bytes.filter(is_fragment);
        let fragments =
            largest.map_or(String::new(), |largest| format!(" (largest block {})", Bytes(largest)));
        let apart = "give long-lived small blocks a pool of their own (Pool::private)";
        let more = match self.facts {
            PoolFacts { can_map: true, is_tight: true, .. } => format!(", and {apart}"),
            PoolFacts { can_map: true, .. } => format!(", {apart}, or set GPUMEM_PROFILE=tight"),
            PoolFacts { backend: Some(BackendKind::Caching), .. } => {
                format!(", {apart}, or keep them out of large segments (GPUMEM_CONF=max_split_size_mb:64)")
            }
            _ if self.kind == MemoryKind::Device => {
                format!(
                    ", {apart}, or choose GPUMEM_POOL=caching, which remaps idle memory to where it is needed"
                )
            }
            _ => String::new(),
        };
        format!("enough memory is free, but it is fragmented{fragments}: allocate large blocks first{more}")
    }
}

/// The names of the attempts without gain, a few to a line, with their total duration and the duration of each slow
/// one.
pub(super) fn gave_nothing(attempts: &[&Attempt]) -> String {
    let mut text = String::new();
    let all: Duration = attempts.iter().map(|attempt| attempt.took).sum();
    // Durations do not count towards the line width: line breaks stay stable between runs.
    let mut width = 0;
    for (index, Attempt { name, took, .. }) in attempts.iter().enumerate() {
        width += name.len();
        let between = match index {
            0 => format!("  tried without success, in {all:.0?}: "),
            _ if width <= LINE_WIDTH => ", ".into(),
            _ => {
                width = name.len();
                ",\n    ".into()
            }
        };
        text += &format!("{between}{name}");
        if *took >= SLOW {
            text += &format!(" ({took:.0?})");
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// The maximum length of the names on a line.
const LINE_WIDTH: usize = 90;

/// An attempt that takes this long is printed with its duration.
const SLOW: Duration = Duration::from_millis(1);

pub(super) fn blocks(count: u64) -> String {
    if count == 1 { "in 1 block".into() } else { format!("in {count} blocks") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_gave_nothing_tells_its_time_only_if_it_was_slow() {
        let attempt = |name, took| Attempt { name, gained_bytes: 0, took, failures: Vec::new() };
        let attempts = [attempt("quick", SLOW / 2), attempt("slow", SLOW * 7)];
        let text = gave_nothing(&attempts.each_ref());
        assert_eq!(text, "  tried without success, in 8ms: quick, slow (7ms)\n");
    }

    /// Bytes of other pools under a shared limit do not count as this pool's need.
    #[test]
    fn a_limit_that_others_fill_does_not_make_the_device_too_small() {
        let report = OutOfMemory {
            requested_bytes: 20 * GIB,
            in_use_bytes: 10 * GIB,
            reserved_bytes: 10 * GIB,
            device_free_bytes: 70 * GIB,
            device_total_bytes: 80 * GIB,
            limit_others_bytes: 60 * GIB,
            ..OutOfMemory::default()
        };
        assert_eq!(report.all_there_is(), "is available");
        let larger = OutOfMemory { requested_bytes: 90 * GIB, ..report };
        assert_eq!(larger.all_there_is(), "the 80.000 GiB that this device has for this pool");
    }
}
