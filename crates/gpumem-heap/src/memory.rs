//! [`PhysicalMemory`]: what the heap needs of a driver.

/// The memory's own name of one allocation of physical memory: of a handle, or, where memory cannot be mapped, the address of a
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHandle(pub u64);

/// Physical memory. A heap over segments only creates and releases.
///
/// The heap calls these functions only when a request finds no free memory that is mapped already, and when memory is given back.
pub trait PhysicalMemory {
    /// Why a call failed.
    type Error: Copy;

    /// Creates `size_bytes` of physical memory.
    ///
    /// # Errors
    ///
    /// The memory's own error; nothing was created then.
    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, Self::Error>;

    /// Maps a whole handle at an address where nothing is mapped.
    ///
    /// # Errors
    ///
    /// The memory's own error; nothing was mapped then.
    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), Self::Error>;

    /// Makes mapped addresses usable.
    ///
    /// # Errors
    ///
    /// The memory's own error; the addresses stay mapped.
    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), Self::Error>;

    /// Unmaps one mapping. All work that used it is complete.
    ///
    /// # Errors
    ///
    /// The memory's own error; the addresses stay mapped, and the heap tries again later.
    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), Self::Error>;

    /// Gives physical memory back, with the size that it was created with. Nothing maps it, and all work that used it is complete.
    ///
    /// # Errors
    ///
    /// The memory's own error; the heap keeps the handle and tries again later.
    fn release(&mut self, handle: RawHandle, size_bytes: u64) -> Result<(), Self::Error>;
}
