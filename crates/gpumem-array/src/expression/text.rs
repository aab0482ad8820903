//! The texts of element-wise kernels, and what all kernels of expressions have in common.

use crate::element::ScalarType;
use crate::expression::convert::convert;
use crate::expression::emit::{EmittedValue, Emitter, Register, line};
use crate::expression::operation::row;
use crate::expression::plan::{KernelPlan, PlannedColumn, Steps, TILE, tile_bytes};
use crate::expression::tape::{CAST, ELEMENT, NUMBER};
use core::ops::Range;

/// The threads of a block.
pub(crate) const THREADS: usize = 256;

/// The name of every generated kernel. Each has a module of its own.
pub(crate) const NAME: &str = "gpumem_expression";

/// A kernel while it is written.
pub(crate) struct KernelWriter<'p> {
    pub(crate) e: Emitter,
    pub(crate) plan: &'p KernelPlan,
    /// The addresses of the columns.
    bases: Vec<Register>,
    /// Elements that are the same for every thread.
    constants: Vec<Option<EmittedValue>>,
    axes: Vec<AxisRegisters>,
    /// The numbers by their indices.
    numbers: Vec<Option<EmittedValue>>,
}

/// The words of an axis.
struct AxisRegisters {
    by: Register,
    factor: Register,
    shift: Register,
    strides: Vec<Register>,
}

impl<'p> KernelWriter<'p> {
    /// Loads the parameters. The axes begin at a word.
    pub(crate) fn new(plan: &'p KernelPlan, first_axis: usize) -> Self {
        let mut w = Self {
            e: Emitter::default(),
            plan,
            bases: Vec::new(),
            constants: Vec::new(),
            axes: Vec::new(),
            numbers: Vec::new(),
        };
        let first_offset = first_axis + plan.lens.len() * (2 + plan.columns.len());
        for (index, column) in plan.columns.iter().enumerate() {
            let mut base = w.address(column.argument);
            if plan.has_offsets() {
                let offset = w.word(first_offset + index);
                base = w.long("add.s64", &[&base, &offset]);
            }
            let is_read = index >= plan.target_count;
            let constant =
                (is_read && column.steps == Steps::Constant).then(|| w.load(column.of, base, 1)[0]);
            w.bases.push(base);
            w.constants.push(constant);
        }
        for axis in 0..plan.lens.len() {
            let at = first_axis + axis * (2 + plan.columns.len());
            let (by, at_reciprocal) = (w.word(at), 8 * (at + 1));
            let factor = w.e.register('r');
            let shift = w.e.register('r');
            line!(w.e, "ld.param.u32 {factor}, [words+{at_reciprocal}];");
            line!(w.e, "ld.param.u32 {shift}, [words+{}];", at_reciprocal + 4);
            let strides = (0..plan.columns.len()).map(|column| w.word(at + 2 + column)).collect();
            w.axes.push(AxisRegisters { by, factor, shift, strides });
        }
        let mut tokens = plan.tokens.iter().copied();
        while let Some(token) = tokens.next() {
            match token {
                ELEMENT | CAST => drop(tokens.next()),
                NUMBER => {
                    if let (Some(index), Some(of)) = (tokens.next(), tokens.next()) {
                        w.number(usize::from(index), ScalarType::of_token(of));
                    }
                }
                _ => {}
            }
        }
        w
    }

    /// The address in a parameter.
    pub(crate) fn address(&mut self, argument: usize) -> Register {
        let register = self.e.register('l');
        line!(self.e, "ld.param.u64 {register}, [p{argument}];");
        line!(self.e, "cvta.to.global.u64 {register}, {register};");
        register
    }

    pub(crate) fn word(&mut self, index: usize) -> Register {
        let register = self.e.register('l');
        line!(self.e, "ld.param.u64 {register}, [words+{}];", 8 * index);
        register
    }

