//! Kinds of memory: host access to unified and pinned arrays, after the necessary waits and no others.

use crate::support::{gpu, gpu_with};
use gpumem_array::kind::HostAccess;
use gpumem_array::ndarray::{Array, Array2, Axis, Ix1, Slice, array};
use gpumem_array::pool::{Device, MemoryKind, Pool};
use gpumem_array::{
    ArrayError, Gpu, GpuArray, KernelSource, LaunchShape, Memory, PinnedArray, Place, UnifiedArray,
};
use gpumem_sim::{Schedule, SimConfig};
use proptest::prelude::*;
use std::process::Command;

/// A machine that runs work only in waits.
fn late() -> Gpu {
    gpu_with(SimConfig::new().schedule(Schedule::Late))
}

/// Axes without elements beside others: each access finds an empty array, or no element.
#[test]
fn empty_arrays_are_accessed_by_the_host() {
    let gpu = gpu();
    for shape in [(0, 2), (2, 0), (0, 0)] {
        let host = Array2::<i32>::zeros(shape);
        for host in [host.view(), host.t()] {
            let mut x = GpuArray::from_array(&gpu.unified(), &host).unwrap();
            assert_eq!(x.as_array().unwrap(), host);
            x.as_array_mut().unwrap().fill(1);
            assert!(x.as_slice().unwrap().is_empty() && x.as_mut_slice().unwrap().is_empty());
            let write = std::panic::AssertUnwindSafe(|| x[[0, 0]] = 1);
            let refused = std::panic::catch_unwind(write).unwrap_err();
            let text = refused.downcast_ref::<String>().unwrap();
            assert!(text.contains("index [0, 0] is out of bounds"), "{text}");
        }
    }
}

fn reads_and_writes<K: HostAccess>(gpu: &Gpu, place: &Memory<'_, K>) {
    let mut x = GpuArray::from_array(place, &array![[1.0_f32, 2.0], [3.0, 4.0]]).unwrap();
    x *= 10.0;
    assert_eq!(x[[1, 0]], 30.0);
    assert_eq!(x[(0, 1)], 20.0);
    assert_eq!(x.as_slice().unwrap(), [10.0, 20.0, 30.0, 40.0]);
    x[[0, 0]] = -1.0;
    x.as_mut_slice().unwrap()[3] = -2.0;
    x.as_array_mut().unwrap().row_mut(1)[0] = -3.0;
    let sum: GpuArray<f32, _> = &x + &x; // reads what the host wrote
    assert_eq!(sum.to_array().unwrap(), array![[-2.0, 40.0], [-6.0, -4.0]]);
    // Column-major memory: indices are equal, the order in memory differs.
    let host = Array::from_shape_fn((2, 3), |(i, j)| (10 * i + j) as i32).reversed_axes();
    let x = GpuArray::from_array(place, &host).unwrap();
    assert_eq!(x.as_array().unwrap(), host);
    assert_eq!(x[[2, 1]], 12);
    let clone: GpuArray<i32, _, K> = x.try_clone().unwrap();
    assert_eq!(clone.as_array().unwrap(), host);
    let empty = GpuArray::<f32, _, K>::zeros(place, (0, 3)).unwrap();
    assert!(empty.as_slice().unwrap().is_empty());
    // The output differs in the name of the kind only.
    assert!(format!("{x:?} {gpu:?}").contains(&format!("kind: {}", K::NAME)));
}

#[test]
fn the_host_reads_and_writes() {
    for gpu in [gpu(), late()] {
        reads_and_writes(&gpu, &gpu.unified());
        reads_and_writes(&gpu, &gpu.pinned());
    }
}

#[test]
fn a_fold_of_a_million_elements() {
    let gpu = gpu();
    let x = GpuArray::from_elem(&gpu.unified(), 1_000_000, 3_i64).unwrap();
    assert_eq!(x.as_slice().unwrap().iter().sum::<i64>(), 3_000_000);
    assert_eq!((0..x.len()).map(|i| x[i]).sum::<i64>(), 3_000_000);
}

#[test]
fn an_index_out_of_bounds_panics_at_the_callers_line() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu.pinned(), &[1, 2, 3]).unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x[3])).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "index 3 is out of bounds of shape [3]");
    assert!(x.as_array().unwrap().get(3).is_none());
}

