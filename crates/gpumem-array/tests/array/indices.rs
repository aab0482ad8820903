//! Elements by indices and by masks.

use crate::support::gpu;
use gpumem_array::GpuArray;
use gpumem_array::ndarray::{Array1, Axis, s};

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
