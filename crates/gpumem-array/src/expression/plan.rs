//! [`KernelPlan`]: what the text of a kernel depends on, and the words that its launch passes.
//!
//! Axes that are one in every array are merged. How each array is passed through along the fastest axis is part of the text; lengths and
//! strides are words.

use crate::element::ScalarType;
use crate::expression::notes::{ArgumentIndex, LeafElement, Notes};
use crate::expression::tape::{CAST, ELEMENT, NUMBER, RecordedNumber};
use crate::expression::text::THREADS;
use crate::kernel::generated::hash;

/// The plan of a launch. A thread's launches reuse its memory.
#[derive(Debug, Default)]
pub(crate) struct KernelPlan {
    /// Targets, then the elements that are read, each once.
    pub(crate) columns: Vec<PlannedColumn>,
    pub(crate) target_count: usize,
    /// The arguments that are addresses.
    pub(crate) argument_count: usize,
    /// The operations, with columns for elements.
    pub(crate) tokens: Vec<u8>,
    /// The merged axes, from the fastest to the slowest. Those that are reduced come first.
    pub(crate) lens: Vec<usize>,
    pub(crate) reduced_count: usize,
    /// True if neighbouring outputs of a reduction are nearer in memory than neighbouring elements of one.
    pub(crate) is_across: bool,
    /// The strides of the merged axes in bytes: by axis, then by column.
    strides: Vec<isize>,
    /// The axis that turned columns lie along. Blocks take tiles of it and of the fastest axis.
    pub(crate) tile_axis: Option<usize>,
    /// The elements that a thread takes at once.
    pub(crate) lanes: usize,
    /// True if these elements are neighbours along all axes together, and may be in several rows.
    pub(crate) is_flat: bool,
    /// The neighbouring outputs of a reduction that a thread takes at once.
    pub(crate) outputs_at_once: usize,
    /// The blocks of an element-wise kernel; 0 if there are no elements.
    pub(crate) blocks: u32,
    /// True if indices need 64 bits.
    pub(crate) is_wide: bool,
    /// The words that a launch passes as the parameter of its kernel.
    pub(crate) words: Vec<u64>,
    /// The index of the first number in the words.
    pub(crate) first_number: usize,
    /// All that the text depends on, as bytes.
    pub(crate) key: Vec<u8>,
    pub(crate) key_hash: usize,
    /// The column of each element.
    places: Vec<u8>,
    /// The strides before the axes are merged: by column, then by axis.
    unmerged: Vec<isize>,
    order: Vec<usize>,
}

/// An array that a kernel passes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedColumn {
    pub(crate) argument: usize,
    pub(crate) of: ScalarType,
    pub(crate) steps: Steps,
    /// Bytes behind the address of the argument.
    offset: isize,
    address: u64,
}

/// How an array is passed through along the fastest axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Steps {
    /// One element after the other.
    Unit,
    /// One element for all indices of the fastest axis.
    Same,
    /// One element for all indices.
    Constant,
    /// One element after the other along another axis: loaded in tiles.
    Turned,
    Any,
}

impl KernelPlan {
    /// Plans an element-wise kernel for elements of this shape.
    pub(crate) fn each(&mut self, notes: &Notes, shape: &[usize]) {
        self.begin(notes, shape, notes.targets());
        let Self { order, unmerged, .. } = self;
        order.clear();
        order.extend((0..shape.len()).filter(|axis| shape[*axis] > 1));
        // Along the memory of the first target.
        order.sort_by_key(|axis| {
            core::cmp::Reverse(unmerged.get(*axis).map_or(0, |stride| stride.unsigned_abs()))
        });
        self.lens.clear();
        self.strides.clear();
        self.merge_after(shape, 0);
        self.reduced_count = 0;
        self.classify();
        self.turn();
        (self.lanes, self.is_flat) = self.groups();
        let len: usize = self.lens.iter().product();
        self.is_wide = len > NARROW_MAX;
        self.words.clear();
        if let Some(axis) = self.tile_axis {
            let tiles: usize = (0..self.lens.len()).map(|axis| self.steps_along(axis, TILE)).product();
            self.blocks = u32::try_from(tiles).unwrap_or(GRID_MAX).min(GRID_MAX);
            self.words.extend([tiles, self.lens[0], self.lens[axis]].map(|word| word as u64));
            self.push_axes(TILE);
        } else {
            self.blocks = if shape.contains(&0) { 0 } else { blocks(len.div_ceil(self.lanes)) };
            self.words.push(len as u64);
            self.push_axes(if self.is_flat { 1 } else { self.lanes });
        }
        self.end(notes, &[0]);
    }

