//! Borrows of host memory and imported blocks end only when all work that uses them is complete: on every stream, during every
//! capture, and if the driver refuses calls. Work runs only in waits here, and the functions that release memory check whether it
//! has run, so that a wait inside the simulator cannot hide a missing wait of the pool.

#[cfg(all(unix, feature = "backend-caching"))]
use crate::fixture::stand_in;
use gpumem_pool::sys::types::{CUdeviceptr, CUresult, CUstream, CUstreamCaptureMode};
use gpumem_pool::sys::{Driver, Table};
#[cfg(feature = "backend-caching")]
use gpumem_pool::{BackendKind, ExportedBlock, ImportedBlock, Pool};
use gpumem_pool::{
    Capture, CaptureError, CaptureMode, Device, DeviceError, HostMemory, MemoryRange, PoolError, Stream,
};
use gpumem_sim::{Effect, Finding, Rule, Schedule, SimConfig};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(all(unix, feature = "backend-caching"))]
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LEN: usize = 4096;
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

type Unregister = unsafe extern "C" fn(*mut c_void) -> CUresult;
type Unmap = unsafe extern "C" fn(CUdeviceptr, usize) -> CUresult;

/// The driver's own functions, and the first byte of memory at the moment when it was unregistered or unmapped.
static REAL: Mutex<(Option<Unregister>, Option<Unmap>)> = Mutex::new((None, None));
static SEEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Reads the imported memory for [`unmap_and_look`] through another mapping.
static OTHER: Mutex<Option<Box<dyn Fn() -> u8 + Send>>> = Mutex::new(None);

fn lock<T>(place: &'static Mutex<T>) -> MutexGuard<'static, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn look_and_unregister(host: *mut c_void) -> CUresult {
    // SAFETY: only memory of these tests is registered, and it is alive.
    lock(&SEEN).push(unsafe { host.cast::<u8>().read_volatile() });
    let real = lock(&REAL).0.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { real(host) }
}

unsafe extern "C" fn look_and_unmap(address: CUdeviceptr, size: usize) -> CUresult {
    if let Some(look) = lock(&OTHER).take() {
        lock(&SEEN).push(look());
    }
    let real = lock(&REAL).1.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { real(address, size) }
}

/// A machine for one test. Tests run one at a time, because the functions in a table are global.
struct Rig {
    driver: Driver,
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    fn new(rules: &[&str]) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = lock(&ONE_AT_A_TIME);
        lock(&SEEN).clear();
        let config = SimConfig::new().schedule(Schedule::Late);
        // A second device may use the same host memory.
        let config = config.devices(2);
        let rules = rules.iter().map(|rule| rule.parse::<Rule>().unwrap());
        let driver = gpumem_sim::driver(rules.fold(config, SimConfig::rule)).unwrap();
        let install = |table: &mut Table| {
            *lock(&REAL) = (
                table.cuMemHostUnregister.replace(look_and_unregister),
                table.cuMemUnmap.replace(look_and_unmap),
            );
        };
        // SAFETY: the functions call those that they replace.
        let driver = unsafe { driver.with_table(install) };
        let device = Device::new(&driver, 0).unwrap();
        Self { driver, device, _turn: turn }
    }

    fn fill(&self, address: CUdeviceptr, value: u8, stream: CUstream) {
        let _bound = self.device.bind().unwrap();
        // SAFETY: the memory has that many bytes, and its end waits for the stream, which is alive.
        unsafe { self.driver.cuMemsetD8Async(address, value, LEN, stream).unwrap() };
    }

    /// Lends memory in the given form, and fills it with the work of `queue`. Returns the first byte at the moment when the
    /// memory was unregistered, and the memory after the borrow.
    fn through(&self, form: Form, queue: impl FnOnce(CUdeviceptr)) -> (Vec<u8>, Vec<u8>) {
        let mut table = vec![1; LEN];
        match form {
            Form::Scope => {
                self.device.with_host_memory(&mut table, |memory| queue(memory.address())).unwrap()
            }
            Form::Owner => {
                let memory = HostMemory::register(&self.device, table).unwrap();
                queue(memory.address());
                table = memory.into_inner().unwrap();
            }
        }
        (std::mem::take(&mut lock(&SEEN)), table)
    }

    /// Checks that there is no race, nothing is left, and no call was invalid.
    fn assert_clean(self) {
        let Self { driver, device, .. } = &self;
        device.synchronize().unwrap();
        let findings = gpumem_sim::Sim::of(driver).unwrap().take_findings();
        assert!(findings.is_empty(), "{findings:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Scope,
    Owner,
}

/// The kind of the stream with the work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Ours,
    /// The work was queued before the stream began to capture.
    Capturing,
    /// A stream of the pool's crate, dropped right away.
    Dropped,
    Legacy,
    ThisThreads,
    OtherThreads,
    /// A stream of another library that is ordered with the legacy stream.
    ForeignBlocking,
    Foreign,
    ForeignRetired,
    /// A stream of another library whose handles are all dropped.
    ForeignDropped,
}

const EACH: [Whose; 10] = [
    Whose::Ours,
    Whose::Capturing,
    Whose::Dropped,
    Whose::Legacy,
    Whose::ThisThreads,
    Whose::OtherThreads,
    Whose::ForeignBlocking,
    Whose::Foreign,
    Whose::ForeignRetired,
    Whose::ForeignDropped,
];

impl Whose {
    /// True if only a wait for the whole device covers its work.
    fn needs_device(self) -> bool {
        matches!(self, Self::Foreign | Self::ForeignDropped)
    }

    /// Queues a fill. The returned stream must live until the memory ends.
    fn fill(self, rig: &Rig, address: CUdeviceptr, captured: &Stream) -> Option<Stream> {
        let device = &rig.device;
        let foreign = |flags| {
            let _bound = device.bind().unwrap();
            let mut raw = std::ptr::null_mut();
            // SAFETY: a local outlives the call, and the stream lives as long as its context.
            unsafe {
                rig.driver.cuStreamCreate(&mut raw, flags).unwrap();
                Stream::from_raw(device, raw).unwrap()
            }
        };
        let stream = match self {
            Self::Ours | Self::Dropped => Stream::new(device).unwrap(),
            Self::Capturing => captured.clone(),
            Self::Legacy => Stream::legacy(device).unwrap(),
            Self::ThisThreads => Stream::per_thread(device).unwrap(),
            Self::OtherThreads => {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let stream = Stream::per_thread(device).unwrap();
                        rig.fill(address, 7, stream.raw());
                        // The drop of the handle would record a marker here, if possible.
                        std::mem::forget(stream);
                    });
                });
                return None;
            }
            Self::ForeignBlocking => foreign(0),
            Self::Foreign | Self::ForeignRetired | Self::ForeignDropped => foreign(1),
        };
        rig.fill(address, 7, stream.raw());
        match self {
            Self::Dropped | Self::ForeignDropped => return None,
            Self::ForeignRetired => stream.retire().unwrap(),
            _ => {}
        }
        Some(stream)
    }
}

