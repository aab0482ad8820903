//! A heap beside naive twins: a driver, clocks, and a list of the last uses of physical bytes.

use super::super::fit::UNIT_BYTES;
use super::super::space::PAGE_BYTES;
use super::super::stretches::{longest_stretch, stretches};
use super::super::view::{OnlyComplete, View};
use super::super::{BlockRequest, Heap};
use super::known::{Known, STREAMS};
use super::twin::Twin;
use crate::block::HeapBlock;
use gpumem_base::HeapTuning;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Take {
        size_bytes: u64,
        alignment: u64,
        stream: usize,
    },
    /// Blocks of one size, side by side.
    TakeRun {
        size_bytes: u64,
        count: usize,
        stream: usize,
    },
    /// The index of the live block, the number of streams that used it, and true if all its uses are known to be complete.
    Give {
        index: usize,
        uses: usize,
        complete: bool,
    },
    /// A stream waits for another.
    Wait {
        waiter: usize,
        on: usize,
    },
    OnlyComplete {
        stream: usize,
    },
    Fail {
        calls: u32,
    },
    Trim {
        keep_bytes: u64,
    },
    UnmapEmpty {
        keep_count: usize,
    },
    Settle,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let size = (8_u32..25, any::<u64>()).prop_map(|(power, low)| (1 << power) + (low & ((1 << power) - 1)));
    let alignment = prop_oneof![8 => Just(256_u64), 1 => Just(1 << 16), 1 => Just(1 << 22)];
    prop_oneof![
        8 => (size, alignment, 0..STREAMS).prop_map(|(size_bytes, alignment, stream)| Step::Take { size_bytes, alignment, stream }),
        1 => (1_u64..100_000, 0_usize..300, 0..STREAMS).prop_map(|(size_bytes, count, stream)| Step::TakeRun { size_bytes, count, stream }),
        7 => (any::<usize>(), 1..=STREAMS, prop::bool::weighted(0.2)).prop_map(|(index, uses, complete)| Step::Give { index, uses, complete }),
        1 => (0..STREAMS, 0..STREAMS).prop_map(|(waiter, on)| Step::Wait { waiter, on }),
        1 => (0..STREAMS).prop_map(|stream| Step::OnlyComplete { stream }),
        1 => (0_u32..6).prop_map(|calls| Step::Fail { calls }),
        1 => (0_u64..64 << 20).prop_map(|keep_bytes| Step::Trim { keep_bytes }),
        1 => (0_usize..8).prop_map(|keep_count| Step::UnmapEmpty { keep_count }),
        1 => Just(Step::Settle),
    ]
}

/// A heap beside its twins.
pub(super) struct Pair {
    pub(super) heap: Heap,
    pub(super) driver: Twin,
    pub(super) known: Known,
    pub(super) live: Vec<(HeapBlock, u64, usize)>,
    /// The blocks are for the host.
    pub(super) is_for_host: bool,
    /// The most that may be reserved.
    pub(super) limit_bytes: u64,
    /// Physical bytes and the stamps of their last uses.
    pub(super) used: Vec<((u64, u64, u64), Vec<Stamp>)>,
    /// Addresses and the stamps of all uses through them.
    pub(super) used_through: Vec<((u64, u64), Vec<Stamp>)>,
}

impl Pair {
    pub(super) fn new(tuning: HeapTuning) -> Self {
        let heap = Heap::new(tuning, [(1 << 40, 1 << 34), (1 << 41, 1 << 36)]);
        Self {
            heap,
            driver: Twin::default(),
            known: Known { epoch: [1; STREAMS], ..Known::default() },
            live: Vec::new(),
            is_for_host: false,
            limit_bytes: u64::MAX,
            used: Vec::new(),
            used_through: Vec::new(),
        }
    }

    pub(super) fn of_segments(tuning: HeapTuning) -> Self {
        let mut pair = Self::new(tuning);
        pair.heap = Heap::of_segments(tuning);
        pair.driver.next_segment = Some(1 << 42);
        pair
    }

