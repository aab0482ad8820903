//! [`Source`] to [`Program`]s: registers, addresses and labels become numbers, and every instruction is checked.

mod allocate;
mod arithmetic;
mod control;
mod forms;
mod matrix;
mod memory;
mod modifiers;
mod transaction;
mod warp;

use crate::error::{LinkError, Place, PtxError, short};
use crate::lower::modifiers::Modifiers;
use crate::names::Names;
use crate::number::Alu;
use crate::parse::{double_as, single_as};
use crate::program::{
    Access, ClockPart, Constant, FUNCTIONS, Guard, Location, Memory, Op, Order, Program, Routine,
    SHARED_GAP_BYTES, Slot, Special, Step, low_bits,
};
use crate::syntax::{
    DatumValue, Formal, Function, Instruction, Linkage, Operand, Shape, Source, Space, Statement, Type,
};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

type Result<T> = core::result::Result<T, PtxError>;

/// The functions whose addresses a module has, in the contents of its variables or in its code: those that a call through a pointer may
/// reach, in whichever kernel it is.
pub(crate) fn pointed(source: &Source<'_>, names: &Names<'_>) -> Vec<usize> {
    fn symbols<'o>(operand: &'o Operand<'_>, found: &mut Vec<&'o str>) {
        match operand {
            Operand::Symbol(name, _) => found.push(name),
            Operand::Address(base, _) => symbols(base, found),
            Operand::Vector(parts) | Operand::List(parts) => {
                parts.iter().for_each(|part| symbols(part, found));
            }
            _ => {}
        }
    }
    let mut pointed = BTreeSet::new();
    let mut add = |unit, name: &str| {
        let number = names.function(unit, name).filter(|_| names.variable(unit, name).is_none());
        pointed.extend(number.filter(|number| {
            let function = &source.functions[*number];
            !function.is_entry && function.body.is_some()
        }));
    };
    for variable in &source.variables {
        for datum in &variable.initial {
            if let DatumValue::Address { name, .. } = &datum.value {
                add(variable.unit, name);
            }
        }
    }
    for function in &source.functions {
        for statement in function.body.iter().flatten() {
            let Statement::Instruction(instruction) = statement else { continue };
            let is_call = instruction.opcode.starts_with("call");
            let mut found = Vec::new();
            // What a call names is no pointer; what it passes may be one.
            let named = instruction.operands.iter();
            let named = named.filter(|operand| !is_call || !matches!(operand, Operand::Symbol(..)));
            named.for_each(|operand| symbols(operand, &mut found));
            found.into_iter().for_each(|name| add(function.unit, name));
        }
    }
    pointed.into_iter().collect()
}

/// What one kernel of a module leaves for the next ones.
#[derive(Default)]
pub(crate) struct Left<'t> {
    /// The steps that they may have.
    pub(crate) steps: usize,
    /// The opcodes whose forms were checked, with their numbers of operands.
    checked: HashSet<(&'t str, usize)>,
}

impl Left<'_> {
    pub(crate) fn new(steps: usize) -> Self {
        Self { steps, checked: HashSet::new() }
    }
}

/// Makes the program of a kernel, and takes its steps off those that are left, whether it can run or not. `pointed` are the functions that
/// pointers may name.
pub(crate) fn lower<'t>(
    source: &Source<'t>,
    names: &Names<'_>,
    pointed: &[usize],
    entry: usize,
    left: &mut Left<'t>,
) -> core::result::Result<Program, LinkError> {
    let mut lower = Lower::new(source, names, pointed, core::mem::take(left));
    let lowered = lower.entry(entry);
    *left = lower.left;
    left.steps = left.steps.saturating_sub(lower.program.steps.len());
    lowered.map(|()| lower.program)
}

