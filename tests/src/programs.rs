//! Generated programs, as traces: [`Synthetic`] ones, of the kinds that strain an allocator, and [`random_program`]s.

mod random;
mod synthetic;

pub use random::random_program;
pub use synthetic::Synthetic;

use core::fmt::{Arguments, Write as _};
use gpumem_trace::Trace;

/// A trace in text, event by event. Blocks are named by the number that [`Lines::alloc`] returned.
#[derive(Default)]
struct Lines {
    text: String,
    /// The stream of each block.
    streams: Vec<u16>,
}

impl Lines {
    fn alloc(&mut self, size_bytes: u64, stream: u16) -> u32 {
        let block = self.streams.len() as u32;
        self.streams.push(stream);
        self.line(format_args!("a,{block},{size_bytes},{stream}"));
        block
    }

    fn free(&mut self, block: u32) {
        let stream = self.streams[block as usize];
        self.line(format_args!("f,{block},{stream}"));
    }

    /// The free of the block takes effect.
    fn complete(&mut self, block: u32) {
        self.line(format_args!("c,{block}"));
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn finish(self, name: &str, what: &str) -> Trace {
        let text = format!("#{{\"format\":1,\"name\":\"{name}\",\"what\":\"{what}\"}}\n{}", self.text);
        Trace::read_from(text.as_bytes(), name).expect("the lines of a program agree with each other")
    }
}

/// Splitmix64: integer arithmetic only, so the numbers are equal on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A random number between two bounds, both included.
    fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// A random number: uniform over the octaves between two powers of two, then uniform within the octave.
    fn log_uniform(&mut self, first: u64, end: u64) -> u64 {
        let octave = self.between(u64::from(first.ilog2()), u64::from(end.ilog2()) - 1);
        (1 << octave) + self.below(1 << octave)
    }
}
