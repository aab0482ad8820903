//! The settings of an instance, from a builder or from the environment.

pub(crate) mod choices;
pub(crate) mod cost;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod rules;

use crate::config::choices::Schedule;
use crate::config::cost::Costs;
use crate::config::environment::read;
use crate::config::rules::Rule;
use core::time::Duration;
use gpumem_sys::env::{EnvError, parse_size};
use std::collections::BTreeSet;

/// The settings of an instance.
///
/// ```
/// use gpumem_sim::SimConfig;
///
/// let driver = gpumem_sim::driver(SimConfig::new().seed(42).devices(2).memory_bytes(1 << 30))?;
/// # let _ = driver;
/// # Ok::<(), gpumem_sim::SimError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SimConfig {
    pub(crate) seed: u64,
    pub(crate) device_count: u32,
    pub(crate) memory_bytes: u64,
    /// The host's page cache, if the devices are integrated.
    pub(crate) page_cache_bytes: Option<u64>,
    pub(crate) costs: Costs,
    /// Pairs of devices, the lesser first, that have no link.
    pub(crate) severed: BTreeSet<(u32, u32)>,
    pub(crate) is_looking_for_races: bool,
    pub(crate) is_unwritten_wanted: bool,
    pub(crate) is_looking_inside_kernels: bool,
    pub(crate) is_work_skipped: bool,
    pub(crate) takes_backtraces: bool,
    pub(crate) kernel_steps_max: u64,
    pub(crate) host_function_wait: Duration,
    pub(crate) schedule: Schedule,
    pub(crate) rules: Vec<Rule>,
}

impl SimConfig {
    /// One device with 8 GiB, seed 0.
    pub fn new() -> Self {
        Self {
            seed: 0,
            device_count: 1,
            memory_bytes: 8 << 30,
            page_cache_bytes: None,
            costs: Costs::h200(),
            is_looking_for_races: true,
            is_unwritten_wanted: false,
            is_looking_inside_kernels: false,
            is_work_skipped: false,
            takes_backtraces: false,
            kernel_steps_max: KERNEL_STEPS,
            host_function_wait: HOST_FUNCTION_WAIT,
            schedule: Schedule::Random,
            rules: Vec::new(),
            severed: BTreeSet::new(),
        }
    }

    /// One device with the memory and the costs of an H200. Only memory that is touched needs host memory.
    ///
    /// ```
    /// # use gpumem_sim::SimConfig;
    /// let driver = gpumem_sim::driver(SimConfig::h200())?;
    /// # let _ = driver;
    /// # Ok::<(), gpumem_sim::SimError>(())
    /// ```
    pub fn h200() -> Self {
        Self::new().memory_bytes(143_771 << 20).costs(Costs::h200())
    }

    /// One device with 64 MiB, to test a device that is full.
    pub fn small() -> Self {
        Self::new().memory_bytes(64 << 20)
    }

    /// Sets the seed, which selects one order of queued work among all orders that streams and events allow.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the schedule of queued work (default [`Schedule::Random`]).
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Adds an injected fault. [`driver`](crate::driver) refuses a rule that can never apply.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the number of devices, at most [`DEVICES_MAX`]; 0 is a machine without a GPU.
    pub fn devices(mut self, count: u32) -> Self {
        self.device_count = count;
        self
    }

    /// Sets the memory of each device, at most [`MEMORY_BYTES_MAX`]. Only memory that is touched needs host memory.
    pub fn memory_bytes(mut self, size_bytes: u64) -> Self {
        self.memory_bytes = size_bytes;
        self
    }

