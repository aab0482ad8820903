//! Checks of [`shared`](crate::shared): values arrive, each side frees its own memory once, and a buffer of another context is refused.

use crate::shared::{Adopted, CustBuffer, CustError, CustKind, CustStream, Given, Shared, read, write};
use cust::context::Context;
use cust::memory::{
    AsyncCopyDestination, CopyDestination, DeviceBuffer, LockedBuffer, UnifiedBuffer, mem_get_info,
};
use cust::stream::{Stream as Raw, StreamFlags};
use gpumem_array::ndarray::{Dimension, Ix1};
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray};
use std::error::Error;

type Checked = Result<(), Box<dyn Error>>;

type Check = (&'static str, fn(&Gpu) -> Checked);

const CHECKS: &[Check] = &[
    ("a device array is lent to cust", lent_device),
    ("unified and pinned arrays are lent to cust", lent_host),
    ("arrays are given to cust and taken back", given),
    ("a given array is freed to the pool", given_and_dropped),
    ("buffers of cust become arrays", adopted),
    ("an adopted buffer is freed by cust, once, on any thread", adopted_and_dropped),
    ("an adopted buffer goes back to cust", returned),
    ("no elements", empty),
    ("a buffer of another context is refused", other_context),
    ("a stream of another device is refused", other_stream),
];

pub fn check() -> Checked {
    let driver = Driver::cuda().or_else(|_| Driver::drop_in())?;
    let pool = Pool::new(&Device::new(&driver, 0)?)?;
    let gpu = Gpu::new(&pool)?;
    for (name, check) in CHECKS {
        check(&gpu)?;
        println!("{name}: ok");
    }
    pool.check()?;
    assert_eq!(pool.status()?.in_use_bytes, 0, "every block went back to the pool");
    Ok(())
}

fn stream(gpu: &Gpu) -> Result<CustStream, Box<dyn Error>> {
    Ok(CustStream::new(gpu.device(), Raw::new(StreamFlags::DEFAULT, None)?)?)
}

fn numbers() -> Vec<u32> {
    (0..5000).collect()
}

fn lent_device(gpu: &Gpu) -> Checked {
    let (stream, mut back) = (stream(gpu)?, vec![0; 5000]);
    let mut array = GpuArray::from_slice(gpu, &numbers())?;
    // A blocking call, behind the upload on the stream of `gpu`.
    read(&array, &stream, |buffer| buffer.copy_to(&mut back))??;
    assert_eq!(back, numbers());
    // An asynchronous one, and gpumem's download waits for it.
    let ones = LockedBuffer::new(&1_u32, 5000)?;
    // SAFETY: `ones` outlives the copy, which the download below waits for.
    write(&mut array, &stream, |buffer| unsafe {
        buffer.as_mut_slice().async_copy_from(ones.as_slice(), &stream)
    })??;
    assert_eq!(array.to_vec()?, vec![1; 5000]);
    // A fill and a copy on the device, which return before they have run. Each follows work that gpumem has queued.
    let source = GpuArray::from_slice(gpu, &numbers())?;
    array.assign(&source)?;
    write(&mut array, &stream, |buffer| buffer.as_mut_slice().set_32(9))??;
    assert_eq!(array.to_vec()?, vec![9; 5000]);
    array.assign(&source)?;
    let fives = DeviceBuffer::from_slice(&[5_u32; 5000])?;
    write(&mut array, &stream, |buffer| buffer.as_mut_slice().copy_from(&fives))??;
    assert_eq!(array.to_vec()?, vec![5; 5000]);
    Ok(())
}

fn lent_host(gpu: &Gpu) -> Checked {
    let stream = stream(gpu)?;
    let source = GpuArray::from_slice(gpu, &numbers())?;
    let mut pinned = GpuArray::<u32, _, _>::zeros(&gpu.pinned(), 5000)?;
    pinned.assign(&source)?;
    let sum = read(&pinned, &stream, |buffer| buffer.iter().sum::<u32>())?;
    assert_eq!(sum, 4999 * 2500);
    write(&mut pinned, &stream, |buffer| buffer.as_mut_slice().fill(7))?;
    assert_eq!(pinned.to_vec()?, vec![7; 5000]);

    let mut unified = GpuArray::from_slice(&gpu.unified(), &numbers())?;
    write(&mut unified, &stream, |buffer| {
        assert_eq!(buffer[17], 17);
        buffer.as_mut_slice()[17] = 71;
        assert!(!buffer.as_unified_ptr().is_null());
    })?;
    assert_eq!(unified.slice_axis(gpumem_array::ndarray::Axis(0), (17..18).into())?.to_vec()?, [71]);
    assert_eq!(read(&unified, &stream, |buffer| buffer.as_slice()[16..18].to_vec())?, [16, 71]);
    Ok(())
}

fn given(gpu: &Gpu) -> Checked {
    let stream = stream(gpu)?;
    let mut device = Given::new(GpuArray::from_slice(gpu, &numbers())?, &stream)?;
    let copy = DeviceBuffer::from_slice(&vec![3_u32; 5000])?;
    assert_eq!(device.as_host_vec()?, numbers());
    // SAFETY: `copy` outlives the work: the stream is waited for before it is dropped.
    unsafe { device.as_mut_slice().async_copy_from(&*copy, &stream)? };
    let array = device.take_back();
    assert_eq!(array.to_vec()?, vec![3; 5000]);
    stream.synchronize()?;
    // An array of gpumem may also work on cust's stream itself.
    let on_stream = Gpu::with_stream(gpu.pool(), stream.known())?;
    assert_eq!(array.on(&on_stream).to_owned()?.to_vec()?, vec![3; 5000]);

    let mut unified = Given::new(GpuArray::from_slice(&gpu.unified(), &numbers())?, &stream)?;
    unified.as_mut_slice()[0] = 9;
    assert_eq!(unified.as_unified_ptr().as_raw(), unified.as_ptr());
    assert_eq!(unified.take_back().as_slice()?[..2], [9, 1]);

    let mut pinned = Given::new(GpuArray::from_slice(&gpu.pinned(), &numbers())?, &stream)?;
    pinned.as_mut_slice()[1] = 8;
    assert_eq!(pinned.take_back().as_slice()?[..2], [0, 8]);
    Ok(())
}

fn given_and_dropped(gpu: &Gpu) -> Checked {
    let stream = stream(gpu)?;
    let before = gpu.pool().status()?.in_use_bytes;
    let zeros = LockedBuffer::new(&0_u32, 5000)?;
    for _ in 0..20 {
        let mut given = Given::new(GpuArray::from_slice(gpu, &numbers())?, &stream)?;
        // SAFETY: `zeros` outlives the work: the stream is waited for below.
        unsafe { given.as_mut_slice().async_copy_from(zeros.as_slice(), &stream)? };
        drop(given); // the next array may get the memory, behind the copy
    }
    assert_eq!(gpu.pool().status()?.in_use_bytes, before);
    stream.synchronize()?;
    Ok(())
}

/// Uses a buffer of cust as an array, on the stream of the `Gpu` and on another one.
fn use_adopted<B: CustBuffer<Element = u32> + 'static>(
    gpu: &Gpu,
    buffer: B,
) -> Result<Adopted<B>, Box<dyn Error>> {
    let mut adopted = Adopted::new(gpu, buffer)?;
    assert_eq!(adopted.view().to_vec()?, numbers());
    let other = Gpu::with_stream(gpu.pool(), &new_stream(gpu)?)?;
    let copy = GpuArray::from_elem(&other, 5000, 5_u32)?;
    adopted.view_mut()?.on_mut(&other).assign(&copy)?;
    let mut device = GpuArray::<u32, Ix1>::zeros(gpu, 5000)?;
    device.assign(&adopted.view())?;
    assert_eq!(device.to_vec()?, vec![5; 5000]);
    adopted.view_mut()?.on_mut(&other).assign(&GpuArray::from_elem(&other, 5000, 6_u32)?)?;
    Ok(adopted)
}

