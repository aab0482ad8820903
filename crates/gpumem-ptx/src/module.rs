//! A module that was parsed and checked, and its kernels.

use crate::error::{LinkError, Place, PtxError, PtxProblem};
use crate::fault::AccessPlace;
use crate::lower::{Left, SHARED_BYTES_MAX, layout, lower, pointed};
use crate::memory::{DeviceMemory, Sought};
use crate::names::Names;
use crate::parse::parse;
use crate::program::{Constant, FUNCTIONS, Parameter, Program};
use crate::run::{Launch, Outcome, find, run};
use crate::syntax::{DatumValue, Linkage, Space, Variable};

/// A parsed text.
#[derive(Debug)]
pub struct Module {
    version: (u32, u32),
    target: u32,
    entries: Vec<Entry>,
    variables: Vec<ModuleVariable>,
}

/// A kernel.
#[derive(Debug)]
pub struct Entry {
    name: String,
    parameters: Vec<Parameter>,
    parameter_bytes: usize,
    block_max: Option<[u32; 3]>,
    block_required: Option<[u32; 3]>,
    program: Result<Program, PtxError>,
}

/// A variable of a module in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleVariable {
    /// The name in the text.
    pub name: String,
    /// The size.
    pub size_bytes: u64,
    /// The alignment.
    pub align_bytes: u64,
    /// True for constant memory.
    pub is_constant: bool,
    /// True if a kernel names it, or a variable that a kernel names has its address.
    pub is_used: bool,
    is_visible: bool,
    initial: Vec<Initial>,
}

/// A number in the initial contents of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Initial {
    offset_bytes: u64,
    size_bytes: u32,
    value: u64,
    /// The variable whose address is added.
    base: Option<usize>,
    /// The lowest bits of the sum that are left out.
    shift: u32,
}

