//! Tests of the front's parts. They are not in the parts' files because the models in `tests/loom` and `tests/shuttle`
//! compile those over other threads, outside of which they can't run.

mod budget;
mod class;
mod depot;
mod front;
mod magazine;
mod stats;
