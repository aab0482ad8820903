//! The byte format of a trace. Pure.
//!
//! ```text
//! file:   "GPUMEMTR" version:u32 process:u32 crc:u32, chunks
//! events: "gmtc" payload:u32 thread:u32 events:u32 dropped:u64 time:u64 crc:u32, payload
//! live:   "gmtl" like events: blocks that were live when this part of the trace began
//! part:   "gmtp" 0:u32 part:u32 0:u32 trace:u64 overwritten:u64 crc:u32
//! pool:   "gmts" payload:u32 pool:u32 0:u32 0:u64 0:u64 crc:u32, payload: the settings of a pool
//! name:   "gmtn" payload:u32 pool:u32 tag:u32 0:u64 0:u64 crc:u32, payload
//! report: "gmtr" payload:u32 pool:u32 0:u32 0:u64 time:u64 crc:u32, payload: the report of a refusal
//! exit:   "gmte" 0:u32 0:u32 0:u32 0:u64 0:u64 crc:u32: the process exited
//! event:  kind:u8 time address value stream pool tag
//! ```
//!
//! Integers of fixed length are little-endian. The integers of an event have seven bits per byte; the top bit is clear
//! in the last byte. Time and address are differences to the previous event, the address with its sign in the lowest
//! bit. A crc covers the bytes before it, and in a chunk also the payload. `dropped` is the number of events that the
//! thread has lost so far. A pool's tags are numbered from 1. The name of a tag, UTF-8 of at most 256 bytes, precedes
//! the first chunk of events with that tag, and the settings of a pool, lines of `key=value`, precede its first event. Each
//! part of a trace has the number of the trace and its own, counted from 0, and begins with the blocks that are live.
//! `overwritten` is the number of earlier events that a flight recorder has not kept.
//!
//! Version 1 had no names, and every tag was 0. Version 2 had events and names only, and no sizes of freed blocks. Version 3 had no events
//! of arrays that move to the host and back, and of those that could not. Version 4 did not say that the process exited.

use super::event::{EventKind, Raw};
use super::ring::Timed;
use crate::pool::PoolSettings;
use core::fmt::Write;
use gpumem_sys::text::Shown;

/// True if a file that begins with these bytes is a trace, of any version.
#[must_use]
pub fn is_trace(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

pub(super) fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(std::process::id().to_le_bytes());
    bytes.extend(crc(&[&bytes]).to_le_bytes());
    bytes
}

pub(super) struct ChunkHeader {
    pub(super) payload_bytes: usize,
    magic: [u8; 4],
    numbers: [u32; 2],
    dropped_count: u64,
    time_ns: u64,
    crc: u32,
}

pub(super) enum Content {
    Events { thread: u32, dropped_count: u64, events: Vec<Timed> },
    Live(u32, Vec<Timed>),
    Part { trace: u64, part: u32, overwritten_count: u64 },
    Pool(PoolSettings),
    Name { pool: u32, tag: u32, name: String },
    Report { pool: u32, time_ns: u64, text: String },
    Exit,
}

/// The reason why the end of a trace is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The file ends within a chunk.
    Cut,
    /// The bytes are not a valid chunk.
    Damaged,
    /// The name of a tag is too long.
    NameTooLong,
    /// The name of a tag is not UTF-8.
    NameNotText,
}

pub(super) fn add_chunk(bytes: &mut Vec<u8>, thread: u32, dropped_count: u64, events: &[Timed]) {
    add_events(bytes, EVENTS_MAGIC, [thread, events.len() as u32], dropped_count, events);
}

pub(super) fn add_live(bytes: &mut Vec<u8>, events: &[Timed]) {
    for some in events.chunks(LIVE_COUNT_MAX) {
        add_events(bytes, LIVE_MAGIC, [0, some.len() as u32], 0, some);
    }
}

pub(super) fn add_part(bytes: &mut Vec<u8>, trace: u64, part: u32, overwritten_count: u64) {
    add_whole(bytes, PART_MAGIC, [part, 0], [trace, overwritten_count], &[]);
}

pub(super) fn add_pool(bytes: &mut Vec<u8>, settings: &PoolSettings) {
    let PoolSettings { pool, parent, name, device, device_ordinal, device_bytes, backend, kind, .. } =
        settings;
    // A setting is one line.
    let (name, device) = (Shown::whole(name).to_string(), Shown::whole(device).to_string());
    let (name, device) = (cut(&name), cut(&device));
    let mut text = format!(
        "name={name}\ndevice={device}\ndevice_ordinal={device_ordinal}\ndevice_bytes={device_bytes}\n\
         backend={backend}\nkind={kind}\nconf={}\n",
        settings.conf
    );
    if let Some(parent) = parent {
        let _ = writeln!(text, "parent={parent}");
    }
    if let Some(limit_bytes) = settings.hard_limit_bytes {
        let _ = writeln!(text, "hard_limit_bytes={limit_bytes}");
    }
    add_whole(bytes, POOL_MAGIC, [*pool, 0], [0; 2], text.as_bytes());
}

