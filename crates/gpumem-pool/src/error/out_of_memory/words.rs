//! The sentences of an [`OutOfMemory`]: the headline and the advice.

use super::{Advice, Attempt, OutOfMemory, PoolFacts, PoolUsage, RefusedBy, UnfinishedStream};
use crate::config::{BackendKind, MemoryKind};
use crate::error::{RequestOrigin, Requested};
use core::time::Duration;
use gpumem_device::Bytes;
use gpumem_sys::text::Shown;

impl OutOfMemory {
    pub(super) fn headline(&self) -> String {
        let limit = Bytes(self.limit_bytes.unwrap_or_default());
        let requested = match Requested(self.requested_bytes).to_string() {
            same if same == limit.to_string() && self.limit_bytes != Some(self.requested_bytes) => {
                format!("{} bytes", self.requested_bytes)
            }
            other => other,
        };
        let whose = match &self.limit_pool {
            Some(pool) if self.facts.is_parent_limit => format!(" of pool {}", Shown::name(pool)),
            _ => String::new(),
        };
        let memory = match self.kind {
            MemoryKind::Device => "GPU memory",
            MemoryKind::Unified => "unified memory",
            MemoryKind::Host => "pinned host memory",
        };
        let who = match (self.refused_by, self.limit_bytes) {
            (RefusedBy::OnPurpose, _) => "the adaptor `failures`".into(),
            (RefusedBy::Budget, _) => match &self.limit_name {
                Some(name) => format!("the budget `{}` of {limit}", Shown::name(name)),
                None => format!("the budget of {limit}"),
            },
            (RefusedBy::Margin, _) => format!(
                "the bound of {limit} for unified memory and all pools ({} of the device stay free)",
                self.margin()
            ),
            (RefusedBy::Quota, _) => format!("the quota of {limit}{whose}"),
            (RefusedBy::HardLimit, _) | (_, Some(_)) => format!("the limit of {limit}{whose}"),
            (RefusedBy::Device, None) if self.kind == MemoryKind::Host => "the host".into(),
            (RefusedBy::Device, None) => "the device".into(),
        };
        let place = match self.alignment {
            0 => String::new(),
            alignment => format!(" aligned to {}", Bytes(alignment)),
        };
        let added = match self.added_bytes {
            0 => String::new(),
            // The sum is meaningless if the size was computed wrongly.
            _ if Requested(self.requested_bytes).is_miscomputed() => String::new(),
            added_bytes => {
                let sum_bytes = self.requested_bytes.saturating_add(added_bytes);
                match Bytes(sum_bytes).to_string() {
                    same if same == Bytes(self.requested_bytes).to_string() => {
                        format!(" (and {} of guard bytes and rounding)", Bytes(added_bytes))
                    }
                    sum => format!(" ({sum} with guard bytes and rounding)"),
                }
            }
        };
        let origin = RequestOrigin {
            device_ordinal: self.device_ordinal,
            pool: self.pool.clone(),
            stream: self.stream,
            tag: self.tag.clone(),
        };
        format!("out of {memory}: {who} refused {requested}{place}{added} ({origin})")
    }

    pub(super) fn blocks(&self) -> String {
        match (self.block_count, self.growable_bytes) {
            (0, 1..) => "in growable blocks".into(),
            (_, 1..) => format!("{}, and in growable ones", blocks(self.block_count)),
            _ => blocks(self.block_count),
        }
    }

    /// The advice as a sentence: cause, then action. It names functions and options of the pool's interface.
    pub(super) fn advice_text(&self) -> String {
        self.facts.interface.translate(&match self.advice() {
            Advice::RaiseTheLimit => self.raise_the_limit(),
            Advice::FreeTheDevice => self.free_the_device(),
            Advice::Defragment => self.defragment(),
            Advice::TryDifferently => self.try_differently(),
            Advice::DropGraphs => self.drop_graphs(),
            Advice::FindTheLeak => self.find_the_leak(),
            Advice::NeedLess => self.need_less(),
            Advice::Oversubscribe => self.oversubscribe(),
            Advice::WaitForWork => self.wait_for_work(),
        })
    }

    /// What spilling would have made room for, if it is off and would have helped.
    pub(super) fn spill_text(&self) -> Option<String> {
        let room_bytes = self.room_in_all().unwrap_or(0);
        let may_help = self.unspilled_bytes_max > 0
            && self.wanted_bytes() <= room_bytes
            && self.refused_by != RefusedBy::OnPurpose;
        let text = || {
            format!(
                "spilling is off: up to {} in use could have moved to host memory, as far as it is idle arrays \
                 (PoolBuilder::spill(Spill::to_host(..)) or GPUMEM_SPILL=host:64GiB)",
                Bytes(self.unspilled_bytes_max)
            )
        };
        may_help.then(|| self.facts.interface.translate(&text()))
    }