    pub(super) fn run(&mut self, step: &Step) {
        let mapped = self.driver.mapped.clone();
        self.step(step);
        self.heap.check().unwrap();
        let created: u64 = self.driver.created.values().sum();
        assert_eq!(self.heap.reserved_bytes(), created, "every byte of every handle is accounted for");
        let mapped_count = if self.driver.next_segment.is_some() { 0 } else { self.driver.mapped.len() };
        assert_eq!(self.heap.mapping_count(), mapped_count, "what is mapped is known");
        for (base, (size_bytes, _)) in
            mapped.iter().filter(|(base, _)| !self.driver.mapped.contains_key(base))
        {
            self.used_through.retain(|((start, used_bytes), stamps)| {
                let is_touched = start < &(base + size_bytes) && base < &(start + used_bytes);
                let is_done = stamps.iter().all(|stamp| self.known.is_complete(*stamp));
                assert!(is_done || !is_touched, "unmapped while a use could still touch it");
                !is_touched
            });
        }
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Take { size_bytes, alignment, stream } => self.take(size_bytes, alignment, stream),
            Step::TakeRun { size_bytes, count, stream } => self.take_run(size_bytes, count, stream),
            Step::Give { index, uses, complete } if !self.live.is_empty() => {
                self.give(index % self.live.len(), uses, complete)
            }
            Step::Give { .. } => {}
            Step::Wait { waiter, on } => self.known.wait(waiter, on),
            Step::OnlyComplete { stream } => self.known.observe(stream),
            Step::Fail { calls } => self.driver.fails_in = Some(calls),
            Step::Trim { keep_bytes } => {
                let _ = self.heap.trim(keep_bytes, &self.known, &mut self.driver);
            }
            Step::UnmapEmpty { keep_count } => {
                let _ = self.heap.unmap_empty(keep_count, &self.known, &mut self.driver);
            }
            Step::Settle => self.heap.settle(&self.known),
        }
    }

    fn take(&mut self, size_bytes: u64, alignment: u64, stream: usize) {
        // Only the alignment of a segment is tested; others are the caller's responsibility.
        let alignment = if self.driver.next_segment.is_some() { UNIT_BYTES } else { alignment };
        let index = if self.is_for_host { StreamIndex::HOST } else { StreamIndex(stream as u16) };
        let request = BlockRequest { size_bytes, alignment, stream: index };
        let Some(block) = self.climb(&request) else { return };
        assert_eq!(block.address % alignment, 0);
        self.taken(block, size_bytes, stream);
    }

    fn take_run(&mut self, size_bytes: u64, count: usize, stream: usize) {
        let index = if self.is_for_host { StreamIndex::HOST } else { StreamIndex(stream as u16) };
        let request = BlockRequest { size_bytes, alignment: UNIT_BYTES, stream: index };
        let Self { heap, known, limit_bytes, .. } = self;
        heap.set_limit_bytes(*limit_bytes);
        let (reserved_bytes, mut blocks) = (heap.reserved_bytes(), Vec::new());
        heap.take_ready_run(&request, count, known, &mut blocks);
        assert!(blocks.len() <= count && heap.reserved_bytes() == reserved_bytes);
        for block in blocks {
            assert_eq!(self.heap.room_bytes(block.record), size_bytes.next_multiple_of(UNIT_BYTES));
            self.taken(block, size_bytes, stream);
        }
    }

    fn taken(&mut self, block: HeapBlock, size_bytes: u64, stream: usize) {
        let index = if self.is_for_host { StreamIndex::HOST } else { StreamIndex(stream as u16) };
        let bytes = self.driver.physical(block.address, size_bytes);
        for (other, other_bytes, _) in &self.live {
            let others = self.driver.physical(other.address, *other_bytes);
            assert!(
                !bytes.iter().any(|mine| others.iter().any(|other| overlaps(mine, other))),
                "handed out twice"
            );
        }
        let mut kept = Vec::new();
        for (place, stamps) in self.used.drain(..) {
            if bytes.iter().any(|mine| overlaps(mine, &place)) {
                assert!(
                    stamps.iter().all(|stamp| self.known.is_ordered(*stamp, index)),
                    "an earlier use could still touch it"
                );
            }
            kept.extend(
                bytes
                    .iter()
                    .fold(vec![place], |rest, mine| without(&rest, mine))
                    .into_iter()
                    .map(|rest| (rest, stamps.clone())),
            );
        }
        self.used = kept;
        self.live.push((block, size_bytes, stream));
    }

    pub(super) fn climb(&mut self, request: &BlockRequest) -> Option<HeapBlock> {
        let Self { heap, driver, known, limit_bytes, .. } = self;
        heap.set_limit_bytes(*limit_bytes);
        if let Some(block) = heap.take_ready(request, known) {
            return Some(block);
        }
        let target_bytes = heap.growth_target_bytes(request).min(*limit_bytes);
        let reserved_bytes = heap.reserved_bytes();
        if let Some(block) = heap.take_grown(request, known, driver, target_bytes).ok()? {
            assert!(heap.reserved_bytes() <= target_bytes.max(reserved_bytes));
            return Some(block);
        }
        if let Some(block) = heap.take_recycled(request, known, driver).ok()? {
            return Some(block);
        }
        let waits = heap.blockers(request, known, |_| true);
        if !waits.is_empty() && request.size_bytes.is_multiple_of(3) {
            for stamp in &waits {
                let source = usize::from(stamp.stream_index().0);
                match request.stream {
                    StreamIndex::HOST => known.observe(source),
                    waiter => known.wait(usize::from(waiter.0), source),
                }
            }
            let block = match heap.take_ready(request, known) {
                None => heap.take_recycled(request, known, driver).ok()?,
                ready => ready,
            };
            assert!(block.is_some(), "{waits:?} do not suffice");
            return block;
        }
        if let Some(block) = heap.take_grown(request, known, driver, *limit_bytes).ok()? {
            return Some(block);
        }
        let block = heap.take_glued(request, known, driver, *limit_bytes).ok()?;
        assert!(heap.reserved_bytes() <= *limit_bytes);
        block
    }

    /// A block as large as the largest free block that is reported can be taken, and nothing new is created for it.
    pub(super) fn has_what_it_says_is_free(&mut self) {
        let Self { heap, driver, known, .. } = self;
        let (size_bytes, reserved_bytes) = (heap.largest_free_bytes(known), heap.reserved_bytes());
        let complete = OnlyComplete(known);
        let view = View {
            records: &heap.map.records,
            stream: StreamIndex::HOST,
            order: &complete,
            with_ready: true,
        };
        for space in &heap.map.spaces {
            let all = stretches(space, 0, &view).into_iter().map(|(start, end)| end - start);
            assert_eq!(longest_stretch(space, &view, |_| true), all.max().unwrap_or(0));
        }
        // Smaller blocks have a different space.
        if size_bytes <= PAGE_BYTES {
            return;
        }
        let request = BlockRequest { size_bytes, alignment: UNIT_BYTES, stream: StreamIndex(0) };
        let ready = heap.take_ready(&request, known);
        let block = ready.or_else(|| heap.take_recycled(&request, known, driver).unwrap());
        let block = block.unwrap_or_else(|| panic!("{size_bytes} bytes are not to be had"));
        assert_eq!(heap.reserved_bytes(), reserved_bytes);
        heap.give(block.record, &[]);
    }

    fn give(&mut self, index: usize, uses: usize, complete: bool) {
        let (block, size_bytes, home) = self.live.swap_remove(index);
        let stamps: Vec<Stamp> = (0..uses)
            .map(|other| (home + other) % STREAMS)
            .map(|slot| Stamp::new(StreamIndex(slot as u16), self.known.epoch[slot]))
            .collect();
        if complete {
            // What is complete now includes everything on the owner stream so far.
            self.known.observe(home);
            self.heap.give(block.record, &[]);
        } else {
            self.heap.give(block.record, &stamps);
            self.used_through.push(((block.address, size_bytes), stamps.clone()));
            let bytes = self.driver.physical(block.address, size_bytes);
            self.used.extend(bytes.into_iter().map(|place| (place, stamps.clone())));
        }
    }
}

pub(super) fn overlaps(a: &(u64, u64, u64), b: &(u64, u64, u64)) -> bool {
    a.0 == b.0 && a.1 < b.2 && b.1 < a.2
}

/// Removes one range from some ranges.
pub(super) fn without(places: &[(u64, u64, u64)], taken: &(u64, u64, u64)) -> Vec<(u64, u64, u64)> {
    let mut rest = Vec::new();
    for place in places {
        if !overlaps(place, taken) {
            rest.push(*place);
            continue;
        }
        let (handle, start, end) = *place;
        rest.extend((start < taken.1).then_some((handle, start, taken.1)));
        rest.extend((taken.2 < end).then_some((handle, taken.2, end)));
    }
    rest
}