pub(super) fn add_report(bytes: &mut Vec<u8>, pool: u32, time_ns: u64, report: &str) {
    add_whole(bytes, REPORT_MAGIC, [pool, 0], [0, time_ns], cut_to(report, REPORT_BYTES_MAX).as_bytes());
}

pub(super) fn add_exit(bytes: &mut Vec<u8>) {
    add_whole(bytes, EXIT_MAGIC, [0; 2], [0; 2], &[]);
}

fn add_events(bytes: &mut Vec<u8>, magic: &[u8; 4], numbers: [u32; 2], dropped_count: u64, events: &[Timed]) {
    let mut payload = Vec::with_capacity(events.len() * EVENT_BYTES_USUAL);
    let start_ns = events.first().map_or(0, |event| event.time_ns);
    let mut before = (start_ns, 0);
    for event in events {
        let [address, value, stream, whose] = event.raw.words;
        payload.push(event.raw.kind as u8);
        add_number(&mut payload, event.time_ns.wrapping_sub(before.0));
        add_number(&mut payload, signed(address.wrapping_sub(before.1)));
        for number in [value, stream, whose & 0xFFFF_FFFF, whose >> 32] {
            add_number(&mut payload, number);
        }
        before = (event.time_ns, address);
    }
    add_whole(bytes, magic, numbers, [dropped_count, start_ns], &payload);
}

pub(super) fn add_name(bytes: &mut Vec<u8>, pool: u32, tag: u32, name: &str) {
    add_whole(bytes, NAME_MAGIC, [pool, tag], [0; 2], cut(name).as_bytes());
}

fn cut(name: &str) -> &str {
    cut_to(name, NAME_BYTES_MAX)
}

/// The start of a text, cut between characters.
fn cut_to(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.split_at(end.unwrap_or(0)).0
}

pub(super) fn add_whole(
    bytes: &mut Vec<u8>,
    magic: &[u8; 4],
    numbers: [u32; 2],
    longer: [u64; 2],
    payload: &[u8],
) {
    let start = bytes.len();
    bytes.extend(magic);
    bytes.extend((payload.len() as u32).to_le_bytes());
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    longer.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(crc(&[&bytes[start..], payload]).to_le_bytes());
    bytes.extend(payload);
}

/// The version of a file header; `None` for other bytes.
pub(super) fn version(header: &[u8; HEADER_BYTES]) -> Option<u32> {
    let (covered, found) = header.split_at(HEADER_BYTES - 4);
    let is_whole = is_trace(header) && crc(&[covered]) == u32_at(found, 0);
    is_whole.then(|| u32_at(header, MAGIC.len()))
}