    /// Plans a reduction along some axes of elements of this shape to `results`. `is_ordered` keeps the order of the elements in the shape.
    pub(crate) fn reduction(
        &mut self,
        notes: &Notes,
        shape: &[usize],
        results: &[LeafElement],
        is_reduced: impl Fn(usize) -> bool,
        is_ordered: bool,
    ) {
        self.begin(notes, shape, results);
        self.lens.clear();
        self.strides.clear();
        let skipped = self.target_count * shape.len();
        for wanted in [true, false] {
            let Self { order, unmerged, .. } = self;
            let strides = |axis: usize| {
                unmerged[skipped..].iter().skip(axis).step_by(shape.len()).map(|stride| stride.unsigned_abs())
            };
            let least = |axis: usize| strides(axis).filter(|stride| *stride > 0).min().unwrap_or(usize::MAX);
            order.clear();
            order.extend((0..shape.len()).filter(|axis| shape[*axis] > 1 && is_reduced(*axis) == wanted));
            if !wanted {
                // Outputs along the memory of the array with the most elements.
                let stride = |column: usize, axis: usize| unmerged[skipped + column * shape.len() + axis];
                let len = |column: usize| -> usize {
                    (0..shape.len())
                        .filter(|axis| stride(column, *axis) != 0)
                        .map(|axis| shape[axis])
                        .product()
                };
                let columns = (unmerged.len() - skipped) / shape.len().max(1);
                let largest = (0..columns).rev().max_by_key(|column| len(*column)).unwrap_or(0);
                order.sort_by_key(|axis| core::cmp::Reverse(stride(largest, *axis).unsigned_abs()));
            } else if !is_ordered {
                // Along the memory of the largest arrays, whatever their order in the expression.
                order.sort_by_key(|axis| core::cmp::Reverse(strides(*axis).max()));
            }
            let fastest = order.iter().rev().copied().min_by_key(|axis| least(*axis));
            if let Some(axis) = fastest.filter(|_| !wanted) {
                self.is_across = (0..shape.len())
                    .all(|other| !is_reduced(other) || shape[other] == 1 || least(other) > least(axis));
                if self.is_across {
                    order.retain(|other| *other != axis);
                    order.push(axis);
                }
            }
            let first = self.lens.len();
            self.merge_after(shape, first);
            if wanted {
                self.reduced_count = self.lens.len();
            }
        }
        self.classify();
    }

    /// Columns for the targets and all elements.
    fn begin(&mut self, notes: &Notes, shape: &[usize], targets: &[LeafElement]) {
        (self.tile_axis, self.is_across, self.is_flat, self.outputs_at_once) = (None, false, false, 1);
        self.columns.clear();
        self.unmerged.clear();
        self.places.clear();
        let array_count = notes.array_count;
        targets.iter().for_each(|target| {
            self.column(target, shape, array_count);
        });
        self.target_count = targets.len();
        self.argument_count = array_count + targets.len();
        for element in notes.elements() {
            let column = self.column(element, shape, array_count);
            self.places.push(column as u8);
        }
    }

    /// The column of an element, which is new unless a column has the same elements.
    fn column(&mut self, element: &LeafElement, shape: &[usize], array_count: usize) -> usize {
        let (count, first) = (shape.len(), self.unmerged.len());
        for (from_last, len) in shape.iter().rev().enumerate().rev() {
            // Missing axes are broadcast, and so are those of length 1.
            let axis = element.axes.len().checked_sub(from_last + 1).map(|axis| element.axes[axis]);
            let stride = axis.filter(|(own, _)| own == len && *len != 1).map_or(0, |(_, stride)| stride);
            self.unmerged.push(stride);
        }
        let argument = match element.argument {
            ArgumentIndex::Array(index) => usize::from(index),
            ArgumentIndex::Target(index) => array_count + usize::from(index),
            ArgumentIndex::None => 0,
        };
        let (known, new) = self.unmerged.split_at(first);
        let is_same = |(index, column): &(usize, &PlannedColumn)| {
            (column.argument, column.offset) == (argument, element.offset)
                && known[index * count..(index + 1) * count] == *new
        };
        if let Some((index, _)) = self.columns.iter().enumerate().find(is_same) {
            self.unmerged.truncate(first);
            return index;
        }
        let (of, offset) = (element.of.unwrap_or(ScalarType::F32), element.offset);
        let address = element.address.wrapping_add_signed(offset as i64);
        self.columns.push(PlannedColumn { argument, of, steps: Steps::Any, offset, address });
        self.columns.len() - 1
    }

