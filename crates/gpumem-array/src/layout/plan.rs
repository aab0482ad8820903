//! [`LayoutPlan`]: the movement of elements from one layout to another with the fewest driver calls.
//!
//! The axes are ordered by their steps in the target, from the slowest to the fastest, and merged where both sides are contiguous.
//! The remaining axes determine the form. One run of bytes is one copy, and runs at a fixed pitch are one 2D or 3D copy, or one
//! kernel. All other layouts take one kernel, which moves tiles if the fastest axes of the two sides differ. A plan is arithmetic
//! only: `copy` chooses the driver calls from it.

use crate::layout::Layout;
use ndarray::Dimension;

/// The movement of all elements of a source to a target of the same shape. Offsets, steps and sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayoutPlan {
    /// The offset of the first element in the target, from the base address.
    pub(crate) to: isize,
    /// The offset of that element in the source.
    pub(crate) from: isize,
    pub(crate) form: Form,
    bases: [u64; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Nothing,
    /// One contiguous run on both sides.
    Run {
        size_bytes: usize,
    },
    /// Runs at fixed pitches.
    Pitched(Pitched),
    /// Any steps.
    Strided(Strided),
}

/// `depth` slices of `height` rows of `width` bytes. The pitch is the distance of two rows; the distance of two slices is
/// `…_height` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pitched {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) to_pitch: usize,
    pub(crate) to_height: usize,
    pub(crate) from_pitch: usize,
    pub(crate) from_height: usize,
}

/// Rows of units. All addresses and steps are multiples of the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    /// 1, 2, 4, 8 or 16.
    pub(crate) unit: usize,
    /// The innermost axis.
    pub(crate) row: AxisStep,
    /// The fastest axis of the source, if that is another one and tiles of the two are worth a copy through shared memory.
    pub(crate) column: Option<AxisStep>,
    /// The other axes, from the slowest to the fastest.
    pub(crate) outer: Vec<AxisStep>,
}

/// An axis: its length, and its steps in the target and in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AxisStep {
    pub(crate) len: usize,
    pub(crate) to: isize,
    pub(crate) from: isize,
}

impl LayoutPlan {
    /// For two layouts of one shape with elements of `size` bytes, at these base addresses. Memory of the host may have any address.
    pub(crate) fn copy<D: Dimension, E: Dimension>(
        to: &Layout<D>,
        from: &Layout<E>,
        size: usize,
        bases: [u64; 2],
    ) -> Self {
        let steps = to.shape().iter().zip(to.strides()).zip(from.strides());
        let steps = steps.map(|((&len, to), from)| AxisStep { len, to, from });
        Self::of(to.len(), [to.offset, from.offset], steps, size, bases)
    }

    /// For two layouts whose elements are contiguous in one order.
    pub(crate) fn run<D: Dimension, E: Dimension>(to: &Layout<D>, from: &Layout<E>, size: usize) -> Self {
        let form = if to.len() == 0 { Form::Nothing } else { Form::Run { size_bytes: to.len() * size } };
        // A run has no unit.
        let bases = [0; 2];
        Self { to: (to.offset * size).cast_signed(), from: (from.offset * size).cast_signed(), form, bases }
    }

    /// The elements of a target that are to be set, with no source.
    pub(crate) fn fill<D: Dimension>(to: &Layout<D>, size: usize, base: u64) -> Self {
        let steps = to.shape().iter().zip(to.strides()).map(|(&len, to)| AxisStep { len, to, from: to });
        Self::of(to.len(), [to.offset; 2], steps, size, [base; 2])
    }

    /// The steps of a kernel that moves these elements; `None` if there are none.
    pub(crate) fn into_strided(self) -> Option<Strided> {
        let step =
            |len: usize, step: usize| AxisStep { len, to: step.cast_signed(), from: step.cast_signed() };
        let (run, outer) = match self.form {
            Form::Nothing => return None,
            Form::Strided(strided) => return Some(strided),
            Form::Run { size_bytes } => (size_bytes, Vec::new()),
            Form::Pitched(Pitched { width, height, depth, to_pitch, to_height, from_pitch, from_height }) => {
                let axis = |len, to: usize, from: usize| AxisStep {
                    len,
                    to: to.cast_signed(),
                    from: from.cast_signed(),
                };
                let slices = axis(depth, to_pitch * to_height, from_pitch * from_height);
                (
                    width,
                    [slices, axis(height, to_pitch, from_pitch)]
                        .into_iter()
                        .filter(|axis| axis.len > 1)
                        .collect(),
                )
            }
        };
        let unit = unit(run, placed([self.to, self.from], self.bases), &outer);
        Some(Strided { unit, row: step(run / unit, unit), column: None, outer })
    }

