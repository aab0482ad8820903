//! [`Generated`]: the kernels of expressions on one device. Each is written, compiled and loaded at its first use.

use crate::error::ArrayError;
use crate::kernel::{Function, Module};
use core::hash::{BuildHasherDefault, Hasher};
use gpumem_pool::{Device, not_forked};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The kernels by all that their texts depend on. The lock is held to find or add an entry only.
#[derive(Default)]
pub(crate) struct Generated(RwLock<KernelsByKey>);

type KernelsByKey = HashMap<Box<[u8]>, Arc<GeneratedKernel>, BuildHasherDefault<KeyHasher>>;

/// A kernel, or the place of one that a thread is loading.
#[derive(Default)]
pub(crate) struct GeneratedKernel {
    function: OnceLock<Function>,
    loading: Mutex<()>,
}

impl Generated {
    /// The entry of a key.
    pub(crate) fn entry(&self, key: &[u8]) -> Result<Arc<GeneratedKernel>, ArrayError> {
        // A thread may have held the lock when the process was forked.
        not_forked()?;
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Ok(known.clone());
        }
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.entry(key.into()).or_default().clone())
    }
}

impl GeneratedKernel {
    /// The kernel, loaded if it is not yet. Threads that need the same kernel wait.
    pub(crate) fn function(
        &self,
        device: &Device,
        name: &str,
        text: impl FnOnce() -> String,
    ) -> Result<&Function, ArrayError> {
        if let Some(function) = self.function.get() {
            return Ok(function);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = self.function.get() {
            return Ok(function);
        }
        let function = Module::load_generated(device, &text())?.function(name)?;
        Ok(self.function.get_or_init(|| function))
    }
}

/// Hashes keys a word at a time.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        // The table uses the high and the low bits.
        self.0 ^= self.0 >> 32;
    }
}
