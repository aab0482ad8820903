//! The errors of this layer: [`DriverError`] for calls, [`LoadError`] for loading a driver.

use crate::text::{Shown, debug_is_display};
use crate::types::CUresult;
use core::fmt;

/// A CUDA version as the driver encodes it: 13000 is 13.0, 11020 is 11.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(pub u32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A driver call failed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver returned an error code.
    #[error("{call}: {code}")]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// The code that it returned.
        code: CUresult,
    },
    /// The installed driver has no such function; a newer driver has it.
    #[error("this driver has no {call}, which CUDA {since} introduced; update the driver")]
    Missing {
        /// The function that was called.
        call: &'static str,
        /// The CUDA version that introduced it.
        since: CudaVersion,
    },
}

impl DriverError {
    /// Converts a result code into a `Result`, with the name of the call.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] for every code except `CUDA_SUCCESS`.
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

    /// Replaces the result code, if the caller knows a more precise one. An error for a missing function has no code and is unchanged.
    #[must_use]
    pub fn with_code(self, code: CUresult) -> Self {
        match self {
            Self::Failed { call, .. } => Self::Failed { call, code },
            missing => missing,
        }
    }

    /// True if the code is `CUDA_ERROR_OUT_OF_MEMORY`: memory of the device ran out, or of the host for memory that the driver
    /// allocates there. `PoolError::is_out_of_memory` of `gpumem-pool` also knows the calls that return another code for it.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }

    /// True if the driver permits no calls here: the code in a host function (`cuLaunchHostFunc`), and for a few functions
    /// where the system forbids what they do.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        self.code() == CUresult::CUDA_ERROR_NOT_PERMITTED
    }

    /// True if the process or the driver is shutting down, which frees everything that could be freed.
    #[must_use]
    pub fn is_shutdown(&self) -> bool {
        self.code() == CUresult::CUDA_ERROR_DEINITIALIZED
    }
}

/// No driver could be loaded.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No driver library on this machine.
    #[error(
        "no NVIDIA driver on this machine ({}); install one, or set GPUMEM_DRIVER=sim in a program that calls `gpumem_sim::from_env`, \
         which reads it",
        Shown::sentence(.reason)
    )]
    NoLibrary {
        /// The loader's error for each library name that it tried.
        reason: String,
    },
    /// A driver is installed but finds no GPU.
    #[error(
        "the NVIDIA driver finds no GPU ({0}); check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set GPUMEM_DRIVER=sim in a \
         program that calls `gpumem_sim::from_env`, which reads it"
    )]
    NoDevice(DriverError),
    /// A driver is installed but does not initialise.
    #[error(
        "the NVIDIA driver does not start ({0}); check `nvidia-smi`, or set GPUMEM_DRIVER=sim in a program that calls \
         `gpumem_sim::from_env`, which reads it"
    )]
    Start(DriverError),
    /// The drop-in of this project does not start, because a variable of it is unknown or has an invalid value.
    #[error(
        "gpumem's simulator, which GPUMEM_DRIVER=drop-in selects, does not start ({0}); it has printed the reason: correct the variables \
         GPUMEM_SIM_…"
    )]
    StartDropIn(DriverError),
    /// The library with the driver's name is the drop-in of this project.
    #[error(
        "the library found as libcuda is gpumem's simulator, not the vendor's driver; remove it from the library path, or, to use it, \
         set GPUMEM_DRIVER=drop-in and call Driver::from_env, which reads it"
    )]
    Impostor,
    /// The library with the driver's name is not the drop-in of this project.
    #[error(
        "GPUMEM_DRIVER=drop-in selects gpumem's simulator as libcuda, but the library found is another driver; put the folder of \
         `cargo xtask drop-in` first on the library path, or unset GPUMEM_DRIVER"
    )]
    NotDropIn,
    /// The process was forked from one that had opened a driver.
    #[error("{}", crate::fork::REFUSED)]
    Forked,
    /// `GPUMEM_DRIVER` names no driver.
    #[error("invalid GPUMEM_DRIVER={:?}; expected `cuda`, `drop-in` or `sim`", Shown::name(.0))]
    UnknownDriver(String),
    /// `GPUMEM_DRIVER=sim`: [`Driver::from_env`](crate::Driver::from_env) has no simulator, which is in a crate above this one.
    #[error(
        "GPUMEM_DRIVER=sim selects the simulator, which `gpumem_sys::Driver::from_env` does not include; call \
         `gpumem_sim::from_env` (crate gpumem-sim) instead, or unset GPUMEM_DRIVER"
    )]
    SimulatorRequested,
    /// A `GPUMEM_…` variable is unknown or has an invalid value.
    #[error(transparent)]
    Env(#[from] crate::env::EnvError),
}

debug_is_display!(DriverError, LoadError);
