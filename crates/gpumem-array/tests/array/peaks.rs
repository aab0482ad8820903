//! Peaks: an operation takes memory for its result, and for what its documentation states beside it.

use gpumem_array::ndarray::{Axis, Ix1, Ix2, s};
use gpumem_array::pool::{BackendKind, Device, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, Rng, update};
use gpumem_sim::SimConfig;

struct Counter {
    gpu: Gpu,
}

impl Counter {
    /// Counts the memory of a call. It returns arrays that are its result.
    fn count<R>(
        &self,
        what: &str,
        [result, beside]: [usize; 2],
        call: impl FnOnce() -> Result<R, ArrayError>,
    ) -> R {
        let pool = self.gpu.pool();
        let before = pool.status().unwrap().in_use_bytes;
        pool.reset_peaks().unwrap();
        let value = call().unwrap();
        let status = pool.status().unwrap();
        let (kept, peak) = (status.in_use_bytes - before, status.in_use_peak_bytes - before);
        // Sizes are rounded up for each allocation.
        let small = |bytes: usize| bytes.next_multiple_of(GRANULE) as u64;
        assert!(kept <= small(result), "{what} keeps {kept}, not {result}");
        let allowed = small(result) + if beside == 0 { 0 } else { small(beside) + 4 * GRANULE as u64 };
        assert!(peak <= allowed, "{what} takes {peak} at its peak, not {allowed}");
        value
    }
}

const GRANULE: usize = 512;
const SIDE: usize = 512;
/// The bytes of a matrix.
const ALL: usize = SIDE * SIDE * 4;
/// Those of a row.
const ROW: usize = SIDE * 4;
/// Those of a number.
const ONE: usize = 8;
/// The sums of parts of a reduction: one for 64 elements.
const PARTS: usize = ALL / 64;

fn counter() -> Counter {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).backend(BackendKind::None).build().unwrap();
    Counter { gpu: Gpu::new(&pool).unwrap() }
}

#[test]
fn operations_on_arrays_take_their_result_alone() {
    let c = counter();
    let gpu = &c.gpu;
    let mut x = GpuArray::<f32, Ix2>::ones(gpu, (SIDE, SIDE)).unwrap();
    let y = GpuArray::from_fn(gpu, (SIDE, SIDE), |(i, j)| (i + 2 * j) as f32).unwrap();
    let row = GpuArray::from_elem(gpu, SIDE, 3.0_f32).unwrap();
    let column = GpuArray::from_elem(gpu, (SIDE, 1), 2.0_f32).unwrap();
    let cast = |x: &GpuArray<f32, Ix2>| x.cast::<half::f16>().map(drop);
    c.count("x + y", [ALL, 0], || x.try_add(&y));
    c.count("x % row", [ALL, 0], || x.try_rem(&row));
    c.count("column - row", [ALL, 0], || column.try_sub(&row));
    c.count("x.t() / y", [ALL, 0], || x.t().try_div(&y));
    c.count("x[.., ..;2] * column", [ALL / 2, 0], || x.slice(s![.., ..;2])?.try_mul(&column));
    c.count("-x", [ALL, 0], || x.try_neg());
    c.count("2 - x", [ALL, 0], || x.try_rsub(2.0));
    c.count("x += row", [0, 0], || x.try_add_assign(&row));
    c.count("x[1.., 1..] *= 0.5", [0, 0], || x.slice_mut(s![1.., 1..])?.try_mul_assign(0.5));
    c.count("x[..] -= y.t()", [0, 0], || x.try_sub_assign(&y.t()));
    let owned = x.try_clone().unwrap();
    c.count("owned + y", [0, 0], || Ok(owned + &y));
    c.count("x.cast()", [0, ALL / 2], || cast(&x));
    c.count("x.assign(y.t())", [0, 0], || x.assign(&y.t()));
    c.count("x.fill(1)", [0, 0], || x.fill(1.0));
    c.count("x[.., 3].fill(1)", [0, 0], || x.slice_mut(s![.., 3])?.fill(1.0));
    c.count("x.fill_random", [0, 0], || x.fill_random(&mut Rng::new(1)));
    c.count("x.to_owned()", [ALL, 0], || x.t().to_owned());
}

#[test]
fn expressions_take_their_result_alone() {
    let c = counter();
    let gpu = &c.gpu;
    let [mut x, mut y, mut z] =
        [1.0, 2.0, 3.0].map(|value| GpuArray::from_elem(gpu, (SIDE, SIDE), value as f32).unwrap());
    let row = GpuArray::from_elem(gpu, SIDE, 3.0_f32).unwrap();
    c.count("a chain", [ALL, 0], || ((x.lazy() * 2.0 + &y).exp() - &z).sqrt().eval());
    c.count("views", [ALL, 0], || {
        let sum = x.lazy() + &row;
        (sum.t() * sum.slice(s![..;-1, ..]) - row.lazy().broadcast((SIDE, SIDE)).permuted_axes([1, 0])).eval()
    });
    c.count("a choice", [ALL, 0], || {
        x.lazy().gt(&row).select(&x, y.lazy().cast::<f64>().cast::<f32>()).eval()
    });
    c.count("a table", [ALL, 0], || (row.lazy().insert_axis(Axis(1)) - &row).square().eval());
    c.count("in place", [0, 0], || z.assign_expr(x.lazy().t() + &row));
    c.count("into a part", [0, 0], || {
        z.slice_mut(s![.., ..;-3])?.assign_expr(row.lazy().insert_axis(Axis(1)))
    });
    c.count("an update", [0, 0], || {
        update((&mut x, &mut y, &mut z), |(x, y, z)| {
            let y = y * 0.9 + x * 0.1;
            (x - y / (z.sqrt() + 1e-8), y, z + row.lazy())
        })
    });
}

