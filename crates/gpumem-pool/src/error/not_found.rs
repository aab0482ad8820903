//! [`NotFound`]: something that the call names does not exist.

use core::fmt;
use gpumem_sys::DriverKind;
use gpumem_sys::text::{self, Shown, debug_is_display};

/// Something that does not exist.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NotFound {
    /// The driver has no device with this ordinal.
    #[error(fmt = no_such_device)]
    Device {
        /// The requested ordinal.
        ordinal: u32,
        /// The number of devices.
        count: u32,
        /// The kind of driver.
        driver: DriverKind,
    },
    /// The pool has no part with this name.
    #[error("the pool {} has no part {:?}; {}", Shown::name(.pool), Shown::name(.part), parts_there(.parts))]
    Part {
        /// The name of the pool.
        pool: String,
        /// The name of the part.
        part: String,
        /// The names of its parts.
        parts: Vec<String>,
    },
}

debug_is_display!(NotFound);

/// The text of [`NotFound::Device`].
fn no_such_device(
    ordinal: &u32,
    count: &u32,
    driver: &DriverKind,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let devices = match count {
        0 => "no devices".into(),
        1 => "one device, number 0".into(),
        _ => format!("{count} devices, numbered from 0"),
    };
    match driver {
        DriverKind::Sim => write!(
            f,
            "device {ordinal} does not exist: the simulator has {devices}; set GPUMEM_SIM_DEVICES, or the number of devices in \
             its configuration, to {} or more",
            ordinal.saturating_add(1)
        ),
        _ => {
            write!(f, "device {ordinal} does not exist: the driver has {devices}; check CUDA_VISIBLE_DEVICES")
        }
    }
}

/// The action for [`NotFound::Part`].
fn parts_there(parts: &[String]) -> String {
    match parts {
        [] => "it has none: call Pool::part first".into(),
        _ => format!("its parts are {}", text::list(parts.iter().map(String::as_str))),
    }
}
