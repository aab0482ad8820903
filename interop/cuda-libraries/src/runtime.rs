//! CUDA's runtime: programs that `nvcc` compiles register their fat binaries before `main`, and launch kernels by the address of a
//! function of the host. candle's are compiled with a default stream for each thread, which the names that end in `_ptsz` stand for.

use crate::driver::{
    Code, Kernel, Library, Shape, Stream, cuMemAlloc_v2, cuMemAllocAsync, cuMemFree_v2, cuMemFreeAsync,
    cuMemcpyAsync, cuMemsetD8Async,
};
use crate::errors::{INVALID_CONFIGURATION, INVALID_DEVICE_FUNCTION, result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, PoisonError};

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Size {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// What `nvcc` puts around a fat binary.
#[repr(C)]
struct Wrapper {
    magic: c_int,
    version: c_int,
    data: *const c_void,
    unused: *const c_void,
}

/// A fat binary, loaded when its first kernel is launched: it is registered before the driver is initialised.
struct Image {
    data: usize,
    library: Option<Library>,
}

/// A function of the host that stands for a kernel.
struct Function {
    /// The place of its image.
    image: usize,
    name: &'static CStr,
    kernel: Option<Kernel>,
}

#[derive(Default)]
struct Registered {
    images: Vec<Image>,
    functions: HashMap<usize, Function>,
}

static REGISTERED: LazyLock<Mutex<Registered>> = LazyLock::new(Mutex::default);

type Configuration = (Size, Size, usize, Stream);

thread_local! {
    /// The launches between `<<<` and their call.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// The stream that a null pointer stands for here.
pub fn of_thread(stream: Stream) -> Stream {
    /// `CU_STREAM_PER_THREAD`.
    const PER_THREAD: Stream = std::ptr::without_provenance_mut(2);
    if stream.is_null() { PER_THREAD } else { stream }
}

impl Registered {
    fn kernel(&mut self, function: *const c_void) -> Result<Kernel, Code> {
        let function = self.functions.get_mut(&(function as usize)).ok_or(INVALID_DEVICE_FUNCTION)?;
        if let Some(kernel) = function.kernel {
            return Ok(kernel);
        }
        let image = self.images.get_mut(function.image).ok_or(INVALID_DEVICE_FUNCTION)?;
        let library = match image.library {
            Some(library) => library,
            // SAFETY: the program registered the image, which is a part of the program.
            None => *image.library.insert(unsafe { Library::load(image.data as *const c_void)? }),
        };
        Ok(*function.kernel.insert(library.kernel(function.name)?))
    }
}

/// The kernel that a function of the host stands for.
pub fn kernel(function: *const c_void) -> Result<Kernel, Code> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).kernel(function)
}

/// Returns a handle: the image's number from one.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFatBinary(wrapper: *const c_void) -> *mut *mut c_void {
    // SAFETY: `nvcc` passes its wrapper.
    let data = unsafe { (*wrapper.cast::<Wrapper>()).data };
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.images.push(Image { data: data as usize, library: None });
    registered.images.len() as *mut *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_image: *mut *mut c_void) {}

/// Images stay loaded: other parts of the program may still run at its end.
#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_image: *mut *mut c_void) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFunction(
    image: *mut *mut c_void,
    function: *const c_void,
    _device_function: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut Size,
    _grid_size: *mut Size,
    _warp_size: *mut c_int,
) {
    // SAFETY: `nvcc` passes a literal.
    let name = unsafe { CStr::from_ptr(name) };
    let function_of = Function { image: (image as usize).wrapping_sub(1), name, kernel: None };
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.functions.insert(function as usize, function_of);
}

/// Called before a managed variable is used; candle has none.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_image: *mut *mut c_void) -> c_char {
    0
}