struct Lower<'s, 't> {
    source: &'s Source<'t>,
    names: &'s Names<'s>,
    pointed: &'s [usize],
    left: Left<'t>,
    program: Program,
    /// The functions of the routines, by their numbers, and the numbers by the functions.
    queue: Vec<usize>,
    routines: HashMap<usize, u32>,
    constants: HashMap<Constant, u32>,
    /// Offsets of variables in shared memory, by the variable's address in the source.
    shared: HashMap<*const (), u64>,
    // Of the function that is read.
    function: usize,
    registers: u32,
    frame: HashMap<u32, u64>,
    frame_bytes: u64,
    /// The offsets of a kernel's parameters.
    parameters: HashMap<u32, u64>,
    labels: HashMap<(u32, &'t str), u32>,
    lists: HashMap<(u32, &'t str), &'s [&'t str]>,
    prototypes: HashMap<(u32, &'t str), &'s Function<'t>>,
    /// Steps with targets that are still to be set.
    jumps: Vec<Jump<'t>>,
    guard: Option<Guard>,
    place: Place,
    /// The register of the carry flag, if the function has used one.
    carry: Option<u32>,
}

/// A step whose target is a label, or the labels of a list.
struct Jump<'t> {
    step: usize,
    name: &'t str,
    scope: u32,
    place: Place,
}

impl<'s, 't> Lower<'s, 't> {
    fn new(source: &'s Source<'t>, names: &'s Names<'s>, pointed: &'s [usize], left: Left<'t>) -> Self {
        Self {
            source,
            names,
            pointed,
            left,
            program: Program {
                steps: Vec::new(),
                routines: Vec::new(),
                pointed: HashMap::new(),
                constants: Vec::new(),
                specials: Vec::new(),
                shared_bytes: 0,
                shared: Vec::new(),
                dynamic_align: 16,
                sites: 0,
                read_only: source
                    .variables
                    .iter()
                    .enumerate()
                    .filter(|(_, variable)| {
                        variable.space == Space::Const && variable.linkage != Linkage::Extern
                    })
                    .map(|(number, variable)| (number as u32, variable.size_bytes))
                    .collect(),
                source_lines: Vec::new(),
                source_places: Arc::clone(&source.source_places),
                files: source.files.iter().map(|(number, name)| (*number, name.to_string())).collect(),
                is_of_blocks_apart: false,
                is_on_one_core: AtomicBool::new(false),
            },
            queue: Vec::new(),
            routines: HashMap::new(),
            constants: HashMap::new(),
            shared: HashMap::new(),
            function: 0,
            registers: 0,
            frame: HashMap::new(),
            frame_bytes: 0,
            parameters: HashMap::new(),
            labels: HashMap::new(),
            lists: HashMap::new(),
            prototypes: HashMap::new(),
            jumps: Vec::new(),
            guard: None,
            place: Place::default(),
            carry: None,
        }
    }

    /// The kernel with this number, and all that it calls.
    fn entry(&mut self, entry: usize) -> core::result::Result<(), LinkError> {
        let declared = &self.source.functions[entry];
        let clustered = |(name, _): &&(&str, _)| matches!(*name, ".reqnctapercluster" | ".explicitcluster");
        if let Some((name, _)) = declared.limits.iter().find(clustered) {
            let error = PtxError::unsupported(declared.place, format!("the directive `{name}`"));
            return Err(LinkError { input: declared.unit as usize, error });
        }
        self.routine_of(entry);
        // Calls add functions to the list.
        let mut next = 0;
        while let Some(&function) = self.queue.get(next) {
            let input = self.source.functions[function].unit as usize;
            self.function(next, function).map_err(|error| LinkError { input, error })?;
            next += 1;
        }
        self.program.find_blocks_apart();
        Ok(())
    }

    /// The number of the routine of a function. The function is lowered later.
    fn routine_of(&mut self, function: usize) -> u32 {
        let queue = &mut self.queue;
        *self.routines.entry(function).or_insert_with(|| {
            queue.push(function);
            queue.len() as u32 - 1
        })
    }

    /// A call through a pointer may reach each function whose address the module has.
    fn add_pointed(&mut self) {
        if self.program.pointed.is_empty() {
            for &function in self.pointed {
                let routine = self.routine_of(function);
                self.program.pointed.insert(function as u64, routine);
            }
        }
    }

    fn current(&self) -> &'s Function<'t> {
        &self.source.functions[self.function]
    }

    fn function(&mut self, routine: usize, function: usize) -> Result<()> {
        self.function = function;
        let current = self.current();
        self.registers = current.registers.len() as u32;
        self.frame.clear();
        self.frame_bytes = 0;
        self.carry = None;
        self.parameters.clear();
        self.labels.clear();
        self.lists.clear();
        self.prototypes.clear();
        self.jumps.clear();
        let Some(body) = &current.body else {
            return Err(match OF_DRIVER.contains(&current.name) {
                true => PtxError::unsupported(current.place, format!("the function `{}`", current.name)),
                false => PtxError::undefined(current.place, current.name),
            });
        };
        if current.is_entry {
            let (layout, _) = layout(current);
            for (formal, parameter) in current.parameters.iter().zip(layout) {
                if let Formal::Variable(variable) = *formal {
                    self.parameters.insert(variable, parameter.offset_bytes as u64);
                }
            }
        }
        let start = self.program.steps.len() as u32;
        let parameters =
            current.parameters.iter().map(|formal| self.formal(*formal)).collect::<Result<_>>()?;
        let results = current.results.iter().map(|formal| self.formal(*formal)).collect::<Result<_>>()?;
        // Those in a body count, whether they are named or not.
        for variable in current.variables.iter().filter(|variable| variable.space == Space::Shared) {
            self.shared_offset(variable)?;
        }
        for statement in body {
            match statement {
                Statement::Label(name, scope, place) => {
                    let at = self.program.steps.len() as u32;
                    if self.labels.insert((*scope, name), at).is_some() {
                        return Err(PtxError::syntax(*place, format!("`{}` is declared twice", short(name))));
                    }
                }
                Statement::Prototype(name, scope, function) => {
                    self.prototypes.insert((*scope, name), function);
                }
                Statement::Targets(name, scope, targets) => {
                    self.lists.insert((*scope, name), targets);
                }
                Statement::Instruction(instruction) => {
                    self.instruction(instruction)?;
                    if self.program.steps.len() > self.left.steps || self.registers > REGISTERS_MAX {
                        return Err(PtxError::unsupported(self.place, "a module of this size"));
                    }
                }
            }
        }
        // The end of a body is a return.
        self.guard = None;
        self.push(Op::Return);
        self.set_targets()?;
        if self.frame_bytes > FRAME_BYTES_MAX {
            let what = format!("{} bytes of local memory a call", self.frame_bytes);
            return Err(PtxError::unsupported(current.place, what));
        }
        debug_assert_eq!(self.program.routines.len(), routine);
        let bytes = |formals: &[Formal]| -> Box<[u64]> {
            formals.iter().map(|formal| current.shape_of(*formal).map_or(0, Shape::bytes)).collect()
        };
        let sizes = [bytes(&current.parameters), bytes(&current.results)];
        let mut variables: Vec<Range<u64>> = Vec::new();
        for (variable, offset) in &self.frame {
            variables.push(*offset..offset + current.variables[*variable as usize].size_bytes);
        }
        variables.sort_unstable_by_key(|variable| variable.start);
        let mut routine = Routine {
            sizes,
            variables: variables.into(),
            start,
            registers: self.registers,
            frame_bytes: self.frame_bytes,
            cleared: Box::default(),
            parameters,
            results,
        };
        allocate::allocate(&mut self.program, &mut routine, current.is_entry);
        self.program.routines.push(routine);
        Ok(())
    }

    fn formal(&mut self, formal: Formal) -> Result<Location> {
        match formal {
            Formal::Register(register) => Ok(Location::Slot(Slot::Register(register))),
            Formal::Variable(variable) if self.current().is_entry => {
                Ok(Location::Frame(self.parameters.get(&variable).copied().unwrap_or(0)))
            }
            Formal::Variable(variable) => Ok(Location::Frame(self.frame_offset(variable)?)),
        }
    }

    /// The offset of a variable in the frame's local memory.
    fn frame_offset(&mut self, variable: u32) -> Result<u64> {
        if let Some(offset) = self.frame.get(&variable) {
            return Ok(*offset);
        }
        let declared = &self.current().variables[variable as usize];
        let offset = self.frame_bytes.next_multiple_of(declared.align_bytes);
        let end = offset.checked_add(declared.size_bytes).filter(|end| *end <= FRAME_BYTES_MAX);
        self.frame_bytes = end.ok_or_else(|| {
            PtxError::unsupported(
                declared.place,
                format!("{} bytes of local memory a call", declared.size_bytes),
            )
        })?;
        self.frame.insert(variable, offset);
        Ok(offset)
    }

    fn set_targets(&mut self) -> Result<()> {
        let mut tables: HashMap<(u32, &str), Arc<[u32]>> = HashMap::new();
        for Jump { step, name, scope, place } in core::mem::take(&mut self.jumps) {
            let target = |name: &'t str| {
                let found = self.find(&self.labels, name, scope);
                found
                    .copied()
                    .ok_or_else(|| PtxError::syntax(place, format!("there is no label `{}`", short(name))))
            };
            if matches!(self.program.steps[step].op, Op::Branch { .. }) {
                let found = target(name)?;
                self.program.steps[step].op = Op::Branch { target: found };
            } else if let Op::BranchTable { index, .. } = self.program.steps[step].op {
                let targets = match tables.get(&(scope, name)) {
                    Some(known) => Arc::clone(known),
                    None => {
                        let list = self.find(&self.lists, name, scope).copied();
                        let list = list.ok_or_else(|| {
                            PtxError::syntax(place, format!("there is no list of labels `{}`", short(name)))
                        })?;
                        list.iter().map(|name| target(name)).collect::<Result<Arc<[u32]>>>()?
                    }
                };
                tables.insert((scope, name), Arc::clone(&targets));
                self.program.steps[step].op = Op::BranchTable { targets, index };
            }
        }
        Ok(())
    }

    /// Looks a name up in a scope and in those around it.
    fn find<'m, V>(&self, map: &'m HashMap<(u32, &'t str), V>, name: &'t str, scope: u32) -> Option<&'m V> {
        let mut scope = scope;
        loop {
            if let Some(found) = map.get(&(scope, name)) {
                return Some(found);
            }
            let parent = *self.source.scopes.get(scope as usize)?;
            if parent == scope {
                return None;
            }
            scope = parent;
        }
    }

    fn push(&mut self, op: Op) {
        self.program.steps.push(Step { op, guard: self.guard, line: self.place.line });
    }

    fn instruction(&mut self, instruction: &'s Instruction<'t>) -> Result<()> {
        self.place = instruction.place;
        self.guard = None;
        let (step, lines) = (self.program.steps.len() as u32, &mut self.program.source_lines);
        if lines.last().is_none_or(|(_, last)| *last != instruction.source_place) {
            lines.push((step, instruction.source_place));
        }
        if let Some((register, is_negated)) = instruction.guard {
            if self.current().registers[register as usize] != Type::Pred {
                return Err(self.wrong("the guard is no predicate"));
            }
            let is_written = instruction.operands.iter().any(|operand| match operand {
                Operand::Register(written) => *written == register,
                Operand::Pair(first, second) => *first == Some(register) || *second == Some(register),
                _ => false,
            });
            let register = if is_written { self.copy_of(Slot::Register(register)) } else { register };
            self.guard = Some(Guard { register, is_negated });
        }
        let modifiers = Modifiers::new(instruction, self.source.version);
        if instruction.opcode.starts_with('.') {
            return Err(self.unknown(instruction));
        }
        let form = (instruction.opcode, instruction.operands.len());
        if !self.left.checked.contains(&form) {
            forms::check(instruction, &self.source.target, self.source.version)?;
            self.left.checked.insert(form);
        }
        if !(self.memory(instruction, modifiers.clone())?
            || self.control(instruction, modifiers.clone())?
            || self.warp(instruction, modifiers.clone())?
            || self.matrix(instruction, modifiers.clone())?
            || self.transaction(instruction, modifiers.clone())?
            || self.arithmetic(instruction, modifiers)?)
        {
            return Err(self.unknown(instruction));
        }
        Ok(())
    }

    /// Copies a register to a new one, whatever the guard is.
    fn copy_of(&mut self, slot: Slot) -> u32 {
        let copy = self.temporary();
        let none = self.bits(0);
        self.push(Op::Alu { function: Alu::One(|a| *a), to: copy, inputs: [slot, none, none] });
        copy
    }

    fn temporary(&mut self) -> u32 {
        self.registers += 1;
        self.registers - 1
    }

    fn unknown(&self, instruction: &Instruction<'t>) -> PtxError {
        forms::unknown(instruction, self.source.version)
    }

    fn wrong(&self, what: impl Into<String>) -> PtxError {
        PtxError::syntax(self.place, what)
    }

    fn bits(&mut self, bits: u64) -> Slot {
        self.constant(Constant::Bits(bits))
    }

    fn constant(&mut self, constant: Constant) -> Slot {
        let constants = &mut self.program.constants;
        Slot::Constant(*self.constants.entry(constant).or_insert_with(|| {
            constants.push(constant);
            constants.len() as u32 - 1
        }))
    }

    fn special(&mut self, special: Special) -> Slot {
        let specials = &mut self.program.specials;
        let known = specials.iter().position(|known| *known == special);
        Slot::Special(known.unwrap_or_else(|| {
            specials.push(special);
            specials.len() - 1
        }) as u32)
    }

    /// An operand that is read as a value of a type.
    fn value(&mut self, operand: &Operand<'t>, of: Type) -> Result<Slot> {
        match operand {
            Operand::Register(register) if !of.is_of_register(self.register_type(*register)) => {
                Err(self.wrong(OTHER_TYPE))
            }
            Operand::Sum(register, _) if !of.is_of_register(self.register_type(*register)) => {
                Err(self.other_sum(*register))
            }
            _ => self.wide_value(operand, of),
        }
    }

    /// The same, for an instruction that takes the low part of wider registers.
    fn wide_value(&mut self, operand: &Operand<'t>, of: Type) -> Result<Slot> {
        match operand {
            Operand::Special(name) => {
                self.read_special(name, None)?;
                Err(self.wrong(format!("`{}` is read by `mov` and `cvt` alone", short(name))))
            }
            Operand::Variable(..) | Operand::Symbol(..) => {
                self.address_value(operand)?;
                if self.is_function(operand) {
                    let what = "the address of a function outside of `mov`";
                    return Err(PtxError::unsupported(self.place, what));
                }
                Err(self.wrong("an address is read by `mov` and `cvta` alone"))
            }
            Operand::Not(_) if of != Type::Pred => Err(self.wrong("a predicate is no value of this type")),
            Operand::Integer(_) if !(of.is_integer() || of.is_bits() || of == Type::Pred) => {
                Err(self.wrong("an integer is no value of this type"))
            }
            Operand::Single(_) if !matches!(of, Type::F32 | Type::F64 | Type::B32) => {
                Err(self.wrong("a fraction is no value of this type"))
            }
            Operand::Double(_) if !matches!(of, Type::F32 | Type::F64 | Type::B64) => {
                Err(self.wrong("a fraction is no value of this type"))
            }
            _ => self.any_value(operand, of),
        }
    }

    /// A value of this type, or an address or a special register as one.
    fn named_value(&mut self, operand: &Operand<'t>, of: Type) -> Result<Slot> {
        match operand {
            Operand::Special(name) => self.read_special(name, Some(of)),
            Operand::Variable(..) | Operand::Symbol(..) => {
                if !(of.is_integer() || of.is_bits()) {
                    return match self.is_function(operand) {
                        true => {
                            Err(PtxError::unsupported(self.place, "the address of a function as a fraction"))
                        }
                        false => Err(self.wrong("an address is no value of this type")),
                    };
                }
                let space = self.space_of(operand);
                if space == Some(Space::Global) && of.bytes() < 8 {
                    return Err(self.wrong("an address of global memory has 64 bits"));
                }
                if let Operand::Variable(variable, _) = operand
                    && space == Some(Space::Param)
                    && !self.parameters.contains_key(variable)
                {
                    let name = &self.current().variables[*variable as usize].name;
                    return Err(self.wrong(format!("`{}` is a parameter without an address", short(name))));
                }
                self.address_value(operand)
            }
            _ => self.value(operand, of),
        }
    }

    /// NVIDIA's assembler does not look at the type of a register to which a constant is added, unless it is a predicate.
    fn other_sum(&self, register: u32) -> PtxError {
        match self.register_type(register) {
            Type::Pred => self.wrong(OTHER_TYPE),
            _ => PtxError::unsupported(self.place, "a register of another type, plus a constant"),
        }
    }

    fn is_function(&self, operand: &Operand<'t>) -> bool {
        let unit = self.current().unit;
        matches!(operand, Operand::Symbol(name, _)
            if self.names.variable(unit, name).is_none() && self.names.function(unit, name).is_some())
    }

    /// The kind of memory of a variable. `None` for a function, and for what is not declared.
    fn space_of(&self, operand: &Operand<'t>) -> Option<Space> {
        match operand {
            Operand::Variable(variable, _) => Some(self.current().variables[*variable as usize].space),
            Operand::Symbol(name, _) => {
                let variable = self.names.variable(self.current().unit, name)?;
                Some(self.source.variables[variable].space)
            }
            _ => None,
        }
    }

    /// A value, whose type was checked.
    fn any_value(&mut self, operand: &Operand<'t>, of: Type) -> Result<Slot> {
        match operand {
            Operand::Register(register) => {
                if !of.is_in_register(self.register_type(*register)) {
                    return Err(self.wrong(OTHER_TYPE));
                }
                Ok(Slot::Register(*register))
            }
            Operand::Sum(register, distance) => {
                let declared = self.register_type(*register);
                if declared.is_float() || declared == Type::Pred || declared.bytes() < of.bytes() {
                    return Err(self.other_sum(*register));
                }
                let inputs =
                    [Slot::Register(*register), self.bits(*distance as u64), self.bits(of.bytes().into())];
                let to = self.temporary();
                let guard = self.guard.take();
                self.push(Op::Alu {
                    function: crate::number::alu!(|a: u64, b: u64, bytes: u32| a.wrapping_add(b)
                        & (u64::MAX >> (64 - 8 * bytes.clamp(1, 8)))),
                    to,
                    inputs,
                });
                self.guard = guard;
                Ok(Slot::Register(to))
            }
            Operand::Not(register) => {
                let none = self.bits(0);
                let to = self.temporary();
                let guard = self.guard.take();
                self.push(Op::Alu {
                    function: crate::number::alu!(|a: bool| !a),
                    to,
                    inputs: [Slot::Register(*register), none, none],
                });
                self.guard = guard;
                Ok(Slot::Register(to))
            }
            Operand::Integer(value) => Ok(self.bits(low_bits(of, *value))),
            Operand::Single(bits) => Ok(self.bits(single_as(of, *bits))),
            Operand::Double(bits) => Ok(self.bits(double_as(of, *bits))),
            Operand::Element(name, _) => Err(self.no_constant_index(name)),
            _ => Err(self.wrong("this operand is no value")),
        }
    }

    /// A special register, as a value of this type.
    fn read_special(&mut self, name: &str, of: Option<Type>) -> Result<Slot> {
        let (special, part) = (Special::of(name), ClockPart::of(name));
        if let Some(of) = of.filter(|_| special.is_some() || part.is_some())
            && !is_of_special(name, of)
        {
            return Err(self.wrong(format!("`{}` is no value of this type", short(name))));
        }
        if let Some(special) = special {
            return Ok(self.special(special));
        }
        if let Some(part) = part {
            let to = self.temporary();
            self.push(Op::Clock { to, part });
            return Ok(Slot::Register(to));
        }
        // Of a video instruction: `%r1.h10`.
        let part = name.rsplit_once('.').and_then(|(_, part)| part.strip_prefix(['b', 'h']));
        if part.is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(PtxError::unsupported(self.place, format!("the part `{}`", short(name))));
        }
        if UNSUPPORTED_SPECIALS.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(PtxError::unsupported(self.place, format!("the register `{}`", short(name))));
        }
        Err(self.wrong(format!("`{}` is not declared", short(name))))
    }

    /// The address of a variable or function, in the variable's own space.
    fn address_value(&mut self, operand: &Operand<'t>) -> Result<Slot> {
        match *operand {
            Operand::Variable(variable, distance) => {
                let declared = &self.current().variables[variable as usize];
                match declared.space {
                    Space::Shared => {
                        let offset = self.shared_offset(declared)?;
                        Ok(self.bits(offset.wrapping_add_signed(distance)))
                    }
                    Space::Param if self.parameters.contains_key(&variable) => {
                        let offset = self.parameters[&variable];
                        Ok(self.bits(offset.wrapping_add_signed(distance)))
                    }
                    Space::Local | Space::Param => {
                        let offset_bytes = self.frame_offset(variable)?.wrapping_add_signed(distance);
                        let to = self.temporary();
                        self.push(Op::FrameAddress { to, offset_bytes });
                        Ok(Slot::Register(to))
                    }
                    _ => Err(PtxError::unsupported(declared.place, "a global variable inside of a function")),
                }
            }
            Operand::Symbol(name, distance) => {
                let unit = self.current().unit;
                if let Some(variable) = self.names.variable(unit, name) {
                    let declared = &self.source.variables[variable];
                    if let Some(what) = declared.unsupported {
                        return Err(PtxError::unsupported(self.place, format!("`{}`, {what}", short(name))));
                    }
                    return match declared.space {
                        Space::Shared if declared.is_extern => {
                            self.program.dynamic_align = self.program.dynamic_align.max(declared.align_bytes);
                            Ok(self.constant(Constant::DynamicShared(distance)))
                        }
                        Space::Shared => {
                            let offset = self.shared_offset(declared)?;
                            Ok(self.bits(offset.wrapping_add_signed(distance)))
                        }
                        _ if declared.linkage == Linkage::Extern => {
                            Err(PtxError::undefined(declared.place, name))
                        }
                        _ => {
                            self.check_initial(variable)?;
                            Ok(self.constant(Constant::Global(variable as u32, distance)))
                        }
                    };
                }
                if let Some(function) = self.names.function(unit, name) {
                    let declared = &self.source.functions[function];
                    if declared.body.is_none() {
                        return Err(PtxError::undefined(declared.place, name));
                    }
                    return Ok(self.bits(FUNCTIONS.wrapping_add(function as u64)));
                }
                Err(self.wrong(format!("`{}` is not declared", short(name))))
            }
            _ => Err(self.wrong("this operand is no address")),
        }
    }

    /// Refuses a variable with an address in its initial contents that no text defines.
    fn check_initial(&self, variable: usize) -> Result<()> {
        let declared = &self.source.variables[variable];
        for datum in &declared.initial {
            if let DatumValue::Address { name, .. } = &datum.value
                && self.names.variable(declared.unit, name).is_none()
                && self.names.function(declared.unit, name).is_none()
            {
                return Err(PtxError::undefined(declared.place, name));
            }
        }
        Ok(())
    }

    fn shared_offset(&mut self, declared: &'s crate::syntax::Variable) -> Result<u64> {
        let key = core::ptr::from_ref(declared).cast();
        if let Some(offset) = self.shared.get(&key) {
            return Ok(*offset);
        }
        let start = self.program.shared_bytes.next_multiple_of(declared.align_bytes);
        let end = start.checked_add(declared.size_bytes).filter(|end| *end <= STATIC_SHARED_BYTES_MAX);
        self.program.shared_bytes = end.ok_or_else(|| {
            let what =
                format!("the kernel has more than {STATIC_SHARED_BYTES_MAX} bytes of static shared memory");
            PtxError::syntax(declared.place, what)
        })?;
        let last = self.program.shared.last();
        let offset =
            last.map_or(0, |last| (last.end + SHARED_GAP_BYTES).next_multiple_of(declared.align_bytes));
        self.program.shared.push(offset..offset + declared.size_bytes);
        self.shared.insert(key, offset);
        Ok(offset)
    }

    /// The register that an operand names as a target for a value of a type.
    fn target(&mut self, operand: &Operand<'t>, of: Type) -> Result<u32> {
        match operand {
            Operand::Register(register) if !of.is_of_register(self.register_type(*register)) => {
                Err(self.wrong(OTHER_TARGET))
            }
            _ => self.wide_target(operand, of),
        }
    }

    /// The same, for an instruction whose target may be `_`.
    fn target_or_none(&mut self, operand: &Operand<'t>, of: Type) -> Result<u32> {
        match operand {
            Operand::Sink => Ok(self.temporary()),
            _ => self.target(operand, of),
        }
    }

    /// A target that may be wider than the type.
    fn wide_target(&mut self, operand: &Operand<'t>, of: Type) -> Result<u32> {
        match operand {
            Operand::Register(register) if of.is_in_register(self.register_type(*register)) => Ok(*register),
            Operand::Register(_) => Err(self.wrong(OTHER_TARGET)),
            Operand::Pair(..) => Err(self.wrong("the instruction has no second target")),
            Operand::Sink => Err(self.wrong("the target of this instruction cannot be left out")),
            _ => Err(self.wrong("the target is no register")),
        }
    }

    fn no_constant_index(&self, name: &str) -> PtxError {
        PtxError::unsupported(self.place, format!("an index of `{}` that is no constant", short(name)))
    }

    fn register_type(&self, register: u32) -> Type {
        self.current().registers.get(register as usize).copied().unwrap_or(Type::B64)
    }

    fn operand(&self, instruction: &'s Instruction<'t>, index: usize) -> Result<&'s Operand<'t>> {
        instruction.operands.get(index).ok_or_else(|| self.wrong("an operand is missing"))
    }

    /// The number of an access.
    fn site(&mut self) -> u32 {
        self.program.sites += 1;
        self.program.sites - 1
    }

    /// The memory that an operand in brackets names.
    fn access(&mut self, operand: &Operand<'t>, space: Space, element: Type, count: u8) -> Result<Access> {
        let (base, mut offset_bytes) = match operand {
            Operand::Address(base, distance) => (&**base, *distance),
            Operand::Element(name, index) => {
                let variable = self.names.variable(self.current().unit, name);
                let distance = variable.and_then(|number| self.source.variables[number].at(*index));
                let distance = distance.ok_or_else(|| self.no_constant_index(name))?;
                (&Operand::Symbol(name, 0), distance)
            }
            _ => return Err(self.wrong("an address in brackets is expected")),
        };
        self.check_space(base, space)?;
        let is_entry = self.current().is_entry;
        let mut memory = match space {
            Space::Generic => Memory::Generic,
            Space::Global | Space::Const => Memory::Global,
            Space::Shared => Memory::Shared,
            Space::Param if is_entry => Memory::Parameters,
            Space::Local | Space::Param => Memory::Local,
        };
        let at = match *base {
            Operand::Variable(variable, distance) => {
                let declared = &self.current().variables[variable as usize];
                let is_framed = matches!(declared.space, Space::Local | Space::Param)
                    && !self.parameters.contains_key(&variable);
                if is_framed && space != Space::Generic {
                    offset_bytes = offset_bytes.wrapping_add(distance);
                    offset_bytes = offset_bytes.wrapping_add_unsigned(self.frame_offset(variable)?);
                    memory = Memory::Frame;
                    self.bits(0)
                } else {
                    self.address_value(base)?
                }
            }
            Operand::Register(register) => {
                let declared = self.register_type(register);
                if declared.is_float() || !matches!(declared.bytes(), 2 | 4 | 8) {
                    return Err(self.wrong("the register of an address has another type"));
                }
                if declared.bytes() == 2 && matches!(space, Space::Generic | Space::Global) {
                    return Err(PtxError::unsupported(self.place, "an address of 16 bits"));
                }
                if declared.bytes() < 8 && matches!(space, Space::Generic | Space::Global) {
                    return Err(self.wrong("an address of global memory has 64 bits"));
                }
                Slot::Register(register)
            }
            Operand::Integer(value) if space == Space::Local => self.bits(value),
            Operand::Integer(_) => return Err(self.wrong("a number is an address of local memory alone")),
            _ => self.address_value(base)?,
        };
        let site = self.site();
        let bytes = element.bytes() as u8;
        Ok(Access { space: memory, at, offset_bytes, bytes, count, site, order: Order::default() })
    }
}