impl Module {
    /// Parses and checks a text.
    ///
    /// A kernel with an instruction that is not supported does not stop the others: [`Entry::unsupported`] names the instruction.
    ///
    /// # Errors
    ///
    /// [`PtxError`] for a text that is no PTX, and for one of a version that is not known.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        Self::link(&[text]).map_err(|error| error.error)
    }

    /// Parses texts and links them: what one declares `.extern` may be defined in another. The lines of mistakes are those of the text that
    /// has the function.
    ///
    /// A kernel that needs what no text defines is [`Entry::unsupported`].
    ///
    /// # Errors
    ///
    /// [`LinkError`] for a text that [`Module::parse`] refuses, and for a visible name that is defined twice.
    pub fn link(texts: &[&str]) -> Result<Self, LinkError> {
        let source = parse(texts)?;
        let names = Names::new(&source)?;
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let mut left = Left::new(STEPS_MIN + STEPS_A_BYTE * bytes);
        let pointed = pointed(&source, &names);
        let mut entries = Vec::new();
        for (number, function) in source.functions.iter().enumerate() {
            if !function.is_entry || function.body.is_none() {
                continue;
            }
            let program = lower(&source, &names, &pointed, number, &mut left);
            let program = match program {
                Err(error) if matches!(error.error.what, PtxProblem::Syntax(_)) => return Err(error),
                other => other.map_err(|error| error.error),
            };
            let (parameters, parameter_bytes) = layout(function);
            let block = |directive: &str| {
                let (_, numbers) = function.limits.iter().find(|(name, _)| *name == directive)?;
                let number = |axis| numbers.get(axis).map_or(1, |n| u32::try_from(*n).unwrap_or(u32::MAX));
                Some([0, 1, 2].map(number))
            };
            let (block_max, block_required) = (block(".maxntid"), block(".reqntid"));
            entries.push(Entry {
                name: function.name.to_string(),
                parameters,
                parameter_bytes,
                block_max: block_required.or(block_max),
                block_required,
                program,
            });
        }
        let is_own = |number: usize, variable: &Variable| {
            // Shared memory is a block's, not the module's.
            variable.space != Space::Shared
                && variable.linkage != Linkage::Extern
                && names.variable(variable.unit, &variable.name) == Some(number)
        };
        let variables = source.variables.iter().enumerate().map(|(number, variable)| ModuleVariable {
            name: variable.name.clone(),
            size_bytes: if is_own(number, variable) { variable.size_bytes } else { 0 },
            is_visible: variable.linkage != Linkage::Internal && variable.unsupported.is_none(),
            align_bytes: variable.align_bytes,
            is_constant: variable.space == Space::Const,
            is_used: false,
            initial: variable
                .initial
                .iter()
                .map(|datum| {
                    let (value, base, shift) = match &datum.value {
                        DatumValue::Bits(bits) => (*bits, None, 0),
                        DatumValue::Address { name, distance, shift } => {
                            let base = names.variable(variable.unit, name);
                            let function = names.function(variable.unit, name).filter(|_| base.is_none());
                            let function = function.map_or(0, |number| FUNCTIONS + number as u64);
                            (function.wrapping_add_signed(*distance), base, *shift)
                        }
                    };
                    let (offset_bytes, size_bytes) = (datum.offset_bytes, datum.size_bytes);
                    Initial { offset_bytes, size_bytes, value, base, shift }
                })
                .collect(),
        });
        let mut module = Self {
            version: source.version,
            target: source.target.capability,
            entries,
            variables: variables.collect(),
        };
        module.mark_used();
        Ok(module)
    }

    fn mark_used(&mut self) {
        let programs = self.entries.iter().filter_map(|entry| entry.program.as_ref().ok());
        let mut used: Vec<usize> = programs
            .flat_map(|program| &program.constants)
            .filter_map(|constant| match constant {
                Constant::Global(variable, _) => Some(*variable as usize),
                _ => None,
            })
            .collect();
        while let Some(number) = used.pop() {
            if core::mem::replace(&mut self.variables[number].is_used, true) {
                continue;
            }
            used.extend(self.variables[number].initial.iter().filter_map(|initial| initial.base));
        }
    }

    /// The version of PTX that the text states.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The compute capability that the text is for, 70 for `sm_70`.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// The kernels, in the order of the text.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel of this name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The variables, in the order of the text. Those in shared memory have no size, because they are a block's, nor have those that
    /// another text defines.
    #[must_use]
    pub fn variables(&self) -> &[ModuleVariable] {
        &self.variables
    }

    /// The number of the variable of this name in global or constant memory.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<usize> {
        let named = self.variables.iter().enumerate();
        let named = named.filter(|(_, variable)| variable.name == name && variable.size_bytes > 0);
        named.max_by_key(|(_, variable)| variable.is_visible).map(|(number, _)| number)
    }
}

impl ModuleVariable {
    /// The initial contents, for the module's variables at these addresses.
    #[must_use]
    pub fn contents(&self, addresses: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; self.size_bytes as usize];
        for initial in &self.initial {
            let base = initial.base.and_then(|base| addresses.get(base)).copied().unwrap_or(0);
            let value = (base.wrapping_add(initial.value) >> (initial.shift & 63)).to_le_bytes();
            let part = bytes.get_mut(initial.offset_bytes as usize..).unwrap_or_default();
            part.iter_mut().zip(value).take(initial.size_bytes as usize).for_each(|(to, from)| *to = from);
        }
        bytes
    }
}

impl Entry {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, in their order.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The bytes of all parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    /// The largest block that the text allows, if it states one. The product counts, not each direction.
    #[must_use]
    pub fn block_max(&self) -> Option<[u32; 3]> {
        self.block_max
    }

    /// The only block that the text allows, if it states one (`.reqntid`).
    #[must_use]
    pub fn block_required(&self) -> Option<[u32; 3]> {
        self.block_required
    }

