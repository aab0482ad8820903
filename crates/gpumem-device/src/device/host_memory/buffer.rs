//! The buffers that [`HostMemory`](super::HostMemory) can own: their memory does not move with the buffer.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use std::sync::Arc;

/// A buffer that [`HostMemory`](super::HostMemory) can own. Implemented only here, for `Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `&'static mut [T]`
/// and `&'static [T]`.
pub trait HostBuffer: Buffer {}

/// A buffer with exclusive access to its memory, so that devices may write it.
pub trait HostBufferMut: HostBuffer {}

/// The raw parts of a buffer.
pub struct RawParts<T> {
    pub(super) start: *mut T,
    length: usize,
    capacity: usize,
}

impl<T> Clone for RawParts<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RawParts<T> {}

impl<T> RawParts<T> {
    fn new(start: *mut T, length: usize) -> Self {
        Self { start, length, capacity: length }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        (self.length * size_of::<T>()) as u64
    }

    /// Start, length and capacity without the element type.
    pub(super) fn erased(&self) -> (*mut c_void, usize, usize) {
        (self.start.cast(), self.length, self.capacity)
    }

    fn slice(self) -> *mut [T] {
        core::ptr::slice_from_raw_parts_mut(self.start, self.length)
    }
}

/// Frees a buffer from [`RawParts::erased`].
///
/// # Safety
///
/// The values are the parts of such a buffer, and the buffer was not rebuilt from them. On another thread than the
/// buffer's, the elements need no drop.
pub(super) unsafe fn free<B: HostBuffer>(start: *mut c_void, length: usize, capacity: usize) {
    let parts = RawParts { start: start.cast(), length, capacity };
    // SAFETY: the caller guarantees that the parts came from such a buffer, and only once.
    drop(unsafe { B::from_parts(parts) });
}

pub(super) mod sealed {
    use super::RawParts;

    /// # Safety
    ///
    /// The memory of the parts does not move, and belongs to the buffer, until [`Buffer::from_parts`].
    pub unsafe trait Buffer: Sized {
        type Element;

        fn into_parts(self) -> RawParts<Self::Element>;

        /// # Safety
        ///
        /// The parts came from [`Buffer::into_parts`] of this type, and are passed only once.
        unsafe fn from_parts(parts: RawParts<Self::Element>) -> Self;
    }
}

use sealed::Buffer;

// SAFETY: a vector that is not modified keeps its allocation.
unsafe impl<T> Buffer for Vec<T> {
    type Element = T;

    fn into_parts(self) -> RawParts<T> {
        let mut this = ManuallyDrop::new(self);
        RawParts { start: this.as_mut_ptr(), length: this.len(), capacity: this.capacity() }
    }

    unsafe fn from_parts(parts: RawParts<T>) -> Self {
        // SAFETY: pointer, length and capacity are those of a vector that was not dropped.
        unsafe { Self::from_raw_parts(parts.start, parts.length, parts.capacity) }
    }
}

// SAFETY: `Box::into_raw` gives up the allocation until `Box::from_raw`.
unsafe impl<T> Buffer for Box<[T]> {
    type Element = T;

    fn into_parts(self) -> RawParts<T> {
        let length = self.len();
        RawParts::new(Self::into_raw(self).cast(), length)
    }

    unsafe fn from_parts(parts: RawParts<T>) -> Self {
        // SAFETY: the slice is the one that `Box::into_raw` returned.
        unsafe { Self::from_raw(parts.slice()) }
    }
}

// SAFETY: `Arc::into_raw` keeps one count of the allocation until `Arc::from_raw`.
unsafe impl<T> Buffer for Arc<[T]> {
    type Element = T;

    fn into_parts(self) -> RawParts<T> {
        let length = self.len();
        RawParts::new(Self::into_raw(self).cast::<T>().cast_mut(), length)
    }

    unsafe fn from_parts(parts: RawParts<T>) -> Self {
        // SAFETY: the slice is the one that `Arc::into_raw` returned, and its count is still held.
        unsafe { Self::from_raw(parts.slice()) }
    }
}

// SAFETY: the memory is valid until the program ends, and the exclusive borrow has been given up.
unsafe impl<T> Buffer for &'static mut [T] {
    type Element = T;

    fn into_parts(self) -> RawParts<T> {
        RawParts::new(self.as_mut_ptr(), self.len())
    }

    unsafe fn from_parts(parts: RawParts<T>) -> Self {
        // SAFETY: pointer and length are those of the exclusive borrow that was given up.
        unsafe { &mut *parts.slice() }
    }
}

// SAFETY: the memory is valid until the program ends.
unsafe impl<T> Buffer for &'static [T] {
    type Element = T;

    fn into_parts(self) -> RawParts<T> {
        RawParts::new(self.as_ptr().cast_mut(), self.len())
    }

    unsafe fn from_parts(parts: RawParts<T>) -> Self {
        // SAFETY: pointer and length are those of the shared borrow, which was never exclusive.
        unsafe { &*parts.slice() }
    }
}

impl<T> HostBuffer for Vec<T> {}
impl<T> HostBuffer for Box<[T]> {}
impl<T> HostBuffer for Arc<[T]> {}
impl<T> HostBuffer for &'static mut [T] {}
impl<T> HostBuffer for &'static [T] {}

impl<T> HostBufferMut for Vec<T> {}
impl<T> HostBufferMut for Box<[T]> {}
impl<T> HostBufferMut for &'static mut [T] {}
