//! Every entry point of the pool's crate, each called once in passing: for what must hold around any of them.
//!
//! An entry is named by the functions that it calls, so that a function without an entry is found: whoever adds one to
//! the crate adds it here, or to [`PLAIN`] if it asks the driver for nothing.

use crate::pool::adaptor::{Budget, Failures, Fallback, Fill, Guard, Tracking};
use crate::pool::{
    BackendKind, Block, CaptureMode, Device, Event, HostMemory, ImportedBlock, Location, MemoryAdvice,
    MemoryKind, Pool, PoolError, Reclaimable, Stream,
};
use crate::sys::Driver;
use crate::sys::types::CUdevice_attribute;
use std::error::Error;
use std::sync::Arc;

/// What entries are called with.
#[derive(Debug)]
pub struct Stage {
    /// The driver.
    pub driver: Driver,
    /// Its first device.
    pub device: Device,
    /// A pool.
    pub pool: Pool,
    /// Two streams.
    pub streams: [Stream; 2],
}

impl Stage {
    /// With a pool of this kind.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(driver: &Driver, backend: BackendKind) -> Result<Self, PoolError> {
        let device = Device::new(driver, 0)?;
        let pool = Pool::builder(&device).backend(backend).hard_limit(256 * MIB).build()?;
        let streams = [Stream::new(&device)?, Stream::new(&device)?];
        Ok(Self { driver: driver.clone(), device, pool, streams })
    }

    fn block(&self) -> Result<Block, PoolError> {
        self.pool.alloc(MIB, &self.streams[0])
    }

    fn unified(&self) -> Result<Block, PoolError> {
        let pool = Pool::builder(&self.device).kind(MemoryKind::Unified).build()?;
        pool.alloc(MIB, &self.streams[0])
    }
}

/// What an entry does.
pub type Entry = fn(&Stage) -> Result<(), PoolError>;

