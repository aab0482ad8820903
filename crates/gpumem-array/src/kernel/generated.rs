//! [`Generated`]: the kernels of expressions on one device. Each is compiled and loaded at its first use there, and written at its first use
//! in the process.

use crate::error::ArrayError;
use crate::kernel::{Function, OwnText};
use gpumem_pool::{Device, not_forked};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
        let function = written(&self.key, name, text)?.load(device, name)?;
        Ok(self.function.get_or_init(|| function))
    }
}

/// The text with this key. Devices share it, as long as it is among some hundreds of others.
fn written(key: &[u8], name: &str, text: impl FnOnce() -> String) -> Result<Arc<OwnText>, ArrayError> {
    static WRITTEN: Mutex<BTreeMap<Box<[u8]>, Arc<OwnText>>> = Mutex::new(BTreeMap::new());
    let all = || WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = all().get(key) {
        return Ok(Arc::clone(text));
    }
    // Written without the lock, so that other threads do not wait.
    let text = Arc::new(OwnText::new(&text(), name)?);
    let mut all = all();
    if all.len() >= WRITTEN_MAX {
        all.clear();
    }
    all.insert(key.into(), Arc::clone(&text));
    Ok(text)
}

/// The most texts that are kept. Each has a few thousand bytes.
const WRITTEN_MAX: usize = 512;

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
