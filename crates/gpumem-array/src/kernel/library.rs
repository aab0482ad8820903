//! [`Library`]: the kernels of this crate on one device, loaded at their first use.
//!
//! Each family and element type is a separate module, because the driver compiles whole modules.

use crate::element::{Float, Kind};
use crate::error::ArrayError;
use crate::kernel::{Function, Module};
use core::ffi::c_void;
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{Device, not_forked};
use std::sync::{Mutex, OnceLock, PoisonError};

/// This crate's kernels on one device.
pub(crate) struct Library {
    device: Device,
    /// Indexed by [`Kind`] and [`Kernel`].
    functions: [[OnceLock<Function>; Kernel::ALL.len()]; Kind::ALL.len()],
    /// Indexed by [`StridedKernel`], for units of 1, 2, 4, 8 and 16 bytes.
    strided: [[OnceLock<Function>; 5]; StridedKernel::NAMES.len()],
    strided_module: OnceLock<Module>,
    /// Fills with patterns, by stores of 1, 2, 4, 8 and 16 bytes.
    patterns: [OnceLock<Function>; 5],
    fill_module: OnceLock<Module>,
    random: [OnceLock<Function>; Random::NAMES.len()],
    random_module: OnceLock<Module>,
    unpack: OnceLock<Function>,
    pack_module: OnceLock<Module>,
    /// By the type of the elements, and the type that they are converted to.
    casts: [[OnceLock<Function>; Float::COUNT]; Float::COUNT],
    cast_module: OnceLock<Module>,
    /// For units of 1, 2, 4, 8 and 16 bytes.
    gathers: [OnceLock<Function>; 5],
    gather_module: OnceLock<Module>,
    modules: Mutex<[[Option<Module>; FAMILIES.len()]; Kind::ALL.len()]>,
}

/// A kernel that exists for each numeric type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Add,
    Sub,
    Mul,
    Div,
    AddScalar,
    SubScalar,
    MulScalar,
    DivScalar,
    ScalarSub,
    ScalarDiv,
    Sum,
    Dot,
    RowsWarp,
    RowsBlock,
    RowsSum,
    Columns,
    ColumnsSum,
    TriangleRows,
    TriangleColumns,
}

impl Kernel {
    /// In the order of the declaration, with the family and the name between `gpumem_` and the type.
    const ALL: [(Self, usize, &'static str); 19] = [
        (Self::Add, 0, "add"),
        (Self::Sub, 0, "sub"),
        (Self::Mul, 0, "mul"),
        (Self::Div, 0, "div"),
        (Self::AddScalar, 0, "add_scalar"),
        (Self::SubScalar, 0, "sub_scalar"),
        (Self::MulScalar, 0, "mul_scalar"),
        (Self::DivScalar, 0, "div_scalar"),
        (Self::ScalarSub, 0, "scalar_sub"),
        (Self::ScalarDiv, 0, "scalar_div"),
        (Self::Sum, 1, "sum"),
        (Self::Dot, 1, "dot"),
        (Self::RowsWarp, 2, "rows_warp"),
        (Self::RowsBlock, 2, "rows_block"),
        (Self::RowsSum, 2, "rows_sum"),
        (Self::Columns, 2, "columns"),
        (Self::ColumnsSum, 2, "columns_sum"),
        (Self::TriangleRows, 3, "triangle_rows"),
        (Self::TriangleColumns, 3, "triangle_columns"),
    ];
}

/// The PTX of each family, by [`Kind`].
const FAMILIES: [[&str; 4]; 4] = [
    [
        include_str!("../../kernels/elementwise.f32.ptx"),
        include_str!("../../kernels/elementwise.f64.ptx"),
        include_str!("../../kernels/elementwise.i32.ptx"),
        include_str!("../../kernels/elementwise.i64.ptx"),
    ],
    [
        include_str!("../../kernels/reduce.f32.ptx"),
        include_str!("../../kernels/reduce.f64.ptx"),
        include_str!("../../kernels/reduce.i32.ptx"),
        include_str!("../../kernels/reduce.i64.ptx"),
    ],
    [
        include_str!("../../kernels/matvec.f32.ptx"),
        include_str!("../../kernels/matvec.f64.ptx"),
        include_str!("../../kernels/matvec.i32.ptx"),
        include_str!("../../kernels/matvec.i64.ptx"),
    ],
    [
        include_str!("../../kernels/triangle.f32.ptx"),
        include_str!("../../kernels/triangle.f64.ptx"),
        include_str!("../../kernels/triangle.i32.ptx"),
        include_str!("../../kernels/triangle.i64.ptx"),
    ],
];
const FILL: &str = include_str!("../../kernels/fill.ptx");
const STRIDED: &str = include_str!("../../kernels/strided.ptx");
const RANDOM: &str = include_str!("../../kernels/random.ptx");
const PACK: &str = include_str!("../../kernels/pack.ptx");
const CAST: &str = include_str!("../../kernels/cast.ptx");
const GATHER: &str = include_str!("../../kernels/gather.ptx");

/// A kernel for strided units.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StridedKernel {
    Copy,
    /// A copy whose fastest axes differ, by tiles.
    Transpose,
    Fill,
    /// A copy of rows of bytes without gaps, at any addresses.
    Dense,
}

