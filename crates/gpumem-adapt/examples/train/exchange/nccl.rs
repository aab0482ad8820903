//! NCCL, as cudarc loads it at run time. It reads and writes our arrays through their access guards.

use anyhow::{Context, Result, bail, ensure};
use cudarc::nccl::{result, sys};
use gpumem_adapt::array::ndarray::Ix1;
use gpumem_adapt::array::pool::sys::DriverKind;
use gpumem_adapt::array::{Element, Gpu, GpuArray};
use std::ffi::{CStr, c_int};
use std::fmt;
#[cfg(target_os = "linux")]
use std::os::unix::net::UnixStream;

/// Sets the options of NCCL, for this process and those that it starts. NCCL reads them when it is loaded.
///
/// - `NCCL_NVLS_ENABLE=0`: NCCL then uses no NVLink multicast (NVLS). Multicast objects belong to the fabric that connects the GPUs of a
///   host, so a program that fails with them can take the GPUs from every program of that host.
/// - `NCCL_P2P_DIRECT_DISABLE=1`: within a process, NCCL otherwise lets a device access the arrays of another one. Memory of a pool is open
///   to its own device only, so the access would fail.
///
/// # Safety
///
/// No other thread may run.
pub(crate) unsafe fn set_environment() {
    for (name, value) in [("NCCL_NVLS_ENABLE", "0"), ("NCCL_P2P_DIRECT_DISABLE", "1")] {
        // SAFETY: the caller guarantees that no other thread reads or writes the environment.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Element types of NCCL.
pub(crate) trait DataType {
    const DATA_TYPE: sys::ncclDataType_t;
}

impl DataType for f32 {
    const DATA_TYPE: sys::ncclDataType_t = sys::ncclDataType_t::ncclFloat32;
}

impl DataType for f64 {
    const DATA_TYPE: sys::ncclDataType_t = sys::ncclDataType_t::ncclFloat64;
}

/// A communicator for each rank of this process.
pub(crate) struct Communicators {
    communicators: Vec<Communicator>,
    /// Those of [`rendezvous`](super::rendezvous), if there are other processes.
    #[cfg(target_os = "linux")]
    sockets: Vec<UnixStream>,
    #[cfg(target_os = "linux")]
    has_first: bool,
}

struct Communicator(sys::ncclComm_t);

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: the communicator was created once and is given back once. In contrast to `ncclCommDestroy`, this call does not wait
        // for the other ranks, which may have failed.
        let _ = unsafe { sys::ncclCommAbort(self.0) };
    }
}

/// Returns an error if NCCL cannot be used: on the simulator, or if it is not installed, where cudarc would panic.
pub(crate) fn check(gpu: &Gpu) -> Result<()> {
    let kind = gpu.device().driver().kind();
    ensure!(
        kind == DriverKind::Cuda,
        "--exchange nccl: NCCL needs GPUs, and the driver is a {kind}; use --exchange blocks"
    );
    // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
    let is_installed = unsafe { sys::is_culib_present() };
    ensure!(is_installed, NOT_INSTALLED);
    Ok(())
}

impl Communicators {
    /// Connects the devices of this process.
    pub(crate) fn in_one_process(gpus: &[Gpu]) -> Result<Self> {
        check(&gpus[0])?;
        let ordinals: Vec<c_int> = gpus.iter().map(|gpu| gpu.device().ordinal() as c_int).collect();
        let mut raw = vec![std::ptr::null_mut(); gpus.len()];
        // SAFETY: both arrays have as many elements as there are devices.
        succeed(unsafe {
            sys::ncclCommInitAll(raw.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr())
        })?;
        Ok(Self {
            communicators: raw.into_iter().map(Communicator).collect(),
            #[cfg(target_os = "linux")]
            sockets: Vec::new(),
            #[cfg(target_os = "linux")]
            has_first: true,
        })
    }

