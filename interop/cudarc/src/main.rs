//! cudarc's safe API as its users call it, on whatever answers as libcuda: two devices, memory in every direction,
//! streams, events, pinned and unified memory, peer copies, modules, graphs, and a pool of gpumem behind its allocations. Then arrays of
//! gpumem as its arguments, and its slices as arrays. A wrong result ends the program.

mod arrays;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, DriverError, LaunchConfig, PushKernelArg};
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Device, Pool, PoolError};
use std::error::Error;
use std::sync::Arc;

type Checked = Result<(), DriverError>;

const CHECKS: &[(&str, fn() -> Checked)] = &[
    ("devices", devices),
    ("contexts", contexts),
    ("contexts on several threads", threads),
    ("copies", copies),
    ("views", views),
    ("no memory left", out_of_memory),
    ("streams wait for what they use", streams),
    ("events", events),
    ("memory goes to another stream", reuse),
    ("pinned memory", pinned),
    ("unified memory", unified),
    ("copies between devices", peers),
    ("ownership leaves and returns", ownership),
    ("modules", modules),
    ("graphs", graphs),
    ("allocations come from a pool of gpumem", current_pool),
];

fn main() {
    for (name, check) in CHECKS {
        check().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        println!("{name}: ok");
    }
    for (name, check) in arrays::CHECKS {
        check().unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: ok");
    }
}

/// Without the pool, a synchronisation gives freed memory back to the device; with it, the pool keeps the memory, within its limit.
fn current_pool() -> Checked {
    let context = CudaContext::new(1)?;
    let stream = context.new_stream()?;
    let free_bytes = || context.mem_get_info().map(|(free, _)| free);
    let round = || -> Result<usize, DriverError> {
        drop(stream.alloc_zeros::<u8>(FRAME_BYTES)?);
        stream.synchronize()?;
        free_bytes()
    };
    let at_start = free_bytes()?;
    assert_eq!(round()?, at_start, "the default pool keeps nothing");

    let pool = pool_of(1).expect("the driver that cudarc uses has pools");
    let current = pool.make_current().expect("the backend is native");
    let before = free_bytes()?;
    assert!(round()? + FRAME_BYTES <= before, "the pool keeps the frame");
    let usage = current.usage().expect("the driver counts");
    assert!(usage.reserved_bytes >= FRAME_BYTES as u64 && usage.used_bytes == 0);
    assert!(usage.used_peak_bytes >= FRAME_BYTES as u64);
    let after_one = free_bytes()?;
    assert_eq!(round()?, after_one, "the next frame needs no memory of the device");

    // The limit holds for cudarc too, and a value arrives.
    assert!(
        stream.alloc_zeros::<u8>(1 << 30).is_err_and(|error| error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    );
    let slice = stream.clone_htod(&[5u8; 1000])?;
    assert_eq!(stream.clone_dtoh(&slice)?, [5; 1000]);
    drop(slice);
    drop(current);
    stream.synchronize()?;
    pool.trim_to(0).expect("nothing is in use");
    assert_eq!(round()?, at_start, "the default pool is current again");
    Ok(())
}

const FRAME_BYTES: usize = 64 << 20;

/// A pool on the driver that cudarc has loaded: NVIDIA's, or the simulator under its name.
fn pool_of(ordinal: u32) -> Result<Pool, Box<dyn Error>> {
    let driver = Driver::cuda().or_else(|_| Driver::drop_in())?;
    let device = Device::new(&driver, ordinal)?;
    let builder =
        Pool::builder(&device).conf("backend:native, hard_limit:256MiB").map_err(PoolError::from)?;
    Ok(builder.build()?)
}

fn devices() -> Checked {
    assert_eq!(CudaContext::device_count()?, 2);
    for ordinal in 0..2 {
        let context = CudaContext::new(ordinal)?;
        assert_eq!(context.ordinal(), ordinal);
        assert!(!context.name()?.is_empty());
        assert!(context.compute_capability()?.0 >= 7);
        assert!(context.has_async_alloc() && context.is_primary());
        let (free, total) = context.mem_get_info()?;
        assert!(free <= total && total == context.total_mem()?);
    }
    assert!(CudaContext::new(2).is_err_and(|error| error.0 == CUresult::CUDA_ERROR_INVALID_DEVICE));
    Ok(())
}

fn contexts() -> Checked {
    let context = CudaContext::new(0)?;
    context.set_blocking_synchronize()?;
    let limit = sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
    let heap_bytes = context.get_limit(limit)?;
    context.set_limit(limit, heap_bytes + (1 << 20))?;
    assert!(context.get_limit(limit)? >= heap_bytes + (1 << 20));
    context.set_cache_config(context.get_cache_config()?)?;

    let stream = context.new_stream_with_priority(-1)?;
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[3u8; 100])?)?, [3; 100]);
    Ok(())
}