/// All of them. What one makes, it drops, which is an entry like any other.
pub const ENTRIES: &[(&str, Entry)] = &[
    ("Device: count new memory_info attribute synchronize", |stage| {
        Device::count(&stage.driver)?;
        let device = Device::new(&stage.driver, 0)?;
        device.memory_info()?;
        device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?;
        device.synchronize()
    }),
    ("Device: bind relax", |stage| {
        let _bound = stage.device.bind()?;
        let _relaxed = stage.device.relax()?;
        Ok(())
    }),
    ("Stream: new priority no_waits build", |stage| {
        drop(Stream::new(&stage.device)?);
        Stream::builder(&stage.device).priority(-1).no_waits().build().map(drop)
    }),
    ("Stream: synchronize is_complete is_capturing wait_for", |stage| {
        let [one, two] = &stage.streams;
        one.wait_for(two)?;
        one.is_complete()?;
        one.is_capturing()?;
        two.synchronize()
    }),
    ("Stream: legacy per_thread from_raw from_raw_long_lived wrap wrap_long_lived retire", |stage| {
        Stream::legacy(&stage.device)?.synchronize()?;
        let own = Stream::per_thread(&stage.device)?;
        // SAFETY: the stream is alive for as long as the stage.
        let wrapped = unsafe { Stream::from_raw(&stage.device, stage.streams[0].raw())? };
        assert_eq!(wrapped, stage.streams[0]);
        let builder = || Stream::builder(&stage.device);
        // SAFETY: the default stream is alive for as long as the context.
        unsafe {
            Stream::from_raw_long_lived(&stage.device, core::ptr::null_mut())?;
            builder().wrap(core::ptr::null_mut())?;
            builder().wrap_long_lived(core::ptr::null_mut())?.retire()?;
        }
        own.retire()
    }),
    ("Event: new with_timing record is_complete synchronize elapsed_ms_since wait", |stage| {
        let [one, two] = &stage.streams;
        drop(Event::new(&stage.device)?);
        let (start, end) = (Event::with_timing(&stage.device)?, Event::with_timing(&stage.device)?);
        start.record(one)?;
        two.wait(&start)?;
        end.record(two)?;
        end.synchronize()?;
        end.is_complete()?;
        end.elapsed_ms_since(&start).map(drop)
    }),
    ("Pool: new builder build from_env", |stage| {
        drop(Pool::new(&stage.device)?);
        Pool::from_env(&stage.device).map(drop)
    }),
    ("Pool: alloc alloc_aligned record_use", |stage| {
        let blocks = [stage.block()?, stage.pool.alloc_aligned(1000, 1 << 16, &stage.streams[1])?];
        blocks.iter().for_each(|block| block.record_use(&stage.streams[0]));
        drop(stage.pool.alloc(0, &stage.streams[0])?);
        Ok(())
    }),
    ("Pool: an allocation that the limit refuses", |stage| {
        match stage.pool.alloc(300 * MIB, &stage.streams[0]) {
            Err(PoolError::LimitReached(_)) => Ok(()),
            other => other.map(drop),
        }
    }),
    ("Pool: status reserve check trim_to reclaim", |stage| {
        stage.pool.reserve(4 * MIB)?;
        stage.pool.status()?;
        assert_eq!(stage.pool.check(), Ok(()));
        stage.pool.trim_to(MIB)?;
        stage.pool.reclaim().map(drop)
    }),
    ("Pool: set_hard_limit set_soft_limit", |stage| {
        stage.pool.set_soft_limit(0)?;
        drop(stage.block()?);
        stage.streams[0].synchronize()?;
        stage.pool.set_soft_limit(128 * MIB)?;
        stage.pool.set_hard_limit(256 * MIB)
    }),
    ("Pool: scope end reset_peaks", |stage| {
        let scope = stage.pool.scope("forward");
        drop(stage.block()?);
        scope.end();
        let inner = stage.pool.scope("backward");
        let kept = stage.block()?;
        drop(inner);
        drop(kept);
        stage.pool.reset_peaks()
    }),
    ("Pool: conf garbage_collection_threshold", |stage| {
        let builder = Pool::builder(&stage.device).backend(stage.pool.backend()).hard_limit(64 * MIB);
        let pool = builder.garbage_collection_threshold(0.5).build()?;
        (0..8).try_for_each(|_| pool.alloc(20 * MIB, &stage.streams[0]).map(drop))
    }),
    ("Pool: private", |stage| {
        let private = stage.pool.private(16 * MIB)?;
        private.alloc(MIB, &stage.streams[0]).map(drop)
    }),
    ("Pool: enable_peer_access peer_access", |stage| {
        if Device::count(&stage.driver)? < 2 {
            return Ok(());
        }
        let peer = Device::new(&stage.driver, 1)?;
        stage.pool.enable_peer_access(&peer)?;
        let pool = Pool::builder(&stage.device).peer_access(&[peer]).build()?;
        pool.alloc(MIB, &stage.streams[0]).map(drop)
    }),
    ("Block: free_on", |stage| {
        stage.block()?.free_on(&stage.streams[0]);
        stage.block()?.free_on(&stage.streams[1]);
        Ok(())
    }),
    ("Block: free_completed into_raw from_raw", |stage| {
        let raw = stage.block()?.into_raw();
        stage.device.synchronize()?;
        // SAFETY: it came from `into_raw`, and all work is done.
        unsafe { Block::from_raw(raw).free_completed() };
        Ok(())
    }),
    ("Block: pin_backing", |stage| stage.block()?.pin_backing()),
    ("Block: export ImportedBlock: new", |stage| {
        let pool = Pool::builder(&stage.device).exportable().build()?;
        let block = pool.alloc(4 * MIB, &stage.streams[0])?;
        let exported = block.export()?;
        ImportedBlock::new(&stage.device, exported).map(drop)
    }),
    ("Block: prefetch advise", |stage| {
        let block = stage.unified()?;
        block.advise(0..MIB, MemoryAdvice::ReadMostly(true))?;
        block.advise(0..MIB, MemoryAdvice::ReadMostly(false))?;
        block.prefetch(0..MIB, Location::Device(&stage.device), &stage.streams[0])
    }),
    ("a drop with nothing else in use", |stage| {
        let device = Device::new(&stage.driver, 0)?;
        let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
        let block = pool.alloc(MIB, &stream)?;
        drop((device, pool, stream));
        drop(block);
        Ok(())
    }),
    ("HostMemory: register register_read_only pageable into_inner", |stage| {
        let table = HostMemory::register(&stage.device, vec![0_u8; 1 << 16])?.into_inner()?;
        let (shared, table): (Arc<[u8]>, _) = (table.as_slice().into(), table.into_boxed_slice());
        unless_missing(HostMemory::register_read_only(&stage.device, shared).map(drop))?;
        unless_missing(HostMemory::pageable(&stage.device, table).map(drop))
    }),
    ("Device: with_host_memory with_host_memory_read_only with_host_memory_pageable", |stage| {
        let mut table = vec![0_u8; 1 << 16];
        stage.device.with_host_memory(&mut table, |memory| assert_ne!(memory.address(), 0))?;
        unless_missing(stage.device.with_host_memory_read_only(&table, |_| ()))?;
        unless_missing(stage.device.with_host_memory_pageable(&mut table, |_| ()))
    }),
    ("Stream: run_borrowed", |stage| {
        let block = stage.block()?;
        let _bound = stage.device.bind()?;
        stage.streams[0].run_borrowed("a copy", |raw| {
            let mut byte = 1_u8;
            // SAFETY: the block has a byte, and memory that is not pinned is copied from before the call returns.
            unsafe { stage.driver.cuMemcpyHtoDAsync_v2(block.address(), (&raw mut byte).cast(), 1, raw) }
        })??;
        Ok(())
    }),
    ("GrowableBlock: growable grow_to shrink_to", |stage| {
        let mut block = stage.pool.growable(64 * MIB, &stage.streams[0])?;
        block.grow_to(9 * MIB)?;
        block.record_use(&stage.streams[1]);
        block.shrink_to(MIB)
    }),
    ("Graph: begin_capture end instantiate launch", |stage| {
        let stream = &stage.streams[0];
        drop(stream.begin_capture(CaptureMode::Relaxed)?);
        let capture = stream.begin_capture(CaptureMode::Global)?;
        drop(stage.block()?);
        let graph = capture.end()?;
        let exec = graph.instantiate()?;
        // SAFETY: it does nothing to memory.
        unsafe { exec.launch(&stage.streams[1])? };
        drop(graph);
        drop(exec);
        Ok(())
    }),
    ("adaptors: alloc settle live", |stage| {
        let (guard, tracking) = (Arc::new(Guard::new()), Arc::new(Tracking::new()));
        let pool = Pool::builder(&stage.device)
            .backend(stage.pool.backend())
            .adaptor(guard.clone())
            .adaptor(Arc::new(Fill::zero_on_alloc()))
            .adaptor(Arc::new(Fallback::new(&stage.pool)))
            .adaptor(Arc::new(Failures::above(64 * MIB)))
            .adaptor(Arc::new(Budget::new(128 * MIB)))
            .adaptor(tracking.clone())
            .build()?;
        drop(pool.alloc(MIB, &stage.streams[0])?);
        pool.alloc(100 * MIB, &stage.streams[0]).map_or_else(drop, drop);
        stage.device.synchronize()?;
        let _damage = guard.settle();
        let _live = tracking.live();
        Ok(())
    }),
    ("Device: register_reclaimable", |stage| {
        let _registration = stage.device.register_reclaimable(&Arc::new(Nothing));
        stage.pool.reclaim().map(drop)
    }),
];

