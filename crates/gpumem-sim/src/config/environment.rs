//! The environment variables of the simulator: [`VARIABLES`].

use gpumem_sys::env;
use gpumem_sys::env::{EnvError, Variable};

/// The variables that [`SimConfig::from_env`](crate::SimConfig::from_env) reads.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "GPUMEM_SIM_SEED",
        meaning: "a number: the seed that decides the order of queued work (default 0)",
    },
    Variable { name: "GPUMEM_SIM_DEVICES", meaning: "a number: the number of simulated devices (default 1)" },
    Variable {
        name: "GPUMEM_SIM_SCHEDULE",
        meaning: "random | late | early | 0.2.1: the order in which queued work runs, among the allowed ones (default random)",
    },
    Variable {
        name: "GPUMEM_SIM_RULES",
        meaning: "cuMemAlloc#3=fail:OUT_OF_MEMORY;…: injected faults in the simulator's calls (#3+ for the third and later)",
    },
    Variable {
        name: "GPUMEM_SIM_BACKTRACES",
        meaning: "1 | 0: whether findings show the call stacks of allocations (default 0)",
    },
    Variable {
        name: "GPUMEM_SIM_MEMORY",
        meaning: "8GiB: the memory of each simulated device (default 8GiB)",
    },
];

/// Reads one of [`VARIABLES`].
pub(crate) fn read(name: &'static str) -> Result<Option<String>, EnvError> {
    env::read(VARIABLES, name)
}
