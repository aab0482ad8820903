//! cuRAND: random numbers in device memory. A seed gives the same numbers each time, and they are others than cuRAND's.

use crate::driver::{Shape, Stream, own};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// `curandStatus_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const OUT_OF_RANGE: Status = 104;
const LENGTH_NOT_MULTIPLE: Status = 105;
const LAUNCH_FAILURE: Status = 201;

const BLOCK: u32 = 256;

pub struct Generator {
    seed: u64,
    /// Numbers generated so far.
    offset: u64,
    stream: Stream,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(generator: *mut *mut Generator, _kind: c_int) -> Status {
    let new = Box::into_raw(Box::new(Generator { seed: 0, offset: 0, stream: null_mut() }));
    // SAFETY: the caller passes a place for a generator.
    unsafe { generator.write(new) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandDestroyGenerator(generator: *mut Generator) -> Status {
    // SAFETY: the caller passes a generator of `curandCreateGenerator` for the last time.
    drop(unsafe { Box::from_raw(generator) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: *mut Generator, seed: u64) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    unsafe { ((*generator).seed, (*generator).offset) = (seed, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandSetStream(generator: *mut Generator, stream: Stream) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    unsafe { (*generator).stream = stream };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGenerateUniform(
    generator: *mut Generator,
    output: *mut f32,
    count: usize,
) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    fill(c"uniform_f32", unsafe { &mut *generator }, output.cast(), count, 0.0, 1.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGenerateUniformDouble(
    generator: *mut Generator,
    output: *mut f64,
    count: usize,
) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    fill(c"uniform_f64", unsafe { &mut *generator }, output.cast(), count, 0.0, 1.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGenerateNormal(
    generator: *mut Generator,
    output: *mut f32,
    count: usize,
    mean: f32,
    deviation: f32,
) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    pairs(c"normal_f32", unsafe { &mut *generator }, output.cast(), count, mean.into(), deviation.into())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGenerateNormalDouble(
    generator: *mut Generator,
    output: *mut f64,
    count: usize,
    mean: f64,
    deviation: f64,
) -> Status {
    // SAFETY: the caller passes a generator that no other thread uses.
    pairs(c"normal_f64", unsafe { &mut *generator }, output.cast(), count, mean, deviation)
}

/// cuRAND generates normal numbers in pairs, and refuses an odd count.
fn pairs(
    kernel: &CStr,
    generator: &mut Generator,
    output: *mut c_void,
    count: usize,
    mean: f64,
    deviation: f64,
) -> Status {
    match count % 2 {
        0 => fill(kernel, generator, output, count, mean, deviation),
        _ => LENGTH_NOT_MULTIPLE,
    }
}

fn fill(
    kernel: &CStr,
    generator: &mut Generator,
    mut output: *mut c_void,
    count: usize,
    mut mean: f64,
    mut deviation: f64,
) -> Status {
    if count == 0 {
        return SUCCESS;
    }
    let Ok(blocks) = u32::try_from(count.div_ceil(BLOCK as usize)) else { return OUT_OF_RANGE };
    let Ok(kernel) = own(kernel) else { return LAUNCH_FAILURE };
    let (mut count, mut seed, mut offset) = (count as u64, generator.seed, generator.offset);
    let mut parameters: [*mut c_void; 6] = [
        (&raw mut output).cast(),
        (&raw mut count).cast(),
        (&raw mut seed).cast(),
        (&raw mut offset).cast(),
        (&raw mut mean).cast(),
        (&raw mut deviation).cast(),
    ];
    let shape = Shape { grid: [blocks, 1, 1], block: [BLOCK, 1, 1], shared_bytes: 0 };
    // SAFETY: these are the parameters of the kernel, which writes `count` numbers to the memory that the caller of cuRAND passes.
    match unsafe { kernel.launch(&shape, generator.stream, parameters.as_mut_ptr()) } {
        0 => {
            generator.offset += count;
            SUCCESS
        }
        _ => LAUNCH_FAILURE,
    }
}
