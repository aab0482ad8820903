//! [`Staging`]: pinned buffers and threads for copies from and to pageable memory.
//!
//! The driver copies pageable memory with one thread, through an internal buffer. Here several threads fill or drain pinned buffers while
//! the link transfers others. The buffers form a ring of bounded size in the pinned pool of the `Gpu`. They are allocated when a copy needs
//! them, and freed when pinned memory is short or when no copy has used them for a while. A thread that lives as long as the buffers checks
//! this.
//!
//! A copy waits for a buffer without a time limit only if its own stream uses it, whose work it waits for anyway. The work of another
//! stream may depend on this thread, so a copy continues without a buffer if other streams use all of them.

#[allow(unsafe_code)] // writes memory with streaming stores
mod copy;
#[allow(unsafe_code)] // copies memory of callers, who wait for it
mod workers;

use super::pools::GpuPools;
use super::recording::Access;
use super::transfers::TransferCounters;
use crate::error::ArrayError;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use core::time::Duration;
use gpumem_pool::sys::env::{self, EnvError, Variable};
use gpumem_pool::sys::fork;
use gpumem_pool::{
    Block, CaptureError, DeviceError, Event, MemoryKind, MemoryRange, PoolError, Reclaimable, Registration,
    Stream, StreamId, not_forked,
};
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use workers::Workers;
pub(crate) use workers::{Burst, Conversion, Copying, HostCopy, PIECE_BYTES, Stores};

/// How large copies from and to pageable memory are staged; see [`Gpu::set_staging`](crate::Gpu::set_staging).
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::StagingOptions;
///
/// gpu.set_staging(StagingOptions::new().threads(2).buffers(4));
/// let host = vec![1.5_f32; 4 << 20];
/// assert_eq!(GpuArray::from_slice(&gpu, &host)?.to_vec()?, host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    buffer_bytes: usize,
    buffer_count: usize,
    thread_count: usize,
}

impl StagingOptions {
    /// The defaults: 16 buffers of 4 MiB, and a thread for each processor except one, at most 11. With these defaults the link is the
    /// bottleneck on an H200 machine (`benches/feeding --sweep`).
    #[must_use]
    pub fn new() -> Self {
        let processor_count = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            buffer_bytes: 4 << 20,
            buffer_count: 16,
            thread_count: (processor_count - 1).clamp(1, THREADS_DEFAULT_MAX),
        }
    }

    /// Reads the variable `GPUMEM_STAGING`; the defaults if it is unset. [`Gpu::open`](crate::Gpu::open) does this.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the value is invalid, or if another `GPUMEM_…` variable is unknown.
    pub fn from_env() -> Result<Self, ArrayError> {
        let (name, expected) = (
            "GPUMEM_STAGING",
            "expected for example buffers:16,buffer_bytes:4MiB,threads:8; at most 256 threads",
        );
        let Some(value) = env::read(VARIABLES, name).map_err(PoolError::from)? else {
            return Ok(Self::new());
        };
        let bad_value = || EnvError::BadValue { name, value: value.clone(), expected: expected.into() };
        Self::parse(&value).ok_or_else(|| ArrayError::from(PoolError::from(bad_value())))
    }

    fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::new(), |options, option| {
            let (key, value) = option.split_once(':')?;
            match key.trim().to_lowercase().as_str() {
                "buffers" => value.trim().parse().ok().map(|count| options.buffers(count)),
                "threads" => {
                    let count = value.trim().parse().ok().filter(|count| *count <= THREADS_MAX);
                    count.map(|count| options.threads(count))
                }
                "buffer_bytes" => {
                    let size_bytes = env::parse_size(value).and_then(|bytes| usize::try_from(bytes).ok());
                    size_bytes.map(|size_bytes| options.buffer_bytes(size_bytes))
                }
                _ => None,
            }
        })
    }

    /// Sets the size of a buffer, in bytes: at least 64 KiB.
    #[must_use]
    pub fn buffer_bytes(self, buffer_bytes: usize) -> Self {
        Self { buffer_bytes: buffer_bytes.max(BUFFER_BYTES_MIN), ..self }
    }

    /// Sets the number of buffers, which bounds the pinned memory of staging. With 0, the driver copies.
    #[must_use]
    pub fn buffers(self, buffer_count: usize) -> Self {
        Self { buffer_count, ..self }
    }

    /// Sets the number of threads that copy in addition to the calling thread. Larger numbers than 256 count as 256. They start with the
    /// first copy that needs them.
    #[must_use]
    pub fn threads(self, thread_count: usize) -> Self {
        Self { thread_count: thread_count.min(THREADS_MAX), ..self }
    }
}

