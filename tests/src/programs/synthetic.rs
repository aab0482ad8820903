//! Generated traces: programs of the kinds that strain an allocator, seeded, of any length.
//!
//! Sizes are computed like in such programs (tokens × width × bytes per element), so that they recur and vary like there.

use super::{Lines, Random};
use core::fmt;
use core::str::FromStr;
use gpumem_trace::Trace;

/// The kinds of generated programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synthetic {
    /// A training step of a transformer, repeated unchanged.
    Periodic,
    /// A training step with a different number of tokens each time.
    Varlen,
    /// Decoding with a key-value cache that is copied into larger blocks token by token; requests start and end.
    Kv,
    /// Blocks of random size and lifetime on four streams.
    Churn,
    /// Joins and sorts of random tables by four threads, each with a stream.
    Dataframe,
    /// Training with a loader on a side stream, whose batches are freed while they are in use.
    Prefetch,
}

impl Synthetic {
    /// All kinds, by name, with a description.
    pub const ALL: [(&str, Self, &str); 6] = [
        ("periodic", Self::Periodic, "a training step repeated"),
        ("varlen", Self::Varlen, "training on sequences of varied length"),
        ("kv", Self::Kv, "decoding with a key-value cache that grows by copying"),
        ("churn", Self::Churn, "random sizes and lifetimes on four streams"),
        ("dataframe", Self::Dataframe, "joins and sorts of random tables on four streams"),
        ("prefetch", Self::Prefetch, "training fed by a loader on a side stream"),
    ];

    /// The number of rounds that makes some hundred thousand events.
    #[must_use]
    pub fn usual_round_count(self) -> u32 {
        match self {
            Self::Periodic | Self::Varlen | Self::Prefetch => 200,
            Self::Kv => 250,
            Self::Churn => 50,
            Self::Dataframe => 1000,
        }
    }

    /// Generates a trace with a number of rounds (steps, tokens, tables, or thousands of replacements). The same seed and number
    /// give the same trace.
    #[must_use]
    pub fn trace(self, seed: u64, round_count: u32) -> Trace {
        let mut program = Program { lines: Lines::default(), random: Random::new(seed), stream: 0 };
        match self {
            Self::Periodic => program.train(round_count, |_| 8192),
            Self::Varlen => program.train(round_count, |random| 64 * random.between(16, 192)),
            Self::Kv => program.decode(round_count),
            Self::Churn => program.churn(round_count),
            Self::Dataframe => program.tables(round_count),
            Self::Prefetch => program.prefetch(round_count),
        }
        let (name, _, what) =
            Self::ALL.into_iter().find(|(_, kind, _)| *kind == self).unwrap_or(Self::ALL[0]);
        program.lines.finish(name, what)
    }
}

impl FromStr for Synthetic {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|(known, ..)| *known == name);
        known.map(|(_, kind, _)| kind).ok_or_else(|| {
            format!(
                "{name:?} names no generated trace; use periodic, varlen, kv, churn, dataframe or prefetch"
            )
        })
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.into_iter().find(|(_, kind, _)| kind == self);
        f.pad(known.map_or("", |(name, ..)| name))
    }
}

/// A program in progress: its requests are recorded.
struct Program {
    lines: Lines,
    random: Random,
    stream: u16,
}

impl Program {
    fn alloc(&mut self, size_bytes: u64) -> u32 {
        self.lines.alloc(size_bytes.max(1), self.stream)
    }

    fn free(&mut self, blocks: impl IntoIterator<Item = u32>) {
        blocks.into_iter().for_each(|block| self.lines.free(block));
    }

    fn touch(&mut self, size_bytes: u64) {
        let block = self.alloc(size_bytes);
        self.lines.free(block);
    }

    /// Allocates weights in half precision with three copies in single precision, then runs steps.
    fn train(&mut self, step_count: u32, mut tokens: impl FnMut(&mut Random) -> u64) {
        self.weights();
        for _ in 0..step_count {
            let token_count = tokens(&mut self.random);
            self.step(token_count);
        }
    }

    fn weights(&mut self) {
        for element_count in (0..LAYER_COUNT).flat_map(|_| WEIGHTS).chain([VOCABULARY * WIDTH]) {
            for element_bytes in [2, 4, 4, 4] {
                self.alloc(element_count * element_bytes);
            }
        }
    }

    /// A forward pass that keeps activations, a backward pass layer by layer, and the scratch memory of the optimizer.
    fn step(&mut self, token_count: u64) {
        let row = token_count * WIDTH * 2;
        let mut input = self.alloc(row);
        let mut kept = Vec::new();
        for _ in 0..LAYER_COUNT {
            let mut layer = vec![input, self.alloc(row), self.alloc(token_count * 8), self.alloc(3 * row)];
            let scratch = self.alloc(row);
            layer.extend([self.alloc(row), self.alloc(row / 2), self.alloc(4 * row), self.alloc(4 * row)]);
            input = self.alloc(row);
            self.free([scratch]);
            kept.push(layer);
        }
        let logits = self.alloc(token_count * VOCABULARY * 2);
        let losses = self.alloc(token_count * VOCABULARY * 4);
        self.free([logits]);
        let mut gradients = vec![self.alloc(VOCABULARY * WIDTH * 2)];
        let mut flowing = self.alloc(row);
        self.free([losses, input]);
        while let Some(layer) = kept.pop() {
            let wide = self.alloc(4 * row);
            gradients.extend(WEIGHTS.map(|element_count| self.alloc(element_count * 2)));
            let next = self.alloc(row);
            self.touch(token_count * WIDTH * 4);
            self.free([wide, flowing]);
            self.free(layer);
            flowing = next;
        }
        self.free([flowing]);
        for element_count in WEIGHTS {
            self.touch(element_count * 4);
        }
        self.free(gradients);
    }

