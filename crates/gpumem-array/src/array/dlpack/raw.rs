//! The C structures of DLPack 1.x, as in `dlpack.h`.

use core::ffi::c_void;

/// The version of a tensor. Structures of one major version have one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// The kind of device, such as [`CUDA`].
    pub device_type: i32,
    /// The ordinal of the device.
    pub device_id: i32,
}

/// The element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// The size of a lane.
    pub bits: u8,
    /// The number of lanes of an element.
    pub lanes: u16,
}

/// The elements.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// The memory. Null if there are no elements.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// The number of axes.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// The lengths of the axes.
    pub shape: *mut i64,
    /// The strides of the axes in elements. Null for contiguous elements in row-major order.
    pub strides: *mut i64,
    /// The offset of the first element.
    pub byte_offset: u64,
}

/// The elements with their owner.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version of the structure.
    pub version: DLPackVersion,
    /// A pointer of the producer.
    pub manager_ctx: *mut c_void,
    /// Called once, when the consumer does not use the tensor any more. It frees the structure too.
    pub deleter: Option<unsafe extern "C" fn(tensor: *mut DLManagedTensorVersioned)>,
    /// A set of flags, such as [`READ_ONLY`].
    pub flags: u64,
    /// The elements.
    pub dl_tensor: DLTensor,
}

/// `kDLCUDA`: memory of a device.
pub const CUDA: i32 = 2;
/// `kDLCUDAHost`: pinned host memory.
pub const CUDA_HOST: i32 = 3;
/// `kDLCUDAManaged`: unified memory.
pub const CUDA_MANAGED: i32 = 13;
/// The flag of a tensor that the consumer must not write.
pub const READ_ONLY: u64 = 1;