/// Programs of host and device accesses on three streams, against `Vec`.
fn program<K: HostAccess>(gpus: &[Gpu; 3], place: &Memory<'_, K>, steps: &[(u8, usize, usize, i32)]) {
    let mut device = GpuArray::<i32, Ix1, K>::zeros(place, 16).unwrap();
    let mut results = Vec::new();
    let mut host = vec![0; 16];
    for &(step, stream, index, value) in steps {
        let (gpu, index) = (&gpus[stream % 3], index % 16);
        match step % 6 {
            0 => {
                device.on_mut(gpu).try_add_assign(value).unwrap();
                host.iter_mut().for_each(|element| *element += value);
            }
            1 => results.push((
                device.on(gpu).try_add(value).unwrap(),
                host.iter().map(|x| x + value).collect::<Vec<_>>(),
            )),
            2 => assert_eq!(device[index], host[index]),
            3 => {
                device[index] = value;
                host[index] = value;
            }
            4 => assert_eq!(device.as_slice().unwrap(), host),
            _ => {
                let rows = Slice::from(index.cast_signed()..);
                device.slice_axis_mut(Axis(0), rows).unwrap().on_mut(gpu).fill(value).unwrap();
                host[index..].fill(value);
            }
        }
    }
    assert_eq!(device.as_slice().unwrap(), host);
    for (result, expected) in results {
        assert_eq!(result.to_vec().unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn any_program_of_host_and_device(
        steps in proptest::collection::vec((any::<u8>(), 0_usize..3, 0_usize..16, -99_i32..99), 1..24),
        seed in any::<u64>(),
        is_late in any::<bool>(),
    ) {
        let schedule = if is_late { Schedule::Late } else { Schedule::Random };
        let gpu = gpu_with(SimConfig::new().seed(seed).schedule(schedule));
        let gpus = [gpu.clone(), gpu.fork().unwrap(), gpu.fork().unwrap()];
        program(&gpus, &gpu.unified(), &steps);
        program(&gpus, &gpu.pinned(), &steps);
    }
}

#[test]
fn invalid_values_do_not_reach_a_slice() {
    let gpu = gpu();
    let mut flags = GpuArray::from_slice(&gpu.unified(), &[true; 8]).unwrap();
    let poke = gpu.compile(&KernelSource::ptx("poke", POKE)).unwrap().function("poke").unwrap();
    let launch = poke.launch(LaunchShape::for_len(1)).write(&mut flags);
    // SAFETY: this deliberately violates the rule about valid values: only the checks below read them.
    unsafe { launch.enqueue(&gpu).unwrap() };
    let error = flags.as_slice().unwrap_err();
    assert!(matches!(error, ArrayError::InvalidElement { index: 5, kind: "bool" }), "{error}");
    assert!(flags.as_mut_slice().is_err() && flags.as_array().is_err());
    flags.fill(false).unwrap();
    assert!(!flags[5]);
}

const POKE: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry poke(.param .u64 bytes) {
        .reg .b64 %to;
        .reg .b16 %value;
        ld.param.u64 %to, [bytes];
        mov.u16 %value, 2;
        st.global.u8 [%to+5], %value;
        ret;
    }";

#[test]
fn results_are_in_device_memory_and_owners_of_other_kinds_are_kept() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu.pinned(), &[1, 2]).unwrap();
    let sum: GpuArray<i32, Ix1> = x.try_clone().unwrap() + &x;
    let difference: GpuArray<i32, Ix1> = 10 - x;
    assert_eq!((sum * difference).to_vec().unwrap(), [18, 32]);
    let mut unified: UnifiedArray<i32, Ix1> = GpuArray::uninit(&gpu.unified(), 2).unwrap().fill(1).unwrap();
    let pinned: PinnedArray<i32, Ix1> = GpuArray::from_elem(&gpu.memory(), 2, 5).unwrap();
    unified.assign(&pinned).unwrap();
    assert_eq!(unified.as_slice().unwrap(), [5, 5]);
}

/// One function for all kinds.
fn doubled<P: Place>(place: &P) -> Vec<i32> {
    let x = GpuArray::<i32, _, P::Kind>::from_slice(place, &[1, 2]).unwrap();
    x.try_add(&x).unwrap().to_vec().unwrap()
}

#[test]
fn code_can_be_generic_over_the_kind() {
    let gpu = gpu();
    assert_eq!([doubled(&gpu), doubled(&gpu.unified()), doubled(&gpu.pinned())], [[2, 4], [2, 4], [2, 4]]);
}

