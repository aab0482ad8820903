//! The registers of a text become the registers of a program, which are fewer: two that never have a value at the same time are one. So a
//! warp has less memory, and of that only what the kernel may read before it writes is cleared when the warp starts.
//!
//! A register has a value from the first step at which a later step may read it to the last one, in the order of the text. Lanes that branch
//! apart do not disturb each other, because each has its own part of a register. Instructions that read the part of a lane that does not
//! execute them, such as a shuffle, have registers that are not shared.

use crate::program::{Callee, Location, Op, Program, RegisterOperand, Routine, Slot};
use core::cmp::{Ordering, Reverse};
use core::ops::Range;
use std::collections::BinaryHeap;
#[cfg(test)]
use std::collections::HashMap;

/// Gives a routine, whose steps are the last ones of the program, as few registers as it needs. `is_entry`: no caller takes the results.
pub(super) fn allocate(program: &mut Program, routine: &mut Routine, is_entry: bool) {
    let start = routine.start as usize;
    let Some(spans) = Spans::of(program, routine, is_entry) else {
        routine.cleared = (0..routine.registers).collect();
        return;
    };
    let (names, count) = spans.names();
    #[cfg(test)]
    let before = Uses::of(program, routine, is_entry);
    let renamed = |register: &mut u32| *register = names[*register as usize];
    for step in &mut program.steps[start..] {
        if let Some(guard) = &mut step.guard {
            renamed(&mut guard.register);
        }
        step.op.operands(&mut |operand| match operand {
            RegisterOperand::Read(Slot::Register(register)) | RegisterOperand::Write(register) => {
                renamed(register)
            }
            RegisterOperand::Read(_) => {}
        });
    }
    for location in routine.parameters.iter_mut().chain(&mut routine.results) {
        if let Location::Slot(Slot::Register(register)) = location {
            renamed(register);
        }
    }
    let mut cleared: Vec<u32> = spans.cleared.iter().map(|register| names[*register as usize]).collect();
    cleared.sort_unstable();
    (routine.registers, routine.cleared) = (count, cleared.into());
    #[cfg(test)]
    {
        let after = Uses::of(program, routine, is_entry);
        tests::check(program, routine, &before, &after, &spans.cleared);
    }
}

/// Where each register has a value: twice the number of a step before it runs, and one more behind it.
struct Spans {
    /// Empty for a register that the routine does not name.
    of: Vec<Range<usize>>,
    /// The registers that may be read before they are written.
    cleared: Vec<u32>,
}

/// Steps that run one after the other.
struct Stretch {
    steps: Range<usize>,
    next: Vec<usize>,
    /// The registers that later steps of it or of others read before they write them, at its beginning and at its end.
    before: Vec<u64>,
    behind: Vec<u64>,
    written: Vec<u64>,
}

/// What a step does to a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegisterUse {
    Read,
    /// It reads the parts of lanes that do not execute it.
    ReadOfOthers,
    Write,
    /// It may leave the register as it is.
    WriteOfSome,
}

impl Spans {
    /// `None` for a routine that is too large to be looked at in a short time.
    fn of(program: &mut Program, routine: &Routine, is_entry: bool) -> Option<Self> {
        let registers = routine.registers as usize;
        let start = routine.start as usize;
        let uses = Uses::of(program, routine, is_entry);
        let mut stretches = stretches(program, start, registers)?;
        flow(&mut stretches, &uses)?;
        let mut of = vec![0..0; registers];
        let mut extend = |register: u32, at: usize| {
            let span = &mut of[register as usize];
            let start = if span.end == 0 { at } else { span.start.min(at) };
            *span = start..span.end.max(at + 1);
        };
        for stretch in &stretches {
            bits_of(&stretch.before).for_each(|register| extend(register, 2 * stretch.steps.start));
            bits_of(&stretch.behind).for_each(|register| extend(register, 2 * stretch.steps.end - 1));
        }
        let mut cleared: Vec<u32> =
            stretches.first().map_or_else(Vec::new, |first| bits_of(&first.before).collect());
        let len = program.steps.len() - start;
        for step in 0..len {
            let is_arithmetic = matches!(program.steps[start + step].op, Op::Alu { .. });
            for &(register, kind) in uses.of_steps(step..step + 1) {
                match kind {
                    // Arithmetic reads all before it writes.
                    RegisterUse::Read if is_arithmetic => extend(register, 2 * step),
                    RegisterUse::Read | RegisterUse::Write | RegisterUse::WriteOfSome => {
                        extend(register, 2 * step + 1)
                    }
                    RegisterUse::ReadOfOthers => {
                        extend(register, 0);
                        extend(register, 2 * len);
                        cleared.push(register);
                    }
                }
            }
        }
        for location in &routine.parameters {
            if let Location::Slot(Slot::Register(register)) = location {
                extend(*register, 0);
            }
        }
        cleared.sort_unstable();
        cleared.dedup();
        Some(Self { of, cleared })
    }

