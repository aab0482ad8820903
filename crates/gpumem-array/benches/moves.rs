//! Bytes that a pool moves while it spills, beside Belady's choice, which knows all uses and evicts what is used last. Nine kinds of programs,
//! each at four sizes. Counted, so it runs on the simulator.
//!
//! `cargo bench -p gpumem-array --bench moves`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Ix1, s};
use gpumem_array::pool::{Device, Pool, Spill};
use gpumem_array::{Gpu, GpuArray, update};
use gpumem_sim::SimConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

type Array = GpuArray<f32, Ix1>;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:20} {}", "moved / Belady's", RATIOS.map(|ratio| format!("{ratio:>18} ×")).join(""));
    let mut logarithms = Vec::new();
    for (name, make) in PROGRAMS {
        let mut row = format!("{name:20}");
        for ratio in RATIOS {
            let program = make();
            let moved = program.spilled(ratio)?;
            let (least, other) = (program.belady(ratio), program.least_recently_used(ratio));
            let factor = |moved: &Moved| moved.total() as f64 / least.total().max(1) as f64;
            row += &format!("{:>8.2} ({:>8.2})", factor(&moved), factor(&other));
            logarithms.push([factor(&moved).ln(), factor(&other).ln()]);
        }
        println!("{row}");
    }
    let mean = |which: usize| {
        let sum: f64 = logarithms.iter().map(|of_both| of_both[which]).sum();
        (sum / logarithms.len() as f64).exp()
    };
    println!(
        "geometric mean {:.3} ({:.3}); in brackets: by evicting the least recently used",
        mean(0),
        mean(1)
    );
    Ok(())
}

enum Step {
    Make(usize, u64),
    Drop(usize),
    /// An operation with the arrays that it reads and writes.
    Use(Vec<usize>, Vec<usize>),
}

/// A program: arrays by number.
#[derive(Default)]
struct Program {
    steps: Vec<Step>,
    live_bytes: u64,
    most_bytes: u64,
    sizes: BTreeMap<usize, u64>,
}

#[derive(Default)]
struct Moved {
    up_bytes: u64,
    down_bytes: u64,
}

impl Moved {
    fn total(&self) -> u64 {
        self.up_bytes + self.down_bytes
    }
}

impl Program {
    fn make(&mut self, array: usize, size_bytes: u64) {
        self.steps.push(Step::Make(array, size_bytes));
        self.sizes.insert(array, size_bytes);
        self.live_bytes += size_bytes;
        self.most_bytes = self.most_bytes.max(self.live_bytes);
    }

    fn drop(&mut self, array: usize) {
        self.steps.push(Step::Drop(array));
        self.live_bytes -= self.sizes[&array];
    }

    fn apply(&mut self, reads: &[usize], writes: &[usize]) {
        self.steps.push(Step::Use(reads.to_vec(), writes.to_vec()));
    }

    /// The memory at a ratio.
    fn limit_bytes(&self, ratio: f64) -> u64 {
        (self.most_bytes as f64 / ratio) as u64
    }

    /// Runs it with arrays in a pool that spills.
    fn spilled(&self, ratio: f64) -> Result<Moved, Box<dyn Error>> {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
        // A page for the results of steps without a target.
        let limit_bytes = self.limit_bytes(ratio) + (2 << 20);
        let builder =
            Pool::builder(&device).hard_limit(limit_bytes).spill(Spill::to_host(4 * self.most_bytes));
        let gpu = Gpu::new(&builder.build()?)?;
        let mut arrays: BTreeMap<usize, Array> = BTreeMap::new();
        let mut small = Array::zeros(&gpu, USED)?;
        for step in &self.steps {
            match step {
                Step::Make(number, size_bytes) => {
                    let len = usize::try_from(*size_bytes)? / size_of::<f32>();
                    arrays.insert(*number, Array::from_elem(&gpu, len, 1.0)?);
                }
                Step::Drop(number) => drop(arrays.remove(number)),
                Step::Use(reads, writes) => {
                    let mut written: Vec<Array> =
                        writes.iter().filter_map(|number| arrays.remove(number)).collect();
                    let read = |index: usize| arrays[&reads[index]].slice(s![..USED]);
                    match (reads.len(), &mut written[..]) {
                        (_, [w, m, v]) => update((w, m, v), |(w, m, v)| {
                            let g = arrays[&reads[0]].lazy();
                            (w - m * 0.1, m * 0.9 + g, v * 0.9 + g * g)
                        })?,
                        (0, [to]) => to.slice_mut(s![..USED])?.fill(1.0)?,
                        (1, [to]) => to.slice_mut(s![..USED])?.assign_expr(read(0)?.lazy() * 0.5)?,
                        (2, [to]) => {
                            let (one, other) = (read(0)?, read(1)?);
                            to.slice_mut(s![..USED])?.assign_expr((one.lazy() + other.lazy()) * 0.5)?;
                        }
                        (1, []) => small.assign_expr(read(0)?.lazy() * 0.5)?,
                        (2, []) => small.assign_expr(read(0)?.lazy() + read(1)?.lazy())?,
                        _ => return Err("no such step".into()),
                    }
                    arrays.extend(writes.iter().copied().zip(written));
                }
            }
        }
        let counters = gpu.pool().status()?.counters;
        Ok(Moved { up_bytes: counters.spilled_up_bytes, down_bytes: counters.spilled_down_bytes })
    }

