//! Expressions on both drivers: against `ndarray`, in captures, on two devices and on two streams. The kernels are written at run time, and
//! the driver compiles them.

#[path = "../../crates/gpumem-array/tests/array/expressions/differential.rs"]
mod differential;
#[path = "../../crates/gpumem-array/tests/array/expressions/trees.rs"]
mod trees;

use gpumem_array::ndarray::{Axis, Ix0, Ix1, Ix2, s};
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, GpuView, GpuViewMut, update};
use gpumem_tests::fixtures::two_devices::{Link, check_findings, gpus, two_devices};
use gpumem_tests::{cases, for_each_seed};

fn gpu(driver: &Driver) -> Gpu {
    Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap()
}

fn table(gpu: &Gpu) -> GpuArray<f32, Ix2> {
    GpuArray::from_fn(gpu, (300, 400), |(i, j)| ((i * 7 + j * 13) % 101) as f32 / 16.0 - 3.0).unwrap()
}

type Results = (GpuArray<f32, Ix2>, GpuArray<f32, Ix1>, GpuArray<f32, Ix0>, GpuArray<f32, Ix2>);

/// An expression in tiles, sums of parts along axes and of all, and a fold of pairs; the array is updated first.
fn work(
    x: &GpuView<'_, f32, Ix2>,
    row: &GpuView<'_, f32, Ix1>,
    sum: &mut GpuViewMut<'_, f32, Ix2>,
) -> Result<Results, ArrayError> {
    update((sum,), |(sum,)| (sum * 0.5 + x.lazy() + row.lazy(),))?;
    let turned = (x.lazy().t() * 2.0 + x.lazy().slice(s![..;-1, ..]).t()).exp().eval()?;
    let columns = (x.lazy() - row.lazy()).sum_axis(Axis(0))?;
    let all = (x.lazy() * row.lazy()).sum()?;
    Ok((turned, columns, all, x.softmax_axis(Axis(1))?))
}

cases! {
    fn floats(driver: &Driver) { differential::floats(&gpu(driver)) }
    fn formulas(driver: &Driver) { differential::formulas(&gpu(driver)) }
    fn functions(driver: &Driver) { differential::functions(&gpu(driver)) }
    fn halves(driver: &Driver) { differential::halves(&gpu(driver)) }
    fn complex(driver: &Driver) { differential::complex(&gpu(driver)) }
    fn integers(driver: &Driver) { differential::integers(&gpu(driver)) }
    fn truths(driver: &Driver) { differential::truths(&gpu(driver)) }
    fn reductions(driver: &Driver) { differential::reductions(&gpu(driver)) }

    /// A graph calculates what the same calls do at once, each time with the values of its arrays.
    fn captured(driver: &Driver) {
        let gpu = gpu(driver);
        let (mut x, row) = (table(&gpu), GpuArray::from_fn(&gpu, 400, |j| j as f32 / 64.0).unwrap());
        let [mut sum, mut wanted] = [0, 0].map(|_| GpuArray::<f32, Ix2>::ones(&gpu, (300, 400)).unwrap());
        let (mut graph, (turned, columns, all, soft)) =
            gpu.capture(|c| work(&x.on(c), &row.on(c), &mut sum.on_mut(c))).unwrap();
        for _ in 0..3 {
            let done = graph.launch(&gpu).read(&x).read(&row).write(&mut sum).run().unwrap();
            let eager = work(&x.view(), &row.view(), &mut wanted.view_mut()).unwrap();
            assert_eq!(done.get(&turned).unwrap().to_vec().unwrap(), eager.0.to_vec().unwrap());
            assert_eq!(done.get(&columns).unwrap().to_vec().unwrap(), eager.1.to_vec().unwrap());
            assert_eq!(done.get(&all).unwrap().into_scalar().unwrap(), eager.2.into_scalar().unwrap());
            assert_eq!(done.get(&soft).unwrap().to_vec().unwrap(), eager.3.to_vec().unwrap());
            assert_eq!(sum.to_vec().unwrap(), wanted.to_vec().unwrap());
            x += 0.25;
        }
    }

    /// With a link, an expression runs on the device of its first array and reads those of the other. Without, it is refused.
    fn on_two_devices(driver: &Driver) {
        for link in [Link::Direct, Link::None] {
            let Some(driver) = two_devices(driver, link) else { return };
            let [first, second] = gpus(&driver);
            let (x, row) = (table(&first), GpuArray::from_fn(&second, 400, |j| j as f32 / 64.0).unwrap());
            let mut sum = GpuArray::<f32, Ix2>::ones(&second, (300, 400)).unwrap();
            let found = work(&x.on(&second), &row.view(), &mut sum.view_mut());
            if link == Link::None {
                let error = found.map(drop).unwrap_err();
                assert!(matches!(error, ArrayError::NoPeerAccess { operation: "update", .. }), "{error}");
                assert!(matches!((row.lazy() + &x).eval(), Err(ArrayError::NoPeerAccess { operation: "expression", .. })));
                assert!(matches!((row.lazy() + &x).sum(), Err(ArrayError::NoPeerAccess { operation: "sum", .. })));
                assert_eq!(sum.sum().unwrap().into_scalar().unwrap(), 120_000.0);
            } else {
                let found = found.unwrap();
                assert_eq!(found.0.gpu().device(), second.device());
                let (copy, near) = (x.copy_to(&first).unwrap(), row.copy_to(&first).unwrap());
                let mut wanted = GpuArray::<f32, Ix2>::ones(&first, (300, 400)).unwrap();
                let eager = work(&copy.view(), &near.view(), &mut wanted.view_mut()).unwrap();
                assert_eq!(found.0.to_vec().unwrap(), eager.0.to_vec().unwrap());
                assert_eq!(found.1.to_vec().unwrap(), eager.1.to_vec().unwrap());
                assert_eq!(found.2.into_scalar().unwrap(), eager.2.into_scalar().unwrap());
                assert_eq!(found.3.to_vec().unwrap(), eager.3.to_vec().unwrap());
                assert_eq!(sum.to_vec().unwrap(), wanted.to_vec().unwrap());
            }
            drop((x, row, sum, first, second));
            check_findings(&driver);
        }
    }
}

/// Expressions, updates and reductions of the same arrays, on two streams in turn.
#[test]
fn uses_are_ordered_across_streams_under_every_seed() {
    for_each_seed!(50, |driver: &Driver, _| {
        let here = gpu(driver);
        let there = here.fork().unwrap();
        let mut x = GpuArray::from_fn(&here, (40, 50), |(i, j)| (i + j) as f32).unwrap();
        let mut y = GpuArray::<f32, _>::zeros(&here, 50).unwrap();
        let host = x.to_array().unwrap();
        let mut columns = host.sum_axis(Axis(0));
        for round in 1..6 {
            // The sums are of the elements before the update on the other stream.
            let sums = x.on(&there).lazy().sum_axis(Axis(0)).unwrap();
            update((&mut x,), |(x,)| (x * 2.0,)).unwrap();
            y.on_mut(&there).assign_expr(sums.lazy() + x.lazy().slice(s![3, ..])).unwrap();
            let row = host.row(3).mapv(|x| x * 2.0_f32.powi(round));
            assert_eq!(y.to_array().unwrap(), &columns + &row);
            columns *= 2.0;
        }
    });
}