    /// The new number of each register, and how many there are.
    fn names(&self) -> (Vec<u32>, u32) {
        let mut order: Vec<u32> = (0..self.of.len() as u32).collect();
        order.retain(|register| !self.of[*register as usize].is_empty());
        order.sort_by_key(|register| self.of[*register as usize].start);
        let mut names = vec![0; self.of.len()];
        let mut count = 0;
        let mut used: BinaryHeap<Reverse<(usize, u32)>> = BinaryHeap::new();
        let mut free: BinaryHeap<Reverse<u32>> = BinaryHeap::new();
        for register in order {
            let span = &self.of[register as usize];
            while let Some(Reverse((end, name))) = used.peek().copied()
                && end <= span.start
            {
                used.pop();
                free.push(Reverse(name));
            }
            let name = free.pop().map_or_else(
                || {
                    count += 1;
                    count - 1
                },
                |Reverse(name)| name,
            );
            names[register as usize] = name;
            used.push(Reverse((span.end, name)));
        }
        (names, count)
    }
}

/// What the steps of a routine do to registers, each reads first.
struct Uses {
    all: Vec<(u32, RegisterUse)>,
    /// Where those of each step end.
    ends: Vec<usize>,
}

impl Uses {
    fn of(program: &mut Program, routine: &Routine, is_entry: bool) -> Self {
        let results = routine.results.iter().filter_map(|location| match location {
            Location::Slot(Slot::Register(register)) if !is_entry => Some((*register, RegisterUse::Read)),
            _ => None,
        });
        let (mut all, mut ends, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        for step in &mut program.steps[routine.start as usize..] {
            let is_sure = match &step.op {
                // What a pointer names may have other results.
                Op::Call(call) => matches!(call.target, Callee::Routine(_)),
                _ => true,
            };
            let write =
                if is_sure && step.guard.is_none() { RegisterUse::Write } else { RegisterUse::WriteOfSome };
            let is_of_others = matches!(step.op, Op::Shuffle(_) | Op::Matrix(_));
            let read = if is_of_others { RegisterUse::ReadOfOthers } else { RegisterUse::Read };
            all.extend(step.guard.map(|guard| (guard.register, RegisterUse::Read)));
            step.op.operands(&mut |operand| match operand {
                RegisterOperand::Read(Slot::Register(register)) => all.push((*register, read)),
                RegisterOperand::Read(_) => {}
                RegisterOperand::Write(register) => writes.push((*register, write)),
            });
            if matches!(step.op, Op::Return) {
                all.extend(results.clone());
            }
            all.append(&mut writes);
            ends.push(all.len());
        }
        Self { all, ends }
    }

    fn of_steps(&self, steps: Range<usize>) -> &[(u32, RegisterUse)] {
        let end_of = |step: usize| step.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[end_of(steps.start)..end_of(steps.end)]
    }
}

/// The steps of a routine in stretches. `None` if there are too many, or if a step leads out of the routine.
fn stretches(program: &Program, start: usize, registers: usize) -> Option<Vec<Stretch>> {
    let len = program.steps.len() - start;
    let words = registers.div_ceil(64);
    let nexts = |step: usize| -> Option<Vec<usize>> {
        let (nexts, _) = program.successors((start + step) as u32);
        nexts.into_iter().map(|next| (next as usize).checked_sub(start).filter(|next| *next < len)).collect()
    };
    let mut begins = vec![false; len];
    *begins.first_mut()? = true;
    let mut jumps: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut left = JUMPS_MAX;
    for step in 0..len {
        match &program.steps[start + step].op {
            Op::BranchTable { targets, .. } => left = left.checked_sub(targets.len())?,
            op if op.is_followed() => continue,
            _ => {}
        }
        let nexts: Vec<usize> = nexts(step)?;
        nexts.iter().for_each(|next| begins[*next] = true);
        begins.get_mut(step + 1).into_iter().for_each(|begins| *begins = true);
        jumps.push((step, nexts));
    }
    let first: Vec<usize> = (0..len).filter(|step| begins[*step]).collect();
    if first.len().checked_mul(words)? > SET_WORDS_MAX {
        return None;
    }
    let index_of = |step: usize| first.partition_point(|begin| *begin < step);
    let mut jumps = jumps.into_iter().peekable();
    let stretches = first.iter().enumerate().map(|(index, begin)| {
        let end = first.get(index + 1).copied().unwrap_or(len);
        let next = match jumps.next_if(|(step, _)| *step + 1 == end) {
            Some((_, nexts)) => nexts.into_iter().map(index_of).collect(),
            None => (end < len).then_some(index + 1).into_iter().collect(),
        };
        let none = || vec![0; words];
        Stretch { steps: *begin..end, next, before: none(), behind: none(), written: none() }
    });
    Some(stretches.collect())
}

/// Finds what each stretch needs at its beginning and its end. `None` if that takes too long.
fn flow(stretches: &mut [Stretch], uses: &Uses) -> Option<()> {
    let mut left = FLOW_WORDS_MAX;
    for stretch in &mut *stretches {
        for &(register, kind) in uses.of_steps(stretch.steps.clone()) {
            let (word, bit) = (register as usize / 64, 1 << (register % 64));
            match kind {
                RegisterUse::Write => stretch.written[word] |= bit,
                RegisterUse::WriteOfSome => {}
                RegisterUse::Read | RegisterUse::ReadOfOthers => {
                    stretch.before[word] |= bit & !stretch.written[word]
                }
            }
        }
    }
    loop {
        let mut has_changed = false;
        for index in (0..stretches.len()).rev() {
            let (earlier, rest) = stretches.split_at_mut(index);
            let (stretch, later) = rest.split_first_mut()?;
            left = left.checked_sub((stretch.next.len() + 1) * stretch.before.len())?;
            for &next in &stretch.next {
                let needed = match next.cmp(&index) {
                    Ordering::Less => &earlier[next].before,
                    Ordering::Equal => &stretch.before,
                    Ordering::Greater => &later[next - index - 1].before,
                };
                stretch.behind.iter_mut().zip(needed).for_each(|(behind, needed)| *behind |= needed);
            }
            for ((before, behind), written) in
                stretch.before.iter_mut().zip(&stretch.behind).zip(&stretch.written)
            {
                let now = *before | behind & !written;
                has_changed |= now != *before;
                *before = now;
            }
        }
        if !has_changed {
            return Some(());
        }
    }
}

/// The registers of a set.
fn bits_of(set: &[u64]) -> impl Iterator<Item = u32> {
    set.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(|(index, word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * index as u32 + bit)
    })
}

