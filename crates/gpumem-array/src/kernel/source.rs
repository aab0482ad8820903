//! [`KernelSource`]: the text of kernels, and Rust twins of those that have one.
//!
//! GPU and simulator share the declaration. It lists the kernels with twins and the types of their parameters, so both refuse a text and
//! twins that differ when they are loaded.

use crate::error::ArrayError;
use crate::kernel::signature::{Parameter, Signature, Signatures};
use core::fmt;
use core::fmt::Write;
use gpumem_pool::sys::text::Shown;

/// Kernels as text, CUDA C++ or PTX. Load them with [`Gpu::compile`](crate::Gpu::compile), on a GPU or on the simulator.
/// [`kernels!`](crate::kernels) declares a text in a `static`, and may add Rust functions that replace kernels on the simulator.
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
    declared: &'static [DeclaredKernel],
    #[cfg(feature = "sim")]
    twins: &'static [gpumem_sim::Kernel],
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
        Self::new(name, Language::Cuda, text)
    }

    /// PTX text. The name appears in errors.
    #[must_use]
    pub const fn ptx(name: &'a str, text: &'a str) -> Self {
        Self::new(name, Language::Ptx, text)
    }

    const fn new(name: &'a str, language: Language, text: &'a str) -> Self {
        Self {
            name,
            language,
            text,
            options: &[],
            declared: &[],
            #[cfg(feature = "sim")]
            twins: &[],
        }
    }

    /// Options of the CUDA compiler, such as `--include-path=…`, `--define-macro=N=4`, `--std=c++17`. The architecture is the device's. PTX
    /// ignores them.
    #[must_use]
    pub const fn options(mut self, options: &'a [&'a str]) -> Self {
        self.options = options;
        self
    }

    /// For [`kernels!`](crate::kernels).
    #[doc(hidden)]
    #[must_use]
    pub const fn declared(mut self, kernels: &'static [DeclaredKernel]) -> Self {
        self.declared = kernels;
        self
    }

    /// For [`kernels!`](crate::kernels).
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub const fn twins(mut self, twins: &'static [gpumem_sim::Kernel]) -> Self {
        self.twins = twins;
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

    /// True if kernels are declared with twins.
    pub(crate) fn is_declared(&self) -> bool {
        !self.declared.is_empty()
    }

    /// True for PTX without declared kernels.
    pub(crate) fn is_undeclared_ptx(&self) -> bool {
        self.language == Language::Ptx && !self.is_declared()
    }

    pub(crate) fn language(&self) -> Language {
        self.language
    }

    #[cfg(feature = "nvrtc")]
    pub(crate) fn compiler_options(&self) -> &'a [&'a str] {
        self.options
    }

    #[cfg(feature = "sim")]
    pub(crate) fn registered_twins(&self) -> &'static [gpumem_sim::Kernel] {
        self.twins
    }

    /// Restores the declared names of parameters, which the compiler has numbered.
    pub(crate) fn rename(&self, found: &mut Signatures) {
        for kernel in self.declared {
            found.rename(kernel.name, kernel.parameters.iter().map(|parameter| parameter.name));
        }
    }

    /// Compares the declared kernels with those of the text.
    pub(crate) fn check(&self, found: &Signatures) -> Result<(), ArrayError> {
        self.declared.iter().try_for_each(|kernel| {
            let name = kernel.name;
            if !found.has(name) {
                return Err(self.mismatch(name, MISSING.to_owned()));
            }
            if self.language == Language::Ptx && !found.has_code(name) {
                return Err(self.mismatch(name, EMPTY.to_owned()));
            }
            // A signature that is not understood is not compared.
            let signature = found.of(name);
            signature
                .and_then(|signature| kernel.differs(&signature))
                .map_or(Ok(()), |problem| Err(self.mismatch(name, problem)))
        })
    }

    /// Compares the declared kernels with a text that has not been compiled: it has their names, unless a macro joins names.
    pub(crate) fn check_names(&self) -> Result<(), ArrayError> {
        let absent =
            |kernel: &&DeclaredKernel| !self.text.contains("##") && !has_word(self.text, kernel.name);
        self.declared
            .iter()
            .find(absent)
            .map_or(Ok(()), |kernel| Err(self.mismatch(kernel.name, MISSING.to_owned())))
    }

    fn mismatch(&self, kernel: &str, problem: String) -> ArrayError {
        ArrayError::KernelMismatch { source_name: self.name.to_owned(), kernel: kernel.to_owned(), problem }
    }

    /// PTX with the declared signatures and no instructions, which is all that twins need.
    pub(crate) fn stub(&self) -> String {
        let mut text = String::from(".version 7.8\n.target sm_70\n.address_size 64\n");
        for kernel in self.declared {
            let parameter = |p: &KernelParameter| {
                format!(".param .align {} .b8 {}[{}]", p.alignment, p.name, p.size_bytes)
            };
            let parameters: Vec<_> = kernel.parameters.iter().map(parameter).collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, ".visible .entry {}({}) {{ ret; }}", kernel.name, parameters.join(", "));
        }
        text
    }
}