    fn number(&mut self, index: usize, of: ScalarType) {
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, None);
        }
        if self.numbers[index].is_none() {
            let raw = self.e.register(memory_register(of));
            line!(
                self.e,
                "ld.param.{} {raw}, [words+{}];",
                of.memory(),
                8 * (self.plan.first_number + index)
            );
            self.numbers[index] = Some(self.loaded(of, raw));
        }
    }

    /// The index of the thread in the grid, and the number of threads.
    pub(crate) fn thread(&mut self) -> (Register, Register) {
        let [block, size, thread, blocks] = ["ctaid", "ntid", "tid", "nctaid"].map(|name| {
            let register = self.e.register('r');
            line!(self.e, "mov.u32 {register}, %{name}.x;");
            register
        });
        let index = self.long("mul.wide.u32", &[&block, &size]);
        let within = self.long("cvt.u64.u32", &[&thread]);
        line!(self.e, "add.s64 {index}, {index}, {within};");
        (index, self.long("mul.wide.u32", &[&blocks, &size]))
    }

    /// An instruction with a new register of 64 bits for its result.
    pub(crate) fn long(&mut self, instruction: &str, operands: &[&dyn core::fmt::Display]) -> Register {
        self.e.set('l', instruction, operands)
    }

    /// The elements at an address, one for each lane.
    pub(crate) fn load(&mut self, of: ScalarType, address: Register, lanes: usize) -> Vec<EmittedValue> {
        self.load_from("global", of, address, lanes)
    }

    /// The elements at an address of a space.
    fn load_from(
        &mut self,
        space: &str,
        of: ScalarType,
        address: Register,
        lanes: usize,
    ) -> Vec<EmittedValue> {
        if of.is_complex() {
            return self.load_complex(space, of.part(), address, lanes);
        }
        let raw: Vec<Register> = (0..lanes).map(|_| self.e.register(memory_register(of))).collect();
        let list: Vec<_> = raw.iter().map(ToString::to_string).collect();
        match lanes {
            1 => line!(self.e, "ld.{space}.{} {}, [{address}];", of.memory(), list.join("")),
            _ => line!(self.e, "ld.{space}.v{lanes}.{} {{{}}}, [{address}];", of.memory(), list.join(", ")),
        }
        raw.into_iter().map(|raw| self.loaded(of, raw)).collect()
    }

    /// Complex numbers at an address. A single one may be aligned to its parts alone.
    fn load_complex(
        &mut self,
        space: &str,
        part: ScalarType,
        address: Register,
        lanes: usize,
    ) -> Vec<EmittedValue> {
        let parts = match lanes {
            1 => {
                let at = self.long("add.s64", &[&address, &part.size()]);
                [self.load_from(space, part, address, 1), self.load_from(space, part, at, 1)].concat()
            }
            _ => self.load_from(space, part, address, 2 * lanes),
        };
        parts.chunks_exact(2).map(|parts| EmittedValue::complex(parts[0], parts[1])).collect()
    }

    /// A value as it was in memory.
    fn loaded(&mut self, of: ScalarType, raw: Register) -> EmittedValue {
        let register = match of {
            ScalarType::Bool => self.e.set('p', "setp.ne.u32", &[&raw, &0]),
            ScalarType::F16 | ScalarType::Bf16 => self.e.half_value(of, raw),
            _ => raw,
        };
        EmittedValue::new(of, register)
    }

    pub(crate) fn store(&mut self, address: Register, values: &[EmittedValue]) {
        self.store_to("global", address, values);
    }

    fn store_to(&mut self, space: &str, address: Register, values: &[EmittedValue]) {
        let Some(of) = values.first().map(|value| value.of) else { return };
        if of.is_complex() {
            let parts: Vec<_> = values.iter().flat_map(|value| value.parts()).collect();
            if values.len() > 1 {
                return self.store_to(space, address, &parts);
            }
            let at = self.long("add.s64", &[&address, &of.part().size()]);
            let both = [address, at].into_iter().zip(&parts);
            return both.for_each(|(at, part)| self.store_to(space, at, &[*part]));
        }
        let raw = |value: &EmittedValue| match of {
            ScalarType::Bool => convert(&mut self.e, *value, ScalarType::U8).register.to_string(),
            ScalarType::F16 | ScalarType::Bf16 => self.e.half_bits(of, value.register).to_string(),
            _ => value.register.to_string(),
        };
        let raw: Vec<_> = values.iter().map(raw).collect();
        match raw.len() {
            1 => line!(self.e, "st.{space}.{} [{address}], {};", of.memory(), raw.join("")),
            lanes => {
                line!(self.e, "st.{space}.v{lanes}.{} [{address}], {{{}}};", of.memory(), raw.join(", "))
            }
        }
    }

    /// The addresses of an element of each column, by its index along some axes. The index counts groups of `lanes` along the fastest.
    pub(crate) fn addresses(
        &mut self,
        from: &[Register],
        index: Register,
        axes: Range<usize>,
        lanes: usize,
    ) -> Vec<Register> {
        let mut places = Vec::new();
        let mut rest = index;
        for axis in axes.clone() {
            let mut place = rest;
            if axis + 1 != axes.end {
                (rest, place) = self.divided(rest, axis);
            }
            places.push((axis, place));
        }
        let mut addresses = from.to_vec();
        for (column, address) in addresses.iter_mut().enumerate() {
            let PlannedColumn { of, steps, .. } = self.plan.columns[column];
            for (axis, place) in &places {
                if !self.plan.has_step(*axis, column) {
                    continue;
                }
                let stride = self.axes[*axis].strides[column];
                *address = match steps {
                    Steps::Constant => continue,
                    Steps::Same if *axis == 0 => continue,
                    Steps::Unit if *axis == 0 => {
                        let bits = (of.size() * lanes).ilog2();
                        let bytes = self.long("shl.b64", &[place, &bits]);
                        self.long("add.s64", &[address, &bytes])
                    }
                    _ => self.long("mad.lo.s64", &[place, &stride, address]),
                };
            }
        }
        addresses
    }

    /// The address of the next element of a column along an axis.
    pub(crate) fn along(&mut self, address: Register, axis: usize, column: usize) -> Register {
        let stride = self.axes[axis].strides[column];
        self.long("add.s64", &[&address, &stride])
    }

    /// Stores the values of neighbours of a row of a target, at their addresses by value and column, several at once where these are next to
    /// each other and aligned.
    pub(crate) fn store_row(&mut self, target: usize, addresses: &[Vec<Register>], values: &[EmittedValue]) {
        let at_once = [4, 2].into_iter().find(|lanes| {
            values.len().is_multiple_of(*lanes)
                && lanes * self.plan.columns[target].of.size() <= 16
                && self.plan.has_row_groups(target, *lanes)
        });
        let lanes = at_once.unwrap_or(1);
        for (addresses, values) in addresses.chunks(lanes).zip(values.chunks(lanes)) {
            self.store(addresses[0][target], values);
        }
    }

    pub(crate) fn bases(&self) -> Vec<Register> {
        self.bases.clone()
    }

    /// The quotient of an index and the length of an axis, and the rest.
    fn divided(&mut self, index: Register, axis: usize) -> (Register, Register) {
        let AxisRegisters { by, factor, shift, .. } = self.axes[axis];
        if self.plan.is_wide {
            return (self.long("div.u64", &[&index, &by]), self.long("rem.u64", &[&index, &by]));
        }
        let [n, by] = [index, by].map(|long| self.e.set('r', "cvt.u32.u64", &[&long]));
        let high = self.e.set('r', "mul.hi.u32", &[&n, &factor]);
        let sum = self.e.set('r', "add.u32", &[&high, &n]);
        let quotient = self.e.set('r', "shr.u32", &[&sum, &shift]);
        let product = self.e.set('r', "mul.lo.u32", &[&quotient, &by]);
        let rest = self.e.set('r', "sub.u32", &[&n, &product]);
        let [quotient, rest] = [quotient, rest].map(|word| self.long("cvt.u64.u32", &[&word]));
        (quotient, rest)
    }

    /// The elements of all columns that the expression reads, by column and lane. `is_grouped` loads the lanes at once where they are apart.
    pub(crate) fn elements(
        &mut self,
        addresses: &[Register],
        lanes: usize,
        is_grouped: impl Fn(usize) -> bool,
    ) -> Vec<Vec<EmittedValue>> {
        self.elements_of(addresses, lanes, is_grouped, |_| true)
    }

    /// The elements of some columns.
    pub(crate) fn elements_of(
        &mut self,
        addresses: &[Register],
        lanes: usize,
        is_grouped: impl Fn(usize) -> bool,
        is_wanted: impl Fn(&usize) -> bool,
    ) -> Vec<Vec<EmittedValue>> {
        let mut is_read = vec![false; addresses.len()];
        let mut tokens = self.plan.tokens.iter();
        while let Some(token) = tokens.next() {
            match *token {
                ELEMENT => is_read[usize::from(tokens.next().copied().unwrap_or_default())] = true,
                CAST => drop(tokens.next()),
                NUMBER => drop(tokens.nth(1)),
                _ => {}
            }
        }
        let mut columns = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let PlannedColumn { of, steps, .. } = self.plan.columns[index];
            columns.push(match (self.constants[index], steps) {
                _ if !is_read[index] || !is_wanted(&index) => Vec::new(),
                (Some(constant), _) => vec![constant; lanes],
                (None, Steps::Same | Steps::Constant) => vec![self.load(of, *address, 1)[0]; lanes],
                (None, Steps::Unit) if is_grouped(index) => {
                    let width = (16 / of.size()).min(lanes);
                    let load = |group: usize| {
                        let at = (group * width * of.size()).to_string();
                        let address =
                            if group == 0 { *address } else { self.long("add.s64", &[address, &at]) };
                        self.load(of, address, width)
                    };
                    (0..lanes / width).flat_map(load).collect()
                }
                (None, Steps::Unit) => {
                    let at = |lane: usize| (lane * of.size()).to_string();
                    let addresses: Vec<_> =
                        (0..lanes).map(|lane| self.long("add.s64", &[address, &at(lane)])).collect();
                    addresses.into_iter().map(|address| self.load(of, address, 1)[0]).collect()
                }
                (None, Steps::Turned) => self.load_from("shared", of, *address, 1),
                (None, Steps::Any) => {
                    let stride = self.axes[0].strides[index];
                    let mut at = *address;
                    let mut values = Vec::new();
                    for lane in 0..lanes {
                        values.push(self.load(of, at, 1)[0]);
                        if lane + 1 < lanes {
                            at = self.long("add.s64", &[&at, &stride]);
                        }
                    }
                    values
                }
            });
        }
        columns
    }

    /// The results of the expressions for one lane.
    pub(crate) fn results(&mut self, columns: &[Vec<EmittedValue>], lane: usize) -> Vec<EmittedValue> {
        let mut values: Vec<EmittedValue> = Vec::new();
        let mut tokens = self.plan.tokens.iter().copied();
        while let Some(token) = tokens.next() {
            let value = match token {
                ELEMENT => tokens.next().and_then(|column| columns[usize::from(column)].get(lane)).copied(),
                NUMBER => {
                    let index = tokens.next().map(usize::from).unwrap_or_default();
                    tokens.next();
                    self.numbers.get(index).copied().flatten()
                }
                CAST => {
                    let of = ScalarType::of_token(tokens.next().unwrap_or_default());
                    values.pop().map(|value| convert(&mut self.e, value, of))
                }
                token => row(token).map(|row| {
                    let operands = values.split_off(values.len().saturating_sub(row.operand_count));
                    (row.emit)(&mut self.e, &operands)
                }),
            };
            values.extend(value);
        }
        values
    }

    /// The whole text, with directives of the kernel.
    pub(crate) fn finish(self, directives: &str) -> String {
        let mut parameters: Vec<_> =
            (0..self.plan.argument_count).map(|index| format!(".param .u64 p{index}")).collect();
        parameters.push(format!(".param .align 8 .b8 words[{}]", 8 * self.plan.words.len()));
        self.e.module(NAME, &parameters, THREADS, directives)
    }
}