    /// Appends the axes in [`KernelPlan::order`], which has the slowest first.
    fn merge_after(&mut self, shape: &[usize], first: usize) {
        let (count, width) = (shape.len(), self.columns.len());
        let Self { unmerged, strides, lens, order, .. } = self;
        for axis in order.iter().rev() {
            let stride = |column: usize| unmerged[column * count + axis];
            if lens.len() > first
                && let Some(last) = lens.last_mut()
            {
                let fast = &strides[strides.len() - width..];
                let len = last.cast_signed();
                if fast.iter().enumerate().all(|(column, fast)| fast * len == stride(column)) {
                    *last *= shape[*axis];
                    continue;
                }
            }
            lens.push(shape[*axis]);
            strides.extend((0..width).map(stride));
        }
        if lens.len() == first {
            lens.push(1);
            strides.extend((0..width).map(|_| 0));
        }
    }

    pub(crate) fn stride(&self, axis: usize, column: usize) -> isize {
        self.strides[axis * self.columns.len() + column]
    }

    fn classify(&mut self) {
        for index in 0..self.columns.len() {
            let of = self.columns[index].of;
            let is_constant = (0..self.lens.len()).all(|axis| self.stride(axis, index) == 0);
            self.columns[index].steps = match self.stride(0, index) {
                _ if is_constant => Steps::Constant,
                0 => Steps::Same,
                stride if stride == of.size().cast_signed() => Steps::Unit,
                _ => Steps::Any,
            };
        }
    }

    /// Finds columns that lie along another axis than the targets. Loaded one element after the other along the fastest axis, they would
    /// take a whole sector of memory for each.
    fn turn(&mut self) {
        let is_long = |axis: &usize| self.lens[*axis] >= TILE;
        if !is_long(&0) || self.lens.iter().product::<usize>() < TILED_MIN {
            return;
        }
        let is_along = |axis: usize, index: usize| {
            let PlannedColumn { of, steps, .. } = self.columns[index];
            steps == Steps::Any && self.stride(axis, index).unsigned_abs() == of.size()
        };
        let reads = self.target_count..self.columns.len();
        let mut axes = (1..self.lens.len()).filter(is_long);
        let Some(axis) = axes.find(|axis| reads.clone().any(|index| is_along(*axis, index))) else { return };
        let turned: Vec<_> = reads.filter(|index| is_along(axis, *index)).collect();
        let mut bytes = 0;
        for index in turned {
            bytes += tile_bytes(self.columns[index].of);
            if bytes <= SHARED_MAX {
                self.columns[index].steps = Steps::Turned;
            }
        }
        self.tile_axis = Some(axis);
    }

    /// The number of steps along an axis: those of `lanes` elements along the fastest axis and along that of tiles.
    fn steps_along(&self, axis: usize, lanes: usize) -> usize {
        let is_stepped = axis == 0 || self.tile_axis == Some(axis);
        if is_stepped { self.lens[axis].div_ceil(lanes) } else { self.lens[axis] }
    }

    /// The elements that a thread takes at once: those of a row, if rows have whole groups of them that all arrays can load or repeat,
    /// otherwise neighbours along all axes together if the targets have no gaps, which is true as the second result. Then arrays with gaps
    /// are loaded element by element.
    fn groups(&self) -> (usize, bool) {
        let size = self.columns.iter().map(|column| column.of.size()).max().unwrap_or(16);
        let columns = || 0..self.columns.len();
        let is_full = |lanes: &usize| lanes * size <= 16;
        let fits = |lanes: &usize| {
            self.lens[0] >= *lanes
                && (self.lens.len() == 1 || self.lens[0].is_multiple_of(*lanes))
                && columns().all(|column| self.has_groups(column, *lanes))
        };
        let has = |steps| columns().any(|column| self.columns[column].steps == steps);
        let mut sizes = [4, 2].into_iter().filter(is_full).filter(|_| has(Steps::Unit));
        if let Some(lanes) = sizes.clone().find(fits) {
            return (lanes, false);
        }
        let is_flat =
            |lanes: &usize| (0..self.target_count).all(|target| self.has_flat_groups(target, *lanes));
        match sizes.find(is_flat) {
            Some(lanes) if !has(Steps::Any) && !has(Steps::Turned) => (lanes, true),
            _ => (1, false),
        }
    }