/// The error of PTX whose kernel has no instructions.
pub(crate) fn without_code(source: &str, kernel: &str) -> ArrayError {
    ArrayError::KernelMismatch {
        source_name: source.to_owned(),
        kernel: kernel.to_owned(),
        problem: EMPTY.to_owned(),
    }
}

const MISSING: &str =
    "the text has no kernel of this name; declare it `extern \"C\" __global__`, with the name of its twin";
const EMPTY: &str = "the text has its signature, but no instructions, so that it would do nothing on a GPU; add the compiled kernel";

/// True if the text has the name as a word.
pub(crate) fn has_word(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == name)
}

#[cfg(feature = "sim")]
#[doc(hidden)]
pub use gpumem_sim::{Kernel as Twin, Launch as TwinLaunch};

/// A kernel of a declaration.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct DeclaredKernel {
    name: &'static str,
    parameters: &'static [KernelParameter],
}

/// A parameter of a [`DeclaredKernel`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct KernelParameter {
    name: &'static str,
    size_bytes: usize,
    alignment: usize,
}

impl DeclaredKernel {
    #[must_use]
    pub const fn new(name: &'static str, parameters: &'static [KernelParameter]) -> Self {
        Self { name, parameters }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The parameters, for kernels whose text is not parsed.
    pub(crate) fn signature(&self) -> Signature {
        let parameter = |one: &KernelParameter| {
            let &KernelParameter { name, size_bytes, alignment } = one;
            Parameter { name: name.to_owned(), size_bytes, alignment }
        };
        self.parameters.iter().map(parameter).collect()
    }

    /// The difference from a signature in the text.
    pub(crate) fn differs(&self, found: &[Parameter]) -> Option<String> {
        let ours = self.parameters;
        if ours.len() != found.len() {
            let names: Vec<_> = ours.iter().map(|parameter| parameter.name).collect();
            return Some(format!(
                "the text has {} parameters, and the twin has {} ({}); declare the same",
                found.len(),
                ours.len(),
                names.join(", ")
            ));
        }
        let mut pairs = ours.iter().zip(found).enumerate();
        let (index, (ours, found)) = pairs.find(|(_, (ours, found))| ours.size_bytes != found.size_bytes)?;
        Some(format!(
            "parameter {index} has {} bytes in the text, and {} bytes in the twin ({}); declare the same type",
            found.size_bytes, ours.size_bytes, ours.name
        ))
    }
}

impl KernelParameter {
    #[must_use]
    pub const fn of<T>(name: &'static str) -> Self {
        Self { name, size_bytes: size_of::<T>(), alignment: align_of::<T>() }
    }
}

impl fmt::Debug for KernelSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels: Vec<_> = self.declared.iter().map(|kernel| Shown::name(kernel.name)).collect();
        f.debug_struct("KernelSource")
            .field("name", &Shown::name(self.name()))
            .field("language", &self.language)
            .field("kernels", &kernels)
            .finish_non_exhaustive()
    }
}

