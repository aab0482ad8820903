//! [`Pattern`]: bytes at regular distances, such as those of some columns of a matrix.
//!
//! Two columns of a matrix are disjoint, although each has bytes between the first and the last byte of the other.

use crate::layout::ByteSpan;
use core::ops::Range;

/// Groups of runs of bytes, without a first and a last byte: the uses of a range have those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    groups: Runs,
    /// The distance of the runs of a group, from its start. 1 if it has no gaps.
    distance: u64,
    len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Runs {
    distance: u64,
    /// The start of the first run, below the distance.
    first: u64,
    /// Not above the distance.
    len: u64,
}

impl Pattern {
    pub(super) const ALL: Self = Self { groups: Runs::ALL, distance: 1, len: 1 };

    /// The pattern of the bytes of a view. It has all bytes if the view has no gaps, or irregular ones.
    pub(super) fn of(bytes: ByteSpan) -> Self {
        let Some((inner, outer)) = bytes.gaps.distances() else { return Self::ALL };
        let groups = Runs::new(outer.unwrap_or(inner), bytes.start, bytes.end - bytes.start);
        match outer {
            None => Self { groups, distance: 1, len: 1 },
            Some(_) => Self { groups, distance: inner, len: Runs::new(inner, 0, groups.len).len },
        }
    }

    /// True if both may have a byte in common. False if they are disjoint.
    pub(super) fn meets(self, other: Self) -> bool {
        [self.groups, self.runs()].into_iter().all(|one| one.meets(other.groups) && one.meets(other.runs()))
            && (self.groups.distance != other.groups.distance || self.meets_in_groups(other))
    }

    /// The groups have one distance. Each overlaps at most one group that begins at or after it, and one that begins before it.
    fn meets_in_groups(self, other: Self) -> bool {
        let meets_behind = |one: Self, other: Self| {
            let steps = ahead(one.groups.first, other.groups.first, one.groups.distance);
            let common = steps..one.groups.len.min(steps + other.groups.len);
            let runs = |pattern: Self, start: u64| Runs::new(pattern.distance, start, pattern.len);
            let (one, other) = (runs(one, 0), runs(other, steps));
            !common.is_empty() && one.meets(other) && one.is_in(&common) && other.is_in(&common)
        };
        meets_behind(self, other) || meets_behind(other, self)
    }

    /// True if all bytes of `other` are known to be bytes of this pattern.
    pub(super) fn contains(self, other: Self) -> bool {
        let has = |one: Runs| one.contains(other.groups) || one.contains(other.runs());
        // Without runs at one distance, the groups have other bytes between those of the pattern.
        let has_runs = self.groups.distance.is_multiple_of(self.distance) && has(self.runs());
        self == other || has(self.groups) && has_runs
    }

    /// True if the range may have bytes of the pattern. False if it has none.
    pub(super) fn is_in(self, bytes: &Range<u64>) -> bool {
        self.groups.is_in(bytes) && self.runs().is_in(bytes)
    }

    /// The runs of all groups, if they are at one distance; otherwise all bytes.
    fn runs(self) -> Runs {
        let is_regular = self.groups.distance.is_multiple_of(self.distance);
        if is_regular { Runs::new(self.distance, self.groups.first, self.len) } else { Runs::ALL }
    }
}

impl Runs {
    const ALL: Self = Self { distance: 1, first: 0, len: 1 };

    /// The runs of `len_bytes` bytes from `start`, which end with the last run. Runs are not longer than the distance.
    fn new(distance: u64, start: u64, len_bytes: u64) -> Self {
        Self { distance, first: start % distance, len: (len_bytes - 1) % distance + 1 }
    }

    /// Two runs meet at some multiple of both distances if they meet at a multiple of the greatest common divisor.
    fn meets(self, other: Self) -> bool {
        let distance = greatest_common_divisor(self.distance, other.distance);
        let ahead = |from: Self, to: Self| ahead(from.first % distance, to.first % distance, distance);
        ahead(self, other) < self.len || ahead(other, self) < other.len
    }

    fn contains(self, other: Self) -> bool {
        self == Self::ALL
            || other.distance.is_multiple_of(self.distance)
                && ahead(self.first, other.first % self.distance, self.distance) + other.len <= self.len
    }

    fn is_in(self, bytes: &Range<u64>) -> bool {
        // From the start of the last run that begins at the range or before.
        let into = ahead(self.first, bytes.start % self.distance, self.distance);
        into < self.len || self.distance - into < bytes.end - bytes.start
    }
}

