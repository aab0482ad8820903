//! A module that was parsed and checked, and its kernels.

use crate::error::PtxError;
use crate::fault::KernelMistake;
use crate::lower::{Names, layout, lower};
use crate::memory::{DeviceMemory, Touched};
use crate::parse::parse;
use crate::program::{Constant, Parameter, Program};
use crate::run::{Launch, run};
use crate::syntax::{DatumValue, Space};

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
    initial: Vec<(u64, u32, Initial)>,
}

/// A part of a variable's initial contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initial {
    Bits(u64),
    /// The address of the variable of this number, if there is one, plus a distance.
    Address(Option<usize>, i64),
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
        let source = parse(text)?;
        let names = Names::new(&source);
        let mut steps = STEPS_MIN + STEPS_A_BYTE * text.len();
        let mut entries = Vec::new();
        for (number, function) in source.functions.iter().enumerate() {
            if !function.is_entry || function.body.is_none() {
                continue;
            }
            let program = lower(&source, &names, number, steps);
            steps -= program.as_ref().map_or(0, |program| program.steps.len()).min(steps);
            if let Err(error @ PtxError { what: crate::error::PtxProblem::Syntax(_), .. }) = program {
                return Err(error);
            }
            let (parameters, parameter_bytes) = layout(function);
            let block_max = function.limits.iter().find(|(name, _)| matches!(*name, ".maxntid" | ".reqntid"));
            let block_max = block_max.map(|(_, numbers)| {
                core::array::from_fn(|axis| {
                    numbers.get(axis).map_or(1, |n| u32::try_from(*n).unwrap_or(u32::MAX))
                })
            });
            entries.push(Entry {
                name: function.name.to_string(),
                parameters,
                parameter_bytes,
                block_max,
                program,
            });
        }
        let variables = source.variables.iter().map(|variable| ModuleVariable {
            name: variable.name.clone(),
            // Shared memory is a block's, not the module's.
            size_bytes: if variable.space == Space::Shared { 0 } else { variable.size_bytes },
            align_bytes: variable.align_bytes,
            is_constant: variable.space == Space::Const,
            is_used: false,
            initial: variable
                .initial
                .iter()
                .map(|datum| {
                    let value = match &datum.value {
                        DatumValue::Bits(bits) => Initial::Bits(*bits),
                        DatumValue::Address(name, distance) => {
                            Initial::Address(names.variable(name), *distance)
                        }
                    };
                    (datum.offset_bytes, datum.size_bytes, value)
                })
                .collect(),
        });
        let mut module =
            Self { version: source.version, target: source.target, entries, variables: variables.collect() };
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
            for (_, _, value) in &self.variables[number].initial {
                if let Initial::Address(variable, _) = value {
                    used.extend(*variable);
                }
            }
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

    /// The variables, in the order of the text. Those in shared memory have no size: they are a block's.
    #[must_use]
    pub fn variables(&self) -> &[ModuleVariable] {
        &self.variables
    }
}

impl ModuleVariable {
    /// The initial contents, for the module's variables at these addresses.
    #[must_use]
    pub fn contents(&self, addresses: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; self.size_bytes as usize];
        for (offset, size, value) in &self.initial {
            let value = match *value {
                Initial::Bits(bits) => bits,
                Initial::Address(number, distance) => {
                    let address = number.and_then(|number| addresses.get(number)).copied().unwrap_or(0);
                    address.wrapping_add_signed(distance)
                }
            };
            let part = bytes.get_mut(*offset as usize..).unwrap_or_default();
            part.iter_mut().zip(value.to_le_bytes()).take(*size as usize).for_each(|(to, from)| *to = from);
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

    /// The largest block that the text allows, if it states one.
    #[must_use]
    pub fn block_max(&self) -> Option<[u32; 3]> {
        self.block_max
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

    /// Runs a launch. Returns what it accessed, up to a mistake if there is one. A kernel that is [`Entry::unsupported`] does nothing.
    ///
    /// # Errors
    ///
    /// [`KernelMistake`] for the first mistake.
    pub fn run(&self, launch: Launch<'_>, memory: &dyn DeviceMemory) -> (Touched, Result<(), KernelMistake>) {
        match &self.program {
            Ok(program) => run(program, launch, memory),
            Err(_) => (Touched::default(), Ok(())),
        }
    }
}

/// The steps of all kernels of a module, at most: so many, and more for each byte of the text. Each kernel has the steps of all functions that
/// it calls.
const STEPS_MIN: usize = 1 << 20;
const STEPS_A_BYTE: usize = 4;
