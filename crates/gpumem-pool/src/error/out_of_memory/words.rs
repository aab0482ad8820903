//! What an [`OutOfMemory`] says in sentences: who refused, and the advice.

use super::{Advice, Attempt, Growth, Maker, OutOfMemory, RefusedBy, UnfinishedStream};
use crate::config::{BackendKind, Bytes, MemoryKind};
use core::time::Duration;

impl OutOfMemory {
    /// Who refused how much.
    pub(super) fn headline(&self) -> String {
        let limit = Bytes(self.limit_bytes.unwrap_or(0));
        let requested = match Bytes(self.requested_bytes).to_string() {
            same if same == limit.to_string() && self.limit_bytes != Some(self.requested_bytes) => {
                format!("{} bytes", self.requested_bytes)
            }
            other => other,
        };
        let whose = if self.maker.is_limit_above { " of the pool that this one was made from" } else { "" };
        let memory = match self.kind {
            MemoryKind::Device => "GPU memory",
            MemoryKind::Unified => "unified memory",
            MemoryKind::Host => "pinned host memory",
        };
        let who = match (self.refused_by, self.limit_bytes) {
            (RefusedBy::OnPurpose, _) => "the adaptor `failures`".into(),
            (RefusedBy::Margin, _) => format!("the margin, which leaves {limit} to all pools together,"),
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

    /// What is in use lies in these.
    pub(super) fn blocks(&self) -> String {
        match (self.block_count, self.growable_bytes) {
            (0, 1..) => "in blocks that grow".into(),
            (_, 1..) => format!("{}, and in some that grow", blocks(self.block_count)),
            _ => blocks(self.block_count),
        }
    }

    /// The advice for this case.
    pub(super) fn advised(&self) -> String {
        let needed = Bytes(self.needed_bytes());
        match self.advice() {
            Advice::RaiseTheLimit => self.raise_the_limit(),
            Advice::FreeTheDevice => self.free_the_device(),
            Advice::Defragment => self.defragment(),
            Advice::TryDifferently => self.try_differently(),
            Advice::DropGraphs => format!(
                "{} are kept for what was captured, and no block of the program has them: drop what is launched no more (Graph, \
                 GraphExec), or allocate before the captures what several graphs may use in turn",
                Bytes(self.graph_bytes)
            ),
            Advice::FindTheLeak => self.find_the_leak(),
            Advice::NeedLess if self.kind == MemoryKind::Host => format!(
                "{needed} are more than the host has to pin: use less of it, or plain memory (HostMemory::pageable)"
            ),
            Advice::NeedLess => format!(
                "{needed} are more than {}: use smaller batches or a smaller type, or drop arrays earlier",
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
                "{pending} are freed, and wait for work that was not done in time, first of all on {stream}: see what that stream \
                 waits for, or wait longer (Tuning::wait_deadline, GPUMEM_CONF=wait_deadline_ms:60000)"
            ),
            None => format!(
                "{pending} are freed, and wait for work that this request could not wait for: synchronize first, or end the \
                 capture that goes on"
            ),
        }
    }

    fn oversubscribe(&self) -> String {
        let others = match self.limit_others_bytes > self.in_use_bytes {
            true => format!(", of which other pools hold {}", Bytes(self.limit_others_bytes)),
            false => String::new(),
        };
        let drop = match self.limit_bytes {
            Some(limit_bytes) if self.wanted_bytes() > limit_bytes => "",
            _ => "drop arrays, or ",
        };
        format!(
            "unified memory and what pools hold of the device keep a margin free together{others}: {drop}let this pool pass \
             it (PoolBuilder::oversubscribe, GPUMEM_CONF=oversubscribe:true); pages may then move back and forth"
        )
    }

    fn find_the_leak(&self) -> String {
        let how = "drop it, or give steps a scope (Pool::scope) and see in the status which tag grows";
        if self.growth.as_ref().is_none_or(Growth::is_sure) {
            return format!("something is kept at every step: {how}");
        }
        let otherwise = Self { growth: None, ..self.clone() }.advised();
        format!(
            "the same is kept again and again: if a loop does that, {how}; if all of it is needed at once, {otherwise}"
        )
    }

    /// What this pool could have at most, where that is known to be too little.
    fn all_there_is(&self) -> String {
        let own_bytes = self.device_total_bytes.saturating_sub(self.others_bytes());
        let needed_bytes = self.needed_bytes().saturating_sub(self.limit_others_bytes);
        match self.kind == MemoryKind::Device && needed_bytes > own_bytes {
            true => format!("the {} that this device has for this pool", Bytes(own_bytes)),
            false => "there is".into(),
        }
    }

    fn raise_the_limit(&self) -> String {
        let raised = self.raised();
        match () {
            () if self.limit_others_bytes > self.in_use_bytes => format!(
                "other pools hold {} of the limit: drop arrays there, or {raised}",
                Bytes(self.limit_others_bytes)
            ),
            () if self.kind == MemoryKind::Device => {
                let limit = if self.refused_by == RefusedBy::Quota { "quota" } else { "limit" };
                format!("the device has room that the {limit} forbids: {raised}, or drop arrays")
            }
            () => format!("it is our limit, not the machine's: {raised}, or drop arrays"),
        }
    }

    /// How to get a limit that allows the request.
    fn raised(&self) -> String {
        let how = match (self.refused_by, self.maker.is_limit_above) {
            (RefusedBy::Quota, false) => "where Pool::private made this pool, or by its Pool::set_hard_limit",
            (RefusedBy::Quota, true) => "where Pool::private made that pool, or by its Pool::set_hard_limit",
            (_, false) => "GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, Pool::set_hard_limit",
            (_, true) => "GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, or that pool's Pool::set_hard_limit",
        };
        let needed = Bytes(self.needed_bytes()).rounded_up();
        let more = self.maker.limit_above_bytes.map(Bytes).map_or(String::new(), |above| {
            format!(", and with it the limit of {above} of the pool that this one was made from")
        });
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
                "other pools of this program hold {} of this device: drop arrays there, or use one pool for all",
                Bytes(self.other_pools_bytes)
            ),
            (false, Some(process)) => format!(
                "others hold {others} of this device, first of all {process}: end it or use another device"
            ),
            (false, None) => format!(
                "others hold {others} of this device: see with `nvidia-smi` who, and end it or use another device"
            ),
        };
        match self.limit_bytes {
            Some(_) => format!("{advice}; the limit is in the way too, {}", self.raised()),
            None => advice,
        }
    }

