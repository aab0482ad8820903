//! Model-based tests: random programs over the public interface of a layer, compared with a naive twin.
//!
//! [`search`] generates cases from seeds, shrinks a case that fails, and prints the command that repeats it. A [`Model`] has the cases
//! of one layer: [`Pools`] and [`Arrays`].
//!
//! For the pool, a [`Case`] is a simulated machine, the options of a pool and a list of [`Operation`]s. [`world`] runs a case on the real pool
//! over the simulator, with exactly the synchronisation that a correct user needs; [`twin`] computes the expected results
//! naively. After every operation the two are compared: blocks do not overlap, counts and peaks agree, limits hold, errors state
//! the right numbers, and each tag counts the blocks allocated in its scopes. At the end, every block has the contents last
//! written to it, and nothing is left on the device. A pool that reuses memory too early is detected in two ways: a late write to
//! the old block changes the new one, or the simulator reports a use after a free.
//!
//! Operations of a case run one at a time (drops on other threads are awaited), so a failing seed fails every time.

mod adapted;
pub mod arrays;
mod capturing;
mod compare;
mod contents;
mod coverage;
pub mod draw;
pub mod faults;
mod graphs;
mod growing;
mod objects;
pub mod operation;
mod order;
pub mod places;
mod pools;
mod requests;
pub mod search;
mod step;
mod streams;
mod subject;
mod threads;
pub mod twin;
pub mod world;

pub use arrays::Arrays;
pub use coverage::Coverage;
pub use operation::{Case, Operation};
pub use pools::Pools;
pub use search::{Failure, Model, Search};
pub use subject::Subject;
