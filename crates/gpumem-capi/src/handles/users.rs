//! The handles that calls use at this moment, noted by each thread in a record of its own (hazard pointers: Michael, 2004).
//!
//! A call notes its handle, makes a fence, and reads the table. The end of an object changes the table, makes a fence, and reads the notes.
//! So the call finds the object gone, or the end finds the note. The fences are asymmetric: the call's fence is almost free.

use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use gpumem_base::sync::asymmetric_fence::{asymmetric_fence_heavy, asymmetric_fence_light, fence, is_light};
use std::sync::OnceLock;

/// A call's use of a handle, until [`Note::erase`].
pub(super) struct Note(&'static UserPlace);

impl Note {
    /// Notes that the calling thread uses a handle. A following read of the table finds the object, or finds that it is gone.
    #[inline(always)]
    pub(super) fn new(handle: u64) -> Self {
        let place = OWN.get().and_then(UserRecord::free_place).unwrap_or_else(outside);
        place.handle.store(handle, Ordering::Relaxed);
        owner_fence();
        Self(place)
    }

    /// Erases the note. A following read sees what the end of an object wrote before it read the note.
    #[inline(always)]
    pub(super) fn erase(&mut self) {
        // Release: the end of the object comes after everything that this call did with it.
        self.0.handle.store(0, Ordering::Release);
        owner_fence();
        if self.0.is_outside.load(Ordering::Relaxed) {
            give_back(self.0);
        }
    }
}

/// A place for a note of a thread without a record, or with a full one.
#[cold]
#[inline(never)]
fn outside() -> &'static UserPlace {
    // A thread that is ending has returned its record, and gets no other.
    if OWN.get().is_none() && OWNER.try_with(|owner| OWN.set(Some(owner.0))).is_ok() {
        return OWN.get().and_then(UserRecord::free_place).unwrap_or_else(outside);
    }
    let place = &UserRecord::take().places[0];
    place.is_outside.store(true, Ordering::Relaxed);
    place
}

/// Ends the use of a record that `outside` took for one note.
#[cold]
#[inline(never)]
fn give_back(place: &'static UserPlace) {
    place.is_outside.store(false, Ordering::Relaxed);
    if let Some(record) = UserRecord::all().find(|record| core::ptr::eq(&record.places[0], place)) {
        record.is_taken.store(false, Ordering::Release);
    }
}

/// Returns the handles that calls may be using whose reads of the table came before this thread's last change of it.
pub(super) fn handles_in_use() -> Vec<u64> {
    asymmetric_fence_heavy(*WERE_LIGHT.get_or_init(is_light));
    let places = UserRecord::all().flat_map(|record| &record.places);
    // Acquire: pairs with the release of `erase`.
    places.map(|place| place.handle.load(Ordering::Acquire)).filter(|handle| *handle != 0).collect()
}

/// True if owners began with light fences; some may make one even after the system has refused `membarrier`.
static WERE_LIGHT: OnceLock<bool> = OnceLock::new();

#[inline]
fn owner_fence() {
    if is_light() { asymmetric_fence_light() } else { fence() }
}

/// The notes of one thread. Records are never freed; those of ended threads are reused.
#[repr(align(128))]
struct UserRecord {
    places: [UserPlace; NOTES_MAX],
    is_taken: AtomicBool,
    next: Option<&'static UserRecord>,
}

/// A place for a note.
struct UserPlace {
    /// 0 if there is none.
    handle: AtomicU64,
    /// The record was taken for this note only.
    is_outside: AtomicBool,
}

/// A call uses up to two handles, and a callback inside it up to two more.
const NOTES_MAX: usize = 8;

impl UserPlace {
    #[inline]
    fn is_free(&self) -> bool {
        self.handle.load(Ordering::Relaxed) == 0
    }
}

/// The latest record.
static LATEST: AtomicPtr<UserRecord> = AtomicPtr::new(null_mut());

impl UserRecord {
    #[inline]
    fn free_place(&'static self) -> Option<&'static UserPlace> {
        self.places.iter().find(|place| place.is_free())
    }

    /// Takes a record that no thread has.
    fn take() -> &'static Self {
        let is_free = |record: &&Self| {
            record.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        Self::all().find(is_free).unwrap_or_else(Self::add)
    }

    fn add() -> &'static Self {
        let record = Box::leak(Box::new(Self {
            places: [const { UserPlace { handle: AtomicU64::new(0), is_outside: AtomicBool::new(false) } };
                NOTES_MAX],
            is_taken: AtomicBool::new(true),
            next: None,
        }));
        let address: *mut Self = record;
        let mut latest = LATEST.load(Ordering::Acquire);
        loop {
            // SAFETY: `latest` is null, or points to a record that this function published; records are never freed. No other thread can
            // reach the new record before the exchange.
            unsafe { (*address).next = latest.as_ref() };
            match LATEST.compare_exchange_weak(latest, address, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the record is never freed, and from here on only shared.
                Ok(_) => return unsafe { &*address },
                Err(found) => latest = found,
            }
        }
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: the pointer is null or a record that `add` published; records are never freed.
        let latest = unsafe { LATEST.load(Ordering::Acquire).as_ref() };
        core::iter::successors(latest, |record| record.next)
    }
}

thread_local! {
    /// The thread's record. It has no destructor, so that a lookup costs little.
    static OWN: Cell<Option<&'static UserRecord>> = const { Cell::new(None) };
    static OWNER: UserOwner = UserOwner(UserRecord::take());
}

/// Returns the thread's record when the thread ends.
struct UserOwner(&'static UserRecord);

impl Drop for UserOwner {
    fn drop(&mut self) {
        OWN.set(None);
        // A call that is still using a handle (a thread-local value of the program frees memory inside a callback) keeps it.
        if self.0.places.iter().all(UserPlace::is_free) {
            self.0.is_taken.store(false, Ordering::Release);
        }
    }
}