#[test]
fn pools_are_created_when_first_used_and_can_be_set_before() {
    let gpu = gpu();
    let bytes = |pool: &Pool| pool.status().unwrap().in_use_bytes;
    let pool = Pool::builder(gpu.device()).kind(MemoryKind::Host).build().unwrap();
    gpu.set_pool(&pool).unwrap();
    let x = PinnedArray::<u8, _>::zeros(&gpu.fork().unwrap().pinned(), 4096).unwrap();
    assert_eq!((bytes(&pool), bytes(gpu.pool())), (4096, 0));
    let y = UnifiedArray::<u8, _>::zeros(&gpu.unified(), 4096).unwrap();
    let late = Pool::builder(gpu.device()).kind(MemoryKind::Unified).build().unwrap();
    assert!(matches!(gpu.set_pool(&late), Err(ArrayError::PoolInUse { .. })));
    assert!(matches!(gpu.set_pool(gpu.pool()), Err(ArrayError::PoolInUse { .. })));
    assert!(matches!(gpu.set_pool(self::gpu().pool()), Err(ArrayError::WrongDevice { .. })));
    drop((x, y));
}

/// With `GPUMEM_KIND=unified`, the type stays `Device`, and both share the pool.
#[test]
fn a_pool_of_unified_memory_backs_device_arrays() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).kind(MemoryKind::Unified).build().unwrap()).unwrap();
    let x: GpuArray<u8, Ix1> = GpuArray::zeros(&gpu, 4096).unwrap();
    let y = UnifiedArray::<u8, _>::zeros(&gpu.unified(), 4096).unwrap();
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 8192);
    assert_eq!((x.to_vec().unwrap()[0], y[0]), (0, 0));
}

#[test]
fn a_thread_has_a_stream_of_its_own_until_it_ends() {
    let gpu = gpu();
    let here = gpu.here().unwrap();
    assert_eq!(here, gpu.fork().unwrap().here().unwrap());
    assert_ne!(here, gpu);
    let on_a_thread = || std::thread::scope(|scope| scope.spawn(|| gpu.here().unwrap()).join().unwrap());
    let (first, second) = (on_a_thread(), on_a_thread());
    assert_ne!(first, here);
    assert_eq!(first, second, "the stream of a thread that has ended is used again");
    // The place belongs to another `Gpu`, which has ended.
    let other = self::gpu();
    assert_ne!(other.here().unwrap(), here);
    drop(other);
    assert_eq!(gpu.here().unwrap(), here);
}

/// `Gpu::open` under variables: each case starts this program again with them, and selects only [`child`].
#[test]
fn a_gpu_is_opened_as_the_environment_says() {
    let under = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["kinds::child", "--exact", "--ignored", "--nocapture"]);
        for name in ["GPUMEM_KIND", "GPUMEM_STAGING", "GPUMEM_HARD_LIMIT", "GPUMEM_POOL", "GPUMEM_CONF"] {
            command.env_remove(name);
        }
        let output = command.env("GPUMEM_DRIVER", "sim").envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split(MARK).nth(1).unwrap_or_else(|| panic!("no answer: {text}")).to_owned()
    };
    assert_eq!(under(&[]), "device None 4194304");
    assert_eq!(
        under(&[("GPUMEM_KIND", "unified"), ("GPUMEM_HARD_LIMIT", "64MiB")]),
        "unified Some(67108864) 4194304"
    );
    assert_eq!(under(&[("GPUMEM_STAGING", "buffer_bytes:128KiB")]), "device None 131072");
    assert_eq!(under(&[("GPUMEM_STAGING", "buffers:0")]), "device None 0");
    let default = under(&[("OWN_DEFAULT", "1"), ("GPUMEM_HARD_LIMIT", "64MiB")]);
    assert_eq!(default, "device Some(8388608) 4194304", "the program's default pool comes first");
    for (name, value) in [
        ("GPUMEM_STAGING", "buffers:many"),
        ("GPUMEM_KIND", "fast"),
        ("GPUMEM_STAGNIG", "buffers:1"),
        ("GPUMEM_DRIVER", "cpu"),
    ] {
        let refused = under(&[(name, value)]);
        assert!(refused.contains(name), "{name}={value}: {refused}");
    }
}

const MARK: &str = "<answer>";

#[test]
#[ignore = "run by the test above, under variables"]
#[allow(clippy::print_stdout, reason = "the answer to the test above")]
fn child() {
    if std::env::var_os("OWN_DEFAULT").is_some() {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        let pool = Pool::builder(&device).hard_limit(8 << 20).build().unwrap();
        pool.set_default().unwrap();
    }
    let found = Gpu::open().and_then(|gpu| {
        // Through one buffer, if there are any.
        drop(GpuArray::from_slice(&gpu, &[1_u8; 100_000])?);
        let status = gpu.pool().status()?;
        let buffer_bytes = gpu.status()?.pinned.map_or(0, |pinned| pinned.in_use_bytes);
        Ok(format!("{} {:?} {buffer_bytes}", status.kind, status.hard_limit_bytes))
    });
    println!("{MARK}{}{MARK}", found.unwrap_or_else(|error| error.to_string()));
}
