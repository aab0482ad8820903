//! [`PhysicalMemory`]: creates, maps, unmaps and releases memory for a heap.

/// Identifies an allocation of physical memory: its handle or, for a heap over segments, the address of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHandle(pub u64);

/// Physical memory that can be mapped at addresses. For a heap over segments only [`create`](Self::create) and
/// [`release`](Self::release) are called.
///
/// The heap calls these functions only if a request finds no free mapped memory, and to release memory.
pub trait PhysicalMemory {
    /// The error of a failed call. Functions of the heap return it unchanged.
    type Error: Copy;

    /// The error of `create`: the call failed, or the caller's own limit refused it. Functions of the heap that may create memory
    /// return it unchanged.
    type Refusal: Copy + From<Self::Error>;

    /// Creates `size_bytes` of physical memory.
    ///
    /// # Errors
    ///
    /// Any refusal, for example out of memory. Nothing may have been created then.
    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, Self::Refusal>;

    /// Maps a whole handle at an address where nothing is mapped.
    ///
    /// # Errors
    ///
    /// Any error. Nothing may have been mapped then; the heap undoes the other calls of the request.
    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), Self::Error>;

    /// Makes mapped addresses accessible.
    ///
    /// # Errors
    ///
    /// Any error. The heap unmaps the addresses.
    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), Self::Error>;

    /// Unmaps one mapping. All work that used it is complete.
    ///
    /// # Errors
    ///
    /// Any error. The addresses must still be mapped then; the heap tries again later.
    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), Self::Error>;

    /// Releases physical memory, with the size that it was created with. It is not mapped, and all work that used it is complete.
    ///
    /// # Errors
    ///
    /// Any error. The heap keeps the handle and tries again later.
    fn release(&mut self, handle: RawHandle, size_bytes: u64) -> Result<(), Self::Error>;
}
