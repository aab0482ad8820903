//! The cost of an out-of-memory report in a pool with many live blocks.

use super::{Bench, Outcome, per};
use gpumem_pool::{Block, PoolError};
use std::time::{Duration, Instant};

const BLOCK_COUNT: usize = 100_000;
const LIMIT_BYTES: u64 = 1 << 30;
const TAGS: [&str; 4] = ["weights", "activations", "optimizer", "batches"];

impl Bench {
    /// Blocks of several sizes and tags, with free ranges between them. The time of a refused request without its steps to make
    /// room, and of the report as text.
    pub(super) fn refusals(&self) -> Outcome<()> {
        let name = self.name("report_100000_blocks", 1);
        if !self.is_asked(&name) {
            return Ok(());
        }
        let (pool, stream) =
            (self.builder().hard_limit(LIMIT_BYTES).build()?, self.streams(1)?.swap_remove(0));
        let block = |index: usize| {
            let _scope = pool.scope(TAGS[index % TAGS.len()]);
            pool.alloc(4096 + 256 * (index as u64 % 7), &stream)
        };
        let mut held = (0..BLOCK_COUNT + BLOCK_COUNT / 10).map(block).collect::<Result<Vec<Block>, _>>()?;
        let mut index = 0;
        held.retain(|_| {
            index += 1;
            index % 11 != 0
        });
        self.row(&name, || {
            let start = Instant::now();
            let refused = pool.alloc(LIMIT_BYTES, &stream);
            let text_bytes = refused.as_ref().err().map_or(0, |error| error.to_string().len());
            let took = start.elapsed();
            let report = refused.as_ref().err().and_then(PoolError::out_of_memory);
            let report =
                report.filter(|_| text_bytes > 0).ok_or("a request beyond the limit was not refused")?;
            let steps: Duration = report.attempts.iter().map(|attempt| attempt.took).sum();
            Ok(per(took.saturating_sub(steps), 1))
        })
    }
}