fn new_stream(gpu: &Gpu) -> Result<gpumem_array::pool::Stream, Box<dyn Error>> {
    Ok(gpumem_array::pool::Stream::new(gpu.device())?)
}

fn adopted(gpu: &Gpu) -> Checked {
    drop(use_adopted(gpu, DeviceBuffer::from_slice(&numbers())?)?);
    drop(use_adopted(gpu, UnifiedBuffer::from_slice(&numbers())?)?);
    drop(use_adopted(gpu, LockedBuffer::from_slice(&numbers())?)?);
    Ok(())
}

fn adopted_and_dropped(gpu: &Gpu) -> Checked {
    let free_bytes = || mem_get_info().map(|(free, _)| free);
    gpu.device().synchronize()?;
    let before = free_bytes()?;
    let size = 64 << 20;
    // SAFETY: the elements are numbers, which have no invalid values, and nothing reads them.
    let buffer = unsafe { DeviceBuffer::<u8>::uninitialized(size)? };
    assert!(free_bytes()? + size <= before);
    let mut adopted = Adopted::new(gpu, buffer)?;
    adopted.view_mut()?.fill(1)?;
    // A thread without a current context.
    std::thread::spawn(move || drop(adopted)).join().map_err(|_| "the drop panicked")?;
    assert_eq!(free_bytes()?, before, "cust has freed the buffer, once");
    Ok(())
}

