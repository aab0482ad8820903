//! The checks after every step and at the end of a case.

use super::coverage::Coverage;
use super::operation::Pick;
use super::step::{Step, text};
use super::twin::{Fate, Tagged};
use super::world::World;
use crate::pool::{MemoryKind, Pool, Status, TagUsage};
use gpumem_sim::{AllocationKind, LiveAllocation, Sim};

impl World<'_> {
    /// Checks everything that must hold after every step.
    pub(super) fn compare(&self, sim: &Sim) -> Step {
        let report = sim.report();
        if !report.faults.is_empty() {
            return Err("work went astray".into());
        }
        if let Some(finding) = report.findings.iter().find(|finding| finding.is_silent()) {
            return Err(finding.to_string());
        }
        let growing = self.growing.iter().map(|growing| &growing.block);
        let blocks = self.blocks.iter().map(|live| (live.block.address(), live.block.size_bytes()));
        let ours = blocks.chain(growing.map(|block| (block.address(), block.size_bytes())));
        let ours: Vec<(u64, u64)> = ours.filter(|(_, size_bytes)| *size_bytes > 0).collect();
        let is_host = |live: &&LiveAllocation| live.kind == AllocationKind::Host;
        let sink = self.sink.addr() as u64;
        let found = report.allocations.iter().filter(|live| match self.subject.kind {
            MemoryKind::Host => (is_host(live) || live.kind == AllocationKind::Pool) && live.address != sink,
            _ => !is_host(live),
        });
        let drivers: Vec<(u64, u64)> = found.map(|live| (live.address, live.size_bytes)).collect();
        // Memory may stay allocated after a drop: frees on streams of other libraries wait for the device, host-accessible memory
        // waits for all uses, and graphs keep the blocks that they use.
        let keeps_more = self.subject.is_caching()
            || self.subject.kind.is_host_accessible()
            || self.streams.had_foreign()
            || self.has_captured();
        let are_there = ours.iter().all(|block| is_covered(*block, &drivers));
        if !are_there || !keeps_more && ours.len() != drivers.len() {
            return Err(format!("the blocks are {ours:x?}, and the driver's allocations {drivers:x?}"));
        }
        for handle in &self.pools {
            handle.pool.check()?;
            self.compare_status(&handle.pool, handle.counters)?;
        }
        self.compare_adapted()?;
        self.compare_family()
    }

    /// True if any block was allocated or dropped in a capture so far.
    fn has_captured(&self) -> bool {
        !self.kept.is_empty() || self.twin.pools.iter().any(|counters| counters.part_count > 0)
    }

    fn compare_status(&self, pool: &Pool, place: usize) -> Step {
        let status = pool.status().map_err(text)?;
        let counters = &self.twin.pools[place];
        let (chunks_min, chunks_max) = self.twin.chunk_counts(place);
        let is_within = |found: u64, known: u64, more: u64| found >= known && found - known <= more;
        let counts = is_within(status.in_use_bytes, counters.in_use_bytes, counters.spare_bytes)
            && is_within(status.block_count, counters.block_count + chunks_min, chunks_max - chunks_min)
            && is_within(
                status.allocation_count,
                counters.allocation_count,
                counters.part_count + counters.undone_count,
            );
        if !counts {
            return Err(format!(
                "the counters say {counters:?}, chunks {chunks_min} to {chunks_max}; status {status:?}"
            ));
        }
        let is_tag = |(usage, (name, known)): (&TagUsage, (&&str, &Tagged))| {
            usage.tag == **name && is_known(usage, known)
        };
        if status.tags.len() != counters.tags.len() || !status.tags.iter().zip(&counters.tags).all(is_tag) {
            return Err(format!("tags have {:?}, and the counters {:?}", status.tags, counters.tags));
        }
        if self.sums_add_up(&status, counters.peak_bytes) {
            Ok(())
        } else {
            Err(format!("the sums do not add up: {status:?}, {counters:?}"))
        }
    }

    fn sums_add_up(&self, status: &Status, (peak_bytes, peak_most_bytes): (u64, u64)) -> bool {
        let found_bytes = status.in_use_peak_bytes;
        let is_peak = match self.subject.is_caching() {
            true => found_bytes >= peak_bytes && found_bytes <= status.reserved_peak_bytes,
            false => (peak_bytes..=peak_most_bytes).contains(&found_bytes),
        };
        is_peak
            && status.cached_bytes == status.reserved_bytes.saturating_sub(status.in_use_bytes)
            && status.reserved_bytes >= status.in_use_bytes
            && status.reserved_peak_bytes >= status.reserved_bytes
            && (status.device_used_bytes >= status.reserved_bytes || self.subject.kind != MemoryKind::Device)
            && status.hard_limit_bytes.is_none_or(|limit| status.in_use_peak_bytes <= limit)
    }

    /// A pool and its private pools together stay within its limit and the memory of the machine.
    fn compare_family(&self) -> Step {
        let machine_bytes = self.subject.machine_bytes(self.case);
        let limit_bytes = self.twin.pools[self.pools[0].counters].limit_bytes.unwrap_or(machine_bytes);
        let family =
            self.pools.iter().filter(|handle| self.twin.is_under(handle.counters, self.pools[0].counters));
        let statuses: Result<Vec<Status>, _> = family.map(|handle| handle.pool.status()).collect();
        let held = |status: &Status| {
            if self.subject.is_caching() { status.reserved_bytes } else { status.in_use_bytes }
        };
        let held_bytes: u64 = statuses.map_err(text)?.iter().map(held).sum();
        match held_bytes <= limit_bytes {
            true => Ok(()),
            false => Err(format!("{held_bytes} bytes are held by pools that may have {limit_bytes}")),
        }
    }

    /// Checks the contents of every block, drops everything, and checks that nothing is left.
    pub(super) fn finish(mut self, sim: &Sim, coverage: &mut Coverage) -> Step {
        self.end_graphs();
        self.compare(sim)?;
        (0..self.blocks.len()).try_for_each(|index| self.check(index))?;
        (0..self.growing.len()).try_for_each(|index| self.check_growable(index))?;
        self.return_memory();
        self.device.synchronize().map_err(text)?;
        self.marks.clear();
        self.streams.end_all(&self.device)?;
        for live in self.blocks.drain(..) {
            self.twin.free(live.block.address(), Fate::Free);
        }
        while !self.growing.is_empty() {
            self.drop_growable(Pick(0), &mut Vec::new())?;
        }
        self.compare(sim)?;
        if let Some(adapted) = &self.adapted {
            coverage.guarded += adapted.checked_count()?;
            coverage.failures += adapted.met_count;
        }
        self.close_sink()?;
        self.other.end()?;
        for handle in &self.pools {
            handle.pool.reclaim().map_err(text)?;
            let status = handle.pool.status().map_err(text)?;
            if status.reserved_bytes != 0 && !self.has_lost {
                return Err(format!("{} bytes are reserved for nothing", status.reserved_bytes));
            }
        }
        // Memory that `native` could not free on a stream of another library is released with the context.
        let keeps_some = !self.subject.is_caching() && self.streams.had_foreign();
        let (device, may_keep) = (self.device.clone(), self.has_lost || keeps_some);
        drop(self);
        device.synchronize().map_err(text)?;
        let (info, report) = (device.memory_info().map_err(text)?, sim.report());
        let is_memory_left = info.free_bytes != info.total_bytes || report.reservation_count > 0;
        if is_memory_left && !may_keep || report.stream_count + report.event_count > 0 {
            return Err(format!("something is left: {info:?}\n{report}"));
        }
        Ok(())
    }
}

/// A thread publishes its part of a peak in steps of a megabyte; at most two other threads run beside the case's own.
fn is_known(usage: &TagUsage, known: &Tagged) -> bool {
    let TagUsage { in_use_bytes, peak_bytes, block_count, allocation_count, .. } = *usage;
    *known == Tagged { in_use_bytes, peak_bytes: known.peak_bytes, block_count, allocation_count }
        && peak_bytes >= in_use_bytes
        && peak_bytes.abs_diff(known.peak_bytes) <= 3 << 20
}

/// True if adjacent allocations cover a whole block.
fn is_covered((start, size_bytes): (u64, u64), sorted: &[(u64, u64)]) -> bool {
    let mut place = start;
    for (from, length) in sorted {
        if *from <= place && place < from + length {
            place = from + length;
        }
    }
    place >= start + size_bytes
}
