//! [`random_program`]: small traces of many kinds, one for each seed, that fragment a pool at a limit.
//!
//! A seed selects the kind of program, the sizes, the number of streams, and whether blocks are freed while another stream uses
//! them. Each kind leaves different holes: blocks of random lifetimes, stacks, caches that grow by copying, combs of long-lived
//! blocks, batches of random size prepared on a side stream, tables.

use super::{Lines, Random};
use gpumem_trace::Trace;

/// A random program: a small trace that fragments a pool at a limit. The same seed gives the same trace.
///
/// A seed selects the kind of program, the sizes, the number of streams, and whether blocks are freed while another stream uses them.
///
/// # Panics
///
/// If the trace of the program cannot be read back.
#[must_use]
pub fn random_program(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let stream_count = [1, 1, 1, 2, 3, 4][random.below(6) as usize];
    let deferred_percent = if stream_count > 1 && random.below(2) == 0 { random.between(5, 40) } else { 0 };
    let mut program = Program {
        lines: Lines::default(),
        random,
        stream_count,
        stream: 0,
        deferred_percent,
        deferred: Vec::new(),
    };
    let kinds = [
        Program::churn,
        Program::fill,
        Program::stack,
        Program::caches,
        Program::comb,
        Program::small_and_large,
        Program::batches,
        Program::tables,
    ];
    let names = ["churn", "fill", "stack", "caches", "comb", "small-and-large", "batches", "tables"];
    let kind = program.random.below(kinds.len() as u64) as usize;
    kinds[kind](&mut program);
    let what = format!("{} on {stream_count} streams", names[kind]);
    for (block, _) in core::mem::take(&mut program.deferred) {
        program.lines.complete(block);
    }
    program.lines.finish(&format!("random-{seed}"), &what)
}

struct Program {
    lines: Lines,
    random: Random,
    stream_count: u64,
    stream: u16,
    /// The percentage of frees that are deferred.
    deferred_percent: u64,
    /// Deferred frees: blocks, each with the number of allocations until its free takes effect.
    deferred: Vec<(u32, u64)>,
}

/// A block, and its size.
type Sized = (u32, u64);

impl Program {
    fn alloc(&mut self, size_bytes: u64) -> u32 {
        let mut over = Vec::new();
        self.deferred.retain_mut(|(block, left)| {
            *left -= 1;
            if *left == 0 {
                over.push(*block);
            }
            *left > 0
        });
        over.into_iter().for_each(|block| self.lines.complete(block));
        self.lines.alloc(size_bytes.max(1), self.stream)
    }

    fn free(&mut self, block: u32) {
        self.lines.free(block);
        if self.random.below(100) < self.deferred_percent {
            let left = self.random.between(1, 40);
            self.deferred.push((block, left));
        }
    }

    fn turn(&mut self) {
        self.stream = self.random.below(self.stream_count) as u16;
    }

    /// A random range of sizes, between two powers of two.
    fn range(&mut self) -> (u64, u64) {
        let first = self.random.between(8, 22);
        let last = self.random.between(first.max(20) + 1, 28);
        (1 << first, 1 << last)
    }

    /// A random size like that of a tensor: any, a power of two, or a multiple of a row.
    fn size(&mut self, (first, end): (u64, u64), taste: u64) -> u64 {
        let size_bytes = self.random.log_uniform(first, end);
        match taste {
            0 => size_bytes,
            1 => size_bytes.next_power_of_two(),
            2 => size_bytes.next_multiple_of(96 << 10),
            _ => size_bytes * 3 / 2 / 4096 * 4096,
        }
    }

    /// A fixed number of blocks; each step replaces a random one.
    fn churn(&mut self) {
        let (range, taste) = (self.range(), self.random.below(4));
        let (block_count, step_count) = (self.random.between(20, 300), self.random.between(300, 2500));
        let mut live: Vec<u32> = Vec::new();
        for _ in 0..step_count {
            self.turn();
            if live.len() as u64 >= block_count {
                let victim = self.random.below(live.len() as u64) as usize;
                let victim = live.swap_remove(victim);
                self.free(victim);
            }
            let size_bytes = self.size(range, taste);
            live.push(self.alloc(size_bytes));
        }
    }

