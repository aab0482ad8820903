//! [`Tape`]: the recording of an expression, which the rest of this room works with, whatever the expression's type.
//!
//! A [`TapeRecording`] is a list of words: the operations in postfix notation, each array with its axes. It is all that a plan depends on, so it
//! is also the key by which a repeated expression finds its plan: nothing is calculated from it then, not even a shape. A thread's
//! expressions reuse its memory, so that a recording allocates nothing.

use crate::element::ScalarType;
use crate::error::ArrayError;
use crate::expression::scalar::Scalar;
use crate::gpu::Gpu;
use crate::kernel::ARGUMENTS_MAX;
use crate::launch::OwnArguments;
use crate::layout::ByteSpan;
use crate::storage::Use;

/// Tokens that are no operation. With a type: an element and a target also have an argument, their alignment, and their axes; a number
/// has its place. A view has its words.
pub(crate) const ELEMENT: u8 = 0;
pub(crate) const NUMBER: u8 = 1;
/// A conversion to a type.
pub(crate) const CAST: u8 = 2;
/// The number of the first operation.
pub(crate) const OPERATIONS: u8 = 3;
/// Elements that are written.
pub(crate) const TARGET: u8 = u8::MAX;
/// A new array, which is written.
pub(crate) const NEW_TARGET: u8 = u8::MAX - 1;
/// The elements of a target, before they are written.
pub(crate) const BEFORE: u8 = u8::MAX - 2;
/// Another view of the operand before it.
pub(crate) const VIEW: u8 = u8::MAX - 3;

/// An expression as it is recorded.
pub struct Tape<'v, 'n> {
    /// The arrays of the launch.
    pub(crate) arguments: OwnArguments<'v>,
    pub(crate) recording: &'n mut TapeRecording,
    /// The `Gpu` of the first array.
    pub(crate) gpu: Option<&'v Gpu>,
    operation: &'static str,
}

/// The parts of a [`Tape`] that borrow no array.
#[derive(Default)]
pub(crate) struct TapeRecording {
    /// Each is a [`RecordedWord`]; those of arrays are followed by lengths and strides in bytes, those of views by pairs of their own.
    pub(crate) words: Vec<u64>,
    arrays: Vec<RecordedArray>,
    /// Their values are not part of the words.
    pub(crate) numbers: Vec<RecordedNumber>,
    /// The types of the arrays that are updated.
    targets: Vec<ScalarType>,
}

/// One word of a recording, unpacked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedWord {
    pub(crate) token: u8,
    pub(crate) of: ScalarType,
    /// The rest of the address, divided by [`ALIGNMENT_MAX`].
    pub(crate) alignment: u8,
    /// The place of an array, a target or a number, or the kind of a view.
    pub(crate) place: u8,
    /// The number of pairs of words that follow.
    pub(crate) pairs: u32,
}

impl RecordedWord {
    #[inline]
    fn bits(self) -> u64 {
        let Self { token, of, alignment, place, pairs } = self;
        u64::from(u32::from_le_bytes([token, of as u8, alignment, place])) | u64::from(pairs) << 32
    }

    pub(crate) fn of_bits(bits: u64) -> Self {
        let [token, of, alignment, place, ..] = bits.to_le_bytes();
        Self { token, of: ScalarType::of_token(of), alignment, place, pairs: (bits >> 32) as u32 }
    }
}

struct RecordedArray {
    of: ScalarType,
    /// Where the storage is, alive while the recording is read. Two storages may be over one address, and each tracks its own uses.
    storage: usize,
    address: u64,
    /// The bytes that the launch uses. Another view with the same address may use other bytes.
    bytes: ByteSpan,
}

pub(crate) struct RecordedNumber {
    identity: u64,
    pub(crate) bits: u64,
}

impl<'v, 'n> Tape<'v, 'n> {
    #[inline]
    pub(crate) fn new(operation: &'static str, recording: &'n mut TapeRecording) -> Self {
        recording.clear();
        Self { arguments: OwnArguments::new(), recording, gpu: None, operation }
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
        let (bytes, storage) = (one.bytes(), core::ptr::from_ref(one.storage()).addr());
        let is_same = |known: &RecordedArray| {
            known.address == address && known.storage == storage && known.of == of && known.bytes == bytes
        };
        let arrays = &mut self.recording.arrays;
        let index = arrays.iter().position(is_same).unwrap_or(arrays.len());
        if index == arrays.len() {
            arrays.push(RecordedArray { of, storage, address, bytes });
            self.arguments.array((one, address));
        }
        self.recording.leaf(ELEMENT, of, index, address, axes);
    }

