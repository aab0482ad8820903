//! [`PoolBuilder`]: sets up a pool, from calls, from options by name, and from the environment.
//!
//! [`conf`](crate::conf) lists the options. The few that most programs need have a setter, and so do options whose values have no text
//! form. The builder overrides the environment, which overrides the defaults. Only `from_env` reads the environment.

mod default;

use crate::adaptor::Adaptor;
use crate::config::options::{KEYS, setter, setters, value_of};
use crate::config::values::named;
use crate::config::{
    BackendKind, Config, ConfigError, FlightRecorder, Interface, IntoLimit, Limit, MemoryKind, Options,
    PeerOption, PoolName, Profile, Spill, VARIABLES,
};
use crate::error::PoolError;
use crate::pool::{Observer, Pool, Setup};
#[cfg(all(feature = "status-socket", target_os = "linux"))]
use crate::status_socket;
use crate::trace::{Flight, Trace};
use gpumem_device::Device;
use gpumem_device::internal::not_forked;
use gpumem_sys::env::{self, EnvError};
use std::sync::Arc;

/// Sets up a [`Pool`]; see [`Pool::builder`] and [`PoolBuilder::from_env`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `build`"]
pub struct PoolBuilder {
    device: Device,
    name: Option<String>,
    interface: Interface,
    is_copied_by_address: bool,
    options: Options,
    /// The first setter argument that is not a valid value.
    mistake: Option<ConfigError>,
    peers: Vec<Device>,
    adaptors: Vec<Arc<dyn Adaptor>>,
    observer: Option<Observer>,
    /// The outermost adaptor, but for the tap.
    trace: Option<Arc<Trace>>,
    is_never_recorded: bool,
}

impl Pool {
    /// Creates a pool with the defaults, without reading the environment.
    ///
    /// # Errors
    ///
    /// The errors of [`PoolBuilder::build`] with the defaults: [`DeviceError::Driver`](crate::DeviceError::Driver) if a driver call fails.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Self::builder(device).build()
    }

    /// Creates a pool as configured by `GPUMEM_CONF`, `GPUMEM_KIND`, `GPUMEM_POOL`, `GPUMEM_PROFILE`,
    /// `GPUMEM_HARD_LIMIT`, `GPUMEM_SOFT_LIMIT`, `GPUMEM_FLIGHT_RECORDER`, `GPUMEM_SPILL`, `GPUMEM_TRACE`, `GPUMEM_TRACE_LIMIT` and
    /// `GPUMEM_STATUS`.
    ///
    /// # Errors
    ///
    /// [`PoolError::Env`] for an invalid or unknown `GPUMEM_…` variable, and all errors of [`PoolBuilder::build`].
    pub fn from_env(device: &Device) -> Result<Self, PoolError> {
        PoolBuilder::from_env(device)?.build()
    }

    /// Starts from the defaults, without reading the environment.
    pub fn builder(device: &Device) -> PoolBuilder {
        PoolBuilder::new(device)
    }
}

