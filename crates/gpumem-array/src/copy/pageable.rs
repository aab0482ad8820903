//! Copies from and to pageable memory: through the pinned buffers of [`Staging`], in chunks.
//!
//! An upload fills buffers with several threads, and queues each as soon as it is full. It returns when all of them are queued: the
//! elements have been read, and the copy is in stream order. A download queues copies into all buffers that it can get, and drains
//! each as soon as its copy is done.
//!
//! The device accesses only buffers, never the caller's memory. The threads access it, and every copy of theirs is waited for before this
//! returns, even while unwinding.

use crate::element::{Cast, Element};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::gpu::staging::{
    BufferAnswer, Burst, Conversion, Copying, HostCopy, Lent, PIECE_BYTES, Staging, Stores,
};
use crate::storage::{Access, Touched, Use, mark, queue_copy, run_borrowed};
use core::cell::Cell;
use gpumem_pool::MemoryKind;
use gpumem_pool::sys::types::CUdeviceptr;
use std::collections::VecDeque;
use std::time::Instant;

/// Copies bytes to the device. The stream has been ordered for `target`, which has the bytes from `to` on. Returns when they have
/// been read.
pub(super) fn upload(gpu: &Gpu, target: Use<'_>, to: u64, bytes: &[u8]) -> Result<(), ArrayError> {
    match target.storage().kind() {
        MemoryKind::Device if bytes.len() <= SMALL_BYTES_MAX && gpu.driver_stages_uploads() => {
            upload_small(gpu, target, to, bytes)
        }
        MemoryKind::Host => upload_directly(gpu, target, to, bytes),
        _ if bytes.len() <= SMALL_BYTES_MAX => upload_directly(gpu, target, to, bytes),
        _ => upload_large(gpu, target, to, HostSource::of(bytes)),
    }
}

/// Like [`upload`], for elements that are converted on the host.
pub(super) fn upload_cast<T: Cast<U>, U: Element>(
    gpu: &Gpu,
    target: Use<'_>,
    to: u64,
    elements: &[T],
) -> Result<(), ArrayError> {
    if size_of_val(elements) <= SMALL_BYTES_MAX {
        let converted: Vec<U> = elements.iter().map(|element| element.cast()).collect();
        return upload(gpu, target, to, bytemuck::cast_slice(&converted));
    }
    let source =
        HostSource { bytes: bytemuck::cast_slice(elements), conversion: Some(Conversion::new::<T, U>()) };
    upload_large(gpu, target, to, source)
}

fn upload_large(gpu: &Gpu, target: Use<'_>, to: u64, source: HostSource<'_>) -> Result<(), ArrayError> {
    let begin = Instant::now();
    let queued = upload_staged(gpu, &gpu.staging(), target, to, source);
    gpu.transfer_counters().add_time(begin.elapsed());
    // Another stream that uses the elements does not wait for later uploads.
    mark(gpu.stream());
    queued.map_err(|error| gpu.with_kernel_name(error))
}

/// Elements on the host, and their conversion to the device's type.
#[derive(Clone, Copy)]
struct HostSource<'a> {
    bytes: &'a [u8],
    conversion: Option<Conversion>,
}

impl<'a> HostSource<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, conversion: None }
    }

    fn size_bytes(self) -> usize {
        match self.conversion {
            Some(conversion) => conversion.target_bytes(self.bytes.len()),
            None => self.bytes.len(),
        }
    }

    /// The largest whole number of elements that fits, in bytes; at least one element.
    fn whole(self, size_bytes: usize) -> usize {
        self.conversion.map_or(size_bytes, |conversion| conversion.whole(size_bytes))
    }

    /// Parts of this size on the device, with their offsets there.
    fn chunks(self, chunk_bytes: usize) -> impl Iterator<Item = (usize, Self)> {
        let conversion = self.conversion;
        let source_bytes = conversion.map_or(chunk_bytes, |conversion| conversion.source_bytes(chunk_bytes));
        let chunk = move |(index, bytes)| (index * chunk_bytes, Self { bytes, conversion });
        self.bytes.chunks(source_bytes).enumerate().map(chunk)
    }

    fn upload_directly(self, gpu: &Gpu, target: Use<'_>, to: u64) -> Result<(), ArrayError> {
        let Some(conversion) = self.conversion else { return upload_directly(gpu, target, to, self.bytes) };
        // Without buffers. The host needs no memory for all elements.
        for (start, part) in self.chunks(PIECE_BYTES) {
            // Aligned to every element.
            let mut converted = vec![0_u128; part.size_bytes().div_ceil(size_of::<u128>())];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut converted);
            let bytes = &mut bytes[..part.size_bytes()];
            conversion.convert(bytes, part.bytes);
            upload_directly(gpu, target, to + start as u64, bytes)?;
        }
        Ok(())
    }
}

