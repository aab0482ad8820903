//! The texts of reductions.
//!
//! One thread, one warp or one block reduces the elements of an output, or of a part of one. A thread takes groups of [`GROUP`] elements,
//! whatever their layout, so that the order does not depend on it. The parts of an output are reduced by a second kernel.

use crate::element::ScalarType;
use crate::expression::convert::convert;
use crate::expression::emit::{EmittedValue, Emitter, InstructionOperand, Register, line};
use crate::expression::operation::{choice, product};
use crate::expression::plan::KernelPlan;
use crate::expression::text::{KernelWriter, THREADS};

/// The elements that a thread takes one after the other.
pub(crate) const GROUP: usize = 4;

/// The index of the first word of the axes.
pub(crate) const FIRST_AXIS: usize = 5;

/// How a reduction merges its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fold {
    Sum,
    /// The number of truths.
    Count,
    Mean,
    Product,
    Min,
    Max,
    Any,
    All,
    /// The place of the smallest element, and of several the first.
    ArgMin,
    ArgMax,
    /// The square root of the sum of squares.
    Norm,
    /// The sum of squared distances from the mean, divided by a number.
    Variance,
    Deviation,
    /// The largest element, and the sum of the powers of e by how much the elements are less than it.
    Powers,
    /// The logarithm of the sum of the powers of e.
    LogSumExp,
}

impl Fold {
    pub(crate) fn has_place(self) -> bool {
        matches!(self, Self::ArgMin | Self::ArgMax)
    }

    fn is_upper(self) -> bool {
        matches!(self, Self::Max | Self::ArgMax)
    }

    fn is_variance(self) -> bool {
        matches!(self, Self::Variance | Self::Deviation)
    }

    fn has_powers(self) -> bool {
        matches!(self, Self::Powers | Self::LogSumExp)
    }

    /// The arrays of the result.
    pub(crate) fn result_count(self) -> usize {
        if self == Self::Powers { 2 } else { 1 }
    }

    /// The states of no elements, as literals.
    fn first(self, of: ScalarType) -> [String; 3] {
        let zero = || of.literal(0.0);
        match self {
            Self::Sum
            | Self::Count
            | Self::Mean
            | Self::Any
            | Self::Norm
            | Self::Variance
            | Self::Deviation => [zero(), zero(), zero()],
            Self::Product | Self::All => [of.literal(1.0), zero(), zero()],
            Self::Min | Self::ArgMin => [of.limit(true), i64::MAX.to_string(), zero()],
            Self::Max | Self::ArgMax => [of.limit(false), i64::MAX.to_string(), zero()],
            Self::Powers | Self::LogSumExp => [of.limit(false), zero(), zero()],
        }
    }
}

/// A reduction, apart from the expression and its layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldClass {
    pub(crate) fold: Fold,
    /// The type of the elements as they are reduced.
    pub(crate) of: ScalarType,
    /// The type of the whole result.
    pub(crate) out: ScalarType,
    /// 1, 32 or 256 for an output.
    pub(crate) threads: usize,
    /// True if the results are the states of parts.
    pub(crate) is_partial: bool,
    /// True if the elements are states of parts.
    pub(crate) has_states: bool,
}

impl FoldClass {
    /// The types of a state: the value, and the place of an extreme; the parts of a complex number; the mean of some numbers, the sum of their
    /// squared distances from it, and their count; the largest number, and the sum of powers.
    pub(crate) fn state(&self) -> Vec<ScalarType> {
        let of = self.of.part();
        match self.fold {
            fold if fold.has_place() => vec![of, ScalarType::I64],
            fold if fold.is_variance() => vec![of; 3],
            fold if fold.has_powers() => vec![of; 2],
            _ if self.of.is_complex() => vec![of; 2],
            _ => vec![of],
        }
    }

    /// The arrays that the kernel writes.
    pub(crate) fn results(&self) -> usize {
        if self.is_partial { self.state().len() } else { self.fold.result_count() }
    }

    pub(crate) fn key(&self) -> [u8; 7] {
        let Self { fold, of, out, threads, is_partial, has_states } = *self;
        let threads = threads.ilog2() as u8;
        [1, fold as u8, of as u8, out as u8, threads, u8::from(is_partial), u8::from(has_states)]
    }
}

