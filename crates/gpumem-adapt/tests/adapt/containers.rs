//! Every container and every value that stays as it is: there and back, by value and by reference, with the allocations that are right already.

use gpumem_adapt::array::ndarray::{Array1, Array2, ArrayView1, Axis, Ix1, Ix2, array};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_adapt::{Adapt, F64, Host, HostVec};
use gpumem_sim::SimConfig;
use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

fn gpu() -> Gpu {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    Gpu::new(&Pool::new(&device).unwrap()).unwrap()
}

/// There and back, four times: by reference and by value, to device and unified memory. `$back` is what comes back.
macro_rules! there_and_back {
    ($gpu:expr, $value:expr, $back:expr) => {{
        let (gpu, back) = ($gpu, $back);
        assert_eq!($value.adapt(gpu).unwrap().adapt(&HostVec).unwrap(), back);
        assert_eq!($value.into_adapted(gpu).unwrap().into_adapted(&HostVec).unwrap(), back);
        assert_eq!(
            $value.adapt(&gpu.unified()).unwrap().adapt(&gpu.pinned()).unwrap().adapt(&HostVec).unwrap(),
            back
        );
        assert_eq!($value.into_adapted(&HostVec).unwrap(), back);
        assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    }};
    ($gpu:expr, $value:expr) => {
        there_and_back!($gpu, $value, $value)
    };
}

fn v(seed: i32) -> Vec<i32> {
    vec![seed, seed + 1, seed + 2]
}

#[test]
fn tuples_to_twelve() {
    let gpu = &gpu();
    there_and_back!(gpu, (), ());
    there_and_back!(gpu, (v(1),));
    there_and_back!(gpu, (v(1), 2));
    there_and_back!(gpu, (v(1), 2, v(3)));
    there_and_back!(gpu, (v(1), 2, v(3), 4));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5)));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7)));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7), 8));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7), 8, v(9)));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7), 8, v(9), 10));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7), 8, v(9), 10, v(11)));
    there_and_back!(gpu, (v(1), 2, v(3), 4, v(5), 6, v(7), 8, v(9), 10, v(11), 12));
    let one = huge();
    let error = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, one.broadcast(1 << 60).unwrap());
    assert_eq!(error.adapt(gpu).unwrap_err().path(), "11");
}

fn huge() -> Array1<f32> {
    array![1.0]
}

#[test]
fn sequences() {
    let gpu = &gpu();
    there_and_back!(gpu, [v(1), v(2)]);
    there_and_back!(gpu, [[v(1)], [v(2)]]);
    there_and_back!(gpu, [1.5_f32, 2.5]);
    there_and_back!(gpu, <[Vec<u8>; 0]>::default());
    there_and_back!(gpu, vec![v(1), v(2), vec![]]);
    there_and_back!(gpu, vec![Some(v(1)), None]);
    there_and_back!(gpu, Vec::<Vec<u8>>::new());
    there_and_back!(gpu, vec![[1.5_f32, 2.5], [3.5, 4.5]]);
    there_and_back!(gpu, vec!["a".to_owned(), "b".to_owned()]);
    there_and_back!(gpu, v(1).into_boxed_slice(), v(1));
    there_and_back!(gpu, vec![v(1), v(2)].into_boxed_slice(), vec![v(1), v(2)]);
    there_and_back!(gpu, Cow::<[i32]>::Owned(v(1)), v(1));
    let borrowed = v(4);
    there_and_back!(gpu, Cow::Borrowed(&borrowed[..]), v(4));
    there_and_back!(gpu, (&borrowed, &borrowed[1..]), (v(4), vec![5, 6]));
}

#[test]
fn values_behind_pointers() {
    let gpu = &gpu();
    there_and_back!(gpu, Box::new(v(1)));
    there_and_back!(gpu, Box::new((v(1), Box::new(v(2)))));
    there_and_back!(gpu, Rc::new(v(1)));
    there_and_back!(gpu, Arc::new(vec![Arc::new(v(1))]));
    there_and_back!(gpu, Some(v(1)));
    there_and_back!(gpu, None::<Vec<i32>>);
    there_and_back!(gpu, Ok::<Vec<i32>, String>(v(1)));
    there_and_back!(gpu, Err::<Vec<i32>, Vec<u8>>(vec![7]));
    let borrowed = (v(1), vec![v(2)], 3);
    there_and_back!(gpu, Cow::Borrowed(&borrowed), borrowed.clone());
    there_and_back!(gpu, Cow::<(Vec<i32>, Vec<Vec<i32>>, i32)>::Owned(borrowed.clone()), borrowed.clone());
    there_and_back!(gpu, vec![Cow::Borrowed(&borrowed); 2], vec![borrowed.clone(); 2]);
}