/// The class of the register that a value is loaded into.
fn memory_register(of: ScalarType) -> char {
    match of {
        ScalarType::Bool | ScalarType::F16 | ScalarType::Bf16 => 'r',
        other => other.register(),
    }
}

/// The text of an element-wise kernel.
pub(crate) fn each(plan: &KernelPlan) -> String {
    if let Some(axis) = plan.tile_axis {
        return tiled(plan, axis);
    }
    let mut w = KernelWriter::new(plan, 1);
    let (index, threads) = w.thread();
    let (len, lanes) = (w.word(0), plan.lanes);
    let groups = w.long("shr.u64", &[&len, &lanes.ilog2()]);
    let thread = w.long("mov.u64", &[&index]);
    let [again, rest, done] = ["LOOP", "REST", "DONE"].map(|name| w.e.label(name));
    let is_done = w.e.register('p');
    line!(w.e, "{again}:\nsetp.ge.u64 {is_done}, {index}, {groups};\n@{is_done} bra {rest};");
    body(&mut w, index, lanes);
    line!(w.e, "add.s64 {index}, {index}, {threads};\nbra {again};\n{rest}:");
    if lanes > 1 && (plan.is_flat || plan.lens.len() == 1) {
        let first = w.long("shl.b64", &[&groups, &lanes.ilog2()]);
        let index = w.long("add.s64", &[&first, &thread]);
        line!(w.e, "setp.ge.u64 {is_done}, {index}, {len};\n@{is_done} bra {done};");
        body(&mut w, index, 1);
    }
    line!(w.e, "{done}:");
    w.finish("")
}

