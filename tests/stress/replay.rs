//! The first part of recorded traces, replayed through every backend on both drivers.

use gpumem_sim::SimConfig;
use gpumem_tests::driver::virtual_time;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::harness::is_thorough;
use gpumem_tests::pool::trace::Trace as Recorder;
use gpumem_tests::pool::{BackendKind, Device, Limit, Pool, PoolError, Profile, Stream};
use gpumem_tests::profiles;
use gpumem_tests::programs::Synthetic;
use gpumem_tests::sys::Driver;
use gpumem_trace::{Event, Outcome, ReplayError, Setup, StreamKind, Trace, TraceLimit, Waits, fit, replay};

gpumem_tests::cases! {
    /// Three streams and deferred frees, some of them near the beginning.
    fn the_beginning_of_a_trace_goes_through_every_backend(driver: &Driver) {
        let trace = prefetch().prefix(6000);
        assert!(trace.events().iter().any(|event| matches!(event, Event::Complete { .. })));
        for backend in backends(&Device::new(driver, 0).unwrap()) {
            let outcome = run(&trace, driver, backend);
            assert_eq!((outcome.backend, outcome.operation_count), (backend, trace.operation_count()));
            assert!(outcome.peak_reserved_bytes >= trace.peaks().live_incl_deferred_bytes, "{outcome:?}");
            assert!(outcome.driver_time.as_nanos() > 0 && outcome.calls.total() > 0, "{outcome:?}");
        }
    }
}

fn run(trace: &Trace, driver: &Driver, backend: BackendKind) -> Outcome {
    let setup =
        Setup { backend: Some(backend), waits: Waits::Off, clock: Some(virtual_time), ..Setup::default() };
    replay(trace, driver, &setup, |_| ()).unwrap()
}

/// A new simulator.
fn h200() -> Result<Driver, ReplayError> {
    Ok(gpumem_sim::driver(SimConfig::h200().races(false)).unwrap())
}

/// Included in the program, so that it is available on a machine with nothing else.
fn prefetch() -> Trace {
    let bytes: &[u8] = include_bytes!("../traces/prefetch_record_stream.csv.gz");
    Trace::read_from(bytes, "prefetch_record_stream.csv.gz").unwrap()
}

fn recorded() -> Vec<Trace> {
    let folder = std::fs::read_dir(gpumem_tests::folder().join("traces")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path()).filter(|path| path.extension().unwrap() == "gz");
    let traces: Vec<Trace> = files.map(|file| Trace::read(file).unwrap()).collect();
    assert_eq!(traces.len(), 6);
    traces
}

/// With long-lived streams of another library the results equal those with the pool's own streams. With other foreign streams
/// they are at least as good as PyTorch's on its own streams.
#[test]
fn a_recorded_program_may_bring_its_own_streams() {
    for trace in recorded() {
        let has_several = trace.stream_count() > 1;
        for may_wait in [false, true].into_iter().filter(|may_wait| has_several || !may_wait) {
            let of = |streams| {
                let driver = h200().unwrap();
                let waits = if may_wait { Waits::On } else { Waits::Off };
                let setup = Setup { waits, streams, clock: Some(virtual_time), ..Setup::default() };
                replay(&trace, &driver, &setup, |_| ()).unwrap()
            };
            let [own, foreign, long_lived] =
                [StreamKind::Own, StreamKind::Foreign, StreamKind::LongLived].map(of);
            let name = format!("{}, waits: {may_wait}", trace.name());
            let reserved = |outcome: &Outcome| outcome.peak_reserved_bytes as f64;
            assert!(reserved(&long_lived) <= 1.01 * reserved(&own), "{name}: {long_lived:?}");
            let took = |outcome: &Outcome| outcome.driver_time.as_secs_f64();
            assert!(took(&long_lived) <= 1.01 * took(&own), "{name}: {long_lived:?}");
            let expandable = trace.header().peers().find(|peer| peer.name == "expandable").unwrap();
            assert!(foreign.peak_reserved_bytes <= expandable.peak_reserved_bytes, "{name}: {foreign:?}");
            assert!(took(&foreign) <= 0.01 * trace.header().run_seconds.unwrap(), "{name}: {foreign:?}");
        }
    }
}