impl StridedKernel {
    /// In the order of the declaration.
    const NAMES: [&str; 4] = ["copy", "transpose", "fill", "dense"];
}

/// The outer axes that a [`StridedKernel`] takes. There are never more: each of them at least doubles the elements of the target, which
/// are all in memory, and the addresses of a device have 49 bits.
pub(crate) const AXES_MAX: usize = 48;

/// A kernel that draws random numbers.
#[derive(Clone, Copy, Debug)]
pub enum Random {
    RandomU32,
    RandomU64,
    RandomF32,
    RandomF64,
    NormalF32,
    NormalF64,
}

impl Random {
    /// In the order of the declaration.
    const NAMES: [&str; 6] = [
        "gpumem_random_u32",
        "gpumem_random_u64",
        "gpumem_random_f32",
        "gpumem_random_f64",
        "gpumem_normal_f32",
        "gpumem_normal_f64",
    ];
}

impl Library {
    pub(crate) fn new(device: &Device) -> Self {
        #[cfg(feature = "sim")]
        if let Some(sim) = gpumem_sim::Sim::of(device.driver()) {
            super::twins::register(sim);
        }
        Self {
            device: device.clone(),
            functions: Default::default(),
            strided: Default::default(),
            strided_module: OnceLock::new(),
            patterns: Default::default(),
            fill_module: OnceLock::new(),
            random: Default::default(),
            random_module: OnceLock::new(),
            unpack: OnceLock::new(),
            pack_module: OnceLock::new(),
            casts: Default::default(),
            cast_module: OnceLock::new(),
            gathers: Default::default(),
            gather_module: OnceLock::new(),
            modules: Mutex::default(),
        }
    }

    pub(crate) fn kernel(&self, kernel: Kernel, kind: Kind) -> Result<&Function, ArrayError> {
        let slot = &self.functions[kind as usize][kernel as usize];
        if let Some(function) = slot.get() {
            return Ok(function);
        }
        let (_, family, name) = Kernel::ALL[kernel as usize];
        let function = self.family(family, kind)?.function(&format!("gpumem_{name}_{}", kind.suffix()))?;
        Ok(slot.get_or_init(|| function))
    }

    /// Loads the kernels that calculate with one type, and all that copy and fill strided elements.
    pub(crate) fn preload(&self, kind: Kind) -> Result<(), ArrayError> {
        for unit in [1, 2, 4, 8, 16] {
            for kernel in [StridedKernel::Copy, StridedKernel::Transpose, StridedKernel::Fill] {
                self.strided(kernel, unit)?;
            }
            self.pattern(unit)?;
        }
        self.strided(StridedKernel::Dense, 1)?;
        Kernel::ALL.iter().try_for_each(|(kernel, ..)| self.kernel(*kernel, kind).map(drop))
    }

    /// Repeats a pattern, by stores of a size from 1 to 16 bytes.
    pub(crate) fn pattern(&self, unit: usize) -> Result<&Function, ArrayError> {
        let name = format!("gpumem_pattern_{unit}");
        match self.patterns.get(unit.trailing_zeros() as usize) {
            Some(slot) => self.lone(slot, (&self.fill_module, FILL), &name),
            None => Err(ArrayError::NoSuchKernel { name }),
        }
    }

