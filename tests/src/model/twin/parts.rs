//! Blocks allocated in captures, and blocks kept by graphs.

use super::{NewBlock, Twin, TwinBlock};

impl Twin {
    /// Notes that no graph keeps a dropped block any longer.
    pub fn let_go(&mut self, name: u32) {
        let Some(at) = self.kept.iter().position(|kept| kept.made.name == name) else { return };
        let block = self.kept.remove(at);
        match block.made.part_of {
            Some(_) => self.settle_parts(),
            None => self.count_unsure(&block.made),
        }
    }

    /// Notes the begin of a capture.
    pub fn begin_capture(&mut self, graph: u32) {
        self.graphs.push(graph);
        self.capture = Some(graph);
    }

    /// Notes the end of the capture.
    pub fn end_capture(&mut self) {
        self.capture = None;
    }

    /// Notes that a graph and all its executables were dropped.
    pub fn close_graph(&mut self, graph: u32) {
        self.graphs.retain(|other| *other != graph);
        self.settle_parts();
        let Some(capture) = self.capture else { return };
        // Chunks without live parts are freed now, and the open capture may keep them.
        let left = self.parts.iter().filter(|((of, _), _)| *of == graph);
        let left: Vec<_> = left.map(|((_, pool), (_, all_bytes))| (*pool, *all_bytes)).collect();
        for (pool, all_bytes) in left {
            self.parts.entry((capture, pool)).or_default().1 += all_bytes;
            self.pools[pool].spare_bytes += all_bytes;
        }
    }

    /// The number of the pool's blocks that hold parts: at least, and at most.
    #[must_use]
    pub fn chunk_counts(&self, pool: usize) -> (u64, u64) {
        let of_pool = self.parts.iter().filter(|((_, other), _)| *other == pool);
        let has_live = of_pool.clone().any(|(_, (live_count, _))| *live_count > 0);
        let most = if of_pool.count() > 0 { self.pools[pool].part_count } else { 0 };
        (u64::from(has_live), most)
    }

    /// The maximum size of all chunks together.
    #[must_use]
    pub fn chunks_bytes_max(&self) -> u64 {
        self.parts.values().map(|(_, all_bytes)| all_bytes).sum()
    }

    /// The live blocks that overlap one of the kept blocks: later parts reuse the memory of dropped ones.
    #[must_use]
    pub fn overlapped_by_kept(&self, names: &[u32]) -> Vec<u32> {
        let kept = || self.kept.iter().filter(|kept| names.contains(&kept.made.name));
        let is_overlapped = |block: &&TwinBlock| kept().any(|kept| kept.made.overlaps(&block.made));
        self.blocks.iter().filter(is_overlapped).map(|block| block.made.name).collect()
    }

    pub(super) fn count_part(&mut self, graph: u32, made: &NewBlock) {
        let most_bytes = made.chunk_bytes;
        let (live_count, all_bytes) = self.parts.entry((graph, made.pool)).or_default();
        *live_count += 1;
        *all_bytes += most_bytes;
        let counters = &mut self.pools[made.pool];
        counters.part_count += 1;
        counters.spare_bytes += most_bytes - made.counted_bytes;
    }

    /// Removes a block that the graph of the open capture may keep.
    pub(super) fn count_unsure(&mut self, made: &NewBlock) {
        self.count_off(made);
        if let Some(graph) = self.capture {
            self.pools[made.pool].part_count += 1;
            self.pools[made.pool].spare_bytes += made.counted_bytes;
            self.parts.entry((graph, made.pool)).or_default().1 += made.counted_bytes;
        }
    }

    /// Removes the chunks of dropped graphs after their last parts.
    pub(super) fn settle_parts(&mut self) {
        let Self { parts, graphs, pools, kept, capture, .. } = self;
        let is_kept = |graph: u32| kept.iter().any(|kept| kept.made.part_of == Some(graph));
        let mut over = Vec::new();
        parts.retain(|(graph, pool), (live_count, all_bytes)| {
            let is_over = *live_count == 0 && !graphs.contains(graph) && !is_kept(*graph);
            over.extend(is_over.then_some((*pool, *all_bytes)));
            !is_over
        });
        for (pool, all_bytes) in over {
            match *capture {
                Some(graph) => parts.entry((graph, pool)).or_default().1 += all_bytes,
                None => pools[pool].spare_bytes -= all_bytes,
            }
        }
    }
}