#[test]
fn the_end_waits_for_work_on_any_stream() {
    for (form, whose) in EACH.into_iter().flat_map(|whose| [(Form::Scope, whose), (Form::Owner, whose)]) {
        let rig = Rig::new(&[]);
        let (captured, mut kept) = (Stream::new(&rig.device).unwrap(), None);
        let (seen, table) = rig.through(form, |address| kept = whose.fill(&rig, address, &captured));
        assert_eq!(seen, [7], "{form:?} {whose:?}");
        assert!(table.iter().all(|byte| *byte == 7), "{form:?} {whose:?}");
        rig.assert_clean();
    }
}

/// The borrow ends on the capturing thread. The capture stays valid, unless only a wait for the whole device covers the work.
#[test]
fn the_end_waits_under_a_capture_of_this_thread() {
    for (mode, whose) in MODES.into_iter().flat_map(|mode| EACH.map(|whose| (mode, whose))) {
        for form in [Form::Scope, Form::Owner] {
            let rig = Rig::new(&[]);
            let (captured, mut kept) = (Stream::new(&rig.device).unwrap(), None);
            let mut capture: Option<Capture> = None;
            let (seen, table) = rig.through(form, |address| {
                kept = whose.fill(&rig, address, &captured);
                capture = Some(Capture::begin(&captured, mode).unwrap());
            });
            let context = format!("{form:?} {mode:?} {whose:?}");
            assert_eq!(seen, [7], "{context}");
            assert!(table.iter().all(|byte| *byte == 7), "{context}");
            match capture.unwrap().end() {
                Ok(_graph) => assert!(!whose.needs_device(), "{context}"),
                Err(error) => {
                    assert!(
                        matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::Broken))),
                        "{context}: {error}"
                    );
                    assert!(whose.needs_device(), "{context}");
                }
            }
            // Whether the capture is valid or not, the stream runs work and captures again.
            captured.synchronize().unwrap();
            Capture::begin(&captured, mode).unwrap().end().unwrap();
            rig.assert_clean();
        }
    }
}

