//! The heap against naive twins: a driver that keeps what is mapped in a sorted map, and a list of who used which
//! physical bytes last.

use super::fit::{Fit, UNIT_BYTES, place};
use super::frames::{ones, runs};
use super::record::{Kind, NONE, Record, Records};
use super::space::{FRAME_BYTES, FRAME_SHIFT};
use super::stamps::Owner;
use super::*;
use crate::backend::caching::vmm::{Backing, RawHandle};
use crate::clock::Order;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What the driver has mapped and created, and when it refuses.
#[derive(Default)]
struct Twin {
    created: BTreeMap<u64, u64>,
    /// By address: size and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
    accessible: BTreeMap<u64, u64>,
    next: u64,
    /// Where the next segment lies: there are no handles then.
    next_segment: Option<u64>,
    /// The calls until one fails, none of those that undo.
    fails_in: Option<u32>,
}

impl Twin {
    fn refuse(&mut self) -> Result<(), DriverError> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err(DriverError::Failed { call: "cuMemMap", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY })
            }
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The physical bytes behind a stretch of addresses: handle, start, end.
    fn physical(&self, address: u64, size_bytes: u64) -> Vec<(u64, u64, u64)> {
        let (mut place, end) = (address, address + size_bytes);
        let mut found = Vec::new();
        while place < end {
            let (base, (mapped_bytes, handle)) = self.mapped.range(..=place).next_back().unwrap();
            assert!(place < base + mapped_bytes, "{place:#x} is not mapped");
            assert_eq!(self.accessible.get(base), Some(mapped_bytes), "{base:#x} is not accessible");
            let until = end.min(base + mapped_bytes);
            found.push((*handle, place - base, until - base));
            place = until;
        }
        found
    }
}

impl Backing for Twin {
    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, DriverError> {
        self.refuse()?;
        if let Some(address) = &mut self.next_segment {
            let here = *address;
            // Some lie side by side.
            *address += size_bytes + if size_bytes.is_multiple_of(3) { FRAME_BYTES } else { 0 };
            self.created.insert(here, size_bytes);
            self.mapped.insert(here, (size_bytes, here));
            self.accessible.insert(here, size_bytes);
            return Ok(RawHandle(here));
        }
        self.next += 1;
        self.created.insert(self.next, size_bytes);
        Ok(RawHandle(self.next))
    }

    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), DriverError> {
        self.refuse()?;
        assert_eq!(self.created.get(&handle.0), Some(&size_bytes), "a handle is mapped whole");
        let before = self.mapped.range(..address + size_bytes).next_back();
        assert!(before.is_none_or(|(base, (size, _))| base + size <= address), "mapped twice");
        self.mapped.insert(address, (size_bytes, handle.0));
        Ok(())
    }

    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        self.refuse()?;
        for (base, (mapped_bytes, _)) in self.mapped.range(address..address + size_bytes) {
            self.accessible.insert(*base, *mapped_bytes);
        }
        Ok(())
    }

    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        // Undoing comes right after a failure, so it is not refused.
        self.refuse()?;
        assert_eq!(self.mapped.remove(&address).unwrap().0, size_bytes, "a mapping is unmapped whole");
        self.accessible.remove(&address);
        Ok(())
    }

    fn release(&mut self, handle: RawHandle, _: u64) -> Result<(), DriverError> {
        if self.next_segment.is_some() {
            self.refuse()?;
            self.mapped.remove(&handle.0);
        }
        assert!(self.created.remove(&handle.0).is_some(), "released once");
        Ok(())
    }
}

const STREAMS: usize = 3;

/// What the clocks would say: epochs, of each stream what each knows of the others, and what is complete.
#[derive(Default)]
struct Known {
    epoch: [u64; STREAMS],
    ordered: [[u64; STREAMS]; STREAMS],
    complete: [u64; STREAMS],
}

impl Known {
    /// A stream waits for another, and so for what that has waited for.
    fn wait(&mut self, waiter: usize, on: usize) {
        let seen = self.ordered[on];
        for (mine, seen) in self.ordered[waiter].iter_mut().zip(seen) {
            *mine = (*mine).max(seen);
        }
        self.ordered[waiter][on] = self.epoch[on];
        self.epoch[on] += 1;
    }

