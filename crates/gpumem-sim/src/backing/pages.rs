//! Pages of this process for virtual memory management: one anonymous file with the bytes of all handles, and ranges of addresses
//! into which parts of the file are mapped.
//!
//! A part that is mapped at two addresses has the same pages, so aliases are coherent as on a device. Parts that are mapped side by
//! side form one slice, so copies and kernels treat them like other memory. Addresses cost nothing, and the file has only the pages
//! that were used. Memory that programs may export is in files of its own, each with a label in its last bytes; a descriptor of the
//! file is what is exported. On systems without such files, the device reports that it has no virtual memory management and shares
//! nothing.

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use linux::AddressRange;
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use linux::PageFile;
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) use missing::AddressRange;
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) use missing::PageFile;

/// True if this system supports such files.
pub(crate) const IS_SUPPORTED: bool = cfg!(all(target_os = "linux", not(miri)));

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use crate::backing::ticket::{TICKET_BYTES, Ticket, TicketKind};
    use crate::backing::{Backing, Bytes};
    use crate::base::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use memmap2::MmapOptions;
    use rustix::fs::{
        FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
        fstat, ftruncate, memfd_create, open, readlink,
    };
    use rustix::io::{Errno, fcntl_dupfd_cloexec, pread, pwrite};
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

    /// A file in memory that has only the pages that were written.
    #[derive(Debug)]
    pub(crate) struct PageFile(OwnedFd);

    impl PageFile {
        pub(crate) fn new(size_bytes: u64) -> Answer<Self> {
            let file = memfd_create("gpumem", MemfdFlags::CLOEXEC).map_err(out_of_memory)?;
            ftruncate(&file, size_bytes).map_err(out_of_memory)?;
            Ok(Self(file))
        }

        /// Creates a file for export, as large as its label states. The size is sealed, so mapped parts stay valid whatever other
        /// processes do.
        pub(crate) fn labelled(label: &Ticket) -> Answer<Self> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("gpumem", flags).map_err(out_of_memory)?;
            let size_bytes = label.size_bytes.checked_add(LABEL_BYTES).ok_or(OUT_OF_MEMORY)?;
            ftruncate(&file, size_bytes).map_err(out_of_memory)?;
            let written_bytes = pwrite(&file, &label.encode(), label.size_bytes).map_err(out_of_memory)?;
            fcntl_add_seals(&file, SEALS).map_err(out_of_memory)?;
            if written_bytes == TICKET_BYTES { Ok(Self(file)) } else { Err(OUT_OF_MEMORY) }
        }

        /// Opens an exported file by its descriptor, and reads its label. The caller keeps the descriptor.
        ///
        /// # Errors
        ///
        /// `INVALID_VALUE` if the descriptor is closed or is not of an exported file.
        pub(crate) fn open(descriptor: i32, kind: TicketKind) -> Answer<(Self, Ticket)> {
            if descriptor < 0 {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the descriptor is not -1, and the driver requires that it is open during the call. The system refuses to
            // duplicate a closed one, and nothing else is done with it.
            let given = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let own = fcntl_dupfd_cloexec(given, 0).map_err(|_| INVALID_VALUE)?;
            Self(own).checked(kind)
        }

        /// Opens a file of another process, and reads its label.
        ///
        /// A ticket may be forged, and opening an arbitrary file has effects: on a pipe, a terminal or a device. So the file is
        /// located first, and opened only if it is an anonymous file of the simulator.
        ///
        /// # Errors
        ///
        /// `INVALID_VALUE` if the file does not exist or was not exported.
        pub(crate) fn open_of_process(ticket: &Ticket, kind: TicketKind) -> Answer<(Self, Ticket)> {
            let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.descriptor);
            let located =
                open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|_| INVALID_VALUE)?;
            // `located` stays this file, whatever the other process does with its descriptor.
            let path = format!("/proc/self/fd/{}", located.as_raw_fd());
            let name = readlink(&path, Vec::new()).map_err(|_| INVALID_VALUE)?;
            let has_no_name = fstat(&located).is_ok_and(|stat| stat.st_nlink == 0);
            if !has_no_name || name.to_bytes() != LINK {
                return Err(INVALID_VALUE);
            }
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
            Self(file.map_err(|_| INVALID_VALUE)?.into()).checked(kind)
        }

        fn checked(self, kind: TicketKind) -> Answer<(Self, Ticket)> {
            let is_sealed = fcntl_get_seals(&self.0).is_ok_and(|seals| seals.contains(SEALS));
            let len = fstat(&self.0).map(|stat| stat.st_size as u64).unwrap_or(0);
            let size_bytes = len.checked_sub(LABEL_BYTES).filter(|_| is_sealed).ok_or(INVALID_VALUE)?;
            let mut bytes = [0; TICKET_BYTES];
            let read_bytes = pread(&self.0, &mut bytes, size_bytes).map_err(|_| INVALID_VALUE)?;
            let label = Ticket::decode_as(kind, &bytes)?;
            let is_whole = read_bytes == TICKET_BYTES && label.size_bytes == size_bytes;
            if is_whole { Ok((self, label)) } else { Err(INVALID_VALUE) }
        }

        /// A descriptor that the program passes on and closes.
        pub(crate) fn export(&self) -> Answer<i32> {
            fcntl_dupfd_cloexec(&self.0, 0).map(IntoRawFd::into_raw_fd).map_err(out_of_memory)
        }

        /// The path of the file for another process, among the open files of this one.
        pub(crate) fn descriptor(&self) -> u32 {
            self.0.as_raw_fd() as u32
        }

        /// Maps a part of a labelled file.
        ///
        /// # Errors
        ///
        /// `INVALID_VALUE` for a part that is not in the file, `OUT_OF_MEMORY` if the process has no addresses or memory.
        pub(crate) fn backing(&self, offset_bytes: u64, size_bytes: u64) -> Answer<Backing> {
            let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
            let file_bytes = fstat(&self.0).map_err(|_| INVALID_VALUE)?.st_size as u64;
            offset_bytes.checked_add(size_bytes).filter(|&end| end <= file_bytes).ok_or(INVALID_VALUE)?;
            // SAFETY: the part is in the file, and the size of a labelled file is sealed. Its bytes are device memory, which other
            // instances may write; this process accesses them through raw addresses, or as cells while a kernel runs.
            let map = unsafe { MmapOptions::new().offset(offset_bytes).len(len).map_mut(&self.0) };
            Ok(Backing::of_file(map.map_err(|_| OUT_OF_MEMORY)?, size_bytes))
        }

        /// Copies a mapping's bytes to the file and maps the file in its place, at the same address.
        ///
        /// # Safety
        ///
        /// A mapping of `size_bytes` begins at the address, and the caller may replace it; nothing reads or writes it meanwhile.
        pub(crate) unsafe fn take_over(&self, bytes: Bytes, size_bytes: u64) -> Answer<()> {
            let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
            // SAFETY: the caller guarantees a mapping of that size, which nothing writes meanwhile.
            let old = unsafe { core::slice::from_raw_parts(bytes.0, len) };
            for (index, page) in old.chunks(PAGE_BYTES).enumerate() {
                // Zeros need no copy: they cost no page in the file.
                if page.iter().any(|&byte| byte != 0) {
                    let written_bytes = pwrite(&self.0, page, (index * PAGE_BYTES) as u64);
                    written_bytes.ok().filter(|&written| written == page.len()).ok_or(OUT_OF_MEMORY)?;
                }
            }
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the caller may replace the mapping as a whole; the new one has the same bytes, and the slice of the old ones
            // ended with the loop.
            let mapped = unsafe { mmap(bytes.0.cast(), len, access, flags, &self.0, 0) };
            mapped.map(drop).map_err(out_of_memory)
        }

        /// Releases the pages of a part, which reads as zeros from then on.
        pub(crate) fn discard(&self, offset_bytes: u64, size_bytes: u64) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the system refuses, the pages stay until the file is closed, and the next owner reads old bytes, which new
            // device memory may have anyway.
            let _ = fallocate(&self.0, flags, offset_bytes, size_bytes);
        }
    }

    /// Reserved addresses of this process, without pages until a part of the file is mapped.
    #[derive(Debug)]
    pub(crate) struct AddressRange {
        base: *mut c_void,
        len: usize,
    }

    // SAFETY: the range belongs to no thread. Mapping and unmapping are system calls that any thread may make, and `Bytes` governs
    // who dereferences the addresses.
    unsafe impl Send for AddressRange {}

    impl AddressRange {
        pub(crate) fn reserve(size_bytes: u64) -> Answer<Self> {
            let len = usize::try_from(size_bytes).map_err(|_| OUT_OF_MEMORY)?;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: the system chooses addresses that are not in use.
            let base = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) };
            Ok(Self { base: base.map_err(out_of_memory)?, len })
        }

        pub(crate) fn bytes(&self) -> Bytes {
            Bytes(self.base.cast())
        }

        /// Maps a part of the file at an offset of the range.
        ///
        /// # Safety
        ///
        /// Nothing refers to that part of the range.
        pub(crate) unsafe fn map(
            &self,
            offset_bytes: u64,
            size_bytes: u64,
            file: &PageFile,
            file_offset_bytes: u64,
        ) -> Answer<()> {
            let (at, len) = self.part(offset_bytes, size_bytes)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the replaced part lies in this range, which only this object maps, and the caller guarantees that nothing
            // refers to it.
            let mapped = unsafe { mmap(at, len, access, flags, &file.0, file_offset_bytes) };
            mapped.map(drop).map_err(out_of_memory)
        }

        /// Unmaps a part of the range. An access faults from then on.
        ///
        /// # Safety
        ///
        /// Nothing refers to that part of the range.
        pub(crate) unsafe fn unmap(&self, offset_bytes: u64, size_bytes: u64) -> Answer<()> {
            let (at, len) = self.part(offset_bytes, size_bytes)?;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the replaced part lies in this range, which only this object maps, and the caller guarantees that nothing
            // refers to it.
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
            // SAFETY: the range was reserved for this object, whatever is mapped in it now. It is unmapped when its reservation is
            // freed, which requires that nothing is mapped there, or with the whole machine. The call can only fail for addresses
            // that were never mapped.
            let _ = unsafe { munmap(self.base, self.len) };
        }
    }

    /// The seals of an exported file.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    const PAGE_BYTES: usize = 4096;

    /// The name of a file of the simulator among the descriptors of a process, as the system reports it.
    const LINK: &[u8] = b"/memfd:gpumem (deleted)";

    /// The size of a label at the end of a file.
    const LABEL_BYTES: u64 = PAGE_BYTES as u64;

    fn out_of_memory(_: Errno) -> gpumem_sys::types::CUresult {
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
            // SAFETY: nothing refers to these parts yet.
            unsafe {
                range.map(0, PIECE, &file, PIECE).unwrap();
                range.map(4 * PIECE, PIECE, &file, PIECE).unwrap();
            }
            let read = |offset: u64| {
                // SAFETY: called for mapped parts only.
                unsafe { range.bytes().at(offset).0.read() }
            };
            // SAFETY: the part is mapped and nothing else uses it.
            unsafe { range.bytes().0.write(7) };
            assert_eq!(read(4 * PIECE), 7);
            // SAFETY: nothing refers to it.
            unsafe { range.unmap(0, PIECE).unwrap() };
            assert_eq!(read(4 * PIECE), 7);
            file.discard(PIECE, PIECE);
            assert_eq!(read(4 * PIECE), 0);
            // SAFETY: the call refuses it, because it is not a part of the range.
            assert_eq!(unsafe { range.map(1 << 42, PIECE, &file, 0) }, Err(OUT_OF_MEMORY));
        }

        /// The system reports every opening of a file to a watcher.
        #[test]
        fn a_forged_ticket_opens_nothing() {
            use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
            use rustix::io::read;
            let path = std::env::temp_dir().join(format!("gpumem-forged-{}", std::process::id()));
            let file = std::fs::File::create(&path).unwrap();
            let watcher = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
            inotify::add_watch(&watcher, &path, WatchFlags::OPEN).unwrap();
            let is_notified = || read(&watcher, &mut [0_u8; 4096]).is_ok();

            let ticket = Ticket::new(TicketKind::Plain, 0, 0, 4096);
            let forged = Ticket { descriptor: file.as_raw_fd() as u32, ..ticket };
            assert_eq!(PageFile::open_of_process(&forged, TicketKind::Chunk).err(), Some(INVALID_VALUE));
            assert!(!is_notified(), "the file was opened");
            drop(std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())));
            assert!(is_notified(), "an opening goes unnoticed here");
            std::fs::remove_file(path).unwrap();

            let label = Ticket::new(TicketKind::Chunk, 0, 0, 4096);
            let exported = PageFile::labelled(&label).unwrap();
            let ticket = Ticket { descriptor: exported.descriptor(), ..label };
            assert_eq!(PageFile::open_of_process(&ticket, TicketKind::Chunk).unwrap().1, label);
        }

        #[test]
        fn a_piece_that_is_not_in_the_file_is_refused() {
            let file = PageFile::labelled(&Ticket::new(TicketKind::Chunk, 0, 0, 1 << 20)).unwrap();
            assert!(file.backing(0, 1 << 20).is_ok());
            assert_eq!(file.backing(1 << 20, 1 << 20).err(), Some(INVALID_VALUE));
            assert_eq!(file.backing(u64::MAX, 2).err(), Some(INVALID_VALUE));
        }

        #[test]
        fn only_a_whole_file_of_the_kind_is_opened() {
            let label = Ticket::new(TicketKind::Pool, 0, 0, 1 << 40);
            let file = PageFile::labelled(&label).unwrap();
            let own = file.export().unwrap();
            assert_eq!(PageFile::open(own, TicketKind::Pool).unwrap().1, label);
            assert_eq!(PageFile::open(own, TicketKind::Physical).err(), Some(INVALID_VALUE));
            // SAFETY: `export` made the descriptor, and nothing else has it.
            let own = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(own) };
            assert_eq!(ftruncate(&own, 4096), Err(Errno::PERM));

            // The same bytes in a file whose size is not sealed.
            let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            let small = Ticket::new(TicketKind::Pool, 0, 0, 0);
            pwrite(&open, &small.encode(), 0).unwrap();
            ftruncate(&open, LABEL_BYTES).unwrap();
            let open = open.into_raw_fd();
            assert_eq!(PageFile::open(open, TicketKind::Pool).err(), Some(INVALID_VALUE));
            // SAFETY: `into_raw_fd` gave the descriptor, and nothing else has it.
            let open = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(open) };
            fcntl_add_seals(&open, SEALS).unwrap();
            let open = open.into_raw_fd();
            assert_eq!(PageFile::open(open, TicketKind::Pool).unwrap().1, small);
            // SAFETY: `into_raw_fd` gave the descriptor, and nothing else has it.
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(open) });

            for foreign in [-1, i32::MIN, i32::MAX, 1_000_000, 1] {
                assert_eq!(PageFile::open(foreign, TicketKind::Pool).err(), Some(INVALID_VALUE));
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod missing {
    use crate::backing::ticket::{Ticket, TicketKind};
    use crate::backing::{Backing, Bytes};
    use crate::base::codes::{Answer, NOT_SUPPORTED};
    use core::convert::Infallible;

    /// Such files do not exist on this system.
    #[derive(Debug)]
    pub(crate) struct PageFile(Infallible);

    impl PageFile {
        pub(crate) fn new(_size_bytes: u64) -> Answer<Self> {
            Err(NOT_SUPPORTED)
        }

        pub(crate) fn labelled(_label: &Ticket) -> Answer<Self> {
            Err(NOT_SUPPORTED)
        }

        pub(crate) fn open(_descriptor: i32, _kind: TicketKind) -> Answer<(Self, Ticket)> {
            Err(NOT_SUPPORTED)
        }

        pub(crate) fn open_of_process(_: &Ticket, _kind: TicketKind) -> Answer<(Self, Ticket)> {
            Err(NOT_SUPPORTED)
        }

        pub(crate) fn export(&self) -> Answer<i32> {
            match self.0 {}
        }

        pub(crate) fn descriptor(&self) -> u32 {
            match self.0 {}
        }

        pub(crate) fn backing(&self, _offset_bytes: u64, _size_bytes: u64) -> Answer<Backing> {
            match self.0 {}
        }

        /// # Safety
        ///
        /// No condition: there is no such object.
        pub(crate) unsafe fn take_over(&self, _bytes: Bytes, _size_bytes: u64) -> Answer<()> {
            match self.0 {}
        }

        pub(crate) fn discard(&self, _offset_bytes: u64, _size_bytes: u64) {
            match self.0 {}
        }
    }

    /// Such ranges do not exist on this system.
    #[derive(Debug)]
    pub(crate) struct AddressRange(Infallible);

    impl AddressRange {
        pub(crate) fn reserve(_size_bytes: u64) -> Answer<Self> {
            Err(NOT_SUPPORTED)
        }

        pub(crate) fn bytes(&self) -> Bytes {
            match self.0 {}
        }

        /// # Safety
        ///
        /// No condition: there is no such object.
        pub(crate) unsafe fn map(&self, _: u64, _: u64, _: &PageFile, _: u64) -> Answer<()> {
            match self.0 {}
        }

        /// # Safety
        ///
        /// No condition: there is no such object.
        pub(crate) unsafe fn unmap(&self, _: u64, _: u64) -> Answer<()> {
            match self.0 {}
        }
    }
}