    fn need_less(&self) -> String {
        let requested = Requested(self.requested_bytes);
        if requested.is_miscomputed() {
            return requested.miscomputed();
        }
        let needed = Bytes(self.needed_bytes());
        if self.kind == MemoryKind::Host {
            let free = self.host_free_bytes.map(|free| format!(" ({} of its memory is free)", Bytes(free)));
            return format!(
                "the host cannot pin {} more{}: copy large data in parts through one small pinned buffer, raise the memory limit of \
                 the container if there is one, or use ordinary host memory",
                Bytes(self.wanted_bytes()),
                free.unwrap_or_default()
            );
        }
        if self.facts.backend == Some(BackendKind::None) && self.rounding_bytes >= self.wanted_bytes() {
            return format!(
                "the driver rounds each block up to 2 MiB, which wastes {}: allocate fewer and larger blocks, or choose \
                 the backend `caching` (PoolBuilder::backend or GPUMEM_POOL)",
                Bytes(self.rounding_bytes)
            );
        }
        format!(
            "the blocks in use and this request need {needed}, more than {}: use smaller batches or a smaller type, or free {} earlier{}",
            self.all_there_is(),
            self.missing_in_all(),
            self.holder()
        )
    }

    /// The memory that the program has to free for the device and the limit, as an object of "free".
    fn missing_in_all(&self) -> String {
        let beyond_limit = |limit_bytes| self.needed_bytes().saturating_sub(limit_bytes);
        match self.missing_bytes().max(self.limit_bytes.map_or(0, beyond_limit)) {
            missing_bytes @ 1.. if self.is_on_device() => {
                format!("at least {}", Bytes(missing_bytes).rounded_up())
            }
            _ => "memory".into(),
        }
    }

    /// Names the tag of most of the memory, or other libraries, in parentheses.
    fn holder(&self) -> String {
        if self.other_libraries_bytes > self.in_use_bytes / 2 {
            return format!(" (other libraries hold {} of this pool)", Bytes(self.other_libraries_bytes));
        }
        self.main_holder().map_or(String::new(), |holder| {
            format!(" (tag `{}` holds {})", Shown::name(&holder.tag), Bytes(holder.in_use_bytes))
        })
    }

    /// A leak and a filling cache look alike, so the advice has an action for both.
    fn find_the_leak(&self) -> String {
        let cause = match self.growth.as_ref().and_then(|growth| growth.tag.as_deref()) {
            Some(tag) => format!(
                "each step of the program leaves more blocks with the tag `{}`. If that is a leak, free them",
                Shown::name(tag)
            ),
            None => "each step of the program leaves more blocks. If that is a leak, free them; with the parts of a step in \
                     scopes (Pool::scope), this report names the part"
                .into(),
        };
        match self.limit_bytes {
            Some(_) if self.refused_by != RefusedBy::Margin && self.has_room_beyond_the_limit() => {
                let free = if self.is_on_device() {
                    format!("; the device has {} free", Bytes(self.device_free_bytes))
                } else {
                    String::new()
                };
                format!(
                    "{cause}. If it is a cache that is still filling, {}{free}",
                    self.raise_limit("well above")
                )
            }
            _ => {
                let fits = self.room_in_all().map_or(String::new(), |room_bytes| {
                    format!(" so that all blocks of the pool fit into {}", Bytes(room_bytes))
                });
                format!("{cause}. If it is a cache, limit its size{fits}")
            }
        }
    }

    /// The memory that the device and the limit have for all blocks of the pool; `None` if unknown.
    fn room_in_all(&self) -> Option<u64> {
        let on_device = || self.device_total_bytes.saturating_sub(self.others_bytes());
        let below_limit = |limit_bytes: u64| limit_bytes.saturating_sub(self.limit_others_bytes);
        // Everything that counts against a budget is in `limit_others_bytes`.
        let below_limit = self.limit_bytes.filter(|_| self.refused_by != RefusedBy::Budget).map(below_limit);
        self.is_on_device().then(on_device).into_iter().chain(below_limit).min()
    }

