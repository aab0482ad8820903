//! Kernels run from their text: values, branches, barriers, calls, and the mistakes that are found.

mod control;
mod memory;
mod mistakes;
mod support;
mod text;
mod values;