    /// Connects this process, which is of a rank, with the others. Rank 0 chooses the name of the group and sends it to them.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_process(
        gpu: &Gpu,
        rank: usize,
        count: usize,
        mut sockets: Vec<UnixStream>,
    ) -> Result<Self> {
        use std::io::{Read, Write};
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        if rank == 0 {
            // SAFETY: the identifier outlives the call.
            succeed(unsafe { sys::ncclGetUniqueId(&mut id) })?;
            for socket in &mut sockets {
                let sent = socket.write_all(bytemuck::cast_slice(&id.internal));
                sent.context("a rank has ended before the training")?;
            }
        } else {
            let received = sockets[0].read_exact(bytemuck::cast_slice_mut(&mut id.internal));
            received.context("rank 0 has ended before the training")?;
        }
        let mut raw = std::ptr::null_mut();
        // NCCL takes the device whose context is current.
        let _bound = gpu.device().bind()?;
        // SAFETY: the pointer outlives the call, and each rank makes this call once with the same identifier and count.
        succeed(unsafe { sys::ncclCommInitRank(&mut raw, count as c_int, id, rank as c_int) })?;
        Ok(Self { communicators: vec![Communicator(raw)], sockets, has_first: rank == 0 })
    }

    /// Gives the communicators back, once no rank uses them. The work of this process must be complete; other processes may still read
    /// memory that NCCL has on the devices of this one.
    pub(crate) fn finish(self) -> Result<()> {
        #[cfg(target_os = "linux")]
        {
            let Self { communicators, mut sockets, has_first } = self;
            super::rendezvous::barrier(&mut sockets, has_first)?;
            drop(communicators);
        }
        Ok(())
    }

    /// Replaces arrays by their sums over all ranks, of this process and others.
    pub(crate) fn sum<T: DataType + Element>(&self, ranks: &mut [Vec<&mut GpuArray<T, Ix1>>]) -> Result<()> {
        let gpus: Vec<Gpu> = ranks.iter().map(|arrays| arrays[0].gpu().clone()).collect();
        // The guards order the streams, and live until the group has ended: only then NCCL has queued its work.
        let mut guards = Vec::with_capacity(ranks.len());
        for (arrays, gpu) in ranks.iter_mut().zip(&gpus) {
            let arrays = arrays.iter_mut().map(|array| array.write_on(gpu));
            guards.push(arrays.collect::<Result<Vec<_>, _>>()?);
        }
        let group = Group::start()?;
        for (guards, communicator) in guards.iter_mut().zip(&self.communicators) {
            for guard in guards {
                let (address, len) = (guard.as_mut_ptr().cast(), guard.shape()[0]);
                let (_bound, stream) = (guard.stream().device().bind()?, guard.stream().raw().cast());
                // SAFETY: the guard gives write access to `len` elements of the type on this stream of the communicator's device.
                succeed(unsafe {
                    let sum = sys::ncclRedOp_t::ncclSum;
                    sys::ncclAllReduce(address, address, len, T::DATA_TYPE, sum, communicator.0, stream)
                })?;
            }
        }
        group.end()
    }
}

impl fmt::Display for Communicators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match result::get_nccl_version() {
            Ok(version) => {
                let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
                write!(f, "NCCL {major}.{minor}.{patch}")
            }
            Err(_) => f.write_str("NCCL"),
        }
    }
}

/// Calls that NCCL queues together. With several devices on one thread, a single call would wait for the others.
struct Group {
    is_open: bool,
}

impl Group {
    fn start() -> Result<Self> {
        // SAFETY: the call has no conditions.
        succeed(unsafe { sys::ncclGroupStart() })?;
        Ok(Self { is_open: true })
    }

    fn end(mut self) -> Result<()> {
        self.is_open = false;
        // SAFETY: the group was started on this thread.
        succeed(unsafe { sys::ncclGroupEnd() })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: the group was started on this thread. An earlier call has failed, whose error is reported.
            let _ = unsafe { sys::ncclGroupEnd() };
        }
    }
}

fn succeed(code: sys::ncclResult_t) -> Result<()> {
    if code == sys::ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: NCCL returns a static string for every code.
    let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(code)) };
    bail!("NCCL: {} ({code:?}); NCCL_DEBUG=WARN makes it print the cause", text.to_string_lossy())
}

const NOT_INSTALLED: &str = "--exchange nccl: the library NCCL (`libnccl.so`) was not found; install `libnccl-dev`, or `pip install \
                             nvidia-nccl-cu12`, link its `libnccl.so.2` as `libnccl.so`, and add the folder of the link to the library \
                             path (`LD_LIBRARY_PATH`); or use --exchange blocks";
