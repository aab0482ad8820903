//! The texts of reductions.
//!
//! One thread, one warp or one block reduces the elements of an output, or of a part of one. A thread takes groups of [`GROUP`] elements,
//! whatever their layout, so that the order does not depend on it. The parts of an output are reduced by a second kernel.

use crate::element::ScalarType;
use crate::expression::convert::convert;
use crate::expression::emit::{EmittedValue, Register, line};
use crate::expression::operation::choice;
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
    Mean,
    Product,
    Min,
    Max,
    Any,
    All,
    /// The place of the smallest element, and of several the first.
    ArgMin,
    ArgMax,
}

impl Fold {
    pub(crate) fn has_place(self) -> bool {
        matches!(self, Self::ArgMin | Self::ArgMax)
    }

    fn is_upper(self) -> bool {
        matches!(self, Self::Max | Self::ArgMax)
    }

    /// The state of no elements, as a literal.
    fn first(self, of: ScalarType) -> String {
        match self {
            Self::Sum | Self::Mean | Self::Any => of.literal(0.0),
            Self::Product | Self::All => of.literal(1.0),
            Self::Min | Self::ArgMin => of.limit(true),
            Self::Max | Self::ArgMax => of.limit(false),
        }
    }
}

/// A reduction, apart from the expression and its layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldClass {
    pub(crate) fold: Fold,
    /// The type of a part's result.
    pub(crate) state: ScalarType,
    /// The type of the whole result.
    pub(crate) out: ScalarType,
    /// 1, 32 or 256 for an output.
    pub(crate) threads: usize,
    /// True if the results are those of parts.
    pub(crate) is_partial: bool,
    /// True if the elements have been places already, which follow them.
    pub(crate) has_places: bool,
}

impl FoldClass {
    /// The arrays that the kernel writes.
    fn results(&self) -> usize {
        if self.fold.has_place() && self.is_partial { 2 } else { 1 }
    }

    pub(crate) fn key(&self) -> [u8; 7] {
        let Self { fold, state, out, threads, is_partial, has_places } = *self;
        let threads = threads.ilog2() as u8;
        [1, fold as u8, state as u8, out as u8, threads, u8::from(is_partial), u8::from(has_places)]
    }
}

/// The type that elements are reduced in.
pub(crate) fn state(of: ScalarType, fold: Fold) -> ScalarType {
    match of {
        ScalarType::F16 | ScalarType::Bf16 if !fold.has_place() => ScalarType::F32,
        other => other,
    }
}

/// The text of a reduction.
pub(crate) fn text(plan: &KernelPlan, class: &FoldClass) -> String {
    let mut w = KernelWriter::new(plan, FIRST_AXIS);
    let targets: Vec<Register> = (0..class.results())
        .map(|target| w.address(plan.argument_count - class.results() + target))
        .collect();
    let (thread, all) = w.thread();
    let shift = class.threads.ilog2();
    let [outputs, inner, parts, chunk, total] = [0, 1, 2, 3, 4].map(|word| w.word(word));
    let output = w.long("shr.u64", &[&thread, &shift]);
    let step = w.long("shr.u64", &[&all, &shift]);
    let place = w.long("and.b64", &[&thread, &(class.threads - 1)]);
    let count = w.long("mul.lo.s64", &[&outputs, &parts]);
    let state = new_state(&mut w, class);
    if class.threads > 32 {
        for (index, value) in state.iter().enumerate() {
            line!(w.e, ".shared .align 8 .b8 slots{index}[{}];", slot_size(value.of) * THREADS / 32);
        }
    }
    let [again, next, done] = ["OUTPUT", "NEXT", "DONE"].map(|name| w.e.label(name));
    let is = w.e.register('p');
    line!(w.e, "{again}:\nsetp.ge.u64 {is}, {output}, {count};\n@{is} bra {done};");
    // Neighbouring threads have neighbouring outputs.
    let part = w.long("div.u64", &[&output, &outputs]);
    let whole = w.long("rem.u64", &[&output, &outputs]);
    let start = w.long("mul.lo.s64", &[&part, &chunk]);
    let end = w.long("add.s64", &[&start, &chunk]);
    line!(w.e, "min.u64 {end}, {end}, {inner};");
    let bases = w.addresses(&w.bases(), whole, plan.reduced_count..plan.lens.len(), 1);
    for (value, first) in state.iter().zip(firsts(class)) {
        set_literal(&mut w, *value, &first);
    }
    // Groups of elements, then those that are left.
    let groups = w.long("sub.s64", &[&end, &start]);
    line!(w.e, "and.b64 {groups}, {groups}, -{GROUP};\nadd.s64 {groups}, {groups}, {start};");
    fold(&mut w, class, [start, place, groups], &bases, &state, GROUP);
    fold(&mut w, class, [groups, place, end], &bases, &state, 1);
    if class.threads > 1 {
        across_warp(&mut w, class, &state, 16);
    }
    if class.threads > 32 {
        across_block(&mut w, class, place, &state);
    }
    line!(w.e, "setp.ne.u64 {is}, {place}, 0;\n@{is} bra {next};");
    w.e.end_block();
    let values = if class.is_partial { state } else { vec![finished(&mut w, class, &state, total)] };
    for (value, target) in values.iter().zip(&targets) {
        let address = w.long("mad.lo.s64", &[&output, &value.of.size(), target]);
        w.store(address, &[*value]);
    }
    line!(w.e, "{next}:\nadd.s64 {output}, {output}, {step};\nbra {again};\n{done}:");
    w.finish()
}