    /// Evicts the array whose next use is the most distant, whenever one does not fit.
    fn belady(&self, ratio: f64) -> Moved {
        self.moved_by(ratio, |uses, at| uses.range(at + 1..).next().copied().unwrap_or(usize::MAX))
    }

    /// Evicts the array whose last use is the most distant.
    fn least_recently_used(&self, ratio: f64) -> Moved {
        self.moved_by(ratio, |uses, at| at - uses.range(..at).next_back().copied().unwrap_or(0))
    }

    /// Evicts the array with the largest distance, which is calculated from the numbers of all steps that use it and that of the present one.
    fn moved_by(&self, ratio: f64, distance: impl Fn(&BTreeSet<usize>, usize) -> usize) -> Moved {
        let mut uses: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let numbers = match step {
                Step::Make(number, _) => vec![*number],
                Step::Use(reads, writes) => reads.iter().chain(writes).copied().collect(),
                Step::Drop(_) => Vec::new(),
            };
            for number in numbers {
                uses.entry(number).or_default().insert(at);
            }
        }
        let limit_bytes = self.limit_bytes(ratio);
        let mut resident: BTreeMap<usize, u64> = BTreeMap::new();
        let (mut changed, mut away) = (BTreeSet::<usize>::new(), BTreeSet::new());
        let mut moved = Moved::default();
        for (at, step) in self.steps.iter().enumerate() {
            let (needed, written): (Vec<usize>, &[usize]) = match step {
                Step::Make(number, _) => (vec![*number], core::slice::from_ref(number)),
                Step::Use(reads, writes) => (reads.iter().chain(writes).copied().collect(), writes),
                Step::Drop(number) => {
                    resident.remove(number);
                    continue;
                }
            };
            for number in &needed {
                if resident.contains_key(number) {
                    continue;
                }
                let size_bytes = self.sizes[number];
                while resident.values().sum::<u64>() + size_bytes > limit_bytes {
                    let candidates = resident.keys().filter(|other| !needed.contains(other));
                    let Some(last) = candidates.max_by_key(|other| distance(&uses[*other], at)).copied()
                    else {
                        break;
                    };
                    let freed_bytes = resident.remove(&last).unwrap_or(0);
                    if changed.remove(&last) {
                        moved.down_bytes += freed_bytes;
                    }
                    away.insert(last);
                }
                if away.remove(number) {
                    moved.up_bytes += size_bytes;
                }
                resident.insert(*number, size_bytes);
            }
            changed.extend(written);
        }
        moved
    }
}

/// Weights that are read in turn.
fn weights_in_a_cycle() -> Program {
    let mut program = Program::default();
    (0..48).for_each(|weight| program.make(weight, ARRAY));
    for _ in 0..12 {
        (0..48).for_each(|weight| program.apply(&[weight], &[]));
    }
    program
}

/// Forward, backward, and Adam: activations are new arrays in each step.
fn training() -> Program {
    let (mut program, layers, mut next) = (Program::default(), 10, 1000);
    (0..3 * layers).for_each(|number| program.make(number, ARRAY));
    for _ in 0..10 {
        let mut outputs = Vec::new();
        for layer in 0..layers {
            program.make(next, ARRAY);
            let before = outputs.last().copied().unwrap_or(layer);
            program.apply(&[layer, before], &[next]);
            outputs.push(next);
            next += 1;
        }
        for layer in (0..layers).rev() {
            let gradient = next;
            next += 1;
            program.make(gradient, ARRAY);
            program.apply(&[outputs[layer], layer], &[gradient]);
            program.apply(&[gradient], &[layer, layers + layer, 2 * layers + layer]);
            program.drop(gradient);
            program.drop(outputs[layer]);
        }
    }
    program
}

