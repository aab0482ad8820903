//! Random programs over arrays: two devices with three streams each, threads, captured graphs and transfers in flight. The twin of an
//! array is an `ndarray` array on the host, which each operation changes at once.
//!
//! The order of uses is the task of the array layer: no program needs a synchronisation, and few have one. The simulator detects
//! races, so a missing wait is found under any seed. At the end, all elements are compared, and nothing may be left on the devices.

mod coverage;
mod draw;
mod expressions;
mod graphs;
mod host;
mod operation;
mod threads;
mod transfers;
mod trees;
mod values;
mod views;
mod world;

pub use coverage::ArrayCoverage;
pub use operation::{Case, Operation};

use super::search::Model;
use super::subject::Subject;
use crate::pool::{BackendKind, Profile};
use crate::sys::Table;
use operation::Numbers;
use proptest::strategy::{BoxedStrategy, Strategy};

/// Arrays on pools of each backend.
#[derive(Clone, Copy, Debug)]
pub struct Arrays;

impl Model for Arrays {
    type Case = Case;
    type Coverage = ArrayCoverage;
    const TARGET: &'static str = "array";

    /// A profile changes no order of uses, so one of them is enough.
    fn subjects() -> Vec<Subject> {
        let is_distinct = |subject: &Subject| match subject.backend {
            BackendKind::Caching => subject.profile == Some(Profile::Balanced),
            _ => true,
        };
        Subject::all().into_iter().filter(|subject| !subject.is_adapted && is_distinct(subject)).collect()
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
        coverage: &mut ArrayCoverage,
        transcript: &mut Vec<String>,
    ) -> Result<(), String> {
        match case.numbers {
            Numbers::Words => world::run::<i32>(case, subject, sabotage, coverage, transcript),
            Numbers::Floats => world::run::<f64>(case, subject, sabotage, coverage, transcript),
        }
    }
}