/// The variables that [`Gpu::open`](crate::Gpu::open) reads, in addition to those of the pool.
pub const VARIABLES: &[Variable] = &[Variable {
    name: "GPUMEM_STAGING",
    meaning: "`key:value,…`: the pinned buffers of large copies from and to pageable memory. `buffers` is their number (default 16; with 0 the \
              driver copies), `buffer_bytes` the size of one (default 4MiB), `threads` the number of threads that fill and drain them (at most 256). \
              `Gpu::open` and `StagingOptions::from_env` read it; `Gpu::new` has the defaults",
}];

impl Default for StagingOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The buffers and threads of one `Gpu` and its forks.
pub(crate) struct Staging {
    options: StagingOptions,
    ring: Arc<BufferRing>,
    workers: Workers,
    counters: Arc<TransferCounters>,
}

struct BufferRing {
    state: Mutex<RingState>,
    /// Notified when a buffer is returned.
    returned: Condvar,
    /// Notified when the [`Staging`] ends.
    ended: Condvar,
    registration: OnceLock<Registration>,
}

#[derive(Default)]
struct RingState {
    /// Buffers that no copy has. The device may still use them.
    idle: Vec<PinnedBuffer>,
    count: usize,
    /// The number of buffers that the pool did not refuse.
    count_max: Option<usize>,
    /// The number of copies that continue without a buffer before the pool is asked again after a refusal.
    skip_count: usize,
    /// How often a buffer has been returned.
    return_count: u64,
    /// How often a buffer of the current ring has been returned.
    use_count: usize,
    /// How often the idle buffers have been freed.
    release_count: u64,
    /// The thread that frees idle buffers. It ends when there are no buffers, and is joined later.
    watcher: Option<JoinHandle<()>>,
    is_watched: bool,
    is_ending: bool,
}

struct PinnedBuffer {
    block: Block,
    /// Behind the last use by the device.
    used: Event,
    stream: StreamId,
}

/// A buffer that a copy has. If it is dropped instead of returned, its memory is freed in stream order.
pub(crate) struct Lent<'a> {
    buffer: PinnedBuffer,
    place: RingPlace<'a>,
}

/// The count of one buffer in the ring, until the drop.
struct RingPlace<'a>(&'a BufferRing);

/// The answer to a copy that needs a buffer.
pub(crate) enum BufferAnswer<'a> {
    Buffer(Lent<'a>),
    /// All buffers are in use. The copy has some of them.
    Later,
    /// The copy continues without a buffer: the pinned pool has no memory, or other streams use all buffers.
    Direct,
}

impl Staging {
    pub(super) fn new(options: StagingOptions, counters: &Arc<TransferCounters>) -> Arc<Self> {
        let ring = Arc::new(BufferRing {
            state: Mutex::default(),
            returned: Condvar::new(),
            ended: Condvar::new(),
            registration: OnceLock::new(),
        });
        let workers = Workers::new(options.thread_count);
        Arc::new(Self { options, ring, workers, counters: counters.clone() })
    }

