//! [`Library`]: the kernels of this crate on one device, loaded at their first use.
//!
//! Each text is a separate module, because the driver compiles whole modules.

use crate::element::{NumericType, ProductKernels};
use crate::error::ArrayError;
use crate::kernel::generated::Generated;
use crate::kernel::table::{KERNEL_COUNT, Kernel, Only, ROWS, Unit, index};
use crate::kernel::text::KernelText;
use crate::kernel::{Function, Module};
use core::ffi::c_void;
use core::ops::Range;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::sys::{Driver, DriverError};
use gpumem_pool::{Device, not_forked};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The address of a machine's clocks, which are of no other machine as long as a library keeps them alive, and the number of a GPU.
type GpuKey = (usize, u32);

pub(crate) struct Library {
    device: Device,
    /// By the [`index`] of their places.
    functions: [OnceLock<Function>; KERNEL_COUNT],
    modules: Mutex<Vec<(KernelText, Module)>>,
    /// The kernels of expressions.
    generated: Generated,
}

impl Library {
    /// The kernels of a device, which its users share: each is loaded once in a process, while there is a user.
    pub(crate) fn of(device: &Device) -> Arc<Self> {
        static LIBRARIES: Mutex<Vec<(GpuKey, Weak<Library>)>> = Mutex::new(Vec::new());
        let gpu = (Arc::as_ptr(device.clocks()).addr(), device.ordinal());
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        libraries.retain(|(_, library)| library.strong_count() > 0);
        // Those of other GPUs are not upgraded. If their last user drops one at this moment, it would end on this thread, with its device, after
        // that user has gone on.
        let mut of_gpu =
            libraries.iter().filter(|(of, _)| *of == gpu).filter_map(|(_, library)| library.upgrade());
        let known = of_gpu.find(|library| library.device == *device);
        known.unwrap_or_else(|| {
            let library = Arc::new(Self::new(device));
            libraries.push((gpu, Arc::downgrade(&library)));
            library
        })
    }

    fn new(device: &Device) -> Self {
        let functions = [const { OnceLock::new() }; KERNEL_COUNT];
        Self { device: device.clone(), functions, modules: Mutex::default(), generated: Generated::default() }
    }

    pub(crate) fn generated(&self) -> &Generated {
        &self.generated
    }

    pub(crate) fn function(&self, kernel: Kernel) -> Result<&Function, ArrayError> {
        self.function_at(kernel.place())
    }

    /// Loads the kernels for products of one type, and all that copy strided elements.
    pub(crate) fn preload(&self, products: ProductKernels) -> Result<(), ArrayError> {
        for unit in Unit::ALL {
            self.function(Kernel::Copy(unit))?;
            self.function(Kernel::Transpose(unit))?;
        }
        self.function(Kernel::Dense(Only::One))?;
        let ProductKernels::Numeric(number) = products else {
            return self.function(Kernel::ProductHalf(Only::One)).map(drop);
        };
        if number == NumericType::F32 {
            self.function(Kernel::ProductWide(Only::One))?;
        }
        let kernels = [Kernel::Rows, Kernel::Columns, Kernel::Product, Kernel::SparseRows];
        kernels.into_iter().try_for_each(|kernel| self.function(kernel(number)).map(drop))
    }

    fn function_at(&self, (row, column): (usize, usize)) -> Result<&Function, ArrayError> {
        let slot = &self.functions[index(row, column)];
        if let Some(function) = slot.get() {
            return Ok(function);
        }
        let (text, name) = ROWS[row].of(column);
        let function = self.module(text)?.own_function(&text.filled(), name)?;
        Ok(slot.get_or_init(|| function))
    }

    /// The module, loaded if it is not yet. Threads that need a module wait while another thread loads it.
    fn module(&self, text: KernelText) -> Result<Module, ArrayError> {
        not_forked()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = modules.iter().find(|(known, _)| known.is(text)) {
            return Ok(module.clone());
        }
        let module = Module::load_own(&self.device, &text.filled())?;
        modules.push((text, module.clone()));
        Ok(module)
    }
}

/// The address of a kernel's parameter, as the driver takes it.
pub(crate) fn parameter<T>(value: &T) -> *mut c_void {
    core::ptr::from_ref(value).cast_mut().cast()
}

/// Calls `launch`, which queues a kernel. The simulator stops the kernel if it accesses other bytes than these, or writes those that are not
/// declared as written.
#[inline(always)]
pub(crate) fn declaring<R>(
    driver: &Driver,
    declared: impl Fn() -> Vec<DeclaredBytes>,
    launch: impl FnOnce() -> R,
) -> R {
    #[cfg(feature = "sim")]
    if driver.kind() == gpumem_pool::sys::DriverKind::Sim {
        let range = |DeclaredBytes { bytes, is_write }| gpumem_sim::DeclaredRange { bytes, is_write };
        return gpumem_sim::Sim::declaring(&|| declared().into_iter().map(range).collect(), launch);
    }
    let _ = (driver, declared);
    launch()
}

/// Bytes that a kernel uses.
#[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "the simulator reads them"))]
pub(crate) struct DeclaredBytes {
    /// The addresses.
    pub(crate) bytes: Range<u64>,
    pub(crate) is_write: bool,
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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn device() -> Device {
        let driver = gpumem_sim::driver(gpumem_sim::SimConfig::new()).expect("the defaults are valid");
        Device::new(&driver, 0).expect("a simulator has a device")
    }

    /// A device ends with its last user, also while other threads look for the kernels of theirs.
    #[test]
    fn no_other_thread_keeps_a_device() {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let own = device();
                    while !is_done.load(Ordering::Relaxed) {
                        drop(Library::of(&own));
                    }
                });
            }
            let held = (0..400).any(|_| {
                let library = Library::of(&device());
                (0..20_000).any(|_| Arc::strong_count(&library) > 1)
            });
            is_done.store(true, Ordering::Relaxed);
            assert!(!held, "the library and its device would end on another thread");
        });
    }

    #[test]
    fn users_of_a_device_share_the_kernels() {
        let first = device();
        let second = Device::new(first.driver(), 0).unwrap();
        let library = Library::of(&first);
        assert!(Arc::ptr_eq(&library, &Library::of(&second)));
        assert!(!Arc::ptr_eq(&library, &Library::of(&device())));
    }

    /// The simulator parses each text.
    #[test]
    fn a_driver_loads_each_kernel() {
        let library = Library::of(&device());
        for (row, kernel) in ROWS.iter().enumerate() {
            for column in 0..kernel.count() {
                library.function_at((row, column)).unwrap();
            }
        }
    }
}
