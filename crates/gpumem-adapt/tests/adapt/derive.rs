//! `#[derive(Adapt)]`: models of every shape there and back, shared parts, and failures in the middle.

use gpumem_adapt::array::kind::{DeviceLocal, Unified};
use gpumem_adapt::array::ndarray::{Array1, Array2, Ix1, Ix2, array};
use gpumem_adapt::array::pool::sys::types::{CUdeviceptr, CUstream};
use gpumem_adapt::array::pool::sys::{CUresult, Driver, Table};
use gpumem_adapt::array::pool::{self, Pool, PoolError};
use gpumem_adapt::array::{Element, Gpu, GpuArray, Numeric, UnifiedArray};
use gpumem_adapt::{Adapt, AdaptError, Context, Destination, F32, Host, HostVec, Storage, Target, cu};
use gpumem_sim::{Effect, Rule, Sim, SimConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn on(driver: &Driver) -> Result<Gpu, gpumem_adapt::array::ArrayError> {
    Gpu::new(&Pool::new(&pool::Device::new(driver, 0)?)?)
}

fn gpu() -> Gpu {
    on(&gpumem_sim::driver(SimConfig::new()).expect("an instance is free")).expect("it has a device")
}

/// 11 fields, 8 of them arrays.
#[derive(Adapt)]
struct Attention<S: Storage> {
    query: S::Array<f32, Ix2>,
    key: S::Array<f32, Ix2>,
    value: S::Array<f32, Ix2>,
    output: S::Array<f32, Ix2>,
    query_bias: S::Array<f32, Ix1>,
    key_bias: S::Array<f32, Ix1>,
    value_bias: S::Array<f32, Ix1>,
    output_bias: Option<S::Array<f32, Ix1>>,
    heads: usize,
    scale: f32,
    range: Range<usize>,
}

#[derive(Adapt)]
enum Activation<S: Storage> {
    Relu,
    Prelu { slopes: S::Array<f32, Ix1> },
    Spline(S::Array<f32, Ix2>, f32),
}

/// 16 fields with those of its attention.
#[derive(Adapt)]
struct Block<S: Storage> {
    attention: Box<Attention<S>>,
    norm: Scaled<S::Array<f32, Ix1>>,
    activation: Activation<S>,
    shared: Arc<S::Array<f32, Ix2>>,
    dropout: Option<f64>,
}

/// Generic over its array.
#[derive(Adapt, Clone, Debug, PartialEq)]
struct Scaled<A>(A, f32);

#[derive(Adapt, Clone, Copy, Debug, PartialEq)]
struct Marker;

/// 50 fields in all, with three blocks.
#[derive(Adapt)]
struct Model<S: Storage> {
    embedding: Arc<S::Array<f32, Ix2>>,
    head: Arc<S::Array<f32, Ix2>>,
    layers: Vec<Block<S>>,
    named: BTreeMap<String, S::Array<i32, Ix1>>,
    marker: Marker,
    #[adapt(skip)]
    history: Vec<f64>,
    family: PhantomData<S>,
}

fn matrix(seed: usize) -> Array2<f32> {
    Array2::from_shape_fn((3, 4), |(i, j)| (100 * seed + 10 * i + j) as f32)
}

fn vector(seed: usize) -> Array1<f32> {
    Array1::from_shape_fn(4, |i| (1000 * seed + i) as f32)
}

fn block(index: usize, shared: &Arc<Array2<f32>>) -> Block<Host> {
    Block {
        attention: Box::new(Attention {
            query: matrix(index),
            key: matrix(index + 1),
            value: matrix(index + 2),
            output: matrix(index + 3),
            query_bias: vector(index),
            key_bias: vector(index + 1),
            value_bias: vector(index + 2),
            output_bias: (index != 1).then(|| vector(index + 3)),
            heads: 2,
            scale: 0.5,
            range: 0..index,
        }),
        norm: Scaled(vector(index + 4), 0.1),
        activation: match index {
            0 => Activation::Relu,
            1 => Activation::Prelu { slopes: vector(7) },
            _ => Activation::Spline(matrix(8), 2.0),
        },
        shared: shared.clone(),
        dropout: Some(0.5),
    }
}

fn model() -> Model<Host> {
    let (embedding, shared) = (Arc::new(matrix(50)), Arc::new(matrix(60)));
    Model {
        head: embedding.clone(),
        embedding,
        layers: (0..3).map(|index| block(index, &shared)).collect(),
        named: [("first", array![1, 2]), ("second", array![3])]
            .map(|(name, values)| (name.to_string(), values))
            .into(),
        marker: Marker,
        history: vec![0.25],
        family: PhantomData,
    }
}

/// The distinct arrays of [`model`]: the embedding and the shared one once, 8 + 7 + 8 in the attentions, 3 norms, 2 activations,
/// 2 named.
const DISTINCT: usize = 2 + 23 + 3 + 2 + 2;

/// Compares all parts of the model.
fn assert_is_model(found: &Model<Host>) {
    let expected = model();
    assert_eq!((&found.embedding, &found.named), (&expected.embedding, &expected.named));
    assert!(Arc::ptr_eq(&found.embedding, &found.head), "the head is tied to the embedding");
    assert_eq!((found.marker, &found.history), (Marker, &vec![0.25]));
    assert_eq!(found.layers.len(), 3);
    for (index, (found, expected)) in found.layers.iter().zip(&expected.layers).enumerate() {
        let (a, b) = (&found.attention, &expected.attention);
        assert_eq!((&a.query, &a.key, &a.value, &a.output), (&b.query, &b.key, &b.value, &b.output));
        assert_eq!((&a.query_bias, &a.key_bias, &a.value_bias), (&b.query_bias, &b.key_bias, &b.value_bias));
        assert_eq!((&a.output_bias, a.heads, a.scale, &a.range), (&b.output_bias, 2, 0.5, &(0..index)));
        assert_eq!((&found.norm, found.dropout), (&expected.norm, Some(0.5)));
        assert_eq!(found.shared, expected.shared);
        match (&found.activation, &expected.activation) {
            (Activation::Relu, Activation::Relu) => {}
            (Activation::Prelu { slopes }, Activation::Prelu { slopes: expected }) => {
                assert_eq!(slopes, expected);
            }
            (Activation::Spline(knots, width), Activation::Spline(expected, _)) => {
                assert_eq!((knots, *width), (expected, 2.0));
            }
            _ => panic!("layer {index} has another activation"),
        }
    }
    assert!(found.layers.windows(2).all(|pair| Arc::ptr_eq(&pair[0].shared, &pair[1].shared)));
}

#[test]
fn a_model_of_fifty_fields_goes_there_and_back() {
    let gpu = gpu();
    let host = model();
    let there: Model<DeviceLocal> = host.adapt(&gpu).unwrap();
    assert!(Arc::ptr_eq(&there.embedding, &there.head));
    assert_eq!(there.layers[2].attention.key.to_array().unwrap(), matrix(3));
    assert_is_model(&there.adapt(&Host).unwrap());
    let unified: Model<Unified> = there.adapt(&gpu.unified()).unwrap();
    assert_eq!(unified.layers[0].attention.query[[2, 3]], 23.0);
    assert_is_model(&unified.adapt(&Host).unwrap());
    assert_is_model(&there.into_adapted(&Host).unwrap());
    assert_is_model(&host.into_adapted(&gpu.pinned()).unwrap().into_adapted(&Host).unwrap());
}

/// The copies that ran, and the driver's functions. No other test calls these.
static COPIES: AtomicUsize = AtomicUsize::new(0);
static COPY: Mutex<(Option<Copy>, Option<Upload>)> = Mutex::new((None, None));
type Copy = unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
type Upload = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;

unsafe extern "C" fn counted(to: CUdeviceptr, from: CUdeviceptr, size: usize, on: CUstream) -> CUresult {
    COPIES.fetch_add(1, Ordering::Relaxed);
    let copy = COPY.lock().expect("no test panics with it").0.expect("it was set first");
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { copy(to, from, size, on) }
}

unsafe extern "C" fn counted_up(to: CUdeviceptr, from: *const c_void, size: usize, on: CUstream) -> CUresult {
    COPIES.fetch_add(1, Ordering::Relaxed);
    let copy = COPY.lock().expect("no test panics with it").1.expect("it was set first");
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { copy(to, from, size, on) }
}

#[test]
fn each_distinct_buffer_is_uploaded_once() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    *COPY.lock().unwrap() = (driver.table().cuMemcpyAsync, driver.table().cuMemcpyHtoDAsync_v2);
    let count = |table: &mut Table| {
        table.cuMemcpyAsync = Some(counted);
        table.cuMemcpyHtoDAsync_v2 = Some(counted_up);
    };
    // SAFETY: the wrappers call the functions that they replace.
    let driver = unsafe { driver.with_table(count) };
    let gpu = on(&driver).unwrap();
    let there = model().adapt(&Destination::new(&gpu).packed_below(0)).unwrap();
    assert_eq!(COPIES.swap(0, Ordering::Relaxed), DISTINCT);
    let back = there.adapt(&Host).unwrap();
    assert_eq!(COPIES.swap(0, Ordering::Relaxed), DISTINCT);
    assert_is_model(&back);
    // All of them together: one kernel reads them over the link.
    let there = model().adapt(&gpu).unwrap();
    assert_eq!(COPIES.swap(0, Ordering::Relaxed), 0);
    assert_is_model(&there.adapt(&Host).unwrap());
}