/// The steps from one place to another, around a circle.
fn ahead(from: u64, to: u64, circle: u64) -> u64 {
    if to >= from { to - from } else { circle - from + to }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ElementOrder, Layout};
    use ndarray::{Axis, Dimension, Ix3, Slice};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Enough for the least common multiple of two distances.
    const END: u64 = 2_000;

    impl Pattern {
        fn has(self, byte: u64) -> bool {
            let Runs { distance, first, len } = self.groups;
            let place = ahead(first, byte % distance, distance);
            place < len && place % self.distance < self.len
        }
    }

    fn bytes(pattern: Pattern) -> BTreeSet<u64> {
        (0..END).filter(|byte| pattern.has(*byte)).collect()
    }

    /// For each axis, start, length and step.
    type Slices = [(isize, isize, isize); 3];

    fn slices() -> impl Strategy<Value = Slices> {
        prop::array::uniform3((0..3_isize, 1..6_isize, 1..4_isize))
    }

    fn view(shape: [usize; 3], slices: &Slices) -> Option<Layout<Ix3>> {
        let whole = Layout::dense(Ix3(shape[0], shape[1], shape[2]), ElementOrder::Row, 1).unwrap();
        slices.iter().enumerate().try_fold(whole, |view, (axis, (start, len, step))| {
            let end = (start + len).min(shape[axis] as isize);
            view.slice_axis(Axis(axis), Slice { start: *start, end: Some(end), step: *step }).ok()
        })
    }

    /// Views of tensors, by their layouts.
    fn views() -> impl Strategy<Value = Layout<Ix3>> {
        (prop::array::uniform3(1..7_usize), slices()).prop_filter_map("no elements", |(shape, slices)| {
            view(shape, &slices).filter(|view| view.len() > 0)
        })
    }

    /// The bytes of a view of elements of one byte.
    fn elements(view: &Layout<Ix3>) -> BTreeSet<u64> {
        let strides: Vec<_> = view.strides().collect();
        let place = |index: Ix3| {
            let steps = index.slice().iter().zip(&strides).map(|(index, stride)| *index as isize * stride);
            view.offset as u64 + steps.sum::<isize>() as u64
        };
        ndarray::indices(view.dim).into_iter().map(|(i, j, k)| place(Ix3(i, j, k))).collect()
    }

    proptest! {
        #[test]
        fn a_pattern_has_the_elements_of_its_view(view in views()) {
            let (bytes, found) = (view.bytes(1, u64::MAX), elements(&view));
            let pattern = Pattern::of(bytes);
            let own: BTreeSet<_> = (bytes.start..bytes.end).filter(|byte| pattern.has(*byte)).collect();
            prop_assert!(own.is_superset(&found), "{pattern:?}");
            prop_assert!(own == found || !bytes.gaps.are_regular(), "{pattern:?}");
        }

        #[test]
        fn patterns_are_sets_of_bytes(views in (views(), views()), range in (0..END, 1..9_u64)) {
            let bytes_of = |view: &Layout<Ix3>| Pattern::of(view.bytes(1, u64::MAX));
            let (one, other) = (bytes_of(&views.0), bytes_of(&views.1));
            let (own, others) = (bytes(one), bytes(other));
            prop_assert!(one.meets(other) || own.is_disjoint(&others), "{one:?} {other:?}");
            prop_assert!(!one.contains(other) || own.is_superset(&others), "{one:?} {other:?}");
            prop_assert!(one.contains(one) && one.meets(one) && Pattern::ALL.contains(one));
            prop_assert_eq!(one.meets(other), other.meets(one));
            let is_simple = |pattern: Pattern| pattern.distance == 1;
            if is_simple(one) && is_simple(other) && one.groups.distance * other.groups.distance < END / 2 {
                prop_assert_eq!(one.meets(other), !own.is_disjoint(&others), "{:?} {:?}", one, other);
            }
            let range = range.0..range.0 + range.1;
            let found = range.clone().any(|byte| one.has(byte));
            prop_assert!(one.is_in(&range) || !found);
            prop_assert!(!is_simple(one) || one.is_in(&range) == found);
        }

        #[test]
        fn views_with_common_elements_meet(shape in prop::array::uniform3(1..7_usize), slices in prop::array::uniform2(slices())) {
            let views = slices.map(|slices| view(shape, &slices).filter(|view| view.len() > 0));
            let [Some(one), Some(other)] = views else { return Ok(()) };
            let [a, b] = [&one, &other].map(|view| Pattern::of(view.bytes(1, u64::MAX)));
            prop_assert!(a.meets(b) || elements(&one).is_disjoint(&elements(&other)), "{a:?} {b:?}");
        }

        /// Columns of a matrix, or tubes of a tensor, at one step.
        #[test]
        fn columns_meet_only_if_one_is_in_both(shape in (2..7_usize, 1..12_usize), starts in (0..12_isize, 0..12_isize), lens in (1..12_isize, 1..12_isize), step in 1..4_isize) {
            let columns = |start, len| view([1, shape.0, shape.1], &[(0, 1, 1), (0, 7, 1), (start, len, step)]);
            let views = [columns(starts.0, lens.0), columns(starts.1, lens.1)].map(|view| view.filter(|view| view.len() > 0));
            let [Some(one), Some(other)] = views else { return Ok(()) };
            let [a, b] = [&one, &other].map(|view| Pattern::of(view.bytes(1, u64::MAX)));
            prop_assert_eq!(a.meets(b), !elements(&one).is_disjoint(&elements(&other)), "{:?} {:?}", a, b);
        }
    }
}
