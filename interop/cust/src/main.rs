//! cust's API, linked against whatever answers as libcuda when the program is built and started: contexts, memory of
//! every kind, streams, events, callbacks, kernels. Memory passes between cust and gpumem, in both directions. A wrong result ends the program.

mod exchange;
mod kernels;
mod shared;

use cust::device::{Device, DeviceAttribute};
use cust::error::CudaResult;
use cust::event::{Event, EventFlags, EventStatus};
use cust::memory::{
    AsyncCopyDestination, CopyDestination, DeviceBuffer, LockedBuffer, UnifiedBuffer, mem_get_info,
};
use cust::stream::{Stream, StreamFlags, StreamWaitEventFlags};
use std::error::Error;
use std::sync::mpsc::channel;

type Check = (&'static str, fn() -> CudaResult<()>);

fn main() -> Result<(), Box<dyn Error>> {
    let context = cust::quick_init()?;
    let checks: [Check; 9] = [
        ("devices", devices),
        ("buffers", buffers),
        ("asynchronous copies", asynchronous_copies),
        ("memory in stream order", stream_ordered),
        ("events", events),
        ("callbacks", callbacks),
        ("unified memory", unified),
        ("an element-wise kernel", kernels::element_wise),
        ("a reduction", kernels::reduction),
    ];
    for (name, check) in checks {
        check()?;
        println!("{name}: ok");
    }
    exchange::check()?;
    drop(context);
    Ok(())
}

fn devices() -> CudaResult<()> {
    assert_eq!(Device::num_devices()?, 2);
    let device = Device::get_device(0)?;
    assert!(!device.name()?.is_empty());
    assert_eq!(device.get_attribute(DeviceAttribute::WarpSize)?, 32);
    let (free, total) = mem_get_info()?;
    assert!(free <= total && total == device.total_memory()?);
    Ok(())
}

fn buffers() -> CudaResult<()> {
    let numbers: Vec<u32> = (0..5000).collect();
    let first = DeviceBuffer::from_slice(&numbers)?;
    let mut second = DeviceBuffer::<u32>::zeroed(numbers.len())?;
    let mut back = vec![1; numbers.len()];
    second.copy_to(&mut back)?;
    assert_eq!(back, vec![0; numbers.len()]);
    second.copy_from(&first)?;
    second.copy_to(&mut back)?;
    assert_eq!(back, numbers);
    Ok(())
}

fn asynchronous_copies() -> CudaResult<()> {
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let mut host = LockedBuffer::from_slice(&[1u64, 2, 3, 4])?;
    // SAFETY: the buffers outlive the work, and nothing else touches them until the stream is done.
    let device = unsafe { DeviceBuffer::from_slice_async(host.as_slice(), &stream)? };
    stream.synchronize()?;
    host.as_mut_slice().fill(0);
    // SAFETY: the host buffer and the device's outlive the copy, and nothing else touches them until the stream is done.
    unsafe { device.async_copy_to(host.as_mut_slice(), &stream)? };
    stream.synchronize()?;
    assert_eq!(host.as_slice(), [1, 2, 3, 4]);
    Ok(())
}

fn stream_ordered() -> CudaResult<()> {
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    for value in 0..100u8 {
        let mut back = LockedBuffer::new(&0u8, 512)?;
        // SAFETY: the buffers outlive the work, and nothing else touches them until the stream is done.
        unsafe {
            let source = LockedBuffer::new(&value, 512)?;
            let mut buffer = DeviceBuffer::<u8>::uninitialized_async(512, &stream)?;
            buffer.async_copy_from(source.as_slice(), &stream)?;
            buffer.async_copy_to(back.as_mut_slice(), &stream)?;
            buffer.drop_async(&stream)?;
            stream.synchronize()?;
        }
        assert_eq!(back.as_slice(), [value; 512]);
    }
    Ok(())
}

fn events() -> CudaResult<()> {
    let (first, second) =
        (Stream::new(StreamFlags::NON_BLOCKING, None)?, Stream::new(StreamFlags::NON_BLOCKING, None)?);
    let (begin, end) = (Event::new(EventFlags::DEFAULT)?, Event::new(EventFlags::DEFAULT)?);
    begin.record(&first)?;
    end.record(&first)?;
    end.synchronize()?;
    assert!(matches!(end.query()?, EventStatus::Ready));
    assert!(end.elapsed_time_f32(&begin)? >= 0.0);
    second.wait_event(end, StreamWaitEventFlags::DEFAULT)?;
    second.synchronize()
}

fn callbacks() -> CudaResult<()> {
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let (sender, receiver) = channel();
    for number in 0..10 {
        let sender = sender.clone();
        stream.add_callback(Box::new(move || {
            sender.send(number).expect("the receiver is alive");
        }))?;
    }
    stream.synchronize()?;
    let seen: Vec<_> = receiver.try_iter().collect();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    Ok(())
}

fn unified() -> CudaResult<()> {
    let mut buffer = UnifiedBuffer::new(&7u32, 100)?;
    buffer[3] = 8;
    let device = DeviceBuffer::from_slice(&buffer)?;
    let mut back = [0; 100];
    device.copy_to(&mut back)?;
    assert_eq!(back[..5], [7, 7, 7, 8, 7]);
    Ok(())
}
