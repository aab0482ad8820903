//! The result codes that the simulator returns, under short names, and the internal `Result` type.

use gpumem_sys::types::CUresult;

/// The result of a call of the driver, before it is converted into a code.
pub(crate) type Answer<T> = Result<T, CUresult>;

pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
pub(crate) const DEINITIALIZED: CUresult = CUresult::CUDA_ERROR_DEINITIALIZED;
pub(crate) const NOT_INITIALIZED: CUresult = CUresult::CUDA_ERROR_NOT_INITIALIZED;
pub(crate) const NO_DEVICE: CUresult = CUresult::CUDA_ERROR_NO_DEVICE;
pub(crate) const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;
pub(crate) const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
pub(crate) const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub(crate) const INVALID_IMAGE: CUresult = CUresult::CUDA_ERROR_INVALID_IMAGE;
pub(crate) const INVALID_PTX: CUresult = CUresult::CUDA_ERROR_INVALID_PTX;
pub(crate) const UNSUPPORTED_PTX_VERSION: CUresult = CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
pub(crate) const NO_BINARY_FOR_GPU: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
pub(crate) const MAP_FAILED: CUresult = CUresult::CUDA_ERROR_MAP_FAILED;
pub(crate) const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;
pub(crate) const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
pub(crate) const NOT_PERMITTED: CUresult = CUresult::CUDA_ERROR_NOT_PERMITTED;
pub(crate) const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
pub(crate) const FILE_NOT_FOUND: CUresult = CUresult::CUDA_ERROR_FILE_NOT_FOUND;
pub(crate) const ILLEGAL_ADDRESS: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: CUresult =
    CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
pub(crate) const HOST_MEMORY_NOT_REGISTERED: CUresult = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
pub(crate) const PEER_ACCESS_UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
pub(crate) const PEER_ACCESS_NOT_ENABLED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
pub(crate) const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;
pub(crate) const ILLEGAL_STATE: CUresult = CUresult::CUDA_ERROR_ILLEGAL_STATE;
pub(crate) const CAPTURE_UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
pub(crate) const CAPTURE_INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
pub(crate) const CAPTURE_MERGE: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE;
pub(crate) const CAPTURE_UNMATCHED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
pub(crate) const CAPTURE_UNJOINED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
pub(crate) const CAPTURE_ISOLATION: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
pub(crate) const CAPTURE_IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
pub(crate) const CAPTURED_EVENT: CUresult = CUresult::CUDA_ERROR_CAPTURED_EVENT;
pub(crate) const CAPTURE_WRONG_THREAD: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: CUresult = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