fn returned(gpu: &Gpu) -> Checked {
    let adopted = use_adopted(gpu, DeviceBuffer::from_slice(&numbers())?)?;
    assert_eq!(adopted.into_buffer()?.as_host_vec()?, vec![6; 5000]);
    let adopted = use_adopted(gpu, UnifiedBuffer::from_slice(&numbers())?)?;
    assert_eq!(adopted.into_buffer()?.as_slice(), vec![6; 5000]);
    let adopted = use_adopted(gpu, LockedBuffer::from_slice(&numbers())?)?;
    assert_eq!(adopted.into_buffer()?.as_slice(), vec![6; 5000]);
    Ok(())
}

fn empty(gpu: &Gpu) -> Checked {
    fn lend<D: Dimension + 'static, K: CustKind>(array: GpuArray<u32, D, K>, stream: &CustStream) -> Checked {
        let given = Given::new(array, stream)?;
        assert_eq!(given.take_back().len(), 0);
        Ok(())
    }
    let stream = stream(gpu)?;
    lend(GpuArray::<u32, _>::zeros(gpu, 0)?, &stream)?;
    lend(GpuArray::<u32, _, _>::zeros(&gpu.unified(), 0)?, &stream)?;
    lend(GpuArray::<u32, _, _>::zeros(&gpu.pinned(), (3, 0))?, &stream)?;
    let adopted = Adopted::new(gpu, DeviceBuffer::<u32>::zeroed(0)?)?;
    assert!(adopted.view().to_vec()?.is_empty() && adopted.into_buffer()?.is_empty());
    Ok(())
}

fn other_context(gpu: &Gpu) -> Checked {
    fn refuse<B: CustBuffer<Element: Shared> + 'static>(gpu: &Gpu, buffer: B) {
        let Err(refused) = Adopted::new(gpu, buffer) else { panic!("the buffer of device 1 was taken") };
        let (error, buffer) = refused.into_parts();
        assert!(matches!(error, CustError::OtherContext { .. }), "{error}");
        assert!(error.to_string().contains("belongs to another context"));
        drop(buffer); // cust frees it
    }
    let other = Context::new(cust::device::Device::get_device(1)?)?;
    refuse(gpu, DeviceBuffer::from_slice(&[1_u8])?);
    refuse(gpu, UnifiedBuffer::from_slice(&[1_u8])?);
    drop(other);
    // The context of device 0 is current again.
    drop(cust::quick_init()?);
    Ok(())
}

fn other_stream(gpu: &Gpu) -> Checked {
    let other = Context::new(cust::device::Device::get_device(1)?)?;
    let refused = CustStream::new(gpu.device(), Raw::new(StreamFlags::DEFAULT, None)?);
    assert!(refused.is_err_and(|refused| matches!(refused.into_parts().0, CustError::Array(_))));
    drop(other);
    drop(cust::quick_init()?);
    Ok(())
}
