//! Another user of the driver in the process: cudarc shares the device's context and finds it unchanged; its functions and kernels take
//! arrays, and its slices become arrays and back. Runs on a GPU only, because cudarc loads NVIDIA's library itself; `interop/cudarc` runs
//! on the simulator what needs no kernel.

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpumem_adapt::array::cudarc::{self as shared, SharedStream};
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{BackendKind, Device, Keep, Pool, PoolError};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray};
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::entry_points::{ENTRIES, Stage, is_missing};
use std::sync::Arc;

mod cuda {
    use super::*;

    fn current(driver: &Driver) -> usize {
        let mut context = std::ptr::null_mut();
        // SAFETY: the out-pointer lives through the call.
        unsafe { driver.cuCtxGetCurrent(&mut context).unwrap() };
        context.addr()
    }

    /// cudarc and this crate retain the same primary context, and do not affect each other's thread state and memory.
    #[test]
    fn shares_the_context_with_cudarc() {
        let theirs = CudaContext::new(0).unwrap();
        let driver = Driver::cuda().unwrap();
        let device = Device::new(&driver, 0).unwrap();
        assert_eq!(device.context().addr(), theirs.cu_ctx().addr());

        let before = current(&driver);
        let stream = theirs.new_stream().unwrap();
        let slice = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
        let array = GpuArray::from_slice(&gpu, &[10.0f32, 20.0, 30.0]).unwrap();
        let doubled = &array * 2.0;
        assert_eq!(doubled.to_vec().unwrap(), [20.0, 40.0, 60.0]);
        assert_eq!(current(&driver), before, "our calls changed the current context");
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);