/// The type that elements are reduced as.
pub(crate) fn reduced_as(of: ScalarType, fold: Fold) -> ScalarType {
    match of {
        ScalarType::Bool if fold == Fold::Count => ScalarType::I64,
        ScalarType::F16 | ScalarType::Bf16 if !fold.has_place() => ScalarType::F32,
        other => other,
    }
}

/// The text of a reduction.
pub(crate) fn text(plan: &KernelPlan, class: &FoldClass) -> String {
    let mut w = KernelWriter::new(plan, FIRST_AXIS);
    let parts_of = class.is_partial.then(|| {
        let address = |target| w.address(plan.argument_count - class.results() + target);
        (0..class.results()).map(address).collect::<Vec<_>>()
    });
    let (thread, all) = w.thread();
    let (shift, at_once) = (class.threads.ilog2(), plan.outputs_at_once);
    let [outputs, inner, parts, chunk, total] = [0, 1, 2, 3, 4].map(|word| w.word(word));
    let mut output = w.long("shr.u64", &[&thread, &shift]);
    let mut step = w.long("shr.u64", &[&all, &shift]);
    if at_once > 1 {
        [output, step] = [output, step].map(|first| w.long("mul.lo.u64", &[&first, &at_once]));
    }
    let place = w.long("and.b64", &[&thread, &(class.threads - 1)]);
    let count = w.long("mul.lo.s64", &[&outputs, &parts]);
    let states: Vec<_> = (0..at_once).map(|_| new_state(&mut w, class)).collect();
    if class.threads > 32 {
        for (index, value) in states[0].iter().enumerate() {
            line!(w.e, ".shared .align 8 .b8 slots{index}[{}];", slot_size(value.of) * THREADS / 32);
        }
    }
    let [again, next, done] = ["OUTPUT", "NEXT", "DONE"].map(|name| w.e.label(name));
    let is = w.e.register('p');
    line!(w.e, "{again}:\nsetp.ge.u64 {is}, {output}, {count};\n@{is} bra {done};");
    let (start, end) = (w.e.register('l'), w.e.register('l'));
    let mut whole = output;
    if class.is_partial {
        // Neighbouring threads have neighbouring outputs.
        let part = w.long("div.u64", &[&output, &outputs]);
        whole = w.long("rem.u64", &[&output, &outputs]);
        line!(w.e, "mul.lo.s64 {start}, {part}, {chunk};\nadd.s64 {end}, {start}, {chunk};");
        line!(w.e, "min.u64 {end}, {end}, {inner};");
    } else {
        line!(w.e, "mov.u64 {start}, 0;\nmov.u64 {end}, {inner};");
    }
    // The addresses of each output.
    let mut bases = vec![w.addresses(&w.bases(), whole, plan.reduced_count..plan.lens.len(), 1)];
    for output in 1..at_once {
        let next = bases[output - 1].iter().enumerate();
        let next = next.map(|(column, base)| w.along(*base, plan.reduced_count, column)).collect();
        bases.push(next);
    }
    for state in &states {
        for (value, first) in state.iter().zip(class.fold.first(class.of)) {
            set_literal(&mut w, *value, &first);
        }
    }
    // Groups of elements, then those that are left.
    let groups = w.long("sub.s64", &[&end, &start]);
    line!(w.e, "and.b64 {groups}, {groups}, -{GROUP};\nadd.s64 {groups}, {groups}, {start};");
    fold(&mut w, class, [start, place, groups], &bases, &states, GROUP);
    fold(&mut w, class, [groups, place, end], &bases, &states, 1);
    if class.threads > 1 {
        across_warp(&mut w, class, &states[0], 16);
    }
    if class.threads > 32 {
        across_block(&mut w, class, place, &states[0]);
    }
    line!(w.e, "setp.ne.u64 {is}, {place}, 0;\n@{is} bra {next};");
    w.e.end_block();
    // Parts are one after the other, and results where their array has them.
    if let Some(parts_of) = parts_of {
        for (value, target) in states[0].iter().zip(&parts_of) {
            let address = w.long("mad.lo.s64", &[&output, &value.of.size(), target]);
            w.store(address, &[*value]);
        }
    } else {
        let results: Vec<_> = states.iter().map(|state| finished(&mut w, class, state, total)).collect();
        for target in 0..class.results() {
            let values: Vec<_> = results.iter().map(|results| results[target]).collect();
            w.store_row(target, &bases, &values);
        }
    }
    line!(w.e, "{next}:\nadd.s64 {output}, {output}, {step};\nbra {again};\n{done}:");
    // With a number, the driver's compiler puts all loads first. Without, it saves registers. Three blocks have 80 for each thread.
    w.finish(if at_once > 1 { ".minnctapersm 3\n" } else { ".minnctapersm 1\n" })
}