    /// For each token of each request, copies the keys and values of each layer into blocks one token longer.
    fn decode(&mut self, token_count: u32) {
        self.weights();
        let mut requests: Vec<Request> = Vec::new();
        for _ in 0..token_count {
            while requests.len() < 12 && self.random.below(2) == 0 {
                let length = self.random.log_uniform(128, 4096);
                let left = self.random.between(32, 400);
                self.touch(length * 3 * WIDTH * 2);
                let cache = (0..2 * LAYER_COUNT).map(|_| self.alloc(length * CACHE_BYTES)).collect();
                requests.push(Request { length, left, cache });
            }
            for request in &mut requests {
                request.length += 1;
                request.left -= 1;
                for block in &mut request.cache {
                    let longer = self.alloc(request.length * CACHE_BYTES);
                    self.free([std::mem::replace(block, longer)]);
                    self.touch(4 * WIDTH * 2);
                }
            }
            self.touch(VOCABULARY * 4 * requests.len() as u64);
            for request in requests.extract_if(.., |request| request.left == 0) {
                self.free(request.cache);
            }
        }
    }

    fn churn(&mut self, thousand_count: u32) {
        let mut live: Vec<u32> = Vec::new();
        for _ in 0..u64::from(thousand_count) * 1000 {
            self.stream = self.random.below(4) as u16;
            let size_bytes = self.random.log_uniform(256, 64 << 20);
            let block = self.alloc(size_bytes);
            if live.len() < 1000 {
                live.push(block);
            } else {
                let victim = self.random.below(1000) as usize;
                self.free([std::mem::replace(&mut live[victim], block)]);
            }
        }
    }

    /// The threads take turns, one column at a time.
    fn tables(&mut self, table_count: u32) {
        let mut kept: [Vec<Vec<u32>>; 4] = Default::default();
        for table in 0..table_count {
            self.stream = (table % 4) as u16;
            let row_count = self.random.between(200_000, 4_000_000);
            let columns = self.random.between(4, 12);
            let read: Vec<u32> = (0..columns).map(|_| self.column(row_count)).collect();
            let selected = row_count * self.random.between(5, 80) / 100 + 1;
            let mask = self.alloc(row_count);
            self.touch(row_count / 250 + 767);
            let map = self.alloc(selected * 4);
            let filtered: Vec<u32> = (0..columns).map(|_| self.column(selected)).collect();
            self.free(read);
            self.free([mask, map]);
            let hash_table = self.alloc(selected * 32);
            let matches = [self.alloc(selected * 4), self.alloc(selected * 4)];
            self.free([hash_table]);
            let joined = selected * self.random.between(50, 180) / 100 + 1;
            let mut result: Vec<u32> = (0..columns).map(|_| self.column(joined)).collect();
            self.free(filtered.into_iter().chain(matches));
            let sorted = [self.alloc(joined * 8), self.alloc(joined * 8)];
            self.touch(joined * 4);
            let groups = self.random.between(1_000, 400_000);
            result.push(self.alloc(groups * 24));
            self.free(sorted);
            let cache = &mut kept[usize::from(self.stream)];
            cache.push(result);
            if cache.len() > 3 {
                let oldest = cache.remove(self.random.below(3) as usize);
                self.free(oldest);
            }
        }
    }

    /// A column of elements of 1, 4 or 8 bytes, read through a compressed block.
    fn column(&mut self, row_count: u64) -> u32 {
        let element_bytes = [1, 4, 8, 8][self.random.below(4) as usize];
        let packed_bytes = self.random.between(1, 6);
        let packed = self.alloc(row_count * packed_bytes);
        let column = self.alloc(row_count * element_bytes);
        self.free([packed]);
        column
    }

    /// The loader is two batches ahead. A batch is freed after its step was queued, and the free takes effect after the next
    /// step.
    fn prefetch(&mut self, step_count: u32) {
        self.weights();
        let mut loaded = std::collections::VecDeque::new();
        let mut in_use = Vec::new();
        for _ in 0..step_count {
            while loaded.len() < 2 {
                self.stream = 1;
                let sample_count = self.random.between(16, 96);
                let raw = self.alloc(sample_count * 3 * 256 * 256);
                let batch = self.alloc(sample_count * 3 * 224 * 224 * 4);
                self.free([raw]);
                loaded.push_back((sample_count, batch));
            }
            self.stream = 0;
            let Some((sample_count, batch)) = loaded.pop_front() else { return };
            self.step(sample_count * 64);
            self.lines.free(batch);
            for over in std::mem::replace(&mut in_use, vec![batch]) {
                self.lines.complete(over);
            }
        }
    }
}

struct Request {
    length: u64,
    left: u64,
    cache: Vec<u32>,
}

const LAYER_COUNT: u64 = 16;
const WIDTH: u64 = 1024;
const VOCABULARY: u64 = 32_000;
/// The bytes of the keys or the values of one token in one layer.
const CACHE_BYTES: u64 = 2048;
/// The elements of a layer's weights: attention in and out, two wide matrices, two norms.
const WEIGHTS: [u64; 6] =
    [3 * WIDTH * WIDTH, WIDTH * WIDTH, 4 * WIDTH * WIDTH, 4 * WIDTH * WIDTH, WIDTH, WIDTH];
