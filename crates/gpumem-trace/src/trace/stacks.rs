//! [`Stacks`]: the stacks of a record's allocations, as a tree.

use std::collections::HashMap;

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The file; empty if it is not known.
    pub file: String,
    /// The line; 0 if it is not known.
    pub line: u64,
    /// The name of the function.
    pub function: String,
}

/// The stacks of a record, as a tree: stacks that begin alike share their first frames. [`Origin::stack`](super::Origin::stack) is the number
/// of the innermost frame's node.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Vec<Frame>,
    nodes: Vec<StackNode>,
    by_frame: HashMap<Frame, u32>,
    by_place: HashMap<(Option<u32>, u32), u32>,
}

/// A frame of [`Stacks`], and the one that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackNode {
    /// The number of the caller's node, which is smaller; `None` for the outermost frame.
    pub caller: Option<u32>,
    /// The index into [`Stacks::frames`].
    pub frame: u32,
}

impl Stacks {
    /// The frames of all stacks, each once.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The nodes of the tree.
    #[must_use]
    pub fn nodes(&self) -> &[StackNode] {
        &self.nodes
    }

    /// The frames of a stack, the innermost first.
    pub fn stack(&self, node: u32) -> impl Iterator<Item = &Frame> {
        let mut next = Some(node);
        core::iter::from_fn(move || {
            let node = self.nodes.get(next? as usize)?;
            next = node.caller;
            self.frames.get(node.frame as usize)
        })
    }

    /// The number of a frame.
    pub(crate) fn frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        let number = *self.by_frame.entry(frame.clone()).or_insert(next);
        if number == next {
            self.frames.push(frame);
        }
        number
    }

    /// The node of a frame that a node calls.
    pub(crate) fn node(&mut self, caller: Option<u32>, frame: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let number = *self.by_place.entry((caller, frame)).or_insert(next);
        if number == next {
            self.nodes.push(StackNode { caller, frame });
        }
        number
    }
}