    /// Records a number. Numbers of one identity are the same.
    pub(crate) fn number(&mut self, of: ScalarType, bits: u64, identity: u64) {
        let numbers = &mut self.recording.numbers;
        let index = numbers.iter().position(|known| known.identity == identity).unwrap_or(numbers.len());
        if index == numbers.len() {
            numbers.push(RecordedNumber { identity, bits });
        }
        self.recording.push(NUMBER, of, index);
    }

    /// Adds elements that the kernel writes. Their argument comes after those of all other arrays.
    pub(crate) fn target(
        &mut self,
        of: ScalarType,
        address: u64,
        axes: impl Iterator<Item = (usize, isize)>,
    ) {
        let index = self.recording.targets.len();
        self.recording.targets.push(of);
        self.recording.leaf(TARGET, of, index, address, axes);
    }

    /// Ends with a new array as the target, which has the shape of the expression.
    pub(crate) fn new_target(&mut self, of: ScalarType) {
        self.recording.targets.push(of);
        self.recording.push(NEW_TARGET, of, 0);
    }

    /// Records the elements of a target.
    pub(crate) fn updated<T: Scalar>(&mut self, index: usize) -> Result<(), ArrayError> {
        if self.recording.targets.get(index) == Some(&T::TYPE) {
            self.recording.push(BEFORE, T::TYPE, index);
            return Ok(());
        }
        Err(ArrayError::Shape {
            operation: self.operation,
            left: Vec::new(),
            right: Vec::new(),
            expected: "elements of an update cannot be used outside of its closure",
        })
    }

    /// Records an operation on the operands before it.
    #[inline]
    pub(crate) fn token(&mut self, token: u8) {
        self.recording.words.push(u64::from(token));
    }

    /// Records a conversion of the operand before it.
    pub(crate) fn cast(&mut self, to: ScalarType) {
        self.recording.push(CAST, to, 0);
    }

    /// Takes another view of the operand before it, of a kind by its number.
    pub(crate) fn view(&mut self, kind: u8, words: impl Iterator<Item = (usize, isize)>) {
        self.recording.leaf(VIEW, ScalarType::F32, usize::from(kind), 0, words);
    }
}

impl TapeRecording {
    /// An error if there are more arrays or numbers than a launch can have. Errors name `operation`.
    #[inline]
    pub(crate) fn check_counts(&self, operation: &'static str) -> Result<(), ArrayError> {
        check_arrays(self.arrays.len() + self.targets.len(), operation)?;
        if self.numbers.len() <= NUMBERS_MAX {
            Ok(())
        } else {
            Err(too_large(operation, "numbers", NUMBERS_MAX))
        }
    }

    pub(crate) fn array_count(&self) -> usize {
        self.arrays.len()
    }

    fn clear(&mut self) {
        let Self { words, arrays, numbers, targets } = self;
        words.clear();
        arrays.clear();
        numbers.clear();
        targets.clear();
    }

    #[inline]
    fn push(&mut self, token: u8, of: ScalarType, place: usize) {
        let place = u8::try_from(place).unwrap_or(u8::MAX);
        self.words.push(RecordedWord { token, of, alignment: 0, place, pairs: 0 }.bits());
    }

    fn leaf(
        &mut self,
        token: u8,
        of: ScalarType,
        place: usize,
        address: u64,
        pairs: impl Iterator<Item = (usize, isize)>,
    ) {
        let first = self.words.len();
        self.words.push(0);
        for (len, stride) in pairs {
            self.words.extend([len as u64, stride as u64]);
        }
        let pairs = ((self.words.len() - first) / 2) as u32;
        let place = u8::try_from(place).unwrap_or(u8::MAX);
        let alignment = (address % ALIGNMENT_MAX) as u8;
        self.words[first] = RecordedWord { token, of, alignment, place, pairs }.bits();
    }
}

/// An error if a launch cannot have this number of arrays, with those that it writes. Its last argument is the words.
#[inline]
pub(crate) fn check_arrays(count: usize, operation: &'static str) -> Result<(), ArrayError> {
    const LIMIT: usize = ARGUMENTS_MAX - 1;
    if count <= LIMIT { Ok(()) } else { Err(too_large(operation, "arrays, with those of the result", LIMIT)) }
}

#[cold]
pub(crate) fn too_large(operation: &'static str, of: &'static str, limit: usize) -> ArrayError {
    ArrayError::ExpressionSize { operation, of, limit }
}

/// The name of an expression in errors, unless it stands for an operation on arrays.
pub(crate) const EXPRESSION: &str = "expression";
const NUMBERS_MAX: usize = 100;
/// The widest load or store.
const ALIGNMENT_MAX: u64 = 16;