/// A thread counts the calls of one driver at a time.
#[test]
fn a_replay_inside_of_another_is_refused() {
    let trace = prefetch().prefix(6000);
    let driver = gpumem_sim::driver(SimConfig::h200().races(false)).unwrap();
    let run = |on_progress: &mut dyn FnMut(u64)| replay(&trace, &driver, &Setup::default(), on_progress);
    let mut refusals = Vec::new();
    run(&mut |_| refusals.push(run(&mut |_| ()))).unwrap();
    assert!(!refusals.is_empty() && refusals.iter().all(|run| matches!(run, Err(ReplayError::Nested))));
    run(&mut |_| ()).unwrap();
}

#[test]
fn the_kinds_of_streams_have_names() {
    for (name, kind) in StreamKind::ALL {
        assert_eq!((name.parse::<StreamKind>().unwrap(), kind.to_string()), (kind, name.into()));
    }
    let error = "others".parse::<StreamKind>().unwrap_err().to_string();
    assert!(error.contains("own, foreign or long-lived"), "{error}");
}

#[test]
fn the_events_of_every_trace_bear_its_header_out() {
    let traces = recorded();
    for trace in &traces {
        assert_eq!(trace.disagreements(), Vec::<String>::new(), "{}", trace.name());
        assert_eq!(trace.header().peers().count(), 3, "{}", trace.name());
        assert!(trace.header().run_seconds.is_some(), "{}", trace.name());
        let floor = trace.floor_bytes() as f64 / trace.peaks().live_incl_deferred_bytes as f64;
        let expected = if trace.name() == "prefetch_record_stream" { 1.230 } else { 1.0 };
        assert!((floor - expected).abs() < 0.0005, "{}: {floor}", trace.name());
    }
}

/// The second half of a periodic program needs no memory of the driver.
#[test]
fn a_program_that_repeats_itself_comes_to_rest() {
    let driver = h200().unwrap();
    for profile in Profile::ALL {
        let setup = Setup { tuning: format!("profile:{profile}"), ..Setup::default() };
        let outcome = replay(
            &Synthetic::Periodic.trace(1, Synthetic::Periodic.usual_round_count()),
            &driver,
            &setup,
            |_| (),
        )
        .unwrap();
        let late = outcome.late_calls;
        assert_eq!((late.cuMemCreate, late.cuMemMap, late.cuMemUnmap), (0, 0, 0), "{profile}");
        assert!(outcome.ratio() < 1.02, "{profile}: {}", outcome.ratio());
    }
}

#[test]
fn a_refused_allocation_is_reported_with_its_line() {
    let driver = h200().unwrap();
    let setup = Setup {
        backend: Some(BackendKind::None),
        hard_limit: Some(Limit::Bytes(64 << 20)),
        ..Setup::default()
    };
    let error = replay(&Synthetic::Periodic.trace(0, 1), &driver, &setup, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("periodic, line ") && error.contains("limit of 64.000 MiB"), "{error}");
}

/// A pool that is short of memory at its limit waits for the device once, and does not poll.
#[test]
fn a_limit_is_kept_by_waiting_for_the_device() {
    let trace = prefetch().prefix(6000);
    let driver = h200().unwrap();
    let free = run(&trace, &driver, BackendKind::Caching);
    let limit_bytes = trace.floor_bytes().next_multiple_of(2 << 20);
    assert!(free.device_wait_count() == 0 && free.peak_reserved_bytes > limit_bytes, "{free:?}");
    let setup = Setup { hard_limit: Some(Limit::Bytes(limit_bytes)), waits: Waits::Off, ..Setup::default() };
    let tight = replay(&trace, &driver, &setup, |_| ()).unwrap();
    assert!(tight.device_wait_count() > 0 && tight.peak_reserved_bytes <= limit_bytes, "{tight:?}");
}

/// At a limit 2 % above the peak of live memory, every profile completes.
#[test]
fn every_recorded_trace_fits_at_its_limit_under_every_profile() {
    let traces = recorded();
    let tasks = traces.iter().flat_map(|trace| profiles::PROFILES.map(|profile| (trace, profile)));
    for (trace, profile) in tasks {
        let attempt = profiles::run(trace, 1.02, profile, &h200().unwrap()).unwrap();
        assert!(attempt.fit().is_some(), "{} under {profile}: {attempt}", trace.name());
    }
}

