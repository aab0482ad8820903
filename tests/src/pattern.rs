//! Memory filled by a kernel with a pattern that only its key makes, and checked by a kernel for it.
//!
//! What a check finds wrong it adds to a [`Ledger`] in device memory, so that a program checks as often as it wants and
//! reads once at its end. Checks that nothing orders need a ledger each.

use crate::sys::types::{CUdeviceptr, CUfunc_st, CUfunction, CUmod_st, CUstream};
use crate::sys::{Driver, DriverError};
use gpumem_sim::{Kernel, KernelFault, Launch};
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::{from_ref, null_mut};

const PTX: &str = include_str!("../kernels/pattern.ptx");
const WORD_BYTES: usize = 4;
const BLOCK_THREADS: u32 = 256;
const GRID_BLOCKS_MAX: usize = 2048;

/// The two kernels, loaded in one context, with which they go. Any thread may use them where that context is current.
#[derive(Clone)]
pub struct Patterns {
    driver: Driver,
    write: Kernels,
    check: Kernels,
}

#[derive(Clone, Copy)]
struct Kernels(*mut CUfunc_st);

// SAFETY: the pointer is a name that only the driver follows, and its functions take it on any thread.
unsafe impl Send for Kernels {}
// SAFETY: a shared one gives away only that name, and the driver locks what threads share behind it.
unsafe impl Sync for Kernels {}

impl Patterns {
    /// Loads them in the current context.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        if let Some(sim) = gpumem_sim::Sim::of(driver) {
            sim.register(TWINS);
        }
        let ptx = CString::new(PTX).unwrap_or_default();
        let mut module = null_mut();
        // SAFETY: the text ends with a zero byte and outlives the call, as does the local.
        unsafe { driver.cuModuleLoadData(&mut module, ptx.as_ptr().cast())? };
        let function = |name| function(driver, module, name).map(Kernels);
        Ok(Self {
            driver: driver.clone(),
            write: function(c"gpumem_pattern_write")?,
            check: function(c"gpumem_pattern_check")?,
        })
    }

    /// Queues the filling of `size_bytes`, less the remainder to whole words of 4.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    ///
    /// # Safety
    ///
    /// - The address is aligned to 4 and the memory alive until the stream has done it.
    /// - The stream is alive and of the current context.
    pub unsafe fn write(
        &self,
        address: CUdeviceptr,
        size_bytes: usize,
        key: u64,
        stream: CUstream,
    ) -> Result<(), DriverError> {
        let word_count = (size_bytes / WORD_BYTES) as u64;
        // SAFETY: these are the kernel's parameters; the rest is the caller's promise.
        unsafe {
            self.launch(
                self.write,
                word_count,
                stream,
                &mut [parameter(&address), parameter(&key), parameter(&word_count)],
            )
        }
    }

    /// Queues the checking of what [`Patterns::write`] wrote with the same size and key.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    ///
    /// # Safety
    ///
    /// As [`Patterns::write`]; the ledger is alive too.
    pub unsafe fn check(
        &self,
        address: CUdeviceptr,
        size_bytes: usize,
        key: u64,
        ledger: Ledger,
        stream: CUstream,
    ) -> Result<(), DriverError> {
        let word_count = (size_bytes / WORD_BYTES) as u64;
        let Ledger(ledger) = ledger;
        let parameters =
            &mut [parameter(&address), parameter(&key), parameter(&word_count), parameter(&ledger)];
        // SAFETY: these are the kernel's parameters; the rest is the caller's promise.
        unsafe { self.launch(self.check, word_count, stream, parameters) }
    }

    /// # Safety
    ///
    /// The parameters are the kernel's, and what it does with them is sound; the stream is alive.
    unsafe fn launch(
        &self,
        kernel: Kernels,
        word_count: u64,
        stream: CUstream,
        parameters: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        if word_count == 0 {
            return Ok(());
        }
        let blocks = (word_count as usize).div_ceil(BLOCK_THREADS as usize).min(GRID_BLOCKS_MAX) as u32;
        // SAFETY: the caller's promise; the kernels stride by the grid.
        unsafe {
            self.driver.cuLaunchKernel(
                kernel.0,
                blocks,
                1,
                1,
                BLOCK_THREADS,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}

fn function(
    driver: &Driver,
    module: *mut CUmod_st,
    name: &std::ffi::CStr,
) -> Result<CUfunction, DriverError> {
    let mut function = null_mut();
    // SAFETY: the module is loaded, the name ends with a zero byte, the local outlives the call.
    unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr())? };
    Ok(function)
}

fn parameter<T>(value: &T) -> *mut c_void {
    from_ref(value).cast_mut().cast()
}

/// Where checks write what they find wrong: plain device memory, from no pool.
#[derive(Clone, Copy, Debug)]
pub struct Ledger(CUdeviceptr);

