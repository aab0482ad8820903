//! Memory of the program, registered with the driver.

use super::*;
use gpumem_sim::{Access, AccessKind, FaultKind, Finding};

const READ_ONLY: u32 = 8;

impl Machine {
    /// Registers bytes that outlive the machine's use of them.
    fn register(&self, bytes: &[Cell<u8>], flags: u32) -> u64 {
        let host: *mut c_void = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the tests keep the bytes until they have unregistered them, or until the machine is dropped.
        unsafe { self.cuMemHostRegister_v2(host, bytes.len(), flags).unwrap() };
        bytes.as_ptr() as u64
    }

    fn unregister(&self, bytes: &[Cell<u8>]) {
        // SAFETY: addresses are checked by the driver under test.
        unsafe { self.cuMemHostUnregister(bytes.as_ptr().cast_mut().cast()).unwrap() };
    }
}

fn cells(len: usize) -> Vec<Cell<u8>> {
    vec![Cell::new(1); len]
}

fn names(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(Finding::name).collect()
}

#[test]
fn unregistering_what_queued_work_still_uses_is_a_finding_and_the_work_is_done() {
    for seed in 0..20 {
        let (gpu, bytes) = (seeded(seed), cells(64));
        let (stream, host) = (gpu.stream(), gpu.register(&bytes, 0));
        gpu.fill(stream, host, 7, 64);
        gpu.unregister(&bytes);
        assert_eq!(bytes_of(&bytes), [7; 64]);
        let findings = gpu.sim().take_findings();
        assert_eq!(names(&findings), ["unregistering not ordered after a use"]);
        let Finding::Race { first, second, .. } = &findings[0] else { panic!("{findings:?}") };
        let kind = |access: &Access| access.kind.clone();
        assert_eq!([kind(first), kind(second)], [AccessKind::Memset, AccessKind::Unregister]);
    }
}

#[test]
fn an_unsynchronised_read_is_a_use_too() {
    let (gpu, bytes) = (seeded(1), cells(64));
    let (stream, host, memory) = (gpu.stream(), gpu.register(&bytes, READ_ONLY), gpu.alloc(64));
    gpu.upload_from(stream, memory, host as *const u8, 64);
    gpu.unregister(&bytes);
    assert_eq!(names(&gpu.sim().take_findings()), ["unregistering not ordered after a use"]);
}

#[test]
fn unregistering_after_a_wait_is_no_finding() {
    for wait in [0, 1, 2] {
        let (gpu, bytes) = (seeded(wait), cells(64));
        let (stream, event, host) = (gpu.stream(), gpu.event(), gpu.register(&bytes, 0));
        gpu.fill(stream, host, 7, 64);
        // SAFETY: handles are checked by the driver under test.
        unsafe {
            match wait {
                0 => gpu.cuStreamSynchronize(stream).unwrap(),
                1 => gpu.cuCtxSynchronize().unwrap(),
                _ => {
                    gpu.cuEventRecord(event, stream).unwrap();
                    while gpu.cuEventQuery(event).is_err() {}
                }
            }
        }
        gpu.unregister(&bytes);
        assert_eq!(gpu.sim().report().findings, []);
    }
}

#[test]
fn unregistering_is_no_wait_for_other_memory() {
    let (gpu, bytes) = (seeded(3), cells(64));
    let (stream, pinned) = (gpu.stream(), gpu.pinned(16));
    gpu.register(&bytes, 0);
    gpu.fill(stream, pinned.as_ptr() as u64, 7, 16);
    gpu.unregister(&bytes);
    gpu.sim().host_reads(pinned.as_ptr(), 16);
    assert_eq!(names(&gpu.sim().take_findings()), ["host access not ordered with the device's"]);
}

#[test]
fn a_write_to_memory_registered_for_reading_only_fails_and_changes_nothing() {
    type Write = fn(&Machine, CUstream, u64, u64) -> Result<(), DriverError>;
    let writes: [Write; 5] = [
        // SAFETY: addresses are checked by the driver under test.
        |gpu, stream, host, _| unsafe { gpu.cuMemsetD8Async(host, 7, 64, stream) },
        // SAFETY: addresses are checked by the driver under test.
        |gpu, stream, host, memory| unsafe { gpu.cuMemcpyAsync(host, memory, 64, stream) },
        // SAFETY: the bytes outlive the machine.
        |gpu, stream, host, memory| unsafe {
            gpu.cuMemcpyDtoHAsync_v2(host as *mut c_void, memory, 64, stream)
        },
        // SAFETY: addresses are checked by the driver under test.
        |gpu, stream, host, _| unsafe { gpu.cuStreamWriteValue32_v2(stream, host.next_multiple_of(4), 7, 0) },
        // SAFETY: addresses are checked by the driver under test.
        |gpu, stream, host, memory| unsafe {
            gpu.cuMemcpyPeerAsync(host, gpu.context, memory, gpu.context, 64, stream)
        },
    ];
    for (index, write) in writes.into_iter().enumerate() {
        let (gpu, bytes) = (seeded(index as u64), cells(64));
        let (stream, memory) = (gpu.stream(), gpu.alloc(64));
        gpu.fill(stream, memory, 7, 64);
        let host = gpu.register(&bytes, READ_ONLY);
        gpu.upload_from(stream, memory, host as *const u8, 64);
        gpu.fill(stream, memory, 7, 64);
        gpu.sync(stream);
        write(&gpu, stream, host, memory).unwrap();
        assert_eq!(code(gpu.try_sync(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "{index}");
        assert_eq!(bytes_of(&bytes), [1; 64], "{index}");
        let findings = gpu.sim().report().findings;
        let is_reported = matches!(findings[..], [Finding::Fault { kind: FaultKind::ReadOnly, .. }]);
        assert!(is_reported && findings[0].to_string().contains("read-only"), "{index}: {findings:?}");
    }
}
