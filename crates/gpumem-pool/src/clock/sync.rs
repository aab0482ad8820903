//! What the epochs need of threads, apart so that a test can compile them over another model of threads.

pub(super) use core::sync::atomic::{AtomicU64, Ordering};
