//! [`NeighbourMemory`]: memory of another device that contents move to, as long as that device can spare it. The link between two devices is
//! several times as fast as the one to the host.

use super::Spiller;
use super::block::wait_for_all;
use crate::backend::MemorySource;
use crate::config::SpillNeighbour;
use crate::error::PoolError;
use crate::limits::reclaim::{Reclaimable, Registration};
use crate::pool::Pool;
use crate::pool::block::Block;
use crate::pool::request::ahead::ahead_of_use;
use gpumem_base::sync::Lock;
use gpumem_device::{Device, Stream};
use std::error::Error;
use std::sync::{Arc, Weak};

/// A pool on the other device.
pub(super) struct NeighbourMemory {
    pool: Pool,
    limit_bytes: u64,
    /// A stream of the other device, which its blocks belong to.
    stream: Stream,
    holder: Arc<SpilledContents>,
    /// Asks for the memory back when that device is short of it.
    _registration: Registration,
}

/// The contents of a device's arrays in the memory of another one, and the pools that they belong to.
struct SpilledContents {
    name: String,
    spillers: Lock<Vec<Weak<Spiller>>>,
}

impl NeighbourMemory {
    pub(super) fn open(device: &Device, of: SpillNeighbour) -> Result<Self, PoolError> {
        if of.ordinal == device.ordinal() {
            return Err(of.own_device().into());
        }
        let neighbour = Device::new(device.driver(), of.ordinal)?;
        let builder = Pool::builder(&neighbour).hard_limit(of.limit_bytes).peer_access(&[device.clone()]);
        let pool = builder.name(format!("spilled from device {}", device.ordinal())).build()?;
        let name = format!("arrays of device {} that moved here", device.ordinal());
        let holder = Arc::new(SpilledContents { name, spillers: Lock::default() });
        let _registration = Registration::new(&neighbour, &holder);
        let stream = Stream::new(&neighbour)?;
        Ok(Self { pool, limit_bytes: of.limit_bytes, stream, holder, _registration })
    }

    /// Sets whose contents make way when the other device is short of memory.
    pub(super) fn serve(&self, spiller: &Arc<Spiller>) {
        let mut spillers = self.holder.spillers.lock();
        spillers.retain(|one| one.strong_count() > 0);
        spillers.push(Arc::downgrade(spiller));
    }

    pub(super) fn has(&self, block: &Block) -> bool {
        block.device() == self.pool.device()
    }

    /// The bytes that may move here.
    pub(super) fn room_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.pool.0.backend.counts().in_use_bytes)
    }

    /// Returns unused memory to the other device.
    pub(super) fn release(&self) -> Result<(), PoolError> {
        self.pool.reclaim().map(drop)
    }

    /// Memory that work on `stream` of the first device may use. `None` if the other device has none to spare.
    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Option<Block> {
        let block = ahead_of_use(|| self.pool.alloc(size_bytes, &self.stream)).ok()?;
        wait_for_all(stream, block.use_points()).ok()?;
        block.record_use(stream);
        Some(block)
    }
}

impl Reclaimable for SpilledContents {
    fn name(&self) -> &str {
        &self.name
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let live: Vec<_> = self.spillers.lock().iter().filter_map(Weak::upgrade).collect();
        live.iter().try_for_each(|spiller| spiller.leave_neighbour())?;
        Ok(())
    }
}
