//! The sockets of running processes.

use super::client;
use gpumem_trace::pool::sys::text::Shown;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use std::path::{Path, PathBuf};

/// Where sockets are looked for.
#[derive(Clone)]
pub(super) struct Places {
    paths: Vec<PathBuf>,
    pids: Vec<u32>,
}

impl Places {
    pub(super) fn new(named: &[PathBuf], pids: &[u32]) -> Self {
        let paths = if named.is_empty() { default_places() } else { named.to_vec() };
        Self { paths, pids: pids.to_vec() }
    }

    /// The sockets, by the number in the name, or without one by their path.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        let mut found = BTreeMap::new();
        for path in &self.paths {
            if is_socket(path) {
                found.insert((pid_of(path), path.clone()), ());
                continue;
            }
            let Ok(entries) = std::fs::read_dir(path) else { continue };
            for entry in entries.flatten() {
                let path = entry.path();
                let Some(pid) = pid_of(&path).filter(|_| is_socket(&path)) else { continue };
                if self.pids.is_empty() || self.pids.contains(&pid) {
                    found.insert((Some(pid), path), ());
                }
            }
        }
        found.into_keys().map(|(_, path)| path).filter(|path| !is_left(path)).collect()
    }

    /// True if the process with this number is to be shown.
    pub(super) fn wants(&self, pid: Option<u64>) -> bool {
        self.pids.is_empty() || pid.is_some_and(|pid| self.pids.iter().any(|one| u64::from(*one) == pid))
    }

    pub(super) fn nothing_found(&self) -> String {
        let paths: Vec<String> = self.paths.iter().map(|path| Shown::path(path).to_string()).collect();
        let whom = match &*self.pids {
            [] => "no process".to_string(),
            [pid] => format!("process {pid}"),
            pids => format!("none of {} processes", pids.len()),
        };
        let serves = if self.pids.len() == 1 { "does not serve" } else { "serves" };
        format!(
            "{whom} {serves} a status socket in {}; start the program with GPUMEM_STATUS=on as this user, or name its socket with --socket; \
             a Rust program also needs the feature `status-socket` of gpumem, and a pool built from the environment (Pool::from_env, \
             PoolBuilder::from_env, Gpu::open)",
            paths.join(" or ")
        )
    }
}

/// The folders that GPUMEM_STATUS=on uses for this user, with and without a runtime folder, and the one that the variable names here.
fn default_places() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    let named = std::env::var_os("GPUMEM_STATUS").map(PathBuf::from);
    let named = named.filter(|path| path.to_str().is_none_or(|path| path.contains('/')));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("gpumem"));
    let usual = PathBuf::from(format!("/run/user/{user}/gpumem"));
    let mut places: Vec<PathBuf> = named.into_iter().chain(runtime).collect();
    if places.iter().all(|place| *place != usual) && usual.is_dir() {
        places.push(usual);
    }
    places.push(PathBuf::from(format!("/tmp/gpumem-{user}")));
    places
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The number in `gpumem-PID.sock`.
fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("gpumem-")?.strip_suffix(".sock")?.parse().ok()
}

/// True if the process of the socket is gone. Then the socket is removed, if it is this user's.
fn is_left(path: &Path) -> bool {
    match client::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let is_own = std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == geteuid().as_raw());
            if is_own && pid_of(path).is_some() {
                let _ = std::fs::remove_file(path);
            }
            true
        }
        Err(error) => error.kind() == ErrorKind::NotFound,
        Ok(_) => false,
    }
}
