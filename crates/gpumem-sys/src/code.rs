//! Names and texts of result codes, without a call of the driver.

use crate::generated::codes::NAMES;
use crate::text::debug_is_display;
use crate::types::CUresult;
use core::fmt;

impl CUresult {
    /// Every result code of `cuda.h`, with its name.
    pub const NAMES: &'static [(Self, &'static str)] = NAMES;

    /// The name of the code in `cuda.h`; `None` for a code of a newer driver.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(code, _)| *code == self).map(|(_, name)| *name)
    }

    /// The meaning of the code, in a few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::CUDA_SUCCESS => "no error",
            Self::CUDA_ERROR_INVALID_VALUE => "an argument is out of range, or a pointer is unknown",
            Self::CUDA_ERROR_OUT_OF_MEMORY => "not enough memory",
            Self::CUDA_ERROR_NOT_INITIALIZED => "cuInit was not called; call it first",
            Self::CUDA_ERROR_DEINITIALIZED => "the driver is shutting down",
            Self::CUDA_ERROR_STUB_LIBRARY => {
                "this is a stub library, not a driver; remove it from the library path"
            }
            Self::CUDA_ERROR_NO_DEVICE => "no GPU was found; check nvidia-smi and CUDA_VISIBLE_DEVICES",
            Self::CUDA_ERROR_INVALID_DEVICE => "no such device; use a number below that of cuDeviceGetCount",
            Self::CUDA_ERROR_INVALID_IMAGE => "the module image is invalid",
            Self::CUDA_ERROR_INVALID_CONTEXT => "no context is current, or it was destroyed",
            Self::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                "the module contains no code for this GPU; compile it for this GPU, or as PTX"
            }
            Self::CUDA_ERROR_INVALID_PTX => "the PTX could not be compiled",
            Self::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                "the PTX is newer than this driver; update the driver, or compile for an older version"
            }
            Self::CUDA_ERROR_INVALID_HANDLE => "invalid handle",
            Self::CUDA_ERROR_NOT_FOUND => "name not found",
            Self::CUDA_ERROR_NOT_READY => "work is still pending",
            Self::CUDA_ERROR_ILLEGAL_ADDRESS => {
                "a kernel accessed an invalid address and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                "a launch needs more resources than the device has; use fewer threads or less shared memory"
            }
            Self::CUDA_ERROR_LAUNCH_FAILED => {
                "a kernel failed and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => "peer access is already enabled",
            Self::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => "peer access is not enabled",
            Self::CUDA_ERROR_CONTEXT_IS_DESTROYED => "the context was destroyed",
            Self::CUDA_ERROR_NOT_PERMITTED => "not permitted",
            Self::CUDA_ERROR_NOT_SUPPORTED => "not supported by this driver or device",
            Self::CUDA_ERROR_SYSTEM_NOT_READY => "the system is not ready",
            Self::CUDA_ERROR_DEVICE_UNAVAILABLE => "the device is busy or unavailable",
            Self::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => "not permitted while a stream captures",
            Self::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => "an earlier error invalidated the capture",
            Self::CUDA_ERROR_UNKNOWN => "unknown error",
            Self::CUDA_ERROR_PROFILER_DISABLED => "a profiler of another kind is attached; run without it",
            Self::CUDA_ERROR_DEVICE_NOT_LICENSED => {
                "the device has no licence; ask the administrator of the virtual GPUs for one"
            }
            Self::CUDA_ERROR_ECC_UNCORRECTABLE => {
                "memory of the GPU failed, and the context is lost; start the process again, and look at `nvidia-smi -q -d ECC`"
            }
            Self::CUDA_ERROR_NVLINK_UNCORRECTABLE => {
                "a link between GPUs failed, and the context is lost; look at `nvidia-smi nvlink --errorcounters`"
            }
            Self::CUDA_ERROR_UNSUPPORTED_LIMIT => "the device does not have this limit; leave it as it is",
            Self::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the two devices cannot access each other's memory; copy through the host"
            }
            Self::CUDA_ERROR_INVALID_GRAPHICS_CONTEXT => {
                "the context of the graphics interface is invalid or not current; make it current first"
            }
            Self::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
                "the driver's compiler of PTX was not found; install libnvidia-ptxjitcompiler, or load machine code"
            }
            Self::CUDA_ERROR_JIT_COMPILATION_DISABLED => {
                "the compilation of PTX is disabled; unset CUDA_DISABLE_PTX_JIT, or load machine code"
            }
            Self::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY => {
                "the device does not run a part of its multiprocessors apart; create the context without that"
            }
            Self::CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC => {
                "the module waits on the device for kernels that it launches there; compile it without cudaDeviceSynchronize on the device"
            }
            Self::CUDA_ERROR_INVALID_SOURCE => {
                "the text is no valid CUDA or PTX; the log of the call names the place"
            }
            Self::CUDA_ERROR_FILE_NOT_FOUND => "a file was not found; check its path",
            Self::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND => {
                "a shared library lacks a function; use the version of it that the program was built for"
            }
            Self::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED => {
                "a shared library could not be initialised; check its version and the memory of the host"
            }
            Self::CUDA_ERROR_OPERATING_SYSTEM => {
                "a call of the operating system failed; look for file descriptors and limits that are used up, and at the kernel's log"
            }
            Self::CUDA_ERROR_ILLEGAL_STATE => {
                "an object is not in the state that the call needs; complete the call that is under way first"
            }
            Self::CUDA_ERROR_LOSSY_QUERY => {
                "the query cannot describe the object completely; use the newer query"
            }
            Self::CUDA_ERROR_LAUNCH_TIMEOUT => {
                "a kernel ran longer than the system allows and the context is lost; make it shorter, or use a GPU without a display"
            }
            Self::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING => {
                "a kernel uses texture modes that exclude each other; compile its modules with one mode"
            }
            Self::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => {
                "the primary context is active already; set its flags before it is first retained"
            }
            Self::CUDA_ERROR_ASSERT => {
                "an assertion of a kernel failed and the context is lost; the standard output names its line"
            }
            Self::CUDA_ERROR_TOO_MANY_PEERS => {
                "a device has access to as many others as it can; disable one first"
            }
            Self::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                "the host memory is registered already; register each range once"
            }
            Self::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => {
                "the host memory is not registered; register it first, and unregister the address that was registered"
            }
            Self::CUDA_ERROR_HARDWARE_STACK_ERROR => {
                "the stack of a kernel's calls overflowed or was overwritten, and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
                "a kernel executed an illegal instruction and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_MISALIGNED_ADDRESS => {
                "a kernel accessed an address that is no multiple of the access's size, and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_INVALID_ADDRESS_SPACE => {
                "a kernel used an address in a kind of memory that the instruction does not take, and the context is lost; compute-sanitizer finds \
                 the kernel"
            }
            Self::CUDA_ERROR_INVALID_PC => {
                "a kernel called an address that is no function and the context is lost; compute-sanitizer finds the kernel"
            }
            Self::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
                "a cooperative launch has more blocks than run at the same time; ask cuOccupancyMaxActiveBlocksPerMultiprocessor for their number"
            }
            Self::CUDA_ERROR_TENSOR_MEMORY_LEAK => {
                "a kernel ended without freeing its tensor memory, and the context is lost; free it before the end"
            }
            Self::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "the driver's library and its kernel module have other versions; restart after the update of the driver"
            }
            Self::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                "this GPU does not run with the compatibility package; remove it, or update the driver"
            }
            Self::CUDA_ERROR_MPS_CONNECTION_FAILED => {
                "the control daemon of MPS does not answer; start nvidia-cuda-mps-control"
            }
            Self::CUDA_ERROR_MPS_RPC_FAILURE => "the server of MPS does not answer; restart it",
            Self::CUDA_ERROR_MPS_SERVER_NOT_READY => "the server of MPS is not ready; try again",
            Self::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED => {
                "MPS has as many clients as it can; end one of them first"
            }
            Self::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => {
                "MPS has as many connections as the device allows; end a client first"
            }
            Self::CUDA_ERROR_MPS_CLIENT_TERMINATED => {
                "the server of MPS ended this client; start the process again"
            }
            Self::CUDA_ERROR_CDP_NOT_SUPPORTED => {
                "the module launches kernels on the device, which is not supported here; launch them from the host"
            }
            Self::CUDA_ERROR_CDP_VERSION_MISMATCH => {
                "modules launch kernels on the device by other versions of CUDA; compile them with one version"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_MERGE => {
                "two captures would become one; let the streams of one capture wait only for its own events"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED => {
                "the capture was begun on another stream; end it on that one"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                "a stream of the capture was not joined; let the first stream wait for an event of each of the others"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => {
                "work in a capture would wait for work outside of it; record the event inside of the capture"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                "the call would wait for a stream that captures; use streams with CU_STREAM_NON_BLOCKING"
            }
            Self::CUDA_ERROR_CAPTURED_EVENT => {
                "the event was recorded in a capture; wait for it there alone, or record it again"
            }
            Self::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => {
                "the capture was begun by another thread; end it there, or begin it as relaxed"
            }
            Self::CUDA_ERROR_TIMEOUT => {
                "the time for a wait is over; wait longer, or look for work that does not end"
            }
            Self::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                "the executable graph cannot become like this graph; instantiate it anew"
            }
            Self::CUDA_ERROR_EXTERNAL_DEVICE => {
                "another device that takes part failed, and the context is lost; look at the log of that device"
            }
            Self::CUDA_ERROR_INVALID_CLUSTER_SIZE => {
                "the device does not run clusters of this size; ask cuOccupancyMaxPotentialClusterSize"
            }
            Self::CUDA_ERROR_FUNCTION_NOT_LOADED => "the kernel is not loaded; load it before the call",
            Self::CUDA_ERROR_INVALID_RESOURCE_TYPE => {
                "the resource is of a kind that the call does not take; pass one of the right kind"
            }
            Self::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => {
                "the resources do not fit together; ask the driver for their parts as it offers them"
            }
            Self::CUDA_ERROR_KEY_ROTATION => {
                "the keys of confidential computing are being replaced; try again"
            }
            Self::CUDA_ERROR_CONTAINED => {
                "an error of the GPU was contained, and the context is lost; start the process again"
            }
            Self::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER => "the call needs a newer driver; update it",
            Self::CUDA_ERROR_MAP_FAILED => "memory could not be mapped; free other memory, or map less",
            Self::CUDA_ERROR_UNMAP_FAILED => {
                "memory could not be unmapped; wait for the work that uses it first"
            }
            Self::CUDA_ERROR_ARRAY_IS_MAPPED => "the array is mapped; unmap it first",
            Self::CUDA_ERROR_ALREADY_MAPPED => "the resource is mapped already; unmap it first",
            Self::CUDA_ERROR_ALREADY_ACQUIRED => "the resource is acquired already; release it first",
            Self::CUDA_ERROR_NOT_MAPPED => "the resource is not mapped; map it first",
            Self::CUDA_ERROR_NOT_MAPPED_AS_ARRAY => {
                "the resource is not mapped as an array; ask for its pointer"
            }
            Self::CUDA_ERROR_NOT_MAPPED_AS_POINTER => {
                "the resource is not mapped as a pointer; ask for its array"
            }
            Self::CUDA_ERROR_PROFILER_NOT_INITIALIZED
            | Self::CUDA_ERROR_PROFILER_ALREADY_STARTED
            | Self::CUDA_ERROR_PROFILER_ALREADY_STOPPED => "the call is for an old profiler; leave it out",
            Self::CUDA_ERROR_CONTEXT_ALREADY_CURRENT | Self::CUDA_ERROR_CONTEXT_ALREADY_IN_USE => {
                "the context is current on a thread already; detach it there first"
            }
            _ => "this code is newer than this library; the release notes of the driver explain it",
        }
    }
}

impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({}): {}", self.0, self.text()),
            None => write!(f, "result code {} ({})", self.0, self.text()),
        }
    }
}

debug_is_display!(CUresult);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names_and_unknown_ones_print_their_number() {
        assert_eq!(CUresult::CUDA_ERROR_OUT_OF_MEMORY.name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(
            CUresult::CUDA_ERROR_OUT_OF_MEMORY.to_string(),
            "CUDA_ERROR_OUT_OF_MEMORY (2): not enough memory"
        );
        assert_eq!(CUresult(4242).name(), None);
        assert!(CUresult(4242).to_string().contains("4242"));
    }

    #[test]
    fn each_code_of_the_header_has_a_text_of_its_own() {
        let unknown = CUresult(4242).text();
        let without: Vec<&str> = CUresult::NAMES
            .iter()
            .filter(|(code, _)| code.text() == unknown)
            .map(|(_, name)| *name)
            .collect();
        assert_eq!(without, [""; 0]);
    }
}
