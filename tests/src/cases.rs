//! Cases: tests that are written once and mounted on every driver there is.
//!
//! [`cases!`](crate::cases!) turns each body into one test on the simulator (`sim::NAME`) and, with feature
//! `gpu`, a second one on the vendor's (`cuda::NAME`). `cargo xtask gpu-test` runs what is under `cuda::`; there a
//! missing driver is a failure, never a skip. What needs many schedules of the simulator is in
//! [`seeds`].

use crate::seeds::{self, Outcome, Suite};
use crate::sys::Driver;

/// Mounts each body as a test on the simulator and, with feature `gpu`, on the vendor's.
///
/// A body takes a fresh driver and fails by a panic or, where it returns a `Result`, by an error. Attributes go to the
/// tests. One invocation makes the modules `sim` and `cuda`, so a file with several puts each into a module.
///
/// ```
/// gpumem_tests::cases! {
///     /// Every machine that runs tests has a device.
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
                    $crate::cases::on_sim($crate::suite!(), super::$name);
                }
            )+
        }

        #[cfg(feature = "gpu")]
        mod cuda {
            $(
                $(#[$attribute])*
                #[test]
                fn $name() {
                    $crate::cases::on_cuda(super::$name);
                }
            )+
        }
    };
}

/// Runs a case on a simulator whose seed is `GPUMEM_SIM_SEED`, or 0.
///
/// # Panics
///
/// When the case fails, after printing the command that repeats it.
pub fn on_sim<R: Outcome>(suite: Suite, body: impl Fn(&Driver) -> R) {
    seeds::run_or_explain(suite, seeds::from_env().unwrap_or(0), &|driver: &Driver, _| body(driver));
}

/// Runs a case on the vendor's driver.
///
/// # Panics
///
/// When the case fails, or when there is no driver or no device to run it on.
pub fn on_cuda<R: Outcome>(body: impl FnOnce(&Driver) -> R) {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error) => panic!("a GPU case can't run here: {error}"),
    };
    if let Some(message) = body(&driver).failure() {
        panic!("{message}");
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::DriverKind;

    crate::cases! {
        /// The driver is one of the two, and the body's own `Result` is understood.
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

        /// A panic does too.
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