/// Fails each driver call of the program once.
#[test]
fn a_failure_at_any_call_leaks_nothing_and_names_the_field() {
    fail_each_call(0, 2 * DISTINCT);
    // Packed, every upload is tried again by itself, so a call that fails once fails downloads only.
    fail_each_call(64 << 10, DISTINCT);
}

/// The path of each distinct array of [`model`]; of a shared one, the first.
fn array_paths() -> BTreeSet<String> {
    let mut paths: BTreeSet<String> =
        ["embedding", "layers[0].shared", "named[\"first\"]", "named[\"second\"]"].map(str::to_owned).into();
    for layer in 0..3 {
        let fields =
            ["query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias"];
        let fields = fields.iter().filter(|field| layer != 1 || **field != "output_bias");
        paths.extend(fields.map(|field| format!("layers[{layer}].attention.{field}")));
        paths.insert(format!("layers[{layer}].norm.0"));
    }
    paths.extend(["layers[1].activation.slopes", "layers[2].activation.0"].map(str::to_owned));
    paths
}

fn fail_each_call(packed_below_bytes: usize, failed_min: usize) {
    let (mut failed_count, mut paths) = (0, Vec::new());
    for nth in 1.. {
        let rule = |effect| Rule::new("*", effect).nth(nth);
        // The byte is taken in the call that fails, and shows that the call was made.
        let taken = rule(Effect::TakeMemory { device: 0, size_bytes: 1 });
        let fails = rule(Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let driver = gpumem_sim::driver(SimConfig::small().rule(taken).rule(fails)).unwrap();
        let sim = Sim::of(&driver).unwrap();
        let is_fired = || sim.others_bytes(0) > 0;
        let mut is_poisoned = false;
        let mut is_fired_before_the_end = false;
        if let Ok(gpu) = on(&driver) {
            let is_set_up = !is_fired();
            let there = model().adapt(&Destination::new(&gpu).packed_below(packed_below_bytes));
            let outcome = match &there {
                Ok(there) => there.adapt(&Host).map(|back| assert_is_model(&back)),
                Err(_) => Ok(()),
            };
            for error in [there.as_ref().err(), outcome.as_ref().err()].into_iter().flatten() {
                assert!(is_set_up, "call {nth}: the fault was earlier");
                failed_count += 1;
                assert!(!error.path().is_empty(), "call {nth}: {error}");
                assert!(error.to_string().starts_with(&error.path()));
                assert!(error.source().is_some());
                paths.push(error.path());
            }
            drop(there);
            is_fired_before_the_end = is_fired();
            is_poisoned = matches!(gpu.pool().alloc(0, gpu.stream()), Err(PoolError::Poisoned { .. }));
            if !is_poisoned {
                assert_eq!(
                    gpu.pool().status().unwrap_or_else(|_| gpu.pool().status().unwrap()).in_use_bytes,
                    0
                );
            }
        }
        assert!(sim.report().silent_findings().is_empty(), "call {nth}: {}", sim.report());
        let report = sim.report();
        if is_fired_before_the_end && !is_poisoned {
            assert!(report.allocations.is_empty(), "call {nth}: {report}");
            assert_eq!((report.handle_count, report.reservation_count), (0, 0), "call {nth}: {report}");
        }
        if !is_fired() {
            break;
        }
    }
    assert!(failed_count >= failed_min, "{failed_count}");
    // Each array fails under its own name, and nothing else does.
    let expected = array_paths();
    let found: BTreeSet<String> = paths.into_iter().collect();
    assert_eq!((expected.len(), &found), (DISTINCT, &expected));
}

#[test]
fn what_is_there_already_keeps_its_allocation() {
    let gpu = gpu();
    let there = model().adapt(&gpu).unwrap();
    let addresses = |model: &Model<DeviceLocal>| {
        let attention = model.layers.iter().map(|layer| layer.attention.query.address());
        let mut found: Vec<u64> = attention.collect();
        found.extend([
            model.embedding.address(),
            model.layers[1].shared.address(),
            model.layers[0].norm.0.address(),
        ]);
        found
    };
    let (before, embedding) = (addresses(&there), Arc::as_ptr(&there.embedding));
    let moved = there.into_adapted(&gpu).unwrap();
    assert_eq!(addresses(&moved), before);
    assert_eq!(Arc::as_ptr(&moved.embedding), embedding);
    assert!(Arc::ptr_eq(&moved.embedding, &moved.head));
    // A copy has memory of its own.
    let copied = moved.adapt(&gpu).unwrap();
    assert!(addresses(&copied).iter().all(|address| !before.contains(address)));
    // On the host.
    let host = model();
    let address = host.layers[0].attention.query.as_ptr();
    assert_eq!(host.into_adapted(&Host).unwrap().layers[0].attention.query.as_ptr(), address);
    let vector = vec![1_u8, 2, 3];
    let address = vector.as_ptr();
    let array = vector.into_adapted(&Host).unwrap();
    assert_eq!(array.as_ptr(), address);
    let vector = array.into_adapted(&HostVec).unwrap();
    assert_eq!(vector.as_ptr(), address);
}

/// A tree: its type contains itself.
#[derive(Adapt)]
struct Node<S: Storage> {
    value: S::Array<i64, Ix1>,
    children: Vec<Node<S>>,
    parent_value: Option<Rc<S::Array<i64, Ix1>>>,
}

#[test]
fn a_type_that_contains_itself() {
    let gpu = gpu();
    let leaf = |value| Node::<Host> { value: array![value], children: Vec::new(), parent_value: None };
    let tree = Node::<Host> {
        value: array![1],
        children: vec![leaf(2), Node { children: vec![leaf(4)], ..leaf(3) }],
        parent_value: Some(Rc::new(array![5])),
    };
    let there: Node<DeviceLocal> = tree.adapt(&gpu).unwrap();
    assert_eq!(there.children[1].children[0].value.to_vec().unwrap(), [4]);
    let back = there.into_adapted(&Host).unwrap();
    assert_eq!(back.children[0].value, array![2]);
    assert_eq!(*back.parent_value.unwrap(), array![5]);
}

/// Generic over the element type too, with a lifetime and a constant that stay.
#[derive(Adapt)]
struct Weights<'a, S: Storage, T: Element, const N: usize>
where
    T: PartialOrd,
{
    values: S::Array<T, Ix1>,
    steps: S::Array<i32, Ix1>,
    bounds: [f64; N],
    name: &'a str,
}

#[test]
fn the_element_type_follows_the_policy() {
    let gpu = gpu();
    let name = String::from("weights");
    let host = Weights::<Host, f64, 2> {
        values: array![0.5, 1.5],
        steps: array![1, 2],
        bounds: [0.0, 2.0],
        name: &name,
    };
    let there: Weights<'_, DeviceLocal, f64, 2> = host.adapt(&gpu).unwrap();
    assert_eq!(there.values.to_vec().unwrap(), [0.5, 1.5]);
    let single: Weights<'_, Unified, f32, 2> =
        host.adapt(&Destination::new(&gpu).unified().elements::<F32>()).unwrap();
    assert_eq!(single.values.to_vec().unwrap(), [0.5_f32, 1.5]);
    assert_eq!((single.bounds, single.name), ([0.0, 2.0], "weights"));
    assert_eq!(single.steps.to_vec().unwrap(), [1, 2]);
}

/// An element of arrays, and a value by itself.
#[derive(Adapt, Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[adapt(element)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    mass: f32,
}