    fn of(
        len: usize,
        [to, from]: [usize; 2],
        steps: impl Iterator<Item = AxisStep>,
        size: usize,
        bases: [u64; 2],
    ) -> Self {
        let scale = size.cast_signed();
        let (mut to, mut from) = (to.cast_signed() * scale, from.cast_signed() * scale);
        if len == 0 {
            return Self { to, from, form: Form::Nothing, bases };
        }
        let mut axes: Vec<AxisStep> = Vec::new();
        for AxisStep { len, to: to_step, from: from_step } in steps.filter(|step| step.len > 1) {
            let mut step = AxisStep { len, to: to_step * scale, from: from_step * scale };
            if step.to < 0 {
                // From its other end, so that the steps of the target are positive.
                let last = (len - 1).cast_signed();
                (to, from) = (to + last * step.to, from + last * step.from);
                (step.to, step.from) = (-step.to, -step.from);
            }
            axes.push(step);
        }
        axes.sort_by_key(|step| core::cmp::Reverse(step.to));
        let axes = merged(axes);
        Self { to, from, form: form(placed([to, from], bases), axes, size), bases }
    }
}

/// Merges each axis with the next faster one if, on both sides, the one continues where the other ends.
pub(crate) fn merged(axes: impl IntoIterator<Item = AxisStep>) -> Vec<AxisStep> {
    let mut merged: Vec<AxisStep> = Vec::new();
    for fast in axes {
        match merged.last_mut() {
            Some(slow)
                if slow.to == fast.to * fast.len.cast_signed()
                    && slow.from == fast.from * fast.len.cast_signed() =>
            {
                *slow = AxisStep { len: slow.len * fast.len, ..fast };
            }
            _ => merged.push(fast),
        }
    }
    merged
}

/// The addresses at these offsets. Only their lowest bits matter.
fn placed(offsets: [isize; 2], bases: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|side| bases[side].wrapping_add_signed(offsets[side] as i64))
}

fn form(addresses: [u64; 2], mut axes: Vec<AxisStep>, size: usize) -> Form {
    let signed = size.cast_signed();
    // The innermost run of bytes that are contiguous on both sides.
    let run = match axes.last() {
        Some(last) if last.to == signed && last.from == signed => {
            axes.pop().map_or(size, |last| last.len * size)
        }
        _ => size,
    };
    let pitched = match axes[..] {
        [] => return Form::Run { size_bytes: run },
        [rows] => pitched(run, rows, None),
        [slices, rows] => pitched(run, rows, Some(slices)),
        _ => None,
    };
    if let Some(pitched) = pitched {
        return Form::Pitched(pitched);
    }
    let unit = unit(run, addresses, &axes);
    let run = AxisStep { len: run / unit, to: unit.cast_signed(), from: unit.cast_signed() };
    match axes.pop() {
        // One unit is an element: the innermost axis is one of elements.
        Some(row) if run.len == 1 => {
            let column = column(row, &axes).map(|index| axes.remove(index));
            Form::Strided(Strided { unit, row, column, outer: axes })
        }
        Some(row) => {
            axes.push(row);
            Form::Strided(Strided { unit, row: run, column: None, outer: axes })
        }
        None => Form::Strided(Strided { unit, row: run, column: None, outer: axes }),
    }
}

/// The fastest axis of the source, if it differs from the row. Tiles need a minimum length along both axes.
fn column(row: AxisStep, outer: &[AxisStep]) -> Option<usize> {
    let steps = outer.iter().enumerate().filter(|(_, step)| step.from != 0);
    let (index, fastest) = steps.min_by_key(|(_, step)| step.from.unsigned_abs())?;
    let is_faster = fastest.from.unsigned_abs() < row.from.unsigned_abs();
    (is_faster && fastest.len >= TILE_MIN && row.len >= TILE_MIN).then_some(index)
}

