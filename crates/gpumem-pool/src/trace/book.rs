//! [`Book`]: the pools of a trace or flight recorder, with their settings and the names of their tags.

use super::format;
use crate::pool::listing::Listing;
use crate::pool::{Figures, Opening, PoolSettings};
use crate::stats::Names;
use gpumem_base::sync::Lock;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

#[derive(Default)]
pub(super) struct Book(Lock<Vec<Entry>>);

pub(super) struct Entry {
    pub(super) settings: PoolSettings,
    pub(super) names: Arc<Names>,
    pub(super) listing: Weak<Listing>,
}

impl Entry {
    pub(super) fn new(opening: &Opening<'_>) -> Self {
        let names = Arc::clone(opening.names());
        names.set_recorded();
        Self { settings: opening.settings.clone(), names, listing: opening.listing() }
    }

    /// True if the pool has been dropped: it held the only other reference to its names.
    fn is_gone(&self) -> bool {
        Arc::strong_count(&self.names) == 1
    }
}

impl Book {
    pub(super) fn add(&self, entry: Entry) {
        let mut entries = self.0.lock();
        if entries.len() >= ENTRY_COUNT {
            entries.retain(|entry| !entry.is_gone());
        }
        entries.push(entry);
    }

    /// Adds a pool unless it is there.
    #[cfg(feature = "status-socket")]
    pub(super) fn add_once(&self, entry: Entry) {
        let mut entries = self.0.lock();
        if !entries.iter().any(|other| other.settings.pool == entry.settings.pool) {
            entries.push(entry);
        }
    }

    pub(super) fn gone(&self) -> Vec<u32> {
        self.0.lock().iter().filter(|entry| entry.is_gone()).map(|entry| entry.settings.pool).collect()
    }

    pub(super) fn remove(&self, pools: &[u32]) {
        self.0.lock().retain(|entry| !pools.contains(&entry.settings.pool));
    }

    pub(super) fn figures(&self, pool: u32) -> Option<Figures> {
        let listing = self.0.lock().iter().find(|entry| entry.settings.pool == pool)?.listing.clone();
        Figures::of_listed(&listing)
    }

    /// Adds the settings of the pools, and the names of the tags, that are not in `known`, and returns them: a pool and a tag, 0
    /// for the settings.
    pub(super) fn add_new(
        &self,
        bytes: &mut Vec<u8>,
        pools_and_tags: impl Iterator<Item = (u32, u32)>,
        known: &BTreeSet<(u32, u32)>,
    ) -> BTreeSet<(u32, u32)> {
        let mut new = BTreeSet::new();
        for (pool, tag) in pools_and_tags {
            new.extend([(pool, 0), (pool, tag)].into_iter().filter(|one| !known.contains(one)));
        }
        if new.is_empty() {
            return new;
        }
        let entries = self.0.lock();
        for (pool, tag) in &new {
            let Some(entry) = entries.iter().find(|entry| entry.settings.pool == *pool) else { continue };
            if *tag == 0 {
                format::add_pool(bytes, &entry.settings);
            } else if let Some(name) = u16::try_from(*tag).ok().and_then(|tag| entry.names.get(tag)) {
                format::add_name(bytes, *pool, *tag, &name);
            }
        }
        drop(entries);
        new
    }

    pub(super) fn all_figures(&self) -> Vec<(u32, Figures)> {
        let pools: Vec<_> =
            self.0.lock().iter().map(|entry| (entry.settings.pool, entry.listing.clone())).collect();
        pools.into_iter().filter_map(|(pool, listing)| Some((pool, Figures::of_listed(&listing)?))).collect()
    }

    /// The number of a pool's tag; 0 for an unknown pool or tag.
    pub(super) fn tag(&self, pool: u32, tag: &str) -> u16 {
        let entries = self.0.lock();
        entries.iter().find(|entry| entry.settings.pool == pool).map_or(0, |entry| entry.names.find(tag))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// When the list reaches this length, entries of dropped pools are removed.
const ENTRY_COUNT: usize = 256;
