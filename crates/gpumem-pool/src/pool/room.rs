//! [`Room`]: a request for memory that waits for its turn. [`Reservation`]: memory that is set aside for one piece of work.

use crate::backend::MemorySource;
use crate::error::{NoRoom, PoolError};
use crate::pool::rooms::{RoomQueue, RoomSize, RoomSupply};
use crate::pool::scope::{Scope, Tag};
use crate::pool::state::PoolHandle;
use core::fmt;
use core::future::IntoFuture;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use gpumem_device::internal::not_forked;
use gpumem_sys::fork;
use gpumem_sys::text::{Shown, debug_fields};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// A request for room in a pool, made by [`Pool::room`](crate::Pool::room). It takes its place in the queue when it is waited for: by
/// [`Room::wait`], or by `.await`.
#[must_use = "wait for it, await it, or try it"]
pub struct Room {
    pool: PoolHandle,
    size_bytes: u64,
    tag: Option<Tag>,
    deadline: Option<Duration>,
}

/// The wait for room, as a future. Dropping it gives up its place in the queue. After it was ready, it stays pending.
#[must_use = "futures do nothing unless polled"]
pub struct RoomFuture(Result<RoomPlace, Option<PoolError>>);

/// Room that is set aside for one piece of work, until it is dropped.
///
/// Device memory of its tag is drawn from it: blocks and arrays that are allocated in its [`Reservation::scope`], or with its
/// [`Reservation::tag`]. The rest stays set aside, and no other request for room gets it. Allocations outside of all reservations are not
/// held back.
/// Dropping the reservation frees no memory.
#[must_use = "the room is given up when it is dropped"]
pub struct Reservation(RoomPlace);

/// A place in the queue of a pool, or among its reservations.
struct RoomPlace {
    pool: PoolHandle,
    number: u64,
    room: RoomSize,
    tag: Tag,
    since: Instant,
    until: Option<Instant>,
}

impl Room {
    pub(super) fn new(pool: &PoolHandle, size_bytes: u64) -> Self {
        Self { pool: pool.clone(), size_bytes, tag: None, deadline: None }
    }

    /// Counts what this tag has in device memory already as a part of the room. Without it, each request has a tag of its own.
    ///
    /// A service that keeps memory for each of its sessions gives each session a tag, and asks for room for all that a session needs while
    /// it runs. In a pool that spills, the memory of sessions that have no reservation counts as room, because it can move to the host, and
    /// the copies of what the session has there begin when it is admitted. Where memory has to make way, at most two reservations are
    /// admitted, or as many as fit into half of the memory.
    pub fn tag(mut self, tag: &Tag) -> Self {
        self.tag = Some(tag.clone());
        self
    }

    /// Gives up after this time in the queue.
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = Some(time);
        self
    }

    /// Returns the reservation if the room is available now and no earlier request must be served first; otherwise `None`.
    ///
    /// # Errors
    ///
    /// Those of [`Room::wait`], but for the deadline.
    pub fn try_now(self) -> Result<Option<Reservation>, PoolError> {
        let place = self.queue_up()?;
        let (queue, woken) = place.admit(place.pool.rooms.lock())?;
        let is_admitted = queue.is_admitted(place.number);
        drop(queue);
        wake(woken);
        Ok(is_admitted.then(|| Reservation::begin(place)))
    }

    /// Blocks this thread until the room is set aside. Work that asks for room while it has a reservation may wait for itself: ask for all of it
    /// at once, or set a deadline.
    ///
    /// # Errors
    ///
    /// - [`PoolError::NoRoom`] if the limit, or the device, is smaller than the request, or if the deadline has passed.
    /// - [`PoolError::Device`] if a query of the device's memory fails, or in a forked child.
    pub fn wait(self) -> Result<Reservation, PoolError> {
        let place = self.queue_up()?;
        loop {
            let (mut queue, woken) = place.admit(place.pool.rooms.lock())?;
            if !woken.is_empty() {
                drop(queue);
                wake(woken);
                queue = place.pool.rooms.lock();
            }
            if queue.is_admitted(place.number) {
                break;
            }
            if place.is_late() {
                return Err(place.no_room(queue));
            }
            drop(place.pool.rooms.wait(queue, TICK));
        }
        Ok(Reservation::begin(place))
    }

    fn queue_up(self) -> Result<RoomPlace, PoolError> {
        not_forked()?;
        let Self { pool, size_bytes, tag, deadline } = self;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let own_tag = || Tag::new(&pool.tags, &format!("room {}", NEXT.fetch_add(1, Ordering::Relaxed)));
        // A tag of another pool counts for its name here.
        let tag = tag.map_or_else(own_tag, |tag| Tag::new(&pool.tags, tag.name()));
        let since = Instant::now();
        let until = deadline.and_then(|time| since.checked_add(time));
        let room = RoomSize { tag: tag.with_number_in(&pool.tags, |number| number), size_bytes };
        let number = pool.rooms.lock().add(room);
        let place = RoomPlace { number, pool, room, tag, since, until };
        let most_bytes = place.most_bytes()?;
        if size_bytes > most_bytes {
            return Err(place.no_room(place.pool.rooms.lock()));
        }
        Ok(place)
    }
}