    /// True if a column has no gaps, and groups of its elements can be loaded at once.
    pub(crate) fn has_flat_groups(&self, index: usize, lanes: usize) -> bool {
        let PlannedColumn { of, address, .. } = self.columns[index];
        let mut next = of.size().cast_signed();
        let is_dense = self.lens.iter().enumerate().all(|(axis, len)| {
            let is_next = self.stride(axis, index) == next;
            next = next.wrapping_mul(len.cast_signed());
            is_next
        });
        is_dense && address.is_multiple_of((lanes * of.size()) as u64)
    }

    /// True if groups of outputs of a reduction can be stored at once. Results of reductions have no gaps and begin at aligned addresses, so
    /// this depends on the last axis alone.
    pub(crate) fn has_row_groups(&self, target: usize, lanes: usize) -> bool {
        self.outputs_at_once.is_multiple_of(lanes)
            && self.stride(self.reduced_count, target) == self.columns[target].of.size().cast_signed()
    }

    /// Lets a thread of a reduction, which takes whole outputs, take several of a row that have elements in common, as of the distances of
    /// one point from many.
    pub(crate) fn take_outputs_at_once(&mut self, outputs: usize) {
        let row = self.reduced_count;
        let columns = self.target_count..self.columns.len();
        let has_common = columns
            .clone()
            .any(|index| self.stride(row, index) == 0 && (0..row).any(|axis| self.stride(axis, index) != 0));
        let size = self.columns.iter().map(|column| column.of.size()).max().unwrap_or(16);
        let fits = |count: &usize| {
            count * size <= 32 && self.lens[row].is_multiple_of(*count) && outputs / count >= THREADS_WANTED
        };
        if has_common && !self.is_across {
            self.outputs_at_once = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        }
    }

    /// True if a thread takes several outputs, and they have the same elements of a column.
    pub(crate) fn is_common(&self, index: usize) -> bool {
        self.outputs_at_once > 1 && self.stride(self.reduced_count, index) == 0
    }

    /// False if an array has the same elements for all indices of an axis. Texts distinguish the first axes.
    pub(crate) fn has_step(&self, axis: usize, index: usize) -> bool {
        axis >= u8::BITS as usize || self.stride(axis, index) != 0
    }

    /// True if groups of elements of a column are one element, or can be loaded at once.
    pub(crate) fn has_groups(&self, index: usize, lanes: usize) -> bool {
        let PlannedColumn { of, steps, address, .. } = self.columns[index];
        let bytes = lanes * of.size();
        match steps {
            Steps::Same | Steps::Constant => true,
            Steps::Turned | Steps::Any => false,
            Steps::Unit => {
                let is_multiple = |axis: usize| self.stride(axis, index) % bytes.cast_signed() == 0;
                address.is_multiple_of(bytes as u64) && (1..self.lens.len()).all(is_multiple)
            }
        }
    }

    /// Adds the words of the axes: what an index is divided by, and the strides of the columns.
    pub(crate) fn push_axes(&mut self, lanes: usize) {
        let width = self.columns.len();
        for axis in 0..self.lens.len() {
            let by = self.steps_along(axis, lanes) as u64;
            self.words.push(by);
            self.words.push(reciprocal(by));
            for column in 0..width {
                self.words.push(self.stride(axis, column) as u64);
            }
        }
    }

    /// True if columns do not begin at the addresses of their arguments.
    pub(crate) fn has_offsets(&self) -> bool {
        self.columns.iter().any(|column| column.offset != 0)
    }