impl<'t> Lower<'_, 't> {
    /// Checks that an instruction for one kind of memory does not name a variable in another one.
    fn check_space(&self, base: &Operand<'t>, space: Space) -> Result<()> {
        let is_space = match self.space_of(base) {
            Some(declared) if space == Space::Generic => {
                matches!(declared, Space::Global | Space::Shared | Space::Local)
            }
            Some(declared) => declared == space,
            // A function, whose contents nobody reads.
            None => !self.is_function(base),
        };
        if is_space { Ok(()) } else { Err(self.wrong("the instruction does not access this kind of memory")) }
    }

    /// Checks that a function does not write its parameters, nor read its results.
    fn check_formal(&self, operand: &Operand<'t>, is_write: bool) -> Result<()> {
        let base = match operand {
            Operand::Address(base, _) => &**base,
            other => other,
        };
        let Operand::Variable(variable, _) = base else { return Ok(()) };
        let has = |formals: &[Formal]| {
            formals.iter().any(|formal| matches!(formal, Formal::Variable(number) if number == variable))
        };
        let function = self.current();
        match () {
            () if is_write && has(&function.parameters) => Err(self.wrong("a parameter is written")),
            () if !is_write && has(&function.results) => Err(self.wrong("a result is read")),
            () => Ok(()),
        }
    }
}

