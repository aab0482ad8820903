//! [`Notes`]: a recording as plans need it, with its leaves and shapes. Here shapes are compared.

use crate::element::ScalarType;
use crate::error::ArrayError;
use crate::expression::node::layout_axes;
use crate::expression::operation::row;
use crate::expression::tape::{
    BEFORE, CAST, ELEMENT, EXPRESSION, NEW_TARGET, NUMBER, RecordedWord, TARGET, TapeRecording, VIEW,
    too_large,
};
use crate::expression::view::ViewKind;
use crate::layout::{ElementOrder, Layout};
use ndarray::{Dimension, IxDyn};

/// A recording that has been read. A thread's plans reuse its memory.
#[derive(Default)]
pub(crate) struct Notes {
    /// The operations in postfix notation. Of an element its place among the elements follows, of a number its place and type, of a
    /// conversion its type.
    pub(crate) tokens: Vec<u8>,
    /// The elements in the order of the expression. Only the first `element_count` are in use.
    elements: Vec<LeafElement>,
    element_count: usize,
    /// The arrays that are written, first to last.
    targets: Vec<LeafElement>,
    target_count: usize,
    pub(crate) array_count: usize,
    /// The bits of the numbers.
    pub(crate) numbers: Vec<u64>,
    /// The shapes of the operands that no operation has taken, one after the other.
    shapes: Vec<usize>,
    /// These operands.
    operands: Vec<NotedOperand>,
}

/// Where the shape and the elements of an operand begin.
#[derive(Clone, Copy, Debug)]
struct NotedOperand {
    shape: usize,
    element: usize,
}

/// The elements of an array or of a target, along the last axes of an expression.
#[derive(Default)]
pub(crate) struct LeafElement {
    pub(crate) of: Option<ScalarType>,
    pub(crate) argument: ArgumentIndex,
    /// The address, or what it differs by from an aligned one.
    pub(crate) address: u64,
    /// How many bytes behind the address of its argument the first element is, in a view of the expression.
    pub(crate) offset: isize,
    /// Lengths, and strides in bytes.
    pub(crate) axes: Vec<(usize, isize)>,
}

/// Which argument of the launch elements are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ArgumentIndex {
    #[default]
    None,
    Array(u8),
    Target(u8),
}

impl Notes {
    /// Reads a recording, and compares its shapes. Errors name `operation`, or an operation of the expression.
    pub(crate) fn read(
        &mut self,
        recording: &TapeRecording,
        operation: &'static str,
    ) -> Result<(), ArrayError> {
        recording.check_counts(operation)?;
        self.clear();
        self.array_count = recording.array_count();
        self.numbers.extend(recording.numbers.iter().map(|number| number.bits));
        let mut new_target = None;
        let mut words = recording.words.as_slice();
        while let Some((word, rest)) = words.split_first() {
            let RecordedWord { token, of, alignment, place, pairs } = RecordedWord::of_bits(*word);
            let (axes, rest) = rest.split_at((2 * pairs as usize).min(rest.len()));
            words = rest;
            let axes = axes.as_chunks().0.iter().map(|[len, stride]| (*len as usize, *stride as isize));
            let address = u64::from(alignment);
            match token {
                ELEMENT => {
                    self.next_element().set(of, ArgumentIndex::Array(place), address, axes);
                    self.end_element();
                }
                BEFORE => self.before(of, usize::from(place)),
                TARGET => {
                    next(&mut self.targets, &mut self.target_count).set(
                        of,
                        ArgumentIndex::Target(place),
                        address,
                        axes,
                    );
                    self.check_target(operation)?;
                }
                NEW_TARGET => new_target = Some(of),
                NUMBER => {
                    self.operands.push(self.end());
                    self.tokens.extend([NUMBER, place, of as u8]);
                }
                CAST => self.tokens.extend([CAST, of as u8]),
                VIEW => self.view(place, &axes.collect::<Vec<_>>(), operation)?,
                _ => self.operation(token, operation)?,
            }
        }
        if self.element_count > ELEMENTS_MAX {
            return Err(too_large(operation, "uses of arrays", ELEMENTS_MAX));
        }
        match new_target {
            Some(of) => self.add_new_target(of),
            None => self.check_results(operation),
        }
    }

