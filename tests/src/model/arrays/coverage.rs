//! [`ArrayCoverage`]: the operations that a search has exercised.

use super::operation::NAMES;
use crate::model::search::Coverage;
use std::collections::BTreeMap;
use std::fmt;

/// The coverage of a search over programs of arrays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayCoverage {
    seeds: u64,
    /// The number of operations with an effect, by name.
    operations: BTreeMap<&'static str, u64>,
    /// Operations that were refused as they should be: no link connects the devices, or a launch lacks an array.
    pub refused: u64,
    /// Elements that were compared.
    pub compared: u64,
}

impl ArrayCoverage {
    /// The number of operations with an effect, for every operation.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().map(|name| (*name, self.operations.get(name).copied().unwrap_or(0)))
    }

    pub(super) fn count(&mut self, operation: &'static str) {
        *self.operations.entry(operation).or_default() += 1;
    }
}

impl Coverage for ArrayCoverage {
    fn of_seed() -> Self {
        Self { seeds: 1, ..Self::default() }
    }

    fn seed_count(&self) -> u64 {
        self.seeds
    }

    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.refused += other.refused;
        self.compared += other.compared;
        for (name, count) in other.operations {
            *self.operations.entry(name).or_default() += count;
        }
    }

    fn summary(&self) -> String {
        let counts: Vec<_> = self.by_name().map(|(name, count)| format!("{name} {count}")).collect();
        format!("{self}\n{}", counts.join(", "))
    }
}

impl fmt::Display for ArrayCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, operations, refused, compared } = self;
        let count: u64 = operations.values().sum();
        write!(f, "{seeds} seeds, {count} operations ({refused} refused), {compared} elements compared")
    }
}
