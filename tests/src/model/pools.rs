//! [`Pools`]: random programs over the public interface of the pool.

use super::coverage::Coverage;
use super::operation::Case;
use super::search::Model;
use super::subject::Subject;
use super::{draw, threads, world};
use crate::sys::Table;
use proptest::strategy::{BoxedStrategy, Strategy};

/// The pool, with each backend and kind of memory.
#[derive(Clone, Copy, Debug)]
pub struct Pools;

impl Model for Pools {
    type Case = Case;
    type Coverage = Coverage;
    const TARGET: &'static str = "pool";

    fn subjects() -> Vec<Subject> {
        Subject::all()
    }

    fn cases() -> BoxedStrategy<Case> {
        draw::case().boxed()
    }

    fn operation_count(case: &Case) -> usize {
        case.operations.len()
    }

    fn sim_seed(case: &mut Case) -> &mut u64 {
        &mut case.sim_seed
    }

    fn run(
        case: &Case,
        subject: Subject,
        sabotage: Option<fn(&mut Table)>,
        coverage: &mut Coverage,
        transcript: &mut Vec<String>,
    ) -> Result<(), String> {
        world::run(case, subject, sabotage, coverage, transcript)
    }

    fn run_threads(seed: u64, subject: Subject, coverage: &mut Coverage) -> Result<(), String> {
        if subject.is_caching() {
            coverage.blocks_of_threads += threads::run(seed, subject)?;
        }
        Ok(())
    }
}