#[test]
fn reductions_take_their_result_and_sums_of_parts() {
    let c = counter();
    let gpu = &c.gpu;
    let x = GpuArray::from_fn(gpu, (SIDE, SIDE), |(i, j)| (i * 7 + j) as f32 / 64.0).unwrap();
    let row = GpuArray::from_elem(gpu, SIDE, 3.0_f32).unwrap();
    let few = GpuArray::from_elem(gpu, 1000, 3.0_f32).unwrap();
    c.count("the sum of few", [ONE, 0], || few.sum());
    c.count("a sum of rows", [ROW, 0], || x.sum_axis(Axis(1)));
    c.count("a sum", [ONE, PARTS], || (x.lazy() * &row).sum());
    c.count("a sum of columns", [ROW, PARTS], || x.sum_axis(Axis(0)));
    c.count("a sum of the transpose", [ROW, PARTS], || (x.lazy() + &row).t().sum_axis(Axis(1)));
    c.count("two axes", [ROW, PARTS], || x.reshape((32, 16, SIDE))?.sum_axis([Axis(0), Axis(1)]));
    c.count("an extreme", [ONE, PARTS], || x.lazy().exp().max_element());
    c.count("a place", [ONE, 3 * PARTS], || x.argmin());
    c.count("places", [2 * ROW, 3 * PARTS], || x.argmax_axis(Axis(0)));
    c.count("a variance", [ROW, 3 * PARTS], || x.var_axis(Axis(0), 1.0));
    c.count("a norm", [ONE, PARTS], || x.norm());
    c.count("a product", [ONE, PARTS], || x.product());
    c.count("a mean", [ROW, 0], || x.mean_axis(Axis(1)));
    c.count("truths", [ONE, PARTS], || x.lazy().gt(&row).all());
    c.count("a count", [ONE, 2 * PARTS], || x.lazy().gt(&row).count());
    c.count("a logarithm of sums", [ROW, 2 * PARTS], || x.log_sum_exp_axis(Axis(0)));
    c.count("powers, divided by their sums", [ALL, 2 * ROW], || x.softmax_axis(Axis(1)));
    c.count("a dot product", [ONE, PARTS], || x.slice(s![.., 0])?.dot(&row));
}

#[test]
fn scans_and_indices_take_what_they_state() {
    let c = counter();
    let gpu = &c.gpu;
    let mut x = GpuArray::from_fn(gpu, (SIDE, SIDE), |(i, j)| (i * 7 + j) as f32 / 64.0).unwrap();
    let indices = GpuArray::from_fn(gpu, SIDE, |i| (SIDE - 1 - i / 2) as i32).unwrap();
    let mask = GpuArray::from_fn(gpu, SIDE, |i| i % 2 == 0).unwrap();
    let y = GpuArray::<f32, Ix2>::ones(gpu, (SIDE, SIDE)).unwrap();
    let host: Vec<usize> = (0..SIDE).rev().collect();
    c.count("sums up to each", [ALL, ALL / 64], || x.cumsum());
    c.count("sums along rows", [ALL, ALL / 16], || x.cumsum_axis(Axis(1)));
    c.count("sums along columns", [ALL, ALL / 16], || x.cumsum_axis(Axis(0)));
    c.count("sums of the transpose", [ALL, ALL / 16], || x.t().cumsum_axis(Axis(0)));
    c.count("rows", [ALL, 0], || x.select(Axis(0), &indices));
    c.count("columns of the transpose", [ALL, 0], || x.t().select(Axis(1), &indices));
    c.count("columns of a part", [ALL / 2, 0], || x.slice(s![..;-2, ..])?.select(Axis(1), &indices));
    c.count("rows by a list of the host", [ALL, 8 * SIDE], || x.select(Axis(0), &host));
    c.count("rows of a mask", [ALL / 2, 8 * SIDE], || x.compress(Axis(0), &mask));
    c.count("places", [8 * SIDE * SIDE, SIDE * SIDE + 8 * 1024], || y.lazy().gt(0.0).nonzero());
    c.count("additions", [0, 16 * SIDE + ALL / 32], || x.scatter_add(Axis(0), &indices, &y));
}

#[test]
fn products_take_their_result_and_sums_of_parts() {
    let c = counter();
    let gpu = &c.gpu;
    let x = GpuArray::from_fn(gpu, (SIDE, SIDE), |(i, j)| (i * 7 + j) as f32 / 64.0).unwrap();
    let wide = GpuArray::<f32, Ix2>::ones(gpu, (SIDE, 3)).unwrap();
    let vector: GpuArray<f32, Ix1> = GpuArray::ones(gpu, SIDE).unwrap();
    c.count("matrix · vector", [ROW, 8 * ROW], || x.dot(&vector));
    c.count("matrix · vector with steps", [ROW, 8 * ROW], || x.dot(&wide.slice(s![.., 1])?));
    c.count("transpose · vector with steps", [ROW, 8 * ROW], || x.t().dot(&wide.slice(s![..;-1, 2])?));
    c.count("matrix · matrix", [ALL, 2 * ALL], || x.dot(&x.t()));
    c.count("stacks", [ALL, 2 * ALL], || x.reshape((1, SIDE, SIDE))?.matmul(&x));
}
