//! [`Pool::sleep`] and [`Pool::wake`]: memory that temporarily leaves the device and keeps its addresses.
//!
//! A pool goes to sleep in this order:
//!
//! 1. Its state changes, so that requests fail on the slow path, and the key of the thread caches is removed, so that every request and
//!    every free takes that path. The fast path needs no extra check.
//! 2. Its addresses are added to the sleeping memory of the device, which every safe operation checks before it queues work
//!    ([`Sleepers`](crate::device::sleepers::Sleepers)), and calls that checked it earlier end.
//! 3. The host waits for the device, and for other devices with access to the memory.
//! 4. The backend saves the contents and releases the memory ([`Sleeping`](crate::backend::Sleeping)).
//!
//! It wakes in the opposite order. If a step fails, the steps before it are undone.

use crate::backend::{Keep, Sleeping, Slept, Woken};
use crate::error::PoolError;
use crate::pool::{Origin, Pool, State};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

impl Pool {
    /// Releases the physical memory of the pool to the device. Blocks keep their addresses, so captured graphs and stored addresses are
    /// valid again after [`Pool::wake`]. A server that alternates between training and inference lets the memory of one phase sleep during
    /// the other.
    ///
    /// Waits first for the device, and for the other devices that have access to the memory. With [`Keep::OnHost`] the contents of all
    /// blocks are copied to pinned host memory. The pool keeps that memory for its next sleep, because pinning takes longer than the
    /// copies; [`Pool::reclaim`] releases it while the pool is awake. Cached memory is released too.
    ///
    /// While the pool sleeps,
    ///
    /// - allocations return [`PoolError::Asleep`];
    /// - so do copies, fills and launches of graphs that use the memory, and all operations of `gpumem-array` on arrays in it;
    /// - blocks may be dropped on any thread. Memory without blocks is not created again by [`Pool::wake`];
    /// - the pool may be dropped: that never waits.
    ///
    /// All memory of a pool sleeps together. Put memory that sleeps separately, such as weights and caches, into parts of the pool
    /// ([`Pool::part`]). Parts and private pools ([`Pool::private`]) do not sleep with their parent.
    ///
    /// While an array of `gpumem-array` is lent to another library, until its guard is dropped (`read_on`, `write_on`, the slices for
    /// cudarc), its pool does not sleep. A guard that was leaked counts until the array is dropped. All other work that uses an address
    /// without this crate's functions is the caller's responsibility: queue it before this call or after [`Pool::wake`]. This concerns
    /// [`Block::address`](crate::Block::address) and tensors exported by DLPack.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Keep, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).build()?;
    /// let stream = Stream::new(&device)?;
    /// let mut weights = pool.alloc(6 << 20, &stream)?;
    /// weights.copy_from_host(0, &[1.0_f32, 2.0], &stream)?;
    ///
    /// let slept = pool.sleep(Keep::OnHost)?;
    /// assert_eq!((slept.copied_bytes, slept.kept_bytes), (6 << 20, 0));
    /// assert!(matches!(weights.fill(0..4, 0_u8, &stream), Err(PoolError::Asleep { .. })));
    /// // … another pool, or another program, uses the device's memory …
    /// pool.wake()?;
    ///
    /// let mut values = [0.0_f32; 2];
    /// weights.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [1.0, 2.0]);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error the pool is awake, unless the driver also refuses to undo its earlier calls: then [`Pool::is_asleep`] is true, and
    /// [`Pool::wake`] tries again. [`Keep::OnHost`] loses no contents. [`Keep::Nothing`] may have zeroed them.
    ///
    /// - [`PoolError::Unsupported`] unless the backend is `caching` and maps device memory: it does not for plain segments, unified and host memory.
    /// - [`PoolError::CannotSleep`] if the pool already sleeps or has exported or pinned blocks, if an array in it is lent to another
    ///   library, or with [`Keep::Nothing`] if an adaptor, such as [`Guard`](crate::adaptor::Guard), hides bytes beside blocks.
    /// - [`PoolError::Stream`] in the closure of [`Stream::run_borrowed`](crate::Stream::run_borrowed).
    /// - [`PoolError::Capture`] while a capture is active on one of these devices.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails, for example because the host has too little memory.
    pub fn sleep(&self, keep: Keep) -> Result<Slept, PoolError> {
        let (state, operation) = (&*self.0, "putting a pool to sleep");
        state.check_usable()?;
        let (sleeping, device) = (state.backend().sleeping()?, self.device());
        device.check_runs(operation)?;
        device.sleepers().check_not_in_call()?;
        let mut change = state.sleep_state().begin(AWAKE).map_err(|obstacle| state.cannot_sleep(obstacle))?;
        // A refusal here does not affect other threads. Checked again below, for a loan that begins in between.
        state.check_not_lent(sleeping)?;
        state.take_cache_key();
        let name = &state.setup().name;
        device.sleepers().add(name.id().number(), name.shared(), sleeping.addresses());
        device.sleepers().let_calls_end();
        device.clocks().let_calls_end();
        sleeping.prepare();
        let slept = state
            .check_not_lent(sleeping)
            .and_then(|()| {
                state.sleep_state().check_keep(keep).map_err(|obstacle| state.cannot_sleep(obstacle))
            })
            .and_then(|()| {
                device.synchronize_for_drop()?;
                state.wait_for_peers()?;
                sleeping.sleep(keep)
            });
        match slept.is_ok() || sleeping.is_asleep() {
            true => change.to = ASLEEP,
            false => state.be_awake(),
        }
        slept
    }