    /// The host has waited for a stream.
    fn observe(&mut self, stream: usize) {
        self.complete[stream] = self.epoch[stream];
        self.epoch[stream] += 1;
        for (complete, ordered) in self.complete.iter_mut().zip(self.ordered[stream]) {
            *complete = (*complete).max(ordered);
        }
    }
}

impl Order for Known {
    fn is_ordered(&self, stamp: Stamp, before: Slot) -> bool {
        if before == Slot::NOBODY {
            return self.is_complete(stamp);
        }
        let (slot, before) = (usize::from(stamp.slot().0), usize::from(before.0));
        slot == before || self.ordered[before][slot] >= stamp.epoch() || self.is_complete(stamp)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        stamp == Stamp::NONE || self.complete[usize::from(stamp.slot().0)] >= stamp.epoch()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        size_bytes: u64,
        alignment: u64,
        stream: usize,
    },
    /// Which of the live ones; how many streams used it; whether all that is known to be complete.
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
    Complete {
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

fn step() -> impl Strategy<Value = Step> {
    let size = (8_u32..25, any::<u64>()).prop_map(|(power, low)| (1 << power) + (low & ((1 << power) - 1)));
    let alignment = prop_oneof![8 => Just(256_u64), 1 => Just(1 << 16), 1 => Just(1 << 22)];
    prop_oneof![
        8 => (size, alignment, 0..STREAMS).prop_map(|(size_bytes, alignment, stream)| Step::Take { size_bytes, alignment, stream }),
        7 => (any::<usize>(), 1..=STREAMS, prop::bool::weighted(0.2)).prop_map(|(index, uses, complete)| Step::Give { index, uses, complete }),
        1 => (0..STREAMS, 0..STREAMS).prop_map(|(waiter, on)| Step::Wait { waiter, on }),
        1 => (0..STREAMS).prop_map(|stream| Step::Complete { stream }),
        1 => (0_u32..6).prop_map(|calls| Step::Fail { calls }),
        1 => (0_u64..64 << 20).prop_map(|keep_bytes| Step::Trim { keep_bytes }),
        1 => (0_usize..8).prop_map(|keep_count| Step::UnmapEmpty { keep_count }),
        1 => Just(Step::Settle),
    ]
}

/// A heap beside its twins.
struct Pair {
    heap: Heap,
    driver: Twin,
    known: Known,
    live: Vec<(Piece, u64, usize)>,
    /// The host uses what is handed out.
    is_for_host: bool,
    /// Physical bytes and the stamps of their last uses.
    used: Vec<((u64, u64, u64), Vec<Stamp>)>,
    /// Addresses and the stamps of all uses through them.
    used_through: Vec<((u64, u64), Vec<Stamp>)>,
}

impl Pair {
    fn new(dials: Dials) -> Self {
        let heap = Heap::new(dials, [(1 << 40, 1 << 34), (1 << 41, 1 << 36)]);
        Self {
            heap,
            driver: Twin::default(),
            known: Known { epoch: [1; STREAMS], ..Known::default() },
            live: Vec::new(),
            is_for_host: false,
            used: Vec::new(),
            used_through: Vec::new(),
        }
    }

    fn of_segments(dials: Dials) -> Self {
        let mut pair = Self::new(dials.clone());
        pair.heap = Heap::of_segments(dials);
        pair.driver.next_segment = Some(1 << 42);
        pair
    }

    fn run(&mut self, step: &Step) {
        let mapped = self.driver.mapped.clone();
        self.step(step);
        self.heap.check().unwrap();
        let created: u64 = self.driver.created.values().sum();
        assert_eq!(self.heap.reserved_bytes(), created, "every byte of every handle is accounted for");
        let mapped_count = if self.driver.next_segment.is_some() { 0 } else { self.driver.mapped.len() };
        assert_eq!(self.heap.window_count(), mapped_count, "what is mapped is known");
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

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Take { size_bytes, alignment, stream } => self.take(size_bytes, alignment, stream),
            Step::Give { index, uses, complete } if !self.live.is_empty() => {
                self.give(index % self.live.len(), uses, complete)
            }
            Step::Give { .. } => {}
            Step::Wait { waiter, on } => self.known.wait(waiter, on),
            Step::Complete { stream } => self.known.observe(stream),
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
        // A heap of segments leaves other alignments to its caller.
        let alignment = if self.driver.next_segment.is_some() { UNIT_BYTES } else { alignment };
        let slot = if self.is_for_host { Slot::NOBODY } else { Slot(stream as u16) };
        let request = Request { size_bytes, alignment, slot };
        let Some(piece) = self.climb(&request) else { return };
        assert_eq!(piece.address % alignment, 0);
        let bytes = self.driver.physical(piece.address, size_bytes);
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
                    stamps.iter().all(|stamp| self.known.is_ordered(*stamp, request.slot)),
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
        self.live.push((piece, size_bytes, stream));
    }

    fn climb(&mut self, request: &Request) -> Option<Piece> {
        let Self { heap, driver, known, .. } = self;
        if let Some(piece) = heap.take_ready(request, known) {
            return Some(piece);
        }
        let target_bytes = heap.growth_target_bytes(request);
        let reserved_bytes = heap.reserved_bytes();
        if let Some(piece) = heap.take_grown(request, known, driver, target_bytes).ok()? {
            assert!(heap.reserved_bytes() <= target_bytes.max(reserved_bytes));
            return Some(piece);
        }
        if let Some(piece) = heap.take_recycled(request, known, driver).ok()? {
            return Some(piece);
        }
        let waits = heap.blockers(request, known);
        if !waits.is_empty() && request.size_bytes.is_multiple_of(3) {
            for stamp in &waits {
                let source = usize::from(stamp.slot().0);
                match request.slot {
                    Slot::NOBODY => known.observe(source),
                    waiter => known.wait(usize::from(waiter.0), source),
                }
            }
            let piece = match heap.take_ready(request, known) {
                None => heap.take_recycled(request, known, driver).ok()?,
                ready => ready,
            };
            assert!(piece.is_some(), "{waits:?} do not suffice");
            return piece;
        }
        heap.take_grown(request, known, driver, u64::MAX).ok()?
    }

    fn give(&mut self, index: usize, uses: usize, complete: bool) {
        let (piece, size_bytes, home) = self.live.swap_remove(index);
        let stamps: Vec<Stamp> = (0..uses)
            .map(|other| (home + other) % STREAMS)
            .map(|slot| Stamp::new(Slot(slot as u16), self.known.epoch[slot]))
            .collect();
        if complete {
            // What is complete now includes everything on home so far.
            self.known.observe(home);
            self.heap.give(piece.record, &[]);
        } else {
            self.heap.give(piece.record, &stamps);
            self.used_through.push(((piece.address, size_bytes), stamps.clone()));
            let bytes = self.driver.physical(piece.address, size_bytes);
            self.used.extend(bytes.into_iter().map(|place| (place, stamps.clone())));
        }
    }
}

fn overlaps(a: &(u64, u64, u64), b: &(u64, u64, u64)) -> bool {
    a.0 == b.0 && a.1 < b.2 && b.1 < a.2
}

/// What is left of some places when one is taken out.
fn without(places: &[(u64, u64, u64)], taken: &(u64, u64, u64)) -> Vec<(u64, u64, u64)> {
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

fn dials() -> impl Strategy<Value = Dials> {
    let split_bytes_max = prop_oneof![Just(u64::MAX), (1_u64..4).prop_map(|frames| frames * FRAME_BYTES)];
    let dials = |(growth_slack_per_mille, handle_max_frames, split_bytes_max)| Dials {
        growth_slack_per_mille,
        handle_max_frames,
        split_bytes_max,
        ..Dials::default()
    };
    (0_u32..200, 1_u32..=8, split_bytes_max).prop_map(dials)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_handed_out_twice_or_too_early(dials in dials(), steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new(dials);
        for step in &steps {
            pair.run(step);
        }
    }

    #[test]
    fn nor_is_anything_of_segments(dials in dials(), is_for_host in any::<bool>(), steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair { is_for_host, ..Pair::of_segments(dials) };
        for step in &steps {
            pair.run(step);
        }
        // What all streams are done with can be given back as a whole.
        (0..STREAMS).for_each(|stream| pair.known.observe(stream));
        pair.driver.fails_in = None;
        pair.live.drain(..).for_each(|(piece, ..)| pair.heap.give(piece.record, &[]));
        pair.run(&Step::Trim { keep_bytes: 0 });
        assert_eq!(pair.heap.reserved_bytes(), 0);
    }

    #[test]
    fn a_fit_finds_what_a_sorted_list_finds(
        sizes in prop::collection::vec((1_u64..5_000, any::<bool>()), 1..60),
        wanted in 1_u64..6_000,
        alignment in prop_oneof![Just(256_u64), Just(4096), Just(1 << 20)],
    ) {
        let (mut records, mut fit) = (Records::new(), Fit::new());
        let mut start = 0;
        let mut kept = Vec::new();
        for (units, is_removed) in sizes {
            let id = records.add(free(start, units * UNIT_BYTES));
            fit.insert(&mut records, id);
            start += units * UNIT_BYTES + FRAME_BYTES;
            if is_removed {
                fit.remove(&mut records, id);
            } else {
                kept.push(id);
            }
            prop_assert!(fit.is_consistent(&records));
        }
        let wanted_bytes = wanted * UNIT_BYTES;
        let fits = |id: &u32| place(&records[*id], wanted_bytes, 0, alignment).is_some();
        let surely = kept.iter().map(|id| records[*id].size_bytes).filter(|size| *size >= 2 * (wanted_bytes + alignment)).min();
        match fit.find(&records, wanted_bytes, 0, alignment) {
            Some(id) => {
                prop_assert!(fits(&id) && kept.contains(&id));
                prop_assert!(surely.is_none_or(|size| records[id].size_bytes <= size + size / 16));
            }
            None => prop_assert!(surely.is_none()),
        }
    }

    #[test]
    fn runs_of_ones_are_those_of_a_walk(mask in any::<u64>()) {
        let mut walked = Vec::new();
        for bit in 0..64 {
            if mask >> bit & 1 == 1 {
                match walked.last_mut() {
                    Some((first, count)) if *first + *count == bit => *count += 1,
                    _ => walked.push((bit, 1)),
                }
            }
        }
        prop_assert_eq!(runs(mask).collect::<Vec<_>>(), walked);
        prop_assert_eq!(runs(mask).fold(0, |all, (first, count)| all | ones(first, count)), mask);
    }
}

fn free(start: u64, size_bytes: u64) -> Record {
    Record {
        start,
        size_bytes,
        stamp: Stamp::NONE,
        prev: NONE,
        next: NONE,
        list_prev: NONE,
        list_next: NONE,
        owner: Owner::READY,
        kind: Kind::Free,
        space: 0,
    }
}

#[test]
fn a_program_that_repeats_itself_asks_the_driver_no_more() {
    let mut pair = Pair::new(Dials::default());
    let take = |pair: &mut Pair, size_bytes| {
        pair.climb(&Request { size_bytes, alignment: 256, slot: Slot(0) }).unwrap().record
    };
    let give = |pair: &mut Pair, record| pair.heap.give(record, &[Stamp::new(Slot(0), 1)]);
    let layers: Vec<u64> = (0..24_u64).map(|i| ((i * i * 37) % 23 + 1) << 20).collect();
    let mut mapped = Vec::new();
    for _ in 0..16 {
        // Forwards, what each layer makes is kept; backwards, each is used for something smaller, and let go.
        let mut kept = Vec::new();
        for layer_bytes in &layers {
            let scratch = take(&mut pair, layer_bytes * 2);
            kept.push(take(&mut pair, *layer_bytes));
            give(&mut pair, scratch);
        }
        for layer_bytes in layers.iter().rev() {
            let gradient = take(&mut pair, layer_bytes / 2 + 5_000);
            if let Some(record) = kept.pop() {
                give(&mut pair, record);
            }
            give(&mut pair, gradient);
        }
        pair.heap.check().unwrap();
        mapped.push((pair.driver.mapped.len(), pair.driver.created.len()));
    }
    assert_eq!(mapped[8..].iter().max(), mapped[8..].iter().min(), "{mapped:?}");
}

#[test]
fn what_nobody_holds_goes_back_once_it_is_complete() {
    let mut pair = Pair::new(Dials::default());
    (0..20).for_each(|i| {
        pair.run(&Step::Take { size_bytes: 3_000_000 * (i % 7 + 1), alignment: 256, stream: 0 })
    });
    (0..20).for_each(|_| pair.run(&Step::Give { index: 0, uses: 1, complete: false }));
    let reserved_bytes = pair.heap.reserved_bytes();
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(0), "nothing is complete");
    pair.known.observe(0);
    pair.heap.settle(&pair.known);
    pair.heap.check().unwrap();
    let kept_bytes =
        reserved_bytes - pair.heap.trim(reserved_bytes / 2, &pair.known, &mut pair.driver).unwrap();
    assert!(0 < kept_bytes && kept_bytes <= reserved_bytes / 2);
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(kept_bytes));
    pair.heap.check().unwrap();
    assert!(pair.driver.mapped.is_empty() && pair.driver.created.is_empty());
}

#[test]
fn neighbours_that_waited_for_several_streams_go_back_together() {
    let mut pair = Pair::new(Dials::default());
    let request = Request { size_bytes: 1 << 20, alignment: 256, slot: Slot(0) };
    let halves = [0, 1].map(|_| pair.climb(&request).unwrap());
    for half in halves {
        pair.heap.give(half.record, &[Stamp::new(Slot(0), 1), Stamp::new(Slot(1), 1)]);
    }
    [0, 1].into_iter().for_each(|stream| pair.known.observe(stream));
    let reserved_bytes = pair.heap.reserved_bytes();
    assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver), Ok(reserved_bytes));
}

