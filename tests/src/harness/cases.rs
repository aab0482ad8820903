//! Test cases that are written once and run on the simulator and on NVIDIA's driver.
//!
//! [`cases!`](crate::cases!) turns each body into a test on the simulator (`sim::NAME`) and, with feature `gpu`, a second one on
//! NVIDIA's driver (`cuda::NAME`). `cargo xtask gpu-test` runs the tests under `cuda::`. A missing driver fails these tests and
//! never skips them. For many schedules of the simulator, see [`seeds`].

use crate::harness::seeds::{self, Outcome, Suite};
use crate::sys::Driver;
use std::io::Write;

/// Makes a test of each body on the simulator and, with feature `gpu`, one on NVIDIA's driver.
///
/// A body takes a new driver. It fails by a panic or, if it returns a `Result`, by an error. Attributes are copied to the
/// tests. One invocation makes the modules `sim` and `cuda`, so a file with several puts each into a module.
///
/// ```
/// gpumem_tests::cases! {
///     /// Each machine that runs tests has a device.
///     fn there_is_a_device(driver: &Driver) -> Result<(), gpumem_tests::sys::DriverError> {
///         let mut count = 0;
///         // SAFETY: `count` outlives the call.
///         unsafe { driver.cuDeviceGetCount(&mut count)? };
///         assert!(count > 0);
///         Ok(())
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! cases {
    ($( $(#[$attribute:meta])* fn $name:ident($driver:ident: &Driver) $(-> $result:ty)? $body:block )+) => {
        $( fn $name($driver: &$crate::sys::Driver) $(-> $result)? $body )+

        mod sim {
            $(
                $(#[$attribute])*
                #[test]
                fn $name() {
                    $crate::harness::cases::on_sim($crate::suite!(), super::$name);
                }
            )+
        }

        #[cfg(feature = "gpu")]
        mod cuda {
            $(
                $(#[$attribute])*
                #[test]
                fn $name() {
                    $crate::harness::cases::on_cuda(super::$name);
                }
            )+
        }
    };
}

/// Runs a case on a simulator whose seed is `GPUMEM_SIM_SEED`, or 0.
///
/// # Panics
///
/// If the case fails, after printing the command that repeats it.
pub fn on_sim<R: Outcome>(suite: Suite, body: impl Fn(&Driver) -> R) {
    seeds::run_or_explain(suite, seeds::from_env().unwrap_or(0), &|driver: &Driver, _| body(driver));
}

/// Runs a case on NVIDIA's driver.
///
/// # Panics
///
/// If the case fails, or there is no driver or no device.
pub fn on_cuda<R: Outcome>(body: impl FnOnce(&Driver) -> R) {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error) => panic!("a GPU case cannot run here: {error}"),
    };
    if let Some(message) = body(&driver).failure() {
        panic!("{message}");
    }
}

/// Says on standard error that the case of this thread ends without a check, and why. A test harness hides the output of cases that
/// pass, so this goes around it.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // If nothing can be printed, the case is skipped all the same.
    let _ = writeln!(std::io::stderr(), "skipped: {}: {reason}", thread.name().unwrap_or("a case"));
}

/// Like [`skip`], for a case of two devices on a machine with one.
pub fn skip_without_second_device() {
    skip("this machine has one GPU, and the case needs two");
}

#[cfg(test)]
mod tests {
    use crate::sys::DriverKind;

    crate::cases! {
        /// A case receives a driver, and may return a `Result`.
        fn a_case_gets_a_driver(driver: &Driver) -> Result<(), crate::sys::DriverError> {
            let mut count = 0;
            // SAFETY: `count` outlives the call.
            unsafe { driver.cuDeviceGetCount(&mut count)? };
            assert!(count > 0);
            Ok(())
        }

        /// `Err` fails a case.
        #[should_panic(expected = "deliberately")]
        fn an_error_fails_a_case(_driver: &Driver) -> Result<(), String> {
            Err("deliberately".to_string())
        }

        /// A panic fails a case.
        #[should_panic(expected = "on purpose")]
        fn a_panic_fails_a_case(driver: &Driver) {
            assert!(driver.kind() != DriverKind::Cuda && driver.kind() != DriverKind::Sim, "on purpose");
        }
    }

    #[test]
    fn a_machine_without_a_gpu_fails_a_gpu_case() {
        let Err(missing) = crate::sys::Driver::cuda() else { return };
        let caught = std::panic::catch_unwind(|| super::on_cuda(|_| ()));
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains(&missing.to_string()), "{message}");
    }
}
