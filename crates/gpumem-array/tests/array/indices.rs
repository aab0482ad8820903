//! Elements by indices and by masks.

use crate::support::gpu;
use gpumem_array::ndarray::{Array1, Array3, Axis, s};
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

/// Views of any steps are read where they are, along each axis, in units of each size.
#[test]
fn selections_of_views_are_those_of_the_host() {
    fn check<T: gpumem_array::Element + PartialEq + std::fmt::Debug>(gpu: &Gpu, of: impl Fn(usize) -> T) {
        let host = Array3::from_shape_fn((6, 10, 32), |(i, j, k)| of(1000 * i + 40 * j + k));
        let x = GpuArray::from_array(gpu, &host).unwrap();
        let indices = [3, 0, 4, 4, 1];
        let on_device = GpuArray::from_slice(gpu, &indices.map(|index| index as i32)).unwrap();
        let parts = s![1.., ..;-2, 5..10];
        for (view, host) in [
            (x.view(), host.view()),
            (x.t(), host.t()),
            (x.permuted_axes([1, 0, 2]).unwrap(), host.view().permuted_axes([1, 0, 2])),
            (x.slice(parts).unwrap(), host.slice(parts)),
            (
                x.slice(parts).unwrap().permuted_axes([2, 0, 1]).unwrap(),
                host.slice(parts).permuted_axes([2, 0, 1]),
            ),
            (
                x.slice(s![..5, ..1, ..16]).unwrap().broadcast((5, 7, 16)).unwrap(),
                host.slice(s![..5, ..1, ..16]).broadcast((5, 7, 16)).unwrap(),
            ),
        ] {
            for axis in 0..3 {
                let wanted = host.select(Axis(axis), &indices);
                assert_eq!(view.select(Axis(axis), &indices).unwrap().to_array().unwrap(), wanted, "{axis}");
                assert_eq!(
                    view.select(Axis(axis), &on_device).unwrap().to_array().unwrap(),
                    wanted,
                    "{axis}"
                );
            }
        }
        let column = x.slice(s![0, .., 7]).unwrap();
        let found = column.select(Axis(0), &GpuArray::from_slice(gpu, &[9_u32, 10, 2]).unwrap()).unwrap();
        assert_eq!(found.slice(s![0]).unwrap().into_scalar().unwrap(), of(367));
        assert_eq!(found.slice(s![2]).unwrap().into_scalar().unwrap(), of(87));
        assert_eq!(
            bytemuck::bytes_of(&found.slice(s![1]).unwrap().into_scalar().unwrap()),
            vec![0; size_of::<T>()]
        );
    }
    let gpu = gpu();
    check(&gpu, |n| n as u8);
    check(&gpu, |n| n as i16);
    check(&gpu, |n| n as f32);
    check(&gpu, |n| n as u64);
    check(&gpu, |n| [n as f32, n as f32 + 0.5, -1.0]);
    check(&gpu, |n| [n as f64, 0.5]);
}
