//! [`Verdict`]: the meaning of a failed driver call for its request.
//!
//! Only this table distinguishes a shortage of memory from other failures. All other codes are failures.
//!
//! | calls | shortage | lack | lost |
//! | --- | --- | --- | --- |
//! | all | `OUT_OF_MEMORY` | `NOT_SUPPORTED`; a missing function | the codes of [`is_over`] |
//! | that allocate, register, map or open memory | `NOT_READY`, `UNKNOWN` | | |
//! | for virtual memory | | `NOT_PERMITTED` | |
//! | that create pools of the driver or open them | | `INVALID_VALUE` | |
//!
//! Under WSL, the system refuses to make memory resident, and the driver returns `NOT_READY` or `UNKNOWN` for it (microsoft/WSL
//! issue 41176). Both codes mean something else for other calls.

use super::is_over;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;

/// The meaning of a failed driver call for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Memory is short now. Releasing some may help.
    Shortage,
    /// The device or its driver does not support this way of getting memory. Another way may work.
    Lack,
    /// The context is lost or destroyed, or the driver is shutting down.
    Lost,
    /// The call was wrong, or the driver is broken.
    Failure,
}

/// Codes with a meaning of their own for some calls.
struct SpecialCodes {
    calls: &'static [&'static str],
    codes: &'static [CUresult],
    verdict: Verdict,
}

const ROWS: &[SpecialCodes] = &[
    SpecialCodes {
        calls: &[
            "cuMemAlloc_v2",
            "cuMemAllocFromPoolAsync",
            "cuMemAllocManaged",
            "cuMemCreate",
            "cuMemHostAlloc",
            "cuMemHostRegister_v2",
            "cuMemMap",
            "cuMemSetAccess",
        ],
        codes: &[CUresult::CUDA_ERROR_NOT_READY, CUresult::CUDA_ERROR_UNKNOWN],
        verdict: Verdict::Shortage,
    },
    SpecialCodes {
        calls: &["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"],
        codes: &[CUresult::CUDA_ERROR_NOT_PERMITTED],
        verdict: Verdict::Lack,
    },
    SpecialCodes {
        calls: &["cuMemPoolCreate", "cuMemPoolSetAccess"],
        codes: &[CUresult::CUDA_ERROR_INVALID_VALUE],
        verdict: Verdict::Lack,
    },
];

impl Verdict {
    /// The meaning of an error.
    pub fn of(error: &DriverError) -> Self {
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
    use std::collections::BTreeSet;
    use std::path::Path;

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

    /// Memory functions that this crate and the pool call and that allocate nothing.
    const GET_NONE: &[(&str, &[&str])] = &[
        (
            "frees",
            &[
                "cuMemAddressFree",
                "cuMemFreeAsync",
                "cuMemFreeHost",
                "cuMemFree_v2",
                "cuMemHostUnregister",
                "cuMemPoolDestroy",
                "cuMemPoolTrimTo",
                "cuMemRelease",
                "cuMemUnmap",
            ],
        ),
        ("asks", &["cuMemGetInfo_v2", "cuMemHostGetDevicePointer_v2", "cuMemPoolGetAttribute"]),
        ("changes a setting", &["cuMemAdvise", "cuMemPoolSetAccess", "cuMemPoolSetAttribute"]),
        ("makes a pool or a range without memory", &["cuMemAddressReserve", "cuMemPoolCreate"]),
        ("names memory that is there", &["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"]),
        (
            "queues work",
            &[
                "cuMemPrefetchAsync",
                "cuMemcpyAsync",
                "cuMemsetD16Async",
                "cuMemsetD32Async",
                "cuMemsetD8Async",
            ],
        ),
    ];

    /// A function that a later change calls to get memory needs a row, and a path of the pool's `tests/pool/verdicts.rs`.
    #[test]
    fn every_function_that_gets_memory_has_a_row() {
        let has_row = |call: &str| ROWS[0].calls.contains(&call);
        let gets_none = |call: &str| GET_NONE.iter().any(|(_, calls)| calls.contains(&call));
        let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let texts =
            ["src", "../gpumem-pool/src"].iter().flat_map(|sources_of| sources(&folder.join(sources_of)));
        for text in texts {
            let is_named = |name: &char| name.is_ascii_alphanumeric() || *name == '_';
            for (place, _) in text.match_indices(".cuMem") {
                let call: String = text[place + 1..].chars().take_while(is_named).collect();
                // The other uses of a name ask whether the driver has the function.
                if text[place + 1 + call.len()..].starts_with('(') && found.insert(call.clone()) {
                    wrong.extend((has_row(&call) == gets_none(&call)).then_some(call));
                }
            }
        }
        assert!(found.len() > 25, "{found:?}");
        assert!(wrong.is_empty(), "give each a row or a place in `GET_NONE`, and not both: {wrong:?}");
        let listed = GET_NONE.iter().flat_map(|(_, calls)| *calls).chain(ROWS[0].calls);
        let gone: Vec<_> = listed.filter(|call| !found.contains(**call)).collect();
        assert!(gone.is_empty(), "no longer called: {gone:?}");
    }

    /// The library code below a folder, without comments.
    fn sources(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                found.extend(sources(&path));
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let library = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                let is_code = |line: &&str| !line.trim_start().starts_with("//");
                found.push(library.lines().filter(is_code).collect::<Vec<_>>().join("\n"));
            }
        }
        found
    }

    /// A name that the driver lacks would never apply.
    #[test]
    fn the_rows_name_functions_of_the_driver() {
        for call in ROWS.iter().flat_map(|row| row.calls) {
            assert!(gpumem_sys::Table::SYMBOLS.iter().any(|symbol| symbol.name == *call), "{call}");
        }
    }
}