/// The registers of a thread's state.
fn new_state(w: &mut KernelWriter<'_>, class: &FoldClass) -> Vec<EmittedValue> {
    class.state().into_iter().map(|of| EmittedValue::new(of, w.e.register(of.register()))).collect()
}

fn set_literal(w: &mut KernelWriter<'_>, value: EmittedValue, literal: &str) {
    let EmittedValue { of, register, .. } = value;
    match of {
        ScalarType::Bool => line!(w.e, "setp.ne.u32 {register}, {literal}, 0;"),
        _ => line!(w.e, "mov.{} {register}, {literal};", move_type(of)),
    }
}

fn move_type(of: ScalarType) -> &'static str {
    if of.is_float() { of.name() } else { of.bits() }
}

/// Merges the elements of a range into the states of the thread's outputs, `lanes` at a time. Several groups are loaded before they are merged,
/// one after the other, so that the loads do not wait for each other. Several outputs have enough loads.
fn fold(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    [start, place, end]: [Register; 3],
    bases: &[Vec<Register>],
    states: &[Vec<EmittedValue>],
    lanes: usize,
) {
    let index = w.long("mad.lo.s64", &[&place, &lanes, &start]);
    let is_group = lanes > 1 && w.plan.lanes > 1;
    let is_short = w.plan.tokens.len() <= AHEAD_TOKENS_MAX && states.len() == 1;
    let step = class.threads * lanes;
    for ahead in [AHEAD, 1].into_iter().skip(usize::from(!(is_group && is_short))) {
        let [again, done] = ["FOLD", "FOLDED"].map(|name| w.e.label(name));
        let is_done = w.e.register('p');
        line!(w.e, "{again}:");
        let nth = |w: &mut KernelWriter<'_>, n: usize| match n {
            0 => index,
            _ => w.long("add.s64", &[&index, &(n * step)]),
        };
        let last = nth(w, ahead - 1);
        line!(w.e, "setp.ge.s64 {is_done}, {last}, {end};\n@{is_done} bra {done};");
        w.e.end_block();
        let mut groups = Vec::new();
        for n in 0..ahead {
            let at = nth(w, n);
            groups.push((at, if is_group { elements(w, at, bases, lanes) } else { Vec::new() }));
        }
        let mut now = states.to_vec();
        for (first, group) in &groups {
            for lane in 0..lanes {
                let at = if lane == 0 { *first } else { w.long("add.s64", &[first, &lane]) };
                let single = if is_group { Vec::new() } else { elements(w, at, bases, 1) };
                let (outputs, lane) = if is_group { (group, lane) } else { (&single, 0) };
                for (now, elements) in now.iter_mut().zip(outputs) {
                    let values = w.results(elements, lane);
                    let item = item(w, class, &values, at);
                    *now = merged(w, class, now, &item);
                }
            }
        }
        states.iter().zip(&now).for_each(|(state, now)| assign(w, state, now));
        line!(w.e, "add.s64 {index}, {index}, {};\nbra {again};\n{done}:", step * ahead);
        w.e.end_block();
    }
}

/// The elements of neighbours along the reduced axes, by output. Those that outputs have in common are loaded once.
fn elements(
    w: &mut KernelWriter<'_>,
    at: Register,
    bases: &[Vec<Register>],
    lanes: usize,
) -> Vec<LoadedElements> {
    let plan = w.plan;
    let is_grouped = |column| lanes == 1 || plan.has_groups(column, lanes);
    let mut outputs: Vec<LoadedElements> = Vec::new();
    for bases in bases {
        let addresses = w.addresses(bases, at, 0..plan.reduced_count, 1);
        let is_new = |column: &usize| outputs.is_empty() || !plan.is_common(*column);
        let mut own = w.elements_of(&addresses, lanes, is_grouped, is_new);
        if let Some(first) = outputs.first() {
            let common = own.iter_mut().zip(first).enumerate().filter(|(column, _)| plan.is_common(*column));
            common.for_each(|(_, (own, first))| own.clone_from(first));
        }
        outputs.push(own);
    }
    outputs
}

/// By column and lane. A column that is not loaded has none.
type LoadedElements = Vec<Vec<EmittedValue>>;