impl IntoFuture for Room {
    type Output = Result<Reservation, PoolError>;
    type IntoFuture = RoomFuture;

    /// Queues up: the place in the queue and the deadline count from this call.
    fn into_future(self) -> RoomFuture {
        RoomFuture(self.queue_up().map_err(Some))
    }
}

impl Future for RoomFuture {
    type Output = Result<Reservation, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &self.0 {
            Ok(place) => place.poll(context.waker()),
            Err(_) => Poll::Ready(Ok(())),
        };
        let outcome = match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(outcome) => outcome,
        };
        let place = core::mem::replace(&mut self.0, Err(None));
        Poll::Ready(match (place, outcome) {
            (Ok(place), Ok(())) => Ok(Reservation::begin(place)),
            (Ok(_), Err(error)) | (Err(Some(error)), _) => Err(error),
            (Err(None), _) => return Poll::Pending,
        })
    }
}

impl Reservation {
    /// Contents of its tag that are away return from now on.
    fn begin(place: RoomPlace) -> Self {
        if let Some(spiller) = place.pool.spiller() {
            spiller.bring_back_all(place.room.tag);
        }
        Self(place)
    }

    /// The size of the room.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.room.size_bytes
    }

    /// The tag whose memory is drawn from the room, for [`Pool::alloc_tagged`](crate::Pool::alloc_tagged).
    #[must_use]
    pub fn tag(&self) -> &Tag {
        &self.0.tag
    }

    /// While the result is alive, what this thread allocates from the pool is drawn from the room: blocks and arrays.
    pub fn scope(&self) -> Scope {
        Scope::open(&self.0.pool.tags, self.0.tag.name())
    }
}

impl RoomPlace {
    /// Admits what fits now. Returns the queue, and the wakers of futures that were admitted.
    fn admit<'a>(
        &self,
        mut queue: MutexGuard<'a, RoomQueue>,
    ) -> Result<(MutexGuard<'a, RoomQueue>, Vec<Waker>), PoolError> {
        let woken = admit(&self.pool, &mut queue)?;
        if queue.is_admitted(self.number) || !woken.is_empty() {
            // Threads that were admitted by this call find out.
            self.pool.rooms.wake();
        }
        Ok((queue, woken))
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<(), PoolError>> {
        let (mut queue, woken) = match self.admit(self.pool.rooms.lock()) {
            Ok(admitted) => admitted,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if queue.is_admitted(self.number) {
            drop(queue);
            wake(woken);
            return Poll::Ready(Ok(()));
        }
        if self.is_late() {
            return Poll::Ready(Err(self.no_room(queue)));
        }
        queue.set_waker(self.number, waker, self.until);
        let must_attend = !core::mem::replace(&mut queue.is_attended, true);
        drop(queue);
        wake(woken);
        if must_attend && attend(self.pool.clone()).is_err() {
            // Without a thread, the executor has to ask again and again.
            self.pool.rooms.lock().is_attended = false;
            waker.wake_by_ref();
        }
        Poll::Pending
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// The most that a request can get.
    fn most_bytes(&self) -> Result<u64, PoolError> {
        let pool = &self.pool;
        let device_bytes = pool.device().total_bytes();
        Ok(if pool.is_for_host { u64::MAX } else { device_bytes }
            .min(pool.limits.hard_bytes().unwrap_or(u64::MAX)))
    }

    fn no_room(&self, queue: MutexGuard<'_, RoomQueue>) -> PoolError {
        let supply = supply(&self.pool, &queue).ok().flatten().unwrap_or_default();
        PoolError::NoRoom(Box::new(NoRoom {
            pool: self.pool.name().as_str().into(),
            requested_bytes: self.room.size_bytes,
            most_bytes: self.most_bytes().unwrap_or(0),
            free_bytes: supply.free_bytes,
            outstanding_bytes: queue.outstanding_bytes(&supply),
            reservation_count: queue.reservation_count(),
            waiting_count: queue.count_ahead(self.number),
            waited: self.since.elapsed(),
        }))
    }
}

impl Drop for RoomPlace {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let mut queue = self.pool.rooms.lock();
        queue.remove(self.number);
        // A failed query shows in the waits of others, which repeat it.
        let woken = admit(&self.pool, &mut queue).unwrap_or_default();
        drop(queue);
        self.pool.rooms.wake();
        wake(woken);
    }
}

debug_fields!(Reservation, it, size_bytes: it.0.room.size_bytes, tag: Shown::name(it.0.tag.name()));

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("size_bytes", &self.size_bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for RoomFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoomFuture").finish_non_exhaustive()
    }
}