    /// Why it was refused, the driver does not tell.
    fn try_differently(&self) -> String {
        if self.refused_by == RefusedBy::OnPurpose {
            return "it was refused on purpose, to try what happens then: take that adaptor away where this is not wanted".into();
        }
        let more = match self.maker {
            Maker { can_map: true, .. } => {
                "it keeps that to itself, or somebody was there first for a moment: ask for less, or again later"
            }
            Maker { backend: Some(BackendKind::Caching), .. } => {
                "it has no piece of that size, or keeps it to itself: ask for smaller blocks"
            }
            _ => {
                "it has no piece of that size, or keeps it to itself: ask for smaller blocks, or choose GPUMEM_POOL=caching, which \
                 makes large ones of pieces"
            }
        };
        format!("the driver refused, and counts {} free all the same: {more}", Bytes(self.device_free_bytes))
    }

    fn defragment(&self) -> String {
        let is_piece = |largest: &u64| (1..self.requested_bytes).contains(largest);
        let largest = self.largest_free_bytes.filter(is_piece);
        let pieces = largest.map_or(String::new(), |largest| format!(" of up to {}", Bytes(largest)));
        let apart = "give long-lived small ones a pool of their own (Pool::private)";
        let more = match self.maker {
            Maker { can_map: true, is_tight: true, .. } => format!(", and {apart}"),
            Maker { can_map: true, .. } => format!(", {apart}, or set GPUMEM_PROFILE=tight"),
            Maker { backend: Some(BackendKind::Caching), .. } => {
                format!(", {apart}, or keep them out of large segments (GPUMEM_CONF=max_split_size_mb:64)")
            }
            _ if self.kind == MemoryKind::Device => {
                format!(
                    ", {apart}, or choose GPUMEM_POOL=caching, which maps what is idle to where it is needed"
                )
            }
            _ => String::new(),
        };
        format!("enough is free, but in pieces{pieces}: allocate large blocks first{more}")
    }
}

/// What was tried and gave nothing, a few to a line, with how long it took together, and each that was slow.
pub(super) fn gave_nothing(attempts: &[&Attempt]) -> String {
    let mut text = String::new();
    let all: Duration = attempts.iter().map(|attempt| attempt.took).sum();
    // How long it took says nothing about where a line should end.
    let mut width = 0;
    for (index, Attempt { name, took, .. }) in attempts.iter().enumerate() {
        width += name.len();
        let between = match index {
            0 => format!("  gave nothing, in {all:.0?}: "),
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

/// Of names alone.
const LINE_WIDTH: usize = 90;

/// What takes so long is worth knowing.
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
        assert_eq!(text, "  gave nothing, in 8ms: quick, slow (7ms)\n");
    }

    /// What others hold of a shared limit is no need of this pool.
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
        assert_eq!(report.all_there_is(), "there is");
        let larger = OutOfMemory { requested_bytes: 90 * GIB, ..report };
        assert_eq!(larger.all_there_is(), "the 80.000 GiB that this device has for this pool");
    }
}
