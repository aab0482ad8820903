//! [`Verdict`]: what a failed driver call means for the request that made it.
//!
//! This table is the only place that tells a shortage of memory from other failures. Codes that no row names are a failure, or mean
//! that the device is lost ([`is_over`]).
//!
//! | calls | shortage | lack |
//! | --- | --- | --- |
//! | all | `OUT_OF_MEMORY` | `NOT_SUPPORTED`; a missing function |
//! | that allocate, map or open memory | `NOT_READY`, `UNKNOWN` | |
//! | for virtual memory | | `NOT_PERMITTED` |
//! | that create pools of the driver or open them | | `INVALID_VALUE` |
//!
//! Under WSL, the system refuses to make memory resident, and the driver returns `NOT_READY` or `UNKNOWN` for it (microsoft/WSL
//! issue 41176). Both codes mean something else for other calls.

use super::is_over;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Memory is short now. Releasing some may help.
    Shortage,
    /// The device or its driver lacks this way to get memory. Another way may work.
    Lack,
    /// The context is lost or destroyed, or the driver is shutting down.
    Lost,
    /// The call was wrong, or the driver is broken.
    Failure,
}

/// Codes with a meaning of their own for some calls.
struct Row {
    calls: &'static [&'static str],
    codes: &'static [CUresult],
    verdict: Verdict,
}

const ROWS: &[Row] = &[
    Row {
        calls: &[
            "cuMemAlloc_v2",
            "cuMemAllocFromPoolAsync",
            "cuMemAllocManaged",
            "cuMemCreate",
            "cuMemHostAlloc",
            "cuMemMap",
            "cuMemSetAccess",
        ],
        codes: &[CUresult::CUDA_ERROR_NOT_READY, CUresult::CUDA_ERROR_UNKNOWN],
        verdict: Verdict::Shortage,
    },
    Row {
        calls: &["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"],
        codes: &[CUresult::CUDA_ERROR_NOT_PERMITTED],
        verdict: Verdict::Lack,
    },
    Row {
        calls: &["cuMemPoolCreate", "cuMemPoolSetAccess"],
        codes: &[CUresult::CUDA_ERROR_INVALID_VALUE],
        verdict: Verdict::Lack,
    },
];

impl Verdict {
    pub(crate) fn of(error: &DriverError) -> Self {
        let code = error.code();
        match (code, error) {
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, _) => return Self::Shortage,
            (CUresult::CUDA_ERROR_NOT_SUPPORTED, _) => return Self::Lack,
            _ if is_over(code) => return Self::Lost,
            _ => {}
        }
        let DriverError::Failed { call, .. } = error else { return Self::Failure };
        let row = ROWS.iter().find(|row| row.calls.contains(call) && row.codes.contains(&code));
        row.map_or(Self::Failure, |row| row.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_means_what_the_call_gives_it() {
        let of = |call, code| Verdict::of(&DriverError::Failed { call, code });
        for call in ["cuMemCreate", "cuMemSetAccess", "cuMemAlloc_v2", "cuEventCreate"] {
            assert_eq!(of(call, CUresult::CUDA_ERROR_OUT_OF_MEMORY), Verdict::Shortage);
            assert_eq!(of(call, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), Verdict::Lost);
            assert_eq!(of(call, CUresult::CUDA_ERROR_INVALID_VALUE), Verdict::Failure);
        }
        assert_eq!(of("cuMemSetAccess", CUresult::CUDA_ERROR_NOT_READY), Verdict::Shortage);
        assert_eq!(of("cuEventQuery", CUresult::CUDA_ERROR_NOT_READY), Verdict::Failure);
        assert_eq!(of("cuMemPoolCreate", CUresult::CUDA_ERROR_INVALID_VALUE), Verdict::Lack);
        let since = gpumem_sys::CudaVersion(10_020);
        assert_eq!(Verdict::of(&DriverError::Missing { call: "cuMemCreate", since }), Verdict::Lack);
    }

    /// A name that the driver does not have would never apply.
    #[test]
    fn the_rows_name_functions_of_the_driver() {
        for call in ROWS.iter().flat_map(|row| row.calls) {
            assert!(gpumem_sys::Table::SYMBOLS.iter().any(|symbol| symbol.name == *call), "{call}");
        }
    }
}
