//! [`KernelSource`]: the text of kernels.

use core::fmt;
use gpumem_pool::sys::text::Shown;

/// Kernels as text, CUDA C++ or PTX. Load them with [`Gpu::compile`](crate::Gpu::compile), on a GPU or on the simulator.
/// [`kernels!`](crate::kernels) declares a text in a `static`.
///
/// ```
/// use gpumem_array::KernelSource;
///
/// let power = 3;
/// let text = format!(
///     r#"extern "C" __global__ void power(float *y, unsigned long long n) {{
///         unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
///         if (i < n) y[i] = __powf(y[i], {power});
///     }}"#
/// );
/// let source = KernelSource::cuda("power", &text).options(&["--use_fast_math"]);
/// # let _ = source;
/// ```
#[derive(Clone, Copy)]
pub struct KernelSource<'a> {
    name: &'a str,
    language: Language,
    text: &'a str,
    options: &'a [&'a str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Cuda,
    Ptx,
}

impl<'a> KernelSource<'a> {
    /// CUDA C++ text, compiled at run time. The name appears in errors.
    #[must_use]
    pub const fn cuda(name: &'a str, text: &'a str) -> Self {
        Self { name, language: Language::Cuda, text, options: &[] }
    }

    /// PTX text. The name appears in errors.
    #[must_use]
    pub const fn ptx(name: &'a str, text: &'a str) -> Self {
        Self { name, language: Language::Ptx, text, options: &[] }
    }

    /// Options of the CUDA compiler, such as `--include-path=…`, `--define-macro=N=4`, `--std=c++17`. The architecture is the device's. PTX
    /// ignores them.
    #[must_use]
    pub const fn options(mut self, options: &'a [&'a str]) -> Self {
        self.options = options;
        self
    }

    /// The name.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The text.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }

    pub(crate) fn language(&self) -> Language {
        self.language
    }

    #[cfg(feature = "nvrtc")]
    pub(crate) fn compiler_options(&self) -> &'a [&'a str] {
        self.options
    }
}

impl fmt::Debug for KernelSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSource")
            .field("name", &Shown::name(self.name()))
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

/// Declares the text of kernels: a `static` [`KernelSource`] for [`Gpu::compile`](crate::Gpu::compile), whose name is that of the `static`.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, LaunchShape, kernels, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// kernels! {
///     /// x = factor · x, in PTX as `nvcc -ptx` makes it of CUDA C++.
///     static SCALE = ptx "
///         .version 7.0 .target sm_70 .address_size 64
///         .visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 n) {
///             .reg .pred %outside; .reg .b32 %i, %n, %b; .reg .b64 %x; .reg .f32 %value, %factor;
///             mov.u32 %i, %ctaid.x;
///             mov.u32 %n, %ntid.x;
///             mov.u32 %b, %tid.x;
///             mad.lo.u32 %i, %i, %n, %b;
///             ld.param.u32 %n, [n];
///             setp.ge.u32 %outside, %i, %n;
///             @%outside ret;
///             ld.param.u64 %x, [x];
///             mad.wide.u32 %x, %i, 4, %x;
///             ld.global.f32 %value, [%x];
///             ld.param.f32 %factor, [factor];
///             mul.f32 %value, %value, %factor;
///             st.global.f32 [%x], %value;
///             ret;
///         }";
/// }
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let scale = gpu.compile(&SCALE)?.function("scale")?;
/// let mut x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
/// let launch = scale.launch(LaunchShape::for_len(x.len())).write(&mut x).scalar(10.0_f32).scalar(2_u32);
/// // SAFETY: the arguments are those of the kernel, and it stays within the two elements.
/// unsafe { launch.enqueue(&gpu)? };
/// assert_eq!(x.to_vec()?, [10.0, 20.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The text is `cuda` or `ptx`, and any constant expression, such as `include_str!("scale.ptx")`. Options of the CUDA compiler follow
/// it: `static SCALE = cuda TEXT, options ["--std=c++17"];`.
#[macro_export]
macro_rules! kernels {
    (
        $(#[$attribute:meta])*
        $visibility:vis static $name:ident = $language:ident $text:expr $(, options [$($option:expr),* $(,)?])?;
    ) => {
        $(#[$attribute])*
        $visibility static $name: $crate::KernelSource<'static> =
            $crate::KernelSource::$language(stringify!($name), $text)$(.options(&[$($option),*]))?;
    };
}