/// The groups of elements that are loaded before they are merged.
const AHEAD: usize = 4;
/// Longer expressions have enough to do while they wait.
const AHEAD_TOKENS_MAX: usize = 24;

/// The state of one element.
fn item(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    values: &[EmittedValue],
    at: Register,
) -> Vec<EmittedValue> {
    if class.has_states {
        return values.to_vec();
    }
    let Some(value) = values.first().map(|value| convert(&mut w.e, *value, class.of)) else {
        return Vec::new();
    };
    match class.fold {
        fold if fold.has_place() => vec![value, EmittedValue::new(ScalarType::I64, at)],
        Fold::Norm => vec![product(&mut w.e, &[value, value])],
        fold if fold.has_powers() => {
            let one = w.e.value(class.of, &format!("mov.{}", class.of.name()), &[&class.of.literal(1.0)]);
            vec![value, EmittedValue::new(class.of, one)]
        }
        _ if class.of.is_complex() => value.parts().to_vec(),
        _ => vec![value],
    }
}

/// A state with another state, or with an element.
fn merged(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    a: &[EmittedValue],
    b: &[EmittedValue],
) -> Vec<EmittedValue> {
    let (Some(x), Some(y)) = (a.first().copied(), b.first().copied()) else { return Vec::new() };
    let (e, of, name) = (&mut w.e, class.of, class.of.name());
    let rounding = if of.is_float() { ".rn" } else { "" };
    let instruction = match class.fold {
        Fold::Product if of.is_complex() => {
            let complex = |state: &[EmittedValue]| EmittedValue::complex(state[0], state[state.len() - 1]);
            return product(e, &[complex(a), complex(b)]).parts().to_vec();
        }
        Fold::Sum | Fold::Count | Fold::Mean | Fold::Norm => format!("add{rounding}.{name}"),
        Fold::Product if of.is_float() => format!("mul.rn.{name}"),
        Fold::Product => format!("mul.lo.{name}"),
        Fold::Min => format!("min.{name}"),
        Fold::Max => format!("max.{name}"),
        Fold::Any => "or.pred".to_owned(),
        Fold::All => "and.pred".to_owned(),
        Fold::Variance | Fold::Deviation => return spread(e, a, b),
        Fold::Powers | Fold::LogSumExp => return powers(e, a, b),
        Fold::ArgMin | Fold::ArgMax => {
            let (Some(place_x), Some(place_y)) = (a.get(1).copied(), b.get(1).copied()) else {
                return Vec::new();
            };
            let compare = if class.fold.is_upper() { "gt" } else { "lt" };
            let flag = ScalarType::Bool;
            let is_better = e.value(flag, &format!("setp.{compare}.{name}"), &[&y.register, &x.register]);
            let is_equal = e.value(flag, &format!("setp.eq.{name}"), &[&y.register, &x.register]);
            let is_earlier = e.value(flag, "setp.lt.s64", &[&place_y.register, &place_x.register]);
            let is_first = e.value(flag, "and.pred", &[&is_equal, &is_earlier]);
            let register = e.value(flag, "or.pred", &[&is_better, &is_first]);
            let mask = EmittedValue::new(flag, register);
            return vec![choice(e, mask, y, x), choice(e, mask, place_y, place_x)];
        }
    };
    let merge = |(x, y): (&EmittedValue, &EmittedValue)| {
        let wide = e.value(x.of, &instruction, &[&x.register, &y.register]);
        EmittedValue::new(x.of, e.finished(x.of, wide))
    };
    a.iter().zip(b).map(merge).collect()
}

/// Means, squared distances and counts together, or those of `a` with one more number: the updating formulas of Chan, Golub and LeVeque
/// (Algorithms for computing the sample variance, 1983), which for one number are Welford's. They lose no digits to a large mean.
fn spread(e: &mut Emitter, a: &[EmittedValue], b: &[EmittedValue]) -> Vec<EmittedValue> {
    let ([mean, squares, count], Some(other)) = (a, b.first()) else { return Vec::new() };
    let (of, name, one) = (mean.of, mean.of.name(), mean.of.literal(1.0));
    let value = |e: &mut Emitter, instruction: &str, operands: &[InstructionOperand<'_>]| {
        let register = e.value(of, &format!("{instruction}.{name}"), operands);
        EmittedValue::new(of, register)
    };
    let apart = value(e, "sub.rn", &[&other.register, &mean.register]);
    let (all, share, added) = match b {
        [_, added, others] => {
            let all = value(e, "add.rn", &[&count.register, &others.register]);
            // Two states of no elements.
            let by = value(e, "max", &[&all.register, &one]);
            (all, value(e, "div.rn", &[&others.register, &by.register]), Some(added))
        }
        _ => {
            let all = value(e, "add.rn", &[&count.register, &one]);
            (all, value(e, "rcp.rn", &[&all.register]), None)
        }
    };
    let step = value(e, "mul.rn", &[&apart.register, &share.register]);
    let mean = value(e, "add.rn", &[&mean.register, &step.register]);
    let weight = value(e, "mul.rn", &[&step.register, &count.register]);
    let mut squares = value(e, "fma.rn", &[&apart.register, &weight.register, &squares.register]);
    if let Some(added) = added {
        squares = value(e, "add.rn", &[&squares.register, &added.register]);
    }
    vec![mean, squares, all]
}