fn admit(pool: &PoolHandle, queue: &mut RoomQueue) -> Result<Vec<Waker>, PoolError> {
    // While memory changes hands all the time, the next look decides.
    Ok(supply(pool, queue)?.map(|supply| queue.admit(&supply)).unwrap_or_default())
}

/// The memory of the pool now; `None` if other threads allocate and free so fast that no moment could be caught.
fn supply(pool: &PoolHandle, queue: &RoomQueue) -> Result<Option<RoomSupply>, PoolError> {
    let tags = queue.tags();
    for _ in 0..LOOKS_MAX {
        let counts = || {
            let counts = pool.backend.counts();
            (counts.in_use_bytes, counts.block_count)
        };
        let before = counts();
        // A block is counted for its tag after it is counted as in use, and is taken off before: no memory counts as free and as drawn.
        let in_use_bytes = pool.tags.in_use_of(&tags);
        if counts() != before {
            continue;
        }
        let cached_bytes = pool.reserved_bytes()?.saturating_sub(before.0);
        let free_bytes = match pool.limits.hard_bytes() {
            Some(limit_bytes) => {
                let room_bytes = pool.limits.node.room_bytes().saturating_add(cached_bytes);
                room_bytes.min(limit_bytes.saturating_sub(before.0))
            }
            None => pool.device().memory_info()?.free_bytes.saturating_add(cached_bytes),
        };
        let movable_bytes = pool.spiller().map(|spiller| spiller.movable_bytes()).unwrap_or_default();
        let total_bytes = pool.limits.hard_bytes().unwrap_or_else(|| pool.device().total_bytes());
        return Ok(Some(RoomSupply { total_bytes, free_bytes, movable_bytes, in_use_bytes }));
    }
    Ok(None)
}

/// Runs code of executors, so no lock is held.
fn wake(woken: Vec<Waker>) {
    woken.into_iter().for_each(Waker::wake);
}

/// Starts a thread that wakes futures, until none is left. It polls, because frees of memory outside of reservations wake nothing.
fn attend(pool: PoolHandle) -> std::io::Result<()> {
    let work = move || {
        loop {
            std::thread::sleep(TICK);
            let mut queue = pool.rooms.lock();
            let mut woken = queue.take_late(Instant::now());
            // The futures find the error of a failed query themselves.
            match admit(&pool, &mut queue) {
                Ok(admitted) => woken.extend(admitted),
                Err(_) => woken.extend(queue.take_wakers()),
            }
            let is_over = !queue.has_wakers();
            if is_over {
                queue.is_attended = false;
            }
            drop(queue);
            pool.rooms.wake();
            wake(woken);
            if is_over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("gpumem-room".into()).spawn(work).map(drop)
}

/// Looks for a moment in which nothing changes.
const LOOKS_MAX: u32 = 16;
/// How often requests look for memory that was freed.
const TICK: Duration = Duration::from_millis(1);