/// Another thread captures: its capture stays valid, and is waited for if nothing else covers the work.
#[test]
fn the_end_waits_under_a_capture_of_another_thread() {
    for (mode, whose) in MODES.into_iter().flat_map(|mode| EACH.map(|whose| (mode, whose))) {
        let rig = Rig::new(&[]);
        let (captured, mut kept) = (Stream::new(&rig.device).unwrap(), None);
        let ((begin, may_begin), (begun, has_begun), (end, may_end)) =
            (channel(), channel(), channel::<()>());
        let (seen, ended) = std::thread::scope(|scope| {
            let captured = &captured;
            let other = scope.spawn(move || {
                may_begin.recv().unwrap();
                let capture = Capture::begin(captured, mode).unwrap();
                begun.send(()).unwrap();
                // Ends by itself after a while, in case the borrow's end waits for it.
                let _ = may_end.recv_timeout(Duration::from_millis(30));
                capture.end().map(drop)
            });
            let (seen, _) = rig.through(Form::Scope, |address| {
                kept = whose.fill(&rig, address, captured);
                begin.send(()).unwrap();
                has_begun.recv().unwrap();
            });
            let _it_may_have_ended = end.send(());
            (seen, other.join().unwrap())
        });
        assert_eq!(seen, [7], "{mode:?} {whose:?}");
        ended.unwrap_or_else(|error| panic!("{mode:?} {whose:?}: {error}"));
        rig.assert_clean();
    }
}

/// Another library's capture on another thread, on a new stream or a long-lived one.
struct Others<'a> {
    rig: &'a Rig,
    stream: RawStream,
    mode: CUstreamCaptureMode,
}

#[derive(Clone, Copy)]
struct RawStream(CUstream);

// SAFETY: the driver accepts a stream's handle on any thread.
unsafe impl Send for RawStream {}
// SAFETY: the handle is never dereferenced here.
unsafe impl Sync for RawStream {}

const RAW_MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

impl Rig {
    /// Creates a stream that the pool's crate does not know.
    fn raw_stream(&self, flags: u32) -> RawStream {
        let _bound = self.device.bind().unwrap();
        let mut raw = std::ptr::null_mut();
        // SAFETY: a local outlives the call, and the stream lives as long as its context.
        unsafe { self.driver.cuStreamCreate(&mut raw, flags).unwrap() };
        RawStream(raw)
    }
}

impl Others<'_> {
    /// Captures from within `body` until it ends, or as long as the pool may wait. Returns the result of the end.
    fn during<R>(&self, body: impl FnOnce(&dyn Fn()) -> R) -> (R, CUresult) {
        let ((begin, may_begin), (begun, has_begun)) = (channel(), channel());
        let (end, may_end) = channel::<()>();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let (driver, stream) = (&self.rig.driver, self.stream);
                let _bound = self.rig.device.bind().unwrap();
                may_begin.recv().unwrap();
                // SAFETY: the stream lives as long as its context, which is current.
                unsafe { driver.cuStreamBeginCapture_v2(stream.0, self.mode).unwrap() };
                begun.send(()).unwrap();
                let _by_itself_if_it_is_waited_for = may_end.recv_timeout(Duration::from_millis(50));
                let mut graph = std::ptr::null_mut();
                // SAFETY: a local outlives the call, the stream is alive, and nothing else refers to the graph.
                unsafe {
                    let ended = driver.cuStreamEndCapture(stream.0, &mut graph);
                    if !graph.is_null() {
                        driver.cuGraphDestroy(graph).unwrap();
                    }
                    ended.map_or_else(|error| error.code(), |()| CUresult::CUDA_SUCCESS)
                }
            });
            let done = body(&|| {
                begin.send(()).unwrap();
                has_begun.recv().unwrap();
            });
            let _it_may_have_ended = end.send(());
            (done, other.join().unwrap())
        })
    }
}