fn threads() -> Checked {
    let context = CudaContext::new(0)?;
    let work = |context: Arc<CudaContext>, value: u32| {
        move || -> Result<Vec<u32>, DriverError> {
            let stream = context.new_stream()?;
            let slice = stream.clone_htod(&vec![value; 1000])?;
            stream.clone_dtoh(&slice)
        }
    };
    let threads = [1, 2, 3, 4].map(|value| std::thread::spawn(work(context.clone(), value)));
    for (value, thread) in (1..).zip(threads) {
        assert_eq!(thread.join().expect("the thread does not panic")?, vec![value; 1000]);
    }
    context.check_err()
}

fn copies() -> Checked {
    let stream = CudaContext::new(0)?.default_stream();
    let numbers: Vec<f32> = (0..10_000).map(|index| index as f32).collect();
    let first = stream.clone_htod(&numbers)?;
    let mut second = stream.alloc_zeros::<f32>(numbers.len())?;
    assert_eq!(stream.clone_dtoh(&second)?, vec![0.0; numbers.len()]);
    stream.memcpy_dtod(&first, &mut second)?;
    let mut back = vec![0.0; numbers.len()];
    stream.memcpy_dtoh(&second, &mut back)?;
    assert_eq!(back, numbers);
    stream.memset_zeros(&mut second)?;
    assert_eq!(stream.clone_dtoh(&second)?, vec![0.0; numbers.len()]);
    stream.memcpy_htod(&[1.0, 2.0], &mut second)?;
    assert_eq!(stream.clone_dtoh(&second)?[..3], [1.0, 2.0, 0.0]);
    assert_eq!(stream.clone_dtoh(&first.try_clone()?)?, numbers);
    Ok(())
}

fn views() -> Checked {
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut whole = stream.alloc_zeros::<u16>(10)?;
    for start in [0, 3, 6] {
        let part = stream.clone_htod(&[start as u16 + 1; 3])?;
        stream.memcpy_dtod(&part, &mut whole.slice_mut(start..start + 3))?;
    }
    assert_eq!(stream.clone_dtoh(&whole)?, [1, 1, 1, 4, 4, 4, 7, 7, 7, 0]);
    assert_eq!(stream.clone_dtoh(&whole.slice(2..4))?, [1, 4]);
    Ok(())
}

fn out_of_memory() -> Checked {
    let context = CudaContext::new(1)?;
    let stream = context.default_stream();
    // SAFETY: nothing reads the memory, which there is not enough of anyway.
    let refused = unsafe { stream.alloc::<u8>(context.total_mem()? + 1) };
    assert!(refused.is_err_and(|error| error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    // One device's lack is its own, and it is over at once.
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[5u8; 7])?)?, [5; 7]);
    context.check_err()
}

fn streams() -> Checked {
    let context = CudaContext::new(0)?;
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    for value in 0..100u32 {
        let source = first.clone_htod(&[value; 256])?;
        let copy = second.clone_dtod(&source)?;
        drop(source);
        let third = second.fork()?;
        assert_eq!(third.clone_dtoh(&copy)?, [value; 256]);
    }
    first.join(&second)?;
    first.synchronize()
}

fn events() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let timing = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let begin = stream.record_event(timing)?;
    let mut slice = stream.alloc_zeros::<u8>(1 << 20)?;
    stream.memset_zeros(&mut slice)?;
    let end = stream.record_event(timing)?;
    end.synchronize()?;
    assert!(begin.is_complete() && end.is_complete());
    assert!(begin.elapsed_ms(&end)? >= 0.0);
    let other = context.new_stream()?;
    other.wait(&end)?;
    other.synchronize()
}

fn reuse() -> Checked {
    let context = CudaContext::new(0)?;
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    for value in 0..200u8 {
        let mut slice: CudaSlice<u8> = first.alloc_zeros(4096)?;
        second.memcpy_htod(&[value; 4096], &mut slice)?;
        drop(slice);
        let next: CudaSlice<u8> = first.clone_htod(&[value ^ 255; 4096])?;
        assert_eq!(first.clone_dtoh(&next)?, [value ^ 255; 4096]);
    }
    context.check_err()
}

