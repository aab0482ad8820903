//! [`Dues`]: what a pool's memory counts against beside its own numbers: limits that it shares with other pools.

use crate::config::{Config, MemoryKind};
use crate::error::Passed;
use crate::limits::{Account, Family, Limits};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Dues {
    family: Arc<Family>,
    account: Arc<Account>,
    kind: MemoryKind,
    oversubscribes: bool,
}

impl Dues {
    pub(crate) fn new(config: &Config, limits: &Limits, account: &Arc<Account>) -> Self {
        Self {
            family: Arc::clone(limits.family()),
            account: Arc::clone(account),
            kind: config.kind,
            oversubscribes: config.oversubscribes,
        }
    }

    /// Whose memory it is that counts.
    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Counts the bytes as held, or says which limit does not allow it.
    pub(crate) fn admit(&self, size_bytes: u64) -> Result<(), Passed> {
        self.account.admit(self.kind, size_bytes, self.oversubscribes)?;
        self.family.admit(size_bytes).inspect_err(|_| self.account.give_back(self.kind, size_bytes))
    }

    /// After the driver has taken them back.
    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.account.give_back(self.kind, size_bytes);
        self.family.give_back(size_bytes);
    }

    /// How much more may be held.
    pub(crate) fn room_bytes(&self) -> u64 {
        let family_bytes = self.family.room_bytes();
        match self.oversubscribes {
            true => family_bytes,
            false => family_bytes.min(self.account.room_bytes(self.kind).unwrap_or(0)),
        }
    }

    /// The limit that so many bytes more would pass, if there is one.
    pub(crate) fn full_for(&self, size_bytes: u64) -> Option<Passed> {
        let account = || self.account.full_for(self.kind, size_bytes).filter(|_| !self.oversubscribes);
        self.family.full_for(size_bytes).or_else(account)
    }
}
