//! Events of the crate `tracing`, as a subscriber receives them.

use crate::fixture::{on_device_memory, small};
use gpumem_pool::{BackendKind, KeptBy, Spill, SpillableBlock};
use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const MIB: u64 = 1 << 20;

/// Keeps each event as its level, and its fields as text.
#[derive(Clone, Default)]
struct Collector {
    events: Arc<Mutex<Vec<(Level, String)>>>,
    /// Called at each event.
    also: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Collector {
    /// The events since the last call.
    fn take(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "gpumem_pool"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.events.lock().unwrap().push((*event.metadata().level(), fields.0));
        self.also.iter().for_each(|also| also());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn slow_paths_refusals_and_reclaim_are_events_and_hits_are_not() {
    on_device_memory(&small(), |fixture| {
        let collector = Collector::default();
        let _default = tracing::subscriber::set_default(collector.clone());
        let pool = fixture.builder().name("training").hard_limit(64 * MIB).build().unwrap();
        let stream = fixture.stream();
        let levels = |events: &[(Level, String)]| events.iter().map(|(level, _)| *level).collect::<Vec<_>>();

        drop(pool.alloc(4096, &stream).unwrap());
        let events = collector.take();
        assert_eq!(events[0].0, Level::TRACE);
        assert!(
            events[0].1.contains("pool=\"training\" ") && events[0].1.contains("size_bytes=4096 "),
            "{events:?}"
        );
        let is_caching = fixture.backend == BackendKind::Caching;
        assert_eq!(
            levels(&events[1..]),
            if is_caching { vec![Level::DEBUG] } else { Vec::new() },
            "{events:?}"
        );

        drop(pool.alloc(4096, &stream).unwrap());
        let count = if is_caching { 0 } else { 1 };
        assert_eq!(levels(&collector.take()), vec![Level::TRACE; count]);

        assert!(pool.alloc(80 * MIB, &stream).is_err());
        let events = collector.take();
        let [first, steps @ .., last] = &events[..] else { panic!("{events:?}") };
        assert_eq!((first.0, last.0), (Level::TRACE, Level::WARN), "{events:?}");
        assert!(steps.iter().all(|(level, _)| *level == Level::DEBUG), "{events:?}");
        assert!(last.1.contains("the limit of 64.000 MiB refused 80.000 MiB"), "{events:?}");

        pool.reclaim().unwrap();
        let events = collector.take();
        assert_eq!(levels(&events), [Level::INFO], "{events:?}");
        assert!(events[0].1.contains("released_bytes="), "{events:?}");
    });
}

/// Moves of arrays to the host and back are events, and so is a request for which nothing can move. A subscriber may use the pool.
#[test]
fn moves_to_the_host_and_back_are_events() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).spill(Spill::to_host(1 << 30)).build().unwrap();
        let stream = fixture.stream();
        let (other, on) = (pool.clone(), stream.clone());
        let also: Arc<dyn Fn() + Send + Sync> = Arc::new(move || drop(other.alloc(256, &on).unwrap()));
        let collector = Collector { also: Some(also), ..Collector::default() };
        let _default = tracing::subscriber::set_default(collector.clone());
        let block = pool.alloc_tagged(40 * MIB, &stream, &pool.tag("weights")).unwrap();
        let Ok(array) = SpillableBlock::new(&pool, block, true) else { panic!("too small") };
        let found = |words: &[&str]| {
            let events = collector.take();
            let has_all = |(level, text): &&(Level, String)| {
                *level == Level::DEBUG && words.iter().all(|word| text.contains(word))
            };
            assert_eq!(events.iter().filter(has_all).count(), 1, "{words:?} in {events:?}");
        };

        drop(pool.alloc(40 * MIB, &stream).unwrap());
        let size = "size_bytes=41943040 ";
        found(&["array moved to the host", size, "tag=\"weights\"", "is_copied=true", "stream="]);
        let pinned = array.pin(Some(&stream), KeptBy::Guard).unwrap();
        found(&["array moved back to the device", size, "tag=\"weights\"", "is_early=false"]);
        assert!(pool.alloc(40 * MIB, &stream).is_err());
        found(&["no array could make room", "requested_bytes=41943040 ", "by: Guard, bytes: 41943040"]);
        drop(pinned);
    });
}

/// A subscriber may use the pool: no lock is held during an event.
#[test]
fn a_subscriber_may_use_the_pool() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let stream = fixture.stream();
        drop(pool.alloc(2048, &stream).unwrap());
        let (other, on) = (pool.clone(), stream.clone());
        let uses_the_pool = move || {
            drop(other.alloc(2048, &on).unwrap());
            assert!(other.status().unwrap().reserved_bytes <= 64 * MIB);
        };
        let collector = Collector { also: Some(Arc::new(uses_the_pool)), ..Collector::default() };
        let _default = tracing::subscriber::set_default(collector.clone());
        assert!(pool.alloc(80 * MIB, &stream).is_err());
        pool.reclaim().unwrap();
        assert!(collector.take().len() >= 2);
    });
}