/// Kernels find their variables without the host; candle does not copy to any.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    _image: *mut *mut c_void,
    _host: *mut c_char,
    _device: *mut c_char,
    _name: *const c_char,
    _is_external: c_int,
    _size_bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Size,
    block: Size,
    shared_bytes: usize,
    stream: Stream,
) -> c_uint {
    CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared_bytes, stream)));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Size,
    block: *mut Size,
    shared_bytes: *mut usize,
    stream: *mut Stream,
) -> Code {
    let Some(last) = CONFIGURATIONS.with_borrow_mut(Vec::pop) else { return result(INVALID_CONFIGURATION) };
    // SAFETY: `nvcc` passes places for all four.
    unsafe {
        grid.write(last.0);
        block.write(last.1);
        shared_bytes.write(last.2);
        stream.write(last.3);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaGetKernel(target: *mut *mut c_void, function: *const c_void) -> Code {
    let (handle, code) = match kernel(function) {
        Ok(kernel) => (kernel.handle(), 0),
        Err(code) => (null_mut(), code),
    };
    // SAFETY: `nvcc` passes a place for the handle.
    unsafe { target.write(handle) };
    result(code)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaLaunchKernel_ptsz(
    kernel: *mut c_void,
    grid: Size,
    block: Size,
    parameters: *mut *mut c_void,
    shared_bytes: usize,
    stream: Stream,
) -> Code {
    if kernel.is_null() {
        return result(INVALID_DEVICE_FUNCTION);
    }
    // SAFETY: the handle is one of `__cudaGetKernel`; the rest is as the program passes it.
    unsafe { launch(Kernel::from_handle(kernel), grid, block, parameters, shared_bytes, stream) }
}

/// # Safety
///
/// Those of [`Kernel::launch`].
unsafe fn launch(
    kernel: Kernel,
    grid: Size,
    block: Size,
    parameters: *mut *mut c_void,
    shared_bytes: usize,
    stream: Stream,
) -> Code {
    let Ok(shared_bytes) = u32::try_from(shared_bytes) else { return result(INVALID_CONFIGURATION) };
    let [grid, block] = [grid, block].map(|size| [size.x, size.y, size.z]);
    // SAFETY: the caller's promise.
    result(unsafe { kernel.launch(&Shape { grid, block, shared_bytes }, of_thread(stream), parameters) })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncSetAttribute(function: *const c_void, attribute: c_int, value: c_int) -> Code {
    // The numbers of `cudaFuncAttribute` and `CUfunction_attribute` are the same.
    result(kernel(function).map_or_else(|code| code, |kernel| kernel.set_attribute(attribute, value)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMalloc(address: *mut u64, size_bytes: usize) -> Code {
    // SAFETY: the caller passes a place for the address.
    result(unsafe { cuMemAlloc_v2(address, size_bytes) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFree(address: u64) -> Code {
    // SAFETY: the driver checks the address.
    result(unsafe { cuMemFree_v2(address) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMallocAsync_ptsz(address: *mut u64, size_bytes: usize, stream: Stream) -> Code {
    // SAFETY: the caller passes a place for the address.
    result(unsafe { cuMemAllocAsync(address, size_bytes, of_thread(stream)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFreeAsync_ptsz(address: u64, stream: Stream) -> Code {
    // SAFETY: the driver checks the address.
    result(unsafe { cuMemFreeAsync(address, of_thread(stream)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemsetAsync_ptsz(address: u64, value: c_int, count: usize, stream: Stream) -> Code {
    // SAFETY: the driver checks the addresses. As in C, a byte is set.
    result(unsafe { cuMemsetD8Async(address, value as u8, count, of_thread(stream)) })
}

/// The driver finds the direction by the addresses.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMemcpyAsync_ptsz(
    target: u64,
    source: u64,
    count: usize,
    _direction: c_int,
    stream: Stream,
) -> Code {
    // SAFETY: the driver checks addresses of devices, and memory of the host is the caller's.
    result(unsafe { cuMemcpyAsync(target, source, count, of_thread(stream)) })
}