/// Batches in a new order in each pass, with weights that every batch uses.
fn shuffled_batches() -> Program {
    let (mut program, mut numbers) = (Program::default(), Numbers(3));
    (0..44).for_each(|number| program.make(number, ARRAY));
    for _ in 0..12 {
        let mut order: Vec<_> = (4..44).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, numbers.below(index + 1));
        }
        order.iter().for_each(|batch| program.apply(&[*batch, batch % 4], &[]));
    }
    program
}

/// Passes over chunks, and an update of the centres behind each.
fn k_means() -> Program {
    let mut program = Program::default();
    (0..42).for_each(|number| program.make(number, if number < 2 { ARRAY / 2 } else { ARRAY }));
    for _ in 0..12 {
        (2..42).for_each(|chunk| program.apply(&[chunk, 0], &[1]));
        program.apply(&[1], &[0]);
    }
    program
}

/// Uses drawn by Zipf's law, a fifth of them writes.
fn zipf() -> Program {
    let (mut program, mut numbers) = (Program::default(), Numbers(7));
    (0..48).for_each(|number| program.make(number, ARRAY));
    let weights: Vec<f64> = (1..=48).map(|rank| 1.0 / f64::from(rank)).collect();
    let sum: f64 = weights.iter().sum();
    for _ in 0..600 {
        let mut at = numbers.below(1 << 20) as f64 / f64::from(1 << 20) * sum;
        let number = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        let number = number.unwrap_or(47);
        // Its place among the numbers says nothing about its rank.
        let number = number * 29 % 48;
        if numbers.below(5) == 0 { program.apply(&[], &[number]) } else { program.apply(&[number], &[]) }
    }
    program
}

/// One half in a cycle, then the other.
fn two_phases() -> Program {
    let mut program = Program::default();
    (0..48).for_each(|number| program.make(number, ARRAY));
    for phase in 0..6 {
        let first = 24 * (phase % 2);
        for _ in 0..5 {
            (first..first + 24).for_each(|number| program.apply(&[number], &[]));
        }
    }
    program
}

/// Few large arrays among many small ones, in a cycle.
fn small_and_huge() -> Program {
    let mut program = Program::default();
    let size_bytes = |number: usize| if number.is_multiple_of(8) { 4 * ARRAY } else { ARRAY / 4 };
    (0..64).for_each(|number| program.make(number, size_bytes(number)));
    for _ in 0..12 {
        (0..64).for_each(|number| program.apply(&[number], &[]));
    }
    program
}

/// Operations on columns of a table make new columns, most of which are dropped.
fn data_frame() -> Program {
    let (mut program, mut numbers, mut next) = (Program::default(), Numbers(11), 1000);
    (0..24).for_each(|number| program.make(number, ARRAY));
    let mut kept = Vec::new();
    for _ in 0..60 {
        let (one, other) = (numbers.below(24), numbers.below(24));
        let mut made = Vec::new();
        for _ in 0..3 {
            program.make(next, ARRAY);
            let before = made.last().copied().unwrap_or(one);
            if before == other {
                program.apply(&[before], &[next])
            } else {
                program.apply(&[before, other], &[next])
            }
            made.push(next);
            next += 1;
        }
        kept.extend(made.pop());
        made.into_iter().for_each(|column| program.drop(column));
        if kept.len() > 20 {
            let column = kept.remove(numbers.below(kept.len()));
            program.apply(&[column], &[]);
            program.drop(column);
        }
    }
    program
}

/// A product of matrices of tiles.
fn tiles() -> Program {
    let (mut program, side) = (Program::default(), 5);
    (0..3 * side * side).for_each(|number| program.make(number, ARRAY));
    for _ in 0..3 {
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            for inner in 0..side {
                let (a, b) = (row * side + inner, side * side + inner * side + column);
                program.apply(&[a, b], &[2 * side * side + row * side + column]);
            }
        }
    }
    program
}

/// xorshift
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

type NamedProgram = (&'static str, fn() -> Program);

const PROGRAMS: [NamedProgram; 9] = [
    ("weights in a cycle", weights_in_a_cycle),
    ("training", training),
    ("shuffled batches", shuffled_batches),
    ("k-means", k_means),
    ("Zipf", zipf),
    ("two phases", two_phases),
    ("small and huge", small_and_huge),
    ("data frame", data_frame),
    ("tiles", tiles),
];
const RATIOS: [f64; 4] = [1.25, 1.5, 2.0, 4.0];
const ARRAY: u64 = 2 << 20;
/// The elements of an array that a step calculates with. It uses the array as a whole.
const USED: usize = 32;