/// True if a special register is a value of this type.
fn is_of_special(name: &str, of: Type) -> bool {
    let starts = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
    if name == "%is_explicit_cluster" {
        return of == Type::Pred;
    }
    let bytes = of.bytes();
    (of.is_integer() || of.is_bits())
        && match () {
            () if name == "%gridid" => bytes >= 2,
            () if starts(&["%tid.", "%ntid.", "%ctaid.", "%nctaid."]) => matches!(bytes, 2 | 4),
            () if name == "%globaltimer" || name == "%current_graph_exec" || name.ends_with("64") => {
                bytes == 8
            }
            () => bytes == 4,
        }
}

/// The places of a kernel's parameters, and the bytes of all.
pub(crate) fn layout(function: &Function<'_>) -> (Vec<crate::program::Parameter>, usize) {
    let mut end = 0_usize;
    let parameters = function.parameters.iter().map(|formal| {
        let (size_bytes, align_bytes) = match formal {
            Formal::Variable(variable) => {
                let declared = &function.variables[*variable as usize];
                (declared.size_bytes as usize, declared.align_bytes as usize)
            }
            Formal::Register(register) => {
                let bytes = function.registers[*register as usize].bytes() as usize;
                (bytes, bytes)
            }
        };
        let offset_bytes = end.next_multiple_of(align_bytes.max(1));
        end = offset_bytes + size_bytes;
        crate::program::Parameter { offset_bytes, size_bytes }
    });
    let parameters = parameters.collect();
    (parameters, end)
}

