//! Situations that call for different actions, each with the whole report of its refused request: what an operator reads, who
//! knows only the text. On both drivers, with every backend.
//!
//! Situations that only the simulator can produce, such as another process, are among the tests of the pool's crate.

use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::{Setting, each_setting};
use gpumem_tests::pool::adaptor::{Budget, Fallback, Guard};
use gpumem_tests::pool::{
    Advice, BackendKind, Block, Bytes, Capture, CaptureMode, Device, MemoryKind, Pool, PoolBuilder,
    PoolError, Profile, RefusedBy, Stream,
};
use gpumem_tests::sys::types::CUdeviceptr;
use gpumem_tests::sys::{Driver, DriverKind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The driver's pool grows by this size.
const UNIT_BYTES: u64 = 32 * MIB;

/// A backend on the first device.
struct Subject<'a> {
    device: &'a Device,
    setting: Setting,
    /// The refusals that the pool's observer has received.
    seen: Arc<Mutex<Vec<PoolError>>>,
}

/// The figures of a report, as far as its snapshot contains them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    /// All that do not depend on the device: a limit determines them.
    OfTheLimit,
    /// None, because the size of the device determines them.
    OfTheDevice,
}

/// Runs a body with each backend, for device memory.
fn on_each_backend(driver: &Driver, body: impl Fn(&Subject<'_>)) {
    let device = Device::new(driver, 0).unwrap();
    each_setting(&device, |setting| {
        let is_default = matches!(setting.profile, None | Some(Profile::Balanced));
        if is_default && setting.kind == MemoryKind::Device {
            // Releases the memory of earlier pools.
            device.synchronize().unwrap();
            let setting = Setting { profile: None, ..setting };
            body(&Subject { device: &device, setting, seen: Arc::default() });
        }
    });
}

impl Subject<'_> {
    /// The builder of a pool without an observer.
    fn other(&self) -> PoolBuilder {
        self.setting.builder(self.device)
    }

    /// The builder of the pool that refuses.
    fn builder(&self) -> PoolBuilder {
        let seen = Arc::clone(&self.seen);
        self.other().on_out_of_memory(move |error| seen.lock().unwrap().push(error.clone()))
    }

    fn stream(&self) -> Stream {
        Stream::new(self.device).unwrap()
    }

    fn is(&self, backend: BackendKind) -> bool {
        self.setting.backend == backend
    }

    /// The size of what leaves this much of the device free, or up to [`UNIT_BYTES`] more.
    fn all_but(&self, left_bytes: u64) -> u64 {
        self.free_bytes().saturating_sub(left_bytes) / UNIT_BYTES * UNIT_BYTES
    }

    /// The device's free memory, once it stays the same: a GPU's driver destroys the contexts of processes for some time after they
    /// have ended.
    fn free_bytes(&self) -> u64 {
        let now = || self.device.memory_info().unwrap().free_bytes;
        let mut free_bytes = now();
        while self.device.driver().kind() == DriverKind::Cuda {
            thread::sleep(Duration::from_millis(300));
            match now() {
                same if same == free_bytes => break,
                other => free_bytes = other,
            }
        }
        free_bytes
    }

    /// Allocates what leaves this much of the device free, or up to [`UNIT_BYTES`] more, and nothing in the pool beside its blocks. No
    /// backend rounds powers of two.
    fn fill(&self, pool: &Pool, stream: &Stream, left_bytes: u64) -> Vec<Block> {
        let mut held = Vec::new();
        loop {
            // What a pool keeps beside its blocks is room that the device does not report as free.
            pool.reclaim().unwrap();
            let mut rest_bytes = self.all_but(left_bytes);
            if rest_bytes == 0 {
                return held;
            }
            while let Some(power) = rest_bytes.checked_ilog2() {
                held.push(pool.alloc(1 << power, stream).unwrap());
                rest_bytes -= 1 << power;
            }
        }
    }

    /// Compares the report of a refusal with its snapshot. The observer must have received the same report last.
    fn refused(&self, name: &str, error: &PoolError, figures: Figures) -> Advice {
        let report = error.out_of_memory().expect("it is about memory");
        let seen = self.seen.lock().unwrap();
        let shown = seen.last().and_then(PoolError::out_of_memory);
        assert_eq!(shown, Some(report), "the observer is shown what is returned");
        assert_eq!(error.to_string(), report.to_string());
        self.assert_snapshot(name, &report.to_string(), figures);
        report.advice()
    }

    /// Over plain segments the advice is equal, but the bytes differ.
    fn assert_snapshot(&self, name: &str, text: &str, figures: Figures) {
        if self.setting.plain_segments {
            return;
        }
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.add_filter(r"pool [0-9]+", "pool N");
        settings.add_filter(r"stream [0-9]+", "stream N");
        settings.add_filter(r"0x[0-9a-f]{8,}", "ADDRESS");
        // Which step gains memory, and how long it takes, depends on the speed of the machine.
        settings.add_filter(r"\n +tried: [^\n]*", "");
        let rows = match figures {
            Figures::OfTheDevice => "[a-z][^\n]*?",
            // The driver's pool reserves more than its blocks, by a rule of its own.
            Figures::OfTheLimit if self.is(BackendKind::Native) => {
                "(?:others|device free|cached|reserved|pools|pool [a-z]+) *?"
            }
            Figures::OfTheLimit => "(?:others|device free) *?",
        };
        // The cell of a row is 14 characters wide.
        let cell = r" {2}(?:[ 0-9.]{8} [KMGT]iB|[ 0-9]{6} bytes)";
        settings.add_filter(&format!("(?m)^( {{2,}}{rows}){cell}"), "$1          SIZE");
        settings.add_filter(r"(?m)^(  device free .*) of [0-9.]+ [KMGT]iB", "$1 of SIZE");
        settings.add_filter(r"the device has only [0-9.]+ [KMGT]iB", "the device has only SIZE");
        settings.add_filter(r"the device has [0-9.]+ [KMGT]iB free", "the device has SIZE free");
        if figures == Figures::OfTheDevice {
            // The last blocks that fit depend on the size of the device too.
            settings.add_filter(r"\n  rounding  [^\n]*|; largest free block [^\n]*", "");
            settings.add_filter(r"\b[0-9.]+ (?:[KMGT]iB|bytes)", "SIZE");
            settings.add_filter(r"\b[0-9]+ of the last [0-9]+ blocks", "N of the last N blocks");
            settings.add_filter(r" in [0-9]+ blocks?", " in N blocks");
        }
        settings.bind(|| insta::assert_snapshot!(format!("{name}_{}", self.setting.backend), text));
    }
}

