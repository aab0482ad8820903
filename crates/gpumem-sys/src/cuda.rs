//! Fills the table from the vendor's library. The library is loaded once per process and never unloaded, because the driver has
//! threads and exit handlers of its own.

use crate::driver::{Driver, DriverKind};
use crate::env;
use crate::error::{DriverError, LoadError};
use crate::fork;
use crate::table::Table;
use crate::types::CUresult;
use libloading::Library;
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// The symbol that marks this project's drop-in library, so that it is not loaded as the vendor's driver.
const MARKER: &[u8] = b"gpumem_simulator\0";

impl Driver {
    /// Returns the vendor's driver, loaded and initialised at the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoLibrary`] if there is no library, [`LoadError::NoDevice`] if there is no GPU, [`LoadError::Start`] if the
    /// driver does not initialise, [`LoadError::Impostor`] if the library is the drop-in of `gpumem-libcuda`,
    /// [`LoadError::Forked`] in a process that was forked from one that had opened a driver.
    pub fn cuda() -> Result<Self, LoadError> {
        driver(DriverKind::Cuda)
    }

    /// Returns the drop-in of `gpumem-libcuda`: a simulator that the loader finds under the driver's name. Other libraries of the
    /// process, in any language, use the same simulator.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoLibrary`] if there is no library, [`LoadError::NotDropIn`] if the library is the vendor's driver,
    /// [`LoadError::NoDevice`] or [`LoadError::StartDropIn`] if the simulator does not start, [`LoadError::Forked`] as in
    /// [`Driver::cuda`].
    pub fn drop_in() -> Result<Self, LoadError> {
        driver(DriverKind::Sim)
    }

    /// Returns the driver that `GPUMEM_DRIVER` names: `cuda`, which is also the default, or `drop-in` ([`Driver::drop_in`]). For `sim`
    /// call `gpumem_sim::from_env`.
    ///
    /// # Errors
    ///
    /// - [`LoadError::NoLibrary`], [`LoadError::NoDevice`], [`LoadError::Start`], [`LoadError::Impostor`], [`LoadError::Forked`]; see
    ///   [`Driver::cuda`].
    /// - [`LoadError::NotDropIn`], [`LoadError::StartDropIn`]; see [`Driver::drop_in`].
    /// - [`LoadError::SimulatorRequested`] for `sim`.
    /// - [`LoadError::UnknownDriver`] for another name.
    /// - [`LoadError::Env`] if a `GPUMEM_…` variable is unknown, or the value is not Unicode.
    pub fn from_env() -> Result<Self, LoadError> {
        if fork::is_child() {
            return Err(LoadError::Forked);
        }
        named(env::read(env::VARIABLES, "GPUMEM_DRIVER")?)
    }
}

/// The driver with this name, in any case; without one, the vendor's driver.
fn named(name: Option<String>) -> Result<Driver, LoadError> {
    let Some(name) = name else { return Driver::cuda() };
    match name.trim().to_lowercase().as_str() {
        "cuda" => Driver::cuda(),
        "drop-in" => Driver::drop_in(),
        "sim" => Err(LoadError::SimulatorRequested),
        _ => Err(LoadError::UnknownDriver(name)),
    }
}

/// The driver of this process, which must be of this kind. A failure is not cached, because a driver may be installed or a GPU freed
/// later.
fn driver(kind: DriverKind) -> Result<Driver, LoadError> {
    static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
    if fork::is_child() {
        return Err(LoadError::Forked);
    }
    let mut slot = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = slot.as_ref().filter(|driver| driver.kind() == kind) {
        return Ok(driver.clone());
    }
    let driver = start(open()?, kind)?;
    *slot = Some(driver.clone());
    Ok(driver)
}

fn open() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let mut reasons = Vec::new();
    for name in NAMES {
        match load(name) {
            Ok(library) => return Ok(LIBRARY.get_or_init(|| library)),
            Err(error) => reasons.push(format!("{name}: {error}")),
        }
    }
    Err(LoadError::NoLibrary { reason: reasons.join("; ") })
}

/// The library of that name in the system's folder.
#[cfg(windows)]
fn load(name: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{LOAD_LIBRARY_SEARCH_SYSTEM32, Library as WindowsLibrary};
    // The default search begins in the program's folder and includes the current one and `PATH`, where another program may have put a
    // library of that name. The driver is installed in System32.
    // SAFETY: loading the vendor's driver runs its initialisers, which every CUDA program does.
    unsafe { WindowsLibrary::load_with_flags(name, LOAD_LIBRARY_SEARCH_SYSTEM32) }.map(Library::from)
}

/// The library of that name on the loader's search path.
#[cfg(not(windows))]
fn load(name: &str) -> Result<Library, libloading::Error> {
    // SAFETY: loading the vendor's driver runs its initialisers, which every CUDA program does.
    unsafe { Library::new(name) }
}

fn start(library: &'static Library, kind: DriverKind) -> Result<Driver, LoadError> {
    // SAFETY: the symbol is not dereferenced.
    let is_drop_in = unsafe { library.get::<*const ()>(MARKER) }.is_ok();
    match kind {
        DriverKind::Cuda if is_drop_in => return Err(LoadError::Impostor),
        DriverKind::Sim if !is_drop_in => return Err(LoadError::NotDropIn),
        _ => {}
    }
    // SAFETY: the library exports under these names the functions that `cuda.h` declares, and it is never unloaded.
    let table = unsafe {
        Table::load(|symbol| {
            library
                .get::<*const core::ffi::c_void>(symbol.name.as_bytes())
                .map_or(core::ptr::null(), |found| *found)
        })
    };
    // SAFETY: the library is never unloaded, its functions are those that the vendor documents, and no other library of the process has
    // its handles and addresses.
    let driver = unsafe { Driver::from_parts(table, kind, None) };
    // SAFETY: `cuInit` may be called at any time, from any thread, any number of times.
    match unsafe { driver.cuInit(0) } {
        Ok(()) => {
            fork::watch();
            Ok(driver)
        }
        Err(error) if is_without_gpu(&error) => Err(LoadError::NoDevice(error)),
        Err(error) if kind == DriverKind::Sim => Err(LoadError::StartDropIn(error)),
        Err(error) => Err(LoadError::Start(error)),
    }
}

/// True if the error means that there is no GPU. A toolkit installs a stub library on machines that only build.
fn is_without_gpu(error: &DriverError) -> bool {
    matches!(error.code(), CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_are_read_in_any_case() {
        for name in ["sim", "SIM", " Sim "] {
            assert!(matches!(named(Some(name.into())), Err(LoadError::SimulatorRequested)), "{name}");
        }
        let Err(LoadError::UnknownDriver(name)) = named(Some("Simulator".into())) else { panic!() };
        assert_eq!(name, "Simulator");
    }
}
