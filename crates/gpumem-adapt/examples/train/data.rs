//! The training table: a CSV file whose last column is the target, or random numbers of a given size.
//!
//! This is host code without GPUs, and runs before the training.

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use ndarray::parallel::prelude::*;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, Axis, s};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

/// The training table: one row per observation, one target per row.
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) inputs: Array2<f32>,
    pub(crate) targets: Array1<f32>,
}

impl Table {
    /// The data set beside this file; its first lines name its source.
    pub(crate) fn diabetes() -> Result<Self> {
        let text = include_str!("diabetes.csv");
        read("diabetes".to_owned(), text.as_bytes()).context("the built-in data set")
    }

    /// Reads a file of numbers with a line of names, and standardises every column.
    pub(crate) fn from_csv(path: &Path) -> Result<Self> {
        let named = || format!("cannot use {}", path.display());
        let file = std::fs::File::open(path).with_context(named)?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        read(name, file).with_context(named)
    }

    /// Random numbers, uniform over [0, 1), as inputs and targets: a model can learn nothing but their mean.
    pub(crate) fn synthetic(size: Size, seed: u64, progress: &ProgressBar) -> Result<Self> {
        let inputs = zeros(size.rows * size.columns, size)?;
        let mut inputs = Array2::from_shape_vec((size.rows, size.columns), inputs)?;
        let mut targets = Array1::from_vec(zeros(size.rows, size)?);
        progress.set_length(size.rows as u64);
        inputs.axis_iter_mut(Axis(0)).into_par_iter().enumerate().for_each(|(row, values)| {
            fill_uniform(values, seed, row * size.columns);
            if row % 1024 == 1023 {
                progress.inc(1024);
            }
        });
        fill_uniform(targets.view_mut(), seed, size.rows * size.columns);
        progress.finish_and_clear();
        Ok(Self { name: "uniform random numbers".to_owned(), inputs, targets })
    }

    pub(crate) fn rows(&self) -> usize {
        self.inputs.nrows()
    }

    pub(crate) fn columns(&self) -> usize {
        self.inputs.ncols()
    }

    /// The rows of a rank: every `count`-th, from the row `rank` on, so that each rank has as many rows of each batch.
    pub(crate) fn share(&self, rank: usize, count: usize) -> Share<'_> {
        let first = rank.min(self.rows());
        let rows = s![first..;count];
        let inputs = self.inputs.slice(s![first..;count, ..]);
        Share { inputs, targets: self.targets.slice(rows), rank, count }
    }

    /// The bytes of the inputs and the targets.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.inputs.len() + self.targets.len()) * size_of::<f32>()) as u64
    }
}

/// The rows of the table that a rank trains on.
pub(crate) struct Share<'a> {
    pub(crate) inputs: ArrayView2<'a, f32>,
    pub(crate) targets: ArrayView1<'a, f32>,
    rank: usize,
    count: usize,
}

impl Share<'_> {
    /// The rows of the share that are among some rows of the table; possibly none.
    pub(crate) fn rows(&self, table_rows: Range<usize>) -> Range<usize> {
        let before = |row: usize| (row + self.count - 1 - self.rank) / self.count;
        before(table_rows.start)..before(table_rows.end)
    }

    pub(crate) fn bytes(&self) -> u64 {
        ((self.inputs.len() + self.targets.len()) * size_of::<f32>()) as u64
    }
}

/// The size of a random table: `ROWSxCOLUMNS`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('x').and_then(|(rows, columns)| {
            Some(Self { rows: rows.parse().ok()?, columns: columns.parse().ok()? })
        });
        let size = parsed.ok_or("expected ROWSxCOLUMNS, such as 300000x1000")?;
        if size.rows == 0 || size.columns == 0 {
            return Err("there must be at least one row and one column".to_owned());
        }
        let values = size.columns.checked_add(1).and_then(|columns| size.rows.checked_mul(columns));
        match values.and_then(|values| values.checked_mul(size_of::<f32>())) {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(size),
            _ => Err("that is more than this machine can address".to_owned()),
        }
    }
}

/// The number at `index` of an infinite sequence of numbers in [0, 1) (SplitMix64 with random access).
pub(crate) fn uniform(seed: u64, index: u64) -> f32 {
    let mut bits = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 40) as f32 / (1 << 24) as f32
}

fn fill_uniform(mut values: ArrayViewMut1<'_, f32>, seed: u64, start: usize) {
    for (offset, value) in values.iter_mut().enumerate() {
        *value = uniform(seed, (start + offset) as u64);
    }
}

fn zeros(len: usize, size: Size) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    let room = values.try_reserve_exact(len);
    room.with_context(|| format!("no room on the host for {} × {} numbers", size.rows, size.columns))?;
    values.resize(len, 0.0);
    Ok(values)
}

fn read(name: String, source: impl std::io::Read) -> Result<Table> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(source);
    let names = reader.headers()?.clone();
    ensure!(names.len() >= 2, "each line needs at least one input and, last, the target");
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let row = record.iter().zip(&names).map(|(text, column)| number(text, column, line));
        inputs.extend(row.collect::<Result<Vec<f32>>>()?);
        targets.extend(inputs.pop());
    }
    ensure!(targets.len() >= 2, "there are {} rows of numbers; at least two are needed", targets.len());
    let mut inputs = Array2::from_shape_vec((targets.len(), names.len() - 1), inputs)?;
    let mut targets = Array1::from_vec(targets);
    inputs.axis_iter_mut(Axis(1)).for_each(standardise);
    standardise(targets.view_mut());
    ensure!(targets.iter().any(|target| *target != 0.0), "the target is the same in every row");
    Ok(Table { name, inputs, targets })
}

fn number(text: &str, column: &str, line: u64) -> Result<f32> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => bail!("line {line}: {text:?} in column {column:?} is not a number"),
    }
}

/// Scales a column to mean 0 and variance 1; a constant column becomes zeros.
fn standardise(mut column: ArrayViewMut1<'_, f32>) {
    let values = column.mapv(f64::from);
    let mean = values.mean().unwrap_or(0.0);
    let deviation = values.std(0.0);
    let scale = if deviation > 0.0 { deviation.recip() } else { 0.0 };
    column.zip_mut_with(&values, |target, value| *target = ((value - mean) * scale) as f32);
}
