//! [`SpinMutex`]: a mutex for critical sections of about a hundred nanoseconds that many threads enter.
//!
//! A plain mutex parks a thread that does not get it immediately, and each handover then costs a wake-up, about fifty times as long as the
//! work. Here a thread first polls, at growing intervals that leave the cache line to the holder. It parks only when the holder must be
//! calling the driver, or is not running.

use super::{AtomicBool, Mutex, MutexGuard, Ordering};
use core::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

/// A mutex whose waiters spin for a while before they park.
#[derive(Debug)]
pub struct SpinMutex<T> {
    /// A hint, polled instead of the mutex: reading it does not take the cache line from the holder.
    is_taken: Apart<AtomicBool>,
    value: Mutex<Apart<T>>,
}

/// A value on separate cache lines, so that waiting threads do not disturb the holder.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Access to the value. The mutex is locked until this is dropped.
#[derive(Debug)]
pub struct SpinMutexGuard<'a, T> {
    // In this order: the hint turns false a moment before the mutex is unlocked.
    _hint: Hint<'a>,
    value: MutexGuard<'a, Apart<T>>,
}

impl<T> SpinMutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self { is_taken: Apart(AtomicBool::new(false)), value: Mutex::new(Apart(value)) }
    }

    /// Locks the mutex, also if it is poisoned.
    #[inline]
    pub fn enter(&self) -> SpinMutexGuard<'_, T> {
        let value = match self.try_lock() {
            Some(value) => value,
            None => self.wait(),
        };
        self.is_taken.0.store(true, Ordering::Relaxed);
        SpinMutexGuard { _hint: Hint(&self.is_taken.0), value }
    }

    /// Accesses the value without locking: the caller has exclusive access.
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

/// About ten microseconds in all, with at most half of one between polls.
const LOOKS_MAX: u32 = 24;
const PAUSES_SHIFT_MAX: u32 = 3;