    /// A budget of bytes that changes now and then; old, new or random blocks are freed to stay below it.
    fn fill(&mut self) {
        let (mut range, taste) = (self.range(), self.random.below(4));
        let whole_bytes = self.random.log_uniform(64 << 20, 8 << 30).max(4 * range.1);
        let (mut budget_bytes, mut live_bytes, mut live) = (whole_bytes, 0, Vec::<Sized>::new());
        for _ in 0..self.random.between(300, 2500) {
            match self.random.below(100) {
                0 => budget_bytes = whole_bytes * self.random.between(20, 100) / 100,
                1 => range = self.range(),
                _ => {}
            }
            self.turn();
            let size_bytes = self.size(range, taste).min(whole_bytes / 4);
            while live_bytes + size_bytes > budget_bytes && !live.is_empty() {
                let last = live.len() as u64 - 1;
                let victim = match self.random.below(4) {
                    0 => 0,
                    1 => last,
                    _ => self.random.between(0, last),
                };
                let (block, gone_bytes) = live.remove(victim as usize);
                live_bytes -= gone_bytes;
                self.free(block);
            }
            live_bytes += size_bytes;
            live.push((self.alloc(size_bytes), size_bytes));
        }
    }

    /// Weights, and forward and backward steps whose sizes vary from step to step or only grow.
    fn stack(&mut self) {
        let layer_count = self.random.between(4, 32);
        let width_bytes = self.random.log_uniform(64 << 10, 16 << 20);
        let grows = self.random.below(2) == 0;
        for _ in 0..layer_count {
            let weight_bytes = self.random.log_uniform(4 << 10, 32 << 20);
            self.alloc(weight_bytes);
        }
        for step in 0..self.random.between(3, 24) {
            let scale = if grows { 8 + step } else { self.random.between(4, 32) };
            let mut kept: Vec<Vec<u32>> = Vec::new();
            for _ in 0..layer_count {
                let row_bytes = width_bytes * scale / 16;
                let scratch = self.alloc(row_bytes * 2);
                let layer = [1, 3, 1, 4].map(|part| self.alloc(row_bytes * part / 2));
                self.free(scratch);
                kept.push(layer.into());
            }
            while let Some(layer) = kept.pop() {
                let gradient = self.alloc(width_bytes * scale / 8 + 4096);
                layer.into_iter().for_each(|block| self.free(block));
                self.free(gradient);
            }
            if self.random.below(4) == 0 {
                // Memory that stays after a step, such as a loss or a checkpoint.
                let kept_bytes = self.random.log_uniform(256, 1 << 20);
                self.alloc(kept_bytes);
            }
        }
    }

    /// Requests that start and end at random, and whose caches are copied into longer blocks.
    fn caches(&mut self) {
        let (layer_count, token_bytes) = (self.random.between(2, 12), 1 << self.random.between(9, 14));
        let chunk = [1, 16, 64, 256][self.random.below(4) as usize];
        let most = self.random.between(2, 16);
        let mut requests: Vec<(u64, u64, Vec<u32>)> = Vec::new();
        for _ in 0..self.random.between(20, 120) {
            self.turn();
            while (requests.len() as u64) < most && self.random.below(2) == 0 {
                let length = self.random.log_uniform(64, 8192);
                let left = self.random.between(4, 60);
                let caches = (0..layer_count).map(|_| self.alloc(length * token_bytes)).collect();
                requests.push((length, left, caches));
            }
            for (length, left, caches) in &mut requests {
                (*length, *left) = (*length + chunk, *left - 1);
                for block in caches.iter_mut() {
                    let longer = self.alloc(*length * token_bytes);
                    self.free(core::mem::replace(block, longer));
                }
            }
            for (.., caches) in requests.extract_if(.., |(_, left, _)| *left == 0) {
                caches.into_iter().for_each(|block| self.free(block));
            }
        }
    }

    /// Repeatedly fills memory with blocks of one size, keeps one in every few of them, and allocates larger ones.
    fn comb(&mut self) {
        let whole_bytes = self.random.log_uniform(128 << 20, 4 << 30);
        let mut teeth: Vec<Sized> = Vec::new();
        for _ in 0..self.random.between(2, 8) {
            self.turn();
            let size_bytes = self.random.log_uniform(64 << 10, 64 << 20).min(whole_bytes / 8);
            let kept_bytes: u64 = teeth.iter().map(|(_, size_bytes)| size_bytes).sum();
            let count = (whole_bytes.saturating_sub(kept_bytes) / size_bytes).min(600);
            let blocks: Vec<u32> = (0..count).map(|_| self.alloc(size_bytes)).collect();
            let every = self.random.between(2, 9);
            for (index, block) in blocks.into_iter().enumerate() {
                match (index as u64).is_multiple_of(every) {
                    true => teeth.push((block, size_bytes)),
                    false => self.free(block),
                }
            }
            if self.random.below(3) == 0 {
                let keep = self.random.below(teeth.len() as u64 + 1) as usize;
                teeth.drain(keep..).collect::<Vec<_>>().into_iter().for_each(|(block, _)| self.free(block));
            }
        }
    }