    /// The size of the buffers, or `None` if copies are not staged.
    pub(crate) fn buffer_bytes(&self) -> Option<usize> {
        (self.options.buffer_count > 0).then_some(self.options.buffer_bytes)
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Returns a buffer that no device uses, for a copy on `stream`. With `may_wait`, the copy has no buffer yet: the call waits for one, or answers that the copy
    /// continues without a buffer.
    pub(crate) fn buffer(
        &self,
        pools: &GpuPools,
        stream: &Stream,
        may_wait: bool,
    ) -> Result<BufferAnswer<'_>, ArrayError> {
        not_forked()?;
        let mut deadline = None;
        loop {
            match self.try_take(pools, stream, may_wait) {
                BufferAnswer::Direct if !may_wait => return Ok(BufferAnswer::Later),
                BufferAnswer::Later if may_wait => {}
                answer => return Ok(answer),
            }
            if let Some(lent) = self.ring.take_used_on(stream) {
                let begin = Instant::now();
                let waited = lent.synchronize();
                self.counters.add_device_wait(begin.elapsed());
                match waited {
                    Ok(()) => return Ok(BufferAnswer::Buffer(lent)),
                    // The pool frees the buffer's memory when possible.
                    Err(DeviceError::Capture(CaptureError::NotCapturable { .. })) => {
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + OTHERS_END_WITHIN) {
                return Ok(BufferAnswer::Direct);
            }
            let (state, begin) = (self.ring.lock(), Instant::now());
            let _ = self.ring.returned.wait_timeout(state, PAUSE);
            self.counters.add_device_wait(begin.elapsed());
        }
    }

    /// Does not wait.
    fn try_take(&self, pools: &GpuPools, stream: &Stream, may_wait: bool) -> BufferAnswer<'_> {
        let ring = &*self.ring;
        // The driver is called outside the lock.
        let (mut idle, release_count) = {
            let mut state = ring.lock();
            (core::mem::take(&mut state.idle), state.release_count)
        };
        let (mut ready, mut lost) = (None, Vec::new());
        let mut index = 0;
        // Copies on one stream complete in order, and querying a pending one takes about a microsecond.
        let mut pending: Option<StreamId> = None;
        while index < idle.len() && ready.is_none() {
            if pending == Some(idle[index].stream) {
                index += 1;
                continue;
            }
            match idle[index].used.is_complete() {
                Ok(true) => ready = Some(idle.remove(index)),
                Ok(false) => {
                    pending = Some(idle[index].stream);
                    index += 1;
                }
                // A capture recorded the event, or the context is lost: the pool knows when the memory is free.
                Err(_) => lost.push(idle.remove(index)),
            }
        }
        let mut state = ring.lock();
        if state.release_count != release_count {
            // The pool has asked for the idle buffers since.
            lost.append(&mut idle);
        }
        idle.append(&mut state.idle);
        state.idle = idle;
        state.count -= lost.len();
        if let Some(buffer) = ready {
            return BufferAnswer::Buffer(Lent { buffer, place: RingPlace(ring) });
        }
        let count_max = self.options.buffer_count.min(state.count_max.unwrap_or(usize::MAX));
        if state.count > 0 && state.count >= count_max {
            return BufferAnswer::Later;
        }
        // Pinning a buffer takes longer than many copies through existing buffers, so the ring grows only while it is used.
        let is_used = state.use_count >= state.count * USES_BEFORE_GROWTH;
        let has_own = || state.idle.iter().any(|buffer| buffer.stream == stream.id());
        if state.count > 0 && !is_used && (!may_wait || has_own()) {
            return BufferAnswer::Later;
        }
        if state.skip_count > 0 {
            state.skip_count -= 1;
            return BufferAnswer::Direct;
        }
        state.count += 1;
        drop(state);
        drop(lost);
        self.allocated(pools)
    }

    /// Adds a buffer, which is counted already.
    fn allocated(&self, pools: &GpuPools) -> BufferAnswer<'_> {
        let ring = &*self.ring;
        ring.registration.get_or_init(|| Registration::new(pools.device(), &self.ring));
        let place = RingPlace(ring);
        if let Ok(buffer) = PinnedBuffer::new(pools, self.options.buffer_bytes) {
            self.ring.watch();
            return BufferAnswer::Buffer(Lent { buffer, place });
        }
        drop(place);
        let mut state = ring.lock();
        match state.count {
            0 => {
                state.skip_count = SKIPPED_REQUESTS;
                BufferAnswer::Direct
            }
            // The copy continues with the existing buffers.
            count => {
                state.count_max = Some(count);
                BufferAnswer::Later
            }
        }
    }
}

