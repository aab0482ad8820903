//! [`Cublas`]: products of matrices by NVIDIA's library, where a program asks for them.

use crate::array::{AsView, GpuArray, GpuCow, GpuView};
use crate::element::Element;
use crate::error::ArrayError;
use crate::expression::Factor;
use crate::gpu::Gpu;
use crate::layout::{ElementOrder, Layout};
use ::cudarc::cublas::sys::cublasComputeType_t::{
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F,
};
use ::cudarc::cublas::sys::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT;
use ::cudarc::cublas::sys::cublasOperation_t::{self, CUBLAS_OP_N, CUBLAS_OP_T};
use ::cudarc::cublas::sys::{
    cublasComputeType_t, cublasCreate_v2, cublasGemmEx, cublasHandle_t, cublasSetStream_v2,
    cublasSetWorkspace_v2, cublasStatus_t, cudaDataType_t, is_culib_present,
};
use core::ffi::c_int;
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::sys::{DriverKind, fork};
use gpumem_pool::{Device, MemoryRange};
use ndarray::{Dimension, Ix1, Ix2};
use std::sync::{Mutex, PoisonError};

/// cuBLAS on the stream of a [`Gpu`].
///
/// [`GpuArray::dot`] always takes the kernels of this crate; a program that wants cuBLAS says so by this type. Both order their sums by the
/// shapes alone, and differently, so results differ in the last bits. Those of cuBLAS also depend on its version and the GPU.
///
/// On the simulator, which does not run NVIDIA's libraries, the kernels of this crate compute the products.
///
/// ```
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::{Cublas, GpuArray, ndarray::array};
///
/// let blas = Cublas::new(&gpu)?;
/// let a = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
/// assert_eq!(blas.dot(&a.t(), &a)?.to_array()?, array![[10.0, 14.0], [14.0, 20.0]]);
/// # Ok::<(), gpumem_array::ArrayError>(())
/// ```
///
/// A handle of cuBLAS is kept for the next `Cublas` on the device, because the library waits for the device when it destroys one.
pub struct Cublas<'g> {
    gpu: &'g Gpu,
    /// `None` on the simulator.
    handle: Option<cublasHandle_t>,
    takes_tf32: bool,
}

/// An element type of products by cuBLAS: `f32`, `f64`, and with the feature `half` `f16` and `bf16`, which are summed as `f32`.
pub trait CublasElement: Factor {
    #[doc(hidden)]
    const CUBLAS_TYPE: cudaDataType_t;
}

impl CublasElement for f32 {
    const CUBLAS_TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_32F;
}
impl CublasElement for f64 {
    const CUBLAS_TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_64F;
}
#[cfg(feature = "half")]
impl CublasElement for half::f16 {
    const CUBLAS_TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_16F;
}
#[cfg(feature = "half")]
impl CublasElement for half::bf16 {
    const CUBLAS_TYPE: cudaDataType_t = cudaDataType_t::CUDA_R_16BF;
}

impl<'g> Cublas<'g> {
    /// Opens the library, which must be on the library path.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Cudarc`] if the library is not installed, or refuses the device.
    /// - [`ArrayError::Pool`] if a driver call fails.
    pub fn new(gpu: &'g Gpu) -> Result<Self, ArrayError> {
        let device = gpu.device();
        let mut blas = Self { gpu, handle: None, takes_tf32: false };
        if device.driver().kind() == DriverKind::Sim {
            return Ok(blas);
        }
        // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
        if !unsafe { is_culib_present() } {
            return Err(unfit("cuBLAS", "no libcublas where cudarc looks for it; install NVIDIA's library"));
        }
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let handle = match Spare::take(device) {
            Some(handle) => handle,
            None => {
                let mut handle = core::ptr::null_mut();
                // SAFETY: `handle` outlives the call, and the context is current.
                check("cublasCreate", unsafe { cublasCreate_v2(&mut handle) })?;
                handle
            }
        };
        blas.handle = Some(handle);
        // SAFETY: no other `Cublas` has the handle, and the stream of a `Gpu` lives as long as the `Gpu`. It queues nothing.
        let set = |raw: CUstream| unsafe { cublasSetStream_v2(handle, raw.cast()) };
        check("cublasSetStream", gpu.stream().queue_work(MemoryRange::NONE, set)?)?;
        Ok(blas)
    }