    /// Many small blocks with long lifetimes among large ones with short lifetimes.
    fn small_and_large(&mut self) {
        let (mut small, mut large) = (Vec::<u32>::new(), Vec::<u32>::new());
        let (most_small, most_large) = (self.random.between(100, 1500), self.random.between(4, 60));
        let large_end = 1 << self.random.between(23, 28);
        for _ in 0..self.random.between(500, 3000) {
            self.turn();
            let (list, most, size_bytes) = match self.random.below(3) {
                0 => (&mut large, most_large, self.random.log_uniform(1 << 20, large_end)),
                _ => (&mut small, most_small, self.random.log_uniform(256, 1 << 20)),
            };
            let is_full = list.len() as u64 >= most;
            let gone =
                is_full.then(|| self.random.below(most) as usize).map(|victim| list.swap_remove(victim));
            let is_small = size_bytes < 1 << 20;
            gone.into_iter().for_each(|block| self.free(block));
            let block = self.alloc(size_bytes);
            if is_small { small.push(block) } else { large.push(block) }
        }
    }

    /// A side stream prepares batches of random size in advance; the main stream uses and frees them, and keeps some results.
    fn batches(&mut self) {
        let row_bytes = 1 << self.random.between(8, 13);
        let ahead = self.random.between(1, 4) as usize;
        for _ in 0..self.random.between(2, 20) {
            let weight_bytes = self.random.log_uniform(16 << 10, 64 << 20);
            self.alloc(weight_bytes);
        }
        let mut ready: std::collections::VecDeque<Vec<Sized>> = std::collections::VecDeque::new();
        for _ in 0..self.random.between(30, 150) {
            while ready.len() < ahead {
                self.stream = (self.stream_count > 1).into();
                let (mut nodes, mut batch) = (self.random.between(64, 1024), Vec::new());
                for _ in 0..self.random.between(2, 4) {
                    nodes = (nodes * self.random.between(3, 12)).min((1 << 28) / row_bytes);
                    let edges = self.alloc(nodes * 16);
                    batch.push((self.alloc(nodes * row_bytes), nodes));
                    self.free(edges);
                }
                ready.push_back(batch);
            }
            self.stream = 0;
            let Some(batch) = ready.pop_front() else { return };
            let hidden: Vec<u32> = batch
                .iter()
                .flat_map(|(_, nodes)| [nodes * 1024, nodes * 512 + 8])
                .map(|size_bytes| self.alloc(size_bytes.min(1 << 28)))
                .collect();
            batch.into_iter().for_each(|(block, _)| self.free(block));
            let kept = self.random.below(12) == 0;
            for (index, block) in hidden.into_iter().enumerate() {
                if !(kept && index == 0) {
                    self.free(block);
                }
            }
        }
    }

    /// Columns are read, filtered and joined; some results are kept for a while.
    fn tables(&mut self) {
        let most_rows = self.random.log_uniform(100_000, 8_000_000);
        let mut kept: Vec<Vec<u32>> = Vec::new();
        for _ in 0..self.random.between(10, 60) {
            self.turn();
            let rows = self.random.between(most_rows / 20, most_rows);
            let columns: Vec<u32> = (0..self.random.between(2, 10)).map(|_| self.column(rows)).collect();
            let selected = rows * self.random.between(5, 90) / 100 + 1;
            let (mask, map) = (self.alloc(rows), self.alloc(selected * 4));
            let filtered: Vec<u32> = columns.iter().map(|_| self.column(selected)).collect();
            columns.into_iter().chain([mask, map]).for_each(|block| self.free(block));
            let hash = self.alloc(selected * 32);
            let result: Vec<u32> = (0..3).map(|_| self.column(selected)).collect();
            self.free(hash);
            filtered.into_iter().for_each(|block| self.free(block));
            kept.push(result);
            if kept.len() > 4 {
                let oldest = self.random.below(4) as usize;
                kept.remove(oldest).into_iter().for_each(|block| self.free(block));
            }
        }
    }

    fn column(&mut self, rows: u64) -> u32 {
        let element_bytes = [1, 4, 8][self.random.below(3) as usize];
        self.alloc(rows * element_bytes)
    }
}