    fn drop_graphs(&self) -> String {
        let stream = self.capture_stream.map_or(String::new(), |stream| format!(" on {stream}"));
        match self.capture_bytes > self.graph_bytes / 2 {
            true => format!(
                "the capture{stream} that is still open retains {} that the program has freed: end it (an error may have left it \
                 open) and drop its graph, or allocate that memory before the capture begins",
                Bytes(self.capture_bytes)
            ),
            false => format!(
                "captures and graphs retain {} that the program has freed: drop graphs that are no longer launched (Graph, \
                 GraphExec), or allocate, before the captures, one block that all of them use",
                Bytes(self.graph_bytes)
            ),
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
                "{pending} of freed memory waits for work that this request could not wait for: call Device::synchronize \
                 first, or end the active capture"
            ),
        }
    }

    fn oversubscribe(&self) -> String {
        let others = match self.limit_others_bytes > self.in_use_bytes {
            true => format!(
                " (other pools hold {}{})",
                Bytes(self.limit_others_bytes),
                largest_pool(&self.limit_sharers, |pool| pool.counted_bytes)
            ),
            false => String::new(),
        };
        let drop = match self.limit_bytes {
            Some(limit_bytes) if self.wanted_bytes() > limit_bytes => String::new(),
            _ => format!("free memory{}, or ", self.holder()),
        };
        format!(
            "{} of the device (the margin) stay free, and unified memory counts as if all of it were there{others}: {drop}let \
             this pool exceed the margin (PoolBuilder::conf or GPUMEM_CONF: oversubscribe:true); pages may then move between \
             host and device, which is safe but slow",
            self.margin()
        )
    }

    fn margin(&self) -> Bytes {
        Bytes(self.device_total_bytes.saturating_sub(self.limit_bytes.unwrap_or_default()))
    }

    /// The memory available to this pool, stated in bytes if that explains the refusal.
    fn all_there_is(&self) -> String {
        let own_bytes = self.device_total_bytes.saturating_sub(self.others_bytes());
        let needed_bytes = self.needed_bytes().saturating_sub(self.limit_others_bytes);
        if self.kind == MemoryKind::Device && needed_bytes > own_bytes {
            format!("the {} that this device has for this pool", Bytes(own_bytes))
        } else {
            "is available".into()
        }
    }

    fn raise_the_limit(&self) -> String {
        let (raised, holder) = (self.raised("to"), self.holder());
        let limit = self.limit_noun();
        let whose = match &self.limit_pool {
            Some(pool) if self.facts.is_parent_limit => format!("pool {}'s", Shown::name(pool)),
            _ => "the pool's".into(),
        };
        match () {
            () if self.refused_by == RefusedBy::Budget => format!(
                "{} of the budget is in use: {raised}, or free blocks of the pools that share it{holder}",
                Bytes(self.limit_others_bytes)
            ),
            () if Some(self.needed_bytes()) <= self.limit_bytes => {
                format!("free memory under {whose} {limit} is fragmented: {raised}, or free blocks{holder}")
            }
            () if self.limit_others_bytes > self.in_use_bytes => format!(
                "other pools hold {} of the limit{}: free memory there, or {raised}",
                Bytes(self.limit_others_bytes),
                largest_pool(&self.limit_sharers, |pool| pool.counted_bytes)
            ),
            () if self.kind == MemoryKind::Device => format!(
                "the device has free memory, but the request would exceed {whose} {limit}: {raised}, or free blocks{holder}"
            ),
            () => format!(
                "{whose} {limit} refused the request, not the machine: {raised}, or free blocks{holder}"
            ),
        }
    }

    /// Like [`raised`](Self::raised), where the limit has not been mentioned.
    fn raise_limit(&self, how_far: &str) -> String {
        let limit = match &self.limit_pool {
            Some(pool) if self.facts.is_parent_limit => {
                format!("pool {}'s {}", Shown::name(pool), self.limit_noun())
            }
            _ => format!("the {}", self.limit_noun()),
        };
        self.raised(how_far).replacen("it", &limit, 1)
    }

    fn limit_noun(&self) -> &'static str {
        match self.refused_by {
            RefusedBy::Budget => "budget",
            RefusedBy::Quota => "quota",
            _ => "limit",
        }
    }

    /// The limit that allows the request, and where to set it.
    fn raised(&self, how_far: &str) -> String {
        let of = match &self.limit_pool {
            Some(pool) if self.facts.is_parent_limit => format!(" of pool {}", Shown::name(pool)),
            _ => String::new(),
        };
        // Where the limit was set comes first: another place may have no effect there.
        // The driver's pool keeps the size that it was built with.
        let is_fixed = self.facts.backend == Some(BackendKind::Native);
        let how = match (self.refused_by, self.facts.limit_given_as) {
            (RefusedBy::Budget, _) => "Budget::set_limit".into(),
            (RefusedBy::Quota, _) if is_fixed => format!("at Pool::private{of}"),
            (RefusedBy::Quota, _) => format!("at Pool::private, or with Pool::set_hard_limit{of}"),
            (_, None) => format!("Pool::set_hard_limit{of}"),
            (_, Some(given_as)) => {
                let given_as = if given_as == "hard_limit" { "PoolBuilder::hard_limit" } else { given_as };
                if is_fixed {
                    format!("{given_as}{of}")
                } else {
                    format!("{given_as}, or Pool::set_hard_limit{of}")
                }
            }
        };
        let needed = Bytes(self.raised_limit_bytes()).rounded_up();
        let more = self
            .facts
            .parent_limit_bytes
            .map(Bytes)
            .map_or(String::new(), |above| format!(", and also the parent pool's limit of {above}"));
        let least = if how_far == "to" { " or more" } else { "" };
        format!("raise it {how_far} {needed}{least} ({how}){more}")
    }

    fn free_the_device(&self) -> String {
        let others_bytes = self.others_bytes();
        let largest = self.processes.first().filter(|process| process.in_use_bytes.is_some());
        let foreign_bytes = others_bytes.saturating_sub(self.other_pools_bytes);
        let own_bytes = self.own_outside_bytes.unwrap_or_default();
        let are_pools = self.other_pools_bytes > foreign_bytes || foreign_bytes < self.context_bytes();
        let advice = match (are_pools, largest) {
            (true, _) => self.free_other_pools(),
            (false, _) if own_bytes > foreign_bytes / 2 => format!(
                "this program holds {} of this device outside of its pools (libraries such as cuBLAS, its own cuMemAlloc, the \
                 context): free {} of it, and allocate from a pool instead of cuMemAlloc",
                Bytes(own_bytes),
                self.missing()
            ),
            // Other processes are known to be others only if this process is known.
            (false, Some(process)) if self.own_outside_bytes.is_some() => format!(
                "other programs hold {} of this device, the largest is {process}: free {} there (end that program if it is \
                 yours to end), or use another device",
                Bytes(foreign_bytes.saturating_sub(own_bytes)),
                self.missing()
            ),
            (false, largest) => format!(
                "other programs, or this one outside of its pools (its own cuMemAlloc, cuBLAS, cudarc), hold {} of this device{}: \
                 find out with `nvidia-smi` whose it is and free {} there, or use another device",
                Bytes(foreign_bytes),
                largest.map_or(String::new(), |process| format!(
                    "; the largest is {process}, which may be this program under its number outside of a container"
                )),
                self.missing()
            ),
        };
        match self.limit_bytes {
            Some(_) => {
                format!(
                    "{advice}. The request would exceed the {} as well: {}",
                    self.limit_noun(),
                    self.raise_limit("to")
                )
            }
            None => advice,
        }
    }

    /// A pool keeps the memory around its blocks, and the request has tried to release everything possible.
    fn free_other_pools(&self) -> String {
        let (held, largest) =
            (Bytes(self.other_pools_bytes), largest_pool(&self.other_pools, |pool| pool.reserved_bytes));
        let missing = self.missing();
        let idle_bytes = |pool: &PoolUsage| pool.reserved_bytes.saturating_sub(pool.in_use_bytes);
        let keeps = |pool: &&PoolUsage| idle_bytes(pool) >= pool.reserved_bytes / 2;
        match self.other_pools.first().filter(keeps).filter(|_| self.facts.others_cached_bytes == 0) {
            Some(pool) => {
                let is_enough = self.missing_bytes() <= idle_bytes(pool);
                format!(
                    "other pools of this program hold {held} of this device: pool {} uses {} of its {}, and cannot release the \
                     rest because its blocks lie in all parts of it; free {missing} there{}",
                    Shown::name(&pool.name),
                    Bytes(pool.in_use_bytes),
                    Bytes(pool.reserved_bytes),
                    if is_enough { ", or use one pool for both" } else { "" }
                )
            }
            None => format!(
                "other pools of this program hold {held} of this device{largest}: free {missing} there, or request less"
            ),
        }
    }

    /// The memory that others have to free, as an object of "free".
    fn missing(&self) -> String {
        match self.missing_bytes() {
            0 => "memory".into(),
            missing_bytes => format!("at least {}", Bytes(missing_bytes).rounded_up()),
        }
    }

    /// The driver does not report why it refused, so the advice lists the likely causes.
    fn try_differently(&self) -> String {
        if self.refused_by == RefusedBy::OnPurpose {
            return "the adaptor `failures` injected this refusal: remove that adaptor where tests do not need it".into();
        }
        let more = match self.facts {
            PoolFacts { can_map: true, .. } => {
                "another program may have taken it for a moment, or the driver withholds it: retry, and if that fails, request less"
            }
            PoolFacts { backend: Some(BackendKind::Caching), .. } => {
                "it has no contiguous range of that size, or withholds it: request smaller blocks"
            }
            _ => {
                "it has no contiguous range of that size, or withholds it: request smaller blocks, or choose the backend \
                 `caching` (PoolBuilder::backend or GPUMEM_POOL), which maps separate ranges into one block"
            }
        };
        format!("the driver refused although it reports {} free: {more}", Bytes(self.device_free_bytes))
    }

    fn defragment(&self) -> String {
        let is_fragment = |largest: &u64| (1..self.requested_bytes).contains(largest);
        let largest = self.largest_free_bytes.filter(is_fragment);
        let fragments = largest
            .map_or(String::new(), |largest| format!(" (the largest free block has {})", Bytes(largest)));
        let apart = "give long-lived small blocks a pool of their own (Pool::private)";
        let more = match self.facts {
            PoolFacts { can_map: true, is_tight: true, .. } => format!(", and {apart}"),
            PoolFacts { can_map: true, .. } => {
                format!(", {apart}, or choose the profile `tight` (PoolBuilder::profile or GPUMEM_PROFILE)")
            }

            PoolFacts { backend: Some(BackendKind::Caching), .. } => {
                format!(
                    ", {apart}, or keep them out of large segments (PoolBuilder::conf or GPUMEM_CONF: max_split_size_mb:64)"
                )
            }
            _ if self.kind == MemoryKind::Device => {
                format!(
                    ", {apart}, or choose the backend `caching` (PoolBuilder::backend or GPUMEM_POOL), which remaps idle \
                     memory to where it is needed"
                )
            }
            _ => String::new(),
        };
        let fits = self.wanted_bytes() <= self.device_free_bytes || !self.is_on_device();
        let raise = match self.refused_by {
            RefusedBy::HardLimit | RefusedBy::Quota if fits => format!("; or {}", self.raise_limit("to")),
            _ => String::new(),
        };
        format!(
            "enough memory is free, but it is fragmented{fragments}: allocate large blocks first{more}{raise}"
        )
    }
}

