//! [`Dues`]: what a pool's memory counts against beside its own numbers: limits that it shares with other pools.

use crate::account::Account;
use crate::family::Family;
use crate::kind::MemoryKind;
use crate::options::PoolBuilder;
use crate::out_of_memory::Passed;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Dues {
    family: Option<Arc<Family>>,
    account: Arc<Account>,
    kind: MemoryKind,
    oversubscribes: bool,
}

impl Dues {
    pub(crate) fn new(options: &PoolBuilder) -> Self {
        Self {
            family: options.family.clone(),
            account: Arc::clone(options.device.account()),
            kind: options.kind,
            oversubscribes: options.oversubscribes,
        }
    }

    /// Whose memory it is that counts.
    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(crate) fn family(&self) -> Option<&Arc<Family>> {
        self.family.as_ref()
    }

    /// Counts the bytes as held, or says which limit does not allow it.
    pub(crate) fn admit(&self, size_bytes: u64) -> Result<(), Passed> {
        self.account.admit(self.kind, size_bytes, self.oversubscribes)?;
        let admitted = self.family.as_ref().map_or(Ok(()), |family| family.admit(size_bytes));
        admitted.inspect_err(|_| self.account.give_back(self.kind, size_bytes))
    }

    /// After the driver has taken them back.
    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.account.give_back(self.kind, size_bytes);
        if let Some(family) = &self.family {
            family.give_back(size_bytes);
        }
    }

    /// How much more may be held.
    pub(crate) fn room_bytes(&self) -> u64 {
        let family_bytes = self.family.as_ref().map_or(u64::MAX, |family| family.room_bytes());
        match self.oversubscribes {
            true => family_bytes,
            false => family_bytes.min(self.account.room_bytes(self.kind).unwrap_or(0)),
        }
    }

    /// The limit that so many bytes more would pass, if there is one.
    pub(crate) fn full_for(&self, size_bytes: u64) -> Option<Passed> {
        let family = self.family.as_ref().and_then(|family| family.full_for(size_bytes));
        let account = || self.account.full_for(self.kind, size_bytes).filter(|_| !self.oversubscribes);
        family.or_else(account)
    }
}