fn until_refused(pool: &Pool, size_bytes: u64, stream: &Stream) -> (Vec<Block>, PoolError) {
    let mut held = Vec::new();
    loop {
        match pool.alloc(size_bytes, stream) {
            Ok(block) => held.push(block),
            Err(error) => return (held, error),
        }
    }
}

/// Runs steps that allocate and free temporary blocks, as many as they can have, and keep one of 2 MiB.
fn run_steps(pool: &Pool, stream: &Stream, tag: Option<&str>) -> (Vec<Block>, PoolError) {
    let mut kept = Vec::new();
    loop {
        let work: Vec<_> = (1..=4).map_while(|size| pool.alloc(size * MIB, stream).ok()).collect();
        let entry = {
            let _scope = tag.map(|tag| pool.scope(tag));
            pool.alloc(2 * MIB, stream)
        };
        drop(work);
        match entry {
            Ok(entry) => kept.push(entry),
            Err(error) => return (kept, error),
        }
    }
}

/// The part of a report that compares what the program needs with what the device has.
fn needed(error: &PoolError) -> String {
    let report = error.out_of_memory().unwrap();
    // All sizes are whole pages, which only the pool rounds up.
    let held_bytes = report.in_use_bytes + report.rounding_bytes;
    let needed_bytes = (held_bytes + report.requested_bytes).next_multiple_of(2 * MIB);
    let own_bytes = report.device_total_bytes - report.others_bytes();
    format!("need {}, more than the {} that this device has", Bytes(needed_bytes), Bytes(own_bytes))
}

