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
            _ => "see the driver's documentation",
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
}