/// The larger one of two numbers, and the sum of powers less that number: the smaller side is scaled down. NaN stays in the sum.
fn powers(e: &mut Emitter, a: &[EmittedValue], b: &[EmittedValue]) -> Vec<EmittedValue> {
    let ([x, x_sum], [y, y_sum]) = (a, b) else { return Vec::new() };
    let (of, name) = (x.of, x.of.name());
    let compared = |e: &mut Emitter, how: &str, x: &EmittedValue, y: &EmittedValue| {
        let operands: [InstructionOperand<'_>; 2] = [&x.register, &y.register];
        EmittedValue::new(
            ScalarType::Bool,
            e.value(ScalarType::Bool, &format!("setp.{how}.{name}"), &operands),
        )
    };
    let is_first = compared(e, "ge", x, y);
    let (high, low) = (choice(e, is_first, *x, *y), choice(e, is_first, *y, *x));
    let (kept, scaled) = (choice(e, is_first, *x_sum, *y_sum), choice(e, is_first, *y_sum, *x_sum));
    // Two infinities are not apart.
    let is_same = compared(e, "eq", &low, &high);
    let apart = e.value(of, &format!("sub.rn.{name}"), &[&low.register, &high.register]);
    let apart = e.value(of, &format!("selp.{name}"), &[&of.literal(0.0), &apart, &is_same.register]);
    let factor = e.call("exp", &[EmittedValue::new(of, apart)]);
    let operands: [InstructionOperand<'_>; 3] = [&scaled.register, &factor.register, &kept.register];
    let sum = e.value(of, &format!("fma.rn.{name}"), &operands);
    vec![high, EmittedValue::new(of, sum)]
}

/// Sets the registers of a state.
fn assign(w: &mut KernelWriter<'_>, to: &[EmittedValue], from: &[EmittedValue]) {
    for (EmittedValue { of, register: to, .. }, EmittedValue { register: from, .. }) in to.iter().zip(from) {
        match of {
            ScalarType::Bool => line!(w.e, "or.pred {to}, {from}, {from};"),
            of => line!(w.e, "mov.{} {to}, {from};", move_type(*of)),
        }
    }
}

/// Merges the states of a warp, by halves.
fn across_warp(w: &mut KernelWriter<'_>, class: &FoldClass, state: &[EmittedValue], first: usize) {
    let mut distance = first;
    while distance > 0 {
        w.e.end_block();
        let other: Vec<_> = state.iter().map(|value| shuffled(w, *value, distance)).collect();
        let now = merged(w, class, state, &other);
        assign(w, state, &now);
        distance /= 2;
    }
    w.e.end_block();
}

/// The value of the lane at a distance.
fn shuffled(w: &mut KernelWriter<'_>, value: EmittedValue, distance: usize) -> EmittedValue {
    let EmittedValue { of, register, .. } = value;
    let shuffle = |w: &mut KernelWriter<'_>, word: Register| {
        let to = w.e.register('r');
        line!(w.e, "shfl.sync.bfly.b32 {to}, {word}, {distance}, 31, -1;");
        to
    };
    let result = w.e.register(of.register());
    if of == ScalarType::Bool {
        let word = convert(&mut w.e, value, ScalarType::U32).register;
        let word = shuffle(w, word);
        line!(w.e, "setp.ne.u32 {result}, {word}, 0;");
    } else if of.bits() == "b64" {
        let [low, high] = [w.e.register('r'), w.e.register('r')];
        line!(w.e, "mov.b64 {{{low}, {high}}}, {register};");
        let [low, high] = [shuffle(w, low), shuffle(w, high)];
        line!(w.e, "mov.b64 {result}, {{{low}, {high}}};");
    } else {
        let word = w.e.set('r', "mov.b32", &[&register]);
        let word = shuffle(w, word);
        line!(w.e, "mov.b32 {result}, {word};");
    }
    EmittedValue::new(of, result)
}

/// The bytes of a value in shared memory.
fn slot_size(of: ScalarType) -> usize {
    of.size().max(4)
}

/// Merges the states of the warps of a block.
fn across_block(w: &mut KernelWriter<'_>, class: &FoldClass, place: Register, state: &[EmittedValue]) {
    let warps = THREADS / 32;
    let is = w.e.register('p');
    let thread = w.e.set('r', "cvt.u32.u64", &[&place]);
    let warp = w.e.set('r', "shr.u32", &[&thread, &5]);
    let lane = w.e.set('r', "and.b32", &[&thread, &31]);
    let slot = |w: &mut KernelWriter<'_>, index: usize, of: ScalarType, at: Register| {
        let base = w.e.register('r');
        line!(w.e, "mov.u32 {base}, slots{index};");
        w.e.set('r', "mad.lo.u32", &[&at, &slot_size(of), &base])
    };
    let skip = w.e.label("SLOT");
    // The slots may still be read for the output before.
    line!(w.e, "bar.sync 0;\nsetp.ne.u32 {is}, {lane}, 0;\n@{is} bra {skip};");
    for (index, value) in state.iter().enumerate() {
        let address = slot(w, index, value.of, warp);
        match value.of {
            ScalarType::Bool => {
                let word = convert(&mut w.e, *value, ScalarType::U32).register;
                line!(w.e, "st.shared.u32 [{address}], {word};");
            }
            of => line!(w.e, "st.shared.{} [{address}], {};", of.name(), value.register),
        }
    }
    line!(w.e, "{skip}:\nbar.sync 0;");
    w.e.end_block();
    let from = w.e.set('r', "and.b32", &[&lane, &(warps - 1)]);
    for (index, EmittedValue { of, register, .. }) in state.iter().enumerate() {
        let address = slot(w, index, *of, from);
        match of {
            ScalarType::Bool => {
                let word = w.e.register('r');
                line!(w.e, "ld.shared.u32 {word}, [{address}];\nsetp.ne.u32 {register}, {word}, 0;");
            }
            of => line!(w.e, "ld.shared.{} {register}, [{address}];", of.name()),
        }
    }
    across_warp(w, class, state, warps / 2);
}

