//! `gpumem doctor`: what this machine has for programs that use gpumem, what it lacks, and whether it is as fast as usual.

use crate::output::{BAD, GOOD, HEADING, NOTE, Verdict, print, styled};
use anyhow::Result;
use core::fmt::Write as _;
use core::time::Duration;
use gpumem_sim::SimConfig;
use gpumem_trace::pool::sys::text::Shown;
use gpumem_trace::pool::sys::types::CUdevice_attribute;
use gpumem_trace::pool::sys::{Driver, DriverKind, LoadError, env};
use gpumem_trace::pool::{Bytes, Device, MemoryKind, Pool, PoolBuilder, PoolError, Stream};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The Python whose packages are looked at
    #[arg(long, value_name = "PROGRAM", default_value = DEFAULT_PYTHON)]
    python: String,
    /// Leave out the measurements
    #[arg(long)]
    quick: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Only build a pool from the variables
    #[arg(long, hide = true)]
    variables: bool,
}

/// One row: what was looked at, what was found, and what to do about it.
struct Row {
    section: &'static str,
    name: String,
    found: String,
    grade: Grade,
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Good,
    Note,
    Bad,
}

/// The rows so far.
#[derive(Default)]
struct Rows {
    list: Vec<Row>,
    /// The error of a variable that the driver reads.
    variable_error: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if args.variables {
        return check_variables();
    }
    let mut rows = Rows::default();
    let driver = driver(&mut rows);
    variables(&mut rows);
    if let Some(driver) = &driver {
        devices(&mut rows, driver, args.quick);
    }
    python(&mut rows, &args.python);
    print(&if args.json { format!("{}\n", rows.json()) } else { rows.text() })?;
    Ok(Verdict::of(rows.list.iter().all(|row| row.grade != Grade::Bad)))
}

/// The vendor's driver, or the simulator if `GPUMEM_DRIVER` names it.
fn driver(rows: &mut Rows) -> Option<Driver> {
    match gpumem_sim::from_env() {
        Ok(driver) => {
            let version = cuda_version(&driver);
            let name = if driver.kind() == DriverKind::Cuda {
                "NVIDIA's driver"
            } else {
                "the simulator (GPUMEM_DRIVER)"
            };
            let found = format!("{name}, for CUDA {}.{}", version / 1000, version % 1000 / 10);
            rows.good("driver", "library", found);
            Some(driver)
        }
        Err(error @ gpumem_sim::SimError::Env(_)) => {
            rows.add(
                "driver",
                "library",
                "not looked at, because of a variable below".into(),
                Grade::Note,
                None,
            );
            rows.variable_error = Some(error.to_string());
            None
        }
        Err(error) => {
            let is_missing = matches!(
                error,
                gpumem_sim::SimError::Load(LoadError::NoLibrary { .. } | LoadError::NoDevice(_))
            );
            let advice = if is_missing {
                "install NVIDIA's driver, and in a container start it with the GPU (--gpus all); programs and tests run on the simulator without"
            } else {
                "set GPUMEM_DRIVER to cuda, sim or drop-in, or unset it"
            };
            rows.add("driver", "library", error.to_string(), Grade::Bad, Some(advice.into()));
            None
        }
    }
}

/// The newest version of CUDA that a driver supports, such as 13000.
#[allow(unsafe_code)]
fn cuda_version(driver: &Driver) -> i32 {
    let mut version = 0;
    // SAFETY: the target is valid for the write.
    match unsafe { driver.cuDriverGetVersion(&mut version) } {
        Ok(()) => version,
        Err(_) => 0,
    }
}

/// True if a device can use the memory of another.
#[allow(unsafe_code)]
fn has_link(device: &Device, other: &Device) -> bool {
    let mut can = 0;
    // SAFETY: the target is valid for the write.
    let asked = unsafe { device.driver().cuDeviceCanAccessPeer(&mut can, device.raw(), other.raw()) };
    asked.is_ok() && can != 0
}

