//! [`SpinMutex`]: a lock for what many threads need for a hundred nanoseconds at a time.
//!
//! A mutex parks whoever does not get it at once, and then each handing over costs a wake-up: some fifty times as long as
//! the work. Here threads first look for a while, further and further apart so that they leave the line to whoever is at
//! it, and park only when that has taken so long that whoever has it must be asking the driver, or not running.

use super::{AtomicBool, Mutex, MutexGuard, Ordering};
use core::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

/// A mutex whose waiters spin for a while before they park.
#[derive(Debug)]
pub struct SpinMutex<T> {
    /// A hint, which is read in place of the mutex: reading takes the line from nobody.
    is_taken: Apart<AtomicBool>,
    value: Mutex<Apart<T>>,
}

/// On cache lines of its own: who waits does not disturb who is in.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Whoever is in. Nobody else is until it is dropped.
#[derive(Debug)]
pub struct SpinMutexGuard<'a, T> {
    // In this order: the hint says that the value is free a moment before it is.
    _hint: Hint<'a>,
    value: MutexGuard<'a, Apart<T>>,
}

impl<T> SpinMutex<T> {
    /// An unlocked one.
    pub fn new(value: T) -> Self {
        Self { is_taken: Apart(AtomicBool::new(false)), value: Mutex::new(Apart(value)) }
    }

    /// Waits until nobody else is in.
    #[inline]
    pub fn enter(&self) -> SpinMutexGuard<'_, T> {
        let value = match self.try_lock() {
            Some(value) => value,
            None => self.wait(),
        };
        self.is_taken.0.store(true, Ordering::Relaxed);
        SpinMutexGuard { _hint: Hint(&self.is_taken.0), value }
    }

    /// Whoever has it has it alone.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value.get_mut().unwrap_or_else(PoisonError::into_inner).0
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Apart<T>>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, Apart<T>> {
        for look in 0..LOOKS_MAX {
            (0..1 << look.min(PAUSES_SHIFT_MAX)).for_each(|_| core::hint::spin_loop());
            if !self.is_taken.0.load(Ordering::Relaxed)
                && let Some(value) = self.try_lock()
            {
                return value;
            }
        }
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for SpinMutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value.0
    }
}

impl<T> DerefMut for SpinMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value.0
    }
}

#[derive(Debug)]
struct Hint<'a>(&'a AtomicBool);

impl Drop for Hint<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Some ten microseconds, and from one look to the next half of one at most.
const LOOKS_MAX: u32 = 24;
const PAUSES_SHIFT_MAX: u32 = 3;
