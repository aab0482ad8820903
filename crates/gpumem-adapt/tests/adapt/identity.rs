//! There and back is the identity: random nested values, every kind of memory, copied and moved.

use gpumem_adapt::array::Gpu;
use gpumem_adapt::array::kind::DeviceLocal;
use gpumem_adapt::array::ndarray::{Array1, Array2, Ix1, Ix2, Ix3, ShapeBuilder};
use gpumem_adapt::array::pool::{self, Pool};
use gpumem_adapt::{Adapt, Destination, Host, HostVec, Storage, cu};
use gpumem_sim::{Sim, SimConfig};
use half::{bf16, f16};
use num_complex::Complex;
use proptest::collection::vec;
use proptest::{option, prelude::*};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive};
use std::rc::Rc;
use std::sync::Arc;

/// A value with every container.
#[derive(Adapt)]
struct Tree<S: Storage> {
    floats: S::Array<f32, Ix1>,
    numbers: S::Array<i64, Ix2>,
    cube: S::Array<[u8; 3], Ix3>,
    shared: Arc<Leaf<S>>,
    again: Option<Arc<Leaf<S>>>,
    children: Vec<Tree<S>>,
    first: Option<Box<Tree<S>>>,
    named: BTreeMap<String, S::Array<bool, Ix1>>,
    pair: (f64, [S::Array<char, Ix1>; 2], RangeInclusive<i32>),
    outcome: Result<S::Array<f64, Ix1>, Cow<'static, str>>,
}

impl PartialEq for Tree<Host> {
    fn eq(&self, other: &Self) -> bool {
        let Self { floats, numbers, cube, shared, again, children, first, named, pair, outcome } = self;
        (floats, numbers, cube, shared, again)
            == (&other.floats, &other.numbers, &other.cube, &other.shared, &other.again)
            && (children, first, named, pair, outcome)
                == (&other.children, &other.first, &other.named, &other.pair, &other.outcome)
    }
}

impl fmt::Debug for Tree<Host> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { floats, numbers, cube, shared, again, children, first, named, pair, outcome } = self;
        let (arrays, others) =
            ((floats, numbers, cube, shared, again), (children, first, named, pair, outcome));
        f.debug_tuple("Tree").field(&arrays).field(&others).finish()
    }
}

#[derive(Adapt, Debug, PartialEq)]
enum Leaf<S: Storage> {
    Empty,
    One(S::Array<f16, Ix1>),
    Two { left: S::Array<Complex<f32>, Ix1>, right: S::Array<bf16, Ix2> },
}

/// Draws values from a seed. proptest shrinks the seed and the size.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn vector<T: Clone>(&mut self, len_max: usize, each: impl Fn(usize) -> T) -> Array1<T> {
        let len = self.below(len_max);
        (0..len).map(|_| each(self.below(1000))).collect()
    }

    fn matrix<T: Clone>(&mut self, each: impl Fn(usize) -> T) -> Array2<T> {
        let is_row_major = self.below(2) == 0;
        let shape = (self.below(6), self.below(6)).set_f(!is_row_major);
        Array2::from_shape_simple_fn(shape, || each(self.below(1000)))
    }

    fn leaf(&mut self) -> Leaf<Host> {
        match self.below(3) {
            0 => Leaf::Empty,
            1 => Leaf::One(self.vector(40, |x| f16::from_f32(x as f32))),
            _ => Leaf::Two {
                left: self.vector(40, |x| Complex::new(x as f32, 1.0)),
                right: self.matrix(|x| bf16::from_f32(x as f32)),
            },
        }
    }

    fn tree(&mut self, size: usize, known: &mut Vec<Arc<Leaf<Host>>>) -> Tree<Host> {
        let leaf = Arc::new(self.leaf());
        known.push(leaf);
        let (shared, again) = (self.below(known.len()), self.below(2 * known.len()));
        let (shared, again) = (known[shared].clone(), known.get(again).cloned());
        let child_count = if size > 0 { self.below(4) } else { 0 };
        let children = (0..child_count).map(|_| self.tree(size / 2, known)).collect();
        let first = (size > 0 && self.below(3) == 0).then(|| Box::new(self.tree(size / 2, known)));
        let named: BTreeMap<_, _> =
            (0..self.below(3)).map(|i| (format!("name {i}"), self.vector(9, |x| x % 2 == 0))).collect();
        let len_max = if self.below(9) == 0 { 40_000 } else { 300 };
        Tree {
            named,
            floats: self.vector(len_max, |x| x as f32),
            numbers: self.matrix(|x| x as i64 - 500),
            cube: Array1::from_elem(8, [self.below(256) as u8; 3]).into_shape_with_order((2, 2, 2)).unwrap(),
            shared,
            again,
            children,
            first,
            pair: (0.5, [0, 1].map(|_| self.vector(9, |x| char::from(x as u8))), 1..=3),
            outcome: match self.below(2) {
                0 => Ok(self.vector(20, |x| x as f64 / 3.0)),
                _ => Err("none".into()),
            },
        }
    }
}