    /// Rounds the operands of `f32` products to TF32, 10 bits after the point, which tensor cores multiply faster. Without this call, they
    /// are not rounded. On the simulator it changes nothing.
    #[must_use]
    pub fn with_tf32(mut self) -> Self {
        self.takes_tf32 = true;
        self
    }

    /// The product of two matrices, like [`GpuArray::dot`]. It is queued, and the host does not wait. An operand whose rows and columns both
    /// have gaps is copied first. cuBLAS gets 32 MiB of the pool until the product is complete.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Cudarc`] if a call of cuBLAS fails.
    /// - [`ArrayError::TooManyElements`] for lengths above 2³¹ - 1.
    /// - [`ArrayError::Shape`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`]; see [`GpuArray::dot`].
    pub fn dot<T, A, B>(&self, left: &A, right: &B) -> Result<GpuArray<T, Ix2>, ArrayError>
    where
        T: CublasElement,
        A: AsView<Elem = T, Dim = Ix2>,
        B: AsView<Elem = T, Dim = Ix2>,
    {
        let gpu = self.gpu;
        let (left, right) = (left.as_view(), right.as_view());
        let is_empty = left.layout().len() == 0 || right.layout().len() == 0;
        let (Some(handle), false, true) = (self.handle, is_empty, left.ncols() == right.nrows()) else {
            return left.on(gpu).dot(&right);
        };
        left.storage().share(gpu, "dot")?;
        right.storage().share(gpu, "dot")?;
        let (left, right) = (BlasOperand::of(&left, gpu)?, BlasOperand::of(&right, gpu)?);
        let lens = [left.lens[0], left.lens[1], right.lens[1]];
        let too_many = |_| ArrayError::TooManyElements { shape: lens.to_vec() };
        let int = |len: usize| c_int::try_from(len).map_err(too_many);
        let [m, k, n] = [int(lens[0])?, int(lens[1])?, int(lens[2])?];
        let (a_step, b_step) = (int(left.step)?, int(right.step)?);
        let mut result = GpuArray::unwritten(gpu, Layout::row_major::<T>(Ix2(lens[0], lens[2]))?)?;
        let workspace = Layout::row_major::<u8>(Ix1(WORKSPACE_BYTES))?;
        let mut workspace = GpuArray::<u8, Ix1>::unwritten(gpu, workspace)?;
        {
            let (a, b) = (left.elements.view(), right.elements.view());
            let (a, b) = (a.read_on(gpu)?, b.read_on(gpu)?);
            let (c, scratch) = (result.write_on(gpu)?, workspace.write_on(gpu)?);
            let compute = self.compute::<T>();
            let (one, zero) = (Scale::of(1.0, compute), Scale::of(0.0, compute));
            let _bound = gpu.device().bind()?;
            // SAFETY: the handle is alive and used by one thread, because it is not `Send`.
            let status =
                unsafe { cublasSetWorkspace_v2(handle, scratch.address() as *mut _, WORKSPACE_BYTES) };
            check("cublasSetWorkspace", status)?;
            // SAFETY: the lengths and steps are those of the matrices, and the guards have ordered the stream. cuBLAS counts columns first,
            // so the rows of `c` are the columns of the transposed product, `bᵀ · aᵀ`.
            let status = unsafe {
                cublasGemmEx(
                    handle,
                    right.operation,
                    left.operation,
                    n,
                    m,
                    k,
                    one.pointer(),
                    b.address() as *const _,
                    T::CUBLAS_TYPE,
                    b_step,
                    a.address() as *const _,
                    T::CUBLAS_TYPE,
                    a_step,
                    zero.pointer(),
                    c.address() as *mut _,
                    T::CUBLAS_TYPE,
                    n,
                    compute,
                    CUBLAS_GEMM_DFALT,
                )
            };
            check("cublasGemmEx", status)?;
        }
        Ok(result)
    }

