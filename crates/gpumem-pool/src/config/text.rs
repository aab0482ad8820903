//! Text forms: the names of enums, and times.

#[cfg(feature = "serde")]
pub(crate) fn seconds<S: serde::Serializer>(
    time: &core::time::Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Implements `FromStr`, in any case, and `Display` for the enum that is the value of an option.
macro_rules! names {
    ($type:ident of $option:literal: $($variant:ident = $name:literal $(| $other:literal)?),+) => {
        impl $type {
            /// The names for texts of mistakes.
            pub(crate) const NAMES: &'static str = crate::config::text::listed!($($name)+);
        }

        impl core::str::FromStr for $type {
            type Err = crate::config::ConfigError;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name.trim().to_lowercase().as_str() {
                    $($name $(| $other)? => Ok(Self::$variant),)+
                    _ => Err(crate::config::ConfigError::bad_value($option, name, String::new(), Self::NAMES)),
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $name,)+
                })
            }
        }
    };
}
pub(crate) use names;

/// The literal "`a`, `b` or `c`".
macro_rules! listed {
    ($last:literal) => {
        concat!("`", $last, "`")
    };
    ($first:literal $last:literal) => {
        concat!("`", $first, "` or `", $last, "`")
    };
    ($first:literal $($rest:literal)+) => {
        concat!("`", $first, "`, ", crate::config::text::listed!($($rest)+))
    };
}
pub(crate) use listed;