/// Markers cover all work of known streams, so a wait for the whole device is unnecessary.
#[test]
fn the_end_breaks_no_capture_of_another_library() {
    let known = [Whose::Ours, Whose::Dropped, Whose::ForeignRetired, Whose::Legacy, Whose::ForeignBlocking];
    let cases = RAW_MODES.into_iter().flat_map(|mode| known.map(|whose| (mode, whose)));
    for (mode, whose) in cases {
        // No marker can be recorded in the legacy stream while a blocking stream captures.
        let flags = if matches!(whose, Whose::Legacy | Whose::ForeignBlocking) { &[1][..] } else { &[0, 1] };
        for (form, flags) in
            [Form::Scope, Form::Owner].into_iter().flat_map(|form| flags.iter().map(move |f| (form, *f)))
        {
            let rig = Rig::new(&[]);
            let captured = Stream::new(&rig.device).unwrap();
            let others = Others { rig: &rig, stream: rig.raw_stream(flags), mode };
            let mut kept = None;
            let ((seen, table), ended) = others.during(|begin| {
                rig.through(form, |address| {
                    kept = whose.fill(&rig, address, &captured);
                    begin();
                })
            });
            let context = format!("{form:?} {mode:?} {whose:?} {flags}");
            assert_eq!(ended, CUresult::CUDA_SUCCESS, "{context}");
            assert_eq!(seen, [7], "{context}");
            assert!(table.iter().all(|byte| *byte == 7), "{context}");
            drop(captured);
            // A query of the legacy stream is refused while a blocking stream captures, and leaves the capture valid.
            let findings = gpumem_sim::Sim::of(&rig.driver).unwrap().take_findings();
            let is_question =
                |finding: &_| matches!(finding, Finding::Refused { call: "cuStreamIsCapturing", .. });
            assert!(findings.iter().all(|finding| flags == 0 && is_question(finding)), "{findings:?}");
            rig.assert_clean();
        }
    }
}

/// Work that a long-lived stream had queued before another library's capture began there, on another thread, has no marker. The
/// pool waits for the end of the capture, whatever its mode.
#[test]
fn the_end_waits_for_a_capture_of_another_library_on_a_long_lived_stream() {
    for (mode, form) in
        RAW_MODES.into_iter().flat_map(|mode| [Form::Scope, Form::Owner].map(|form| (mode, form)))
    {
        let rig = Rig::new(&[]);
        let raw = rig.raw_stream(1);
        // SAFETY: the stream is never destroyed.
        let _stream = unsafe { Stream::from_raw_long_lived(&rig.device, raw.0).unwrap() };
        let others = Others { rig: &rig, stream: raw, mode };
        let ((seen, table), ended) = others.during(|begin| {
            rig.through(form, |address| {
                rig.fill(address, 7, raw.0);
                begin();
            })
        });
        assert_eq!(ended, CUresult::CUDA_SUCCESS, "{form:?} {mode:?}");
        assert_eq!(seen, [7], "{form:?} {mode:?}");
        assert!(table.iter().all(|byte| *byte == 7), "{form:?} {mode:?}");
        rig.assert_clean();
    }
}

/// An owner's wait for another thread's capture has a time limit: after it the owner keeps the buffer and reports it.
#[test]
fn an_owner_that_cannot_wait_keeps_the_buffer_and_reports_it() {
    let rig = Rig::new(&[]);
    let captured = Stream::new(&rig.device).unwrap();
    std::thread::scope(|scope| {
        // Inside of the scope, so that a failing test ends the other thread's wait.
        let ((begun, has_begun), (end, may_end)) = (channel(), channel::<()>());
        let captured = &captured;
        let other = scope.spawn(move || {
            let capture = Capture::begin(captured, CaptureMode::Global).unwrap();
            begun.send(()).unwrap();
            let _the_test_goes_on_or_fails = may_end.recv();
            capture.end().map(drop)
        });
        has_begun.recv().unwrap();
        let memory = HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap();
        let (address, used) = (memory.address(), Whose::Foreign.fill(&rig, memory.address(), captured));
        // The error returns the buffer.
        let error = memory.into_inner().unwrap_err();
        assert!(matches!(error.error(), DeviceError::Driver(_)), "{error}");
        drop(error.into_value());
        assert!(lock(&SEEN).is_empty());
        end.send(()).unwrap();
        other.join().unwrap().unwrap();
        let kept = rig.device.synchronize().unwrap_err();
        let DeviceError::Kept { address: kept_address, size_bytes, .. } = kept else { panic!("{kept}") };
        assert_eq!((kept_address, size_bytes), (address, LEN as u64));
        assert!(kept.to_string().contains("captures of other threads"), "{kept}");
        // The buffer is returned at the first wait that covers its work, also one for another device.
        used.unwrap().synchronize().unwrap();
        let second = Device::new(&rig.driver, 1).unwrap();
        let stream = Stream::new(&second).unwrap();
        {
            let _bound = second.bind().unwrap();
            // SAFETY: the memory is registered until the wait below covers this work.
            unsafe { rig.driver.cuMemsetD8Async(address, 9, LEN, stream.raw()).unwrap() };
        }
        assert!(lock(&SEEN).is_empty());
        rig.device.synchronize().unwrap();
        assert_eq!(*lock(&SEEN), [9]);
        rig.device.synchronize().unwrap();
        assert_eq!(*lock(&SEEN), [9]);
    });
    // The failure is reported once.
    rig.assert_clean();
}

