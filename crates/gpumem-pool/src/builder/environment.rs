//! The environment variables that [`PoolBuilder::from_env`] reads: [`VARIABLES`]. Nothing else in this crate reads
//! them.

use super::PoolBuilder;
use crate::config::{FORMS, conf};
use crate::device::Device;
use crate::error::PoolError;
use crate::trace::Trace;
use core::str::FromStr;
use gpumem_sys::env::{self, EnvError, Variable};
use std::sync::Arc;

/// The variables that [`PoolBuilder::from_env`] reads.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "GPUMEM_POOL",
        meaning: "caching | native | none: the backend of a pool (default: the first that is built in and works)",
    },
    Variable {
        name: "GPUMEM_KIND",
        meaning: "device | unified | host: the kind of memory of a pool (default device)",
    },
    Variable {
        name: "GPUMEM_PROFILE",
        meaning: "fast | balanced | tight: the trade-off of the caching backend (default balanced)",
    },
    Variable {
        name: "GPUMEM_CONF",
        meaning: "key:value,…: any option of a pool by name, PyTorch's allocator options among them",
    },
    Variable {
        name: "GPUMEM_SOFT_LIMIT",
        meaning: "100M, 1.5GiB, 50%, 10000: cached memory above this is released at synchronisation",
    },
    Variable { name: "GPUMEM_HARD_LIMIT", meaning: "100M, 1.5GiB, 50%, 10000: the hard limit of a pool" },
    Variable {
        name: "GPUMEM_TRACE",
        meaning: "a file (%p becomes the process id) that records the requests of pools, for `cargo xtask replay`",
    },
];

impl PoolBuilder {
    /// Starts from `GPUMEM_CONF`, `GPUMEM_KIND`, `GPUMEM_POOL`, `GPUMEM_PROFILE`, `GPUMEM_HARD_LIMIT`,
    /// `GPUMEM_SOFT_LIMIT` and `GPUMEM_TRACE`. Later calls on the builder win.
    ///
    /// # Errors
    ///
    /// [`PoolError::Env`] for an unknown `GPUMEM_…` variable or an invalid value.
    pub fn from_env(device: &Device) -> Result<Self, PoolError> {
        Self::from_variables(device, |name| env::read(VARIABLES, name))
    }

    pub(crate) fn from_variables(
        device: &Device,
        read: impl Fn(&'static str) -> Result<Option<String>, EnvError>,
    ) -> Result<Self, PoolError> {
        let mut builder = Self::new(device);
        let config = &mut builder.setup.config;
        let profile = parse(&read, "GPUMEM_PROFILE", "use `fast`, `balanced` or `tight`")?;
        let value = read("GPUMEM_CONF")?.unwrap_or_default();
        conf::apply(config, &value, profile).map_err(|error| EnvError::BadValue {
            name: "GPUMEM_CONF",
            value,
            expected: error.to_string(),
        })?;
        let soft_limit = parse(&read, "GPUMEM_SOFT_LIMIT", &format!("use {FORMS}"))?;
        config.asked.extend(soft_limit.map(|_| "soft_limit"));
        config.kind =
            parse(&read, "GPUMEM_KIND", "use `device`, `unified` or `host`")?.unwrap_or(config.kind);
        config.backend = parse(&read, "GPUMEM_POOL", "use `caching`, `native` or `none`")?.or(config.backend);
        config.hard_limit = parse(&read, "GPUMEM_HARD_LIMIT", &format!("use {FORMS}"))?.or(config.hard_limit);
        config.soft_limit = soft_limit.or(config.soft_limit);
        builder.trace = read("GPUMEM_TRACE")?.map(trace).transpose()?;
        Ok(builder)
    }
}

/// All pools of a process record into one file.
fn trace(path: String) -> Result<Arc<Trace>, EnvError> {
    Trace::shared(path.as_ref()).map_err(|error| EnvError::BadValue {
        name: "GPUMEM_TRACE",
        value: path,
        expected: format!("name a file that can be written ({error})"),
    })
}

/// Parses a variable. The error names the variable, so that its setting can be found.
fn parse<T: FromStr>(
    read: impl Fn(&'static str) -> Result<Option<String>, EnvError>,
    name: &'static str,
    expected: &str,
) -> Result<Option<T>, EnvError> {
    let Some(value) = read(name)? else { return Ok(None) };
    match value.parse() {
        Ok(parsed) => Ok(Some(parsed)),
        Err(_) => Err(EnvError::BadValue { name, value, expected: expected.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tuning::{Profile, Tuning};
    use gpumem_sim::SimConfig;

    #[test]
    fn a_profile_of_the_environment_leaves_tuning_options_that_are_named() {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        let tuning = |variables: &[(&str, &str)]| {
            let value = |name| variables.iter().find(|(other, _)| *other == name);
            let read = |name| Ok(value(name).map(|(_, value)| (*value).to_owned()));
            PoolBuilder::from_variables(&device, read).unwrap().setup.config.tuning
        };
        let conf = ("GPUMEM_CONF", "growth_slack:77,profile:fast");
        assert_eq!(tuning(&[conf]), Tuning::of(Profile::Fast).growth_slack(77));
        assert_eq!(tuning(&[conf, ("GPUMEM_PROFILE", "tight")]), Tuning::of(Profile::Tight).growth_slack(77));
        assert_eq!(tuning(&[("GPUMEM_PROFILE", "tight")]), Tuning::of(Profile::Tight));
        assert_eq!(tuning(&[]), Tuning::default());
    }
}