/// Rows at a pitch that one copy of the driver can move, unless they are so narrow that the driver moves them slowly.
fn pitched(width: usize, rows: AxisStep, slices: Option<AxisStep>) -> Option<Pitched> {
    let pitch = |step: isize| usize::try_from(step).ok().filter(|pitch| (width..=PITCH_MAX).contains(pitch));
    let (to_pitch, from_pitch) = (pitch(rows.to)?, pitch(rows.from)?);
    let rows_apart = |step: isize, pitch: usize| {
        let step = usize::try_from(step).ok()?;
        (step % pitch == 0 && step / pitch >= rows.len).then(|| step / pitch)
    };
    let (depth, to_height, from_height) = match slices {
        Some(slices) => (slices.len, rows_apart(slices.to, to_pitch)?, rows_apart(slices.from, from_pitch)?),
        None => (1, rows.len, rows.len),
    };
    (width >= WIDTH_MIN).then_some(Pitched {
        width,
        height: rows.len,
        depth,
        to_pitch,
        to_height,
        from_pitch,
        from_height,
    })
}

/// The largest unit that divides the run, the addresses and all steps.
pub(crate) fn unit(run: usize, [to, from]: [u64; 2], axes: &[AxisStep]) -> usize {
    let steps = axes.iter().flat_map(|step| [step.to, step.from]);
    let bits = steps.fold(run as u64 | to | from, |bits, step| bits | step.unsigned_abs() as u64);
    1 << bits.trailing_zeros().min(UNIT_MAX.trailing_zeros())
}

/// The widest load and store.
const UNIT_MAX: usize = 16;
/// The largest pitch of a driver's copy.
const PITCH_MAX: usize = i32::MAX as usize;
/// The driver is slow for narrower rows.
const WIDTH_MIN: usize = 64;