/// No borrow ends early if the driver refuses a call once, or always except for markers.
#[test]
fn a_wait_that_the_driver_refuses_is_repeated() {
    let codes = [999, 700, 201];
    let calls = ["cuCtxSynchronize#1", "cuCtxSynchronize", "cuEventSynchronize", "cuMemHostUnregister#1"];
    for (call, code) in calls.into_iter().flat_map(|call| codes.map(|code| (call, code))) {
        for form in [Form::Scope, Form::Owner] {
            // Without the wait for the context, markers are necessary.
            let both = [format!("{call}=fail:{code}"), format!("cuCtxSynchronize#2=fail:{code}")];
            let rig = Rig::new(&[&both[0], &both[1]]);
            let stream = Stream::new(&rig.device).unwrap();
            let (seen, table) = rig.through(form, |address| rig.fill(address, 7, stream.raw()));
            assert_eq!(seen.first(), Some(&7), "{form:?} {both:?}");
            assert!(table.iter().all(|byte| *byte == 7), "{form:?} {both:?}");
        }
    }
}

/// A call that waits for its own work returns the result of `queue`, however the end of its stream was detected.
#[test]
fn a_call_waits_by_other_ways_where_the_stream_refuses() {
    for refused in ["cuStreamSynchronize=fail:999", "cuStreamSynchronize=fail:700"] {
        let rig = Rig::new(&[refused]);
        let stream = Stream::new(&rig.device).unwrap();
        let mut table = vec![1_u8; LEN];
        let queue =
            |address| stream.run_borrowed("a fill", MemoryRange::NONE, |raw| rig.fill(address, 7, raw));
        let queued = rig.device.with_host_memory(&mut table, |memory| {
            let queued = queue(memory.address());
            let _bound = rig.device.bind().unwrap();
            // SAFETY: the stream is alive.
            (queued, unsafe { rig.driver.cuStreamQuery(stream.raw()) })
        });
        let (queued, is_done) = queued.unwrap();
        queued.unwrap();
        is_done.unwrap();
        assert!(table.iter().all(|byte| *byte == 7), "{refused}");
    }
}

/// A driver that refuses every wait: the owner keeps the buffer.
#[test]
fn an_owner_keeps_the_buffer_where_every_wait_is_refused() {
    let rules = ["cuCtxSynchronize=fail:999", "cuEventSynchronize=fail:999", "cuEventQuery=fail:999"];
    let rig = Rig::new(&rules);
    let stream = Stream::new(&rig.device).unwrap();
    let memory = HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap();
    rig.fill(memory.address(), 7, stream.raw());
    drop(memory);
    assert!(lock(&SEEN).is_empty());
    let refused = HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap_err();
    assert!(matches!(refused.error(), DeviceError::Kept { .. }), "{refused}");
    assert_eq!(refused.into_value().len(), LEN);
    // Empty memory needs no wait: nothing is kept or reported.
    for _ in 0..2 {
        drop(HostMemory::register(&rig.device, Vec::<u8>::new()).unwrap());
    }
}

