//! Kernels from PTX, loaded and launched by cust, with a variable of their module.

use cust::error::CudaResult;
use cust::launch;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};

const TEXT: &str = include_str!("kernels.ptx");
/// Not a multiple of the blocks' size: the last threads have nothing to do.
const LENGTH: usize = 10_007;
const BLOCK: usize = 128;

pub fn element_wise() -> CudaResult<()> {
    let module = Module::from_ptx(TEXT, &[])?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let x: Vec<f32> = (0..LENGTH).map(|index| index as f32).collect();
    let y: Vec<f32> = x.iter().map(|x| 0.5 - x).collect();
    let (x_on_device, y_on_device) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&y)?);
    let output = DeviceBuffer::<f32>::zeroed(LENGTH)?;
    for weight in [2.0_f32, -0.25] {
        module.get_global(c"weight")?.copy_from(&weight)?;
        // SAFETY: the buffers have the given length and outlive the work, and nothing else touches them until the stream is done.
        unsafe {
            launch!(module.weighted<<<7, BLOCK as u32, 0, stream>>>(
                x_on_device.as_device_ptr(),
                y_on_device.as_device_ptr(),
                output.as_device_ptr(),
                LENGTH
            ))?;
        }
        stream.synchronize()?;
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| weight.mul_add(*x, *y)).collect();
        assert_eq!(output.as_host_vec()?, expected);
    }
    Ok(())
}

pub fn reduction() -> CudaResult<()> {
    let module = Module::from_ptx(TEXT, &[])?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let numbers: Vec<u32> = (0..LENGTH as u32).map(|number| number.wrapping_mul(2_654_435_761)).collect();
    let on_device = DeviceBuffer::from_slice(&numbers)?;
    let sum = DeviceBuffer::<u32>::zeroed(1)?;
    let total = module.get_function("total")?;
    // SAFETY: the buffers have the given lengths and outlive the work, and nothing else touches them until the stream is done.
    unsafe {
        launch!(total<<<LENGTH.div_ceil(BLOCK) as u32, BLOCK as u32, 0, stream>>>(
            on_device.as_device_ptr(),
            sum.as_device_ptr(),
            LENGTH
        ))?;
    }
    stream.synchronize()?;
    let expected = numbers.iter().fold(0_u32, |sum, number| sum.wrapping_add(*number));
    assert_eq!(sum.as_host_vec()?, [expected]);
    Ok(())
}
