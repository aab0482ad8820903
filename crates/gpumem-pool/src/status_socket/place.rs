//! [`SocketPlace`]: the path of the socket. The folder belongs to the user, and sockets of dead processes are removed from it.

use gpumem_sys::text::Shown;
use gpumem_sys::{exit, fork};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The value of `GPUMEM_STATUS`, unless that is `off`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// `gpumem-PID.sock` in the user's folder.
    Default,
    Path(PathBuf),
}

pub(super) struct SocketPlace {
    pub(super) path: PathBuf,
    pub(super) listener: UnixListener,
}

impl Choice {
    pub(super) fn parse(value: &str) -> Result<Option<Self>, String> {
        Ok(Some(match value.trim().to_lowercase().as_str() {
            "off" | "false" | "0" => return Ok(None),
            "on" | "true" | "1" => Self::Default,
            // A single word is a mistyped value, not a path.
            path if path.contains(['.', '/']) => {
                Self::Path(value.trim().replace("%p", &std::process::id().to_string()).into())
            }
            _ => return Err("expected `off`, `on`, or the path of a socket or of a folder for it".into()),
        }))
    }
}

impl SocketPlace {
    pub(super) fn open(choice: &Choice) -> Result<Self, String> {
        let path = match choice {
            Choice::Default => user_folder()?.join(own_name()),
            Choice::Path(path) if path.is_dir() => path.join(own_name()),
            Choice::Path(path) => path.clone(),
        };
        // The socket outlives a change of the working folder.
        let path = std::path::absolute(&path).map_err(|error| failed(&path, &error))?;
        if let Some(folder) = path.parent() {
            sweep(folder);
        }
        let listener = bind(&path)?;
        remove_at_exit(&path);
        Ok(Self { path, listener })
    }
}

/// The name of the socket of this process.
fn own_name() -> String {
    format!("{PREFIX}{}{SUFFIX}", std::process::id())
}

/// The folder for sockets of this user: made with access for the user alone, and refused if it is another's.
fn user_folder() -> Result<PathBuf, String> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = match runtime.filter(|folder| folder.is_absolute() && folder.is_dir()) {
        Some(runtime) => runtime.join("gpumem"),
        None => PathBuf::from(format!("/tmp/gpumem-{}", geteuid().as_raw())),
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&folder, &error)),
        _ => {}
    }
    // The link itself, not its target.
    let found = std::fs::symlink_metadata(&folder).map_err(|error| failed(&folder, &error))?;
    let shown = Shown::path(&folder);
    if !found.is_dir() {
        return Err(format!("{shown} is not a folder, or a link: remove it, or name another path"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!(
            "{shown} belongs to user {}, who could replace the socket: name a path in a folder of your own",
            found.uid()
        ));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700))
            .map_err(|error| failed(&folder, &error))?;
    }
    Ok(folder)
}

/// Binds under another name first: a socket that others find answers, and has its mode.
fn bind(path: &Path) -> Result<UnixListener, String> {
    let shown = Shown::path(path);
    match std::fs::symlink_metadata(path) {
        Err(_) => {}
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!(
                "{shown} exists and is not a socket, so it is left unchanged: name another path"
            ));
        }
        Ok(_) if is_answered(path) => {
            return Err(format!(
                "another process serves {shown}: put %p, the process ID, into the name, or name a folder"
            ));
        }
        Ok(_) => {}
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}{NEW_SUFFIX}", std::process::id()));
    let new = PathBuf::from(new);
    // Left by a process with this number that was killed.
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new).map_err(|error| failed(&new, &error))?;
    let named = std::fs::set_permissions(&new, Permissions::from_mode(0o600))
        .and_then(|()| listener.set_nonblocking(true))
        .and_then(|()| std::fs::rename(&new, path));
    match named {
        Ok(()) => Ok(listener),
        Err(error) => {
            let _ = std::fs::remove_file(&new);
            Err(failed(path, &error))
        }
    }
}

/// Removes the sockets of processes that are gone.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let is_ours = name.ends_with(SUFFIX) || name.ends_with(NEW_SUFFIX);
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_ours && is_socket && !is_answered(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// False if the process of the socket is gone. A socket that cannot be asked counts as answered, and so does that of a stopped process whose
/// queue of connections is full: no call waits for another process.
fn is_answered(path: &Path) -> bool {
    let connected = || -> rustix::io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    connected() != Err(rustix::io::Errno::CONNREFUSED)
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!(
        "the status socket cannot be created at {} ({error}): name a path of fewer than 100 bytes in a folder that this process may write",
        Shown::path(path)
    )
}

/// Removes the socket when the process exits. After a crash, the next process removes it.
fn remove_at_exit(path: &Path) {
    if OWN.set(path.into()).is_ok() {
        exit::at_exit(remove_own);
    }
}

extern "C" fn remove_own() {
    // The socket is the parent's.
    if fork::is_child() {
        return;
    }
    if let Some(path) = OWN.get() {
        let _ = std::fs::remove_file(path);
    }
}

static OWN: OnceLock<PathBuf> = OnceLock::new();

const PREFIX: &str = "gpumem-";
const SUFFIX: &str = ".sock";
/// A socket that is not in its place yet.
const NEW_SUFFIX: &str = ".new";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed() {
        assert_eq!(Choice::parse("off"), Ok(None));
        assert_eq!(Choice::parse(" ON "), Ok(Some(Choice::Default)));
        let path = format!("/run/{}.sock", std::process::id());
        assert_eq!(Choice::parse("/run/%p.sock"), Ok(Some(Choice::Path(path.into()))));
        assert!(Choice::parse("onn").unwrap_err().starts_with("expected `off`, `on`"));
    }
}
