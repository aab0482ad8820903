//! Fat binaries: containers of PTX and machine code for several GPUs, as `nvcc` and `fatbinary` write them. PTX may be compressed.
//!
//! A header of 16 bytes states the size of the entries behind it. An entry has a header with the kind, the compute capability and the
//! sizes, and then its contents. Nothing here reads outside of the image, whatever the sizes say.

use crate::base::codes::{INVALID_IMAGE, NO_BINARY_FOR_GPU};
use crate::device::image::{COMPUTE_CAPABILITY, ImageError, characters};
use ruzstd::decoding::FrameDecoder;
use std::borrow::Cow;

/// The PTX for the device: that of the highest compute capability that the device has.
pub(crate) fn text(image: &[u8]) -> Result<String, ImageError> {
    let mut best: Option<Entry<'_>> = None;
    let mut least = None;
    let mut rest = contents(image).ok_or_else(cut)?;
    while !rest.is_empty() {
        let entry = Entry::read(rest).ok_or_else(cut)?;
        rest = &rest[entry.size_bytes..];
        if entry.kind != KIND_PTX {
            continue;
        }
        least = Some(least.map_or(entry.arch, |least: u32| least.min(entry.arch)));
        let is_better = best.as_ref().is_none_or(|best| best.arch < entry.arch);
        if entry.arch <= COMPUTE_CAPABILITY && is_better {
            best = Some(entry);
        }
    }
    match (best, least) {
        (Some(entry), _) => entry.text(),
        (None, Some(least)) => Err(ImageError::new(
            NO_BINARY_FOR_GPU,
            format!(
                "the fat binary has PTX for compute_{least} and later, and the device has compute_{COMPUTE_CAPABILITY}; compile \
                 for an earlier one too"
            ),
        )),
        (None, None) => Err(ImageError::machine_code()),
    }
}

/// The size of the fat binary that begins with this header, if it is one.
pub(crate) fn size_bytes(header: &[u8; HEADER_BYTES]) -> Option<usize> {
    let header_bytes = u64::from(u16::from_le_bytes(array(header, 6)?));
    let entries_bytes = u64::from_le_bytes(array(header, 8)?);
    let size_bytes = header_bytes.checked_add(entries_bytes)?;
    let is_sound = header.starts_with(&MAGIC) && header_bytes >= HEADER_BYTES as u64;
    usize::try_from(size_bytes).ok().filter(|size_bytes| is_sound && *size_bytes <= SIZE_BYTES_MAX)
}

/// The entries of a fat binary.
fn contents(image: &[u8]) -> Option<&[u8]> {
    let size_bytes = size_bytes(image.first_chunk()?)?;
    let header_bytes = usize::from(u16::from_le_bytes(array(image, 6)?));
    image.get(header_bytes..size_bytes)
}

struct Entry<'a> {
    kind: u16,
    arch: u32,
    flags: u64,
    /// With the padding behind it.
    payload: &'a [u8],
    compressed_bytes: usize,
    text_bytes: u64,
    /// Of header and payload.
    size_bytes: usize,
}

impl<'a> Entry<'a> {
    /// The entry at the beginning; `None` if it is cut off.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let header_bytes = u32::from_le_bytes(array(bytes, 4)?) as usize;
        let payload_bytes = usize::try_from(u64::from_le_bytes(array(bytes, 8)?)).ok()?;
        let size_bytes = header_bytes.checked_add(payload_bytes)?;
        if header_bytes < ENTRY_HEADER_BYTES {
            return None;
        }
        Some(Self {
            kind: u16::from_le_bytes(array(bytes, 0)?),
            arch: u32::from_le_bytes(array(bytes, 28)?),
            flags: u64::from_le_bytes(array(bytes, 40)?),
            payload: bytes.get(header_bytes..size_bytes)?,
            compressed_bytes: u32::from_le_bytes(array(bytes, 16)?) as usize,
            text_bytes: u64::from_le_bytes(array(bytes, 56)?),
            size_bytes,
        })
    }

    /// The text, up to the NUL behind it.
    fn text(&self) -> Result<String, ImageError> {
        let mut text = match self.flags {
            flags if flags & FLAG_LZ4 != 0 => {
                self.decompress(|from, to| lz4_flex::block::decompress_into(from, to).ok())?
            }
            flags if flags & FLAG_ZSTD != 0 => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(TEXT_BYTES_MAX);
                self.decompress(|from, to| decoder.decode_all(from, to).ok())?
            }
            _ => self.payload.to_vec(),
        };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        text.truncate(end);
        characters(&text).map(Cow::into_owned).ok_or_else(damaged)
    }

    fn decompress(&self, run: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>) -> Result<Vec<u8>, ImageError> {
        if self.text_bytes > TEXT_BYTES_MAX {
            let text = format!("the PTX in the fat binary has more than {TEXT_BYTES_MAX} bytes");
            return Err(ImageError::new(INVALID_IMAGE, text));
        }
        let compressed = self.payload.get(..self.compressed_bytes).ok_or_else(cut)?;
        let mut text = vec![0; self.text_bytes as usize];
        let size_bytes = run(compressed, &mut text).ok_or_else(damaged)?;
        text.truncate(size_bytes);
        Ok(text)
    }
}

/// Some bytes at an offset.
fn array<const LEN: usize>(bytes: &[u8], offset: usize) -> Option<[u8; LEN]> {
    bytes.get(offset..)?.first_chunk().copied()
}

fn cut() -> ImageError {
    ImageError::new(INVALID_IMAGE, "the fat binary is cut off, or its sizes are wrong")
}

fn damaged() -> ImageError {
    ImageError::new(INVALID_IMAGE, "the PTX in the fat binary is damaged")
}

pub(crate) const MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
pub(crate) const HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 64;
const KIND_PTX: u16 = 1;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// Larger ones are refused. A caller passes no size beside the one in the header.
const SIZE_BYTES_MAX: usize = 1 << 30;
/// The longest text of an entry. The allocation for it depends on a size in the image.
const TEXT_BYTES_MAX: u64 = 64 << 20;