        drop((array, doubled, gpu, device));
        assert_eq!(current(&driver), before, "our drops changed the current context");
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);
        theirs.check_err().unwrap();
    }

    /// cudarc's own allocations come from the device's current pool, within its limit, until the guard is dropped. Other tests must not
    /// allocate meanwhile: the current pool is that of the process.
    #[test]
    fn cudarc_allocates_from_the_current_pool() {
        const MIB: usize = 1 << 20;
        let theirs = CudaContext::new(0).unwrap();
        let stream = theirs.new_stream().unwrap();
        let device = Device::new(&Driver::cuda().unwrap(), 0).unwrap();
        let builder = Pool::builder(&device).backend(BackendKind::Native).hard_limit(256 * MIB as u64);
        let current = builder.build().unwrap().make_current().unwrap();
        let used_bytes = || current.usage().unwrap().used_bytes;

        let slice = stream.clone_htod(&vec![7_u8; 64 * MIB]).unwrap();
        assert_eq!(used_bytes(), 64 * MIB as u64);
        assert!(stream.alloc_zeros::<u8>(512 * MIB).is_err(), "twice the limit");
        assert!(stream.clone_dtoh(&slice).unwrap().iter().all(|byte| *byte == 7));
        drop(slice);
        stream.synchronize().unwrap();
        assert_eq!(used_bytes(), 0);
        assert!(current.usage().unwrap().reserved_bytes >= 64 * MIB as u64, "it is kept for the next slice");

        let second = current.pool().clone().make_current().unwrap();
        drop(current);
        let before = stream.alloc_zeros::<u8>(MIB).unwrap();
        assert_eq!(second.usage().unwrap().used_bytes, MIB as u64, "one guard is left");
        let pool = second.pool().clone();
        drop(second);
        let outside = stream.alloc_zeros::<u8>(MIB).unwrap();
        let again = pool.make_current().unwrap();
        assert_eq!(
            again.usage().unwrap().used_bytes,
            MIB as u64,
            "the device's default pool served the second slice"
        );
        drop((before, outside));
        stream.synchronize().unwrap();
        assert_eq!(again.usage().unwrap().used_bytes, 0);
        theirs.check_err().unwrap();
    }

    /// Every entry point of the pool's crate, on a thread where cudarc's context is current.
    #[test]
    fn every_entry_leaves_cudarcs_context_current() {
        let theirs = CudaContext::new(0).unwrap();
        let stream = theirs.new_stream().unwrap();
        let slice = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let driver = Driver::cuda().unwrap();
        theirs.bind_to_thread().unwrap();
        for backend in backends(&Device::new(&driver, 0).unwrap()) {
            let stage = Stage::new(&driver, backend).unwrap();
            for (name, entry) in ENTRIES {
                let outcome = entry(&stage);
                assert_eq!(current(&driver), theirs.cu_ctx().addr(), "{backend}: {name}");
                assert!(outcome.as_ref().err().is_none_or(is_missing), "{backend}: {name}: {outcome:?}");
            }
        }
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);
        theirs.check_err().unwrap();
    }

    /// cudarc is created and dropped while arrays of this crate live, on a thread without a context.
    #[test]
    fn survives_cudarc_coming_and_going() {
        let driver = Driver::cuda().unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
        let array = GpuArray::from_elem(&gpu, 1000, 7i32).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let theirs = CudaContext::new(0).unwrap();
                let stream = theirs.new_stream().unwrap();
                let slice = stream.alloc_zeros::<u8>(1 << 20).unwrap();
                assert_eq!((&array + 1).to_vec().unwrap(), vec![8; 1000]);
                drop(slice);
                theirs.check_err().unwrap();
            });
        });
        assert_eq!(array.to_vec().unwrap(), vec![7; 1000]);
    }

    /// `to[i] = from[i] + plus`, one thread each, after a delay that shows a missing wait.
    const ADD: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_slowly(.param .u64 to, .param .u64 from, .param .u32 plus, .param .u32 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [plus];
    ld.param.u32 %r2, [count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    mov.u64 %rd8, %clock64;
    add.u64 %rd8, %rd8, 200000;
WAIT:
    mov.u64 %rd9, %clock64;
    setp.lt.u64 %p2, %rd9, %rd8;
    @%p2 bra WAIT;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r6, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.u32 %r7, [%rd7];
    add.u32 %r8, %r7, %r1;
    st.global.u32 [%rd6], %r8;
DONE:
    ret;
}
";

    const LEN: usize = 100_000;

    /// A program with both libraries on one device.
    struct Both {
        context: Arc<CudaContext>,
        stream: Arc<CudaStream>,
        gpu: Gpu,
        shared: SharedStream,
        add: CudaFunction,
    }

    impl Both {
        fn new(conf: &str) -> Self {
            let context = CudaContext::new(0).unwrap();
            let device = shared::device(&Driver::cuda().unwrap(), &context).unwrap();
            let pool = Pool::builder(&device).conf(conf).unwrap().build().unwrap();
            let (gpu, stream) = (Gpu::new(&pool).unwrap(), context.new_stream().unwrap());
            let shared = SharedStream::new(&device, &stream).unwrap();
            let add = context.load_module(Ptx::from_src(ADD)).unwrap().load_function("add_slowly").unwrap();
            Self { context, stream, gpu, shared, add }
        }
    }

    /// A kernel of cudarc's launches reads and writes arrays, between uses of both on other streams.
    #[test]
    fn kernels_of_cudarc_take_arrays() {
        let Both { context, stream, gpu, shared, add } = Both::new("backend:caching");
        let other = gpu.fork().unwrap();
        let (mut x, mut y) =
            (GpuArray::<u32, _>::zeros(&gpu, LEN).unwrap(), GpuArray::<u32, _>::zeros(&gpu, LEN).unwrap());
        let (len, shape) = (LEN as u32, LaunchConfig::for_num_elems(LEN as u32));
        for value in 0..100_u32 {
            x.on_mut(&other).fill(value).unwrap();
            {
                let (source, mut target) = (shared.read(&x).unwrap(), shared.write(&mut y).unwrap());
                let mut launch = stream.launch_builder(&add);
                launch.arg(&mut target).arg(&source).arg(&1_u32).arg(&len);
                // SAFETY: the arguments are those of the kernel, and the guards are those of its stream.
                unsafe { launch.launch(shape).unwrap() };
            }
            // Behind the read of `x` and the write of `y`, on the device.
            x.fill(7).unwrap();
            assert_eq!(y.on(&other).to_vec().unwrap(), vec![value + 1; LEN]);
        }
        // A slice of cudarc and an array in one launch.
        let source = stream.clone_htod(&vec![5_u32; LEN]).unwrap();
        {
            let mut target = shared.write(&mut y).unwrap();
            let mut launch = stream.launch_builder(&add);
            launch.arg(&mut target).arg(&source).arg(&1_u32).arg(&len);
            // SAFETY: the arguments are those of the kernel, and the slice and the guard are of its stream.
            unsafe { launch.launch(shape).unwrap() };
        }
        assert_eq!(y.to_vec().unwrap(), vec![6; LEN]);
        context.check_err().unwrap();
    }

    /// Slices become arrays behind work on two streams, and go back; pool memory is lent, and reused behind kernels.
    #[test]
    fn slices_and_arrays_change_sides() {
        for conf in ["backend:caching", "backend:native", "backend:none"] {
            let Both { context, stream, gpu, shared, add } = Both::new(conf);
            let (second, other) = (context.new_stream().unwrap(), gpu.fork().unwrap());
            let (len, shape) = (LEN as u32, LaunchConfig::for_num_elems(LEN as u32));
            for value in 1..30_i32 {
                let source = second.clone_htod(&vec![value; LEN]).unwrap();
                let mut slice = stream.alloc_zeros::<i32>(LEN).unwrap();
                let mut launch = second.launch_builder(&add);
                launch.arg(&mut slice).arg(&source).arg(&1_i32).arg(&len);
                // SAFETY: the arguments are those of the kernel.
                unsafe { launch.launch(shape).unwrap() };
                let array = GpuArray::from_cuda_slice(&gpu, slice).unwrap();
                let doubled = array.on(&other).try_mul(2).unwrap();
                let slice = array.into_cuda_slice().unwrap();
                assert_eq!(second.clone_dtoh(&slice).unwrap(), vec![value + 1; LEN]);

                let mut lent = doubled.lend_to_cudarc(&shared).unwrap();
                if conf == "backend:caching" {
                    let refused = gpu.pool().sleep(Keep::OnHost).unwrap_err();
                    assert!(matches!(refused, PoolError::CannotSleep { .. }), "{refused}");
                }
                let mut launch = second.launch_builder(&add);
                launch.arg(&mut lent).arg(&slice).arg(&value).arg(&len);
                // SAFETY: the arguments are those of the kernel, and cudarc tracks both.
                unsafe { launch.launch(shape).unwrap() };
                drop(slice);
                if value % 2 == 0 {
                    assert_eq!(lent.into_array().unwrap().to_vec().unwrap(), vec![2 * value + 1; LEN]);
                } else {
                    // The memory goes to the next array behind the kernel.
                    drop(lent);
                    let next = GpuArray::from_elem(&other, LEN, 3_i32).unwrap();
                    assert_eq!(next.to_vec().unwrap(), vec![3; LEN]);
                }
            }
            gpu.synchronize().unwrap();
            assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0, "{conf}");
            context.check_err().unwrap();
        }
    }

    /// The stream of cudarc lives as long as an array uses it, and its end leaves the current context.
    #[test]
    fn streams_of_cudarc_live_as_long_as_they_are_used() {
        let Both { context, stream, gpu, shared, add } = Both::new("backend:caching");
        drop(add);
        let elsewhere = Gpu::with_stream(gpu.pool(), shared.stream()).unwrap();
        let weak = Arc::downgrade(&stream);
        drop((stream, shared));
        let array = GpuArray::from_elem(&elsewhere, LEN, 9_u32).unwrap();
        drop(elsewhere);
        assert_eq!(array.on(&gpu).to_vec().unwrap(), vec![9; LEN]);
        let driver = gpu.device().driver().clone();
        std::thread::spawn(move || {
            drop(array);
            assert_eq!(current(&driver), 0);
        })
        .join()
        .unwrap();
        assert!(weak.upgrade().is_none());
        context.check_err().unwrap();
        let per_thread = SharedStream::new(gpu.device(), &context.per_thread_stream());
        assert!(matches!(per_thread, Err(ArrayError::Cudarc { object: "stream", .. })));
    }
}
