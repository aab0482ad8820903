//! Small arrays are uploaded together, and nothing of it can be seen in the values.

use gpumem_adapt::array::ndarray::{Array1, Array2, Array3, ArrayView2, Ix1, Ix2, ShapeBuilder, s};
use gpumem_adapt::array::pool::{Device, Limit, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_adapt::{Adapt, AdaptError, Context, Destination, F32, Host, Plan, Separate, Target};
use gpumem_sim::{Sim, SimConfig};
use std::collections::HashMap;
use std::rc::Rc;

fn gpu() -> Gpu {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).expect("an instance is free"), 0);
    let device = device.expect("there is one");
    Gpu::new(&Pool::new(&device).expect("it has pools")).expect("it has streams")
}

fn assert_no_findings(gpu: &Gpu) {
    assert_eq!(Sim::of(gpu.device().driver()).expect("it is simulated").report().findings, []);
}

fn matrix(index: usize, is_row_major: bool) -> Array2<f32> {
    let shape = (index % 5 + 1, index % 7 + 1).set_f(!is_row_major);
    Array2::from_shape_fn(shape, |(i, j)| (1000 * index + 10 * i + j) as f32)
}

#[test]
fn any_shape_order_and_size() {
    let gpu = gpu();
    let matrices: Vec<Array2<f32>> = (0..60).map(|index| matrix(index, index % 3 > 0)).collect();
    let view: Vec<ArrayView2<'_, f32>> = matrices.iter().map(|matrix| matrix.slice(s![..;-1, ..])).collect();
    let transposed: Vec<ArrayView2<'_, f32>> = matrices.iter().map(|matrix| matrix.t()).collect();
    let large = Array1::from_iter(0..100_000_i64);
    let empty = Array3::<u8>::zeros((2, 0, 3));
    let value = (&matrices, view, &empty, &transposed, &large, vec![vec![true, false]; 20]);
    for below_bytes in [0, 16, 64 << 10, usize::MAX] {
        let there = value.adapt(&Destination::new(&gpu).packed_below(below_bytes)).unwrap();
        let (first, view, found_empty, found_transposed, found_large, flags) = there.adapt(&Host).unwrap();
        assert_eq!(first, matrices);
        assert!(view.iter().zip(&value.1).all(|(found, expected)| found == expected));
        assert!(found_transposed.iter().zip(&transposed).all(|(found, expected)| found == expected));
        assert_eq!((&found_empty, &found_large), (&empty, &large));
        assert_eq!(flags, vec![Array1::from_vec(vec![true, false]); 20]);
        // A column-major array keeps its order, so a graph or kernel finds it as it was.
        let back = there.0.iter().map(|array| array.to_array().unwrap().is_standard_layout());
        assert!(
            back.zip(&matrices).all(|(is_row_major, matrix)| is_row_major == matrix.is_standard_layout())
        );
        drop(there);
        assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    }
    assert_no_findings(&gpu);
}

#[test]
fn converted_elements_and_maps() {
    let gpu = gpu();
    let value: HashMap<usize, (Vec<f64>, Vec<i32>)> =
        (0..50).map(|key| (key, (vec![key as f64; key + 1], vec![key as i32; 3]))).collect();
    let there = value.into_adapted(&Destination::new(&gpu).elements::<F32>()).unwrap();
    for (key, (floats, numbers)) in &there {
        assert_eq!(floats.to_vec().unwrap(), vec![*key as f32; key + 1]);
        assert_eq!(numbers.to_vec().unwrap(), [*key as i32; 3]);
    }
    assert_no_findings(&gpu);
}

/// Builds in another order than it plans, and more than it plans.
struct Backwards(Vec<Vec<u32>>);

impl<To: Target> Adapt<To> for Backwards
where
    Vec<u32>: Adapt<To>,
{
    type Adapted = Vec<<Vec<u32> as Adapt<To>>::Adapted>;
    type Many = Separate;

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        self.0.iter().step_by(2).for_each(|item| item.plan(plan));
        self.0[..5].plan(plan);
    }

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.0.iter().rev().map(|item| item.adapt_with(cx)).collect()
    }
}

#[test]
fn a_plan_in_another_order() {
    let gpu = gpu();
    let value = Backwards((0..60).map(|index| vec![index; 4]).collect());
    let there: Vec<GpuArray<u32, Ix1>> = value.adapt(&gpu).unwrap();
    for (index, array) in there.iter().rev().enumerate() {
        assert_eq!(array.to_vec().unwrap(), [index as u32; 4]);
    }
    assert_no_findings(&gpu);
}

/// Without memory for all of them, those before the one that fails are released, and it is named.
#[test]
fn a_pack_that_does_not_fit() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(16 << 20)).build().unwrap()).unwrap();
    let shared = Rc::new(Array2::<f32>::zeros((100, 100)));
    let many: Vec<(Array2<f32>, Rc<Array2<f32>>)> =
        (0..1000).map(|_| (Array2::zeros((100, 100)), shared.clone())).collect();
    let error = many.adapt(&gpu).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.path().starts_with('[') && error.path().ends_with("].0"), "{error}");
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    let there: Vec<(GpuArray<f32, Ix2>, _)> = many[..100].adapt(&gpu).unwrap();
    assert!(there.iter().all(|(_, shared)| Rc::ptr_eq(shared, &there[0].1)));
    assert_no_findings(&gpu);
}
