//! [`PythonStacks`]: the stacks of a snapshot of PyTorch, and the line of the program that each of them names.

use super::pickle::{Pickle, Value};
use crate::trace::{Frame, Stacks, TagSums};
use std::collections::HashMap;

/// Reads each list of frames once, however many events refer to it.
pub(super) struct PythonStacks<'a> {
    pickle: &'a Pickle,
    stacks: Stacks,
    /// The frame of each dictionary.
    frames: HashMap<u32, u32>,
    /// The tag and the stack of each list.
    lists: HashMap<u32, (usize, Option<u32>)>,
}

impl<'a> PythonStacks<'a> {
    pub(super) fn new(pickle: &'a Pickle) -> Self {
        Self { pickle, stacks: Stacks::default(), frames: HashMap::new(), lists: HashMap::new() }
    }

    pub(super) fn into_stacks(self) -> Stacks {
        self.stacks
    }

    pub(super) fn has_frames(&self, frames: Value) -> bool {
        self.pickle.list(frames).is_some_and(|frames| !frames.is_empty())
    }

    /// The tag and the stack of a list of frames, whose first one is the innermost.
    pub(super) fn of(&mut self, frames: Value, tags: &mut TagSums) -> (usize, Option<u32>) {
        let (Value::List(number), Some(list)) = (frames, self.pickle.list(frames)) else {
            return (tags.place_of(None), None);
        };
        if let Some(known) = self.lists.get(&number) {
            return *known;
        }
        let frames: Vec<u32> = list.iter().filter_map(|frame| self.frame(*frame)).collect();
        let tag = tag(frames.iter().map(|frame| &self.stacks.frames()[*frame as usize]));
        let mut stack = None;
        for frame in frames.iter().rev() {
            stack = Some(self.stacks.node(stack, *frame));
        }
        let read = (tags.place_of(tag), stack);
        self.lists.insert(number, read);
        read
    }

    fn frame(&mut self, dict: Value) -> Option<u32> {
        let Value::Dict(number) = dict else { return None };
        if let Some(frame) = self.frames.get(&number) {
            return Some(*frame);
        }
        let text =
            |key| self.pickle.item(dict, key).and_then(|text| self.pickle.text(text)).unwrap_or_default();
        let line = self.pickle.item(dict, "line").and_then(Value::as_u64).unwrap_or(0);
        // Unknown files are written so.
        let file = Some(text("filename")).filter(|file| *file != "??").map(last_part).unwrap_or_default();
        let frame = self.stacks.frame(Frame { file, line, function: first_part(text("name")) });
        self.frames.insert(number, frame);
        Some(frame)
    }
}

/// The innermost frame of the program itself: of a Python file that belongs to no package, or to none of PyTorch.
fn tag<'a>(frames: impl Iterator<Item = &'a Frame> + Clone) -> Option<String> {
    let of_program = frames.clone().find(|frame| is_python(frame) && !is_installed(&frame.file));
    let of_package = || frames.clone().find(|frame| is_python(frame) && !is_torch(&frame.file));
    let python = || frames.clone().find(|frame| is_python(frame));
    let Some(found) = of_program.or_else(of_package).or_else(python) else { return tag_of_cpp(frames) };
    if found.line == 0 {
        return Some(found.function.clone());
    }
    let file = found.file.rsplit(['/', '\\']).next().unwrap_or_default();
    Some(format!("{file}:{} {}", found.line, found.function))
}

/// Threads of PyTorch, as that of backward passes, have no frames of Python: the operation, or else what is not part of the allocation.
fn tag_of_cpp<'a>(frames: impl Iterator<Item = &'a Frame> + Clone) -> Option<String> {
    let named = |part: &str| frames.clone().find(|frame| frame.function.contains(part));
    let operation = named("autograd::generated::").or_else(|| named("at::_ops::"));
    let is_plumbing = |frame: &&Frame| PLUMBING.iter().any(|part| frame.function.contains(part));
    let found = operation.or_else(|| frames.clone().find(|frame| !is_plumbing(frame)));
    let function = &found.or_else(|| frames.clone().next())?.function;
    // Without its arguments.
    let name = function.split_once('(').map_or(&**function, |(name, _)| name);
    Some(if name.is_empty() { function.clone() } else { name.into() })
}