#[test]
fn maps_keep_their_keys() {
    let gpu = &gpu();
    let pairs = || [("b".to_owned(), v(1)), ("a".to_owned(), v(2))];
    there_and_back!(gpu, BTreeMap::from(pairs()));
    there_and_back!(gpu, HashMap::from(pairs()));
    there_and_back!(gpu, BTreeMap::from([((1, 'x'), vec![v(1)])]));
    // The hasher too.
    let mut seeded = HashMap::with_hasher(RandomState::new());
    seeded.extend(pairs());
    there_and_back!(gpu, seeded.clone());
    let failing = BTreeMap::from([("first", None), ("second", Some(huge()))]);
    let failing: BTreeMap<_, _> = failing
        .iter()
        .map(|(key, value)| (*key, value.as_ref().map(|value| value.broadcast(1 << 60).unwrap())))
        .collect();
    assert_eq!(failing.adapt(gpu).unwrap_err().path(), "[\"second\"]");
}

/// The same on every side.
fn unchanged<V>(gpu: &Gpu, value: V)
where
    V: Adapt<Gpu, Adapted = V>
        + Adapt<Host, Adapted = V>
        + Adapt<HostVec, Adapted = V>
        + Clone
        + PartialEq
        + Debug,
{
    assert_eq!(Adapt::<Gpu>::adapt(&value, gpu).unwrap(), value);
    assert_eq!(Adapt::<Gpu>::into_adapted(value.clone(), gpu).unwrap(), value);
    assert_eq!(Adapt::<Host>::adapt(&value, &Host).unwrap(), value);
    assert_eq!(Adapt::<HostVec>::into_adapted(value.clone(), &HostVec).unwrap(), value);
}

#[test]
fn values_that_stay_as_they_are() {
    let gpu = &gpu();
    unchanged(gpu, ());
    unchanged(gpu, (1_i8, 2_i16, 3_i32, 4_i64, 5_i128, 6_isize));
    unchanged(gpu, (1_u8, 2_u16, 3_u32, 4_u64, 5_u128, 6_usize));
    unchanged(gpu, (0.5_f32, 0.25_f64, half::f16::ONE, half::bf16::ONE, true, 'x'));
    unchanged(gpu, (num_complex::Complex::new(1.0_f32, 2.0), num_complex::Complex::new(1.0_f64, 2.0)));
    unchanged(gpu, ([1_u8; 3], [[0.5_f64; 2]; 2], [true, false]));
    unchanged(gpu, (String::from("a"), Cow::Borrowed("b"), "c"));
    unchanged(gpu, (Box::<str>::from("a"), Rc::<str>::from("b"), Arc::<str>::from("c")));
    let path = Path::new("a/b");
    unchanged(gpu, (path, path.to_owned(), Cow::Borrowed(path), Cow::<Path>::Owned(path.to_owned())));
    unchanged(gpu, (Box::<Path>::from(path), Rc::<Path>::from(path), Arc::<Path>::from(path)));
    let name = OsStr::new("a.b");
    unchanged(gpu, (name, name.to_owned(), Cow::Borrowed(name), Cow::<OsStr>::Owned(name.to_owned())));
    unchanged(gpu, (Box::<OsStr>::from(name), Rc::<OsStr>::from(name), Arc::<OsStr>::from(name)));
    let text: &CStr = c"a";
    unchanged(gpu, (text, text.to_owned(), Cow::Borrowed(text), Cow::<CStr>::Owned(text.to_owned())));
    unchanged(gpu, (Box::<CStr>::from(text), Rc::<CStr>::from(text), Arc::<CStr>::from(text)));
    unchanged(gpu, (vec![path.to_owned()], Some(name), BTreeMap::from([(path.to_owned(), c"b")])));
    unchanged(gpu, (0..5_usize, 1.5..=2.5_f64, 3_i8.., ..7_u64, ..='z'));
    unchanged(gpu, ((..), PhantomData::<[u8]>, Some(1..2)));
}

