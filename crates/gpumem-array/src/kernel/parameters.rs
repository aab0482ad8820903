//! Parameters of this crate's kernels that are more than a word.

/// The outer axes that a kernel for strided units takes. There are never more: each of them at least doubles the elements of the target,
/// which are all in memory, and the addresses of a device have 49 bits.
pub(crate) const AXES_MAX: usize = 48;

/// Outer axes: a count, then lengths, steps in the target and steps in the source, each from the fastest axis to the slowest.
pub(crate) type OuterAxes = [u64; 1 + 3 * AXES_MAX];

/// The length of an axis, and its steps in target and source.
pub(crate) type AxisWords = [u64; 3];