impl Ledger {
    /// An empty ledger, in the current context.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    pub fn new(driver: &Driver) -> Result<Self, DriverError> {
        let mut address = 0;
        // SAFETY: the local outlives the call, and the memory was allocated just before.
        unsafe {
            driver.cuMemAlloc_v2(&mut address, size_of::<Wrong>())?;
            driver.cuMemsetD8_v2(address, 0, size_of::<Wrong>())?;
            driver.cuCtxSynchronize()?;
        }
        Ok(Self(address))
    }

    /// What all checks until now have found, when they are done; the ledger is gone then.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    ///
    /// # Safety
    ///
    /// Its context is current, and nobody uses a copy of it again.
    pub unsafe fn close(self, driver: &Driver) -> Result<Wrong, DriverError> {
        let mut words = [0_u64; 4];
        // SAFETY: the array has the size; the ledger is alive until the second call, and work on it done.
        unsafe {
            driver.cuCtxSynchronize()?;
            driver.cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), self.0, size_of::<Wrong>())?;
            driver.cuMemFree_v2(self.0)?;
        }
        let [word_count, address, expected, found] = words;
        Ok(Wrong { word_count, address, expected, found })
    }
}

/// What checks have found: nothing, or how much and one of the places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wrong {
    /// How many words of 4 bytes were wrong, each counted as often as it was checked.
    pub word_count: u64,
    /// Where one of them was.
    pub address: u64,
    /// What it should have been.
    pub expected: u64,
    /// What it was.
    pub found: u64,
}

impl Wrong {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let known = if self.word_count > 0 { self } else { other };
        Self { word_count: self.word_count + other.word_count, ..known }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word_count, address, expected, found } = self;
        match word_count {
            0 => write!(f, "no wrong words"),
            _ => write!(
                f,
                "{word_count} wrong words, one at {address:#x}: {found:#010x} instead of {expected:#010x}"
            ),
        }
    }
}

/// The kernels once more, for the simulator. They ask for all of the range, so that its race detector sees all
/// of it, but of large ones they write and look at some words only: tests should not wait for the host to do this.
static TWINS: &[Kernel] =
    &[Kernel::new("gpumem_pattern_write", write_twin), Kernel::new("gpumem_pattern_check", check_twin)];

fn write_twin(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (address, key, word_count) = (launch.arg::<u64>()?, launch.arg::<u64>()?, launch.arg::<u64>()?);
    for (index, place) in sample(launch.write::<u32>(address, word_count as usize)?) {
        place.set(word(key, index));
    }
    Ok(())
}

fn check_twin(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (address, key, word_count) = (launch.arg::<u64>()?, launch.arg::<u64>()?, launch.arg::<u64>()?);
    let ledger = launch.arg::<u64>()?;
    let places = launch.read::<u32>(address, word_count as usize)?;
    let wrong = || sample(places).filter(|(index, place)| place.get() != word(key, *index));
    let Some((index, place)) = wrong().next() else { return Ok(()) };
    let ledger = launch.write::<u64>(ledger, 4)?;
    if ledger[0].get() == 0 {
        ledger[1].set(address + index * WORD_BYTES as u64);
        ledger[2].set(word(key, index).into());
        ledger[3].set(place.get().into());
    }
    ledger[0].set(ledger[0].get() + wrong().count() as u64);
    Ok(())
}

/// All words of a small range, and about as many of a larger one, with their indices.
fn sample(places: &[Cell<u32>]) -> impl Iterator<Item = (u64, &Cell<u32>)> {
    let step = (places.len() / SAMPLE_WORDS).max(1);
    places.iter().step_by(step).enumerate().map(move |(turn, place)| ((turn * step) as u64, place))
}

const SAMPLE_WORDS: usize = 4096;

/// As in `pattern.cu`.
fn word(key: u64, index: u64) -> u32 {
    let mut mixed = key.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^= mixed >> 29;
    (mixed.wrapping_add(key).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Raw;

    const SIZE_BYTES: usize = 3 * 4096 + 7;

    crate::cases! {
        /// The kernels and their twins agree, words between the last and the end are nobody's, and what is wrong is
        /// counted and shown.
        fn what_is_wrong_is_counted(driver: &Driver) -> Result<(), DriverError> {
            let raw = Raw::new(driver)?;
            let (patterns, stream, address) = (Patterns::load(driver)?, raw.stream()?, raw.alloc(SIZE_BYTES)?);
            let (right, wrong) = (Ledger::new(driver)?, Ledger::new(driver)?);
            // SAFETY: memory, stream and ledgers are alive until all work is done.
            unsafe {
                driver.cuMemsetD8Async(address, 0xEE, SIZE_BYTES, stream)?;
                patterns.write(address, SIZE_BYTES, 5, stream)?;
                patterns.check(address, SIZE_BYTES, 5, right, stream)?;
                driver.cuMemsetD8Async(address + 4096, 0xEE, 8, stream)?;
                patterns.check(address, SIZE_BYTES, 5, wrong, stream)?;
                assert_eq!(raw.read(address + SIZE_BYTES as u64 - 4, 4)?[1..], [0xEE; 3]);
                assert_eq!(u32::from_le_bytes(raw.read(address + 400, 4)?.try_into().unwrap()), word(5, 100));
                assert_eq!(right.close(driver)?, Wrong::default());
                let wrong = wrong.close(driver)?;
                let place = (wrong.address - address - 4096) / 4;
                assert!(wrong.word_count == 2 && place < 2 && wrong.found == 0xEEEE_EEEE, "{wrong}");
                assert_eq!(wrong.expected, u64::from(word(5, 1024 + place)));
                driver.cuMemFree_v2(address)?;
                driver.cuStreamDestroy_v2(stream)
            }
        }
    }

    #[test]
    fn keys_and_places_make_unlike_words() {
        let mut seen: Vec<u32> = (0..64).flat_map(|key| (0..64).map(move |index| word(key, index))).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 4090, "{}", seen.len());
    }
}
