//! [`NeighbourMemory`]: memory of another device that contents move to, as long as that device can spare it. The link between two devices is
//! several times as fast as the one to the host.

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

/// Somebody whose contents are in the memory of another device.
pub(super) trait Guest: Send + Sync {
    /// Moves all contents out, as far as there is room for them elsewhere, and waits until they have left.
    fn leave_neighbour(&self) -> Result<(), PoolError>;
}

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

/// The contents of a device's arrays in the memory of another one.
struct SpilledContents {
    name: String,
    guests: Lock<Vec<Weak<dyn Guest>>>,
}

impl NeighbourMemory {
    pub(super) fn open(device: &Device, of: SpillNeighbour) -> Result<Self, PoolError> {
        if of.ordinal == device.ordinal() {
            return Err(of.own_device().into());
        }
        let neighbour = Device::new(device.driver(), of.ordinal)?;
        let builder =
            Pool::builder(&neighbour).hard_limit(of.limit_bytes).peer_access(core::slice::from_ref(device));
        let pool = builder.name(format!("spilled from device {}", device.ordinal())).build()?;
        let name = format!("arrays of device {} that moved here", device.ordinal());
        let holder = Arc::new(SpilledContents { name, guests: Lock::default() });
        let _registration = Registration::new(&neighbour, &holder);
        let stream = Stream::new(&neighbour)?;
        Ok(Self { pool, limit_bytes: of.limit_bytes, stream, holder, _registration })
    }

    /// Sets whose contents make way when the other device is short of memory.
    pub(super) fn serve(&self, guest: Weak<dyn Guest>) {
        let mut guests = self.holder.guests.lock();
        guests.retain(|one| one.strong_count() > 0);
        guests.push(guest);
    }

    pub(super) fn has(&self, block: &Block) -> bool {
        block.device() == self.pool.device()
    }

    /// The bytes that may move here.
    pub(super) fn room_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.in_use_bytes())
    }

    pub(super) fn in_use_bytes(&self) -> u64 {
        self.pool.0.backend.counts().in_use_bytes
    }

    /// Returns unused memory to the other device.
    pub(super) fn release(&self) -> Result<(), PoolError> {
        self.pool.reclaim().map(drop)
    }

    /// Memory that work on `stream` of the first device may use. `None` if the other device has none to spare.
    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Option<Block> {
        let block = ahead_of_use(|| self.pool.alloc(size_bytes, &self.stream)).ok()?;
        block.order(stream).ok()?;
        block.record_use(stream);
        Some(block)
    }
}

impl Reclaimable for SpilledContents {
    fn name(&self) -> &str {
        &self.name
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let live: Vec<_> = self.guests.lock().iter().filter_map(Weak::upgrade).collect();
        live.iter().try_for_each(|guest| guest.leave_neighbour())?;
        Ok(())
    }
}
