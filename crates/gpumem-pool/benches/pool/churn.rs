//! Churn with the numbers of RMM's side of the comparison: blocks of log-uniform sizes, one of which is replaced at random in
//! each step. Each thread has a stream and a share of the blocks.
//!
//! `churn` reserves its memory in advance, like the peers' pools; `churn_grown` lets the pool grow with the program, and measures
//! the second of two rounds. The caching backend runs both under each of its profiles. Driver time has rows of its own and is not
//! part of the first figure; on the simulator it is the virtual time. A wait for another thread's driver call is part of the
//! first figure.

use crate::{Bench, GROWN_BYTES, Outcome, Reading, per, together};
use gpumem_pool::{BackendKind, PoolBuilder, Profile};
use std::sync::{Mutex, PoisonError};

impl Bench {
    pub(crate) fn churn(&self) -> Outcome<()> {
        let is_caching = self.pool()?.backend() == BackendKind::Caching;
        for start in [Start::Reserved, Start::Grown] {
            if !is_caching {
                self.churn_of(start, "", &self.builder())?;
                continue;
            }
            for &profile in Profile::ALL {
                self.churn_of(start, &format!("@{profile}"), &self.builder().profile(profile))?;
            }
        }
        Ok(())
    }

    fn churn_of(&self, start: Start, variant: &str, builder: &PoolBuilder) -> Outcome<()> {
        let work = match start {
            Start::Reserved => "churn",
            Start::Grown => "churn_grown",
        };
        for thread_count in [1, 8] {
            let name = |what: &str| self.name(&format!("{work}{what}{variant}"), thread_count);
            let (live_count, step_count) = (1000 / thread_count, 20_000 / thread_count);
            let plans: Vec<Plan> = (0..thread_count)
                .map(|thread| Plan::new(42, thread as u64, live_count, step_count))
                .collect();
            let mut readings = Vec::new();
            self.row(&name(""), || {
                let (host, reading) = self.churn_once(start, builder, &plans)?;
                readings.push(reading);
                Ok(host)
            })?;
            if let Some(least) = readings.iter().min_by_key(|reading| reading.spent) {
                let steps = (step_count * thread_count) as u32;
                self.note(&name("_driver_calls"), least.calls as f64 / f64::from(steps), "calls")?;
                self.note(&name("_driver"), per(least.priced, steps), "ns")?;
            }
        }
        Ok(())
    }

    /// The time of a replacement for one thread without driver calls, and the driver calls of all threads.
    fn churn_once(&self, start: Start, builder: &PoolBuilder, plans: &[Plan]) -> Outcome<(f64, Reading)> {
        let (pool, streams) = (builder.clone().build()?, self.streams(plans.len())?);
        if start == Start::Reserved {
            pool.reserve(GROWN_BYTES)?;
        }
        let alloc = |thread: usize, size_bytes: &u64| pool.alloc(*size_bytes, &streams[thread]).map(Some);
        let blocks: Vec<_> = plans.iter().map(|_| Mutex::new(Vec::new())).collect();
        let of = |thread: usize| blocks[thread].lock().unwrap_or_else(PoisonError::into_inner);
        together(plans.len(), |thread| {
            let initial = plans[thread].initial_bytes.iter();
            *of(thread) = initial.map(|size_bytes| alloc(thread, size_bytes)).collect::<Result<_, _>>()?;
            Ok(())
        })?;
        let round = |thread: usize| {
            let mut blocks = of(thread);
            for (place, size_bytes) in &plans[thread].steps {
                blocks[*place] = None;
                blocks[*place] = alloc(thread, size_bytes)?;
            }
            Ok(())
        };
        if start == Start::Grown {
            together(plans.len(), round)?;
        }
        let before = self.reading();
        let took = together(plans.len(), round)?.whole;
        let reading = self.reading().since(&before);
        let in_driver = reading.spent / plans.len() as u32;
        Ok((per(took.saturating_sub(in_driver), plans[0].steps.len() as u32), reading))
    }
}

/// The pool's initial memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Reserved,
    Grown,
}

/// The work of one thread.
pub(crate) struct Plan {
    /// The sizes of the initial blocks.
    pub(crate) initial_bytes: Vec<u64>,
    /// For each step, the index of the replaced block and the new size.
    pub(crate) steps: Vec<(usize, u64)>,
}

impl Plan {
    pub(crate) fn new(seed: u64, thread: u64, live_count: usize, step_count: usize) -> Self {
        let mut random = Random(seed + 0x1000 * thread);
        let initial_bytes = (0..live_count).map(|_| random.size_bytes()).collect();
        let step = |_| ((random.next() % live_count as u64) as usize, random.size_bytes());
        let steps = (0..step_count).map(step).collect();
        Self { initial_bytes, steps }
    }

    /// The hash of all numbers in order, as 64-bit words with the lowest byte first.
    fn hash(&self) -> u64 {
        let steps = self.steps.iter().flat_map(|(place, size_bytes)| [*place as u64, *size_bytes]);
        let words = self.initial_bytes.iter().copied().chain(steps);
        words
            .flat_map(u64::to_le_bytes)
            .fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Checks that this is the workload of the peers' figures.
    pub(crate) fn check() -> Result<(), String> {
        let plan = Self::new(42, 0, 1000, 20_000);
        let first = &plan.initial_bytes[..3];
        if first != [771, 404, 25_221_894] || plan.hash() != 0xc6e9_1e0c_b1df_8ac2 {
            return Err(format!("not the peers' workload: {first:?}, {:#x}", plan.hash()));
        }
        Ok(())
    }
}

/// The initial value of the peers' FNV-1a, which differs from the standard one.
const BASIS: u64 = 0x1465_0fb0_739d_0383;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A size: uniform over the 18 octaves from 256 bytes to 64 MiB, then uniform within the octave.
    fn size_bytes(&mut self) -> u64 {
        let least_bytes = 1 << (8 + self.next() % 18);
        least_bytes + (self.next() & (least_bytes - 1))
    }
}