/// The registers of a thread's state.
fn new_state(w: &mut KernelWriter<'_>, class: &FoldClass) -> Vec<EmittedValue> {
    let mut types = vec![class.state];
    types.extend(class.fold.has_place().then_some(ScalarType::I64));
    types.into_iter().map(|of| EmittedValue { of, register: w.e.register(of.register()) }).collect()
}

fn firsts(class: &FoldClass) -> [String; 2] {
    [class.fold.first(class.state), i64::MAX.to_string()]
}

fn set_literal(w: &mut KernelWriter<'_>, value: EmittedValue, literal: &str) {
    let EmittedValue { of, register } = value;
    match of {
        ScalarType::Bool => line!(w.e, "setp.ne.u32 {register}, {literal}, 0;"),
        _ => line!(w.e, "mov.{} {register}, {literal};", move_type(of)),
    }
}

fn move_type(of: ScalarType) -> &'static str {
    if of.is_float() { of.name() } else { of.bits() }
}

/// Merges the elements of a range into the state of the thread, `lanes` at a time.
fn fold(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    [start, place, end]: [Register; 3],
    bases: &[Register],
    state: &[EmittedValue],
    lanes: usize,
) {
    let index = w.long("mad.lo.s64", &[&place, &lanes, &start]);
    let [again, done] = ["FOLD", "FOLDED"].map(|name| w.e.label(name));
    let is_done = w.e.register('p');
    line!(w.e, "{again}:\nsetp.ge.s64 {is_done}, {index}, {end};\n@{is_done} bra {done};");
    w.e.end_block();
    let axes = 0..w.plan.reduced_count;
    let is_group = lanes > 1 && w.plan.lanes > 1;
    let mut group = Vec::new();
    if is_group {
        let addresses = w.addresses(bases, index, axes.clone(), 1);
        let plan = w.plan;
        group = w.elements(&addresses, lanes, |column| plan.has_groups(column, GROUP));
    }
    let mut now = state.to_vec();
    for lane in 0..lanes {
        let at = if lane == 0 { index } else { w.long("add.s64", &[&index, &lane]) };
        let values = if is_group {
            w.results(&group, lane)
        } else {
            let addresses = w.addresses(bases, at, axes.clone(), 1);
            let elements = w.elements(&addresses, 1, |_| true);
            w.results(&elements, 0)
        };
        let item = item(w, class, &values, at);
        now = merged(w, class, &now, &item);
    }
    assign(w, state, &now);
    line!(w.e, "add.s64 {index}, {index}, {};\nbra {again};\n{done}:", class.threads * lanes);
    w.e.end_block();
}

/// The state of one element.
fn item(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    values: &[EmittedValue],
    at: Register,
) -> Vec<EmittedValue> {
    let mut item: Vec<_> =
        values.iter().take(1).map(|value| convert(&mut w.e, *value, class.state)).collect();
    if class.fold.has_place() {
        let place = EmittedValue { of: ScalarType::I64, register: at };
        item.push(values.get(1).copied().filter(|_| class.has_places).unwrap_or(place));
    }
    item
}

fn merged(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    a: &[EmittedValue],
    b: &[EmittedValue],
) -> Vec<EmittedValue> {
    let (Some(x), Some(y)) = (a.first().copied(), b.first().copied()) else { return Vec::new() };
    let (e, of, name) = (&mut w.e, class.state, class.state.name());
    let rounding = if of.is_float() { ".rn" } else { "" };
    let instruction = match class.fold {
        Fold::Sum | Fold::Mean => format!("add{rounding}.{name}"),
        Fold::Product if of.is_float() => format!("mul.rn.{name}"),
        Fold::Product => format!("mul.lo.{name}"),
        Fold::Min => format!("min.{name}"),
        Fold::Max => format!("max.{name}"),
        Fold::Any => "or.pred".to_owned(),
        Fold::All => "and.pred".to_owned(),
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
            let mask = EmittedValue { of: flag, register };
            return vec![choice(e, mask, y, x), choice(e, mask, place_y, place_x)];
        }
    };
    let wide = e.value(of, &instruction, &[&x.register, &y.register]);
    vec![EmittedValue { of, register: e.finished(of, wide) }]
}

/// Sets the registers of a state.
fn assign(w: &mut KernelWriter<'_>, to: &[EmittedValue], from: &[EmittedValue]) {
    for (EmittedValue { of, register: to }, EmittedValue { register: from, .. }) in to.iter().zip(from) {
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
    let EmittedValue { of, register } = value;
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
    EmittedValue { of, register: result }
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
    for (index, EmittedValue { of, register }) in state.iter().enumerate() {
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

/// The result of all elements.
fn finished(
    w: &mut KernelWriter<'_>,
    class: &FoldClass,
    state: &[EmittedValue],
    total: Register,
) -> EmittedValue {
    let value = state[state.len() - 1];
    if class.fold.has_place() {
        // All elements are NaN: the first.
        let is_none = w.e.value(ScalarType::Bool, "setp.eq.s64", &[&value.register, &i64::MAX]);
        let register = w.e.value(ScalarType::I64, "selp.b64", &[&0, &value.register, &is_none]);
        return EmittedValue { register, ..value };
    }
    let mut result = value;
    if class.fold == Fold::Mean {
        let count = EmittedValue { of: ScalarType::I64, register: total };
        let count = convert(&mut w.e, count, class.state).register;
        let name = format!("div.rn.{}", class.state.name());
        result.register = w.e.value(class.state, &name, &[&value.register, &count]);
    }
    convert(&mut w.e, result, class.out)
}
