//! The origins of allocations. The number of the call is in the allocation itself; the name of the thread and, with
//! [`SimConfig::backtraces`](crate::SimConfig::backtraces), its call stack are kept here while the allocation may be reported.

use crate::base::thread::ThreadKey;
use core::fmt;
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The calls that allocated, while their allocations may be reported.
#[derive(Default)]
pub(crate) struct Origins {
    is_on: bool,
    takes_stacks: bool,
    pub(crate) made: BTreeMap<u64, Made>,
    names: BTreeMap<ThreadKey, Arc<str>>,
}

pub(crate) struct Made {
    pub(crate) thread: Arc<str>,
    pub(crate) stack: Option<CallStack>,
}

impl Origins {
    pub(crate) fn new(is_on: bool, takes_stacks: bool) -> Self {
        Self { is_on: is_on || takes_stacks, takes_stacks, ..Self::default() }
    }

    pub(crate) fn forget(&mut self, call: u64) {
        self.made.remove(&call);
    }

    pub(crate) fn note(&mut self, call: u64, caller: ThreadKey) {
        if self.is_on {
            let name = || std::thread::current().name().unwrap_or("without a name").into();
            let thread = self.names.entry(caller).or_insert_with(name).clone();
            self.made.insert(call, Made { thread, stack: self.takes_stacks.then(CallStack::here) });
        }
    }
}

/// The call stack of a thread in a call of the driver, innermost function first. `Display` shows the functions of the program, with
/// file and line if known, and leaves out those of this crate and of the standard library.
#[derive(Clone)]
pub struct CallStack(Arc<Backtrace>);

impl CallStack {
    fn here() -> Self {
        Self(Arc::new(Backtrace::force_capture()))
    }
}

/// True if both are of the same call.
impl PartialEq for CallStack {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CallStack {}

impl fmt::Debug for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallStack({self})")
    }
}

impl fmt::Display for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let frames = frames(&text);
        // Without debug information there are only names to go by.
        let has_places = frames.iter().any(|frame| frame.place.is_some());
        let is_shown = |frame: &&Frame<'_>| match frame.place {
            Some(place) => is_programs(Path::new(place)),
            None => !has_places && !STRANGERS.iter().any(|stranger| frame.name.starts_with(stranger)),
        };
        for Frame { name, place } in frames.iter().filter(is_shown).take(SHOWN_MAX) {
            write!(f, "\n      {name}")?;
            place.map_or(Ok(()), |place| write!(f, " ({place})"))?;
        }
        Ok(())
    }
}

/// A function, and where in which file.
struct Frame<'a> {
    name: &'a str,
    place: Option<&'a str>,
}

/// Parses the text of a backtrace: a line with number and name, and one with the place if it is known.
fn frames(text: &str) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    for line in text.lines().map(str::trim) {
        match line.split_once(": ") {
            Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                frames.push(Frame { name, place: None });
            }
            _ => {
                if let (Some(place), Some(frame)) = (line.strip_prefix("at "), frames.last_mut()) {
                    frame.place = Some(place);
                }
            }
        }
    }
    frames
}

/// True if a source file is neither this crate's own nor the standard library's.
fn is_programs(file: &Path) -> bool {
    let file = file.strip_prefix(".").map_or_else(
        |_| file.to_path_buf(),
        |inner| std::env::current_dir().map_or_else(|_| PathBuf::new(), |here| here.join(inner)),
    );
    let text = file.to_string_lossy().replace('\\', "/");
    !STRANGE_FILES.iter().any(|part| text.contains(part)) && !text.contains(OWN_FILES)
}

/// Prefixes of the names of functions that do not belong to the program.
const STRANGERS: &[&str] = &[
    "gpumem_sim::",
    "<gpumem_sim::",
    "gpumem_sys::",
    "<gpumem_sys::",
    "std::",
    "core::",
    "alloc::",
    "test::",
    "__",
    "_start",
];

const STRANGE_FILES: &[&str] = &["/rustc/", "/library/std/", "/library/core/", "/library/test/"];

/// Sources of this crate, here or from a registry; its tests and examples are programs like others.
const OWN_FILES: &str = concat!(env!("CARGO_PKG_NAME"), "/src/");

const SHOWN_MAX: usize = 24;