fn alloc_in_scope(pool: &Pool, stream: &Stream, tag: &str, size_bytes: u64) -> Block {
    let _scope = pool.scope(tag);
    pool.alloc(size_bytes, stream).unwrap()
}

/// Memory that a library of this process, such as cuBLAS, allocates by its own call. The simulator reports it if it stays.
struct OwnAllocation<'a>(&'a Device, CUdeviceptr);

impl<'a> OwnAllocation<'a> {
    fn new(device: &'a Device, size_bytes: u64) -> Self {
        let _bound = device.bind().unwrap();
        let mut address = 0;
        // SAFETY: the address outlives the call, and the memory is not used.
        unsafe { device.driver().cuMemAlloc_v2(&mut address, size_bytes as usize).unwrap() };
        Self(device, address)
    }
}

impl Drop for OwnAllocation<'_> {
    fn drop(&mut self) {
        let bound = self.0.bind();
        // SAFETY: the address came from `cuMemAlloc_v2`, and nothing uses the memory.
        let freed = unsafe { self.0.driver().cuMemFree_v2(self.1) };
        assert!(thread::panicking() || (bound.is_ok() && freed.is_ok()), "{freed:?}");
    }
}

fn allocate_beside_a_library(driver: &Driver, name: &str) {
    on_each_backend(driver, |subject| {
        let _library = OwnAllocation::new(subject.device, subject.all_but(10 * UNIT_BYTES));
        let (pool, stream) = (subject.builder().build().unwrap(), subject.stream());
        let (_held, error) = until_refused(&pool, 3 * UNIT_BYTES, &stream);
        assert_eq!(subject.refused(name, &error, Figures::OfTheDevice), Advice::FreeTheDevice);
        let text = error.to_string();
        assert!(text.contains("free at least ") && !text.contains("end that program"), "{text}");
    });
}

