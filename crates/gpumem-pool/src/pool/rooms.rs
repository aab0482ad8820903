//! [`Rooms`]: who waits for room in a pool, in the order of arrival, and which memory is set aside. Pure, but for the lock.
//!
//! A reservation counts what its tag has in device memory: what it has set aside, and does not have yet, is *outstanding*. A request is
//! admitted once what it lacks fits beside all outstanding memory. Requests are admitted in the order of their arrival, but one that
//! waits is passed by others that fit, until these add up to its own size.
//!
//! Where contents of others have to make way, reservations take at most half of the memory, or there are two: contents of the next request
//! return beside the work of the present one, and those of requests that have ended stay for a while.

#[cfg(test)]
mod tests;

use core::task::Waker;
use gpumem_base::sync::Lock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The queue of one pool.
#[derive(Default)]
pub(crate) struct Rooms {
    queue: Lock<RoomQueue>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct RoomQueue {
    /// The number of the latest request.
    latest: u64,
    waiting: VecDeque<WaitingRoom>,
    admitted: BTreeMap<u64, RoomSize>,
    /// True while a thread looks after futures.
    pub(super) is_attended: bool,
}

/// The size of a request, and the tag that draws from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoomSize {
    pub(crate) tag: u16,
    pub(crate) size_bytes: u64,
}

struct WaitingRoom {
    number: u64,
    room: RoomSize,
    /// The sizes of later requests that were admitted before.
    passed_bytes: u64,
    /// For a future, with its deadline.
    waker: Option<(Waker, Option<Instant>)>,
}

/// The memory of a pool at one moment.
#[derive(Debug, Default)]
pub(crate) struct RoomSupply {
    /// All memory that there is.
    pub(crate) total_bytes: u64,
    /// The bytes available without moving contents.
    pub(crate) free_bytes: u64,
    /// By tag, what arrays have in device memory that could move to the host.
    pub(crate) movable_bytes: BTreeMap<u16, u64>,
    /// By tag, what is in use, for the tags of all reservations and requests.
    pub(crate) in_use_bytes: BTreeMap<u16, u64>,
}

impl Rooms {
    pub(super) fn lock(&self) -> MutexGuard<'_, RoomQueue> {
        self.queue.lock()
    }

    /// Waits until another thread has changed the queue, or for some time.
    pub(super) fn wait<'a>(
        &self,
        queue: MutexGuard<'a, RoomQueue>,
        time: Duration,
    ) -> MutexGuard<'a, RoomQueue> {
        self.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The tags of reservations: their memory is in use by work that runs.
    pub(crate) fn tags(&self) -> BTreeSet<u16> {
        self.queue.lock().admitted.values().map(|room| room.tag).collect()
    }
}

impl RoomQueue {
    /// Adds a request to the end, and returns its number.
    pub(super) fn add(&mut self, room: RoomSize) -> u64 {
        self.latest += 1;
        let number = self.latest;
        self.waiting.push_back(WaitingRoom { number, room, passed_bytes: 0, waker: None });
        number
    }

    /// Ends a request or a reservation.
    pub(super) fn remove(&mut self, number: u64) {
        if self.admitted.remove(&number).is_none() {
            self.waiting.retain(|one| one.number != number);
        }
    }

    pub(super) fn is_admitted(&self, number: u64) -> bool {
        self.admitted.contains_key(&number)
    }

    /// Sets what is woken when the request is admitted or its deadline has passed.
    pub(super) fn set_waker(&mut self, number: u64, waker: &Waker, until: Option<Instant>) {
        if let Some(one) = self.waiting.iter_mut().find(|one| one.number == number) {
            one.waker = Some((waker.clone(), until));
        }
    }

    pub(super) fn has_wakers(&self) -> bool {
        self.waiting.iter().any(|one| one.waker.is_some())
    }