fn pinned() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // SAFETY: written before it is read.
    let mut host = unsafe { context.alloc_pinned::<u64>(1000)? };
    for (index, value) in host.as_mut_slice()?.iter_mut().enumerate() {
        *value = index as u64 * 3;
    }
    let device = stream.clone_htod(&host)?;
    // SAFETY: all of it is filled with zeros before it is read.
    let mut back = unsafe { context.alloc_pinned_with_flags::<u64>(1000, 0)? };
    back.as_mut_slice()?.fill(0);
    stream.memcpy_dtoh(&device, &mut back)?;
    assert_eq!(back.as_slice()?, host.as_slice()?);
    Ok(())
}

fn unified() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // SAFETY: written before it is read.
    let mut slice = unsafe { context.alloc_unified::<u32>(100, true)? };
    for (index, value) in slice.as_mut_slice()?.iter_mut().enumerate() {
        *value = index as u32;
    }
    let copy = stream.clone_dtod(&slice)?;
    assert_eq!(stream.clone_dtoh(&copy)?, (0..100).collect::<Vec<_>>());
    stream.memset_zeros(&mut slice)?;
    assert_eq!(slice.as_slice()?, [0; 100]);
    Ok(())
}

fn peers() -> Checked {
    let contexts = [CudaContext::new(0)?, CudaContext::new(1)?];
    share_pool(&contexts[0], &contexts[1])?;
    share_pool(&contexts[1], &contexts[0])?;
    let streams = [contexts[0].new_stream()?, contexts[1].new_stream()?];
    for value in 0..50u32 {
        let here = streams[0].clone_htod(&[value; 300])?;
        let there = streams[1].clone_dtod(&here)?;
        let back = streams[0].clone_dtod(&there)?;
        // cudarc frees the source in the order of its own stream, which does not wait for the copy on the other: the
        // simulator finds that for some seeds.
        streams[1].synchronize()?;
        streams[0].synchronize()?;
        drop((here, there));
        assert_eq!(streams[0].clone_dtoh(&back)?, [value; 300]);
    }
    contexts[0].check_err()?;
    contexts[1].check_err()
}

/// Lets a device use the memory of another's pool, which cudarc's safe API has no call for.
fn share_pool(owner: &CudaContext, user: &CudaContext) -> Checked {
    let mut pool = std::ptr::null_mut();
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            __bindgen_anon_1: sys::CUmemLocation_st__bindgen_ty_1 { id: user.cu_device() },
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the pointers are to locals that outlive the calls.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, owner.cu_device()).result()?;
        sys::cuMemPoolSetAccess(pool, &access, 1).result()
    }
}

fn ownership() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let address = stream.clone_htod(&[1i32, 2, 3])?.leak();
    // SAFETY: the memory is ours alone, and holds three values.
    let slice = unsafe { stream.upgrade_device_ptr::<i32>(address, 3) };
    assert_eq!(stream.clone_dtoh(&slice)?, [1, 2, 3]);
    // SAFETY: the stream that lends its handle outlives the borrower.
    let borrowed = unsafe { context.wrap_borrowed_stream(stream.cu_stream()) };
    assert_eq!(borrowed.clone_dtoh(&slice)?, [1, 2, 3]);
    Ok(())
}

/// A kernel runs from its text, in the order of its stream.
fn modules() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let module = context.load_module(cudarc::nvrtc::Ptx::from_src(DOUBLE))?;
    let function = module.load_function("double")?;
    let mut values = stream.clone_htod(&[1_u32, 20, 300])?;
    let shape = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (3, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: each of the three threads changes the value of its number.
    unsafe { stream.launch_builder(&function).arg(&mut values).launch(shape)? };
    assert_eq!(stream.clone_dtoh(&values)?, [2, 40, 600]);
    Ok(())
}

const DOUBLE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry double(.param .u64 values) {
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [values];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    ld.global.u32 %r1, [%rd0];
    add.u32 %r1, %r1, %r1;
    st.global.u32 [%rd0], %r1;
    ret;
}
";

fn graphs() -> Checked {
    let context = CudaContext::new(0)?;
    // SAFETY: all memory here is used on one stream only.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let mut target = stream.clone_htod(&[9u8; 64])?;
    let source = stream.clone_htod(&[4u8; 64])?;
    stream.synchronize()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    stream.memset_zeros(&mut target)?;
    stream.memcpy_dtod(&source.slice(0..32), &mut target.slice_mut(0..32))?;
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?;
    let graph = graph.expect("a capture with work gives a graph");
    assert_eq!(stream.clone_dtoh(&target)?, [9; 64], "captured work has not run");
    for _ in 0..3 {
        stream.memcpy_htod(&[1u8; 64], &mut target)?;
        graph.launch()?;
        assert_eq!(stream.clone_dtoh(&target)?, [[4; 32], [0; 32]].concat());
    }
    Ok(())
}
