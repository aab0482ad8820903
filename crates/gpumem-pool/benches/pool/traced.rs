//! The costs of these: an adaptor without effect, an event of a trace, an event of a flight recorder, a refusal with its record in a file, and
//! a scope.

use super::{Bench, Outcome, pair, per};
use gpumem_pool::adaptor::{Adaptor, Budget};
use gpumem_pool::trace::Trace;
use gpumem_pool::{FlightRecorder, Pool, Stream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An adaptor without effect.
struct Nothing;

impl Adaptor for Nothing {}

/// Half the events of a ring, so that none is dropped before the writer was waited for.
const PAIR_COUNT: u32 = 1000;

impl Bench {
    pub(super) fn adapted(&self) -> Outcome<()> {
        let stream = Stream::new(&self.device)?;
        let scoped = self.builder().build()?;
        {
            let _scope = scoped.scope("bench");
            self.row(&self.name("pair_4KiB+scope", 1), || pair(&scoped, &stream, 4 << 10))?;
        }
        let pool = |adaptor| self.builder().adaptor(adaptor).build();
        let plain = pool(Arc::new(Nothing))?;
        self.row(&self.name("pair_4KiB+nothing", 1), || best_of(|| pairs(&plain, &stream)))?;
        let budgeted = pool(Arc::new(Budget::new(1 << 40)))?;
        self.row(&self.name("pair_4KiB+budget", 1), || best_of(|| pairs(&budgeted, &stream)))?;
        self.flight(&stream)?;
        let path = std::env::temp_dir().join(format!("gpumem-bench-{}.trace", std::process::id()));
        let trace = Trace::create(&path)?;
        let traced = pool(trace.clone())?;
        // Measured alternately, so that the state of the machine is equal for both.
        let event = || {
            let (mut with, mut without) = (Duration::MAX, Duration::MAX);
            for _ in 0..30 {
                with = with.min(pairs(&traced, &stream)?);
                without = without.min(pairs(&plain, &stream)?);
                trace.flush(Duration::from_secs(1));
            }
            Ok(per(with.saturating_sub(without), 2 * PAIR_COUNT))
        };
        self.row(&self.name("trace_event", 1), event)?;
        {
            let _scopes = [&traced, &plain].map(|pool| pool.scope("bench"));
            self.row(&self.name("trace_event+scope", 1), event)?;
        }
        let dropped_count = trace.dropped_count();
        std::fs::remove_file(path)?;
        match dropped_count {
            0 => Ok(()),
            count => Err(format!("{count} events were dropped: the figure is not an event's").into()),
        }
    }

    /// A pair with a flight recorder, and a refusal with and without its file of 4095 events.
    fn flight(&self, stream: &Stream) -> Outcome<()> {
        let path = std::env::temp_dir().join(format!("gpumem-bench-flight-{}.trace", std::process::id()));
        let limited = || self.builder().hard_limit(64 << 20);
        let (plain, recorded) =
            (limited().build()?, limited().flight_recorder(FlightRecorder::File(path.clone())).build()?);
        self.row(&self.name("pair_4KiB+flight", 1), || best_of(|| pairs(&recorded, stream)))?;
        (0..5).try_for_each(|_| pairs(&recorded, stream).map(drop))?;
        for (name, pool) in [("refusal", &plain), ("refusal+flight", &recorded)] {
            let refusal = || -> Outcome<Duration> {
                let start = Instant::now();
                let is_refused = pool.alloc(65 << 20, stream).is_err();
                if is_refused { Ok(start.elapsed()) } else { Err("the request was not refused".into()) }
            };
            self.row(&self.name(name, 1), || {
                let mut best = Duration::MAX;
                for _ in 0..10 {
                    best = best.min(refusal()?);
                }
                Ok(per(best, 1))
            })?;
        }
        // With `--only`, nothing may have been refused.
        let _ = std::fs::remove_file(path);
        Ok(())
    }
}

fn best_of(once: impl Fn() -> Outcome<Duration>) -> Outcome<f64> {
    let mut best = Duration::MAX;
    for _ in 0..30 {
        best = best.min(once()?);
    }
    Ok(per(best, PAIR_COUNT))
}

fn pairs(pool: &Pool, stream: &Stream) -> Outcome<Duration> {
    let start = Instant::now();
    for _ in 0..PAIR_COUNT {
        drop(pool.alloc(4 << 10, stream)?);
    }
    Ok(start.elapsed())
}