    /// Moves or sets strided units of a size from 1 to 16 bytes.
    pub(crate) fn strided(&self, kernel: StridedKernel, unit: usize) -> Result<&Function, ArrayError> {
        let slot = self.strided[kernel as usize].get(unit.trailing_zeros() as usize);
        if let Some(function) = slot.and_then(OnceLock::get) {
            return Ok(function);
        }
        let name = format!("gpumem_{}_{unit}", StridedKernel::NAMES[kernel as usize]);
        match slot {
            Some(slot) => self.lone(slot, (&self.strided_module, STRIDED), &name),
            None => Err(ArrayError::NoSuchKernel { name }),
        }
    }

    /// Draws random numbers.
    pub(crate) fn random(&self, kernel: Random) -> Result<&Function, ArrayError> {
        let index = kernel as usize;
        self.lone(&self.random[index], (&self.random_module, RANDOM), Random::NAMES[index])
    }

    /// Converts elements.
    pub(crate) fn cast(&self, from: Float, to: Float) -> Result<&Function, ArrayError> {
        let name = format!("gpumem_cast_{}_{}", from.suffix(), to.suffix());
        self.lone(&self.casts[from as usize][to as usize], (&self.cast_module, CAST), &name)
    }

    /// Moves rows of units of a size from 1 to 16 bytes.
    pub(crate) fn gather(&self, unit: usize) -> Result<&Function, ArrayError> {
        let name = format!("gpumem_gather_{unit}");
        match self.gathers.get(unit.trailing_zeros() as usize) {
            Some(slot) => self.lone(slot, (&self.gather_module, GATHER), &name),
            None => Err(ArrayError::NoSuchKernel { name }),
        }
    }

    /// Fills many arrays from one buffer.
    pub(crate) fn unpack(&self) -> Result<&Function, ArrayError> {
        self.lone(&self.unpack, (&self.pack_module, PACK), "gpumem_unpack")
    }

    /// A kernel of a module that has all element types.
    fn lone<'a>(
        &self,
        slot: &'a OnceLock<Function>,
        (module, text): (&OnceLock<Module>, &str),
        name: &str,
    ) -> Result<&'a Function, ArrayError> {
        if let Some(function) = slot.get() {
            return Ok(function);
        }
        let function = match module.get() {
            Some(module) => module.function(name)?,
            // If another thread is faster, its module is used, and this one is unloaded.
            None => {
                let loaded = Module::load_own(&self.device, text)?;
                module.get_or_init(|| loaded).function(name)?
            }
        };
        Ok(slot.get_or_init(|| function))
    }

    /// The module, loaded if it is not yet. Threads that need a module wait while another thread loads it.
    fn family(&self, family: usize, kind: Kind) -> Result<Module, ArrayError> {
        not_forked()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut modules[kind as usize][family];
        match slot {
            Some(module) => Ok(module.clone()),
            empty => {
                Ok(empty.insert(Module::load_own(&self.device, FAMILIES[family][kind as usize])?).clone())
            }
        }
    }
}

/// The address of a kernel's parameter, as the driver takes it.
pub(crate) fn parameter<T>(value: &T) -> *mut c_void {
    core::ptr::from_ref(value).cast_mut().cast()
}

/// Queues a kernel on a stream, inside [`queue`](crate::storage::queue).
///
/// # Safety
///
/// - The stream is alive and of the function's device, whose context is current.
/// - `parameters` point to values of the types and in the order of the kernel's parameters, alive during the call.
/// - The kernel uses them soundly: addresses are of live memory of the device that is large enough, and the stream has been
///   ordered after conflicting accesses.
pub(crate) unsafe fn launch(
    function: &Function,
    stream: CUstream,
    (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
    parameters: &mut [*mut c_void],
) -> Result<(), DriverError> {
    // SAFETY: the function is loaded, and the driver copies the parameters during the call; the rest is the caller's promise.
    unsafe {
        function.device().driver().cuLaunchKernel(
            function.raw(),
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared_bytes,
            stream,
            parameters.as_mut_ptr(),
            core::ptr::null_mut(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_its_indices_and_the_ptx_has_every_kernel() {
        for (index, (kernel, family, name)) in Kernel::ALL.into_iter().enumerate() {
            assert_eq!(kernel as usize, index);
            for (place, kind) in Kind::ALL.into_iter().enumerate() {
                assert_eq!(kind as usize, place);
                let entry = format!(".entry gpumem_{name}_{}(", kind.suffix());
                assert!(FAMILIES[family][place].contains(&entry), "{entry}");
            }
        }
    }
}