fn body(w: &mut KernelWriter<'_>, index: Register, lanes: usize) {
    w.e.end_block();
    let (addresses, columns) = if w.plan.is_flat && lanes > 1 {
        flat_elements(w, index, lanes)
    } else {
        let addresses = w.addresses(&w.bases(), index, 0..w.plan.lens.len(), lanes);
        let columns = w.elements(&addresses, lanes, |_| true);
        (addresses, columns)
    };
    let results: Vec<_> = (0..lanes).map(|lane| w.results(&columns, lane)).collect();
    // All elements have been read before any is written.
    for (target, address) in addresses.iter().take(w.plan.target_count).enumerate() {
        let values: Vec<_> = results.iter().filter_map(|results| results.get(target)).copied().collect();
        w.store(*address, &values);
    }
}

/// The addresses and the elements of a group of neighbours along all axes together.
fn flat_elements(
    w: &mut KernelWriter<'_>,
    index: Register,
    lanes: usize,
) -> (Vec<Register>, Vec<Vec<EmittedValue>>) {
    let plan = w.plan;
    let first = w.long("shl.b64", &[&index, &lanes.ilog2()]);
    let places: Vec<_> = (0..lanes).map(|lane| w.long("add.s64", &[&first, &lane])).collect();
    let each: Vec<_> =
        places.iter().map(|place| w.addresses(&w.bases(), *place, 0..plan.lens.len(), 1)).collect();
    let is_grouped = |column: &usize| plan.has_flat_groups(*column, lanes);
    let mut addresses = w.bases();
    for column in (0..plan.columns.len()).filter(is_grouped) {
        let bytes = w.long("mul.lo.u64", &[&first, &plan.columns[column].of.size()]);
        addresses[column] = w.long("add.s64", &[&addresses[column], &bytes]);
    }
    let mut columns = w.elements_of(&addresses, lanes, |_| true, is_grouped);
    for addresses in &each {
        let elements = w.elements_of(addresses, 1, |_| true, |column| !is_grouped(column));
        columns.iter_mut().zip(elements).for_each(|(column, elements)| column.extend(elements));
    }
    (addresses, columns)
}

