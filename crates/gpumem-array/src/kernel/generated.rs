//! [`Generated`]: the kernels of expressions on one device. Each is written, compiled and loaded at its first use.

use crate::error::ArrayError;
use crate::kernel::{Function, Module};
use gpumem_pool::{Device, not_forked};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The kernels by all that their texts depend on, in lists by the hash of that. A search takes no lock: a kernel that is there stays.
pub(crate) struct Generated(Box<[Link]>);

type Link = OnceLock<Box<GeneratedKernel>>;

/// A kernel, or the place of one that a thread is loading.
pub(crate) struct GeneratedKernel {
    key: Box<[u8]>,
    function: OnceLock<Function>,
    loading: Mutex<()>,
    next: Link,
}

impl Default for Generated {
    fn default() -> Self {
        Self((0..LISTS).map(|_| Link::new()).collect())
    }
}

impl Generated {
    /// The entry of a key with this [`hash`].
    pub(crate) fn entry(&self, key: &[u8], hash: usize) -> Result<&GeneratedKernel, ArrayError> {
        let mut link = &self.0[hash % LISTS];
        loop {
            match link.get() {
                Some(known) if *known.key == *key => return Ok(known),
                Some(known) => link = &known.next,
                None => {
                    // A thread may have been adding an entry when the process was forked.
                    not_forked()?;
                    // The entry of a thread that was faster may have another key.
                    link.get_or_init(|| Box::new(GeneratedKernel::new(key)));
                }
            }
        }
    }
}

impl GeneratedKernel {
    #[cold]
    fn new(key: &[u8]) -> Self {
        Self { key: key.into(), function: OnceLock::new(), loading: Mutex::default(), next: Link::new() }
    }

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
        not_forked()?;
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = self.function.get() {
            return Ok(function);
        }
        let text = text();
        let function = Module::load_own(device, &text)?.own_function(&text, name)?;
        Ok(self.function.get_or_init(|| function))
    }
}

/// Hashes two words at a time, which do not wait for each other.
pub(crate) fn hash(key: &[u8]) -> usize {
    let (pairs, rest) = key.as_chunks::<16>();
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    let add = |[one, other]: [u64; 2], pair: &[u8; 16]| {
        let [low, high]: [u64; 2] = bytemuck::cast(*pair);
        let mix = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        [mix(one, low), mix(other, high)]
    };
    let [one, other] = add(pairs.iter().fold([0; 2], add), &last);
    ((one ^ other.rotate_left(32)) >> 32) as usize
}

const LISTS: usize = 1024;
