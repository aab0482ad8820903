//! Branches, calls, barriers of a block.

use super::modifiers::Modifiers;
use super::{Jump, Lower, Result};
use crate::error::{PtxError, short};
use crate::number::LANES;
use crate::program::{
    Access, Assertion, BARRIERS, Barrier, BarrierKind, Call, Callee, Location, Op, Passed, Slot, Vote,
};
use crate::syntax::{Formal, Function, Instruction, Operand, Shape, Space, Type};

impl<'s, 't> Lower<'s, 't> {
    /// Returns false for an instruction of another kind.
    pub(super) fn control(
        &mut self,
        instruction: &'s Instruction<'t>,
        mut modifiers: Modifiers<'s, 't>,
    ) -> Result<bool> {
        match modifiers.name {
            "bra" => {
                modifiers.take("uni");
                modifiers.finish()?;
                let Operand::Symbol(name, 0) = self.operand(instruction, 0)? else {
                    return Err(self.wrong("a label is expected"));
                };
                self.jump(instruction, name);
                self.push(Op::Branch { target: 0 });
            }
            "brx" => {
                let _ = (modifiers.take("idx"), modifiers.take("uni"));
                modifiers.finish()?;
                let index = self.value(self.operand(instruction, 0)?, Type::U32)?;
                let Operand::Symbol(name, 0) = self.operand(instruction, 1)? else {
                    return Err(self.wrong("a list of labels is expected"));
                };
                self.listed(instruction, name)?;
                self.jump(instruction, name);
                self.push(Op::BranchTable { targets: [].into(), index });
            }
            "call" => {
                modifiers.take("uni");
                modifiers.finish()?;
                self.call(instruction)?;
            }
            "ret" => {
                modifiers.take("uni");
                modifiers.finish()?;
                self.push(Op::Return);
            }
            "exit" => self.push(Op::Exit),
            "trap" | "brkpt" => self.push(Op::Trap),
            "griddepcontrol" => {}
            "nanosleep" => {
                self.value(self.operand(instruction, 0)?, Type::U32)?;
            }
            "pmevent" => {
                let end = if modifiers.take("mask") { 1 << 16 } else { 16 };
                if !matches!(self.operand(instruction, 0)?, Operand::Integer(event) if *event < end) {
                    return Err(self.wrong(format!("a number below {end} is expected")));
                }
            }
            "setmaxnreg" => {
                let is_count = |count: u64| (24..=256).contains(&count) && count.is_multiple_of(8);
                if !matches!(self.operand(instruction, 0)?, Operand::Integer(count) if is_count(*count)) {
                    return Err(
                        self.wrong("a number of registers is expected, a multiple of 8 from 24 to 256")
                    );
                }
            }
            "bar" | "barrier" => self.barrier(instruction, &mut modifiers)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that a list comes before the instruction that names it.
    fn listed(&self, instruction: &Instruction<'t>, name: &'t str) -> Result<()> {
        match self.find(&self.lists, name, instruction.scope) {
            Some(_) => Ok(()),
            None => Err(self.wrong(format!("there is no list `{}` before it", short(name)))),
        }
    }

    /// Sets the target of the next step when all labels are known.
    fn jump(&mut self, instruction: &Instruction<'t>, name: &'t str) {
        let (step, scope, place) = (self.program.steps.len(), instruction.scope, instruction.place);
        self.jumps.push(Jump { step, name, scope, place });
    }

    /// `call (results), function, (arguments), prototype`, where all but the function may be missing.
    fn call(&mut self, instruction: &'s Instruction<'t>) -> Result<()> {
        let mut operands = instruction.operands.iter().peekable();
        let results: &[Operand<'t>] = match operands.next_if(|operand| matches!(operand, Operand::List(_))) {
            Some(Operand::List(results)) => results,
            _ => &[],
        };
        let function = operands.next().ok_or_else(|| self.wrong("the function is missing"))?;
        let arguments: &[Operand<'t>] = match operands.next_if(|operand| matches!(operand, Operand::List(_)))
        {
            Some(Operand::List(arguments)) => arguments,
            _ => &[],
        };
        // What a pointer points to: a prototype, or a list of functions.
        let listed = operands.next();
        if operands.next().is_some() || listed.is_some() && matches!(function, Operand::Symbol(..)) {
            return Err(self.wrong("the call has too many operands"));
        }
        let prototype = match listed {
            None if matches!(function, Operand::Symbol(..)) => None,
            Some(Operand::Symbol(name, 0)) => Some(self.prototype(instruction, name)?),
            _ => return Err(self.wrong("the name of a prototype is expected")),
        };
        let (target, formals) = match function {
            Operand::Symbol(name, 0) => {
                let number = self.names.function(self.current().unit, name);
                let number =
                    number.ok_or_else(|| self.wrong(format!("there is no function `{}`", short(name))))?;
                let function = &self.source.functions[number];
                if function.is_entry {
                    return Err(self.wrong(format!("`{}` is a kernel, which cannot be called", short(name))));
                }
                (Callee::Routine(number as u32), Some(function))
            }
            Operand::Register(register) if self.register_type(*register).bytes() == 4 => {
                return Err(PtxError::unsupported(self.place, "a pointer to a function of 32 bits"));
            }
            other => (Callee::Register(self.value(other, Type::U64)?), prototype),
        };
        if let Some(external) = formals.filter(|function| prototype.is_none() && function.body.is_none())
            && self.call_of_driver(external.name, arguments, results)?
        {
            return Ok(());
        }
        if let Some(formals) = formals
            && (formals.parameters.len() != arguments.len() || formals.results.len() != results.len())
        {
            return Err(self.wrong("the function has another number of parameters"));
        }
        let formals_of = formals;
        let target = match target {
            Callee::Routine(number) => Callee::Routine(self.routine_of(number as usize)),
            Callee::Register(slot) => {
                self.add_pointed();
                Callee::Register(slot)
            }
        };
        let shape = |formals: Option<&[Formal]>, number: usize| formals_of?.shape_of(*formals?.get(number)?);
        let passed = |lower: &mut Self, operands: &'s [Operand<'t>], formals: Option<&[Formal]>| {
            let operands = operands.iter().enumerate();
            let passed = operands.map(|(number, operand)| lower.passed(operand, shape(formals, number)));
            passed.collect::<Result<Box<[_]>>>()
        };
        let arguments = passed(self, arguments, formals_of.map(|function| &function.parameters[..]))?;
        let results = passed(self, results, formals_of.map(|function| &function.results[..]))?;
        self.push(Op::Call(Box::new(Call { target, arguments, results })));
        Ok(())
    }

    /// What a pointer to a function points to: the prototype, or the first function of a list.
    fn prototype(&self, instruction: &Instruction<'t>, name: &'t str) -> Result<&'s Function<'t>> {
        if let Some(prototype) = self.find(&self.prototypes, name, instruction.scope) {
            return Ok(prototype);
        }
        self.listed(instruction, name)?;
        let list = self.find(&self.lists, name, instruction.scope).copied().unwrap_or_default();
        let function = |name| self.names.function(self.current().unit, name);
        let functions = list.iter().map(|name| Some(&self.source.functions[function(name)?]));
        let functions: Option<Vec<_>> = functions.collect();
        let functions = functions.filter(|all| all.iter().all(|function| !function.is_entry));
        functions
            .and_then(|functions| functions.first().copied())
            .ok_or_else(|| self.wrong(format!("`{}` is no list of functions", short(name))))
    }

    /// An argument or the place of a result, for a parameter or result of this shape.
    fn passed(&mut self, operand: &'s Operand<'t>, formal: Option<Shape>) -> Result<Passed> {
        let shape = match operand {
            Operand::Variable(variable, 0) => {
                let declared = &self.current().variables[*variable as usize];
                if declared.space != Space::Param {
                    return Err(self.wrong("an argument is no parameter"));
                }
                Some(declared.shape())
            }
            Operand::Register(register) => Some(Shape::of_type(self.register_type(*register))),
            _ => None,
        };
        let fits = shape.zip(formal).is_none_or(|(shape, formal)| shape.fits(formal));
        if !fits {
            return Err(self.wrong("an argument or result is no value of its parameter"));
        }
        let (from, size_bytes) = match operand {
            Operand::Variable(variable, 0) => {
                let current = self.current();
                let mut formals = current.parameters.iter().chain(&current.results);
                if formals.any(|formal| matches!(formal, Formal::Variable(number) if number == variable)) {
                    return Err(self.wrong("a parameter or result of the function is passed on"));
                }
                let size_bytes = current.variables[*variable as usize].size_bytes as u32;
                (Location::Frame(self.frame_offset(*variable)?), size_bytes)
            }
            Operand::Sink => {
                let bytes = formal.map_or(8, Shape::bytes);
                (Location::Slot(Slot::Register(self.temporary())), bytes.min(8) as u32)
            }
            other => {
                let of = match (other, formal) {
                    (Operand::Register(register), _) => self.register_type(*register),
                    (_, Some(formal)) => formal.element(),
                    _ => Type::B64,
                };
                (Location::Slot(self.value(other, of)?), of.bytes())
            }
        };
        Ok(Passed { from, size_bytes })
    }

    /// A call of a function that the driver has: `vprintf` and `__assertfail`. Returns false for another one.
    fn call_of_driver(
        &mut self,
        name: &str,
        arguments: &'s [Operand<'t>],
        results: &'s [Operand<'t>],
    ) -> Result<bool> {
        let argument = |lower: &mut Self, index: usize, of: Type| match arguments.get(index) {
            Some(Operand::Variable(variable, 0)) => {
                let from = lower.frame_access(*variable, of)?;
                let to = lower.temporary();
                lower.push(Op::Load { to: [Some(to)].into(), from });
                Ok(Slot::Register(to))
            }
            Some(other) => lower.value(other, of),
            None => Err(lower.wrong("the function has another number of parameters")),
        };
        match name {
            "vprintf" => {
                let (format, values) = (argument(self, 0, Type::B64)?, argument(self, 1, Type::B64)?);
                let to = match results.first() {
                    Some(Operand::Register(register)) => *register,
                    _ => self.temporary(),
                };
                let site = self.site();
                self.push(Op::Print { to, format, arguments: values, site });
                if let Some(Operand::Variable(variable, 0)) = results.first() {
                    let access = self.frame_access(*variable, Type::B32)?;
                    self.push(Op::Store { values: [Slot::Register(to)].into(), to: access });
                }
            }
            "__assertfail" => {
                let (text, file) = (argument(self, 0, Type::B64)?, argument(self, 1, Type::B64)?);
                let (line, function) = (argument(self, 2, Type::B32)?, argument(self, 3, Type::B64)?);
                let site = self.site();
                self.push(Op::Assert(Box::new(Assertion { text, file, line, function, site })));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The beginning of a variable of the frame.
    fn frame_access(&mut self, variable: u32, of: Type) -> Result<Access> {
        self.access(&Operand::Address(Box::new(Operand::Variable(variable, 0)), 0), Space::Param, of, 1)
    }

    fn barrier(&mut self, instruction: &'s Instruction<'t>, modifiers: &mut Modifiers<'s, 't>) -> Result<()> {
        if modifiers.take("warp") {
            if !modifiers.take("sync") {
                return Err(modifiers.unknown());
            }
            modifiers.finish()?;
            let mask = self.value(self.operand(instruction, 0)?, Type::U32)?;
            self.push(Op::WarpBarrier { mask });
            return Ok(());
        }
        let is_aligned = modifiers.take("aligned") || modifiers.name == "bar";
        modifiers.take("cta");
        let kind = modifiers.take_one(&["sync", "arrive", "red"]).ok_or_else(|| modifiers.unknown())?;
        let mut operands = instruction.operands.iter();
        let (kind, first) = if kind == "red" {
            let vote = match modifiers.take_one(&["popc", "and", "or"]) {
                Some("popc") => Vote::Count,
                Some("and") => Vote::All,
                Some(_) => Vote::Any,
                None => return Err(modifiers.unknown()),
            };
            self.only_type(modifiers, if vote == Vote::Count { Type::U32 } else { Type::Pred })?;
            let of = if vote == Vote::Count { Type::U32 } else { Type::Pred };
            let to = self.target(self.operand(instruction, 0)?, of)?;
            let input = operands.next_back().ok_or_else(|| self.wrong("an operand is missing"))?;
            let input = self.value(input, Type::Pred)?;
            operands.next();
            (BarrierKind::Combine { vote, to, input }, 1)
        } else {
            (if kind == "sync" { BarrierKind::Wait } else { BarrierKind::Arrive }, 0)
        };
        modifiers.finish()?;
        let number = self.operand(instruction, first)?;
        operands.next();
        let count = operands.next();
        if matches!(number, Operand::Integer(number) if *number >= BARRIERS) {
            return Err(self.wrong(format!("a block has barriers from 0 to {}", BARRIERS - 1)));
        }
        let is_arrive = matches!(kind, BarrierKind::Arrive);
        if let Some(Operand::Integer(count)) = count
            && (!count.is_multiple_of(LANES as u64) || *count == 0 && is_arrive)
        {
            return Err(self.wrong(format!("{count} threads are no whole warps")));
        }
        let number = self.value(number, Type::U32)?;
        let count: Option<Slot> = match count {
            Some(operand) => Some(self.value(operand, Type::U32)?),
            None => None,
        };
        self.push(Op::Barrier(Box::new(Barrier { number, count, kind, is_aligned })));
        Ok(())
    }
}