fn upload_staged(
    gpu: &Gpu,
    staging: &Staging,
    target: Use<'_>,
    to: u64,
    source: HostSource<'_>,
) -> Result<(), ArrayError> {
    let buffer_bytes = staging.buffer_bytes().filter(|_| target.storage().kind() != MemoryKind::Host);
    let Some(buffer_bytes) = buffer_bytes.filter(|size_bytes| *size_bytes >= WIDEST_BYTES) else {
        return source.upload_directly(gpu, target, to);
    };
    let _burst = burst(staging, source.size_bytes());
    let chunk_bytes = source.whole(chunk_bytes(source.size_bytes(), buffer_bytes));
    let mut chunks = source.chunks(chunk_bytes).map(|(start, chunk)| (to + start as u64, chunk)).peekable();
    let mut filling: VecDeque<UploadFilling<'_>> = VecDeque::new();
    loop {
        while let Some((to, chunk)) = chunks.peek().copied() {
            let buffer = match staging.buffer(gpu.pools(), gpu.stream(), filling.is_empty())? {
                BufferAnswer::Buffer(buffer) => buffer,
                BufferAnswer::Later => break,
                BufferAnswer::Direct => {
                    chunk.upload_directly(gpu, target, to)?;
                    chunks.next();
                    continue;
                }
            };
            let HostSource { bytes, conversion } = chunk;
            let (middle, from, size_bytes) = (buffer.host_ptr(), bytes.as_ptr(), chunk.size_bytes());
            buffer.note_host_access(Access::Write, size_bytes);
            let copy = HostCopy { to: middle, from, size_bytes, stores: Stores::ThroughCache, conversion };
            // SAFETY: a chunk fits into the buffer, which nothing else uses and which is aligned to every element. The source is borrowed,
            // aligned to its elements, and `filling` is dropped before this returns.
            let copying = unsafe { staging.workers().start([copy]) };
            filling.push_back(UploadFilling { copying, buffer, to, size_bytes });
            chunks.next();
        }
        let Some(UploadFilling { copying, mut buffer, to, size_bytes }) = filling.pop_front() else {
            return Ok(());
        };
        finish(gpu, copying);
        buffer.record_use(gpu.stream());
        let from = buffer.address();
        gpu.transfer_counters().add_uploaded(size_bytes);
        queue_copy(gpu, [Touched::Array(target), Touched::Other(buffer.memory())], |stream, placed| {
            let to = target.at(to, placed);
            // SAFETY: the target has these bytes, is alive, and the stream has been ordered to write it. The buffer is full, and
            // outlives the copy: it is used again only when its event is complete, and freed in stream order.
            unsafe { gpu.device().driver().cuMemcpyAsync(to, from, size_bytes, stream) }
        })?;
        if buffer.record_end(gpu.stream()).is_ok() {
            buffer.give_back();
        }
    }
}

/// Copies at most [`SMALL_BYTES_MAX`] bytes to the device. The stream has been ordered for `target`, which has the bytes from `to`
/// on.
///
/// The driver reads pageable memory in the call ([`Gpu::driver_stages_uploads`]), but pinned memory when the copy runs, and the
/// caller's memory may be pinned. So the bytes are first copied to memory that is not pinned, which takes a small part of the
/// call's time.
fn upload_small(gpu: &Gpu, target: Use<'_>, to: u64, bytes: &[u8]) -> Result<(), ArrayError> {
    let buffer = SMALL.try_with(Cell::take).ok().flatten();
    let mut buffer = buffer.unwrap_or_else(|| vec![0; SMALL_BYTES_MAX + PAGE_BYTES_MAX].into_boxed_slice());
    let queued = match whole_pages(&mut buffer).and_then(|pages| pages.get_mut(..bytes.len())) {
        Some(copy) => {
            gpu.transfer_counters().add_direct(bytes.len());
            copy.copy_from_slice(bytes);
            queue_copy(gpu, [target], |stream, placed| {
                let to = target.at(to, placed);
                // SAFETY: the target has these bytes, is alive, and the stream has been ordered to write it. The driver reads the copy,
                // which no one has pinned, during the call.
                unsafe {
                    gpu.device().driver().cuMemcpyHtoDAsync_v2(to, copy.as_ptr().cast(), copy.len(), stream)
                }
            })
        }
        None => upload_directly(gpu, target, to, bytes),
    };
    // A thread that is ending has no storage for the buffer.
    let _ = SMALL.try_with(|small| small.set(Some(buffer)));
    queued
}

/// The part of a buffer that shares no page with other memory. The program can pin any of its memory with [`Gpu::with_registered`], and
/// pinning part of a page pins the whole page.
fn whole_pages(buffer: &mut [u8]) -> Option<&mut [u8]> {
    let start = buffer.as_ptr().align_offset(PAGE_BYTES_MAX);
    buffer.get_mut(start..)?.get_mut(..SMALL_BYTES_MAX)
}

