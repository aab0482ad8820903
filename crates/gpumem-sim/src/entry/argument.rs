//! Arguments of entries: plain values, and pointers with the caller's guarantee.
//!
//! The body of an entry is safe code. The conditions of the driver's documentation are taken over once, where the thunk makes a
//! [`Target`] or a [`Source`] of a pointer; reading and writing through those is safe and refuses null. Pointers to several values,
//! whose number is another argument, stay raw: code that dereferences them states in its own block where the number comes from.
//! Handles and addresses that are never dereferenced stay raw too.

use crate::base::codes::{Answer, INVALID_VALUE};
use gpumem_sys::types::*;

/// The form in which a body has an argument.
pub(crate) trait Argument {
    /// The form in which the caller passes it.
    type Raw;

    /// # Safety
    ///
    /// For a [`Target`] or a [`Source`]: the conditions of its `new`. None for other types.
    unsafe fn of(raw: Self::Raw) -> Self;
}

/// A place for one value of the caller.
pub(crate) struct Target<T>(*mut T);

/// One value of the caller.
pub(crate) struct Source<T>(*const T);

impl<T> Target<T> {
    /// # Safety
    ///
    /// The pointer is null, or one `T` may be written through it, and read if the body does so, until the call returns.
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// This place for a value of another type.
    ///
    /// # Safety
    ///
    /// The conditions of [`Target::new`] for the other type.
    pub(crate) unsafe fn cast<U>(self) -> Target<U> {
        Target(self.0.cast())
    }
}

/// Writes a result to a place of the caller.
pub(crate) fn put<T>(target: Target<T>, value: T) -> Answer<()> {
    check_place(target)?;
    // SAFETY: not null, so the caller of `Target::new` guaranteed that a `T` may be written there.
    unsafe { target.0.write_unaligned(value) };
    Ok(())
}

/// Like [`put`], and accepts null.
pub(crate) fn put_if_wanted<T>(target: Target<T>, value: T) -> Answer<()> {
    if target.is_null() { Ok(()) } else { put(target, value) }
}

/// Checks the place for a new handle before the object is created.
pub(crate) fn check_place<T>(target: Target<T>) -> Answer<()> {
    if target.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Reads a value of the caller.
pub(crate) fn take<T: Copy>(source: impl Into<Source<T>>) -> Answer<T> {
    let Source(pointer) = source.into();
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller of `Source::new` guaranteed that a `T` may be read there.
    Ok(unsafe { pointer.read_unaligned() })
}

/// [`put`] through a raw pointer.
///
/// # Safety
///
/// The pointer is null, or one `T` may be written through it.
pub(crate) unsafe fn put_at<T>(target: *mut T, value: T) -> Answer<()> {
    // SAFETY: the caller guarantees the condition of a target.
    put(unsafe { Target::new(target) }, value)
}

/// [`take`] through a raw pointer.
///
/// # Safety
///
/// The pointer is null, or one `T` may be read through it.
pub(crate) unsafe fn take_at<T: Copy>(source: *const T) -> Answer<T> {
    take(Source(source))
}

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Target<T> {}

impl<T> Clone for Source<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Source<T> {}

/// A target may also be read: the driver's documentation has no write-only pointers.
impl<T> From<Target<T>> for Source<T> {
    fn from(target: Target<T>) -> Self {
        Self(target.0)
    }
}

impl<T> Argument for Target<T> {
    type Raw = *mut T;

    unsafe fn of(raw: *mut T) -> Self {
        // SAFETY: the caller guarantees the conditions of the call.
        unsafe { Self::new(raw) }
    }
}

impl<T> Argument for Source<T> {
    type Raw = *const T;

    unsafe fn of(raw: *const T) -> Self {
        Self(raw)
    }
}

impl<T> Argument for *mut T {
    type Raw = Self;

    unsafe fn of(raw: Self) -> Self {
        raw
    }
}

impl<T> Argument for *const T {
    type Raw = Self;

    unsafe fn of(raw: Self) -> Self {
        raw
    }
}

macro_rules! plain {
    ($($kind:ty)*) => {
        $(
            impl Argument for $kind {
                type Raw = Self;

                unsafe fn of(raw: Self) -> Self {
                    raw
                }
            }
        )*
    };
}

plain! {
    u8 u16 u32 u64 usize i32
    CUdevice_P2PAttribute CUjitInputType CUdevice_attribute CUfunc_cache CUfunction_attribute CUgraphMem_attribute CUhostFn
    CUipcEventHandle CUipcMemHandle CUlimit CUmemAllocationGranularity_flags CUmemAllocationHandleType CUmemLocation
    CUmemPool_attribute CUmem_advise CUmem_range_attribute CUoccupancyB2DSize CUpointer_attribute CUresult
    CUsharedconfig CUstreamCallback CUstreamCaptureMode
}
