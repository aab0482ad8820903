//! Launches of a program's own kernels, on both drivers: arguments that do not fit are refused before the driver sees them, and a lost
//! context names the kernel. The last is the only case of its process that loses the context, and runs in a process of its own.

use gpumem_tests::array::{ArrayError, Gpu, GpuArray, LaunchShape, kernels};
use gpumem_tests::cases;
use gpumem_tests::pool::{Device, DeviceError, Pool, PoolError};
use gpumem_tests::sys::{Driver, DriverKind};
use std::process::Command;

kernels! {
    /// `y += a * x`, and a write far beyond its array. PTX, so that no compiler is needed.
    static KERNELS = ptx r#"
        .version 6.0
        .target sm_70
        .address_size 64

        .visible .entry axpy(
            .param .u64 axpy_param_0,
            .param .f32 axpy_param_1,
            .param .u64 axpy_param_2,
            .param .u64 axpy_param_3
        )
        {
            .reg .pred %p<2>;
            .reg .f32 %f<5>;
            .reg .b32 %r<4>;
            .reg .b64 %rd<12>;

            ld.param.u64 %rd1, [axpy_param_0];
            ld.param.f32 %f1, [axpy_param_1];
            ld.param.u64 %rd2, [axpy_param_2];
            ld.param.u64 %rd3, [axpy_param_3];
            mov.u32 %r1, %ctaid.x;
            mov.u32 %r2, %ntid.x;
            mov.u32 %r3, %tid.x;
            mul.wide.u32 %rd4, %r1, %r2;
            cvt.u64.u32 %rd5, %r3;
            add.s64 %rd6, %rd4, %rd5;
            setp.ge.u64 %p1, %rd6, %rd3;
            @%p1 bra done;
            shl.b64 %rd7, %rd6, 2;
            cvta.to.global.u64 %rd8, %rd1;
            cvta.to.global.u64 %rd9, %rd2;
            add.s64 %rd10, %rd8, %rd7;
            add.s64 %rd11, %rd9, %rd7;
            ld.global.f32 %f2, [%rd10];
            ld.global.f32 %f3, [%rd11];
            fma.rn.f32 %f4, %f1, %f3, %f2;
            st.global.f32 [%rd10], %f4;
        done:
            ret;
        }

        .visible .entry wild(
            .param .u64 wild_param_0
        )
        {
            .reg .b32 %r<2>;
            .reg .b64 %rd<5>;

            ld.param.u64 %rd1, [wild_param_0];
            cvta.to.global.u64 %rd2, %rd1;
            mov.u64 %rd3, 1099511627776;
            add.s64 %rd4, %rd2, %rd3;
            mov.u32 %r1, 1;
            st.global.u32 [%rd4], %r1;
            ret;
        }"#;
}

fn gpu(driver: &Driver) -> Gpu {
    Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap()
}

cases! {
    fn a_kernel_runs_with_its_arguments(driver: &Driver) {
        let gpu = gpu(driver);
        let axpy = gpu.compile(&KERNELS).unwrap().function("axpy").unwrap();
        let mut y = GpuArray::from_elem(&gpu, 1000, 1.0_f32).unwrap();
        let x = GpuArray::from_elem(&gpu.fork().unwrap(), 1000, 2.0_f32).unwrap();
        let launch = axpy.launch(LaunchShape::for_len(1000));
        let launch = launch.write(&mut y).scalar(10.0_f32).read(&x).scalar(1000_u64);
        // SAFETY: the arguments are the kernel's parameters, and both arrays have `n` elements.
        unsafe { launch.enqueue(&gpu).unwrap() };
        assert_eq!(y.to_vec().unwrap(), [21.0; 1000]);
    }

    fn arguments_that_do_not_fit_are_refused(driver: &Driver) {
        let gpu = gpu(driver);
        let axpy = gpu.compile(&KERNELS).unwrap().function("axpy").unwrap();
        let (mut y, x) = (GpuArray::from_elem(&gpu, 9, 1.0_f32).unwrap(), GpuArray::from_elem(&gpu, 9, 1.0_f32).unwrap());
        let shape = LaunchShape::for_len(9);
        let launch = axpy.launch(shape).write(&mut y).scalar(2.0_f64).read(&x).scalar(9_u64);
        // SAFETY: the launch is refused before the driver sees it.
        let refused = unsafe { launch.enqueue(&gpu) }.unwrap_err();
        let ArrayError::ArgumentSize { kernel, index: 1, parameter, expected_bytes: 4, found_bytes: 8 } = &refused else {
            panic!("{refused}")
        };
        assert_eq!((kernel.as_str(), parameter.as_str()), ("axpy", "axpy_param_1"));
        // SAFETY: this launch is refused too.
        let refused = unsafe { axpy.launch(shape).write(&mut y).scalar(2.0_f32).enqueue(&gpu) }.unwrap_err();
        assert!(matches!(refused, ArrayError::ArgumentCount { expected: 4, found: 2, .. }), "{refused}");
        assert_eq!(y.to_vec().unwrap(), [1.0; 9], "nothing ran");
    }

    fn an_access_out_of_bounds_names_the_kernel(driver: &Driver) {
        // A lost context is lost for the whole process.
        let case = format!("launches::{}::the_context_is_lost_by", if driver.kind() == DriverKind::Sim { "sim" } else { "cuda" });
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &case, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }

    #[ignore = "loses the context of its process; `an_access_out_of_bounds_names_the_kernel` runs it"]
    fn the_context_is_lost_by(driver: &Driver) {
        // A simulator of its own: its memory stays with the lost context, which is a leak for the harness.
        let own = match driver.kind() {
            DriverKind::Sim => gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(),
            _ => driver.clone(),
        };
        let gpu = gpu(&own);
        let wild = gpu.compile(&KERNELS).unwrap().function("wild").unwrap();
        let mut y = GpuArray::<u32, _>::zeros(&gpu, 8).unwrap();
        // SAFETY: this deliberately violates the kernel's contract; the process ends after it.
        unsafe { wild.launch(LaunchShape::for_len(1)).write(&mut y).enqueue(&gpu).unwrap() };
        let lost = y.to_vec().unwrap_err();
        let ArrayError::LostAfterKernel { kernel, error: PoolError::Device(DeviceError::DeviceLost(_)) } = &lost else { panic!("{lost}") };
        assert_eq!(kernel, "wild");
    }
}