/// Names the largest of several pools, or the only one, in a sentence about the memory of them all.
fn largest_pool(pools: &[PoolUsage], bytes: impl Fn(&PoolUsage) -> u64) -> String {
    match pools {
        [] => String::new(),
        [only] => format!(" (pool {})", Shown::name(&only.name)),
        [largest, ..] => {
            format!(" (the largest is pool {}: {})", Shown::name(&largest.name), Bytes(bytes(largest)))
        }
    }
}

/// One line, after a line break, for each attempt: all of them, or those that gained memory, failed or were slow.
pub(super) fn attempts(attempts: &[Attempt], are_all_shown: bool) -> String {
    let mut text = String::new();
    for Attempt { name, gained_bytes, took, failures } in attempts {
        if !are_all_shown && *gained_bytes == 0 && failures.is_empty() && *took < SLOW {
            continue;
        }
        let gained = match gained_bytes {
            0 => "nothing".into(),
            gained_bytes => Bytes(*gained_bytes).to_string(),
        };
        text += &format!("\n  tried: {name}: gained {gained} in {took:.1?}");
        failures.iter().for_each(|failure| text += &format!("\n    failed: {}", Shown::sentence(failure)));
    }
    text
}

/// An attempt that takes this long is listed even if it gained nothing.
const SLOW: Duration = Duration::from_millis(1);

pub(super) fn blocks(count: u64) -> String {
    if count == 1 { "in 1 block".into() } else { format!("in {count} blocks") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn attempts_without_gain_are_listed_if_they_were_slow_or_failed_or_on_demand() {
        let attempt = |name, gained_bytes, took| Attempt { name, gained_bytes, took, failures: Vec::new() };
        let failed = Attempt { failures: vec!["broken".into()], ..attempt("fails", 0, SLOW / 4) };
        let list = [
            attempt("quick", 0, SLOW / 2),
            attempt("slow", 0, SLOW * 7),
            attempt("as slow", 0, SLOW),
            attempt("gains", 1024, SLOW / 4),
            failed,
        ];
        let some = "\n  tried: slow: gained nothing in 7.0ms\n  tried: as slow: gained nothing in 1.0ms\n  tried: gains: gained 1.000 KiB in 250.0µs\n  tried: fails: \
                    gained nothing in 250.0µs\n    failed: broken";
        assert_eq!(attempts(&list, false), some);
        assert_eq!(attempts(&list, true), format!("\n  tried: quick: gained nothing in 500.0µs{some}"));
        assert_eq!(attempts(&list[..1], false), "");
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
