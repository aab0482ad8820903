//! [`Tape`]: the recording of an expression, which the rest of this room works with, whatever the expression's type.
//!
//! It has the operations in postfix notation as bytes, the arrays and numbers, and the shapes. A thread's expressions reuse its memory, so
//! that a recording allocates nothing.

use crate::element::ScalarType;
use crate::error::ArrayError;
use crate::expression::scalar::Scalar;
use crate::gpu::Gpu;
use crate::kernel::ARGUMENTS_MAX;
use crate::launch::OwnArguments;
use crate::layout::ByteSpan;
use crate::storage::Use;

/// Tokens that are no operation. Each has operands: of an element its place among the elements, of a number its place and type.
pub(crate) const ELEMENT: u8 = 0;
pub(crate) const NUMBER: u8 = 1;
/// A conversion to the type that follows.
pub(crate) const CAST: u8 = 2;
/// The number of the first operation.
pub(crate) const OPERATIONS: u8 = 3;

/// An expression as it is recorded.
pub struct Tape<'v, 'n> {
    /// The arrays of the launch.
    pub(crate) arguments: OwnArguments<'v>,
    pub(crate) notes: &'n mut Notes,
    /// The `Gpu` of the first array.
    pub(crate) gpu: Option<&'v Gpu>,
    operation: &'static str,
}

/// The parts of a [`Tape`] that borrow no array.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) tokens: Vec<u8>,
    /// The elements in the order of the expression. Only the first `element_count` are in use.
    elements: Vec<LeafElement>,
    element_count: usize,
    arrays: Vec<RecordedArray>,
    pub(crate) numbers: Vec<RecordedNumber>,
    /// The arrays that are updated, first to last.
    targets: Vec<LeafElement>,
    target_count: usize,
    /// The shapes of the expressions that have been recorded and not joined, one after the other.
    pub(crate) shapes: Vec<usize>,
}

/// The elements of an array or of a target, along the last axes of an expression.
#[derive(Default)]
pub(crate) struct LeafElement {
    pub(crate) of: Option<ScalarType>,
    pub(crate) argument: ArgumentIndex,
    pub(crate) address: u64,
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

impl ArgumentIndex {
    /// A number for each.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Array(index) => 1 << 8 | u64::from(index),
            Self::Target(index) => 2 << 8 | u64::from(index),
        }
    }
}

struct RecordedArray {
    of: ScalarType,
    address: u64,
    /// The bytes that the launch uses. Another view with the same address may use other bytes.
    bytes: ByteSpan,
}

pub(crate) struct RecordedNumber {
    pub(crate) identity: u64,
    pub(crate) bits: u64,
}

impl<'v, 'n> Tape<'v, 'n> {
    pub(crate) fn new(operation: &'static str, notes: &'n mut Notes) -> Self {
        notes.clear();
        Self { arguments: OwnArguments::new(), notes, gpu: None, operation }
    }

