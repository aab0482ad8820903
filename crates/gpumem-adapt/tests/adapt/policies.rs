//! Element policies: the types that elements have at the target, and the side on which they are converted.

use gpumem_adapt::array::kind::{DeviceLocal, Unified};
use gpumem_adapt::array::ndarray::{Array1, Array2, Ix1, Ix2, array};
use gpumem_adapt::array::pool::{self, Pool};
use gpumem_adapt::array::{Element, Gpu, GpuArray, PinnedArray, UnifiedArray};
use gpumem_adapt::{Adapt, Bf16, Destination, F16, F32, F64, Host, HostVec, Policy, Single, Storage, cu};
use gpumem_sim::{Sim, SimConfig};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt::Debug;
use std::sync::Arc;

fn gpu() -> Gpu {
    let device = pool::Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    Gpu::new(&Pool::new(&device).unwrap()).unwrap()
}

/// From the host, from the device, to every kind of memory and back to the host, at sizes on both sides of every threshold.
fn check<P, T, U>(gpu: &Gpu, of: impl Fn(usize) -> T, expected: impl Fn(T) -> U)
where
    P: Policy<T, Elem = U>,
    T: Element + Debug,
    U: Element + Debug + PartialEq,
{
    let to = Destination::new(gpu).elements::<P>();
    for len in [0, 1, 100, 20_000, 50_000] {
        let host: Array1<T> = (0..len).map(&of).collect();
        let expected: Array1<U> = host.iter().map(|element| expected(*element)).collect();
        let up: GpuArray<U, Ix1> = host.adapt(&to).unwrap();
        assert_eq!(up.to_array().unwrap(), expected);
        let unified: UnifiedArray<U, Ix1> = host.adapt(&to.clone().unified()).unwrap();
        assert_eq!(unified.as_array().unwrap(), expected);
        let there = host.adapt(gpu).unwrap();
        let pinned: PinnedArray<U, Ix1> = there.adapt(&to.clone().pinned()).unwrap();
        assert_eq!(pinned.as_array().unwrap(), expected);
        assert_eq!(there.adapt(&to).unwrap().to_array().unwrap(), expected);
        assert_eq!(there.view().adapt(&Host::elements::<P>()).unwrap(), expected);
        assert_eq!(host.adapt(&Host::elements::<P>()).unwrap(), expected);
        assert_eq!(there.into_adapted(&to).unwrap().to_array().unwrap(), expected);
        assert_eq!(host.into_adapted(&Host::elements::<P>()).unwrap(), expected);
    }
}

#[test]
fn every_policy_and_type() {
    let gpu = &gpu();
    let double = |x: usize| x as f64 / 7.0;
    let single = |x: usize| x as f32 / 7.0;
    let half = |x: usize| f16::from_f32(x as f32 / 7.0);
    let brain = |x: usize| bf16::from_f32(x as f32 / 7.0);
    check::<F32, _, _>(gpu, double, |x| x as f32);
    check::<F32, _, _>(gpu, single, |x| x);
    check::<F32, _, _>(gpu, half, f16::to_f32);
    check::<F32, _, _>(gpu, brain, bf16::to_f32);
    check::<F64, _, _>(gpu, double, |x| x);
    check::<F64, _, _>(gpu, single, f64::from);
    check::<F64, _, _>(gpu, half, f16::to_f64);
    check::<F64, _, _>(gpu, brain, bf16::to_f64);
    check::<F16, _, _>(gpu, single, f16::from_f32);
    check::<F16, _, _>(gpu, half, |x| x);
    check::<F16, _, _>(gpu, |x| x as f64, |x| f16::from_f32(x as f32));
    check::<F16, _, _>(gpu, brain, |x| f16::from_f32(x.to_f32()));
    check::<Bf16, _, _>(gpu, single, bf16::from_f32);
    check::<Bf16, _, _>(gpu, brain, |x| x);
    check::<Bf16, _, _>(gpu, |x| x as f64, |x| bf16::from_f32(x as f32));
    check::<Bf16, _, _>(gpu, half, |x| bf16::from_f32(x.to_f32()));
    check::<Single, _, _>(gpu, double, |x| x as f32);
    check::<Single, _, _>(gpu, half, |x| x);
    check::<Single, _, _>(gpu, brain, |x| x);
    let wide = |x: usize| Complex::new(x as f64 / 7.0, -1.0);
    let narrow = |x: Complex<f64>| Complex::new(x.re as f32, x.im as f32);
    check::<F32, _, _>(gpu, wide, narrow);
    check::<Single, _, _>(gpu, wide, narrow);
    check::<Single, _, _>(
        gpu,
        |x| Complex::new(f16::from_f32(x as f32), f16::ONE),
        |x| Complex::new(x.re.to_f32(), x.im.to_f32()),
    );
    check::<F64, _, _>(gpu, |x| narrow(wide(x)), |x| Complex::new(f64::from(x.re), f64::from(x.im)));
    check::<F16, _, _>(gpu, wide, |x| x);
    check::<Bf16, _, _>(gpu, |x| x as i32, |x| x);
    check::<F16, _, _>(gpu, |x| [x as f64, 0.5], |x| x);
    check::<Single, _, _>(gpu, |x| x % 2 == 0, |x| x);
    check::<F32, _, _>(gpu, |x| char::from(x as u8), |x| x);
    assert!(Sim::of(gpu.device().driver()).unwrap().report().findings.is_empty());
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}