pub(super) fn chunk_header(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<ChunkHeader> {
    let header = ChunkHeader {
        payload_bytes: u32_at(bytes, 4) as usize,
        magic: bytes.first_chunk().copied().unwrap_or_default(),
        numbers: [u32_at(bytes, 8), u32_at(bytes, 12)],
        dropped_count: u64_at(bytes, 16),
        time_ns: u64_at(bytes, 24),
        crc: u32_at(bytes, 32),
    };
    let is_known = MAGICS.contains(&&header.magic);
    (is_known && header.payload_bytes <= PAYLOAD_BYTES_MAX).then_some(header)
}

pub(super) fn content(
    header: &ChunkHeader,
    header_bytes: &[u8; CHUNK_HEADER_BYTES],
    payload: Vec<u8>,
) -> Result<Content, Flaw> {
    let (covered, _) = header_bytes.split_at(CHUNK_HEADER_BYTES - 4);
    if crc(&[covered, &payload]) != header.crc {
        return Err(Flaw::Damaged);
    }
    let ChunkHeader { numbers: [first, second], dropped_count, time_ns, .. } = *header;
    let all_events = |payload: Vec<u8>| events(header, &payload).ok_or(Flaw::Damaged);
    Ok(match &header.magic {
        EVENTS_MAGIC => Content::Events { thread: first, dropped_count, events: all_events(payload)? },
        LIVE_MAGIC => Content::Live(first, all_events(payload)?),
        PART_MAGIC => Content::Part { trace: dropped_count, part: first, overwritten_count: time_ns },
        POOL_MAGIC => Content::Pool(settings(first, &payload).ok_or(Flaw::Damaged)?),
        REPORT_MAGIC => {
            let text = String::from_utf8(payload).map_err(|_| Flaw::Damaged)?;
            Content::Report { pool: first, time_ns, text }
        }
        EXIT_MAGIC => Content::Exit,
        _ if payload.len() > NAME_BYTES_MAX => return Err(Flaw::NameTooLong),
        _ => {
            let name = String::from_utf8(payload).map_err(|_| Flaw::NameNotText)?;
            Content::Name { pool: first, tag: second, name }
        }
    })
}

/// Parses the settings of a pool. Unknown keys are ignored.
fn settings(pool: u32, payload: &[u8]) -> Option<PoolSettings> {
    let text = core::str::from_utf8(payload).ok()?;
    let find = |key: &str| {
        text.lines()
            .find_map(|line| line.split_once('=').filter(|(known, _)| *known == key).map(|(_, value)| value))
    };
    Some(PoolSettings {
        pool,
        parent: find("parent").map(str::parse).transpose().ok()?,
        name: find("name")?.into(),
        device: find("device")?.into(),
        device_ordinal: find("device_ordinal")?.parse().ok()?,
        device_bytes: find("device_bytes")?.parse().ok()?,
        backend: find("backend")?.parse().ok()?,
        kind: find("kind")?.parse().ok()?,
        hard_limit_bytes: find("hard_limit_bytes").map(str::parse).transpose().ok()?,
        conf: find("conf")?.into(),
    })
}

fn events(header: &ChunkHeader, payload: &[u8]) -> Option<Vec<Timed>> {
    let (mut rest, mut events) = (payload, Vec::new());
    let mut before = (header.time_ns, 0_u64);
    while let Some((kind, numbers)) = rest.split_first() {
        rest = numbers;
        let kind = EventKind::of(*kind)?;
        let time_ns = before.0.wrapping_add(number(&mut rest)?);
        let address = before.1.wrapping_add(unsigned(number(&mut rest)?));
        let (value, stream) = (number(&mut rest)?, number(&mut rest)?);
        let whose = number(&mut rest)? & 0xFFFF_FFFF | number(&mut rest)? << 32;
        events.push(Timed { time_ns, raw: Raw { kind, words: [address, value, stream, whose] } });
        before = (time_ns, address);
    }
    (events.len() == header.numbers[1] as usize).then_some(events)
}

fn add_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in (0..64).step_by(7) {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        let bits = u64::from(byte & 0x7F);
        // Only the lowest bit of the tenth byte fits.
        if place == 63 && bits > 1 {
            return None;
        }
        number |= bits << place;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Zigzag coding: small differences of either sign become small numbers.
fn signed(difference: u64) -> u64 {
    difference << 1 ^ ((difference as i64) >> 63) as u64
}

fn unsigned(folded: u64) -> u64 {
    folded >> 1 ^ (folded & 1).wrapping_neg()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// CRC-32 (IEEE 802.3) of the concatenated parts.
pub(super) fn crc(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(!0, |crc, byte| crc >> 8 ^ CRC_TABLE[usize::from(crc as u8 ^ byte)])
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let (mut crc, mut bit) = (index as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

const MAGIC: &[u8; 8] = b"GPUMEMTR";
const EVENTS_MAGIC: &[u8; 4] = b"gmtc";
const LIVE_MAGIC: &[u8; 4] = b"gmtl";
const PART_MAGIC: &[u8; 4] = b"gmtp";
const POOL_MAGIC: &[u8; 4] = b"gmts";
const NAME_MAGIC: &[u8; 4] = b"gmtn";
const REPORT_MAGIC: &[u8; 4] = b"gmtr";
const EXIT_MAGIC: &[u8; 4] = b"gmte";
const MAGICS: [&[u8; 4]; 7] =
    [EVENTS_MAGIC, LIVE_MAGIC, PART_MAGIC, POOL_MAGIC, NAME_MAGIC, REPORT_MAGIC, EXIT_MAGIC];
pub(super) const VERSION: u32 = 5;
pub(super) const HEADER_BYTES: usize = 20;
pub(super) const CHUNK_HEADER_BYTES: usize = 36;
/// Larger than any written payload: a full ring takes at most 200 KiB.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
pub(super) const NAME_BYTES_MAX: usize = 256;
const EVENT_BYTES_USUAL: usize = 20;
/// An event takes at most 51 bytes, so their payload is below the maximum.
const LIVE_COUNT_MAX: usize = 4096;
const REPORT_BYTES_MAX: usize = 1 << 16;