/// `cargo xtask replay --random` runs many more.
#[test]
fn random_programs_that_fit_under_tight_fit_under_every_profile() {
    let mut counts = profiles::Counts::default();
    let seeds = if is_thorough() { 80 } else { 24 };
    for (seed, factor) in (1..=seeds).zip([1.02, 1.05, 1.1].into_iter().cycle()) {
        counts.add(&profiles::compare(seed, factor, h200).unwrap());
    }
    assert!(counts.completed[0] > seeds / 2, "{counts:?}");
    assert!((0..Profile::ALL.len()).all(|profile| counts.share(profile) >= 0.99), "{counts:?}");
}

#[test]
fn made_up_traces_are_the_same_every_time_and_go_on_as_long_as_wanted() {
    for (name, kind, _) in Synthetic::ALL {
        assert_eq!(name.parse(), Ok(kind));
        let (short, long) = (kind.trace(5, 3), kind.trace(5, 6));
        assert_eq!(short.events(), kind.trace(5, 3).events(), "{name}");
        assert!(long.events().len() > short.events().len(), "{name}");
        assert!(long.peaks().live_bytes > 256 << 20, "{name}: {:?}", long.peaks());
    }
    assert!("unheard".parse::<Synthetic>().unwrap_err().contains("periodic, varlen"));
    let prefetch = Synthetic::Prefetch.trace(0, 8);
    assert!(prefetch.events().iter().any(|event| matches!(event, Event::FreeUsed { .. })));
}

#[test]
fn limits_of_traces_are_amounts_or_multiples_of_their_peaks() {
    let trace = Synthetic::Kv.trace(0, 2);
    let of = |text: &str| text.parse::<TraceLimit>().map(|limit| limit.of(&trace));
    let peak_bytes = trace.peaks().live_incl_deferred_bytes;
    assert_eq!(of(" 1x ").unwrap(), Limit::Bytes(peak_bytes));
    assert_eq!(of("1.5X").unwrap(), Limit::Bytes(peak_bytes + peak_bytes / 2));
    assert_eq!(of("1.5GiB").unwrap(), Limit::Bytes(3 << 29));
    for wrong in ["x", "0x", "-1x", "infx", "nanx", "lots"] {
        assert!(of(wrong).unwrap_err().to_string().contains("1.5GiB"), "{wrong}");
    }
}

#[test]
fn options_by_name_reach_the_pool() {
    let driver = h200().unwrap();
    let setup = Setup { conf: "backend:none,max_split_size_mb:64".into(), ..Setup::default() };
    let outcome = replay(&Synthetic::Kv.trace(0, 2), &driver, &setup, |_| ()).unwrap();
    assert_eq!((outcome.backend, outcome.ignored_options.len()), (BackendKind::None, 1));
    let setup = Setup { conf: "max_split_size:64".into(), ..Setup::default() };
    let error = replay(&Synthetic::Kv.trace(0, 2), &driver, &setup, |_| ()).unwrap_err().to_string();
    assert!(error.contains("did you mean max_split_size_mb?"), "{error}");
}

/// On a simulator configured as a busy device, the virtual clock has the prices of a busy device.
#[test]
fn driver_time_is_the_virtual_clocks() {
    let trace = Synthetic::Kv.trace(0, 2);
    let at = |is_busy, calls_percent| {
        let mut costs = gpumem_sim::Costs::h200();
        (costs.is_busy, costs.calls_percent) = (Some(is_busy), calls_percent);
        let driver = gpumem_sim::driver(SimConfig::h200().races(false).costs(costs)).unwrap();
        run(&trace, &driver, BackendKind::None).driver_time
    };
    assert_eq!(at(false, 100), at(false, 100));
    assert_eq!(at(false, 100) * 3, at(false, 300));
    assert!(at(true, 100) >= at(false, 100));
}

