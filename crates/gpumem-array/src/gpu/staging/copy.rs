//! Copies of host memory, through the processor's caches or bypassing them.

/// Copies memory like [`core::ptr::copy_nonoverlapping`]. On x86-64, the stores bypass the caches: the processor does not read the
/// destination before writing it, and keeps other data in its caches. For destinations larger than the cache.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `size_bytes` bytes. The two ranges must not overlap.
pub(super) unsafe fn copy_past_cache(to: *mut u8, from: *const u8, size_bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let (to, from, size_bytes) = {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE_BYTES: usize = 64;
        const WORD_BYTES: usize = size_of::<__m128i>();

        // Streaming stores need aligned addresses.
        let head_bytes = to.align_offset(LINE_BYTES).min(size_bytes);
        let line_count = (size_bytes - head_bytes) / LINE_BYTES;
        // SAFETY: the head is within both ranges.
        unsafe { to.copy_from_nonoverlapping(from, head_bytes) };
        let (to, from) = (to.wrapping_add(head_bytes), from.wrapping_add(head_bytes));
        for line in 0..line_count {
            for word in 0..LINE_BYTES / WORD_BYTES {
                let start = line * LINE_BYTES + word * WORD_BYTES;
                // SAFETY: `line_count` lines are within both ranges, and `to` is aligned to a line. Every x86-64 processor has these
                // instructions.
                unsafe {
                    let value = _mm_loadu_si128(from.wrapping_add(start).cast());
                    _mm_stream_si128(to.wrapping_add(start).cast(), value);
                }
            }
        }
        // SAFETY: every x86-64 processor has this instruction. It orders the streaming stores before the store with which this thread
        // announces the end of the copy.
        unsafe { _mm_sfence() };
        let copied_bytes = line_count * LINE_BYTES;
        (
            to.wrapping_add(copied_bytes),
            from.wrapping_add(copied_bytes),
            size_bytes - head_bytes - copied_bytes,
        )
    };
    // SAFETY: on x86-64 the tail of both ranges, elsewhere all of both.
    unsafe { to.copy_from_nonoverlapping(from, size_bytes) };
}

/// Copies memory like [`core::ptr::copy_nonoverlapping`].
///
/// # Safety
///
/// `from` must be readable and `to` writable for `size_bytes` bytes. The two ranges must not overlap.
pub(super) unsafe fn copy_through_cache(to: *mut u8, from: *const u8, size_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, size_bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_and_size_is_copied_exactly() {
        let from: Vec<u8> = (0..600_usize).map(|index| (index * 7) as u8).collect();
        for from_start in [0, 1, 15, 16, 63] {
            for to_start in [0, 1, 16, 31, 64] {
                for size_bytes in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 400] {
                    let mut to = vec![0_u8; 600];
                    let source = &from[from_start..from_start + size_bytes];
                    let range = to_start..to_start + size_bytes;
                    for copy in [copy_past_cache, copy_through_cache] {
                        to.fill(0);
                        // SAFETY: both slices have these bytes and belong to different vectors.
                        unsafe { copy(to[range.clone()].as_mut_ptr(), source.as_ptr(), size_bytes) };
                        assert_eq!(&to[range.clone()], source, "{from_start} {to_start} {size_bytes}");
                        assert!(to[..range.start].iter().chain(&to[range.end..]).all(|byte| *byte == 0));
                    }
                }
            }
        }
    }
}