    fn compute<T: CublasElement>(&self) -> cublasComputeType_t {
        match T::CUBLAS_TYPE {
            cudaDataType_t::CUDA_R_64F => CUBLAS_COMPUTE_64F,
            cudaDataType_t::CUDA_R_32F if self.takes_tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => CUBLAS_COMPUTE_32F,
        }
    }
}

impl Drop for Cublas<'_> {
    fn drop(&mut self) {
        // Another thread of the parent may have held the list.
        if fork::is_child() {
            return;
        }
        if let Some(handle) = self.handle {
            Spare { device: self.gpu.device().clone(), handle }.keep();
        }
    }
}

/// A handle that no [`Cublas`] has. There are as many as were in use at once.
struct Spare {
    /// Keeps the context.
    device: Device,
    handle: cublasHandle_t,
}

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for Spare {}

static SPARES: Mutex<Vec<Spare>> = Mutex::new(Vec::new());

impl Spare {
    fn keep(self) {
        SPARES.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    fn take(device: &Device) -> Option<cublasHandle_t> {
        let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spares.iter().position(|spare| spare.device == *device)?;
        Some(spares.swap_remove(place).handle)
    }
}

/// A matrix whose rows or columns are contiguous.
struct BlasOperand<'a, T: Element> {
    elements: GpuCow<'a, T, Ix2>,
    lens: [usize; 2],
    /// Between two rows, or between two columns.
    step: usize,
    /// That of cuBLAS, which counts columns first, for the transposed matrix.
    operation: cublasOperation_t,
}

impl<'a, T: Element> BlasOperand<'a, T> {
    fn of(view: &GpuView<'a, T, Ix2>, gpu: &'a Gpu) -> Result<Self, ArrayError> {
        let (rows, columns) = view.raw_dim().into_pattern();
        let mut strides = view.layout().strides();
        let (row, column) = (strides.next().unwrap_or(0), strides.next().unwrap_or(0));
        // The step of an axis with one element does not matter.
        let is_one = |len: usize, step: isize| len == 1 || step == 1;
        let step = |len: usize, step: isize, least: usize| match len {
            1 => Some(least),
            _ => usize::try_from(step).ok().filter(|step| *step >= least),
        };
        let lens = [rows, columns];
        if let (true, Some(step)) = (is_one(columns, column), step(rows, row, columns)) {
            return Ok(Self { elements: GpuCow::View(view.on(gpu)), lens, step, operation: CUBLAS_OP_N });
        }
        if let (true, Some(step)) = (is_one(rows, row), step(columns, column, rows)) {
            return Ok(Self { elements: GpuCow::View(view.on(gpu)), lens, step, operation: CUBLAS_OP_T });
        }
        let elements = view.on(gpu).dense(ElementOrder::Row)?;
        Ok(Self { elements, lens, step: columns, operation: CUBLAS_OP_N })
    }
}

/// A factor in the type that cuBLAS computes with.
enum Scale {
    Single(f32),
    Double(f64),
}

impl Scale {
    fn of(value: f32, compute: cublasComputeType_t) -> Self {
        if compute == CUBLAS_COMPUTE_64F { Self::Double(value.into()) } else { Self::Single(value) }
    }

    fn pointer(&self) -> *const core::ffi::c_void {
        match self {
            Self::Single(value) => core::ptr::from_ref(value).cast(),
            Self::Double(value) => core::ptr::from_ref(value).cast(),
        }
    }
}

fn unfit(object: &'static str, problem: &str) -> ArrayError {
    ArrayError::Cudarc { object, problem: problem.into() }
}

fn check(call: &'static str, status: cublasStatus_t) -> Result<(), ArrayError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(unfit("cuBLAS", &format!("{call} returned {status:?}"))),
    }
}

/// NVIDIA advises this size for Hopper and newer GPUs. With less, cuBLAS chooses slower kernels for some shapes.
const WORKSPACE_BYTES: usize = 32 << 20;

debug_fields!(Cublas<'_>, it, gpu: it.gpu, takes_tf32: it.takes_tf32);