/// Bytes that crossed the link while a function ran, up and down.
fn moved<R>(gpu: &Gpu, run: impl FnOnce() -> R) -> (R, u64, u64) {
    let before = gpu.transfers();
    let result = run();
    let after = gpu.transfers();
    (
        result,
        after.uploaded_bytes + after.direct_bytes - before.uploaded_bytes - before.direct_bytes,
        after.downloaded_bytes - before.downloaded_bytes,
    )
}

#[test]
fn the_smaller_type_crosses_the_link() {
    const LEN: usize = 1 << 20;
    let gpu = gpu();
    let doubles: Array1<f64> = (0..LEN).map(|x| x as f64).collect();
    let to = Destination::new(&gpu).elements::<F32>();
    let (singles, up, _) = moved(&gpu, || doubles.adapt(&to).unwrap());
    assert_eq!(up, 4 * LEN as u64);
    let halves = Array1::from_elem(LEN, f16::ONE);
    let (_, up, _) = moved(&gpu, || halves.adapt(&to).unwrap());
    assert_eq!(up, 2 * LEN as u64);
    // On the device, none does.
    let to = Destination::new(&gpu).elements::<F16>();
    let (_, up, down) = moved(&gpu, || singles.adapt(&to).unwrap());
    assert_eq!((up, down), (0, 0));
    let (_, _, down) = moved(&gpu, || singles.adapt(&Host::elements::<Bf16>()).unwrap());
    assert_eq!(down, 2 * LEN as u64);
    let (back, _, down) = moved(&gpu, || singles.adapt(&Host::elements::<F64>()).unwrap());
    assert_eq!((down, back), (4 * LEN as u64, doubles));
}

/// Keeps the type and changes the values.
struct Negated;

impl Policy<f32> for Negated {
    type Elem = f32;
    fn convert(value: f32) -> f32 {
        -value
    }
}

/// Steps of 1/127.
struct Quantised;

impl Policy<f32> for Quantised {
    type Elem = i8;
    fn convert(value: f32) -> i8 {
        (value * 127.0).round() as i8
    }
}

/// Names another type for the same bytes, but has too few of them.
struct Bits;

impl Policy<f32> for Bits {
    type Elem = u32;

    fn convert(value: f32) -> u32 {
        value.to_bits()
    }

    fn unchanged(elements: &[f32]) -> Option<&[u32]> {
        Some(&bytemuck::cast_slice(elements)[..elements.len() / 2])
    }
}

#[test]
fn policies_of_a_program() {
    let gpu = &gpu();
    check::<Negated, _, _>(gpu, |x| x as f32, |x| -x);
    check::<Bits, _, _>(gpu, |x| x as f32, f32::to_bits);
    check::<Quantised, _, _>(gpu, |x| (x % 200) as f32 / 200.0, |x| (x * 127.0).round() as i8);
    // A shared array is converted once, and stays shared.
    let shared = Arc::new(vec![1.0_f32, 2.0].adapt(gpu).unwrap());
    let pair = (shared.clone(), shared).into_adapted(&Destination::new(gpu).elements::<Negated>()).unwrap();
    assert!(Arc::ptr_eq(&pair.0, &pair.1));
    assert_eq!(pair.0.to_vec().unwrap(), [-1.0, -2.0]);
    let moved = vec![1.0_f32].into_adapted(&Host::elements::<Negated>()).unwrap();
    assert_eq!(moved, array![-1.0]);
}

