//! The pool's model: random programs over its public interface, beside a twin too simple to be wrong.
//!
//! A [`Case`] is a simulated machine, a pool's options and a list of [`Operation`]s. [`world`] carries a case out on the
//! real pool over the simulator, synchronising exactly as much as a correct user must; [`twin`] keeps the books
//! naively. After every operation the two are compared: no two blocks overlap, counts and peaks agree, the limit holds,
//! errors carry the right numbers, tags have what was allocated in their scopes; at the end every block has the contents that its user wrote, and nothing is left on
//! the device. A pool that hands memory out too early is found because somebody else's late write comes through, or
//! because the simulator sees a use after a free.
//!
//! [`search`] makes cases out of seeds, shrinks what fails, and says how to repeat it. A case runs on one thread (drops
//! on other threads are waited for), so a seed that fails once fails every time.

mod adapted;
mod capturing;
mod compare;
mod contents;
mod coverage;
pub mod draw;
pub mod faults;
mod graphs;
mod growing;
pub mod operation;
mod order;
pub mod places;
mod requests;
pub mod search;
mod streams;
mod subject;
mod threads;
pub mod twin;
pub mod world;

pub use coverage::Coverage;
pub use operation::{Case, Operation};
pub use search::{Failure, Search};
pub use subject::Subject;
