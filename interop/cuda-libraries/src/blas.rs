//! cuBLAS: products of matrices.

use crate::driver::{Shape, Stream, own};
use std::ffi::{CStr, c_int, c_longlong, c_void};
use std::ptr::null_mut;

/// `cublasStatus_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// `cudaDataType`.
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;

/// `cublasComputeType_t`, by which alpha and beta are halves.
const COMPUTE_16F: c_int = 64;
const COMPUTE_16F_PEDANTIC: c_int = 65;

const TILE: u32 = 16;

pub struct Handle {
    stream: Stream,
}

/// The parameter of the kernels, as in `kernels.cu`.
#[repr(C)]
struct Product {
    a: *const c_void,
    b: *const c_void,
    c: *mut c_void,
    a_stride: c_longlong,
    b_stride: c_longlong,
    c_stride: c_longlong,
    alpha: f64,
    beta: f64,
    rows: c_int,
    columns: c_int,
    depth: c_int,
    a_leading: c_int,
    b_leading: c_int,
    c_leading: c_int,
    a_is_transposed: c_int,
    b_is_transposed: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut Handle) -> Status {
    let new = Box::into_raw(Box::new(Handle { stream: null_mut() }));
    // SAFETY: the caller passes a place for a handle.
    unsafe { handle.write(new) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDestroy_v2(handle: *mut Handle) -> Status {
    // SAFETY: the caller passes a handle of `cublasCreate` for the last time.
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasSetStream_v2(handle: *mut Handle, stream: Stream) -> Status {
    // SAFETY: the caller passes a handle of `cublasCreate` that no other thread uses.
    unsafe { (*handle).stream = stream };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDgemmStridedBatched(
    handle: *mut Handle,
    transa: c_int,
    transb: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f64,
    a: *const c_void,
    lda: c_int,
    stride_a: c_longlong,
    b: *const c_void,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const f64,
    c: *mut c_void,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
) -> Status {
    // SAFETY: the handle and the numbers are the caller's; the pointer mode is that of the host, since nothing here changes it.
    let (stream, alpha, beta) = unsafe { ((*handle).stream, *alpha, *beta) };
    let product = Product {
        a,
        b,
        c,
        a_stride: stride_a,
        b_stride: stride_b,
        c_stride: stride_c,
        alpha,
        beta,
        rows: m,
        columns: n,
        depth: k,
        a_leading: lda,
        b_leading: ldb,
        c_leading: ldc,
        a_is_transposed: c_int::from(transa != 0),
        b_is_transposed: c_int::from(transb != 0),
    };
    launch(c"product_f64", product, batch, stream)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: *mut Handle,
    transa: c_int,
    transb: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    lda: c_int,
    stride_a: c_longlong,
    b: *const c_void,
    b_type: c_int,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute_type: c_int,
    _algorithm: c_int,
) -> Status {
    let kernel = match [a_type, b_type, c_type] {
        [R_32F, R_32F, R_32F] => c"product_f32",
        [R_64F, R_64F, R_64F] => c"product_f64",
        [R_16F, R_16F, R_16F] => c"product_f16",
        [R_16BF, R_16BF, R_16BF] => c"product_bf16",
        _ => return NOT_SUPPORTED,
    };
    let scale = |place: *const c_void| match compute_type {
        // SAFETY: the compute type says what alpha and beta are; they are on the host, since nothing here changes the pointer mode.
        COMPUTE_16F | COMPUTE_16F_PEDANTIC => unsafe { half(*place.cast()) },
        // SAFETY: as above.
        _ if a_type == R_64F => unsafe { *place.cast() },
        // SAFETY: as above.
        _ => f64::from(unsafe { *place.cast::<f32>() }),
    };
    let product = Product {
        a,
        b,
        c,
        a_stride: stride_a,
        b_stride: stride_b,
        c_stride: stride_c,
        alpha: scale(alpha),
        beta: scale(beta),
        rows: m,
        columns: n,
        depth: k,
        a_leading: lda,
        b_leading: ldb,
        c_leading: ldc,
        a_is_transposed: c_int::from(transa != 0),
        b_is_transposed: c_int::from(transb != 0),
    };
    // SAFETY: the handle is the caller's.
    launch(kernel, product, batch, unsafe { (*handle).stream })
}

fn launch(kernel: &CStr, mut product: Product, batch: c_int, stream: Stream) -> Status {
    let [Ok(rows), Ok(columns), Ok(batch)] = [product.rows, product.columns, batch].map(u32::try_from) else {
        return INVALID_VALUE;
    };
    if rows == 0 || columns == 0 || batch == 0 {
        return SUCCESS;
    }
    let Ok(kernel) = own(kernel) else { return EXECUTION_FAILED };
    let grid = [rows.div_ceil(TILE), columns.div_ceil(TILE), batch];
    let shape = Shape { grid, block: [TILE, TILE, 1], shared_bytes: 0 };
    let mut parameters: [*mut c_void; 1] = [(&raw mut product).cast()];
    // SAFETY: the kernel has this one parameter, and accesses the matrices that the caller of cuBLAS describes.
    match unsafe { kernel.launch(&shape, stream, parameters.as_mut_ptr()) } {
        0 => SUCCESS,
        _ => EXECUTION_FAILED,
    }
}

/// The value of a half.
fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        0x1F if fraction == 0.0 => f64::INFINITY,
        0x1F => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if sign == 0 { size } else { -size }
}