    pub(crate) fn elements(&self) -> &[LeafElement] {
        &self.elements[..self.element_count]
    }

    pub(crate) fn targets(&self) -> &[LeafElement] {
        &self.targets[..self.target_count]
    }

    /// The shape of the targets; without targets, that of the expression.
    pub(crate) fn shape(&self) -> Vec<usize> {
        match self.targets().first() {
            Some(target) => target.shape().collect(),
            None => self.shapes.clone(),
        }
    }

    /// True if a new target is in column-major order: that of the first array that has its shape, if that is contiguous. Otherwise it is in
    /// row-major order.
    pub(crate) fn is_by_columns(&self) -> bool {
        let has_shape = |element: &&LeafElement| element.shape().eq(self.shapes.iter().copied());
        let Some(LeafElement { axes, .. }) = self.elements().iter().find(has_shape) else { return false };
        let long = || axes.iter().filter(|(len, _)| *len > 1);
        let size = long().map(|(_, stride)| stride.unsigned_abs()).min().unwrap_or_default().cast_signed();
        let is_dense = |axes: &mut dyn Iterator<Item = &(usize, isize)>| {
            let mut next = size;
            axes.copied().all(|(len, stride)| {
                let is_next = stride == next;
                next *= len.cast_signed();
                is_next
            })
        };
        is_dense(&mut long()) && !is_dense(&mut long().rev())
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.numbers.clear();
        self.shapes.clear();
        self.operands.clear();
        (self.element_count, self.target_count) = (0, 0);
    }

    /// An operand that begins here.
    fn end(&self) -> NotedOperand {
        NotedOperand { shape: self.shapes.len(), element: self.element_count }
    }

    /// A new element, which is an operand.
    fn next_element(&mut self) -> &mut LeafElement {
        self.operands.push(self.end());
        next(&mut self.elements, &mut self.element_count)
    }

    /// Records the shape of the element that was added last.
    fn end_element(&mut self) {
        let place = self.element_count - 1;
        self.shapes.extend(self.elements[place].shape());
        self.tokens.extend([ELEMENT, u8::try_from(place).unwrap_or(u8::MAX)]);
    }

    /// Adds the elements of a target, before they are written.
    fn before(&mut self, of: ScalarType, index: usize) {
        self.next_element();
        let (place, target) = (self.element_count - 1, &self.targets[index]);
        self.elements[place].set(of, target.argument, target.address, target.axes.iter().copied());
        self.end_element();
    }

    /// Adds a target in the order of the result.
    fn add_new_target(&mut self, of: ScalarType) -> Result<(), ArrayError> {
        let order = if self.is_by_columns() { ElementOrder::Column } else { ElementOrder::Row };
        let layout = Layout::dense(IxDyn(&self.shapes), order, of.size())?;
        // Every allocation is aligned.
        let target = next(&mut self.targets, &mut self.target_count);
        target.set(of, ArgumentIndex::Target(0), 0, layout_axes(&layout, of.size()));
        Ok(())
    }

    fn check_target(&self, operation: &'static str) -> Result<(), ArrayError> {
        let [first, .., last] = self.targets() else { return Ok(()) };
        if first.shape().eq(last.shape()) {
            return Ok(());
        }
        Err(ArrayError::Shape {
            operation,
            left: first.shape().collect(),
            right: last.shape().collect(),
            expected: "all arrays of an update have one shape",
        })
    }

    /// Checks that all results can be broadcast to the shape of the targets.
    fn check_results(&self, operation: &'static str) -> Result<(), ArrayError> {
        let Some(target) = self.targets().first() else { return Ok(()) };
        let shape: Vec<usize> = target.shape().collect();
        for (index, operand) in self.operands.iter().enumerate() {
            let end = self.operands.get(index + 1).map_or(self.shapes.len(), |next| next.shape);
            let found = &self.shapes[operand.shape..end];
            let fits = |(found, len): (&usize, &usize)| *found == 1 || found == len;
            if found.len() > shape.len() || !found.iter().rev().zip(shape.iter().rev()).all(fits) {
                return Err(ArrayError::Shape {
                    operation,
                    left: shape,
                    right: found.to_vec(),
                    expected: "an operation in place keeps the shape of the array",
                });
            }
        }
        Ok(())
    }