/// For shorter axes, a kernel without tiles still uses most of each cache line.
const TILE_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ElementOrder;
    use ndarray::{Axis, IxDyn, Slice};

    fn dense(shape: &[usize]) -> Layout<IxDyn> {
        Layout::dense(IxDyn(shape), ElementOrder::Row, 4).unwrap()
    }

    fn copy(to: &Layout<IxDyn>, from: &Layout<IxDyn>) -> LayoutPlan {
        LayoutPlan::copy(to, from, 4, [0; 2])
    }

    #[test]
    fn contiguous_elements_are_one_run_in_any_order_of_axes() {
        let whole = dense(&[3, 4, 5]);
        assert_eq!(copy(&whole, &whole).form, Form::Run { size_bytes: 240 });
        let turned = whole.clone().transposed();
        assert_eq!(copy(&turned, &turned).form, Form::Run { size_bytes: 240 });
        let rows = whole.clone().slice_axis(Axis(0), Slice::from(1..)).unwrap();
        let plan = copy(&dense(&[2, 4, 5]), &rows);
        assert_eq!((plan.to, plan.from, plan.form), (0, 80, Form::Run { size_bytes: 160 }));
        let reversed = whole.slice_axis(Axis(0), Slice::from(..).step_by(-1)).unwrap();
        assert_eq!(copy(&reversed, &reversed).form, Form::Run { size_bytes: 240 });
        assert_eq!(copy(&dense(&[0, 5]), &dense(&[0, 5])).form, Form::Nothing);
    }

    #[test]
    fn wide_rows_are_pitched() {
        let part = dense(&[8, 100]).slice_axis(Axis(1), Slice::from(10..40)).unwrap();
        let Form::Pitched(pitched) = copy(&dense(&[8, 30]), &part).form else { panic!() };
        assert_eq!((pitched.width, pitched.height, pitched.depth), (120, 8, 1));
        assert_eq!((pitched.to_pitch, pitched.from_pitch), (120, 400));
        let part = dense(&[4, 8, 100]).slice_axis(Axis(2), Slice::from(..30)).unwrap();
        let part = part.slice_axis(Axis(1), Slice::from(2..5)).unwrap();
        let Form::Pitched(pitched) = copy(&dense(&[4, 3, 30]), &part).form else { panic!() };
        assert_eq!((pitched.width, pitched.height, pitched.depth), (120, 3, 4));
        assert_eq!((pitched.to_height, pitched.from_height), (3, 8));
        // Reversed rows and repeated rows, which no pitch describes.
        let back = dense(&[8, 100]).slice_axis(Axis(0), Slice::from(..).step_by(-1)).unwrap();
        assert!(matches!(copy(&dense(&[8, 100]), &back).form, Form::Strided(_)));
        let again = dense(&[100]).broadcast(IxDyn(&[8, 100])).unwrap();
        assert!(matches!(copy(&dense(&[8, 100]), &again).form, Form::Strided(_)));
    }

    #[test]
    fn tiles_are_of_the_fastest_axes_of_both_sides() {
        let strided = |to: &Layout<IxDyn>, from: &Layout<IxDyn>| match copy(to, from).form {
            Form::Strided(strided) => strided,
            form => panic!("{form:?}"),
        };
        let turned = |order: [usize; 3]| dense(&[20, 30, 40]).permuted(&IxDyn(&order)).unwrap();
        let found = strided(&dense(&[40, 30, 20]), &turned([2, 1, 0]));
        assert_eq!(found.row, AxisStep { len: 20, to: 4, from: 4800 });
        assert_eq!(found.column, Some(AxisStep { len: 40, to: 2400, from: 4 }));
        assert_eq!(found.outer, [AxisStep { len: 30, to: 80, from: 160 }]);
        // Axes that stay side by side are one.
        let found = strided(&dense(&[30, 40, 20]), &turned([1, 2, 0]));
        assert_eq!((found.row.len, found.column.map(|column| column.len)), (20, Some(1200)));
        // The fastest axis is the same, a repeated one, or short.
        let same = strided(
            &dense(&[30, 20, 40]),
            &dense(&[20, 30, 80])
                .permuted(&IxDyn(&[1, 0, 2]))
                .unwrap()
                .slice_axis(Axis(2), Slice::from(..).step_by(2))
                .unwrap(),
        );
        assert_eq!(same.column, None);
        let repeated = strided(&dense(&[40, 30]), &dense(&[40, 1]).broadcast(IxDyn(&[40, 30])).unwrap());
        assert_eq!(repeated.column, None);
        let short = strided(&dense(&[7, 30]), &dense(&[30, 7]).transposed());
        assert_eq!(short.column, None);
    }

    #[test]
    fn units_are_as_wide_as_the_steps_allow() {
        let back = dense(&[8, 100]).slice_axis(Axis(0), Slice::from(..).step_by(-1)).unwrap();
        let Form::Strided(strided) = copy(&dense(&[8, 100]), &back).form else { panic!() };
        assert_eq!((strided.unit, strided.row.len, strided.outer.len()), (16, 25, 1));
        let turned = dense(&[8, 100]).transposed();
        let Form::Strided(strided) = copy(&dense(&[100, 8]), &turned).form else { panic!() };
        assert_eq!((strided.unit, strided.row), (4, AxisStep { len: 8, to: 4, from: 400 }));
        assert_eq!((strided.column, strided.outer.len()), (Some(AxisStep { len: 100, to: 32, from: 4 }), 0));
        // Elements of 12 bytes are three units.
        let back = dense(&[9]).slice_axis(Axis(0), Slice::from(..).step_by(-1)).unwrap();
        let Form::Strided(strided) = LayoutPlan::copy(&dense(&[9]), &back, 12, [0; 2]).form else { panic!() };
        assert_eq!((strided.unit, strided.row.len, strided.outer[0].len), (4, 3, 9));
    }

    #[test]
    fn units_divide_the_addresses() {
        let (whole, turned) = (dense(&[8, 100]), dense(&[8, 100]).transposed());
        let back = whole.clone().slice_axis(Axis(0), Slice::from(..).step_by(-1)).unwrap();
        for (bases, unit) in
            [([16, 32], 16), ([8, 16], 8), ([16, 4], 4), ([2, 0], 2), ([0, 1], 1), ([3, 5], 1)]
        {
            let Form::Strided(strided) = LayoutPlan::copy(&whole, &back, 4, bases).form else { panic!() };
            assert_eq!((strided.unit, strided.row.len), (unit, 400 / unit), "{bases:?}");
            // Tiles, unless an element is several units.
            let Form::Strided(strided) = LayoutPlan::copy(&dense(&[100, 8]), &turned, 4, bases).form else {
                panic!()
            };
            let expected = if unit < 4 { (unit, false, 2) } else { (4, true, 0) };
            assert_eq!((strided.unit, strided.column.is_some(), strided.outer.len()), expected, "{bases:?}");
            let rows = whole.clone().slice_axis(Axis(1), Slice::from(..32)).unwrap();
            let strided = LayoutPlan::fill(&rows, 4, bases[0]).into_strided().unwrap();
            assert_eq!(strided.unit, 1 << bases[0].trailing_zeros().min(4));
        }
    }
}