/// With the waits that the profile has, memory of one stream goes to another, as in a program.
#[test]
fn waits_are_those_of_the_profile() {
    let trace = prefetch().prefix(20_000);
    let with = |profile: Profile, waits| {
        let driver = h200().unwrap();
        let setup = Setup { tuning: format!("profile:{profile}"), waits, ..Setup::default() };
        let outcome = replay(&trace, &driver, &setup, |_| ()).unwrap();
        (outcome.peak_reserved_bytes, outcome.calls.cuStreamWaitEvent)
    };
    let [own, on, off] = [Waits::Profile, Waits::On, Waits::Off].map(|waits| with(Profile::Balanced, waits));
    assert!(own == on && own.0 < off.0 && own.1 > 0 && off.1 == 0, "{own:?} {on:?} {off:?}");
    // `fast` inserts none.
    assert_eq!(with(Profile::Fast, Waits::Profile).1, 0);
    for (name, waits) in Waits::ALL {
        assert_eq!((name.parse::<Waits>().unwrap(), waits.to_string()), (waits, name.into()));
    }
    assert!("sometimes".parse::<Waits>().unwrap_err().to_string().contains("profile, on or off"));
}

/// The smallest limit is the bound between limits that are too small and limits that suffice.
#[test]
fn the_smallest_limit_of_each_profile_is_found() {
    let trace = prefetch().prefix(6000);
    let mut found_bytes = Vec::new();
    for candidate in fit::CANDIDATES {
        let mut tried = Vec::new();
        let found = fit::find_limit(&trace, candidate, &Setup::default(), h200, |limit| tried.push(limit));
        let found = found.unwrap().unwrap();
        assert_eq!(tried[0], None, "first without a limit");
        assert!(tried.len() >= 2 && tried.len() < 24, "{candidate}: {tried:?}");
        // Whether streams finish with the blocks of others as early as in the trace, or as late as they can.
        let attempts = |limit_bytes| {
            [false, true].map(|are_frees_late| {
                let hard_limit = Some(Limit::Bytes(limit_bytes));
                let setup = Setup { hard_limit, are_frees_late, ..Setup::default() };
                candidate.attempt(&trace, &h200().unwrap(), &setup).unwrap()
            })
        };
        assert!(attempts(found.limit_bytes).iter().all(|attempt| attempt.fit().is_some()), "{candidate}");
        let is_refused = |attempt: &fit::Attempt| matches!(attempt, fit::Attempt::Refused { refusal, .. } if refusal.out_of_memory().is_some_and(|report| report.limit_bytes.is_some()));
        let below = attempts(found.limit_bytes - found.step_bytes);
        assert!(below.iter().any(is_refused), "{candidate}: {} bytes below", found.step_bytes);
        assert!(found.limit_bytes >= trace.peaks().live_bytes);
        assert!(
            found.outcome.peak_reserved_bytes <= found.limit_bytes
                || candidate.backend == BackendKind::Native
        );
        found_bytes.push(found.limit_bytes);
    }
    // `tight` needs no more than the others.
    let tight = Profile::ALL.iter().position(|profile| *profile == Profile::Tight).unwrap();
    let of_profiles = &found_bytes[..Profile::ALL.len()];
    assert!(of_profiles.iter().all(|bytes| found_bytes[tight] <= *bytes), "{found_bytes:?}");
}

/// A program that takes the largest block it can have fits: the sizes that it gave up are not recorded as refused.
#[test]
fn a_program_that_searches_for_the_largest_block_fits() {
    let path = std::env::temp_dir().join(format!("gpumem-largest-{}.trace", std::process::id()));
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(64 << 20).adaptor(Recorder::create(&path).unwrap());
    let (pool, stream) = (pool.build().unwrap(), Stream::new(&device).unwrap());
    let held = pool.alloc(40 << 20, &stream).unwrap();
    let workspace = pool.alloc_up_to(1 << 20..=1 << 30, &stream).unwrap();
    assert_eq!(workspace.size_bytes(), 24 << 20);
    drop((held, workspace, pool));
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.refused_count(), 0);
    let found = fit::find_limit(&trace, fit::CANDIDATES[1], &Setup::default(), h200, |_| ()).unwrap();
    assert_eq!(found.map(|found| found.limit_bytes), Some(64 << 20));
    std::fs::remove_file(path).unwrap();
}