    /// The name of the operation in errors.
    pub(crate) fn operation(&self) -> &'static str {
        self.operation
    }

    /// Records the elements of a view.
    pub(crate) fn array(
        &mut self,
        of: ScalarType,
        gpu: &'v Gpu,
        one: Use<'v>,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        self.gpu.get_or_insert(gpu);
        let bytes = one.bytes();
        let is_same =
            |known: &RecordedArray| known.of == of && known.address == address && known.bytes == bytes;
        let index = self.notes.arrays.iter().position(is_same).unwrap_or(self.notes.arrays.len());
        if index == self.notes.arrays.len() {
            self.notes.arrays.push(RecordedArray { of, address, bytes });
            self.arguments.array((one, address));
        }
        let argument = ArgumentIndex::Array(u8::try_from(index).unwrap_or(u8::MAX));
        self.notes.element(of, argument, address, axes);
    }

    /// Records a number. Numbers of one identity are the same.
    pub(crate) fn number(&mut self, of: ScalarType, bits: u64, identity: u64) {
        let numbers = &mut self.notes.numbers;
        let index = numbers.iter().position(|known| known.identity == identity).unwrap_or(numbers.len());
        if index == numbers.len() {
            numbers.push(RecordedNumber { identity, bits });
        }
        self.notes.tokens.extend([NUMBER, u8::try_from(index).unwrap_or(u8::MAX), of as u8]);
    }

    /// Adds an array that the kernel writes. Its argument comes after those of all other arrays.
    pub(crate) fn target(
        &mut self,
        of: ScalarType,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        let index = u8::try_from(self.notes.target_count).unwrap_or(u8::MAX);
        let Notes { targets, target_count, .. } = self.notes;
        next(targets, target_count).set(of, ArgumentIndex::Target(index), address, axes);
    }

    /// The shape of an expression without arrays.
    pub(crate) fn shape(&mut self, shape: impl Iterator<Item = usize>) {
        self.notes.shapes.extend(shape);
    }

    /// Records the elements of a target.
    pub(crate) fn updated<T: Scalar>(&mut self, index: usize) -> Result<(), ArrayError> {
        let notes = &mut *self.notes;
        let found = notes.targets[..notes.target_count].get(index).filter(|found| found.of == Some(T::TYPE));
        let Some(LeafElement { argument, address, axes, .. }) = found else {
            return Err(ArrayError::Shape {
                operation: self.operation,
                left: Vec::new(),
                right: Vec::new(),
                expected: "elements of an update cannot be used outside of its closure",
            });
        };
        let place = u8::try_from(notes.element_count).unwrap_or(u8::MAX);
        next(&mut notes.elements, &mut notes.element_count).set(
            T::TYPE,
            *argument,
            *address,
            axes.iter().copied(),
        );
        notes.shapes.extend(axes.iter().map(|(len, _)| len));
        notes.tokens.extend([ELEMENT, place]);
        Ok(())
    }

    #[inline]
    pub(crate) fn token(&mut self, token: u8) {
        self.notes.tokens.push(token);
    }

    /// The place where the next shape begins.
    #[inline]
    pub(crate) fn mark(&self) -> usize {
        self.notes.shapes.len()
    }

    /// Joins the shapes that begin at two marks to the shape of their elements together.
    pub(crate) fn broadcast(
        &mut self,
        first: usize,
        second: usize,
        operation: &'static str,
    ) -> Result<(), ArrayError> {
        let shapes = &mut self.notes.shapes;
        let (left, right) = (second - first, shapes.len() - second);
        let fits = |(a, b): (&usize, &usize)| a == b || *a == 1 || *b == 1;
        if !shapes[first..second].iter().rev().zip(shapes[second..].iter().rev()).all(fits) {
            // The name of an operator that was called on arrays.
            let operation = if self.operation == EXPRESSION { operation } else { self.operation };
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

    /// The number of elements recorded so far.
    #[inline]
    pub(crate) fn element_count(&self) -> usize {
        self.notes.element_count
    }

    /// Inserts an axis of length 1 into the shape that begins at `mark`, whose elements are those from `first` on.
    pub(crate) fn insert_axis(&mut self, axis: usize, mark: usize, first: usize) -> Result<(), ArrayError> {
        let shape = &mut self.notes.shapes;
        let Some(following) = (shape.len() - mark).checked_sub(axis) else {
            return Err(ArrayError::Shape {
                operation: "insert_axis",
                left: shape[mark..].to_vec(),
                right: vec![axis],
                expected: "the index of an axis, or the number of axes",
            });
        };
        shape.insert(mark + axis, 1);
        for element in &mut self.notes.elements[first..self.notes.element_count] {
            if let Some(at) = element.axes.len().checked_sub(following) {
                element.axes.insert(at, (1, 0));
            }
        }
        Ok(())
    }
}

impl Notes {
    /// An error if there are more elements, arrays or numbers than a launch can have.
    pub(crate) fn check_counts(&self) -> Result<(), ArrayError> {
        let fits = self.element_count <= ELEMENTS_MAX
            && self.numbers.len() <= NUMBERS_MAX
            && self.arrays.len() + self.target_count < ARGUMENTS_MAX;
        let error = || ArrayError::TooManyArguments { limit: ARGUMENTS_MAX, limit_bytes: 8 * ARGUMENTS_MAX };
        if fits { Ok(()) } else { Err(error()) }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.arrays.clear();
        self.numbers.clear();
        self.shapes.clear();
        (self.element_count, self.target_count) = (0, 0);
    }

    fn element(
        &mut self,
        of: ScalarType,
        argument: ArgumentIndex,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        let place = u8::try_from(self.element_count).unwrap_or(u8::MAX);
        let element = next(&mut self.elements, &mut self.element_count);
        element.set(of, argument, address, axes);
        self.shapes.extend(element.axes.iter().map(|(len, _)| len));
        self.tokens.extend([ELEMENT, place]);
    }

    pub(crate) fn elements(&self) -> &[LeafElement] {
        &self.elements[..self.element_count]
    }

    pub(crate) fn targets(&self) -> &[LeafElement] {
        &self.targets[..self.target_count]
    }

    pub(crate) fn array_count(&self) -> usize {
        self.arrays.len()
    }
}

impl LeafElement {
    fn set(
        &mut self,
        of: ScalarType,
        argument: ArgumentIndex,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        (self.of, self.argument, self.address) = (Some(of), argument, address);
        self.axes.clear();
        self.axes.extend(axes);
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

/// The name of an expression in errors, unless it stands for an operation on arrays.
pub(crate) const EXPRESSION: &str = "expression";
const ELEMENTS_MAX: usize = 250;
const NUMBERS_MAX: usize = 100;