/// Doubles the values on the way.
fn doubled<To>(values: &Array1<f32>, cx: &mut Context<'_, To>) -> Result<Array1<f32>, AdaptError>
where
    To: Target,
{
    let _ = cx.to();
    if values.iter().any(|value| value.is_nan()) {
        return Err(AdaptError::custom("a value is not a number"));
    }
    Ok(values * 2.0)
}

#[derive(Adapt)]
struct Scene<S: Storage> {
    particles: S::Array<Particle, Ix1>,
    brightest: Particle,
    #[adapt(with = doubled)]
    table: Array1<f32>,
    r#type: u8,
}

#[test]
fn elements_of_your_own_and_functions_of_fields() {
    let gpu = gpu();
    let particle = Particle { position: [1.0, 2.0, 3.0], mass: 4.0 };
    let mut host =
        Scene::<Host> { particles: array![particle], brightest: particle, table: array![1.5], r#type: 3 };
    let there: Scene<DeviceLocal> = host.adapt(&gpu).unwrap();
    assert_eq!(there.particles.to_vec().unwrap(), [particle]);
    assert_eq!((there.brightest, there.table, there.r#type), (particle, array![3.0], 3));
    let many: GpuArray<Particle, Ix1> = vec![particle; 3].adapt(&gpu).unwrap();
    assert_eq!(many.len(), 3);
    host.table[0] = f32::NAN;
    let error = host.into_adapted(&gpu).err().unwrap();
    assert_eq!(error.to_string(), "table: a value is not a number");
    assert!(error.cause().is_none());
}

/// The step follows the element type of the values. The options have their own type, which stays.
#[derive(Adapt)]
struct Optimiser<S: Storage, T: Numeric, O: Numeric> {
    momentum: S::Array<T, Ix1>,
    step: T,
    #[adapt(skip)]
    options: Vec<O>,
}

#[test]
fn numbers_of_the_element_type_follow_the_policy() {
    let gpu = gpu();
    let host = Optimiser::<Host, f64, f64> { momentum: array![1.0, 2.0], step: 0.1, options: vec![0.2] };
    let there: Optimiser<DeviceLocal, f64, f64> = host.adapt(&gpu).unwrap();
    assert_eq!((there.step, &there.options), (0.1, &vec![0.2]));
    let single: Optimiser<DeviceLocal, f32, f64> = cu(&host).on(&gpu).unwrap();
    assert_eq!((single.step, &single.options), (0.1_f32, &vec![0.2_f64]));
    let address = there.momentum.address();
    let same: Optimiser<DeviceLocal, f64, f64> = there.into_adapted(&gpu).unwrap();
    assert_eq!((same.momentum.address(), same.step), (address, 0.1));
    let single: Optimiser<Host, f32, f64> = same.into_adapted(&Host::elements::<F32>()).unwrap();
    assert_eq!((single.momentum, single.step), (array![1.0_f32, 2.0], 0.1_f32));
}

/// Has no value.
#[derive(Adapt, Debug)]
enum Never {}

#[derive(Adapt)]
struct Boxed<A: ?Sized> {
    value: Box<A>,
    never: Option<Never>,
}

/// Plain bytes for some types of numbers.
#[derive(Adapt, Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[adapt(element)]
#[repr(transparent)]
struct Metres<T>(T);

#[test]
fn types_without_values_and_generic_elements() {
    let gpu = gpu();
    let boxed = Boxed { value: Box::new(vec![1_u8]), never: None };
    let there: Boxed<GpuArray<u8, Ix1>> = boxed.adapt(&gpu).unwrap();
    assert_eq!(there.value.to_vec().unwrap(), [1]);
    assert!(there.never.is_none());
    let lengths: GpuArray<Metres<f32>, Ix1> = cu(&vec![Metres(1.5_f32)]).on(&gpu).unwrap();
    assert_eq!(lengths.to_vec().unwrap(), [Metres(1.5)]);
}

/// Concrete: nothing in it changes.
#[derive(Adapt, Clone, Debug, PartialEq)]
struct Settings {
    rate: f32,
    sizes: [usize; 3],
    name: String,
    pair: (u8, Option<char>),
}

#[test]
fn a_type_without_parameters_stays_as_it_is() {
    let settings = Settings { rate: 0.1, sizes: [1, 2, 3], name: "a".into(), pair: (1, Some('b')) };
    assert_eq!(settings.adapt(&gpu()).unwrap(), settings);
    let twice = vec![settings.clone(), settings];
    assert_eq!(twice.adapt(&HostVec).unwrap(), twice);
}

#[test]
fn vectors_of_models_stay_vectors() {
    let gpu = gpu();
    let nested = vec![vec![vec![1.0_f32], vec![]], vec![vec![2.0, 3.0]]];
    let there: Vec<Vec<GpuArray<f32, Ix1>>> = nested.adapt(&gpu).unwrap();
    assert_eq!(there.adapt(&HostVec).unwrap(), nested);
    let points = vec![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let there: UnifiedArray<[f32; 3], Ix1> = points.adapt(&gpu.unified()).unwrap();
    assert_eq!(there[1], [4.0, 5.0, 6.0]);
    let matrices = vec![[[1.0_f64; 4]; 4]; 2];
    let there: GpuArray<[[f64; 4]; 4], Ix1> = matrices.adapt(&gpu).unwrap();
    assert_eq!(there.adapt(&HostVec).unwrap(), matrices);
    let flags = vec![[true, false]];
    assert_eq!(flags.adapt(&gpu).unwrap(), flags);
    let scaled = vec![Scaled(vec![1_u8], 0.5)];
    let there: Vec<Scaled<GpuArray<u8, Ix1>>> = scaled.adapt(&gpu).unwrap();
    assert_eq!(there.into_adapted(&HostVec).unwrap(), scaled);
}