impl BufferRing {
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The least recently used buffer of a stream.
    fn take_used_on(&self, stream: &Stream) -> Option<Lent<'_>> {
        let mut state = self.lock();
        let index = state.idle.iter().position(|buffer| buffer.stream == stream.id())?;
        Some(Lent { buffer: state.idle.remove(index), place: RingPlace(self) })
    }

    /// Frees the buffers that no copy has, in the order of their streams.
    fn release_idle(&self) {
        let mut state = self.lock();
        let idle = state.take_idle();
        drop(state);
        drop(idle);
    }

    /// Starts the thread that frees the buffers when they are idle, unless it runs. If the system refuses it, only the pool asks for them.
    fn watch(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.is_watched {
            return;
        }
        let ring = Arc::clone(self);
        let watcher = std::thread::Builder::new().name("gpumem-staging-idle".into());
        let watcher = watcher.spawn(move || ring.release_when_idle()).ok();
        state.is_watched = watcher.is_some();
        let ended = core::mem::replace(&mut state.watcher, watcher);
        drop(state);
        // It has freed its buffers, so joining it does not wait.
        let _ = ended.map(JoinHandle::join);
    }

    /// Frees the buffers when no copy has used them for a while. Returns when there are none.
    fn release_when_idle(&self) {
        let mut state = self.lock();
        let mut return_count = state.return_count;
        while !state.is_ending {
            let (next, wait) =
                self.ended.wait_timeout(state, IDLE_AFTER).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if !wait.timed_out() {
                continue;
            }
            let was_used = core::mem::replace(&mut return_count, state.return_count) != state.return_count;
            if !was_used && state.count == state.idle.len() {
                let idle = state.take_idle();
                drop(state);
                drop(idle);
                state = self.lock();
                if state.count == 0 {
                    // The next buffer starts another thread.
                    state.is_watched = false;
                    return;
                }
            }
        }
    }
}

impl RingState {
    /// Takes the buffers that no copy has, so that they can be dropped outside the lock.
    fn take_idle(&mut self) -> Vec<PinnedBuffer> {
        let idle = core::mem::take(&mut self.idle);
        self.count -= idle.len();
        self.use_count = 0;
        self.count_max = None;
        self.release_count += 1;
        idle
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let watcher = {
            let mut state = self.ring.lock();
            state.is_ending = true;
            state.watcher.take()
        };
        self.ring.ended.notify_all();
        // The thread may be freeing buffers, whose pool must not outlive this. It frees them in stream order, without waiting or panicking.
        let is_other = |watcher: &JoinHandle<()>| watcher.thread().id() != std::thread::current().id();
        let _ = watcher.filter(is_other).map(JoinHandle::join);
        // A thread that is reclaiming memory may still have the ring.
        self.ring.release_idle();
    }
}

impl Reclaimable for BufferRing {
    fn name(&self) -> &str {
        "buffers of staged copies"
    }

    fn helps(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Host
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.release_idle();
        Ok(())
    }
}

impl PinnedBuffer {
    fn new(pools: &GpuPools, size_bytes: usize) -> Result<Self, ArrayError> {
        // An adaptor of the pool may queue work that fills the block; it waits for no other work here.
        let stream = pools.idle_stream()?;
        let block = pools.of(MemoryKind::Host)?.alloc(size_bytes as u64, &stream)?;
        let used = Event::new(pools.device())?;
        stream.synchronize()?;
        match block.host_ptr() {
            Some(_) => Ok(Self { block, used, stream: stream.id() }),
            None => Err(ArrayError::NoHostAccess { device: pools.device().to_string() }),
        }
    }
}