/// The targets of branches by tables, at most.
const JUMPS_MAX: usize = 1 << 18;
/// The words of the sets of one kind, at most.
const SET_WORDS_MAX: usize = 1 << 21;
/// The words that are looked at, at most: a tenth of a second.
const FLOW_WORDS_MAX: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;
    use core::cell::Cell;
    use core::fmt::Write;

    thread_local! {
        static CHECKED: Cell<usize> = const { Cell::new(0) };
        static SAVED: Cell<u32> = const { Cell::new(0) };
    }

    /// Follows the registers of the text through those of the program, on all ways: each step that reads one finds it where it looks.
    pub(super) fn check(program: &Program, routine: &Routine, before: &Uses, after: &Uses, cleared: &[u32]) {
        let registers = routine.registers as usize;
        let stretches = stretches(program, routine.start as usize, registers).unwrap();
        let pairs = |steps: Range<usize>| before.of_steps(steps.clone()).iter().zip(after.of_steps(steps));
        let mut place_of = HashMap::new();
        for ((name, _), (place, _)) in pairs(0..before.ends.len()) {
            assert_eq!(*place_of.entry(*name).or_insert(*place), *place, "one register has two places");
        }
        let mut begin = vec![None; registers];
        for name in cleared {
            let place = place_of[name] as usize;
            assert_eq!(begin[place].replace(*name), None, "two registers are cleared at one place");
            assert!(routine.cleared.contains(&(place as u32)));
        }
        for location in &routine.parameters {
            // The registers of parameters have a place each, which no cleared one has.
            if let Location::Slot(Slot::Register(place)) = location {
                let names = place_of.iter().filter(|(_, of)| *of == place);
                let first = names
                    .map(|(name, _)| *name)
                    .min_by_key(|name| before.all.iter().position(|(named, _)| named == name));
                begin[*place as usize] = begin[*place as usize].or(first);
            }
        }
        let mut states = vec![None; stretches.len()];
        states[0] = Some(begin);
        let mut open = vec![0];
        while let Some(index) = open.pop() {
            let mut state: Vec<Option<u32>> = states[index].clone().unwrap();
            for ((name, kind), (place, _)) in pairs(stretches[index].steps.clone()) {
                let place = &mut state[*place as usize];
                match kind {
                    RegisterUse::Write => *place = Some(*name),
                    RegisterUse::WriteOfSome => *place = place.filter(|kept| kept == name),
                    RegisterUse::Read | RegisterUse::ReadOfOthers => {}
                }
            }
            for &next in &stretches[index].next {
                let known = &mut states[next];
                let met: Vec<Option<u32>> = match &*known {
                    None => state.clone(),
                    Some(known) => known.iter().zip(&state).map(|(a, b)| a.filter(|_| a == b)).collect(),
                };
                if known.as_ref() != Some(&met) {
                    *known = Some(met);
                    open.push(next);
                }
            }
        }
        for (stretch, state) in stretches.iter().zip(states) {
            let Some(mut state) = state else { continue };
            for ((name, kind), (place, _)) in pairs(stretch.steps.clone()) {
                let place = &mut state[*place as usize];
                match kind {
                    RegisterUse::Read | RegisterUse::ReadOfOthers => {
                        assert_eq!(*place, Some(*name), "another register is there")
                    }
                    RegisterUse::Write => *place = Some(*name),
                    RegisterUse::WriteOfSome => *place = place.filter(|kept| kept == name),
                }
            }
        }
        CHECKED.set(CHECKED.get() + 1);
        let names = u32::try_from(place_of.len()).unwrap();
        SAVED.set(SAVED.get() + names - routine.registers.min(names));
    }

    /// A kernel and a function of random instructions, branches and calls.
    fn random_text(seed: u64) -> String {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |count: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % count
        };
        let mut body = |text: &mut String, labels: u64| {
            for label in 0..labels {
                let _ = writeln!(text, "L{label}:");
                for _ in 0..below(6) {
                    let guard = ["", "", "@%p0 ", "@!%p1 "][below(4) as usize];
                    let [a, b, c] = [below(9), below(9), below(9)];
                    let line = match below(9) {
                        0 => format!("setp.lt.u32 %p{}, %r{a}, %r{b}", below(2)),
                        1 => format!("shfl.sync.idx.b32 %r{a}, %r{b}, %r{c}, 31, -1"),
                        2 => format!("call (%r{a}), f, (%r{b})"),
                        3 => format!("bar.red.popc.u32 %r{a}, 0, %p{}", below(2)),
                        4 => format!("mov.b64 %d{}, {{%r{b}, %r{c}}}", below(2)),
                        5 => format!("mov.b64 {{%r{a}, %r{b}}}, %d{}", below(2)),
                        6 => format!("atom.shared.add.u32 %r{a}, [%r{b}], %r{c}"),
                        7 => format!("mov.u32 %r{a}, {b}"),
                        _ => format!("mad.lo.u32 %r{a}, %r{b}, %r{c}, %r{a}"),
                    };
                    let _ = writeln!(text, "{guard}{line};");
                }
                let guard = ["", "@%p0 ", "@!%p1 "][below(3) as usize];
                let _ = match below(8) {
                    0..5 => writeln!(text, "{guard}bra L{};", below(labels)),
                    5 => writeln!(text, "{guard}brx.idx %r{}, T;", below(9)),
                    6 => writeln!(text, "{guard}ret;"),
                    _ => Ok(()),
                };
            }
        };
        let registers = ".reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<2>; T: .branchtargets L0, L1;\n";
        let mut text = format!(
            ".version 8.0\n.target sm_80\n.func (.reg .b32 result) f(.reg .b32 a) {{ {registers} mov.u32 %r0, a;\n"
        );
        body(&mut text, 2 + seed % 3);
        let _ = write!(text, "mov.u32 result, %r1; }}\n.entry k() {{ {registers}");
        body(&mut text, 2 + seed % 7);
        text + "}\n"
    }

    #[test]
    fn each_register_is_where_it_is_read() {
        for seed in 0..2_000 {
            let text = random_text(seed);
            let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(module.entry("k").unwrap().unsupported(), None, "{text}");
        }
        assert!(CHECKED.get() >= 2_000 && SAVED.get() > 2_000, "{} {}", CHECKED.get(), SAVED.get());
    }

    /// A packaged crate is built without the other crates beside it.
    #[test]
    fn kernels_of_the_repository_find_their_registers() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut folders = vec![crates.join("gpumem-array/kernels"), crates.join("../tests/kernels")];
        folders.retain(|folder| folder.is_dir());
        for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                // Some have other texts linked to them.
                let _ = Module::parse(&std::fs::read_to_string(path).unwrap());
            }
        }
        assert!(folders.is_empty() || CHECKED.get() > 100, "{}", CHECKED.get());
    }
}