/// The variables of this project that are set.
fn variables(rows: &mut Rows) {
    let section = "environment";
    let known = [env::VARIABLES, gpumem_trace::pool::VARIABLES, gpumem_sim::VARIABLES];
    let mut names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok().filter(|name| name.starts_with("GPUMEM_")))
        .collect();
    names.sort_unstable();
    let is_known = |name: &str| {
        known.iter().copied().flatten().any(|variable| variable.name == name) || env::RESERVED.contains(&name)
    };
    // A program ends with the first error, and unknown names come first.
    let error = if names.iter().all(|name| is_known(name)) {
        rows.variable_error.take().or_else(value_error)
    } else {
        None
    };
    for name in &names {
        let value = std::env::var_os(name).unwrap_or_default();
        let value = Shown::name(&value.to_string_lossy()).to_string();
        match &error {
            _ if !is_known(name) => {
                let advice = "unset it, or correct the name: programs refuse unknown names; docs/reference/environment.md lists all";
                rows.add(section, name, value, Grade::Bad, Some(advice.into()));
            }
            Some(error) if error.contains(name.as_str()) => {
                let advice = "correct the value: a program that reads it ends with this error";
                rows.add(section, name, error.clone(), Grade::Bad, Some(advice.into()));
            }
            _ => rows.good(section, name, value),
        }
    }
    // An error that names none of them.
    if let Some(error) = error.filter(|error| !names.iter().any(|name| error.contains(name.as_str()))) {
        rows.add(section, "values", error, Grade::Bad, None);
    }
    for name in ["GPUMEM_TRACE", "GPUMEM_FLIGHT_RECORDER"] {
        let value = std::env::var_os(name).map(PathBuf::from).filter(|path| path.components().count() > 1);
        let folder = value.as_deref().and_then(Path::parent);
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let found = format!("there is no folder {}", Shown::path(folder));
            rows.add(
                section,
                name,
                found,
                Grade::Bad,
                Some("make it, or name a file in another folder".into()),
            );
        }
    }
    if names.is_empty() {
        rows.good(section, "GPUMEM_…", "none is set".into());
    }
}

/// The error of a pool that reads the variables, on a simulated device. A process of its own builds the pool, without the variables that
/// write files.
fn value_error() -> Option<String> {
    let output = Command::new(std::env::current_exe().ok()?)
        .args(["doctor", "--variables"])
        .env_remove("GPUMEM_TRACE")
        .env_remove("GPUMEM_FLIGHT_RECORDER")
        .output();
    let error = output.ok().filter(|output| !output.status.success())?.stderr;
    let text = String::from_utf8_lossy(&error).trim().to_string();
    Some(text.strip_prefix("error: ").unwrap_or(&text).into())
}

/// Builds the pool.
fn check_variables() -> Result<Verdict> {
    let device = Device::new(&gpumem_sim::driver(SimConfig::from_env()?)?, 0)?;
    PoolBuilder::from_env(&device)?.build()?;
    Ok(Verdict::Yes)
}

fn devices(rows: &mut Rows, driver: &Driver, is_quick: bool) {
    let count = match Device::count(driver) {
        Ok(count) => count,
        Err(error) => {
            return rows.add(
                "devices",
                "devices",
                error.to_string(),
                Grade::Bad,
                Some("see nvidia-smi".into()),
            );
        }
    };
    let mut devices = Vec::new();
    for ordinal in 0..count {
        match Device::new(driver, ordinal) {
            Ok(device) => devices.push(device),
            Err(error) => {
                let advice = "see nvidia-smi, and CUDA_VISIBLE_DEVICES";
                rows.add(
                    "devices",
                    &format!("device {ordinal}"),
                    error.to_string(),
                    Grade::Bad,
                    Some(advice.into()),
                );
            }
        }
    }
    for device in &devices {
        capabilities(rows, device);
        let linked: Vec<String> = devices
            .iter()
            .filter(|other| other.ordinal() != device.ordinal() && has_link(device, other))
            .map(|other| other.ordinal().to_string())
            .collect();
        if devices.len() > 1 {
            let found =
                if linked.is_empty() { "none: copies go through the host".into() } else { linked.join(", ") };
            rows.good(section_of(device), "links to devices", found);
        }
        if !is_quick {
            speed(rows, device);
        }
    }
}

fn section_of(device: &Device) -> &'static str {
    // Few devices: each has a section of its own.
    const SECTIONS: [&str; 8] =
        ["device 0", "device 1", "device 2", "device 3", "device 4", "device 5", "device 6", "device 7"];
    SECTIONS.get(device.ordinal() as usize).copied().unwrap_or("more devices")
}

/// The memory of a device, and which kinds of it there are.
fn capabilities(rows: &mut Rows, device: &Device) {
    let section = section_of(device);
    let (major, minor) = device.compute_capability();
    rows.good(section, "name", format!("{}, compute capability {major}.{minor}", Shown::name(device.name())));
    match device.memory_info() {
        Ok(info) => {
            let (free, total) = (info.free_bytes, info.total_bytes);
            let is_full = free < total / 10;
            let advice = "other programs hold most of it: nvidia-smi lists them";
            let grade = if is_full { Grade::Note } else { Grade::Good };
            rows.add(
                section,
                "memory",
                format!("{} free of {}", Bytes(free), Bytes(total)),
                grade,
                is_full.then(|| advice.into()),
            );
        }
        Err(error) => {
            rows.add(section, "memory", error.to_string(), Grade::Bad, Some("see nvidia-smi".into()))
        }
    }
    type Attribute = CUdevice_attribute;
    let lacking = [
        (
            "virtual memory",
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            "pools use plain segments, and idle memory may lie in pieces",
        ),
        (
            "memory pools",
            Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            "the backend `native` is refused; `caching` works",
        ),
        (
            "managed memory",
            Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            "pools of unified memory are refused",
        ),
        (
            "concurrent managed memory",
            Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
            "the host reads unified memory only while the device is idle",
        ),
        (
            "pageable host memory",
            Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            "kernels cannot read host memory that is not pinned; usual without NVLink-C2C or HMM",
        ),
    ];
    for (name, attribute, without) in lacking {
        match device.attribute(attribute) {
            Ok(0) => rows.add(section, name, format!("no: {without}"), Grade::Note, None),
            Ok(_) => rows.good(section, name, "yes".into()),
            Err(error) => rows.add(section, name, error.to_string(), Grade::Note, None),
        }
    }
}