#[test]
fn addresses_that_were_unmapped_are_used_again() {
    let mut pair = Pair::new(Dials::default());
    let mut reached = Vec::new();
    for _ in 0..6 {
        (0..12).for_each(|i| {
            pair.run(&Step::Take { size_bytes: 5_000_000 * (i % 5 + 1), alignment: 256, stream: 0 })
        });
        (0..12).for_each(|_| pair.run(&Step::Give { index: 0, uses: 1, complete: true }));
        pair.heap.trim(0, &pair.known, &mut pair.driver).unwrap();
        pair.heap.check().unwrap();
        reached.push(pair.heap.spaces[1].end());
    }
    assert_eq!(reached[2..].iter().max(), reached[2..].iter().min(), "{reached:?}");
}

#[test]
fn sizes_beyond_any_device_are_refused() {
    let mut pair = Pair::new(Dials::default());
    for size_bytes in [1 << 50, (1 << 50) + 1, 1 << 63, u64::MAX] {
        assert_eq!(pair.climb(&Request { size_bytes, alignment: 256, slot: Slot(0) }), None);
    }
    assert_eq!(pair.climb(&Request { size_bytes: 1 << 20, alignment: 1 << 63, slot: Slot(0) }), None);
    pair.heap.check().unwrap();
    assert_eq!(pair.heap.reserved_bytes(), 0);
}

#[test]
fn small_records_for_much_memory() {
    let mut pair = Pair::new(Dials::default());
    let mut live = Vec::new();
    for i in 0..2_000_u64 {
        let size_bytes = 1 << (10 + i % 14);
        live.push(pair.climb(&Request { size_bytes, alignment: 256, slot: Slot(0) }).unwrap());
    }
    let bound = 96 * live.len() + (pair.heap.reserved_bytes() >> FRAME_SHIFT) as usize * 64 + (64 << 10);
    assert!(pair.heap.record_bytes() <= bound, "{} bytes", pair.heap.record_bytes());
}