const PLUMBING: [&str; 5] = ["unwind", "CapturedTraceback", "memory_snapshot", "gather", "CachingAllocator"];

/// True for files, and for cells of notebooks, but not for frames of C++ and of the interpreter itself.
fn is_python(frame: &Frame) -> bool {
    frame.file.ends_with(".py") || frame.file.starts_with("<ipython") || frame.file.starts_with("<stdin")
}

fn is_installed(file: &str) -> bool {
    let mut parts = file.split(['/', '\\']);
    let is_library = parts.any(|part| {
        let version = part.strip_prefix("python").or_else(|| part.strip_prefix("Python"));
        matches!(part, "site-packages" | "dist-packages")
            || version.is_some_and(|version| version.contains('.') || version.parse::<u32>().is_ok())
                && file.contains("lib")
    });
    is_library || is_torch(file)
}

fn is_torch(file: &str) -> bool {
    file.starts_with("torch/") || file.contains("/torch/") || file.contains("\\torch\\")
}

/// The end of a path, which may be as long as the file.
fn last_part(path: &str) -> String {
    let skipped = path.chars().count().saturating_sub(TEXT_CHARS_MAX);
    path.chars().skip(skipped).collect()
}

fn first_part(name: &str) -> String {
    name.chars().take(TEXT_CHARS_MAX).collect()
}

/// Each frame has its own texts, and a file may refer to one text from many frames.
const TEXT_CHARS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::tag;
    use crate::trace::Frame;

    #[test]
    fn the_tag_is_the_line_of_the_program() {
        let frame = |place: &str| {
            let (place, function) = place.split_once(' ').unwrap();
            let (file, line) = place.rsplit_once(':').unwrap();
            Frame { file: file.into(), line: line.parse().unwrap(), function: function.into() }
        };
        let tag = |places: &[&str]| tag(places.iter().map(|place| frame(place)).collect::<Vec<_>>().iter());
        let torch = "/env/lib/python3.12/site-packages/torch/nn/modules/module.py:1773 _call_impl";
        let package = "/env/lib/python3.12/site-packages/transformers/models/bert.py:12 forward";
        let cpp = ":0 at::native::empty_cuda";
        assert_eq!(
            tag(&[cpp, torch, package, "/data/a/train.py:42 step", "/data/a/train.py:90 <module>"]).unwrap(),
            "train.py:42 step"
        );
        assert_eq!(tag(&[cpp, torch, package]).unwrap(), "bert.py:12 forward");
        assert_eq!(tag(&[cpp, torch]).unwrap(), "module.py:1773 _call_impl");
        assert_eq!(tag(&[cpp]).unwrap(), "at::native::empty_cuda");
        assert_eq!(tag(&["C:\\work\\fit.py:3 fit"]).unwrap(), "fit.py:3 fit");
        assert_eq!(
            tag(&["/usr/lib/python3.11/threading.py:9 run", "/tmp/ipykernel_7/12.py:1 <module>"]).unwrap(),
            "12.py:1 <module>"
        );
        assert_eq!(tag(&[]), None);
        let (unwind, apply) =
            (":0 torch::unwind::unwind()", ":0 torch::autograd::generated::MmBackward0::apply(int&&)");
        assert_eq!(tag(&[unwind, cpp, apply]).unwrap(), "torch::autograd::generated::MmBackward0::apply");
        assert_eq!(tag(&[unwind, cpp]).unwrap(), "at::native::empty_cuda");
        assert_eq!(tag(&[unwind]).unwrap(), "torch::unwind::unwind");
    }
}