/// Times a pair of an allocation and a free, and copies.
fn speed(rows: &mut Rows, device: &Device) {
    let section = section_of(device);
    if let Err(error) = pair(rows, device).and_then(|()| copies(rows, device)) {
        rows.add(section, "measurement", error.to_string(), Grade::Bad, None);
    }
}

fn pair(rows: &mut Rows, device: &Device) -> Result<(), PoolError> {
    let (pool, stream) = (Pool::new(device)?, Stream::new(device)?);
    let time = |count: u32| -> Result<Duration, PoolError> {
        let begin = Instant::now();
        for _ in 0..count {
            drop(pool.alloc(PAIR_BYTES, &stream)?);
        }
        Ok(begin.elapsed() / count)
    };
    time(PAIR_COUNT / 10)?;
    let mut took = time(PAIR_COUNT)?;
    for _ in 0..4 {
        took = took.min(time(PAIR_COUNT)?);
    }
    let found = format!("{} ns for {} (usual: {USUAL_PAIR})", took.as_nanos(), Bytes(PAIR_BYTES));
    let is_slow = took.as_nanos() > PAIR_NS_MAX;
    let advice = "an unoptimised build, a busy machine, or a slow clock; try again, with --release if you built it yourself";
    let grade = if is_slow { Grade::Note } else { Grade::Good };
    rows.add(section_of(device), "an allocation and its free", found, grade, is_slow.then(|| advice.into()));
    Ok(())
}

fn copies(rows: &mut Rows, device: &Device) -> Result<(), PoolError> {
    let section = section_of(device);
    if device.driver().kind() != DriverKind::Cuda {
        rows.good(section, "copies", "not measured on the simulator".into());
        return Ok(());
    }
    let stream = Stream::new(device)?;
    let mut on_device = Pool::new(device)?.alloc(COPY_BYTES, &stream)?;
    let mut pinned =
        Pool::builder(device).kind(MemoryKind::Host).build()?.alloc_zeroed(COPY_BYTES, &stream)?;
    let mut best = [0.0_f64; 2];
    for _ in 0..4 {
        stream.synchronize()?;
        let begin = Instant::now();
        on_device.copy_from(0, &pinned, 0..COPY_BYTES, &stream)?;
        stream.synchronize()?;
        let middle = Instant::now();
        pinned.copy_from(0, &on_device, 0..COPY_BYTES, &stream)?;
        stream.synchronize()?;
        let rate = |took: Duration| COPY_BYTES as f64 / took.as_secs_f64() / 1e9;
        best = [best[0].max(rate(middle - begin)), best[1].max(rate(middle.elapsed()))];
    }
    let is_slow = best.iter().any(|rate| *rate < COPY_GB_S_MIN);
    let found = format!("{:.1} GB/s to the device, {:.1} GB/s back (usual: {USUAL_COPY})", best[0], best[1]);
    let advice =
        "compare the link's width and generation in `nvidia-smi -q` (PCI, Link Info) with what the slot has";
    let grade = if is_slow { Grade::Note } else { Grade::Good };
    rows.add(section, "copies of pinned memory", found, grade, is_slow.then(|| advice.into()));
    Ok(())
}

/// The packages of a Python, without importing them.
fn python(rows: &mut Rows, program: &str) {
    let section = "python";
    let output = Command::new(program).args(["-c", VERSIONS]).output();
    let versions: Value = match output.map(|output| serde_json::from_slice(&output.stdout)) {
        Ok(Ok(versions)) => versions,
        // The default need not be there.
        _ if program == DEFAULT_PYTHON => return rows.good(section, program, "not there".into()),
        _ => {
            let advice = "name a Python with --python";
            let found = "not a Python that can be started".into();
            return rows.add(section, program, found, Grade::Bad, Some(advice.into()));
        }
    };
    let version = |name: &str| versions[name].as_str().map(|text| Shown::name(text).to_string());
    let Some(own) = version("gpumem") else {
        let advice =
            "install the wheel, if Python programs are to use gpumem: python3 -m pip install gpumem-….whl";
        return rows.add(section, "gpumem", "not installed".into(), Grade::Note, Some(advice.into()));
    };
    let is_other = own != env!("CARGO_PKG_VERSION");
    let advice = format!(
        "this command is {}: install the wheel and the command of one version",
        env!("CARGO_PKG_VERSION")
    );
    let grade = if is_other { Grade::Note } else { Grade::Good };
    rows.add(section, "gpumem", own, grade, is_other.then_some(advice));
    for name in ["torch", "cupy", "rmm"] {
        let Some(found) = version(name) else {
            rows.good(section, name, "not installed".into());
            continue;
        };
        let advice = (name == "torch").then(|| advice_on_torch(&found)).flatten();
        let grade = if advice.is_some() { Grade::Note } else { Grade::Good };
        rows.add(section, name, found, grade, advice.map(Into::into));
    }
}