/// A request that the replay's device cannot have at all is a refusal like any other.
#[test]
fn a_device_that_is_too_small_for_a_request_does_not_end_the_comparison() {
    let path = std::env::temp_dir().join(format!("gpumem-small-{}.trace", std::process::id()));
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).adaptor(Recorder::create(&path).unwrap()).build().unwrap();
    drop(pool.alloc(90 << 20, &Stream::new(&device).unwrap()).unwrap());
    drop(pool);
    let trace = Trace::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20)).unwrap();
    let attempt = fit::CANDIDATES[1].attempt(&trace, &driver, &Setup::default()).unwrap();
    let fit::Attempt::Refused { refusal, .. } = &attempt else { panic!("{attempt:?}") };
    assert!(matches!(**refusal, PoolError::TooLarge { .. }), "{refusal}");
    assert!(attempt.fit().is_none() && attempt.refused_bytes() == Some(90 << 20));
}

/// The best candidate is the one that fits with the least driver time. A candidate that refuses a request is reported, and is not an error.
#[test]
fn the_best_settings_fit_with_the_least_driver_time() {
    let trace = Synthetic::Varlen.trace(3, 8);
    let attempts = |limit: Option<TraceLimit>| {
        let hard_limit = limit.map(|limit| limit.of(&trace));
        let setup = Setup { hard_limit, clock: Some(virtual_time), ..Setup::default() };
        let of = |candidate: fit::Candidate| {
            let driver = h200().unwrap();
            (candidate, candidate.attempt(&trace, &driver, &setup).unwrap())
        };
        fit::CANDIDATES.map(of)
    };
    let free = attempts(None);
    assert!(free.iter().all(|(_, attempt)| attempt.fit().is_some()));
    let time = |candidate| {
        let (_, attempt) = free.iter().find(|(other, _)| *other == candidate).unwrap();
        attempt.fit().unwrap().driver_time
    };
    let best = fit::best(&free).unwrap();
    assert!(fit::CANDIDATES.iter().all(|other| time(best) <= time(*other)));
    assert!(best.conf().starts_with("backend:"), "{}", best.conf());
    let none = attempts(Some(TraceLimit::TimesPeak(0.9)));
    assert!(none.iter().all(|(_, attempt)| matches!(attempt, fit::Attempt::Refused { .. })));
    assert_eq!(fit::best(&none), None);
}

/// The file was pickled by CPython, with shared frames, from the first events of a recorded program: tests/records/README.md.
#[test]
fn a_pickle_of_python_is_read() {
    let path = gpumem_tests::folder().join("records/pytorch_snapshot.pickle");
    let trace = Trace::read(&path).unwrap();
    let original = Trace::read(gpumem_tests::folder().join("traces/prefetch_record_stream.csv.gz")).unwrap();
    let sizes = |trace: &Trace| {
        let allocated = trace.events().iter().filter_map(|event| match event {
            Event::Alloc { size_bytes, stream, .. } => Some((*size_bytes, *stream)),
            _ => None,
        });
        allocated.collect::<Vec<_>>()
    };
    let (found, expected) = (sizes(&trace), sizes(&original));
    assert!(found.len() > 400 && expected.starts_with(&found), "{}", found.len());
    assert!(trace.events().iter().any(|event| matches!(event, Event::Complete { .. })));
}

/// The peaks of a recorded program are those that PyTorch printed: tests/records/README.md.
#[test]
fn a_recorded_programs_peaks_are_pytorchs_own() {
    const ALLOCATED_BYTES: u64 = 488_558_592;
    let trace = Trace::read(gpumem_tests::folder().join("records/pytorch_recorded.pickle")).unwrap();
    assert_eq!(trace.real_run().peak_reserved_bytes, Some(1_333_788_672));
    assert_eq!(trace.disagreements(), [""; 0]);
    let peak_bytes = trace.peaks().live_bytes;
    assert!((ALLOCATED_BYTES * 99 / 100..=ALLOCATED_BYTES).contains(&peak_bytes), "{peak_bytes}");
    assert_eq!(trace.operation_count(), 403 + 365);
}
