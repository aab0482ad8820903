//! Elements by indices and by masks.

use crate::support::gpu;
use gpumem_array::ndarray::{Array1, Axis, s};
use gpumem_array::pool::{Device, Limit, Pool};
use gpumem_array::{Gpu, GpuArray};
use gpumem_sim::SimConfig;

/// A part of a mask begins at any byte. The simulator stops loads that are not aligned.
#[test]
fn a_mask_begins_at_any_byte() {
    let gpu = gpu();
    for len in [8, 9, 15, 64, 1000, 2047, 2049, 4096, 4100] {
        let host = Array1::from_shape_fn(len + 7, |i| i * i % 7 < 3);
        let mask = GpuArray::from_array(&gpu, &host).unwrap();
        let x = GpuArray::from_fn(&gpu, len, |i| i as u32).unwrap();
        for offset in 0..8 {
            let part = mask.slice(s![offset..offset + len]).unwrap();
            let wanted: Vec<_> = (0..len).filter(|i| host[offset + i]).collect();
            let found = x.compress(Axis(0), &part).unwrap().to_vec().unwrap();
            assert!(found.iter().map(|i| *i as usize).eq(wanted.iter().copied()), "{len} from {offset}");
            let found = part.lazy().nonzero().unwrap().to_vec().unwrap();
            assert!(found.iter().map(|i| *i as usize).eq(wanted), "{len} from {offset}");
        }
    }
}

/// Additions of few long rows need no memory for sums of parts.
#[test]
fn few_additions_take_no_memory_but_for_their_indices() {
    const LEN: usize = 1 << 20;
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(Limit::Bytes(14 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let mut sums = GpuArray::<f32, _>::zeros(&gpu, (1, LEN)).unwrap();
    let values = GpuArray::<f32, _>::ones(&gpu, (1, LEN)).unwrap();
    sums.scatter_add(Axis(0), &[0], &values).unwrap();
    assert_eq!(sums.sum().unwrap().into_scalar().unwrap(), LEN as f32);
}

/// On both sides of the number of additions that one thread sums, with rows that go over several of these parts.
#[test]
fn additions_are_those_of_the_host() {
    let gpu = gpu();
    for count in [1, 127, 128, 129, 255, 257, 1000] {
        for rows in [1, 3, 200] {
            let indices: Vec<usize> = (0..count).map(|i| i * i % rows).collect();
            let host = Array1::from_shape_fn(count, |i| i as i64 - 40);
            let mut wanted = Array1::<i64>::ones(rows);
            indices.iter().zip(&host).for_each(|(row, value)| wanted[*row] += value);
            let mut sums = GpuArray::<i64, _>::ones(&gpu, rows).unwrap();
            sums.scatter_add(Axis(0), &indices, &GpuArray::from_array(&gpu, &host).unwrap()).unwrap();
            assert_eq!(sums.to_array().unwrap(), wanted, "{count} to {rows}");
        }
    }
}