impl PoolBuilder {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            name: None,
            interface: Interface::Rust,
            is_copied_by_address: false,
            options: Options::default(),
            mistake: None,
            peers: Vec::new(),
            adaptors: Vec::new(),
            observer: None,
            trace: None,
            is_never_recorded: false,
        }
    }

    /// Starts from `GPUMEM_CONF`, `GPUMEM_KIND`, `GPUMEM_POOL`, `GPUMEM_PROFILE`, `GPUMEM_HARD_LIMIT`, `GPUMEM_SOFT_LIMIT`,
    /// `GPUMEM_FLIGHT_RECORDER`, `GPUMEM_SPILL`, `GPUMEM_TRACE`, `GPUMEM_TRACE_LIMIT` and `GPUMEM_STATUS`. Later calls on the builder override the variables.
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
        not_forked()?;
        let mut builder = Self::new(device);
        if let Some(value) = read("GPUMEM_CONF")? {
            let options = Options::parse(&value).map_err(|error| EnvError::BadValue {
                name: "GPUMEM_CONF",
                value,
                expected: error.to_string(),
            })?;
            builder.options = options.of_variable();
        }
        for key in KEYS {
            let Some(name) = key.variable else { continue };
            let Some(value) = read(name)? else { continue };
            if let Err(mistake) = (key.set)(&mut builder.options, &value, name) {
                let mistake = if mistake.is_empty() { mistake } else { mistake + "; " };
                let expected = format!("{mistake}expected {}", key.expected);
                return Err(EnvError::BadValue { name, value, expected }.into());
            }
        }
        let limit_bytes = read("GPUMEM_TRACE_LIMIT")?.map(trace_limit).transpose()?;
        builder.trace = read("GPUMEM_TRACE")?.map(|path| trace(path, limit_bytes)).transpose()?;
        read("GPUMEM_STATUS")?.map(serve_status).transpose()?;
        Ok(builder)
    }

    /// Sets options by name: `key:value,…`; [`conf`](crate::conf) lists them. [`Pool::ignored_options`] lists the given options that
    /// have no effect on the pool's backend.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let builder = Pool::builder(&device).conf("backend:none, max_split_size_mb:128")?;
    /// let pool = builder.build()?;
    /// assert!(pool.ignored_options()[0].to_string().starts_with("max_split_size_mb has no effect on the backend none"));
    /// let mistake = Pool::builder(&device).conf("max_split_size:128").unwrap_err();
    /// assert!(mistake.to_string().contains("did you mean max_split_size_mb?"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ConfigError::UnknownKey`] for an unknown option, [`ConfigError::NoValue`] for one without a value.
    /// - [`ConfigError::BadValue`] for an invalid value.
    /// - [`ConfigError::Twice`] for an option that is given twice, or two options that contradict each other.
    pub fn conf(mut self, text: &str) -> Result<Self, ConfigError> {
        self.options.update(Options::parse(text)?);
        Ok(self)
    }

    /// Names the pool: reports, [`Status`](crate::Status), [`Pool::list`] and `Debug` list it under this name. Two pools may
    /// have one name. A pool without a name is listed under its number.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).name("kv cache").hard_limit(64 << 20).build()?;
    /// let error = pool.alloc(96 << 20, &Stream::new(&device)?).unwrap_err();
    /// assert!(error.to_string().contains("pool kv cache"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    setters!();

    /// Sets the interface whose names the pool's reports use, for code that builds pools for programs in other languages.
    ///
    /// ```
    /// use gpumem_pool::{Device, Interface, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).interface(Interface::Python).hard_limit("64MiB").build()?;
    /// let error = pool.alloc(96 << 20, &Stream::new(&device)?).unwrap_err();
    /// assert!(error.to_string().contains("(hard_limit= of gpumem.Pool, or Pool.set_hard_limit)"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interface(mut self, interface: Interface) -> Self {
        self.interface = interface;
        self
    }

    /// For a pool that other libraries use: it has plain segments if the device lacks a link to any other device, unless
    /// `expandable_segments` is set.
    pub(crate) fn copied_by_address(mut self) -> Self {
        self.is_copied_by_address = true;
        self
    }

    /// For a pool whose memory the requests of other pools stand for.
    pub(crate) fn not_recorded(mut self) -> Self {
        self.is_never_recorded = true;
        self
    }

    /// Sets the option `peers`: `all` devices with a link, `none`, an ordinal (`1`), or a list of them (`[0,1]`) may use the memory.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().devices(2))?, 0)?;
    /// let pool = Pool::builder(&device).peers("[1]")?.build()?;
    /// assert!(Pool::builder(&device).peers("some").is_err());
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ConfigError::BadValue`] for an invalid text.
    /// - [`ConfigError::Twice`] if [`PoolBuilder::conf`] or this function has set the option.
    pub fn peers(mut self, text: &str) -> Result<Self, ConfigError> {
        const KEY: &str = "peers";
        if matches!(self.options.peers, Some((_, KEY))) {
            return Err(ConfigError::Twice { key: KEY, other: KEY });
        }
        let mistake = |place| ConfigError::bad_value(KEY, text, place, PeerOption::FORMS);
        self.options.peers = Some((named(text).map_err(mistake)?, KEY));
        Ok(self)
    }

    /// Gives the streams of these devices access to the pool's blocks; see [`Pool::enable_peer_access`].
    pub fn peer_access(mut self, peers: &[Device]) -> Self {
        self.peers = peers.to_vec();
        self
    }

    /// Calls `observer` with every error of this pool that reports a lack of memory: [`PoolError::OutOfMemory`] and
    /// [`PoolError::LimitReached`], which have a report ([`PoolError::out_of_memory`]), and [`PoolError::TooLarge`]. A refusal of an adaptor that is not about memory ([`PoolError::Refused`]) is not passed to it.
    ///
    /// The call happens once, on the requesting thread, before the request returns. Refusals during a request that finally succeeds are not
    /// reported. No lock is held, so the observer may inspect the pool and free blocks. Its own requests are not reported to it. Its panics
    /// propagate to the caller.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::{Arc, Mutex};
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?, 0)?;
    /// let log = Arc::new(Mutex::new(Vec::new()));
    /// let lines = Arc::clone(&log);
    /// let observed = Pool::builder(&device).on_out_of_memory(move |error| lines.lock().unwrap().push(error.to_string()));
    /// let pool = observed.hard_limit(64 << 20).build()?;
    /// let stream = Stream::new(&device)?;
    /// assert!(pool.alloc(96 << 20, &stream).is_err() && pool.alloc(2 << 30, &stream).is_err());
    /// let log = log.lock().unwrap();
    /// assert!(log[0].contains("the limit of 64.000 MiB refused 96.000 MiB"), "{log:?}");
    /// assert!(log[1].contains("the device has only 1.000 GiB"), "{log:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_out_of_memory(mut self, observer: impl Fn(&PoolError) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Adds an adaptor around the pool and the adaptors added before: the last one sees a request first. See
    /// [`adaptor`](crate::adaptor).
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream, adaptor::Budget};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::Arc;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let budget = Arc::new(Budget::new(1 << 20));
    /// let pool = Pool::builder(&device).adaptor(budget.clone()).build()?;
    /// let stream = Stream::new(&device)?;
    /// let block = pool.alloc(600 << 10, &stream)?;
    /// assert!(matches!(pool.alloc(600 << 10, &stream), Err(PoolError::LimitReached(_))));
    /// assert_eq!(budget.in_use_bytes(), 600 << 10);
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adaptor(mut self, adaptor: Arc<dyn Adaptor>) -> Self {
        self.adaptors.push(adaptor);
        self
    }

    /// Returns the trace that the pool records into because of `GPUMEM_TRACE` ([`PoolBuilder::from_env`]), for [`Trace::flush`]. `None`
    /// without the variable, and for traces that are added as adaptors.
    #[must_use]
    pub fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// Creates the pool.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] if the backend or the kind is unavailable or lacks a requested property, or if a peer device has no link.
    /// - [`PoolError::BadArgument`] for a hard limit below the minimum.
    /// - [`PoolError::Config`] with [`ConfigError::LimitSyntax`] for an invalid text or a share outside 0 to 100 %,
    ///   [`ConfigError::ShareOfHost`] for a share of host memory, or [`ConfigError::Twice`] for options that contradict each other.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a driver call fails.
    pub fn build(mut self) -> Result<Pool, PoolError> {
        not_forked()?;
        if let Some(mistake) = self.mistake {
            return Err(mistake.into());
        }
        let is_copied_by_address = self.is_copied_by_address || self.interface.copies_by_address();
        let config =
            Config { interface: self.interface, is_copied_by_address, ..Config::new(&self.options)? };
        self.adaptors.extend(self.trace.take().map(|trace| trace as _));
        let flight = Flight::of(&config.flight_recorder);
        self.adaptors.extend(flight.clone().map(|flight| flight as _));
        // Memory of the host is in no limit of the device.
        if !self.is_never_recorded && config.kind != MemoryKind::Host {
            self.adaptors.extend(tap());
        }
        let setup = Setup {
            name: PoolName::new(self.name.as_deref(), None),
            config,
            device: self.device,
            peers: self.peers,
            parent: None,
            observer: self.observer,
            witness: flight.map(|flight| flight as _),
        };
        Pool::build(setup, self.adaptors, None)
    }
}

fn trace_limit(value: String) -> Result<u64, EnvError> {
    match value.parse() {
        Ok(Limit::Bytes(limit_bytes)) => Ok(limit_bytes),
        _ => {
            let expected = "expected bytes, with or without a unit (64MiB)".into();
            Err(EnvError::BadValue { name: "GPUMEM_TRACE_LIMIT", value, expected })
        }
    }
}

/// Serves the status socket of the process, as the value of `GPUMEM_STATUS` says.
fn serve_status(value: String) -> Result<(), EnvError> {
    #[cfg(all(feature = "status-socket", target_os = "linux"))]
    let served = status_socket::serve(&value);
    #[cfg(not(all(feature = "status-socket", target_os = "linux")))]
    let served = match value.trim().to_lowercase().as_str() {
        "off" | "false" | "0" => Ok(()),
        _ if cfg!(target_os = "linux") => Err(
            "this program was built without the feature `status-socket` of gpumem-pool: unset the variable, or build it with the feature",
        ),
        _ => Err("running processes can be looked into on Linux only: unset the variable"),
    };
    served.map_err(|problem| EnvError::BadValue {
        name: "GPUMEM_STATUS",
        value,
        expected: problem.to_string(),
    })
}

/// The recorder of new pools that begins on demand.
fn tap() -> Option<Arc<dyn Adaptor>> {
    #[cfg(all(feature = "status-socket", target_os = "linux"))]
    let tap = status_socket::is_served().then(|| crate::trace::Tap::shared() as _);
    #[cfg(not(all(feature = "status-socket", target_os = "linux")))]
    let tap = None;
    tap
}

/// All pools of a process record into one file.
fn trace(path: String, limit_bytes: Option<u64>) -> Result<Arc<Trace>, EnvError> {
    Trace::kept(path.as_ref(), limit_bytes).map_err(|error| EnvError::BadValue {
        name: "GPUMEM_TRACE",
        value: path,
        expected: format!("name a file that can be written ({error})"),
    })
}

#[cfg(test)]
mod tests;
