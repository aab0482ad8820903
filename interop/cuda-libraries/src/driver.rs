//! The driver functions that the libraries are built on, and this library's own kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// `CUresult`, `cudaError_t`: zero is success, and the codes of both are the same where they are used here.
pub type Code = c_int;
pub type Stream = *mut c_void;

#[link(name = "cuda")]
unsafe extern "C" {
    fn cuLibraryLoadData(
        library: *mut *mut c_void,
        code: *const c_void,
        options: *const c_void,
        values: *const *const c_void,
        options_count: c_uint,
        library_options: *const c_void,
        library_values: *const *const c_void,
        library_options_count: c_uint,
    ) -> Code;
    fn cuLibraryGetKernel(kernel: *mut *mut c_void, library: *mut c_void, name: *const c_char) -> Code;
    fn cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: *mut c_void, device: c_int) -> Code;
    fn cuLaunchKernel(
        function: *mut c_void,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Stream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
    fn cuKernelGetAttribute(value: *mut c_int, attribute: c_int, kernel: *mut c_void, device: c_int) -> Code;
    pub fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code;
    pub fn cuDeviceGetCount(count: *mut c_int) -> Code;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
    pub fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Code;
    pub fn cuCtxSetCurrent(context: *mut c_void) -> Code;
    pub fn cuCtxGetDevice(device: *mut c_int) -> Code;
    pub fn cuStreamSynchronize(stream: Stream) -> Code;
    pub fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: *mut c_void,
        block_threads: c_int,
        shared_bytes: usize,
        flags: c_uint,
    ) -> Code;
    pub fn cuMemAlloc_v2(address: *mut u64, size_bytes: usize) -> Code;
    pub fn cuMemFree_v2(address: u64) -> Code;
    pub fn cuMemcpyAsync(target: u64, source: u64, count: usize, stream: Stream) -> Code;
    pub fn cuMemAllocAsync(address: *mut u64, size_bytes: usize, stream: Stream) -> Code;
    pub fn cuMemFreeAsync(address: u64, stream: Stream) -> Code;
    pub fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Stream) -> Code;
}

/// A loaded image. It stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Library(usize);

impl Library {
    /// Loads PTX or a fat binary.
    ///
    /// # Safety
    ///
    /// The image is complete: a text ends with a zero, a fat binary is as long as it says.
    pub unsafe fn load(image: *const c_void) -> Result<Self, Code> {
        let mut library = null_mut();
        // SAFETY: the caller promises a complete image; there are no options.
        let code =
            unsafe { cuLibraryLoadData(&raw mut library, image, null(), null(), 0, null(), null(), 0) };
        if code == 0 { Ok(Self(library as usize)) } else { Err(code) }
    }

    pub fn kernel(self, name: &CStr) -> Result<Kernel, Code> {
        let mut kernel = null_mut();
        // SAFETY: the library is never unloaded, and the name ends with a zero.
        let code = unsafe { cuLibraryGetKernel(&raw mut kernel, self.0 as *mut c_void, name.as_ptr()) };
        if code == 0 { Ok(Kernel(kernel as usize)) } else { Err(code) }
    }
}

/// A kernel of a [`Library`], for all contexts.
#[derive(Clone, Copy)]
pub struct Kernel(usize);

pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

impl Kernel {
    /// The kernel whose handle was given out by [`Self::handle`].
    pub fn from_handle(handle: *mut c_void) -> Self {
        Self(handle as usize)
    }

    pub fn handle(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// # Safety
    ///
    /// `parameters` points to a pointer for each of the kernel's parameters, and the kernel accesses only what it may.
    pub unsafe fn launch(self, shape: &Shape, stream: Stream, parameters: *mut *mut c_void) -> Code {
        let ([x, y, z], [width, height, depth]) = (shape.grid, shape.block);
        let shared_bytes = shape.shared_bytes;
        // SAFETY: the kernel is never unloaded; the caller answers for parameters and accesses.
        unsafe {
            cuLaunchKernel(
                self.handle(),
                x,
                y,
                z,
                width,
                height,
                depth,
                shared_bytes,
                stream,
                parameters,
                null_mut(),
            )
        }
    }

    /// An attribute on the current context's device.
    pub fn attribute(self, attribute: c_int) -> Result<c_int, Code> {
        let (mut device, mut value) = (0, 0);
        // SAFETY: the places outlive the calls, and the kernel is never unloaded.
        let code = unsafe {
            match cuCtxGetDevice(&raw mut device) {
                0 => cuKernelGetAttribute(&raw mut value, attribute, self.handle(), device),
                code => code,
            }
        };
        if code == 0 { Ok(value) } else { Err(code) }
    }

    pub fn set_attribute(self, attribute: c_int, value: c_int) -> Code {
        let mut device = 0;
        // SAFETY: the place outlives the call, and the kernel is never unloaded.
        unsafe {
            match cuCtxGetDevice(&raw mut device) {
                0 => cuKernelSetAttribute(attribute, value, self.handle(), device),
                code => code,
            }
        }
    }
}

/// A kernel of `kernels.cu`.
pub fn own(name: &CStr) -> Result<Kernel, Code> {
    static LOADED: OnceLock<Result<Library, Code>> = OnceLock::new();
    // SAFETY: the text ends with a zero.
    let loaded = LOADED.get_or_init(|| unsafe { Library::load(TEXT.as_ptr().cast()) });
    (*loaded)?.kernel(name)
}

const TEXT: &str = concat!(include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx")), "\0");