impl Lent<'_> {
    pub(crate) fn address(&self) -> u64 {
        self.buffer.block.address()
    }

    /// The memory, for the work that copies from or to it.
    pub(crate) fn memory(&self) -> MemoryRange {
        MemoryRange::from(&self.buffer.block)
    }

    /// The address for the host. The memory is as large as [`Staging::buffer_bytes`].
    pub(crate) fn host_ptr(&self) -> *mut u8 {
        self.buffer.block.host_ptr().map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Declares an access of the host to the simulator, which detects races.
    pub(crate) fn note_host_access(&self, access: Access, size_bytes: usize) {
        #[cfg(feature = "sim")]
        if let Some(sim) = gpumem_sim::Sim::of(self.buffer.block.device().driver()) {
            match access {
                Access::Read => sim.host_reads(self.host_ptr(), size_bytes),
                Access::Write => sim.host_writes(self.host_ptr(), size_bytes),
            }
        }
        #[cfg(not(feature = "sim"))]
        let _ = (access, size_bytes);
    }

    /// Makes the end of the memory wait for a stream. Call it before work on the buffer is queued.
    pub(crate) fn record_use(&mut self, stream: &Stream) {
        self.buffer.block.record_use(stream);
        self.buffer.stream = stream.id();
    }

    /// Marks the end of the work on the buffer. Call it when the work has been queued.
    pub(crate) fn record_end(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.buffer.used.record(stream)
    }

    /// True if the work on the buffer is done. Does not wait.
    pub(crate) fn is_complete(&self) -> Result<bool, DeviceError> {
        self.buffer.used.is_complete()
    }

    /// Waits for the work on the buffer.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.buffer.used.synchronize()
    }

    /// Returns the buffer, whose work may still run.
    pub(crate) fn give_back(self) {
        let Self { buffer, place } = self;
        let mut state = place.0.lock();
        state.idle.push(buffer);
        state.return_count += 1;
        state.use_count = state.use_count.saturating_add(1);
        drop(state);
        place.0.returned.notify_one();
        core::mem::forget(place);
    }
}

impl Drop for RingPlace<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
        self.0.returned.notify_one();
    }
}

const BUFFER_BYTES_MIN: usize = 64 << 10;
/// More threads than this do not copy faster.
const THREADS_DEFAULT_MAX: usize = 11;
const THREADS_MAX: usize = 256;
/// How often each buffer is used before another is pinned. Pinning costs about what staging saves on eight buffers, so a program with few
/// copies loses nothing.
const USES_BEFORE_GROWTH: usize = 8;
/// After the pool has refused a buffer, this many requests are refused without asking it again.
const SKIPPED_REQUESTS: usize = 16;
/// How long a copy waits for buffers that other streams use: many times the link's time for the whole ring.
const OTHERS_END_WITHIN: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(50);
/// Buffers are freed after this time without a copy.
const IDLE_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_from_text() {
        let options = StagingOptions::new();
        let parsed = StagingOptions::parse("buffers:4, buffer_bytes:1MiB,threads:0");
        assert_eq!(parsed, Some(options.buffers(4).buffer_bytes(1 << 20).threads(0)));
        assert_eq!(StagingOptions::parse("BUFFERS:4,Buffer_Bytes:1mib,Threads:0"), parsed);
        assert_eq!(StagingOptions::parse("buffer_bytes:1"), Some(options.buffer_bytes(BUFFER_BYTES_MIN)));
        for broken in [
            "",
            "buffers",
            "buffers:",
            "buffers:-1",
            "threads:many",
            "threads:257",
            "size:3",
            "buffer_bytes:1furlong",
        ] {
            assert_eq!(StagingOptions::parse(broken), None, "{broken}");
        }
    }
}
