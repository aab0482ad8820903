//! What the lifetime needs of threads, apart so that a test can compile it over another model of threads.

pub(super) use core::sync::atomic::{AtomicU64, Ordering};
