//! Vectors that grow and shrink.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::s;
use gpumem_array::pool::{BackendKind, Device, Limit, Pool};
use gpumem_array::{Gpu, GpuArray};
use gpumem_sim::SimConfig;
use proptest::prelude::*;

/// CUDA.jl's `resize!` of vectors.
#[test]
fn the_capacity_grows_ahead_and_shrinks_late() {
    let gpu = gpu();
    let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
    assert_eq!(x.capacity(), 3);
    let mut seen = Vec::new();
    for len in [4, 5, 1000, 999, 10] {
        let address = x.address();
        x.resize(len, -1).unwrap();
        assert_eq!((x.len(), &x.to_vec().unwrap()[..3]), (len, &[1, 2, 3][..]));
        seen.push((x.capacity(), x.address() == address));
    }
    assert_eq!(seen, [(6, false), (6, true), (1000, false), (1000, true), (10, false)]);
    x.resize(0, 0).unwrap();
    assert_eq!((x.to_vec().unwrap(), x.capacity()), (vec![], 0));
    x.extend_from_slice(&[7, 8]).unwrap();
    assert_eq!(x.to_vec().unwrap(), [7, 8]);
    x.append(&x.try_clone().unwrap().slice(s![..;-1]).unwrap()).unwrap();
    assert_eq!(x.to_vec().unwrap(), [7, 8, 8, 7]);
}

#[test]
fn a_refused_resize_changes_nothing() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(Limit::Bytes(64 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let mut x = GpuArray::from_elem(&gpu, 16 << 20, 1_u8).unwrap();
    assert!(x.resize(100 << 20, 0).is_err());
    assert!(x.resize(usize::MAX, 0).is_err());
    assert_eq!((x.len(), x.capacity()), (16 << 20, 16 << 20));
    // Twice the room does not fit beside the old memory, but the elements do.
    let mut y = GpuArray::from_elem(&gpu, 18 << 20, 1_u8).unwrap();
    drop(x);
    y.resize(20 << 20, 2).unwrap();
    assert_eq!(y.len(), 20 << 20);
    assert_eq!(y.slice(s![(18 << 20) - 1..=18 << 20]).unwrap().to_vec().unwrap(), [1, 2]);
}

proptest! {
    /// Like a `Vec`, on two streams and in every order of queued work.
    #[test]
    fn any_changes_are_those_of_a_vector(
        changes in proptest::collection::vec((0..4_u8, 0..40_usize, any::<i16>()), 1..20),
        seed in any::<u64>(),
        unit in prop_oneof![Just(1_usize), Just(6_000)],
        is_growable in any::<bool>(),
    ) {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        // Only the backend `caching` has such memory.
        let is_growable = is_growable && gpu.pool().backend() == BackendKind::Caching;
        let other = gpu.fork().unwrap();
        let mut expected = Vec::new();
        let mut ours = match is_growable {
            true => GpuArray::growable(&gpu, 20 * 40 * unit).unwrap(),
            false => GpuArray::from_slice(&gpu, &[]).unwrap(),
        };
        let address = ours.address();
        for (change, len, value) in changes {
            let len = len * unit;
            let piece: Vec<i16> = (0..len).map(|i| i as i16 ^ value).collect();
            match change {
                0 => (ours.resize(len, value).unwrap(), expected.resize(len, value)),
                1 => (ours.extend_from_slice(&piece).unwrap(), expected.extend_from_slice(&piece)),
                2 => {
                    let piece = GpuArray::from_slice(&other, &piece).unwrap();
                    (ours.append(&piece.on(&other)).unwrap(), expected.extend(piece.to_vec().unwrap()))
                }
                _ => {
                    ours = ours.into_gpu(&other).unwrap();
                    (ours.fill(value).unwrap(), expected.fill(value))
                }
            };
        }
        prop_assert!(!is_growable || ours.address() == address);
        prop_assert!(ours.to_vec().unwrap() == expected);
    }
}
