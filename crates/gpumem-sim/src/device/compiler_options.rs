//! The options of a compilation: buffers of the program for its messages, and a target.

use core::ffi::c_void;
use core::ptr::null_mut;

/// The buffers of one compilation or link, and its target.
#[derive(Default)]
pub(crate) struct CompilerOptions {
    pub(crate) info: CompilerLog,
    pub(crate) error: CompilerLog,
    /// The compute capability to compile for, as `major * 10 + minor`; `None` for the device's.
    pub(crate) target: Option<u32>,
}

/// A buffer of the program, and what was written to it.
pub(crate) struct CompilerLog {
    /// May be null.
    pub(crate) buffer: *mut u8,
    pub(crate) size_bytes: usize,
    /// The place of the size, which gets the length of the text; may be null.
    pub(crate) len: *mut *mut c_void,
    text: String,
}

impl Default for CompilerLog {
    fn default() -> Self {
        Self { buffer: null_mut(), size_bytes: 0, len: null_mut(), text: String::new() }
    }
}

// SAFETY: the program lends buffer and place to the driver, whatever thread calls it, for as long as the object with this log lives.
unsafe impl Send for CompilerLog {}

impl CompilerOptions {
    /// Writes both logs to their buffers.
    ///
    /// # Safety
    ///
    /// The conditions of [`CompilerLog::write`] hold for both.
    pub(crate) unsafe fn write(&self) {
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            self.info.write();
            self.error.write();
        }
    }
}

impl CompilerLog {
    /// Appends a message as a line.
    pub(crate) fn add(&mut self, message: &str) {
        self.text.push_str(message);
        if !message.is_empty() && !message.ends_with('\n') {
            self.text.push('\n');
        }
    }

    /// Writes the text to the buffer, cut at its size, with NUL behind it, and the length without the NUL to its place.
    ///
    /// # Safety
    ///
    /// `buffer` is null or has `size_bytes` bytes, and `len` is null or a place for a value.
    unsafe fn write(&self) {
        let room = self.size_bytes.saturating_sub(1).min(self.text.len());
        let len = (0..=room).rev().find(|len| self.text.is_char_boundary(*len)).unwrap_or(0);
        if !self.buffer.is_null() && self.size_bytes > 0 {
            // SAFETY: the buffer has `size_bytes` bytes, which is more than `len`.
            unsafe {
                self.buffer.copy_from_nonoverlapping(self.text.as_ptr(), len);
                self.buffer.add(len).write(0);
            }
        }
        if !self.len.is_null() {
            // SAFETY: the caller guarantees a place for a value.
            unsafe { self.len.write_unaligned(core::ptr::without_provenance_mut(len)) };
        }
    }
}