    /// Takes the wakers of requests whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Waker> {
        let is_late = |one: &WaitingRoom| {
            one.waker.as_ref().is_some_and(|(_, until)| until.is_some_and(|until| until <= now))
        };
        let late = self.waiting.iter_mut().filter(|one| is_late(one));
        late.filter_map(|one| one.waker.take()).map(|(waker, _)| waker).collect()
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.waiting.iter_mut().filter_map(|one| one.waker.take()).map(|(waker, _)| waker).collect()
    }

    /// The tags of all reservations and requests.
    pub(super) fn tags(&self) -> BTreeSet<u16> {
        let waiting = self.waiting.iter().map(|one| one.room);
        self.admitted.values().copied().chain(waiting).map(|room| room.tag).collect()
    }

    pub(super) fn reservation_count(&self) -> usize {
        self.admitted.len()
    }

    /// The number of requests that arrived before this one and still wait.
    pub(super) fn count_ahead(&self, number: u64) -> usize {
        self.waiting.iter().filter(|one| one.number < number).count()
    }

    /// The bytes that reservations have set aside and not yet drawn.
    pub(super) fn outstanding_bytes(&self, supply: &RoomSupply) -> u64 {
        let of_tag = |(tag, reserved_bytes): (u16, u64)| reserved_bytes.saturating_sub(supply.in_use(tag));
        self.reserved_bytes().into_iter().map(of_tag).fold(0, u64::saturating_add)
    }

    /// Admits the requests that fit, and returns the wakers of those that are futures.
    pub(super) fn admit(&mut self, supply: &RoomSupply) -> Vec<Waker> {
        let mut woken = Vec::new();
        let mut index = 0;
        while let Some(one) = self.waiting.get(index) {
            let room = one.room;
            let may_pass = self
                .waiting
                .iter()
                .take(index)
                .all(|ahead| ahead.passed_bytes.saturating_add(room.size_bytes) <= ahead.room.size_bytes);
            if !may_pass || !self.fits(room, supply) {
                index += 1;
                continue;
            }
            for ahead in self.waiting.iter_mut().take(index) {
                ahead.passed_bytes += room.size_bytes;
            }
            if let Some(one) = self.waiting.remove(index) {
                self.admitted.insert(one.number, room);
                woken.extend(one.waker.map(|(waker, _)| waker));
            }
        }
        woken
    }

    /// By tag, the sizes of reservations.
    fn reserved_bytes(&self) -> BTreeMap<u16, u64> {
        let mut sums = BTreeMap::new();
        for room in self.admitted.values() {
            let sum = sums.entry(room.tag).or_insert(0_u64);
            *sum = sum.saturating_add(room.size_bytes);
        }
        sums
    }

    /// The growth of the outstanding bytes if a request is admitted.
    fn missing_bytes(&self, room: RoomSize, supply: &RoomSupply) -> u64 {
        let reserved_bytes = self.reserved_bytes().get(&room.tag).copied().unwrap_or(0);
        let in_use_bytes = supply.in_use(room.tag);
        let with_it = reserved_bytes.saturating_add(room.size_bytes).saturating_sub(in_use_bytes);
        with_it - reserved_bytes.saturating_sub(in_use_bytes)
    }

    /// True if what a request lacks fits beside what is outstanding. What its own tag and those of reservations have does not move.
    fn fits(&self, room: RoomSize, supply: &RoomSupply) -> bool {
        let needed_bytes = self.outstanding_bytes(supply).saturating_add(self.missing_bytes(room, supply));
        if needed_bytes <= supply.free_bytes {
            return true;
        }
        let reserved = self.reserved_bytes();
        let with_it = reserved.values().copied().fold(room.size_bytes, u64::saturating_add);
        if self.admitted.len() >= MOVING_MIN && with_it > supply.total_bytes / MOVING_DIVISOR {
            return false;
        }
        let is_idle = |tag: &u16| *tag != room.tag && !reserved.contains_key(tag);
        let idle = supply.movable_bytes.iter().filter(|(tag, _)| is_idle(tag)).map(|(_, bytes)| *bytes);
        let could_be_free_bytes = idle.fold(supply.free_bytes, u64::saturating_add);
        needed_bytes <= could_be_free_bytes
    }
}

/// The reservations that there may be while contents make way, whatever their size.
const MOVING_MIN: usize = 2;
/// The part of the memory that reservations may take while contents make way. Of 2, 3 and 4 requests at a time, 2 served the most.
const MOVING_DIVISOR: u64 = 2;

impl RoomSupply {
    fn in_use(&self, tag: u16) -> u64 {
        self.in_use_bytes.get(&tag).copied().unwrap_or(0)
    }
}
