//! The result codes that the simulator gives, under short names, and the `Result` that its parts return.

use gpumem_sys::types::CUresult;

/// What a call of the driver comes to, before it is turned into a code.
pub(super) type Answer<T> = Result<T, CUresult>;

pub(super) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(super) const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
pub(super) const DEINITIALIZED: CUresult = CUresult::CUDA_ERROR_DEINITIALIZED;
pub(super) const NOT_INITIALIZED: CUresult = CUresult::CUDA_ERROR_NOT_INITIALIZED;
pub(super) const NO_DEVICE: CUresult = CUresult::CUDA_ERROR_NO_DEVICE;
pub(super) const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;
pub(super) const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
pub(super) const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub(super) const INVALID_IMAGE: CUresult = CUresult::CUDA_ERROR_INVALID_IMAGE;
pub(super) const INVALID_PTX: CUresult = CUresult::CUDA_ERROR_INVALID_PTX;
pub(super) const UNSUPPORTED_PTX_VERSION: CUresult = CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
pub(super) const NO_BINARY_FOR_GPU: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
pub(super) const MAP_FAILED: CUresult = CUresult::CUDA_ERROR_MAP_FAILED;
pub(super) const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;
pub(super) const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
pub(super) const NOT_PERMITTED: CUresult = CUresult::CUDA_ERROR_NOT_PERMITTED;
pub(super) const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
pub(super) const FILE_NOT_FOUND: CUresult = CUresult::CUDA_ERROR_FILE_NOT_FOUND;
pub(super) const ILLEGAL_ADDRESS: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
pub(super) const HOST_MEMORY_ALREADY_REGISTERED: CUresult =
    CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
pub(super) const HOST_MEMORY_NOT_REGISTERED: CUresult = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
pub(super) const PEER_ACCESS_UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
pub(super) const PEER_ACCESS_NOT_ENABLED: CUresult = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
pub(super) const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;
pub(super) const ILLEGAL_STATE: CUresult = CUresult::CUDA_ERROR_ILLEGAL_STATE;
pub(super) const CAPTURE_UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
pub(super) const CAPTURE_INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
pub(super) const CAPTURE_MERGE: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE;
pub(super) const CAPTURE_UNMATCHED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
pub(super) const CAPTURE_UNJOINED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
pub(super) const CAPTURE_ISOLATION: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
pub(super) const CAPTURE_IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
pub(super) const CAPTURED_EVENT: CUresult = CUresult::CUDA_ERROR_CAPTURED_EVENT;
pub(super) const CAPTURE_WRONG_THREAD: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
pub(super) const GRAPH_EXEC_UPDATE_FAILURE: CUresult = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