/// Declares kernels: their text, and if the program wants them Rust twins for the simulator. The result is a `static` [`KernelSource`]
/// for [`Gpu::compile`](crate::Gpu::compile).
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
///
/// # Twins
///
/// A twin is a Rust function that replaces a kernel on the simulator: it runs in place of the text, whatever the language. The simulator
/// needs one only for CUDA text that it cannot compile, because the feature `nvrtc` is off or the library is not installed. A twin also is
/// faster, but what runs then is not what a GPU gets.
///
/// ```
/// use gpumem_array::kernels;
///
/// kernels! {
///     static SCALE = cuda r#"
///         extern "C" __global__ void scale(float *x, float factor, unsigned n) {
///             unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///             if (i < n) x[i] *= factor;
///         }"#;
///
///     fn scale(launch; x: u64, factor: f32, n: u32) {
///         launch.write::<f32>(x, n as usize)?.iter().for_each(|x| x.set(factor * x.get()));
///     }
/// }
/// # assert!(gpumem_array::example_gpu()?.compile(&SCALE)?.function("scale").is_ok());
/// # Ok::<(), gpumem_array::ArrayError>(())
/// ```
///
/// A twin has the name of its kernel, and its parameters in order, addresses as `u64`. It runs once for a whole launch. `launch` is any
/// name for the `gpumem_sim::Launch`, from which the twin requests its memory ranges; `?` ends the twin with a fault. Without the feature
/// `sim` the bodies of twins are not compiled.
///
/// Names, numbers of parameters and their sizes are compared with the text when it is loaded
/// ([`ArrayError::KernelMismatch`](crate::ArrayError::KernelMismatch)), on GPUs and on the simulator. PTX with only the signature of a
/// kernel that has a twin is refused too: it would do nothing on a GPU. Of CUDA text that is not compiled, only the names are compared.
#[macro_export]
macro_rules! kernels {
    (
        $(#[$attribute:meta])*
        $visibility:vis static $name:ident = $language:ident $text:expr $(, options [$($option:expr),* $(,)?])?;
        $(fn $kernel:ident($launch:ident $(; $($parameter:ident: $type:ty),* $(,)?)?) $body:block)*
    ) => {
        $(#[$attribute])*
        $visibility static $name: $crate::KernelSource<'static> = $crate::__with_twins! {
            $crate::KernelSource::$language(stringify!($name), $text)
                $(.options(&[$($option),*]))?
                .declared(const { &[$($crate::DeclaredKernel::new(
                    stringify!($kernel),
                    const { &[$($($crate::KernelParameter::of::<$type>(stringify!($parameter))),*)?] },
                )),*] });
            $(fn $kernel($launch $($(; $parameter: $type)*)?) $body)*
        };
    };
}

#[cfg(feature = "sim")]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_twins {
    ($source:expr; $(fn $kernel:ident($launch:ident $(; $parameter:ident: $type:ty)*) $body:block)*) => {
        $source.twins(const { &[$($crate::Twin::new(
            stringify!($kernel),
            |$launch: &mut $crate::TwinLaunch<'_>| {
                $(let $parameter = $launch.arg::<$type>()?;)*
                let () = $body;
                Ok(())
            },
        )),*] })
    };
}

#[cfg(not(feature = "sim"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __with_twins {
    ($source:expr; $($twins:tt)*) => {
        $source
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: &[DeclaredKernel] = &[DeclaredKernel::new(
        "axpy",
        &[
            KernelParameter::of::<u64>("y"),
            KernelParameter::of::<f32>("a"),
            KernelParameter::of::<[u64; 3]>("s"),
        ],
    )];

    fn problem(ptx: &str) -> String {
        let source = KernelSource::ptx("AXPY", ptx).declared(KERNELS);
        source.check(&Signatures::parse(ptx)).unwrap_err().to_string()
    }

    #[test]
    fn a_text_that_differs_is_refused() {
        let fits = "(.param .u64 y, .param .f32 a, .param .align 8 .b8 s[24])";
        let text = |parameters: &str, body: &str| format!(".visible .entry axpy{parameters} {body}");
        let source = text(fits, "{ mov.u32 %r1, %tid.x; ret; }");
        KernelSource::ptx("AXPY", &source).declared(KERNELS).check(&Signatures::parse(&source)).unwrap();

        assert!(problem("").contains("no kernel of this name"));
        assert!(
            problem(&text("(.param .u64 y)", "{ trap; }"))
                .contains("1 parameters, and the twin has 3 (y, a, s)")
        );
        let wide = text("(.param .u64 y, .param .f64 a, .param .align 8 .b8 s[24])", "{ trap; }");
        assert!(problem(&wide).contains("parameter 1 has 8 bytes in the text, and 4 bytes in the twin (a)"));
        for body in ["{ ret; }", "{ }", ".maxntid 256, 1, 1 { ret; }", ";", ""] {
            assert!(problem(&text(fits, body)).contains("no instructions"), "{body}");
        }
    }

    #[test]
    fn a_stub_has_the_declared_signatures() {
        let source = KernelSource::cuda("AXPY", "").declared(KERNELS);
        let stub = Signatures::parse(&source.stub());
        let sizes: Vec<_> =
            stub.of("axpy").unwrap().iter().map(|p| (p.name.clone(), p.size_bytes, p.alignment)).collect();
        assert_eq!(sizes, [("y".to_owned(), 8, 8), ("a".to_owned(), 4, 4), ("s".to_owned(), 24, 8)]);
        source.check(&stub).unwrap();
    }

    #[test]
    fn names_in_a_text_that_is_not_compiled_are_words() {
        let names = |text: &str| KernelSource::cuda("AXPY", text).declared(KERNELS).check_names();
        names("extern \"C\" __global__ void axpy(float *y) {}").unwrap();
        names("#define K(x) __global__ void a##x()\nK(xpy) {}").unwrap();
        assert!(names("__global__ void saxpy() {}").is_err());
    }
}
