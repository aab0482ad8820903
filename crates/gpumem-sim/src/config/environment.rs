//! The environment variables of the simulator: [`VARIABLES`].

use gpumem_sys::env;
use gpumem_sys::env::{EnvError, Variable};

/// The variables that [`SimConfig::from_env`](crate::SimConfig::from_env) reads.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "GPUMEM_SIM_SEED",
        meaning: "a number: the seed of the order in which the simulator runs queued work (default 0)",
    },
    Variable { name: "GPUMEM_SIM_DEVICES", meaning: "a number: the simulator's device count (default 1)" },
    Variable {
        name: "GPUMEM_SIM_SCHEDULE",
        meaning: "`random` (default), `late`, `early`, or explicit choices such as `0.2.1`: how the simulator orders queued work",
    },
    Variable {
        name: "GPUMEM_SIM_RULES",
        meaning: "faults injected into the simulator's calls, separated by `;`; see below",
    },
    Variable {
        name: "GPUMEM_SIM_CHECKS",
        meaning: "`kernel-races`, `uninitialised` or both with a comma (default neither): what the simulator also looks for",
    },
    Variable {
        name: "GPUMEM_SIM_KERNEL_STEPS",
        meaning: "a number: the steps of warps after which the simulator stops a kernel as endless (default 4294967296: minutes, and hours of waiting under kernel-races)",
    },
    Variable {
        name: "GPUMEM_SIM_FINDINGS",
        meaning: "`text` (default), `json` or `github`: the form in which the drop-in prints findings at exit",
    },
    Variable {
        name: "GPUMEM_SIM_ERROR_EXITCODE",
        meaning: "a number from 1 to 255: the exit status of a process on the drop-in in which the simulator has found something (default: the process's own)",
    },
    Variable {
        name: "GPUMEM_SIM_BACKTRACES",
        meaning: "`1` or `0` (default): whether findings of the simulator show the call stacks of allocations",
    },
    Variable {
        name: "GPUMEM_SIM_MEMORY",
        meaning: "a size such as `8GiB`: the memory of each of the simulator's devices (default 8GiB)",
    },
    Variable {
        name: "GPUMEM_SIM_INTEGRATED",
        meaning: "a size such as `6GiB`: the simulator's devices are integrated, and this much of their memory is in the host's page cache (default: not integrated)",
    },
    Variable {
        name: "GPUMEM_SIM_WORK",
        meaning: "`run` (default) or `skip`: whether kernels run, and copies and fills of device memory; skipped, such memory takes no host memory",
    },
    Variable {
        name: "GPUMEM_SIM_LINKS",
        meaning: "`all` (default) or `none`: which of the simulator's devices have a link to each other",
    },
];

/// Reads one of [`VARIABLES`].
pub(crate) fn read(name: &'static str) -> Result<Option<String>, EnvError> {
    env::read(VARIABLES, name)
}