/// The index of the first word of the axes of a kernel by tiles.
const TILED_FIRST_AXIS: usize = 3;
/// The elements that each thread takes of a tile, one for each lane.
const TILE_LANES: usize = TILE * TILE / THREADS;

/// The text of an element-wise kernel that loads some columns by tiles. The threads of a warp lie along these columns when they load them, and
/// along the target when they calculate. What is outside of the arrays is not stored; the last elements are loaded in its place.
fn tiled(plan: &KernelPlan, tile_axis: usize) -> String {
    let mut w = KernelWriter::new(plan, TILED_FIRST_AXIS);
    let [count, row_len, column_len] = [0, 1, 2].map(|word| w.word(word));
    let [row_last, column_last] = [row_len, column_len].map(|len| w.long("sub.s64", &[&len, &1]));
    let [thread, tile, step] = ["tid", "ctaid", "nctaid"].map(|name| {
        let register = w.e.register('r');
        line!(w.e, "mov.u32 {register}, %{name}.x;");
        w.long("cvt.u64.u32", &[&register])
    });
    let lane = w.long("and.b64", &[&thread, &(TILE - 1)]);
    let warp = w.long("shr.u64", &[&thread, &TILE.ilog2()]);
    let warps: Vec<_> = (0..TILE_LANES).map(|k| w.long("add.s64", &[&warp, &(k * THREADS / TILE)])).collect();
    let is_turned = |index: &usize| plan.columns[*index].steps == Steps::Turned;
    let turned: Vec<_> = (0..plan.columns.len()).filter(is_turned).collect();
    let tiles: Vec<_> = turned
        .iter()
        .map(|index| {
            let base = w.e.register('l');
            line!(w.e, ".shared .align 16 .b8 tile{index}[{}];", tile_bytes(plan.columns[*index].of));
            line!(w.e, "mov.u64 {base}, tile{index};");
            base
        })
        .collect();
    let [again, done] = ["TILE", "DONE"].map(|name| w.e.label(name));
    let is = w.e.register('p');
    line!(w.e, "{again}:\nsetp.ge.u64 {is}, {tile}, {count};\n@{is} bra {done};");
    w.e.end_block();
    let mut corner = w.bases();
    let (mut rest, mut row, mut column) = (tile, tile, tile);
    for axis in 0..plan.lens.len() {
        let mut place = rest;
        if axis + 1 < plan.lens.len() {
            (rest, place) = w.divided(rest, axis);
        }
        if axis == 0 {
            row = w.long("shl.b64", &[&place, &TILE.ilog2()]);
        } else if axis == tile_axis {
            column = w.long("shl.b64", &[&place, &TILE.ilog2()]);
        } else {
            for (index, address) in corner.iter_mut().enumerate() {
                let stride = w.axes[axis].strides[index];
                *address = w.long("mad.lo.s64", &[&place, &stride, address]);
            }
        }
    }
    // The place in the arrays that is in a tile at these places.
    let place = |w: &mut KernelWriter<'_>, in_row: Register, in_column: Register| {
        [(row, in_row, row_last), (column, in_column, column_last)].map(|(first, inside, last)| {
            let place = w.long("add.s64", &[&first, &inside]);
            w.long("min.u64", &[&place, &last])
        })
    };
    let address = |w: &mut KernelWriter<'_>, index: usize, [in_row, in_column]: [Register; 2]| {
        let [row_stride, column_stride] = [0, tile_axis].map(|axis| w.axes[axis].strides[index]);
        let along = w.long("mad.lo.s64", &[&in_row, &row_stride, &corner[index]]);
        w.long("mad.lo.s64", &[&in_column, &column_stride, &along])
    };
    let in_tile =
        |w: &mut KernelWriter<'_>, base: Register, of: ScalarType, across: Register, along: Register| {
            let row = w.long("mad.lo.s64", &[&across, &(TILE + 1), &along]);
            w.long("mad.lo.s64", &[&row, &of.size(), &base])
        };
    let mut loaded = Vec::new();
    for (index, base) in turned.iter().zip(&tiles) {
        let of = plan.columns[*index].of;
        for warp in &warps {
            let place = place(&mut w, *warp, lane);
            let from = address(&mut w, *index, place);
            let value = w.load(of, from, 1)[0];
            loaded.push((in_tile(&mut w, *base, of, *warp, lane), value));
        }
    }
    for (to, value) in loaded {
        w.store_to("shared", to, &[value]);
    }
    line!(w.e, "bar.sync 0;");
    w.e.end_block();
    let mut lanes = Vec::new();
    for warp in &warps {
        let place = place(&mut w, lane, *warp);
        let mut addresses: Vec<_> =
            (0..plan.columns.len()).map(|index| address(&mut w, index, place)).collect();
        let targets = addresses[..plan.target_count].to_vec();
        for (index, base) in turned.iter().zip(&tiles) {
            addresses[*index] = in_tile(&mut w, *base, plan.columns[*index].of, lane, *warp);
        }
        lanes.push((targets, w.elements(&addresses, 1, |_| true)));
    }
    // All elements have been read before any is written.
    let results: Vec<_> = lanes.iter().map(|(_, elements)| w.results(elements, 0)).collect();
    for (((targets, _), results), warp) in lanes.iter().zip(results).zip(&warps) {
        let [in_row, in_column] =
            [(row, lane, row_len), (column, *warp, column_len)].map(|(first, inside, len)| {
                let place = w.long("add.s64", &[&first, &inside]);
                w.e.set('p', "setp.lt.u64", &[&place, &len])
            });
        let (is_inside, skip) = (w.e.set('p', "and.pred", &[&in_row, &in_column]), w.e.label("OUTSIDE"));
        line!(w.e, "@!{is_inside} bra {skip};");
        w.e.end_block();
        for (address, value) in targets.iter().zip(results) {
            w.store(*address, &[value]);
        }
        line!(w.e, "{skip}:");
        w.e.end_block();
    }
    // The tiles may still be read.
    line!(w.e, "bar.sync 0;\nadd.s64 {tile}, {tile}, {step};\nbra {again};\n{done}:");
    w.finish("")
}