const OTHER_TYPE: &str = "a register of this operand has another type";
const OTHER_TARGET: &str = "the target has another type";
/// The beginnings of names of special registers that are not supported.
const UNSUPPORTED_SPECIALS: [&str; 2] = ["%envreg", "%reserved_smem_offset_"];
/// Functions that the driver defines, or a library of the vendor that kernels call to launch others.
const OF_DRIVER: [&str; 13] = [
    "vprintf",
    "malloc",
    "free",
    "__assertfail",
    "cudaMalloc",
    "cudaFree",
    "cudaGetParameterBuffer",
    "cudaGetParameterBufferV2",
    "cudaLaunchDevice",
    "cudaLaunchDeviceV2",
    "cudaDeviceSynchronize",
    "cudaStreamCreateWithFlags",
    "cudaGraphLaunch",
];
/// The most registers of a function, those of intermediate results included.
const REGISTERS_MAX: u32 = 1 << 18;
/// The most local memory of a thread, as the hardware has it.
const FRAME_BYTES_MAX: u64 = 512 << 10;
/// The most shared memory of a block that a kernel declares.
const STATIC_SHARED_BYTES_MAX: u64 = 48 << 10;
/// The most shared memory of a block that a launch adds.
pub(crate) const SHARED_BYTES_MAX: u64 = 227 << 10;