thread_local! {
    /// Memory whose [`whole_pages`] are never pinned.
    static SMALL: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// A buffer that is being filled. The copy ends before the buffer.
struct UploadFilling<'a> {
    copying: Copying<'a>,
    buffer: Lent<'a>,
    to: u64,
    size_bytes: usize,
}

/// Copies `size_bytes` bytes from the device. The stream has been ordered for `source`, which has the bytes from `from` on.
///
/// # Safety
///
/// `to` has these bytes, which nothing else accesses before this returns.
pub(super) unsafe fn download(
    gpu: &Gpu,
    source: Use<'_>,
    (to, from): (*mut u8, u64),
    size_bytes: usize,
) -> Result<(), ArrayError> {
    let is_staged = size_bytes >= STAGED_DOWNLOAD_BYTES_MIN && source.storage().kind() != MemoryKind::Host;
    let begin = Instant::now();
    // SAFETY: the caller's promise.
    let copied = unsafe {
        if is_staged {
            download_staged(gpu, &gpu.staging(), source, (to, from), size_bytes)
        } else {
            download_directly(gpu, source, (to, from), size_bytes)
        }
    };
    if is_staged {
        gpu.transfer_counters().add_time(begin.elapsed());
    }
    copied.map_err(|error| gpu.with_kernel_name(error))
}

/// Copies through the buffers.
///
/// # Safety
///
/// `to` has these bytes, which nothing else accesses before this returns.
unsafe fn download_staged(
    gpu: &Gpu,
    staging: &Staging,
    source: Use<'_>,
    (to, from): (*mut u8, u64),
    size_bytes: usize,
) -> Result<(), ArrayError> {
    let directly = |start: usize, size_bytes| {
        // SAFETY: the caller's promise, for a part of the bytes.
        unsafe { download_directly(gpu, source, (to.wrapping_add(start), from + start as u64), size_bytes) }
    };
    let Some(buffer_bytes) = staging.buffer_bytes() else { return directly(0, size_bytes) };
    let stores = if size_bytes >= PAST_CACHE_BYTES_MIN { Stores::PastCache } else { Stores::ThroughCache };
    let _burst = burst(staging, size_bytes);
    let chunk_bytes = chunk_bytes(size_bytes, buffer_bytes);
    let mut chunks = (0..size_bytes)
        .step_by(chunk_bytes)
        .map(|start| (start, chunk_bytes.min(size_bytes - start)))
        .peekable();
    let mut arriving: VecDeque<Arriving<'_>> = VecDeque::new();
    let mut draining: VecDeque<Draining<'_>> = VecDeque::new();
    loop {
        while let Some((start, size_bytes)) = chunks.peek().copied() {
            let may_wait = arriving.is_empty() && draining.is_empty();
            let mut buffer = match staging.buffer(gpu.pools(), gpu.stream(), may_wait)? {
                BufferAnswer::Buffer(buffer) => buffer,
                BufferAnswer::Later => break,
                BufferAnswer::Direct => {
                    directly(start, size_bytes)?;
                    chunks.next();
                    continue;
                }
            };
            buffer.record_use(gpu.stream());
            let middle = buffer.address();
            queue_copy(gpu, [Touched::Array(source), Touched::Other(buffer.memory())], |stream, placed| {
                let from = source.at(from, placed);
                // SAFETY: the source has these bytes, is alive, and the stream has been ordered to read it. A chunk fits into the
                // buffer, which outlives the copy: it is freed in stream order.
                unsafe {
                    gpu.device().driver().cuMemcpyAsync(middle, from + start as u64, size_bytes, stream)
                }
            })?;
            buffer.record_end(gpu.stream())?;
            arriving.push_back(Arriving { buffer, start, size_bytes });
            chunks.next();
        }
        while draining.front().is_some_and(|first| first.copying.is_done() || arriving.is_empty()) {
            draining.pop_front().into_iter().for_each(|first| first.finish(gpu));
        }
        let Some(first) = arriving.front() else {
            match chunks.peek() {
                Some(_) => continue,
                None => return Ok(()),
            }
        };
        if !first.buffer.is_complete()? {
            if staging.workers().help() {
                continue;
            }
            let begin = Instant::now();
            let waited = first.buffer.synchronize();
            gpu.transfer_counters().add_device_wait(begin.elapsed());
            waited?;
        }
        if let Some(Arriving { buffer, start, size_bytes }) = arriving.pop_front() {
            buffer.note_host_access(Access::Read, size_bytes);
            gpu.transfer_counters().add_downloaded(size_bytes);
            let (to, from) = (to.wrapping_add(start), buffer.host_ptr());
            let copy = HostCopy { to, from, size_bytes, stores, conversion: None };
            // SAFETY: the buffer has these bytes, and the device no longer uses it. The caller's memory is not used otherwise before
            // this returns, and `draining` is dropped before that.
            let copying = unsafe { staging.workers().start([copy]) };
            draining.push_back(Draining { copying, buffer });
        }
    }
}