/// Functions that ask the driver for nothing, or that every stage has called.
pub const PLAIN: &str = "
    address size_bytes stream_id device raw id ordinal name total_bytes compute_capability driver context kind backend
    host_ptr stream max_bytes is_host_accessible oversubscribe exact_peaks hard_limit soft_limit profile tuning exportable rdma
    on_out_of_memory plain_segments adaptor resolve out_of_memory advice cached_bytes others_bytes of growth_slack
    growth_slack_max window_allowance handle_bytes_max growth_divisor rounding_divisor split_bytes_max magazine_share
    magazine_bytes_min large_share error into_value synchronize_for_drop queue_work
    tag usage ignored_options release_budget trim_when_idle poll_budget inserted_waits empty_windows_max wait_deadline";

/// What the device lacks is no failure.
fn unless_missing<E: Into<PoolError>>(outcome: Result<(), E>) -> Result<(), PoolError> {
    match outcome.map_err(Into::into) {
        Err(PoolError::NoHostAccess { .. }) => Ok(()),
        other => other,
    }
}

/// Whether an entry failed because the backend or the machine does not have it.
#[must_use]
pub fn is_missing(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::NotWithBackend { .. }
            | PoolError::NeedsVirtualMemory { .. }
            | PoolError::BackendUnsupported { .. }
            | PoolError::KindUnsupported { .. }
            | PoolError::NoPeerAccess { .. }
    )
}

struct Nothing;

impl Reclaimable for Nothing {
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

const MIB: u64 = 1 << 20;
