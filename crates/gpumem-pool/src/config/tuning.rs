//! [`Profile`], and the values that it presets: [`Tuning`].

use crate::config::text::names;
use core::time::Duration;
use gpumem_base::HeapTuning;

/// Declares [`Profile`] with its lists. A row reads `Variant = "name": tuning;`.
macro_rules! profiles {
    (
        $(#[$meta:meta])*
        pub enum Profile {$(
            $(#[$of_variant:meta])*
            $variant:ident = $name:literal: $tuning:expr;
        )+}
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Profile {$(
            $(#[$of_variant])*
            $variant,
        )+}

        names!(Profile of "profile": $($variant = $name),+);

        impl Profile {
            /// All profiles.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl From<Profile> for Tuning {
            fn from(profile: Profile) -> Self {
                match profile {$(
                    Profile::$variant => $tuning,
                )+}
            }
        }
    };
}

profiles! {
    /// A preset of the options that trade memory against driver calls and time. [`Profile::options`] lists their values.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Profile};
    /// use gpumem_sim::SimConfig;
    ///
    /// assert_eq!("tight".parse::<Profile>()?, Profile::Tight);
    /// assert_eq!(Profile::default().to_string(), "balanced");
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let builder = Pool::builder(&device).profile(Profile::Fast);
    /// let pool = builder.conf("growth_slack:50, inserted_waits:true")?.build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub enum Profile {
        /// Fewest driver calls; reserves up to a tenth more than the peak in use.
        Fast = "fast": Tuning {
            heap: HeapTuning::FAST,
            size_divisor: 64,
            inserted_waits: false,
            ..Tuning::BALANCED
        };
        /// Little more memory than is in use, and little driver time.
        #[default]
        Balanced = "balanced": Tuning::BALANCED;
        /// Least memory, at any cost in driver calls.
        Tight = "tight": Tuning { heap: HeapTuning::TIGHT, ..Tuning::BALANCED };
    }
}

/// The values of the options that a profile presets, and the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) heap: HeapTuning,
    /// The number of steps per power of two for block sizes above 1 MiB; 0 for no rounding.
    pub(crate) size_divisor: u32,
    pub(crate) poll_budget: Duration,
    pub(crate) release_budget: Duration,
    pub(crate) inserted_waits: bool,
    pub(crate) wait_deadline: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Profile::default().into()
    }
}

impl Tuning {
    const BALANCED: Self = Self {
        heap: HeapTuning::BALANCED,
        size_divisor: 0,
        poll_budget: Duration::from_micros(20),
        release_budget: Duration::from_micros(200),
        inserted_waits: true,
        wait_deadline: Duration::from_secs(10),
    };

    /// The rounded size of a large block.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn rounded(&self, size_bytes: u64) -> u64 {
        let step = match self.size_divisor {
            0 => 1,
            divisor => (1 << size_bytes.max(1).ilog2()) / u64::from(divisor),
        };
        size_bytes.checked_next_multiple_of(step.max(1)).unwrap_or(size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_to_its_part_of_a_power_of_two() {
        let tuning = Tuning::from(Profile::Fast);
        assert_eq!(tuning.rounded(1 << 20), 1 << 20);
        assert_eq!(tuning.rounded((1 << 20) + 1), (1 << 20) + (1 << 14));
        let exact = Tuning::from(Profile::Balanced);
        assert_eq!(exact.rounded(12_345_677), 12_345_677);
        assert_eq!(tuning.rounded(u64::MAX), u64::MAX);
        assert_eq!((tuning.rounded(0), tuning.rounded(1)), (0, 1));
        let halves = Tuning { size_divisor: 2, ..tuning };
        assert_eq!([33, 65, 97].map(|mib| halves.rounded(mib << 20) >> 20), [48, 96, 128]);
    }

    #[test]
    fn names_of_profiles_parse_as_they_print() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse::<Profile>().unwrap(), *profile);
        }
        assert!("quick".parse::<Profile>().unwrap_err().to_string().contains("balanced"));
    }
}