/// The pairs of equal pointers among the leaves.
fn sharing<S: Storage>(tree: &Tree<S>, found: &mut Vec<*const Leaf<S>>) {
    found.push(Arc::as_ptr(&tree.shared));
    found.extend(tree.again.as_ref().map(Arc::as_ptr));
    tree.children.iter().chain(tree.first.as_deref()).for_each(|child| sharing(child, found));
}

/// For each leaf, the first one that is the same.
fn shape<S: Storage>(tree: &Tree<S>) -> Vec<usize> {
    let mut found = Vec::new();
    sharing(tree, &mut found);
    found.iter().filter_map(|leaf| found.iter().position(|other| other == leaf)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn there_and_back(seed: u64, size in 0..6_usize, schedule: u64) {
        let device = pool::Device::new(&gpumem_sim::driver(SimConfig::new().seed(schedule))?, 0)?;
        let gpu = Gpu::new(&Pool::new(&device)?)?;
        let tree = || Draw(seed).tree(size, &mut Vec::new());
        let (expected, sharing) = (tree(), shape(&tree()));

        let there: Tree<DeviceLocal> = expected.adapt(&gpu)?;
        prop_assert_eq!(shape(&there), sharing.clone());
        prop_assert_eq!(&there.adapt(&Host)?, &expected);
        let unpacked = expected.adapt(&Destination::new(&gpu).packed_below(0))?;
        prop_assert_eq!(&unpacked.into_adapted(&gpu)?.into_adapted(&Host)?, &expected);
        let unified = there.into_adapted(&gpu.unified())?;
        prop_assert_eq!(shape(&unified), sharing.clone());
        prop_assert_eq!(&unified.adapt(&Host)?, &expected);
        let pinned = unified.into_adapted(&gpu.pinned())?;
        let back = pinned.into_adapted(&Host)?;
        prop_assert_eq!(shape(&back), sharing.clone());
        prop_assert_eq!(&back, &expected);
        prop_assert_eq!(&tree().into_adapted(&Host)?, &expected);
        prop_assert_eq!(&tree().into_adapted(&gpu)?.adapt(&Host)?, &expected);
        drop((back, expected));
        prop_assert_eq!(gpu.pool().status()?.in_use_bytes, 0);
        prop_assert!(Sim::of(device.driver()).is_some_and(|sim| sim.report().findings.is_empty()));
    }

    /// Every container around arrays of one dimension, and values that stay as they are.
    #[test]
    fn containers(
        arrays: [Vec<i32>; 2],
        boxed: (Box<Vec<f32>>, Box<[u8]>, Box<[Vec<i64>]>),
        shared: (Rc<Vec<u16>>, Arc<Vec<bool>>),
        chosen: (Option<Vec<char>>, Result<Vec<i8>, String>),
        sorted: BTreeMap<u8, Vec<i32>>,
        hashed: HashMap<String, Vec<u32>>,
        bytes: Vec<u8>,
        kept: (Range<i32>, RangeInclusive<u8>, RangeFrom<u64>, RangeTo<i8>, RangeToInclusive<char>),
        scalars: (i8, u16, i128, f32, bool, char, String, ()),
    ) {
        let device = pool::Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
        let gpu = Gpu::new(&Pool::new(&device)?)?;
        let again = (shared.0.clone(), shared.1.clone());
        let text: Cow<'static, str> = Cow::Owned(scalars.6.clone());
        let first = (arrays, boxed.0, shared, again, chosen, sorted, hashed, kept, scalars, text, PhantomData::<[i32]>);
        let there = first.adapt(&gpu)?;
        prop_assert!(Rc::ptr_eq(&there.2.0, &there.3.0) && Arc::ptr_eq(&there.2.1, &there.3.1));
        prop_assert_eq!(&there.adapt(&HostVec)?, &first);
        let back = there.into_adapted(&gpu.unified())?.into_adapted(&gpu.pinned())?.into_adapted(&HostVec)?;
        prop_assert!(Rc::ptr_eq(&back.2.0, &back.3.0) && Arc::ptr_eq(&back.2.1, &back.3.1));
        prop_assert_eq!(&back, &first);
        // These become `Vec`s.
        let (flat, nested, cow) = (boxed.1, boxed.2, Cow::Borrowed(&bytes[..]));
        let there = (&*flat, &*nested, cow.clone()).adapt(&gpu)?;
        prop_assert_eq!(there.adapt(&HostVec)?, (flat.to_vec(), nested.to_vec(), bytes.clone()));
        let moved = (flat.clone(), nested.clone(), cow).into_adapted(&gpu)?.into_adapted(&HostVec)?;
        prop_assert_eq!(moved, (flat.to_vec(), nested.to_vec(), bytes.clone()));
    }

    /// Types of the host's own that hold arrays of one dimension.
    #[test]
    fn vectors(lists in vec((vec(any::<i32>(), 0..100), option::of(vec(vec(any::<u16>(), 0..100), 0..10))), 0..10)) {
        let device = pool::Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
        let gpu = Gpu::new(&Pool::new(&device)?)?;
        prop_assert_eq!(&lists.adapt(&gpu)?.into_adapted(&HostVec)?, &lists);
        prop_assert_eq!(&lists.adapt(&gpu.unified())?.adapt(&HostVec)?, &lists);
    }
}

/// The rules of `cu` in CUDA.jl, for each type of element.
#[test]
fn cu_converts_double_precision_only() {
    let device = pool::Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
    let value = (
        (
            vec![0.1_f64, 2.0],
            vec![0.5_f32],
            vec![Complex::new(1.0_f64, 0.1)],
            vec![Complex::new(1.0_f32, 2.0)],
        ),
        (vec![f16::ONE], vec![bf16::ONE], vec![-1_i64], vec![7_u8], vec![true], vec!['x']),
        (0.1_f64, [0.1_f64, 0.2], 0.1..0.2_f64, "text", vec![[0.1_f64, 0.2]], None::<Vec<f64>>),
    );
    let (floats, others, kept) = cu(&value).on(&gpu).unwrap();
    assert_eq!((floats.0.to_vec().unwrap(), floats.1.to_vec().unwrap()), (vec![0.1_f32, 2.0], vec![0.5]));
    assert_eq!(floats.2.to_vec().unwrap(), [Complex::new(1.0_f32, 0.1)]);
    assert_eq!(floats.3.to_vec().unwrap(), [Complex::new(1.0_f32, 2.0)]);
    assert_eq!(others.adapt(&HostVec).unwrap(), value.1);
    assert_eq!((kept.0, kept.1, kept.2, kept.3), (0.1, [0.1, 0.2], 0.1..0.2, "text"));
    assert_eq!((kept.4.to_vec().unwrap(), kept.5.is_none()), (vec![[0.1_f64, 0.2]], true));
    // An array on the device is copied, and converted.
    let double = vec![0.1_f64].adapt(&gpu).unwrap();
    assert_eq!(cu(&double).on(&gpu).unwrap().to_vec().unwrap(), [0.1_f32]);
    let single = cu(&double).pinned().on(&gpu).unwrap();
    let copied = cu(&single).on(&gpu).unwrap();
    assert_eq!((copied.to_vec().unwrap(), single[0]), (vec![0.1_f32], 0.1));
}
