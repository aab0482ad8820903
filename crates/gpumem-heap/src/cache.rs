//! Thread caches: what each thread keeps of a stream's freed blocks, so that most requests reach neither the heap nor its lock.
//!
//! | file | job |
//! | --- | --- |
//! | `front` | [`Front`]: all caches and the depot of one pool |
//! | `thread` | finds the calling thread's cache of a stream |
//! | `set` | [`Set`]: one thread's cache of one stream |
//! | `magazine`, `recent` | blocks up to 1 MiB by size class; the last few larger ones |
//! | `depot`, `budget` | batches of blocks that move between threads; the capacity of all caches together |

mod budget;
mod depot;
mod front;
mod magazine;
mod recent;
mod set;
#[cfg(test)]
mod tests;
mod thread;

pub use front::{Front, Spill};
pub use recent::{CLOSE_STEPS, LOOSE_STEPS, Large, Retention, Step};
pub use set::{Own, Set};
pub use thread::{FRONT_STEP, each_set, with_near, with_set};
