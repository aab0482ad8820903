//! What can go wrong at this layer: a call that the driver refused, and a driver that could not be had.

use crate::types::CUresult;
use core::fmt;

/// A CUDA version as the driver counts: 13000 is 13.0, 11020 is 11.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(pub u32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A call to the driver that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver refused the call.
    #[error("{call}: {code}")]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// What it returned.
        code: CUresult,
    },
    /// The installed driver has no such function. A newer one has.
    #[error("this driver has no {call}, which CUDA {since} introduced; update the driver")]
    Missing {
        /// The function that was called.
        call: &'static str,
        /// The version that introduced it.
        since: CudaVersion,
    },
}

impl DriverError {
    /// `Ok` for success, else the code with the name of the call.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] for every code but `CUDA_SUCCESS`.
    #[inline]
    pub fn check(call: &'static str, code: CUresult) -> Result<(), Self> {
        if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Self::Failed { call, code }) }
    }

    /// The result code; `CUDA_ERROR_NOT_SUPPORTED` for a missing function.
    #[must_use]
    pub fn code(&self) -> CUresult {
        match self {
            Self::Failed { code, .. } => *code,
            Self::Missing { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        }
    }

    /// Whether the process or the driver is shutting down, so that there is nothing left to give back.
    #[must_use]
    pub fn is_shutdown(&self) -> bool {
        self.code() == CUresult::CUDA_ERROR_DEINITIALIZED
    }
}

/// No driver could be had.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No driver library on this machine.
    #[error(
        "no NVIDIA driver on this machine ({reason}); install one, or set GPUMEM_DRIVER=sim in a program that has the simulator (crate gpumem-sim)"
    )]
    NoLibrary {
        /// What the loader said of each name that it tried.
        reason: String,
    },
    /// A driver is installed but finds no GPU.
    #[error(
        "the NVIDIA driver finds no GPU ({0}); check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set GPUMEM_DRIVER=sim in a program that has the simulator (crate gpumem-sim)"
    )]
    NoDevice(DriverError),
    /// A driver is installed but does not start.
    #[error(
        "the NVIDIA driver does not start ({0}); check `nvidia-smi`, or set GPUMEM_DRIVER=sim in a program that has the simulator (crate gpumem-sim)"
    )]
    Start(DriverError),
    /// The library found under the driver's name is this project's own drop-in.
    #[error(
        "the library found as libcuda is gpumem's simulator, not the vendor's driver; take it off the library path"
    )]
    Impostor,
    /// `GPUMEM_DRIVER` names no driver.
    #[error("GPUMEM_DRIVER={0:?} names no driver; use `cuda` or `sim`")]
    UnknownDriver(String),
    /// `GPUMEM_DRIVER=sim`, which [`Driver::from_env`](crate::Driver::from_env) cannot obey: the simulator is in a crate
    /// above this one.
    #[error(
        "GPUMEM_DRIVER=sim asks for the simulator, which `gpumem_sys::Driver::from_env` does not have; call \
         `gpumem_sim::from_env` (crate gpumem-sim) in its place, or unset GPUMEM_DRIVER"
    )]
    SimulatorRequested,
    /// The environment holds something of ours that can't be used.
    #[error(transparent)]
    Env(#[from] crate::env::EnvError),
}