    /// Ends the words with offsets, if any, and the numbers, and writes the key.
    pub(crate) fn end(&mut self, notes: &Notes, kind: &[u8]) {
        if self.has_offsets() {
            self.words.extend(self.columns.iter().map(|column| column.offset as u64));
        }
        self.first_number = self.words.len();
        self.words.extend(&notes.numbers);
        self.tokens.clear();
        let mut tokens = notes.tokens.iter().copied();
        while let Some(token) = tokens.next() {
            self.tokens.push(token);
            let operands = match token {
                ELEMENT | CAST => 1,
                NUMBER => 2,
                _ => 0,
            };
            for operand in tokens.by_ref().take(operands) {
                let place = self.places.get(usize::from(operand)).copied();
                self.tokens.push(if token == ELEMENT { place.unwrap_or_default() } else { operand });
            }
        }
        self.key.clear();
        self.key.extend(kind);
        let counts = [
            self.target_count,
            self.argument_count,
            self.columns.len(),
            self.lens.len(),
            self.reduced_count,
            self.tile_axis.unwrap_or_default(),
            usize::from(self.has_offsets()),
            self.lanes,
            usize::from(self.is_flat),
            self.outputs_at_once,
            usize::from(self.is_wide),
            notes.numbers.len(),
        ];
        self.key.extend(counts.map(|count| count as u8));
        for index in 0..self.columns.len() {
            let PlannedColumn { argument, of, steps, .. } = self.columns[index];
            let is_grouped = self.lanes > 1
                && if self.is_flat {
                    self.has_flat_groups(index, self.lanes)
                } else {
                    self.has_groups(index, self.lanes)
                };
            let in_rows = self.outputs_at_once > 1 && self.has_row_groups(index, 2);
            let flags = u8::from(is_grouped) | u8::from(self.is_common(index)) << 1 | u8::from(in_rows) << 2;
            let axes = 0..self.lens.len().min(u8::BITS as usize);
            let steps_along = axes.fold(0, |all, axis| all | u8::from(self.has_step(axis, index)) << axis);
            self.key.extend([argument as u8, of as u8, steps as u8, flags, steps_along]);
        }
        self.key.extend(&self.tokens);
        self.key_hash = hash(&self.key);
    }

    /// The numbers of another recording that has the same plan.
    #[inline]
    pub(crate) fn set_numbers(&mut self, numbers: &[RecordedNumber]) {
        let words = self.words[self.first_number..].iter_mut();
        words.zip(numbers).for_each(|(word, number)| *word = number.bits);
    }
}

/// The bytes of a tile in shared memory. Each row has one element more, so that the elements of a column are in different banks.
pub(crate) fn tile_bytes(of: ScalarType) -> usize {
    TILE * (TILE + 1) * of.size()
}

/// Enough threads to keep a large GPU busy.
pub(crate) const THREADS_WANTED: usize = 132 * 1024;

/// The elements along both axes of a tile.
pub(crate) const TILE: usize = 32;
/// Fewer elements are in a cache that is near.
const TILED_MIN: usize = 1 << 16;
/// The shared memory that every GPU has for a block.
const SHARED_MAX: usize = 48 << 10;

/// The blocks for a number of threads. Kernels stride by the grid, so fewer would be correct too, but are slower: a grid of 16 blocks for
/// each multiprocessor reaches 94 % of the rate.
pub(crate) fn blocks(threads: usize) -> u32 {
    u32::try_from(threads.div_ceil(THREADS)).unwrap_or(GRID_MAX).clamp(1, GRID_MAX)
}

/// The largest first dimension of a grid.
const GRID_MAX: u32 = i32::MAX.cast_unsigned();

/// Multiplies an index instead of dividing it: `n / by` is `((n * low half) >> 32) + n) >> high half`, for `n` up to [`NARROW_MAX`].
fn reciprocal(by: u64) -> u64 {
    if by == 0 || by > NARROW_MAX as u64 {
        return 0;
    }
    let shift = u64::from(64 - (by - 1).leading_zeros());
    let factor = ((1_u64 << 32) * ((1 << shift) - by)) / by + 1;
    factor & 0xFFFF_FFFF | shift << 32
}

/// The largest index that is divided with 32 bits.
pub(crate) const NARROW_MAX: usize = i32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reciprocal_divides(n in 0..=NARROW_MAX as u64, by in prop_oneof![1..70_u64, 1..=NARROW_MAX as u64]) {
            let word = reciprocal(by);
            let (factor, shift) = (word & 0xFFFF_FFFF, word >> 32);
            let sum = ((n * factor) >> 32) + n;
            prop_assert!(sum <= u64::from(u32::MAX));
            prop_assert_eq!(sum >> shift, n / by);
        }
    }
}