#[test]
fn what_is_right_already_keeps_its_address() {
    let gpu = &gpu();
    let host = (
        v(1),
        vec![v(2), v(3)],
        Box::new(v(4)),
        Some(v(5)),
        [v(6)],
        BTreeMap::from([(1, v(7))]),
        Ok::<_, String>(v(8)),
    );
    let address = |vector: &Vec<i32>| vector.as_ptr();
    let before = (address(&host.0), address(&host.1[1]), address(&host.2), address(host.3.as_ref().unwrap()));
    let after_before = (address(&host.4[0]), address(&host.5[&1]), address(host.6.as_ref().unwrap()));
    let host = host.into_adapted(&HostVec).unwrap();
    assert_eq!(
        (address(&host.0), address(&host.1[1]), address(&host.2), address(host.3.as_ref().unwrap())),
        before
    );
    assert_eq!((address(&host.4[0]), address(&host.5[&1]), address(host.6.as_ref().unwrap())), after_before);
    let there = host.into_adapted(gpu).unwrap();
    let address = |array: &GpuArray<i32, Ix1>| array.address();
    let before =
        (address(&there.0), address(&there.1[1]), address(&there.2), address(there.3.as_ref().unwrap()));
    let after_before = (address(&there.4[0]), address(&there.5[&1]), address(there.6.as_ref().unwrap()));
    let there = there.into_adapted(gpu).unwrap();
    assert_eq!(
        (address(&there.0), address(&there.1[1]), address(&there.2), address(there.3.as_ref().unwrap())),
        before
    );
    assert_eq!(
        (address(&there.4[0]), address(&there.5[&1]), address(there.6.as_ref().unwrap())),
        after_before
    );
    let slice = v(1).into_boxed_slice();
    let address = slice.as_ptr();
    let vector = slice.into_adapted(&HostVec).unwrap();
    assert_eq!(vector.as_ptr(), address);
    let owned = v(1);
    let address = owned.as_ptr();
    let vector = Cow::<[i32]>::Owned(owned).into_adapted(&HostVec).unwrap();
    assert_eq!(vector.as_ptr(), address);
    let vector = Cow::<Vec<i32>>::Owned(vector).into_adapted(&HostVec).unwrap();
    assert_eq!(vector.as_ptr(), address);
    let there = vec![v(1).into_adapted(gpu).unwrap()].into_boxed_slice();
    let address = there[0].address();
    assert!(there.is_at(gpu) && !v(1).into_boxed_slice().is_at(gpu));
    assert_eq!(there.into_adapted(gpu).unwrap()[0].address(), address);
    assert!(Adapt::<Host>::is_at(&Cow::<Vec<i32>>::Owned(v(1)), &Host));
    assert!(!Adapt::<Host>::is_at(&Cow::Borrowed(&v(1)), &Host));
}

/// The device memory that a function's result has.
fn allocated<R>(gpu: &Gpu, run: impl FnOnce() -> R) -> (R, u64) {
    let before = gpu.pool().status().unwrap().in_use_bytes;
    let result = run();
    (result, gpu.pool().status().unwrap().in_use_bytes - before)
}

#[test]
fn a_shared_value_is_uploaded_once() {
    const LEN: usize = 1 << 20;
    let gpu = &gpu();
    let shared = Arc::new(vec![1_u8; LEN]);
    let local = Rc::new(vec![1_u8; LEN]);
    let value = (vec![shared.clone(), shared.clone()], Some(shared), [local.clone(), local]);
    let (there, in_use_bytes) = allocated(gpu, || value.adapt(gpu).unwrap());
    assert_eq!(in_use_bytes, 2 * LEN as u64);
    assert!(Arc::ptr_eq(&there.0[0], &there.0[1]) && Arc::ptr_eq(&there.0[0], there.1.as_ref().unwrap()));
    assert!(Rc::ptr_eq(&there.2[0], &there.2[1]) && !std::ptr::eq(&*there.0[0], &*there.2[0]));
    let address = there.0[0].address();
    let there = there.into_adapted(gpu).unwrap();
    assert_eq!((there.0[1].address(), Arc::strong_count(&there.0[0])), (address, 3));
    let back = there.into_adapted(&HostVec).unwrap();
    assert!(Arc::ptr_eq(&back.0[0], &back.0[1]) && Rc::ptr_eq(&back.2[0], &back.2[1]));
    assert_eq!(back, value);
}

/// A view has no memory of its own, and becomes an array.
#[test]
fn views_become_arrays() {
    let gpu = &gpu();
    let matrix: Array2<f32> = array![[1.0, 2.0], [3.0, 4.0]];
    let column: ArrayView1<'_, f32> = matrix.column(1);
    let (there, row): (GpuArray<f32, Ix1>, GpuArray<f32, Ix1>) = (column, matrix.row(0)).adapt(gpu).unwrap();
    assert_eq!((there.to_vec().unwrap(), row.to_vec().unwrap()), (vec![2.0, 4.0], vec![1.0, 2.0]));
    let whole: GpuArray<f32, Ix2> = matrix.t().into_adapted(gpu).unwrap();
    assert_eq!(whole.t().adapt(&Host).unwrap(), matrix);
    // Larger than any memory, on the host too.
    let column = array![1.0_f32, 2.0];
    let huge = column.view().insert_axis(Axis(1));
    let huge = huge.broadcast((2, 1 << 57)).unwrap();
    assert!(huge.adapt(&Host).unwrap_err().is_out_of_memory());
    assert!(huge.adapt(&Host::elements::<F64>()).unwrap_err().is_out_of_memory());
    assert!(huge.adapt(&gpu.pinned()).unwrap_err().is_out_of_memory());
}