    /// Creates the physical memory of a sleeping pool again, at the same addresses, and restores the contents of its blocks ([`Keep`]).
    /// Does nothing if the pool is awake. When the device or a limit is full, the pool makes room like [`Pool::alloc`].
    ///
    /// # Errors
    ///
    /// After an error the pool still sleeps, without memory on the device if the driver allows. Call it again, for example after memory was
    /// freed.
    ///
    /// - [`PoolError::OutOfMemory`] if the device has too little free memory.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::CannotSleep`] if another thread is putting the pool to sleep or waking it.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn wake(&self) -> Result<Woken, PoolError> {
        let state = &*self.0;
        state.check_usable()?;
        if state.sleep_state().is_awake() {
            return Ok(Woken::default());
        }
        let sleeping = state.backend().sleeping()?;
        let mut change =
            state.sleep_state().begin(ASLEEP).map_err(|obstacle| state.cannot_sleep(obstacle))?;
        let woken = state.climb(&mut *sleeping.wake());
        if woken.is_ok() {
            state.be_awake();
            change.to = AWAKE;
        }
        drop(change);
        state.with_report(woken, &Origin { size_bytes: None, stream: None, tag: 0 })
    }

    /// True if the pool sleeps ([`Pool::sleep`]), or is currently going to sleep or waking.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        !self.0.sleep_state().is_awake()
    }
}

/// The state of a pool that may sleep.
#[derive(Debug, Default)]
pub(crate) struct SleepState {
    /// [`AWAKE`], [`ASLEEP`] or [`CHANGING`].
    now: AtomicU8,
    /// True once an adaptor has hidden bytes of a block, which must be kept.
    has_hidden_bytes: AtomicBool,
}

/// The reason why a pool cannot go to sleep or wake, for [`PoolError::CannotSleep`].
struct Obstacle {
    reason: &'static str,
    remedy: &'static str,
}

/// A change of the state. Other threads cannot change it until this is dropped.
struct Change<'a> {
    state: &'a SleepState,
    /// The state afterwards.
    to: u8,
}

impl SleepState {
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.now.load(Ordering::Relaxed) == AWAKE
    }

    /// Records that an adaptor has its own bytes in the memory.
    pub(crate) fn note_hidden_bytes(&self) {
        self.has_hidden_bytes.store(true, Ordering::SeqCst);
    }

    /// Refuses to lose contents that adaptors need. Earlier calls on streams have ended.
    fn check_keep(&self, keep: Keep) -> Result<(), Obstacle> {
        match keep == Keep::Nothing && self.has_hidden_bytes.load(Ordering::SeqCst) {
            true => Err(Obstacle {
                reason: "an adaptor has bytes of its own beside blocks, which would be lost",
                remedy: "call Pool::sleep with Keep::OnHost",
            }),
            false => Ok(()),
        }
    }

    /// Begins a change from a state. Without success, the state stays.
    fn begin(&self, from: u8) -> Result<Change<'_>, Obstacle> {
        match self.now.compare_exchange(from, CHANGING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Change { state: self, to: from }),
            Err(ASLEEP) => Err(Obstacle {
                reason: "it sleeps already",
                remedy: "call Pool::wake before it sleeps again",
            }),
            Err(_) => Err(Obstacle {
                reason: "another thread is putting it to sleep or waking it",
                remedy: "wait for that call to return",
            }),
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.state.now.store(self.to, Ordering::Release);
    }
}

impl State {
    /// Refuses requests while the pool sleeps.
    #[inline]
    pub(crate) fn check_awake(&self) -> Result<(), PoolError> {
        if self.sleep_state().is_awake() {
            Ok(())
        } else {
            Err(PoolError::Asleep { pool: self.setup().name.as_str().into() })
        }
    }

    fn cannot_sleep(&self, Obstacle { reason, remedy }: Obstacle) -> PoolError {
        PoolError::CannotSleep { pool: self.setup().name.as_str().into(), reason, remedy }
    }

    /// Refuses to put memory to sleep that another library has borrowed. Exact once the addresses are among the sleeping memory of the
    /// device and earlier calls on streams have ended.
    fn check_not_lent(&self, sleeping: &dyn Sleeping) -> Result<(), PoolError> {
        match self.device().sleepers().has_lent(&sleeping.addresses()) {
            true => Err(self.cannot_sleep(Obstacle {
                reason: "arrays in its memory are lent to another library (`read_on`, `write_on`, cudarc)",
                remedy: "drop the guards first",
            })),
            false => Ok(()),
        }
    }

    /// Lets operations use the memory, and requests take the fast path.
    fn be_awake(&self) {
        self.device().sleepers().remove(self.setup().name.id().number());
        self.give_cache_key();
    }

    /// Ends the sleep of a pool without handles and blocks.
    pub(super) fn end_sleep(&self) {
        if !self.sleep_state().is_awake() {
            self.device().sleepers().remove(self.setup().name.id().number());
        }
    }
}

const AWAKE: u8 = 0;
const CHANGING: u8 = 1;
const ASLEEP: u8 = 2;