fn advice_on_torch(version: &str) -> Option<&'static str> {
    if version.contains("+cpu") {
        return Some("this PyTorch has no CUDA, so gpumem.torch.install() is refused: install one for CUDA");
    }
    let is_tested = version
        .strip_prefix(TESTED_TORCH)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()));
    (!is_tested).then_some("gpumem is tested with another version of PyTorch, 2.11; this one may work")
}

impl Rows {
    fn add(
        &mut self,
        section: &'static str,
        name: &str,
        found: String,
        grade: Grade,
        advice: Option<String>,
    ) {
        self.list.push(Row { section, name: name.into(), found, grade, advice });
    }

    fn good(&mut self, section: &'static str, name: &str, found: String) {
        self.add(section, name, found, Grade::Good, None);
    }

    fn text(&self) -> String {
        let (mut text, mut section) = (String::new(), "");
        let width = self.list.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for row in &self.list {
            if row.section != section {
                section = row.section;
                let _ = writeln!(text, "{}", styled(HEADING, section));
            }
            let grade = match row.grade {
                Grade::Good => styled(GOOD, "ok  "),
                Grade::Note => styled(NOTE, "note"),
                Grade::Bad => styled(BAD, "bad "),
            };
            let _ = writeln!(text, "  {grade}  {:<width$}  {}", row.name, row.found);
            if let Some(advice) = &row.advice {
                let _ = writeln!(text, "        {:<width$}  → {advice}", "");
            }
        }
        let [notes, bad] =
            [Grade::Note, Grade::Bad].map(|grade| self.list.iter().filter(|row| row.grade == grade).count());
        text + &match (notes, bad) {
            (_, 0) => format!("\n{}, {notes} to note\n", styled(GOOD, "nothing is wrong")),
            (_, bad) => format!("\n{}, {notes} to note\n", styled(BAD, format!("{bad} wrong"))),
        }
    }

    fn json(&self) -> Value {
        let rows = self.list.iter().map(|row| {
            let grade = match row.grade {
                Grade::Good => "ok",
                Grade::Note => "note",
                Grade::Bad => "bad",
            };
            json!({"section": row.section, "name": row.name, "found": row.found, "grade": grade, "advice": row.advice})
        });
        json!({"rows": rows.collect::<Vec<_>>(), "is_good": self.list.iter().all(|row| row.grade != Grade::Bad)})
    }
}

const DEFAULT_PYTHON: &str = "python3";

/// The version that the wheel is tested with, as in `gpumem.torch`; the tests of the wheel compare the two.
const TESTED_TORCH: &str = "2.11";

const PAIR_BYTES: u64 = 4096;
const PAIR_COUNT: u32 = 100_000;
const USUAL_PAIR: &str = "8 to 20 ns";
const PAIR_NS_MAX: u128 = 60;
const COPY_BYTES: u64 = 256 << 20;
const USUAL_COPY: &str = "12 on PCIe 3, 25 on PCIe 4, 50 on PCIe 5";
const COPY_GB_S_MIN: f64 = 10.0;

const VERSIONS: &str = "\
import json
from importlib import metadata

def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass

print(json.dumps({
    'gpumem': version('gpumem-pool'),
    'torch': version('torch'),
    'cupy': version('cupy-cuda13x', 'cupy-cuda12x', 'cupy-cuda11x', 'cupy'),
    'rmm': version('rmm-cu13', 'rmm-cu12', 'rmm-cu11', 'rmm'),
}))";

#[cfg(test)]
mod tests {
    use super::{TESTED_TORCH, advice_on_torch};

    #[test]
    fn other_versions_of_pytorch_are_noted() {
        assert!(advice_on_torch("2.11.0+cu130").is_none() && advice_on_torch("2.11").is_none());
        assert!(advice_on_torch("2.11.0+cpu").unwrap().contains("no CUDA"));
        assert!(
            advice_on_torch("2.1.0").unwrap().contains(TESTED_TORCH) && advice_on_torch("2.110.0").is_some()
        );
    }
}