    /// Joins the operands of an operation to one.
    fn operation(&mut self, token: u8, operation: &'static str) -> Result<(), ArrayError> {
        self.tokens.push(token);
        let Some(row) = row(token) else { return Ok(()) };
        // The name of an operator that was called on arrays.
        let name = if operation == EXPRESSION { row.name } else { operation };
        for _ in 1..row.operand_count {
            let (Some(second), Some(first)) = (self.operands.pop(), self.operands.last()) else {
                return Ok(());
            };
            broadcast(&mut self.shapes, first.shape, second.shape, name)?;
        }
        Ok(())
    }

    /// Takes another view of the last operand.
    fn view(
        &mut self,
        kind: u8,
        words: &[(usize, isize)],
        operation: &'static str,
    ) -> Result<(), ArrayError> {
        let Some(operand) = self.operands.last().copied() else { return Ok(()) };
        let shape = IxDyn(&self.shapes[operand.shape..]);
        let view = ViewKind::apply(kind, words, Layout::row_major::<u8>(shape.clone())?)?;
        self.shapes.truncate(operand.shape);
        self.shapes.extend(view.shape());
        for element in &mut self.elements[operand.element..self.element_count] {
            if matches!(element.argument, ArgumentIndex::Target(_)) {
                return Err(ArrayError::Shape {
                    operation,
                    left: shape.slice().to_vec(),
                    right: view.shape().to_vec(),
                    expected: "an update reads each element of its arrays where it writes it, not in another view",
                });
            }
            let (lens, strides): (Vec<_>, Vec<_>) = element.axes.drain(..).unzip();
            let layout = Layout::strided(IxDyn(&lens), &strides, 0).broadcast(shape.clone())?;
            let layout = ViewKind::apply(kind, words, layout)?.without_repeats();
            element.offset = element.offset.wrapping_add(layout.offset.cast_signed());
            element.axes.extend(layout.shape().iter().copied().zip(layout.strides()));
        }
        Ok(())
    }
}

/// Joins the shapes that begin at two places to the shape of their elements together.
fn broadcast(
    shapes: &mut Vec<usize>,
    first: usize,
    second: usize,
    operation: &'static str,
) -> Result<(), ArrayError> {
    let (left, right) = (second - first, shapes.len() - second);
    let fits = |(a, b): (&usize, &usize)| a == b || *a == 1 || *b == 1;
    if !shapes[first..second].iter().rev().zip(shapes[second..].iter().rev()).all(fits) {
        return Err(ArrayError::Shape {
            operation,
            left: shapes[first..second].to_vec(),
            right: shapes[second..].to_vec(),
            expected: "from the last axis on, lengths must be equal or 1",
        });
    }
    // The longer shape stays in front.
    if right > left {
        shapes[first..].rotate_left(left);
    }
    let (long, short) = (left.max(right), left.min(right));
    for axis in 0..short {
        let other = shapes[first + long + axis];
        let len = &mut shapes[first + long - short + axis];
        *len = if *len == 1 { other } else { *len };
    }
    shapes.truncate(first + long);
    Ok(())
}

impl LeafElement {
    /// The results of a reduction, with these lengths and strides in bytes.
    pub(crate) fn result(of: ScalarType, place: usize, axes: Vec<(usize, isize)>) -> Self {
        Self { of: Some(of), argument: ArgumentIndex::Target(place as u8), axes, ..Self::default() }
    }

    fn set(
        &mut self,
        of: ScalarType,
        argument: ArgumentIndex,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        (self.of, self.argument, self.address, self.offset) = (Some(of), argument, address, 0);
        self.axes.clear();
        self.axes.extend(axes);
    }

    fn shape(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().map(|(len, _)| *len)
    }
}

/// The next of some entries that keep their memory.
fn next<'e>(entries: &'e mut Vec<LeafElement>, count: &mut usize) -> &'e mut LeafElement {
    if *count == entries.len() {
        entries.push(LeafElement::default());
    }
    *count += 1;
    &mut entries[*count - 1]
}

const ELEMENTS_MAX: usize = 250;