/// Plain bytes with a number of double precision, which every policy keeps.
#[derive(Adapt, Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[adapt(element)]
#[repr(C)]
struct Body {
    position: [f64; 3],
    mass: f64,
}

#[derive(Adapt)]
struct Model<S: Storage, T: Element> {
    weights: Vec<S::Array<T, Ix2>>,
    tied: Arc<S::Array<T, Ix2>>,
    again: Arc<S::Array<T, Ix2>>,
    bias: Option<S::Array<T, Ix1>>,
    bodies: S::Array<Body, Ix1>,
    first: Body,
    labels: S::Array<i64, Ix1>,
    rate: f64,
}

fn model<T: Element>(of: impl Fn(f64) -> T) -> Model<Host, T> {
    let matrix = |seed: usize| Array2::from_shape_fn((3, 4), |(i, j)| of((seed + 4 * i + j) as f64 / 8.0));
    let tied = Arc::new(matrix(9));
    let body = Body { position: [0.1, 0.2, 0.3], mass: 0.4 };
    Model {
        weights: vec![matrix(1), matrix(2)],
        again: tied.clone(),
        tied,
        bias: Some(array![of(0.5)]),
        bodies: array![body, body],
        first: body,
        labels: array![1, -2],
        rate: 0.1,
    }
}

fn assert_is_model<T: Element + Debug + PartialEq>(found: &Model<Host, T>, of: impl Fn(f64) -> T) {
    let expected = model(of);
    assert_eq!(
        (&found.weights, &found.tied, &found.bias),
        (&expected.weights, &expected.tied, &expected.bias)
    );
    assert_eq!((&found.bodies, found.first), (&expected.bodies, expected.first));
    assert_eq!((&found.labels, found.rate), (&expected.labels, 0.1));
    assert!(Arc::ptr_eq(&found.tied, &found.again));
}

/// A half-precision model, its master in single precision, and back.
#[test]
fn nested_values_change_their_type() {
    let gpu = &gpu();
    let half = |x: f64| f16::from_f32(x as f32);
    let master: Model<DeviceLocal, f32> = model(|x| x as f32).adapt(gpu).unwrap();
    let small: Model<DeviceLocal, f16> = master.adapt(&Destination::new(gpu).elements::<F16>()).unwrap();
    assert_is_model(&small.adapt(&Host).unwrap(), half);
    let again: Model<Unified, f32> =
        small.into_adapted(&Destination::new(gpu).elements::<F32>().unified()).unwrap();
    assert_is_model(&again.adapt(&Host).unwrap(), |x| x as f32);
    let wide: Model<Host, f64> = master.adapt(&Host::elements::<F64>()).unwrap();
    assert_is_model(&wide, |x| x);
    let single: Model<DeviceLocal, f32> = cu(&wide).on(gpu).unwrap();
    assert_is_model(&single.adapt(&Host).unwrap(), |x| x as f32);
    let unified: Model<Unified, f32> = cu(&wide).unified().on(gpu).unwrap();
    assert_eq!(unified.bodies[1].mass, 0.4);
    assert_is_model(&unified.into_adapted(&Host).unwrap(), |x| x as f32);
}

#[test]
fn cu_keeps_the_elements_of_a_program() {
    let gpu = &gpu();
    let body = Body { position: [1.0; 3], mass: 2.0 };
    let (bodies, first, numbers) = cu(&(vec![body; 3], body, vec![0.5_f64])).unified().on(gpu).unwrap();
    let _: (&UnifiedArray<Body, Ix1>, &UnifiedArray<f32, Ix1>) = (&bodies, &numbers);
    assert_eq!((bodies[2], first, numbers[0]), (body, body, 0.5));
    let again = cu(&bodies).on(gpu).unwrap();
    assert_eq!(again.adapt(&HostVec).unwrap(), [body; 3]);
}