/// The results of all elements.
fn finished(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    state: &[EmittedValue],
    total: Register,
) -> Vec<EmittedValue> {
    let e = &mut w.e;
    let last = state[state.len() - 1];
    if class.fold.has_place() {
        // All elements are NaN: the first.
        let is_none = e.value(ScalarType::Bool, "setp.eq.s64", &[&last.register, &i64::MAX]);
        let place = e.value(ScalarType::I64, "selp.b64", &[&0, &last.register, &is_none]);
        return vec![EmittedValue::new(last.of, place)];
    }
    if class.fold == Fold::Powers {
        return state.to_vec();
    }
    let root = |e: &mut Emitter, x: EmittedValue| {
        EmittedValue::new(x.of, e.value(x.of, &format!("sqrt.rn.{}", x.of.name()), &[&x.register]))
    };
    let result = match class.fold {
        Fold::Mean | Fold::Variance | Fold::Deviation => {
            let whole = e.value(ScalarType::F64, "mov.b64", &[&total]);
            let by = convert(e, EmittedValue::new(ScalarType::F64, whole), class.of).register;
            let name = format!("div.rn.{}", class.of.name());
            let sum = state[usize::from(class.fold.is_variance())];
            let mean = EmittedValue::new(class.of, e.value(class.of, &name, &[&sum.register, &by]));
            if class.fold == Fold::Deviation { root(e, mean) } else { mean }
        }
        Fold::Norm => root(e, last),
        Fold::LogSumExp => {
            let logarithm = e.call("ln", &[last]);
            let add = format!("add.rn.{}", class.of.name());
            EmittedValue::new(class.of, e.value(class.of, &add, &[&state[0].register, &logarithm.register]))
        }
        _ if class.of.is_complex() => EmittedValue::complex(state[0], last),
        _ => last,
    };
    vec![convert(e, result, class.out)]
}