/// A buffer that the device writes.
struct Arriving<'a> {
    buffer: Lent<'a>,
    start: usize,
    size_bytes: usize,
}

/// A buffer that is being drained. The copy ends before the buffer.
struct Draining<'a> {
    copying: Copying<'a>,
    buffer: Lent<'a>,
}

impl Draining<'_> {
    fn finish(self, gpu: &Gpu) {
        let Self { copying, buffer } = self;
        finish(gpu, copying);
        buffer.give_back();
    }
}

/// Ends a copy of host memory, which the calling thread helps with.
pub(super) fn finish(gpu: &Gpu, copying: Copying<'_>) {
    if !copying.is_done() {
        let begin = Instant::now();
        drop(copying);
        gpu.transfer_counters().add_host_wait(begin.elapsed());
    }
}

/// Wakes the threads for a copy that is large enough.
pub(super) fn burst(staging: &Staging, size_bytes: usize) -> Option<Burst<'_>> {
    (size_bytes >= SHARED_BYTES_MIN).then(|| staging.workers().burst())
}

/// The size of the chunks of a copy, in bytes. Even small copies have several chunks, so that threads and link work at the same time.
fn chunk_bytes(size_bytes: usize, buffer_bytes: usize) -> usize {
    size_bytes.div_ceil(CHUNK_COUNT_MIN).next_multiple_of(PIECE_BYTES).min(buffer_bytes)
}

/// Lets the driver copy. Returns when the copy is complete.
fn upload_directly(gpu: &Gpu, target: Use<'_>, to: u64, bytes: &[u8]) -> Result<(), ArrayError> {
    let from = bytes.as_ptr().expose_provenance() as CUdeviceptr;
    gpu.transfer_counters().add_direct(bytes.len());
    run_borrowed(gpu, target, super::UPLOAD, |stream, placed| {
        let to = target.at(to, placed);
        // SAFETY: the target has these bytes, is alive, and the stream has been ordered to write it. The source is borrowed until
        // this returns, and then the copy is done.
        unsafe { gpu.device().driver().cuMemcpyAsync(to, from, bytes.len(), stream) }
    })?;
    target.record_complete(gpu.stream());
    Ok(())
}

/// Lets the driver copy. Returns when the copy is complete.
///
/// # Safety
///
/// `to` has these bytes, which nothing else accesses before this returns.
unsafe fn download_directly(
    gpu: &Gpu,
    source: Use<'_>,
    (to, from): (*mut u8, u64),
    size_bytes: usize,
) -> Result<(), ArrayError> {
    let to = to.expose_provenance() as CUdeviceptr;
    gpu.transfer_counters().add_direct(size_bytes);
    run_borrowed(gpu, source, super::DOWNLOAD, |stream, placed| {
        let from = source.at(from, placed);
        // SAFETY: the source has these bytes, is alive, and the stream has been ordered to read it. The caller's memory is not used
        // before this returns, and then the copy is done.
        unsafe { gpu.device().driver().cuMemcpyAsync(to, from, size_bytes, stream) }
    })
}

/// The size of the widest element that is converted.
const WIDEST_BYTES: usize = 16;
/// The driver is faster below this size.
const STAGED_DOWNLOAD_BYTES_MIN: usize = 512 << 10;
/// Destinations from this size on bypass the caches, which are about as large: that is twice as fast on a server with 16 cores.
const PAST_CACHE_BYTES_MIN: usize = 32 << 20;
/// The driver copies smaller uploads directly.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// The largest page size of the supported systems. Some have pages of 4 KiB or 16 KiB.
const PAGE_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(SMALL_BYTES_MAX.is_multiple_of(PAGE_BYTES_MAX));
const CHUNK_COUNT_MIN: usize = 4;
/// From this size on, waking threads takes less time than they save.
const SHARED_BYTES_MIN: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_uploads_have_pages_of_their_own() {
        let mut memory = vec![0_u8; SMALL_BYTES_MAX + 3 * PAGE_BYTES_MAX];
        for start in [0, 1, 16, 4096, PAGE_BYTES_MAX - 1] {
            let buffer = &mut memory[start..start + SMALL_BYTES_MAX + PAGE_BYTES_MAX];
            let pages = whole_pages(buffer).expect("a page more than needed is enough for any start");
            assert_eq!(pages.len(), SMALL_BYTES_MAX, "{start}");
            assert!(pages.as_ptr().addr().is_multiple_of(PAGE_BYTES_MAX), "{start}");
        }
    }
}