    /// Makes each device an integrated one, as on Tegra or DGX Spark: its memory is the host's, of which `page_cache_bytes` are in
    /// the page cache. `cuMemGetInfo` counts the page cache as used, although the system gives it up for an allocation.
    ///
    /// ```
    /// # use gpumem_sim::SimConfig;
    /// use gpumem_sys::types::CUdevice_attribute;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(8 << 30).integrated(7 << 30))?;
    /// let mut is_integrated = 0;
    /// // SAFETY: the local outlives the call.
    /// unsafe { driver.cuDeviceGetAttribute(&mut is_integrated, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0)? };
    /// assert_eq!(is_integrated, 1);
    /// assert_eq!(driver.extension().and_then(|sim| sim.available_bytes(0)), Some(8 << 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn integrated(mut self, page_cache_bytes: u64) -> Self {
        self.page_cache_bytes = Some(page_cache_bytes);
        self
    }

    /// Sets the costs of calls and work on the virtual clock (default [`Costs::h200`]).
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Removes the link between two devices: neither can access the other's memory, and copies between them go through the host. By
    /// default every two devices are linked.
    ///
    /// ```
    /// # use gpumem_sim::SimConfig;
    /// let driver = gpumem_sim::driver(SimConfig::new().devices(3).without_link(0, 2))?;
    /// let (mut near, mut far) = (0, 0);
    /// // SAFETY: locals outlive the calls.
    /// unsafe {
    ///     driver.cuDeviceCanAccessPeer(&mut near, 0, 1)?;
    ///     driver.cuDeviceCanAccessPeer(&mut far, 0, 2)?;
    /// }
    /// assert_eq!((near, far), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_link(mut self, device: u32, peer: u32) -> Self {
        self.severed.insert((device.min(peer), device.max(peer)));
        self
    }

    /// Turns race detection on or off (default on). Without it the simulator is faster.
    pub fn races(mut self, is_looking: bool) -> Self {
        self.is_looking_for_races = is_looking;
        self
    }

    /// Reports reads of memory that was never written (default off, because programs copy padding), and in kernels uses of values that a
    /// shuffle took from a lane that does not take part. Needs race detection.
    pub fn uninitialised(mut self, is_looking: bool) -> Self {
        self.is_unwritten_wanted = is_looking;
        self
    }

    /// Reports races between the threads of one kernel, in shared and in global memory, and uses of the target of an asynchronous copy before
    /// its wait (default off: a kernel takes many times longer, and about twenty bytes of host memory for each byte that it accesses). Kernels that run as Rust functions are not looked into.
    /// With this check or [`SimConfig::uninitialised`] there are also unused bytes behind each small allocation of `cuMemAlloc`, so
    /// that an overrun by little does not reach a neighbour.
    pub fn kernel_races(mut self, is_looking: bool) -> Self {
        self.is_looking_inside_kernels = is_looking;
        self
    }

    /// Sets the steps of warps after which a kernel that runs from its text counts as endless and is stopped, with
    /// `CUDA_ERROR_LAUNCH_TIMEOUT` (default 2³²: some minutes of one core, hours for threads that wait under [`SimConfig::kernel_races`]). A step is one instruction of one warp.
    ///
    /// ```
    /// # use gpumem_sim::SimConfig;
    /// let driver = gpumem_sim::driver(SimConfig::new().kernel_steps(1 << 20))?;
    /// # let _ = driver;
    /// # Ok::<(), gpumem_sim::SimError>(())
    /// ```
    pub fn kernel_steps(mut self, count: u64) -> Self {
        self.kernel_steps_max = count;
        self
    }

    /// Skips kernels, and copies and fills of device memory (default off): only the program's allocations and their order count, for example
    /// to find how much memory a program needs. Such memory takes no host memory, whatever its size. Copies to the host give zeros.
    ///
    /// Kernels whose text the simulator cannot run can be launched then. Addresses of copies and fills are checked as always.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// // A device of 80 GiB on any machine.
    /// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(80 << 30).skip_work(true))?;
    /// # let _ = driver;
    /// # Ok::<(), gpumem_sim::SimError>(())
    /// ```
    pub fn skip_work(mut self, is_skipped: bool) -> Self {
        self.is_work_skipped = is_skipped;
        self
    }

    /// Records the call stack of each allocation, which findings then show (default off). Each allocation takes some microseconds
    /// longer.
    pub fn backtraces(mut self, takes: bool) -> Self {
        self.takes_backtraces = takes;
        self
    }

    /// Sets the time that a call waits for a host function whose result it does not need (default 250 ms).
    ///
    /// A host function that returns within this time has returned at the same point of every run under one seed. One that waits for
    /// the calling thread delays the call by this time, so a test of such functions sets a shorter one.
    ///
    /// ```
    /// # use gpumem_sim::SimConfig;
    /// # use std::time::Duration;
    /// let driver = gpumem_sim::driver(SimConfig::new().host_function_wait(Duration::from_millis(2)))?;
    /// # let _ = driver;
    /// # Ok::<(), gpumem_sim::SimError>(())
    /// ```
    pub fn host_function_wait(mut self, wait: Duration) -> Self {
        self.host_function_wait = wait;
        self
    }

    /// The settings of the `GPUMEM_SIM_…` variables, and defaults for those that are unset.
    ///
    /// # Errors
    ///
    /// [`EnvError::UnknownVariable`] for an unknown `GPUMEM_…` name; [`EnvError::BadValue`] for a value that does not parse.
    pub fn from_env() -> Result<Self, EnvError> {
        let mut config = Self::new();
        if let Some(value) = read(SEED)? {
            config.seed = parse_seed(value)?;
        }
        if let Some(value) = read(DEVICES)? {
            config.device_count = parse_devices(value)?;
        }
        if read(LINKS)?.map(parse_links).transpose()? == Some(false) {
            let pairs = (0..config.device_count).flat_map(|peer| (0..peer).map(move |device| (device, peer)));
            config.severed.extend(pairs);
        }
        if let Some(value) = read(MEMORY)? {
            config.memory_bytes = parse_memory(value)?;
        }
        if let Some(value) = read(INTEGRATED)? {
            config.page_cache_bytes = Some(parse_page_cache(value)?);
        }
        if let Some(value) = read(SCHEDULE)? {
            config.schedule = value.parse().map_err(|()| bad(SCHEDULE, value, SCHEDULE_EXPECTED))?;
        }
        if let Some(value) = read(RULES)? {
            config.rules = Rule::parse_list(&value).map_err(|error| bad(RULES, value, &error.to_string()))?;
        }
        if let Some(value) = read(CHECKS)? {
            (config.is_looking_inside_kernels, config.is_unwritten_wanted) = parse_checks(value)?;
        }
        if let Some(value) = read(KERNEL_STEPS_VARIABLE)? {
            config.kernel_steps_max = parse_steps(value)?;
        }
        if let Some(value) = read(WORK)? {
            config.is_work_skipped = parse_work(value)?;
        }
        if let Some(value) = read(BACKTRACES)? {
            config.takes_backtraces = parse_backtraces(value)?;
        }
        Ok(config)
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The largest number of devices.
pub const DEVICES_MAX: u32 = 64;

/// The largest memory of a device: 4 TiB.
pub const MEMORY_BYTES_MAX: u64 = crate::base::address::DEVICE_SPACE_BYTES / 2;

/// Long, so that only a function that waits for something else exceeds it.
const HOST_FUNCTION_WAIT: Duration = Duration::from_millis(250);

const KERNEL_STEPS: u64 = 1 << 32;

const SEED: &str = "GPUMEM_SIM_SEED";
const DEVICES: &str = "GPUMEM_SIM_DEVICES";
const MEMORY: &str = "GPUMEM_SIM_MEMORY";
const INTEGRATED: &str = "GPUMEM_SIM_INTEGRATED";
const SCHEDULE: &str = "GPUMEM_SIM_SCHEDULE";
const RULES: &str = "GPUMEM_SIM_RULES";
const CHECKS: &str = "GPUMEM_SIM_CHECKS";
/// Also named to the user of a kernel that was stopped.
pub(crate) const KERNEL_STEPS_VARIABLE: &str = "GPUMEM_SIM_KERNEL_STEPS";
const BACKTRACES: &str = "GPUMEM_SIM_BACKTRACES";
const WORK: &str = "GPUMEM_SIM_WORK";
const LINKS: &str = "GPUMEM_SIM_LINKS";

const SCHEDULE_EXPECTED: &str = "use random, late, early, or choices such as 0.2.1";

fn parse_seed(value: String) -> Result<u64, EnvError> {
    value.trim().parse().map_err(|_| bad(SEED, value, "use a whole number from 0 to 18446744073709551615"))
}

fn parse_devices(value: String) -> Result<u32, EnvError> {
    let count = value.trim().parse().ok().filter(|count| *count <= DEVICES_MAX);
    count.ok_or_else(|| bad(DEVICES, value, "use a whole number from 0 (no GPU) to 64"))
}

fn parse_memory(value: String) -> Result<u64, EnvError> {
    let size = parse_size(&value).filter(|size| (MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(size));
    size.ok_or_else(|| bad(MEMORY, value, "use a size from 2MiB to 4TiB, such as 8GiB, 500MB or 8589934592"))
}

fn parse_page_cache(value: String) -> Result<u64, EnvError> {
    let size = parse_size(&value);
    size.ok_or_else(|| bad(INTEGRATED, value, "use a size such as 6GiB, 500MB or 0: the host's page cache"))
}

/// True for links between all devices, false for none.
fn parse_links(value: String) -> Result<bool, EnvError> {
    match value.trim().to_lowercase().as_str() {
        "all" => Ok(true),
        "none" => Ok(false),
        _ => Err(bad(LINKS, value, "use all or none")),
    }
}

/// Whether races inside of kernels are looked for, and reads of unwritten memory.
fn parse_checks(value: String) -> Result<(bool, bool), EnvError> {
    let mut found = (false, false);
    for check in value.split(',').map(str::trim).filter(|check| !check.is_empty()) {
        match check {
            "kernel-races" => found.0 = true,
            "uninitialised" => found.1 = true,
            _ => return Err(bad(CHECKS, value, "use `kernel-races`, `uninitialised` or both, with a comma")),
        }
    }
    Ok(found)
}

fn parse_steps(value: String) -> Result<u64, EnvError> {
    let count = value.trim().parse().ok().filter(|count| *count > 0);
    count
        .ok_or_else(|| bad(KERNEL_STEPS_VARIABLE, value, "use a whole number from 1 to 18446744073709551615"))
}

/// True if work is skipped.
fn parse_work(value: String) -> Result<bool, EnvError> {
    match value.trim().to_lowercase().as_str() {
        "run" => Ok(false),
        "skip" => Ok(true),
        _ => Err(bad(WORK, value, "use run or skip")),
    }
}

fn parse_backtraces(value: String) -> Result<bool, EnvError> {
    match value.trim().to_lowercase().as_str() {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(bad(BACKTRACES, value, "use 1 or 0")),
    }
}

fn bad(name: &'static str, value: String, expected: &str) -> EnvError {
    EnvError::BadValue { name, value, expected: expected.into() }
}

const MEMORY_BYTES_MIN: u64 = crate::base::address::CHUNK_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_parse() {
        assert_eq!(parse_seed(" 18446744073709551615 ".into()), Ok(u64::MAX));
        assert_eq!(parse_devices("0".into()), Ok(0));
        assert_eq!(parse_steps(" 4294967296".into()), Ok(1 << 32));
        assert_eq!((parse_backtraces("1".into()), parse_backtraces("0".into())), (Ok(true), Ok(false)));
        assert_eq!(
            (parse_backtraces("True".into()), parse_backtraces("FALSE".into())),
            (Ok(true), Ok(false))
        );
        assert_eq!(parse_checks("uninitialised, kernel-races".into()), Ok((true, true)));
        assert_eq!(
            (parse_checks("".into()), parse_checks("kernel-races".into())),
            (Ok((false, false)), Ok((true, false)))
        );
        assert!(parse_checks("races".into()).is_err());
        assert_eq!(parse_memory("141GiB".into()), Ok(141 << 30));
        assert_eq!(parse_memory("8589934592".into()), Ok(8 << 30));
        assert_eq!((parse_work("Skip".into()), parse_work(" run".into())), (Ok(true), Ok(false)));
        assert_eq!((parse_links("all".into()), parse_links(" None".into())), (Ok(true), Ok(false)));
        assert_eq!((parse_page_cache("0".into()), parse_page_cache("6GiB".into())), (Ok(0), Ok(6 << 30)));
    }

    #[test]
    fn values_that_do_not_parse_say_what_would() {
        let texts = [
            parse_seed("-1".into()).unwrap_err(),
            parse_devices("65".into()).unwrap_err(),
            parse_memory("lots".into()).unwrap_err(),
            parse_memory("1KiB".into()).unwrap_err(),
            parse_backtraces("yes".into()).unwrap_err(),
            parse_page_cache("yes".into()).unwrap_err(),
            parse_links("some".into()).unwrap_err(),
            parse_steps("0".into()).unwrap_err(),
            parse_work("no".into()).unwrap_err(),
        ]
        .map(|error| error.to_string());
        assert!(
            texts[0].contains("GPUMEM_SIM_SEED=\"-1\"") && texts[0].contains("whole number"),
            "{texts:?}"
        );
        assert!(
            texts[4].contains("1 or 0")
                && texts[1].contains("to 64")
                && texts[2].contains("8GiB")
                && texts[3].contains("2MiB")
                && texts[5].contains("GPUMEM_SIM_INTEGRATED=\"yes\"")
                && texts[6].contains("all or none")
                && texts[7].contains("GPUMEM_SIM_KERNEL_STEPS=\"0\"")
                && texts[7].contains("from 1")
                && texts[8].contains("run or skip"),
            "{texts:?}"
        );
    }
}
