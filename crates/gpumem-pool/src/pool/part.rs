//! [`Pool::part`]: a part of a pool that sleeps and wakes separately.

use crate::backend::{Keep, Slept, Woken};
use crate::error::{NotFound, PoolError, not_forked};
use crate::pool::Pool;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The parts of a pool, by name.
#[derive(Debug, Default)]
pub(crate) struct Parts(Mutex<BTreeMap<String, Pool>>);

impl Pool {
    /// Returns the part of this pool with a name. The first call creates it.
    ///
    /// A part is a pool with this pool's configuration and separate memory, so it can sleep while the rest works ([`Pool::sleep_parts`]):
    /// the weights of a model in one part, its cache in another. Its memory counts against this pool's hard limit, if any. It has no quota,
    /// unlike a [private pool](Pool::private_named).
    ///
    /// Parts live as long as this pool or one of its blocks. Their names follow this pool's name: `server/weights`.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Keep, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).build()?;
    /// let stream = Stream::new(&device)?;
    /// let mut weights = pool.part("weights")?.alloc(8 << 20, &stream)?;
    /// let cache = pool.part("cache")?.alloc(64 << 20, &stream)?;
    /// weights.copy_from_host(0, &[1.0_f32, 2.0], &stream)?;
    ///
    /// pool.sleep_parts(["weights"], Keep::OnHost)?;
    /// pool.sleep_parts(["cache"], Keep::Nothing)?;
    /// assert!(matches!(pool.part("cache")?.alloc(256, &stream), Err(PoolError::Asleep { .. })));
    /// // … another phase of the program uses the device's memory: the pool itself is awake …
    /// let other = pool.alloc(72 << 20, &stream)?;
    /// drop(other);
    ///
    /// pool.wake_parts(["weights", "cache"])?;
    /// let mut values = [0.0_f32; 2];
    /// weights.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [1.0, 2.0]);
    /// # drop(cache);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// All errors of [`PoolBuilder::build`](crate::PoolBuilder::build), in the first call with a name.
    pub fn part(&self, name: &str) -> Result<Self, PoolError> {
        not_forked()?;
        let mut parts = self.0.parts().0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(name) {
            return Ok(part.clone());
        }
        let part = self.build_beneath(Some(name), None)?;
        parts.insert(name.into(), part.clone());
        Ok(part)
    }

    /// Puts the parts of this pool with these names to sleep, one after another ([`Pool::sleep`]), and returns the sum of their bytes.
    /// Duplicate names count once.
    ///
    /// # Errors
    ///
    /// After an error the parts of this call are awake, if [`Pool::wake`] succeeds. [`Keep::Nothing`] may have zeroed their contents.
    ///
    /// - [`PoolError::NotFound`] for a name that [`Pool::part`] was not called with. Nothing has then changed.
    /// - All errors of [`Pool::sleep`].
    pub fn sleep_parts<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        keep: Keep,
    ) -> Result<Slept, PoolError> {
        let parts = self.find_parts(names)?;
        let mut sum = Slept::default();
        for (index, part) in parts.iter().enumerate() {
            match part.sleep(keep) {
                Ok(slept) => {
                    sum.released_bytes += slept.released_bytes;
                    sum.kept_bytes += slept.kept_bytes;
                    sum.copied_bytes += slept.copied_bytes;
                }
                Err(error) => {
                    // A part that cannot wake stays asleep, as `is_asleep` reports; the first error names the cause.
                    parts[..index].iter().for_each(|part| drop(part.wake()));
                    return Err(error);
                }
            }
        }
        Ok(sum)
    }

    /// Wakes the parts of this pool with these names ([`Pool::wake`]), and returns the sum of their bytes. Parts that are awake are
    /// unchanged.
    ///
    /// # Errors
    ///
    /// After an error the parts before the one that failed are awake. Call it again, for example after memory was freed.
    ///
    /// - [`PoolError::NotFound`] for a name that [`Pool::part`] was not called with. Nothing has then changed.
    /// - All errors of [`Pool::wake`].
    pub fn wake_parts<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Woken, PoolError> {
        let mut sum = Woken::default();
        for part in self.find_parts(names)? {
            let woken = part.wake()?;
            sum.created_bytes += woken.created_bytes;
            sum.copied_bytes += woken.copied_bytes;
        }
        Ok(sum)
    }

    /// The parts with these names, each once.
    fn find_parts<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, PoolError> {
        not_forked()?;
        let parts = self.0.parts().0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Self> = Vec::new();
        for name in names {
            let part = parts.get(name).ok_or_else(|| {
                PoolError::NotFound(NotFound::Part {
                    pool: self.name().into(),
                    part: name.into(),
                    parts: parts.keys().cloned().collect(),
                })
            })?;
            if found.iter().all(|there| there.id() != part.id()) {
                found.push(part.clone());
            }
        }
        Ok(found)
    }
}
