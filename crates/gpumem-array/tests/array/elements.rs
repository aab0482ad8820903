//! Element types: plain bytes are copied unchanged, and invalid values written by the device do not reach Rust.

use crate::support::gpu;
use bytemuck::{CheckedBitPattern, NoUninit, Zeroable};
use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, KernelSource, LaunchShape};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt::Debug;
use std::num::NonZeroU32;

/// Uploads, fills, clones and downloads an array.
fn there_and_back<T: Element + PartialEq + Debug>(gpu: &Gpu, elements: &[T]) {
    let array = GpuArray::from_slice(gpu, elements).unwrap();
    assert_eq!(array.to_vec().unwrap(), elements);
    assert_eq!(array.try_clone().unwrap().to_vec().unwrap(), elements);
    assert_eq!(GpuArray::from_elem(gpu, 5, elements[0]).unwrap().to_vec().unwrap(), [elements[0]; 5]);
    assert_eq!(GpuArray::<T, _>::zeros(gpu, 3).unwrap().to_vec().unwrap(), [T::zeroed(); 3]);
}

#[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern, Zeroable)]
#[repr(C)]
struct Particle {
    place: [f32; 3],
    charge: i16,
    spin: Spin,
    is_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern, Zeroable)]
#[repr(u8)]
enum Spin {
    Down = 0,
    Up = 1,
}

/// Larger than any value that a memset supports, and aligned to more than a pointer.
#[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u64; 8]);

#[test]
fn numbers() {
    let gpu = gpu();
    there_and_back(&gpu, &[1.5_f32, -0.0]);
    there_and_back(&gpu, &[1.5_f64, f64::MIN_POSITIVE]);
    there_and_back(&gpu, &[i8::MIN, 1]);
    there_and_back(&gpu, &[i16::MIN, 1]);
    there_and_back(&gpu, &[i32::MIN, 1]);
    there_and_back(&gpu, &[i64::MIN, 1]);
    there_and_back(&gpu, &[u8::MAX, 1]);
    there_and_back(&gpu, &[u16::MAX, 1]);
    there_and_back(&gpu, &[u32::MAX, 1]);
    there_and_back(&gpu, &[u64::MAX, 1]);
    there_and_back(&gpu, &[u128::MAX, 1]);
}

#[test]
fn types_of_other_crates() {
    let gpu = gpu();
    there_and_back(&gpu, &[f16::from_f32(1.5), f16::MIN]);
    there_and_back(&gpu, &[bf16::from_f32(-1.5), bf16::MAX]);
    there_and_back(&gpu, &[Complex::new(1.0_f32, -1.0), Complex::i()]);
    there_and_back(&gpu, &[Complex::new(1.0_f64, -1.0), Complex::i()]);
}

#[test]
fn types_with_invalid_values() {
    let gpu = gpu();
    there_and_back(&gpu, &[true, false]);
    there_and_back(&gpu, &['é', char::MAX]);
    there_and_back(&gpu, &[NonZeroU32::new(7), None]);
    there_and_back(&gpu, &[Spin::Up, Spin::Down]);
}

#[test]
fn compound_types() {
    let gpu = gpu();
    there_and_back(&gpu, &[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let particle = Particle { place: [1.0, 2.0, 3.0], charge: -1, spin: Spin::Up, is_alive: true };
    there_and_back(&gpu, &[particle, Particle { spin: Spin::Down, ..particle }]);
    there_and_back(&gpu, &[CacheLine([1, 2, 3, 4, 5, 6, 7, 8]), CacheLine([0; 8])]);
}

/// Overwrites the byte at `offset` of the array.
fn poke<T: Element>(gpu: &Gpu, array: &mut GpuArray<T, Ix1>, offset: u64, value: u8) {
    let poke = gpu.compile(&KernelSource::ptx("poke", POKE)).unwrap().function("poke").unwrap();
    let launch = poke.launch(LaunchShape::for_len(1)).write(array).scalar(offset).scalar(value);
    // SAFETY: this deliberately violates the rule about valid values: only the checks of the download read them.
    unsafe { launch.enqueue(gpu).unwrap() };
}

fn assert_invalid<T: Element + Debug>(array: &GpuArray<T, Ix1>, expected: usize) {
    let error = array.to_vec().unwrap_err();
    let name = std::any::type_name::<T>();
    assert!(
        matches!(error, ArrayError::InvalidElement { index, kind } if (index, kind) == (expected, name)),
        "{error}"
    );
    assert!(array.to_array().is_err());
}

#[test]
fn an_invalid_bool_is_refused_by_index() {
    let gpu = gpu();
    let mut flags = GpuArray::from_slice(&gpu, &[true, false, true]).unwrap();
    poke(&gpu, &mut flags, 1, 2);
    assert_invalid(&flags, 1);
    poke(&gpu, &mut flags, 1, 1);
    assert_eq!(flags.to_vec().unwrap(), [true; 3]);
}

#[test]
fn an_invalid_enum_is_refused_by_index() {
    let gpu = gpu();
    let mut spins = GpuArray::from_elem(&gpu, 100, Spin::Up).unwrap();
    poke(&gpu, &mut spins, 99, 2);
    assert_invalid(&spins, 99);
}

#[test]
fn an_invalid_field_is_refused_by_the_index_of_its_struct() {
    let gpu = gpu();
    let mut particles = GpuArray::<Particle, _>::zeros(&gpu, 10).unwrap();
    poke(&gpu, &mut particles, (4 * size_of::<Particle>() + std::mem::offset_of!(Particle, spin)) as u64, 7);
    assert_invalid(&particles, 4);
}

#[test]
fn an_invalid_char_is_refused_by_index() {
    let gpu = gpu();
    let mut text = GpuArray::from_slice(&gpu, &['a', 'b']).unwrap();
    poke(&gpu, &mut text, 7, 0xff);
    assert_invalid(&text, 1);
}

const POKE: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry poke(.param .u64 bytes, .param .u64 offset, .param .u8 value) {
        .reg .b64 %to, %offset;
        .reg .b16 %value;
        ld.param.u64 %to, [bytes];
        ld.param.u64 %offset, [offset];
        ld.param.u8 %value, [value];
        add.u64 %to, %to, %offset;
        st.global.u8 [%to], %value;
        ret;
    }";