cases! {
    fn a_limit_that_is_too_low(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let (pool, stream) = (subject.builder().hard_limit(288 * MIB).build().unwrap(), subject.stream());
            let (_held, error) = until_refused(&pool, 64 * MIB, &stream);
            assert!(matches!(error, PoolError::LimitReached(_)));
            let advice = subject.refused("limit_too_low", &error, Figures::OfTheLimit);
            assert_eq!(advice, Advice::RaiseTheLimit);
        });
    }

    /// Small long-lived blocks prevent the memory between them from being merged.
    fn fragmentation(driver: &Driver) {
        on_each_backend(driver, |subject| {
            if !subject.is(BackendKind::Caching) {
                return;
            }
            let options = subject.builder().profile(Profile::Tight).hard_limit(256 * MIB);
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let (blocks, _) = until_refused(&pool, MIB, &stream);
            let _kept: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect();
            let error = pool.alloc(64 * MIB, &stream).unwrap_err();
            assert_eq!(subject.refused("fragmentation", &error, Figures::OfTheLimit), Advice::Defragment);
        });
    }

    /// A few percent are free, in pieces, and one tag holds all others.
    fn one_tag_that_holds_nearly_everything(driver: &Driver) {
        on_each_backend(driver, |subject| {
            if !subject.is(BackendKind::Caching) {
                return;
            }
            let options = subject.builder().profile(Profile::Tight).hard_limit(256 * MIB);
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let blocks = {
                let _scope = pool.scope("activations");
                until_refused(&pool, MIB, &stream).0
            };
            let kept = blocks.into_iter().enumerate().filter(|(index, _)| (index + 1) % 32 != 0);
            let _kept: Vec<_> = kept.map(|(_, block)| block).collect();
            let error = pool.alloc(6 * MIB, &stream).unwrap_err();
            assert_eq!(subject.refused("one_tag", &error, Figures::OfTheLimit), Advice::RaiseTheLimit);
            assert!(error.to_string().contains("activations"), "{error}");
        });
    }

    /// A loop that frees most of the memory that it allocates.
    fn a_leak(driver: &Driver) {
        on_each_backend(driver, |subject| {
            // The heap samples the use; in a small heap it should do so often.
            let options = subject.builder().hard_limit(256 * MIB).conf("handle_bytes_max:32MiB").unwrap();
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let (_kept, error) = run_steps(&pool, &stream, None);
            assert_eq!(subject.refused("leak", &error, Figures::OfTheLimit), Advice::FindTheLeak);
        });
    }

    /// A cache that may grow to 400 MiB, in a pool that may grow to 256 MiB, on a device that has more.
    fn a_cache_that_fills_below_a_limit(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let options = subject.builder().hard_limit(256 * MIB).conf("handle_bytes_max:32MiB").unwrap();
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let _weights = alloc_in_scope(&pool, &stream, "weights", 150 * MIB);
            let (_kept, error) = run_steps(&pool, &stream, Some("cache"));
            assert_eq!(subject.refused("cache_that_fills", &error, Figures::OfTheLimit), Advice::FindTheLeak);
            let text = error.to_string();
            assert!(text.contains("the tag `cache`") && text.contains("raise the limit well above 2"), "{text}");
        });
    }

    /// The quotas of four private pools leave their parent nothing.
    fn private_pools_that_hold_the_whole_limit(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let options = subject.builder().name("service").hard_limit(256 * MIB);
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let _held = ["a", "b", "c", "d"].map(|name| {
                let private = pool.private_named(name, 80 * MIB).unwrap();
                let size_bytes = if name == "c" { 76 * MIB } else { 50 * MIB };
                let block = private.alloc(size_bytes, &stream).unwrap();
                (private, block)
            });
            let error = pool.alloc(100 * MIB, &stream).unwrap_err();
            assert_eq!(subject.refused("private_pools", &error, Figures::OfTheLimit), Advice::RaiseTheLimit);
            assert!(error.to_string().contains("pool service/c: 76.000 MiB"), "{error}");
        });
    }

    fn a_fallback_that_is_exhausted_too(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let spare = subject.other().name("spare").hard_limit(32 * MIB).build().unwrap();
            let options = subject.builder().hard_limit(64 * MIB).adaptor(Arc::new(Fallback::new(&spare)));
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let (_held, error) = until_refused(&pool, 24 * MIB, &stream);
            assert_eq!(subject.refused("fallback", &error, Figures::OfTheLimit), Advice::RaiseTheLimit);
            let also = "the fallback refused too: out of GPU memory: the limit of 32.000 MiB refused";
            assert!(error.to_string().contains(also), "{error}");
        });
    }

    fn a_budget_that_is_used_up(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let budget = Arc::new(Budget::new(8 << 10).named("requests"));
            let options = subject.builder().adaptor(budget).adaptor(Arc::new(Guard::new()));
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let _scope = pool.scope("session");
            let _held = pool.alloc(4 << 10, &stream).unwrap();
            let error = pool.alloc(4 << 10, &stream).unwrap_err();
            assert!(matches!(&error, PoolError::LimitReached(report) if report.refused_by == RefusedBy::Budget), "{error}");
            assert_eq!(subject.refused("budget", &error, Figures::OfTheLimit), Advice::RaiseTheLimit);
            let text = error.to_string();
            assert!(text.contains("the budget `requests` of 8.000 KiB refused 4.000 KiB"), "{text}");
            assert!(text.contains("Budget::set_limit") && text.contains("9.000 KiB"), "{text}");
        });
    }

    fn a_damaged_block_with_a_tag(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let options = subject.other().name("training").adaptor(Arc::new(Guard::new()));
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let block = alloc_in_scope(&pool, &stream, "activations", 1000);
            {
                let _bound = subject.device.bind().unwrap();
                // SAFETY: the byte behind the block is a guard byte of the same allocation, which the pool checks.
                unsafe { driver.cuMemsetD8Async(block.address(), 7, 1001, stream.raw()).unwrap() };
            }
            drop(block);
            subject.device.synchronize().unwrap();
            let error = pool.alloc(1000, &stream).unwrap_err();
            assert!(matches!(error, PoolError::Damaged(_)), "{error}");
            assert!(error.to_string().contains("(pool training, tag `activations`)"), "{error}");
            subject.assert_snapshot("damage", &error.to_string(), Figures::OfTheLimit);
        });
    }

    /// The size wrapped around below zero.
    fn a_size_that_is_an_error_of_arithmetic(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        each_setting(&device, |setting| {
            let (stream, size_bytes) = (Stream::new(&device).unwrap(), 1000_u64.wrapping_sub(1004));
            let text = |builder: PoolBuilder| {
                let error = builder.build().unwrap().alloc(size_bytes, &stream).unwrap_err();
                assert!(error.is_out_of_memory(), "{error}");
                error.to_string()
            };
            let builders = || {
                let budget = Arc::new(Budget::new(8 * MIB).named("requests"));
                [
                    ("arithmetic", setting.builder(&device)),
                    ("arithmetic_limit", setting.builder(&device).hard_limit(64 * MIB)),
                    ("arithmetic_budget", setting.builder(&device).adaptor(budget)),
                    ("arithmetic_guard", setting.builder(&device).adaptor(Arc::new(Guard::new()))),
                ]
            };
            for (name, builder) in builders() {
                let text = text(builder);
                let says_so = text.contains("18446744073709551612 bytes") && text.contains("they are -4;");
                let others = ["split", "EiB", "raise", "smaller", "parts"];
                assert!(says_so && !others.iter().any(|other| text.contains(other)), "{text}");
                let subject = Subject { device: &device, setting, seen: Arc::default() };
                match setting.kind {
                    MemoryKind::Device if name == "arithmetic" || name == "arithmetic_budget" => {
                        subject.assert_snapshot(name, &text, Figures::OfTheLimit);
                    }
                    _ => {}
                }
            }
        });
    }

    /// Dropping blocks does not free the memory of graphs, whose blocks are already dropped.
    fn memory_that_graphs_keep(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let (pool, stream) = (subject.builder().hard_limit(1 << 30).build().unwrap(), subject.stream());
            let used = pool.alloc(300 * MIB, &stream).unwrap();
            let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
            let [scratch, result] = [300, 64].map(|size| pool.alloc(size * MIB, &stream).unwrap());
            used.record_use(&stream);
            drop((used, scratch));
            let graph = capture.end().unwrap();
            let error = pool.alloc(500 * MIB, &stream).unwrap_err();
            assert_eq!(error.out_of_memory().map(|report| report.graph_bytes), Some(600 * MIB), "{error}");
            assert_eq!(subject.refused("graphs", &error, Figures::OfTheLimit), Advice::DropGraphs);
            drop((graph, pool.alloc(50 * MIB, &stream).unwrap()));
            subject.device.synchronize().unwrap();
            drop(pool.alloc(500 * MIB, &stream).unwrap());
            drop(result);
        });
    }

    fn a_capture_that_is_open(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let (pool, stream) = (subject.builder().hard_limit(1 << 30).build().unwrap(), subject.stream());
            let other = subject.stream();
            let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
            let scratch = pool.alloc(600 * MIB, &stream).unwrap();
            drop(scratch);
            let error = pool.alloc(500 * MIB, &other).unwrap_err();
            assert_eq!(subject.refused("open_capture", &error, Figures::OfTheLimit), Advice::DropGraphs);
            assert!(error.to_string().contains("end it (an error may have left it open)"), "{error}");
            drop(capture);
            drop(pool.alloc(500 * MIB, &other).unwrap());
        });
    }

    /// The largest holder is not the one that grows.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_leak_of_one_tag(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let _library = OwnAllocation::new(subject.device, subject.all_but(1 << 30));
            let options = subject.builder().conf("handle_bytes_max:32MiB").unwrap();
            let (pool, stream) = (options.build().unwrap(), subject.stream());
            let _weights = alloc_in_scope(&pool, &stream, "weights", 600 * MIB);
            let (_kept, error) = run_steps(&pool, &stream, Some("history"));
            assert_eq!(subject.refused("leak_of_one_tag", &error, Figures::OfTheDevice), Advice::FindTheLeak);
            let growth = error.out_of_memory().unwrap().growth.clone().unwrap();
            assert_eq!(growth.tag.as_deref(), Some("history"), "{error}");
        });
    }

    /// A library of this process, such as cuBLAS, calls `cuMemAlloc` itself. The simulator reports whose memory that is. Of NVIDIA's
    /// libraries only NVML does, which these tests do not use.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn memory_of_this_process_outside_its_pools(driver: &Driver) {
        if gpumem_sim::Sim::of(driver).is_some() {
            allocate_beside_a_library(driver, "own_allocations");
        }
        // SAFETY: the functions are those of `driver`, which lives longer.
        let driver = unsafe { Driver::from_parts(*driver.table(), driver.kind(), None) };
        allocate_beside_a_library(&driver, "allocations_of_unknown_owner");
    }

    /// The other pool cannot release its cached memory, because a small block lies in each part of it.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_fragmented_cache_of_another_pool(driver: &Driver) {
        on_each_backend(driver, |subject| {
            // The driver merges what lies between blocks of the backend `none`.
            if subject.is(BackendKind::None) {
                return;
            }
            let (pool, stream) = (subject.builder().build().unwrap(), subject.stream());
            let _held = subject.fill(&pool, &stream, 1 << 30);
            let other = subject.other().name("loader").build().unwrap();
            let (blocks, _) = until_refused(&other, MIB, &stream);
            let _kept: Vec<_> = blocks.into_iter().step_by(8).collect();
            subject.device.synchronize().unwrap();
            let Err(error) = pool.alloc(850 * MIB, &stream) else { panic!("{}", other.status().unwrap()) };
            assert_eq!(subject.refused("fragmented_other_pool", &error, Figures::OfTheDevice), Advice::FreeTheDevice);
            let status = other.status().unwrap();
            let (used, held) = (Bytes(status.in_use_bytes), Bytes(status.reserved_bytes));
            assert!(error.to_string().contains(&format!("pool loader uses {used} of its {held}")), "{error}");
        });
    }

    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_program_that_wants_too_much(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let (pool, stream) = (subject.builder().build().unwrap(), subject.stream());
            let size_bytes = subject.device.total_bytes() / 10 * 3 / UNIT_BYTES * UNIT_BYTES;
            let (_held, error) = until_refused(&pool, size_bytes, &stream);
            assert_eq!(subject.refused("too_much", &error, Figures::OfTheDevice), Advice::NeedLess);
            assert!(error.to_string().contains(&needed(&error)), "{error}");
        });
    }

    /// The weights alone fill the device.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_device_that_one_tag_fills(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let (pool, stream) = (subject.builder().build().unwrap(), subject.stream());
            let weights = {
                let _scope = pool.scope("weights");
                subject.fill(&pool, &stream, 124 * MIB)
            };
            let _scope = pool.scope("activations");
            let room_bytes = subject.free_bytes() + pool.status().unwrap().cached_bytes;
            // A driver may have somewhat more than it says is free.
            let error = pool.alloc(2 * room_bytes.next_multiple_of(UNIT_BYTES), &stream).unwrap_err();
            assert_eq!(subject.refused("device_full_of_one_tag", &error, Figures::OfTheDevice), Advice::NeedLess);
            let weights = format!("tag `weights` holds {}", Bytes(weights.iter().map(Block::size_bytes).sum()));
            let text = error.to_string();
            assert!(text.contains(&needed(&error)) && text.contains(&weights), "{text}");
        });
    }

    /// A limit above what the device has left cannot be reached by raising it.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_limit_on_a_device_that_is_full(driver: &Driver) {
        on_each_backend(driver, |subject| {
            let stream = subject.stream();
            let other = subject.other().name("other").build().unwrap();
            let _theirs = subject.fill(&other, &stream, 13 * UNIT_BYTES);
            let pool = subject.builder().hard_limit(400 * MIB).build().unwrap();
            let _held = pool.alloc(352 * MIB, &stream).unwrap();
            let error = pool.alloc(148 * MIB, &stream).unwrap_err();
            assert_eq!(subject.refused("limit_on_a_full_device", &error, Figures::OfTheDevice), Advice::FreeTheDevice);
            assert!(error.to_string().contains("exceed the limit as well: raise the limit to 500.000 MiB or more"), "{error}");
        });
    }
}