/// A lost context runs no work: the memory is returned right away. The loss is reported first, because the work may not have run.
#[test]
fn a_lost_device_ends_every_borrow() {
    for form in [Form::Scope, Form::Owner] {
        let rig = Rig::new(&["cuMemsetD8Async#1=lose:700@0"]);
        let stream = Stream::new(&rig.device).unwrap();
        let lose = |address| {
            let _bound = rig.device.bind().unwrap();
            // SAFETY: the memory has that many bytes. The device is lost during this call.
            unsafe { rig.driver.cuMemsetD8Async(address, 7, LEN, stream.raw()).unwrap_err() };
        };
        match form {
            Form::Scope => {
                let ended = rig.device.with_host_memory(&mut [1_u8; LEN], |memory| lose(memory.address()));
                assert!(matches!(ended, Err(DeviceError::DeviceLost(_))), "{ended:?}");
            }
            Form::Owner => {
                let memory = HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap();
                lose(memory.address());
                let lost = memory.into_inner().unwrap_err();
                assert!(matches!(lost.error(), DeviceError::DeviceLost(_)), "{lost}");
                assert_eq!(lost.into_value().into_inner().unwrap(), [1; LEN]);
                // What devices only read is whole.
                let memory = HostMemory::register_read_only(&rig.device, vec![1_u8; LEN]).unwrap_err();
                assert!(matches!(memory.error(), DeviceError::DeviceLost(_)), "{memory}");
            }
        }
    }
}

/// Memory that is registered with one device may be written by the others. Losses from before the registration do not count.
#[test]
fn the_loss_of_another_device_is_an_error_of_each_borrow() {
    let rig = Rig::new(&["cuDeviceGetPCIBusId#1=lose:700@1", "cuDeviceGetPCIBusId#2=lose:700@0"]);
    let second = Device::new(&rig.driver, 1).unwrap();
    let lose = || {
        let mut text = [0; 64];
        // SAFETY: the text has as many bytes, and outlives the call.
        unsafe { rig.driver.cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, 0).unwrap() };
    };
    let is_lost = |error: &DeviceError| matches!(error, DeviceError::DeviceLost(_));
    let register = || HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap();
    let read_only = HostMemory::register_read_only(&rig.device, vec![1_u8; LEN]).unwrap();
    let owned = register();
    let mut table = vec![1_u8; LEN];
    let scope = rig.device.with_host_memory(&mut table, |_| lose());
    assert!(scope.as_ref().is_err_and(is_lost), "{scope:?}");
    assert_eq!(read_only.into_inner().unwrap(), [1; LEN], "devices only read it");
    let lost = owned.into_inner().unwrap_err();
    assert!(is_lost(lost.error()), "{lost}");
    let owned = lost.into_value();
    // The next loss is another error.
    let (again, since) = (register(), register());
    assert_eq!(again.into_inner().unwrap(), [1; LEN]);
    rig.device.with_host_memory(&mut table, |_| ()).unwrap();
    lose();
    for memory in [owned, since] {
        let lost = memory.into_inner().unwrap_err();
        assert!(is_lost(lost.error()), "{lost}");
        assert_eq!(lost.into_value().into_inner().unwrap(), [1; LEN]);
    }
    drop(second);
}

/// The loss of a device that another one waits for is returned once as well, by memory from before the loss and from after it.
#[test]
fn memory_returns_although_its_device_awaits_a_lost_one() {
    let rig = Rig::new(&["cuDeviceGetPCIBusId#1=lose:700@1"]);
    let second = Device::new(&rig.driver, 1).unwrap();
    let [stream, awaited] = [&rig.device, &second].map(|device| Stream::new(device).unwrap());
    let register = || HostMemory::register(&rig.device, vec![1_u8; LEN]).unwrap();
    let before = register();
    {
        let _bound = second.bind().unwrap();
        // SAFETY: the memory has that many bytes, and ends after the work.
        unsafe { rig.driver.cuMemsetD8Async(before.address(), 1, LEN, awaited.raw()).unwrap() };
    }
    stream.wait_for(&awaited).unwrap();
    let mut text = [0; 64];
    // SAFETY: the text has as many bytes, and outlives the call.
    unsafe { rig.driver.cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, 0).unwrap() };
    let lost = before.into_inner().unwrap_err();
    assert!(matches!(lost.error(), DeviceError::DeviceLost(_)), "{lost}");
    assert_eq!(lost.into_value().into_inner().unwrap(), [1; LEN]);
    let lost = register().into_inner().unwrap_err();
    assert!(matches!(lost.error(), DeviceError::AwaitedDeviceLost { ordinal: 0, awaited: 1, .. }), "{lost}");
    assert_eq!(lost.into_value().into_inner().unwrap(), [1; LEN]);
}

