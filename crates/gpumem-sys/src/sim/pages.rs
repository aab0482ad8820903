//! Pages of this process for virtual memory management: one file without a name that holds the bytes of every handle,
//! and ranges of addresses into which pieces of it are mapped.
//!
//! A piece mapped at two addresses is the same pages, so aliases are coherent as on a device; pieces mapped side by
//! side are one slice, so a copy or a kernel goes over them as over any memory. Addresses cost nothing, and the file
//! has the pages that were touched. Where the system lacks such files, programs are told that the device has no
//! virtual memory management.

#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use linux::{AddressRange, PageFile};
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) use missing::{AddressRange, PageFile};

/// Whether this system has what it takes.
pub(super) const IS_SUPPORTED: bool = cfg!(all(target_os = "linux", not(miri)));

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use crate::sim::backing::Bytes;
    use crate::sim::codes::{Answer, OUT_OF_MEMORY};
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use std::os::fd::OwnedFd;

    /// A file in memory, paid for where it was written.
    #[derive(Debug)]
    pub(in crate::sim) struct PageFile(OwnedFd);

    impl PageFile {
        pub(in crate::sim) fn new(size_bytes: u64) -> Answer<Self> {
            let file = memfd_create("gpumem", MemfdFlags::CLOEXEC).map_err(out_of_memory)?;
            ftruncate(&file, size_bytes).map_err(out_of_memory)?;
            Ok(Self(file))
        }

        /// Gives the pages of a piece back; it reads as zeros from then on.
        pub(in crate::sim) fn discard(&self, offset_bytes: u64, size_bytes: u64) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A system that refuses keeps the pages until the file goes, and the next owner sees old bytes, which
            // fresh device memory may hold anyway.
            let _ = fallocate(&self.0, flags, offset_bytes, size_bytes);
        }
    }

    /// Addresses of this process that nothing else gets, without pages until a piece of the file is mapped.
    #[derive(Debug)]
    pub(in crate::sim) struct AddressRange {
        base: *mut c_void,
        len: usize,
    }

    // SAFETY: it owns its addresses; only the holder of the instance's lock follows them.
    unsafe impl Send for AddressRange {}

    impl AddressRange {
        pub(in crate::sim) fn reserve(size_bytes: u64) -> Answer<Self> {
            let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: the system chooses addresses that are not in use.
            let base = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) };
            Ok(Self { base: base.map_err(out_of_memory)?, len })
        }

        pub(in crate::sim) fn bytes(&self) -> Bytes {
            Bytes(self.base.cast())
        }

        /// Puts a piece of the file at an offset of the range.
        pub(in crate::sim) fn map(
            &self,
            offset_bytes: u64,
            size_bytes: u64,
            file: &PageFile,
            file_offset_bytes: u64,
        ) -> Answer<()> {
            let (at, len) = self.part(offset_bytes, size_bytes)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: what is replaced is a part of this range, which is ours alone. References into it live only
            // while an operation runs, under the instance's lock, which the caller holds now.
            let mapped = unsafe { mmap(at, len, access, flags, &file.0, file_offset_bytes) };
            mapped.map(drop).map_err(out_of_memory)
        }

        /// Takes what is mapped at an offset away; touching it faults from then on.
        pub(in crate::sim) fn unmap(&self, offset_bytes: u64, size_bytes: u64) -> Answer<()> {
            let (at, len) = self.part(offset_bytes, size_bytes)?;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: as in `map`.
            let mapped = unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags) };
            mapped.map(drop).map_err(out_of_memory)
        }

        fn part(&self, offset_bytes: u64, size_bytes: u64) -> Answer<(*mut c_void, usize)> {
            let end_bytes = offset_bytes.checked_add(size_bytes).filter(|&end| end <= self.len as u64);
            end_bytes.ok_or(OUT_OF_MEMORY)?;
            Ok((self.base.wrapping_byte_add(offset_bytes as usize), size_bytes as usize))
        }
    }

    impl Drop for AddressRange {
        fn drop(&mut self) {
            // SAFETY: the range is ours, whatever is mapped in it; nothing follows its addresses any more. It can
            // only fail for addresses that were never mapped.
            let _ = unsafe { munmap(self.base, self.len) };
        }
    }

    fn out_of_memory(_: Errno) -> crate::types::CUresult {
        OUT_OF_MEMORY
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_piece_at_two_places_is_one_and_loses_its_bytes_when_discarded() {
            const PIECE: u64 = 2 << 20;
            let file = PageFile::new(1 << 40).unwrap();
            let range = AddressRange::reserve(1 << 42).unwrap();
            range.map(0, PIECE, &file, PIECE).unwrap();
            range.map(4 * PIECE, PIECE, &file, PIECE).unwrap();
            let read = |offset: u64| {
                // SAFETY: only asked for what is mapped.
                unsafe { range.bytes().at(offset).0.read() }
            };
            // SAFETY: it is mapped and nothing else uses it.
            unsafe { range.bytes().0.write(7) };
            assert_eq!(read(4 * PIECE), 7);
            range.unmap(0, PIECE).unwrap();
            assert_eq!(read(4 * PIECE), 7);
            file.discard(PIECE, PIECE);
            assert_eq!(read(4 * PIECE), 0);
            assert_eq!(range.map(1 << 42, PIECE, &file, 0), Err(OUT_OF_MEMORY));
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod missing {
    use crate::sim::backing::Bytes;
    use crate::sim::codes::{Answer, NOT_SUPPORTED};
    use core::convert::Infallible;

    /// There are none.
    #[derive(Debug)]
    pub(in crate::sim) struct PageFile(Infallible);

    impl PageFile {
        pub(in crate::sim) fn new(_size_bytes: u64) -> Answer<Self> {
            Err(NOT_SUPPORTED)
        }

        pub(in crate::sim) fn discard(&self, _offset_bytes: u64, _size_bytes: u64) {
            match self.0 {}
        }
    }

    /// There are none.
    #[derive(Debug)]
    pub(in crate::sim) struct AddressRange(Infallible);

    impl AddressRange {
        pub(in crate::sim) fn reserve(_size_bytes: u64) -> Answer<Self> {
            Err(NOT_SUPPORTED)
        }

        pub(in crate::sim) fn bytes(&self) -> Bytes {
            match self.0 {}
        }

        pub(in crate::sim) fn map(&self, _: u64, _: u64, _: &PageFile, _: u64) -> Answer<()> {
            match self.0 {}
        }

        pub(in crate::sim) fn unmap(&self, _: u64, _: u64) -> Answer<()> {
            match self.0 {}
        }
    }
}