    /// The static shared memory of a block, in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        self.program.as_ref().map_or(0, |program| program.shared_bytes)
    }

    /// The instruction that keeps this kernel from running here.
    #[must_use]
    pub fn unsupported(&self) -> Option<&PtxError> {
        self.program.as_ref().err()
    }

    #[cfg(test)]
    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref().ok()
    }

    /// Runs a launch up to the first mistake.
    ///
    /// # Errors
    ///
    /// The instruction of a kernel that is [`Entry::unsupported`], and a launch of no threads, of more than 1024 in a block, of more than
    /// 2^48 blocks, or with more dynamic shared memory than a block can have. Nothing ran.
    pub fn run(&self, launch: Launch<'_>, memory: &dyn DeviceMemory) -> Result<Outcome, PtxError> {
        Ok(run(self.checked(launch)?, launch, memory))
    }

    /// Runs a launch without its checks on copies of the memory, which does not change, and looks for an access. Where a launch went wrong with
    /// another one, which is known afterwards alone, this finds the place. The outcome tells whether the launch did the same again.
    ///
    /// # Errors
    ///
    /// Those of [`Entry::run`].
    pub fn find(
        &self,
        launch: Launch<'_>,
        memory: &dyn DeviceMemory,
        sought: &Sought,
    ) -> Result<(Option<AccessPlace>, Outcome), PtxError> {
        Ok(find(self.checked(launch)?, launch, memory, sought))
    }

    /// The program, if the launch is one that can run.
    fn checked(&self, launch: Launch<'_>) -> Result<&Program, PtxError> {
        let program = self.program.as_ref().map_err(Clone::clone)?;
        let product = |sizes: [u32; 3]| sizes.into_iter().map(u128::from).product::<u128>();
        let (blocks, threads) = (product(launch.grid), product(launch.block));
        if !(1..=1 << 48).contains(&blocks) || !(1..=1024).contains(&threads) {
            let what = format!("a launch of {blocks} blocks of {threads} threads");
            return Err(PtxError::unsupported(Place::default(), what));
        }
        if u64::from(launch.shared_bytes) > SHARED_BYTES_MAX {
            let what = format!("a launch with {} bytes of dynamic shared memory", launch.shared_bytes);
            return Err(PtxError::unsupported(Place::default(), what));
        }
        Ok(program)
    }
}

/// The steps of all kernels of a module, at most: so many, and more for each byte of the text. Each kernel has the steps of all functions that
/// it calls.
const STEPS_MIN: usize = 1 << 20;
const STEPS_A_BYTE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Checks;
    use crate::fault::Mistake;
    use crate::memory::Region;
    use crate::run::Run;

    struct NoMemory;
    impl DeviceMemory for NoMemory {
        fn region(&self, _address: u64, _size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
            None
        }
    }

    /// Blocks that wait for each other make room for others. Large ones do not fill the memory of the host.
    #[test]
    fn blocks_that_run_hold_little_memory() {
        for lines in [
            ".entry k() { .local .b32 x[100000]; .reg .b32 %r; st.local.b32 [x], 0; L: ld.local.b32 %r, [x]; bra L; }",
            ".func f(.param .b32 n) { .reg .pred %p; .reg .b32 %r; .local .b32 x[4000]; .param .b32 m;
             st.local.b32 [x], 0; ld.param.b32 %r, [n]; setp.eq.u32 %p, %r, 0; L: @%p bra L; sub.u32 %r, %r, 1;
             st.param.b32 [m], %r; call f, (m); ret; }
             .entry k() { .param .b32 n; st.param.b32 [n], 20; call f, (n); ret; }",
        ] {
            let module = Module::parse(&format!(".version 8.0\n.target sm_80\n{lines}")).unwrap();
            let program = module.entry("k").unwrap().program.as_ref().unwrap();
            let launch = Launch {
                grid: [1000, 1, 1],
                block: [256, 1, 1],
                shared_bytes: 0,
                parameters: &[],
                variables: &[],
                seed: 3,
                steps_max: 1 << 20,
                multiprocessors: 132,
                checks: Checks::default(),
                cores: 1,
            };
            let mut run = Run::new(program, launch, &NoMemory);
            let mistake = run.blocks().unwrap().mistake;
            assert!(matches!(mistake, Mistake::TooLong(_)), "{mistake}");
            // The largest block beside those that are counted.
            assert!(run.held_bytes < (1 << 30) + (200 << 20), "{} bytes, {lines}", run.held_bytes);
        }
    }
}