#[test]
fn a_panic_inside_the_closure_waits_too() {
    let rig = Rig::new(&[]);
    let stream = Stream::new(&rig.device).unwrap();
    let mut table = vec![1_u8; LEN];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        rig.device.with_host_memory(&mut table, |memory| {
            rig.fill(memory.address(), 7, stream.raw());
            std::panic::resume_unwind(Box::new("on purpose"));
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(*lock(&SEEN), [7]);
    assert!(table.iter().all(|byte| *byte == 7));
    rig.assert_clean();
}

/// Registering and unregistering break no capture, on any thread and in any mode.
#[test]
fn registering_leaves_captures_alone() {
    for mode in MODES {
        let rig = Rig::new(&[]);
        let captured = Stream::new(&rig.device).unwrap();
        let capture = Capture::begin(&captured, mode).unwrap();
        let entries = || {
            let mut table = vec![1_u8; LEN];
            rig.device.with_host_memory(&mut table, |_| ()).unwrap();
            rig.device.with_host_memory_read_only(&table, |_| ()).unwrap();
            drop(HostMemory::register(&rig.device, table.clone()).unwrap());
            drop(HostMemory::register_read_only(&rig.device, table).unwrap());
        };
        entries();
        std::thread::scope(|scope| scope.spawn(entries).join().unwrap());
        capture.end().unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        rig.assert_clean();
    }
}

/// An imported block is unmapped after its work is complete, or not at all.
#[cfg(all(unix, feature = "backend-caching"))]
#[test]
fn an_imported_block_is_unmapped_when_its_work_is_done() {
    for (captures, whose) in
        [false, true].into_iter().flat_map(|captures| EACH.map(|whose| (captures, whose)))
    {
        let rig = Rig::new(&[]);
        let pool = Pool::builder(&rig.device)
            .backend(BackendKind::Caching)
            .conf("exportable:true")
            .unwrap()
            .build()
            .unwrap();
        let captured = Stream::new(&rig.device).unwrap();
        let block = pool.alloc(2 << 20, &captured).unwrap();
        let imported = ImportedBlock::new(&rig.device, block.export().unwrap()).unwrap();
        let (driver, device, address) = (rig.driver.clone(), rig.device.clone(), block.address());
        let look = move || {
            let (_bound, _relaxed) = (device.bind().unwrap(), device.relax().unwrap());
            let mut byte = 0_u8;
            // SAFETY: the local has one byte, and the block is alive.
            unsafe { driver.cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1).unwrap() };
            byte
        };
        let _stream = whose.fill(&rig, imported.address(), &captured);
        let capture = captures.then(|| Capture::begin(&captured, CaptureMode::Global).unwrap());
        *lock(&OTHER) = Some(Box::new(look));
        drop(imported);
        assert_eq!(std::mem::take(&mut *lock(&SEEN)), [7], "{captures} {whose:?}");
        if let Some(capture) = capture {
            assert_eq!(capture.end().is_ok(), !whose.needs_device(), "{whose:?}");
        }
        drop((block, pool));
        rig.assert_clean();
    }
}

/// The drop releases the mappings made before the failure, and nothing else.
#[cfg(all(unix, feature = "backend-caching"))]
#[test]
fn an_import_that_fails_half_way_leaves_nothing() {
    // The first mapping tries the device's virtual memory, the second is the block's.
    let rig = Rig::new(&["cuMemMap#3=fail:2"]);
    let pool = Pool::builder(&rig.device)
        .backend(BackendKind::Caching)
        .conf("exportable:true")
        .unwrap()
        .build()
        .unwrap();
    let block = pool.alloc(2 << 20, &Stream::new(&rig.device).unwrap()).unwrap();
    let refused = ImportedBlock::new(&rig.device, block.export().unwrap()).map(drop);
    assert!(
        matches!(refused, Err(PoolError::Device(DeviceError::Driver(_)) | PoolError::OutOfMemory(_))),
        "{refused:?}"
    );
    drop(ImportedBlock::new(&rig.device, block.export().unwrap()).unwrap());
    rig.assert_clean();
}

/// After a single refusal the block is unmapped later; a permanent one leaves it mapped, and is reported.
#[cfg(all(unix, feature = "backend-caching"))]
#[test]
fn an_imported_block_that_can_not_be_unmapped_is_reported() {
    for (rule, is_kept) in [("cuMemUnmap#2=fail:999", false), ("cuMemUnmap#2+=fail:999", true)] {
        let rig = Rig::new(&[rule]);
        let pool = Pool::builder(&rig.device)
            .backend(BackendKind::Caching)
            .conf("exportable:true")
            .unwrap()
            .build()
            .unwrap();
        let block = pool.alloc(2 << 20, &Stream::new(&rig.device).unwrap()).unwrap();
        drop(ImportedBlock::new(&rig.device, block.export().unwrap()).unwrap());
        let imported = ImportedBlock::new(&rig.device, block.export().unwrap());
        match imported {
            Err(PoolError::Device(DeviceError::Kept { what, .. })) => {
                assert!(is_kept && what == "an imported block")
            }
            other => assert!(other.is_ok() && !is_kept, "{other:?}"),
        }
    }
}

#[cfg(all(unix, feature = "backend-caching"))]
stand_in!(unmap, cuMemUnmap(address: CUdeviceptr, size: usize));

/// The driver refuses for longer than a drop repeats the call. Once it accepts, the wait after the report unmaps the block.
#[cfg(all(unix, feature = "backend-caching"))]
#[test]
fn an_imported_block_that_was_reported_is_unmapped_later() {
    let plain = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: the function calls the one that it replaces, or fails.
    let device = Device::new(&unsafe { plain.with_table(unmap::install) }, 0).unwrap();
    let pool = Pool::builder(&device).backend(BackendKind::Caching).conf("exportable:true").unwrap();
    let pool = pool.build().unwrap();
    let block = pool.alloc(2 << 20, &Stream::new(&device).unwrap()).unwrap();
    let reservation_count = || gpumem_sim::Sim::of(&plain).unwrap().report().reservation_count;
    let before_count = reservation_count();
    let imported = ImportedBlock::new(&device, block.export().unwrap()).unwrap();
    unmap::FAIL_WITH.store(999, Ordering::SeqCst);
    drop(imported);
    unmap::FAIL_WITH.store(0, Ordering::SeqCst);
    assert_eq!(reservation_count(), before_count + 1);
    let kept = device.synchronize().unwrap_err();
    assert!(matches!(kept, DeviceError::Kept { what: "an imported block", .. }), "{kept}");
    device.synchronize().unwrap();
    assert_eq!(reservation_count(), before_count);
}

/// The sizes come from another process: a sum that no address can be is named, instead of a figure that it wraps to.
#[cfg(all(unix, feature = "backend-caching"))]
#[test]
fn an_import_whose_sizes_overflow_is_refused() {
    let rig = Rig::new(&[]);
    let pool = Pool::builder(&rig.device).backend(BackendKind::Caching).conf("exportable:true").unwrap();
    let pool = pool.build().unwrap();
    let block = pool.alloc(2 << 20, &Stream::new(&rig.device).unwrap()).unwrap();
    let refusal = |change: &dyn Fn(&mut ExportedBlock)| {
        let mut exported = block.export().unwrap();
        exported.handles.extend(block.export().unwrap().handles);
        change(&mut exported);
        ImportedBlock::new(&rig.device, exported).unwrap_err().to_string()
    };
    let handles = refusal(&|exported| exported.handles[0].size_bytes = u64::MAX);
    assert!(
        handles.starts_with("the sizes of the exported handles add up to more than 2^64 bytes"),
        "{handles}"
    );
    let range = refusal(&|exported| (exported.offset_bytes, exported.size_bytes) = (1 << 63, 1 << 63));
    assert!(range.starts_with("the offset and the size of the exported block add up to more"), "{range}");
    rig.assert_clean();
}

/// The work on borrowed memory may not have run, so the call does not succeed.
#[test]
fn a_device_lost_in_a_borrow_of_host_memory_is_an_error() {
    let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ILLEGAL_ADDRESS };
    let config = SimConfig::new().schedule(Schedule::Late).rule(Rule::new("cuMemGetInfo", effect).nth(1));
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let mut bytes = [1_u8; 8];
    let lost = device.with_host_memory(&mut bytes, |memory| {
        let _bound = device.bind().unwrap();
        // SAFETY: the memory is as large, and the call waits for the stream.
        unsafe { device.driver().cuMemsetD8Async(memory.address(), 7, 8, stream.raw()).unwrap() };
        assert!(matches!(device.memory_info(), Err(DeviceError::DeviceLost(_))));
    });
    assert!(matches!(lost, Err(DeviceError::DeviceLost(_))), "{lost:?}");
    assert_eq!(bytes, [1; 8]);
}
