//! The part of a Python extension module in Rust that exchanges arrays with PyTorch, CuPy and NumPy: tensors of DLPack, 1.x and legacy,
//! ordered with the streams that Python names. `python/tests/test_dlpack.py` loads this library and passes the tensors on as capsules; an
//! extension module would use pyo3 and the feature `pyo3` of the crate dlpark.
//!
//! `cargo build -p gpumem-array --features sim,dlpack --example python_extension` makes `target/debug/examples/libpython_extension.so`.

#![allow(clippy::print_stderr)] // an extension module would raise exceptions

use gpumem_array::dlpack::dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use gpumem_array::dlpack::dlpark::{Managed, ManagedTensorBase};
use gpumem_array::dlpack::{DlpackArray, DlpackElement};
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Array2, IxDyn};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray, Place};
use std::error::Error;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

static GPU: OnceLock<Gpu> = OnceLock::new();

fn gpu() -> Result<&'static Gpu, Box<dyn Error>> {
    if let Some(gpu) = GPU.get() {
        return Ok(gpu);
    }
    let driver = gpumem_sim::driver_or_sim()?;
    eprintln!("arrays are on {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0)?)?)?;
    Ok(GPU.get_or_init(|| gpu))
}

/// Prints an error, and returns what stands for it.
fn or<T>(result: Result<T, Box<dyn Error>>, fallback: T) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        fallback
    })
}

/// The stream on which imported tensors are used.
#[unsafe(no_mangle)]
pub extern "C" fn extension_stream() -> usize {
    or(gpu().map(|gpu| gpu.stream().raw() as usize), 0)
}

/// The bytes in use by arrays and exported tensors.
#[unsafe(no_mangle)]
pub extern "C" fn extension_in_use_bytes() -> u64 {
    or(gpu().and_then(|gpu| Ok(gpu.pool().status()?.in_use_bytes)), u64::MAX)
}

/// A matrix of `rows` times 3 with the numbers from 0, doubled, for a consumer on a stream that it names as Python does; 0 stands for
/// `None`. `kind` is 0 for device memory, 1 for pinned. Null after an error.
#[unsafe(no_mangle)]
pub extern "C" fn extension_export(rows: usize, kind: i32, stream: i64, is_legacy: bool) -> *mut c_void {
    let export = || match (kind, is_legacy) {
        (0, true) => exported::<DLManagedTensor, _>(gpu()?, rows, stream),
        (0, false) => exported::<DLManagedTensorVersioned, _>(gpu()?, rows, stream),
        (_, true) => exported::<DLManagedTensor, _>(&gpu()?.pinned(), rows, stream),
        (_, false) => exported::<DLManagedTensorVersioned, _>(&gpu()?.pinned(), rows, stream),
    };
    or(export(), null_mut())
}

fn exported<M: ManagedTensorBase, K: Kind>(
    place: &impl Place<Kind = K>,
    rows: usize,
    stream: i64,
) -> Result<*mut c_void, Box<dyn Error>> {
    let host = Array2::from_shape_fn((rows, 3), |(row, column)| (3 * row + column) as f32);
    let mut array = GpuArray::from_array(place, &host)?;
    array.try_mul_assign(2.0)?;
    // SAFETY: Python passes the handle of a stream that it keeps alive while it uses the tensor.
    let stream = unsafe { gpu()?.dlpack_stream((stream != 0).then_some(stream))? };
    if place.gpu().pool().kind() == gpumem_array::pool::MemoryKind::Host {
        // The host reads it without a stream.
        stream.synchronize()?;
    }
    let tensor: Managed<M> = array.into_dlpack(&stream)?;
    Ok(tensor.into_raw().cast())
}

/// The sum of the elements of a tensor, which is deleted. It has been ordered with [`extension_stream`]. Not a number after an error.
///
/// # Safety
///
/// The pointer comes from a capsule of DLPack, which nothing uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_sum(tensor: *mut c_void, is_legacy: bool, is_bool: bool) -> f64 {
    // SAFETY: the caller's promise.
    let sum = || unsafe {
        match (is_legacy, is_bool) {
            (true, false) => sum::<f32, DLManagedTensor>(tensor, f64::from),
            (false, false) => sum::<f32, DLManagedTensorVersioned>(tensor, f64::from),
            (true, true) => sum::<bool, DLManagedTensor>(tensor, |element| f64::from(u8::from(element))),
            (false, true) => {
                sum::<bool, DLManagedTensorVersioned>(tensor, |element| f64::from(u8::from(element)))
            }
        }
    };
    or(sum(), f64::NAN)
}

/// # Safety
///
/// The pointer comes from a capsule of DLPack, which nothing uses any more.
unsafe fn sum<T: DlpackElement, M: ManagedTensorBase + 'static>(
    tensor: *mut c_void,
    number: fn(T) -> f64,
) -> Result<f64, Box<dyn Error>> {
    // SAFETY: the caller's promise.
    let array: DlpackArray<T, IxDyn> =
        unsafe { DlpackArray::from_dlpack(gpu()?, Managed::<M>::from_raw(tensor.cast())?)? };
    Ok(array.view().to_array()?.iter().map(|element| number(*element)).sum())
}
