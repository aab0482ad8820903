//! Arrays of a pool that spills (`PoolBuilder::spill`), on both drivers: programs that need more than the limit give the results of
//! programs that fit.

use gpumem_sim::{Effect, Rule, SimConfig};
use gpumem_tests::array::dlpack::dlpark;
use gpumem_tests::array::ndarray::{Array1, Ix1, s};
use gpumem_tests::array::{ArrayError, Gpu, GpuArray, LaunchShape, kernels};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::each_setting;
use gpumem_tests::pool::trace::{Recording, Trace as Recorder, What};
use gpumem_tests::pool::{
    BackendKind, Device, Keep, KeptBy, MemoryKind, OutOfMemory, Pool, PoolBuilder, Spill, Stream,
};
use gpumem_tests::sys::Driver;
use gpumem_tests::sys::types::CUresult;
use std::time::Duration;

type Array1D = GpuArray<f32, Ix1>;

const MIB: usize = 1 << 20;
/// Elements of an array of 1 MiB.
const LEN: usize = MIB / 4;
const LIMIT_BYTES: u64 = 8 << 20;

fn spilling(builder: PoolBuilder) -> Gpu {
    let pool = builder.hard_limit(LIMIT_BYTES).spill(Spill::to_host(1 << 30)).build().unwrap();
    Gpu::new(&pool).unwrap()
}

fn each(driver: &Driver, body: impl Fn(&Gpu)) {
    let device = Device::new(driver, 0).unwrap();
    each_setting(&device, |setting| {
        if setting.kind == MemoryKind::Device {
            body(&spilling(setting.builder(&device)));
        }
    });
}

cases! {
    fn arrays_of_four_times_the_limit_keep_their_contents(driver: &Driver) {
        each(driver, |gpu| {
            let arrays: Vec<_> = (0..32).map(|index| GpuArray::from_elem(gpu, LEN, index as f32).unwrap()).collect();
            let mut sum = GpuArray::<f32, _>::zeros(gpu, LEN).unwrap();
            for _ in 0..3 {
                for array in &arrays {
                    sum += array;
                }
            }
            assert_eq!(sum.to_vec().unwrap(), vec![1488.0; LEN], "{:#}", gpu.pool().status().unwrap());
            for (index, array) in arrays.iter().enumerate() {
                assert_eq!(array.slice(s![7..9]).unwrap().to_vec().unwrap(), [index as f32; 2]);
            }
            let status = gpu.pool().status().unwrap();
            assert!(status.spilled_bytes >= 24 << 20, "{status:#}");
            assert!(status.in_use_peak_bytes <= LIMIT_BYTES, "{status:#}");
            // Contents that nothing has written since are not copied down again.
            assert!(status.counters.spilled_down_bytes <= 36 << 20, "{status:#}");
        });
    }

    /// The status knows what the loop needs, and what that costs at the rates of its copies.
    fn the_status_predicts_the_copies_of_a_loop(driver: &Driver) {
        let gpu = spilling(Pool::builder(&Device::new(driver, 0).unwrap()));
        let arrays: Vec<_> = (0..12).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
        let mut sum = GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap();
        assert_eq!(gpu.pool().status().unwrap().spill_needed_bytes, None);
        for _ in 0..6 {
            for array in &arrays {
                sum += array;
            }
            gpu.synchronize().unwrap();
        }
        let status = gpu.pool().status().unwrap();
        assert_eq!(status.spilled_array_count, status.spilled_bytes / MIB as u64, "{status:#}");
        let (needed, room) = (status.spill_needed_bytes.unwrap(), status.spill_room_bytes.unwrap());
        assert!(needed == 13 << 20 && (6 << 20..=8 << 20).contains(&room), "{status:#}");
        // What the loop reads leaves without a copy, so that nothing has to go down.
        let least = status.spill_least_bytes.unwrap();
        assert_eq!(least, needed - room, "{status:#}");
        assert!(status.counters.spilled_up_bytes >= 4 * least, "{status:#}");
        let rate = status.spilled_up_rate.unwrap();
        assert!(status.spilled_down_rate.is_some() && (1 << 30..1 << 40).contains(&rate), "{status:#}");
        let least_ns = least as f64 / rate as f64 * 1e9;
        assert!((status.spill_least_time_ns.unwrap() as f64 - least_ns).abs() < 2.0, "{status:#}");
        assert!(status.counters.spill_avoided_bytes >= 8 << 20, "{status:#}");
        let text = status.to_string();
        assert!(text.contains("Memory pool needs: 1.") && text.contains(" of copies a repetition, at "), "{text}");
        assert!(text.contains("\nMemory pool spilled: "), "{text}");
        // A loop that fits needs no copies, and the status has no prediction.
        for _ in 0..30 {
            sum += &arrays[0];
        }
        let text = gpu.pool().status().unwrap().to_string();
        assert!(!text.contains("Memory pool needs"), "{text}");
    }

    fn written_arrays_keep_what_was_written_last(driver: &Driver) {
        each(driver, |gpu| {
            let mut arrays: Vec<_> = (0..12)
                .map(|index| GpuArray::from_array(gpu, &Array1::from_elem(LEN, index as f32)).unwrap())
                .collect();
            for round in 0..4 {
                for array in &mut arrays {
                    *array += 1.0 + round as f32;
                }
            }
            for (index, array) in arrays.iter().enumerate() {
                assert_eq!(array.to_vec().unwrap(), vec![index as f32 + 10.0; LEN]);
            }
        });
    }
}

/// A program that fits has no moves and no host memory.
#[test]
fn nothing_moves_while_everything_fits() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
    let x = GpuArray::from_elem(&gpu, LEN, 1.0_f32).unwrap();
    let y = &x + &x;
    assert_eq!(y.sum().unwrap().into_scalar().unwrap(), 2.0 * LEN as f32);
    let status = gpu.pool().status().unwrap();
    assert_eq!((status.counters.spill_count, status.spilled_host_bytes), (0, 0));
}

/// What other code has the address of stays, and moves again afterwards. A limit that is lowered moves arrays.
#[test]
fn arrays_whose_address_others_have_stay() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
    let (lent, free) =
        (GpuArray::from_elem(&gpu, LEN, 1.0_f32).unwrap(), GpuArray::from_elem(&gpu, LEN, 2.0_f32).unwrap());
    let guard = lent.read_on(&gpu).unwrap();
    assert_eq!(gpu.pool().spill(u64::MAX).unwrap(), MIB as u64);
    assert_eq!(gpu.pool().status().unwrap().spilled_bytes, MIB as u64);
    drop(guard);
    assert_eq!(gpu.pool().spill(u64::MAX).unwrap(), MIB as u64);
    assert_eq!((&lent + &free).sum().unwrap().into_scalar().unwrap(), 3.0 * LEN as f32);

    // For good: nobody knows how long the address is in use.
    assert_ne!(lent.address(), 0);
    gpu.pool().spill(u64::MAX).unwrap();
    assert_eq!(gpu.pool().status().unwrap().spilled_bytes, MIB as u64);

    let more: Vec<_> = (0..6).map(|_| GpuArray::from_elem(&gpu, LEN, 3.0_f32).unwrap()).collect();
    gpu.pool().set_hard_limit(4 << 20).unwrap();
    assert!(gpu.pool().status().unwrap().in_use_bytes <= 4 << 20);
    assert_eq!(more[5].sum().unwrap().into_scalar().unwrap(), 3.0 * LEN as f32);
}

/// Work through a raw address runs behind the return of the array, under every order of the simulator.
#[test]
fn a_raw_address_is_behind_the_return_of_its_array() {
    for seed in 0..40 {
        let driver = gpumem_sim::driver(SimConfig::new().seed(seed)).unwrap();
        let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
        let x = GpuArray::from_elem(&gpu, LEN, 6.0_f32).unwrap();
        let mut y = GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap();
        // It stays, so that its return is not what the stream waits for.
        let target = y.write_on(&gpu).unwrap();
        assert_eq!(gpu.pool().spill(u64::MAX).unwrap(), MIB as u64);
        let from = x.address();
        let bound = gpu.device().bind().unwrap();
        // SAFETY: both arrays have as many bytes, and are alive until the stream's work is done.
        unsafe { driver.cuMemcpyDtoDAsync_v2(target.address(), from, MIB, gpu.stream().raw()).unwrap() };
        drop(target);
        drop(bound);
        assert_eq!(y.slice(s![..2]).unwrap().to_vec().unwrap(), [6.0; 2]);
        drop((x, y, gpu));
        let found = gpumem_sim::Sim::of(&driver).unwrap().report();
        assert!(found.silent_findings().is_empty(), "seed {seed}: {}", found.silent_findings()[0]);
    }
}

/// Contents that are away stay there while the pool sleeps, and return once it is awake.
#[test]
fn a_pool_sleeps_while_arrays_are_away() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
    let arrays: Vec<_> = (0..12).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
    assert!(gpu.pool().status().unwrap().spilled_bytes >= 4 << 20);
    gpu.pool().sleep(Keep::OnHost).unwrap();
    assert!(arrays.iter().all(|array| array.try_add(1.0).is_err()));
    gpu.pool().wake().unwrap();
    for (index, array) in arrays.iter().enumerate() {
        assert_eq!((array + 1.0).slice(s![LEN - 2..]).unwrap().to_vec().unwrap(), [index as f32 + 1.0; 2]);
    }
}

/// A graph has the addresses of its arrays, so they stay. Its launches are ordered like other uses.
#[test]
fn arrays_of_a_graph_stay() {
    for seed in 0..20 {
        let driver = gpumem_sim::driver(SimConfig::new().seed(seed)).unwrap();
        let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
        let x = GpuArray::from_elem(&gpu, LEN, 2.0_f32).unwrap();
        let mut y = GpuArray::from_elem(&gpu, LEN, 1.0_f32).unwrap();
        gpu.pool().spill(u64::MAX).unwrap();
        let (mut graph, ()) = gpu.capture(|c| y.view_mut().on_mut(c).try_add_assign(&x)).unwrap();
        let others: Vec<_> = (0..8).map(|_| GpuArray::from_elem(&gpu, LEN, 5.0_f32).unwrap()).collect();
        for _ in 0..3 {
            gpu.pool().spill(u64::MAX).unwrap();
            graph.launch(&gpu).read(&x).write(&mut y).run().unwrap();
        }
        assert_eq!(y.slice(s![..2]).unwrap().to_vec().unwrap(), [7.0; 2]);
        assert_eq!(others[7].slice(s![..2]).unwrap().to_vec().unwrap(), [5.0; 2]);
        drop((graph, others, x, y, gpu));
        assert!(gpumem_sim::Sim::of(&driver).unwrap().report().silent_findings().is_empty());
    }
}

/// The report of an array of `len` elements that is refused.
fn refused(gpu: &Gpu, len: usize) -> OutOfMemory {
    report_of(GpuArray::from_elem(gpu, len, 0.0_f32).unwrap_err())
}

fn report_of(error: ArrayError) -> OutOfMemory {
    let ArrayError::Pool(error) = error else { panic!("{error}") };
    error.out_of_memory().unwrap_or_else(|| panic!("{error}")).clone()
}

fn kept(report: &OutOfMemory) -> Vec<(KeptBy, u64, u64)> {
    let spilling = report.spilling.as_ref().unwrap();
    spilling.kept.iter().map(|kept| (kept.by, kept.bytes / MIB as u64, kept.array_count)).collect()
}

/// A refusal names who keeps arrays on the device, and how many bytes.
#[test]
fn a_report_names_what_could_not_spill_and_who_holds_it() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let device = Device::new(&driver, 0).unwrap();
    let array = |gpu: &Gpu| GpuArray::from_elem(gpu, LEN, 1.0_f32).unwrap();
    let check = |gpu: &Gpu, by: KeptBy, words: &str| {
        let report = refused(gpu, 8 * LEN);
        assert!(kept(&report).contains(&(by, 1, 1)), "{by:?}: {report}");
        let text = report.to_string();
        assert!(text.contains(&format!("1.000 MiB  in 1 array: {by}")) && text.contains(words), "{report}");
    };

    let gpu = spilling(Pool::builder(&device));
    let lent = array(&gpu);
    let guard = lent.read_on(&gpu).unwrap();
    check(&gpu, KeptBy::Guard, "lent by a guard");
    drop(guard);
    // Without it, there is room.
    drop(GpuArray::from_elem(&gpu, 8 * LEN, 0.0_f32).unwrap());

    let tensor: dlpark::legacy::Dlpack = lent.into_dlpack(gpu.stream()).unwrap();
    check(&gpu, KeptBy::Dlpack, "tensor of DLPack");
    drop(tensor);

    let known = array(&gpu);
    assert_ne!(known.address(), 0);
    check(&gpu, KeptBy::Address, "which is for good");
    drop(known);

    let (x, mut y) = (array(&gpu), GpuArray::<f32, _>::zeros(&gpu, 8).unwrap());
    let part = x.slice(s![..8]).unwrap();
    let (graph, ()) = gpu.capture(|c| y.view_mut().on_mut(c).try_add_assign(&part)).unwrap();
    check(&gpu, KeptBy::Graph, "a graph was captured");
    drop((graph, x, y));

    let second = Gpu::new(&Pool::new(&Device::new(&driver, 1).unwrap()).unwrap()).unwrap();
    let shared = array(&gpu);
    assert_eq!((shared.on(&second) * 2.0).to_vec().unwrap(), vec![2.0; LEN]);
    check(&gpu, KeptBy::PeerDevice, "another device has used it");
    drop(shared);

    let block = gpu.pool().alloc(MIB as u64, gpu.stream()).unwrap();
    let report = refused(&gpu, 8 * LEN);
    assert_eq!(report.spilling.as_ref().unwrap().other_bytes, MIB as u64, "{report}");
    assert!(report.to_string().contains("in blocks that are no arrays"), "{report}");
    drop(block);
}

/// An operation whose own arrays do not fit together is refused with their sum.
#[test]
fn a_report_names_the_arrays_of_the_operation() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let pool =
        Pool::builder(&Device::new(&driver, 0).unwrap()).hard_limit(3 << 20).spill(Spill::to_host(1 << 30));
    let gpu = Gpu::new(&pool.build().unwrap()).unwrap();
    let arrays: Vec<_> = (0..4).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
    let report = report_of((arrays[0].lazy() + &arrays[1] + &arrays[2] + &arrays[3]).sum().unwrap_err());
    assert!(matches!(kept(&report)[..], [(KeptBy::Operation, 1..=2, 1..=2)]), "{report}");
    let spilling = report.spilling.as_ref().unwrap();
    assert_eq!(spilling.operation_bytes, 4 << 20, "{report}");
    assert!(
        report.to_string().contains("used by this operation, whose arrays need 4.000 MiB together"),
        "{report}"
    );
    assert_eq!(arrays[2].slice(s![..2]).unwrap().to_vec().unwrap(), [2.0; 2]);
}

/// A refusal says that host memory is out: by the limit, or by the host.
#[test]
fn a_report_says_that_host_memory_is_out() {
    let rule = Rule::new("cuMemHostAlloc", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).from_nth(1);
    let cases = [
        (SimConfig::new(), 2 << 20, KeptBy::HostLimit, "the limit of host memory is reached"),
        (SimConfig::new().rule(rule), 1 << 30, KeptBy::HostRefusal, "the host has refused to pin memory"),
    ];
    for (config, host_bytes, by, words) in cases {
        let driver = gpumem_sim::driver(config).unwrap();
        let builder = Pool::builder(&Device::new(&driver, 0).unwrap()).hard_limit(LIMIT_BYTES);
        let gpu = Gpu::new(&builder.spill(Spill::to_host(host_bytes)).build().unwrap()).unwrap();
        let arrays: Vec<_> =
            (0..8).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
        let report = refused(&gpu, 2 * LEN);
        assert!(matches!(kept(&report)[..], [(kept_by, 7..=8, 7..=8)] if kept_by == by), "{report}");
        assert!(report.to_string().contains(words), "{report}");
        drop(arrays);
    }
}

/// Without spilling, a refusal says how much may have moved: at most the blocks of a pool that has arrays.
#[test]
fn a_report_without_spilling_says_what_it_may_have_saved() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let pool = || Pool::builder(&Device::new(&driver, 0).unwrap()).hard_limit(LIMIT_BYTES);
    let gpu = Gpu::new(&pool().build().unwrap()).unwrap();
    let arrays: Vec<_> = (0..6).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
    let report = refused(&gpu, 4 * LEN);
    assert_eq!((report.unspilled_bytes_max, &report.spilling), (6 << 20, &None), "{report}");
    let said = "spilling is off: up to 6.000 MiB in use could have moved to host memory, as far as it is idle arrays \
                (PoolBuilder::spill(Spill::to_host(..)) or GPUMEM_SPILL=host:64GiB)";
    assert!(report.to_string().contains(said), "{report}");
    // More than the limit does not fit with spilling either.
    let larger = refused(&gpu, 9 * LEN).to_string();
    assert!(!larger.contains("spilling"), "{larger}");
    drop(arrays);

    let blocks = pool().build().unwrap();
    let stream = Stream::new(gpu.device()).unwrap();
    let _held = blocks.alloc(6 << 20, &stream).unwrap();
    let report = blocks.alloc(4 << 20, &stream).unwrap_err();
    assert!(!report.to_string().contains("spilling"), "{report}");
}

/// Streams wait for copies on the device, as long as the events say; the status adds the waits up.
#[test]
fn waits_for_copies_are_measured() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
    let x = GpuArray::from_elem(&gpu, 4 * LEN, 1.0_f32).unwrap();
    gpu.pool().spill(u64::MAX).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.pool().status().unwrap().counters.spill_wait_time, Duration::ZERO);
    let total = x.sum().unwrap();
    gpu.synchronize().unwrap();
    let status = gpu.pool().status().unwrap();
    let copy_time = Duration::from_secs_f64((4 << 20) as f64 / status.spilled_up_rate.unwrap() as f64);
    let waited = status.counters.spill_wait_time;
    assert!(waited > copy_time / 2 && waited < 4 * copy_time, "{waited:?} for {copy_time:?}");
    assert_eq!(total.into_scalar().unwrap(), 4.0 * LEN as f32);
}

kernels! {
    /// Writes a word at an address.
    static POKE = ptx r#"
        .version 6.0
        .target sm_70
        .address_size 64

        .visible .entry poke(.param .u64 poke_param_0)
        {
            .reg .b32 %r<2>;
            .reg .b64 %rd<3>;

            ld.param.u64 %rd1, [poke_param_0];
            cvta.to.global.u64 %rd2, %rd1;
            mov.u32 %r1, 1;
            st.global.u32 [%rd2], %r1;
            ret;
        }"#;
}

/// A kernel that uses the address that an array had before it moved is found: as a use after free where the memory went back to the driver,
/// and as an access to memory that the launch has not declared where it stayed with the pool.
#[test]
fn a_use_of_an_old_address_is_found() {
    for backend in [BackendKind::None, BackendKind::Native, BackendKind::Caching] {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()).backend(backend));
        let poke = gpu.compile(&POKE).unwrap().function("poke").unwrap();
        let x = GpuArray::from_elem(&gpu, LEN, 1.0_f32).unwrap();
        let old = x.read_on(&gpu).unwrap().address();
        assert_eq!(gpu.pool().spill(u64::MAX).unwrap(), MIB as u64);
        gpu.synchronize().unwrap();
        // SAFETY: the simulator checks the address, which is no longer that of the array.
        unsafe { poke.launch(LaunchShape::for_len(1)).scalar(old).enqueue(&gpu).unwrap() };
        let _ = gpu.synchronize();
        let found = gpumem_sim::Sim::of(&driver).unwrap().take_findings();
        let words: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = if backend == BackendKind::Caching { "poke" } else { "use after free" };
        assert!(words.iter().any(|text| text.contains(expected)), "{backend}: {words:#?}");
    }
}

/// A record of a program that spills has its moves, and its replay needs no more than the limit.
#[test]
fn a_trace_has_the_moves() {
    let path = std::env::temp_dir().join(format!("gpumem-spilling-{}.trace", std::process::id()));
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let status = {
        let recorder = Recorder::create(&path).unwrap();
        let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()).adaptor(recorder));
        let scope = gpu.pool().scope("data");
        let arrays: Vec<_> =
            (0..12).map(|index| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap()).collect();
        drop(scope);
        let mut sum = GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap();
        for _ in 0..4 {
            for array in &arrays {
                sum += array;
            }
        }
        let guard = sum.read_on(&gpu).unwrap();
        drop(refused(&gpu, 8 * LEN));
        drop(guard);
        gpu.pool().status().unwrap()
    };
    let recording = Recording::read(&path).unwrap();
    let tags = recording.events.iter().filter_map(|event| match event.what {
        What::MovedBack { pool, tag, is_early: true, .. } => recording.tag(pool, tag),
        _ => None,
    });
    assert!(tags.clone().count() > 0 && tags.clone().all(|tag| tag == "data"));
    let held = What::Kept {
        pool: recording.pools[0].pool,
        by: Some(KeptBy::Guard),
        bytes: MIB as u64,
        array_count: 1,
    };
    assert!(recording.events.iter().any(|event| event.what == held));
    let trace = gpumem_trace::Trace::read(&path).unwrap();
    let moves = trace.real_run().moves;
    let counters = &status.counters;
    assert_eq!((moves.out_count, moves.copied_bytes), (counters.spill_count, counters.spilled_down_bytes));
    assert_eq!(moves.out_bytes - moves.copied_bytes, counters.spill_avoided_bytes);
    assert!(
        moves.back_bytes >= counters.spilled_up_bytes && moves.early_bytes > 0 && moves.kept_bytes >= 1 << 20
    );
    assert!(trace.peaks().live_bytes <= LIMIT_BYTES, "{}", trace.peaks().live_bytes);
    std::fs::remove_file(&path).unwrap();
}

/// Host memory that is refused, or whose limit is reached, leads to the refusal that there would be without spilling. Nothing is lost.
#[test]
fn without_host_memory_a_request_is_refused_and_nothing_is_lost() {
    let rule = Rule::new("cuMemHostAlloc", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).from_nth(1);
    for (config, host_bytes) in [(SimConfig::new().rule(rule), 1 << 30), (SimConfig::new(), 2 << 20)] {
        let driver = gpumem_sim::driver(config).unwrap();
        let builder = Pool::builder(&Device::new(&driver, 0).unwrap()).hard_limit(LIMIT_BYTES);
        let gpu = Gpu::new(&builder.spill(Spill::to_host(host_bytes)).build().unwrap()).unwrap();
        let (mut arrays, mut refused) = (Vec::new(), None);
        for index in 0..16 {
            match GpuArray::from_elem(&gpu, LEN, index as f32) {
                Ok(array) => arrays.push(array),
                Err(error) => refused = Some(error),
            }
        }
        assert!(refused.unwrap().is_out_of_memory());
        assert!((8..=10).contains(&arrays.len()), "{}", arrays.len());
        for (index, array) in arrays.iter().enumerate() {
            assert_eq!(array.slice(s![..2]).unwrap().to_vec().unwrap(), [index as f32; 2]);
        }
    }
}

/// Whatever driver call fails: an operation either happens or returns an error, no contents are lost, and no memory is used too early or
/// left behind.
#[test]
fn a_driver_call_that_fails_loses_no_contents() {
    // There are about 3,300 calls: each kind of failure has others.
    for (first, code) in
        [(1, CUresult::CUDA_ERROR_OUT_OF_MEMORY), (11, CUresult::CUDA_ERROR_OPERATING_SYSTEM)]
    {
        let mut refused_count = 0;
        for nth in (first..).step_by(20) {
            let rule = |effect| Rule::new("*", effect).nth(nth);
            // The byte is taken in the call that fails, and shows that the call was made.
            let taken = rule(Effect::TakeMemory { device: 0, size_bytes: 1 });
            let config = SimConfig::new().rule(taken).rule(rule(Effect::Fail(code)));
            let driver = gpumem_sim::driver(config).unwrap();
            refused_count += with_a_fault(&driver, 12, &format!("{code:?} at call {nth}"));
            let sim = gpumem_sim::Sim::of(&driver).unwrap();
            assert!(sim.report().silent_findings().is_empty(), "{code:?} at call {nth}: {}", sim.report());
            if sim.others_bytes(0) == 0 {
                break;
            }
        }
        assert!(refused_count > 20, "{refused_count}");
    }
}

/// Runs a program whose arrays move, and compares each element that can be read. Returns the number of operations that failed.
fn with_a_fault(driver: &Driver, count: usize, fault: &str) -> usize {
    const LEN: usize = 1 << 16;
    let opened = || {
        let builder = Pool::builder(&Device::new(driver, 0).ok()?).hard_limit(2 << 20);
        Gpu::new(&builder.spill(Spill::to_host(1 << 30)).build().ok()?).ok()
    };
    let Some(gpu) = opened() else { return 1 };
    // The values that an array may have.
    let mut arrays: Vec<(Array1D, Vec<f32>)> = Vec::new();
    let mut refused_count = 0;
    for index in 0..count {
        match GpuArray::from_elem(&gpu, LEN, index as f32) {
            Ok(array) => arrays.push((array, vec![index as f32])),
            Err(_) => refused_count += 1,
        }
    }
    for round in 0..4 {
        for (array, values) in &mut arrays {
            // An operation on a part uses the array as a whole.
            let added = array.slice_mut(s![LEN - 16..]).and_then(|mut part| part.try_add_assign(1.0));
            let after: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
            match added {
                Ok(()) => *values = after,
                Err(_) => {
                    refused_count += 1;
                    values.extend(after);
                }
            }
        }
        if round == 2 {
            let lent: Vec<_> = arrays.iter().take(2).map(|(array, _)| array.read_on(&gpu)).collect();
            refused_count += lent.iter().filter(|guard| guard.is_err()).count();
            gpu.pool().spill(u64::MAX).unwrap_or(0);
        }
        arrays.rotate_left(1);
    }
    for (array, values) in &arrays {
        match array.slice(s![LEN - 1..]).and_then(|last| last.to_vec()) {
            Ok(found) => assert!(values.contains(&found[0]), "{fault}: {found:?}, not one of {values:?}"),
            Err(_) => refused_count += 1,
        }
    }
    refused_count
}

/// Passes over arrays of four times the limit, all of which are written.
fn write_all(gpu: &Gpu, between: impl Fn(usize)) {
    let mut arrays: Vec<_> =
        (0..32).map(|index| GpuArray::from_elem(gpu, LEN, index as f32).unwrap()).collect();
    for round in 0..3 {
        for array in &mut arrays {
            array.slice_mut(s![LEN - 8..]).unwrap().try_add_assign(1.0).unwrap();
        }
        between(round);
    }
    for (index, array) in arrays.iter().enumerate() {
        let last = array.slice(s![LEN - 9..LEN - 7]).unwrap().to_vec().unwrap();
        assert_eq!(last, [index as f32, index as f32 + 3.0]);
    }
}

mod neighbour {
    use super::*;
    use gpumem_tests::fixtures::two_devices::{Link, check_findings, two_devices};
    use gpumem_tests::pool::{PoolError, Unsupported};

    fn spilling_to(driver: &Driver, near_bytes: u64) -> Gpu {
        let spill = Spill::to_host(64 << 20).by_neighbour(1, near_bytes);
        let device = Device::new(driver, 0).unwrap();
        Gpu::new(&Pool::builder(&device).hard_limit(LIMIT_BYTES).spill(spill).build().unwrap()).unwrap()
    }

    cases! {
        /// What its memory has no room for goes to the host.
        fn contents_move_to_its_memory_first(driver: &Driver) {
            let Some(driver) = two_devices(driver, Link::Direct) else { return };
            for (near_bytes, host_bytes_most) in [(64 << 20, 0), (12 << 20, 32 << 20)] {
                let gpu = spilling_to(&driver, near_bytes);
                write_all(&gpu, |_| {
                    let status = gpu.pool().status().unwrap();
                    assert!(status.spilled_bytes >= 24 << 20, "{status:#}");
                    assert!(status.spilled_host_bytes <= host_bytes_most, "{status:#}");
                    assert!(host_bytes_most == 0 || status.spilled_host_bytes > 0, "{status:#}");
                });
            }
            check_findings(&driver);
        }
    }

    /// A device that needs its memory gets it: the contents make way to the host.
    #[test]
    fn contents_make_way_on_their_device() {
        for seed in 0..8 {
            let config = SimConfig::new().seed(seed).devices(2).memory_bytes(48 << 20);
            let driver = gpumem_sim::driver(config).unwrap();
            let gpu = spilling_to(&driver, 40 << 20);
            let other = Device::new(&driver, 1).unwrap();
            let near = Gpu::new(&Pool::builder(&other).build().unwrap()).unwrap();
            write_all(&gpu, |round| {
                if round == 1 {
                    let status = gpu.pool().status().unwrap();
                    assert_eq!(status.spilled_host_bytes, 0, "{status:#}");
                    let needed = GpuArray::from_elem(&near, 40 * LEN, 5.0_f32).unwrap();
                    assert_eq!(needed.slice(s![40 * LEN - 2..]).unwrap().to_vec().unwrap(), [5.0; 2]);
                    let status = gpu.pool().status().unwrap();
                    assert!(status.spilled_host_bytes >= 20 << 20, "{status:#}");
                }
            });
            drop((gpu, near, other));
            check_findings(&driver);
        }
    }

    #[test]
    fn a_device_without_a_link_is_refused() {
        let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1)).unwrap();
        let builder = |ordinal| {
            let spill = Spill::to_host(1 << 30).by_neighbour(ordinal, 1 << 30);
            Pool::builder(&Device::new(&driver, 0).unwrap()).spill(spill).build()
        };
        assert!(matches!(builder(1), Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))));
        assert!(builder(2).unwrap_err().to_string().contains("device 2"));
        assert!(builder(0).unwrap_err().to_string().contains("device 0"));
    }
}

mod file {
    use super::*;
    use gpumem_tests::pool::PoolError;
    use std::fs::File;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn spilling_to(driver: &Driver, directory: &Path, file_bytes: u64) -> Gpu {
        let device = Device::new(driver, 0).unwrap();
        let spill = Spill::to_host(6 << 20).then_file(directory, file_bytes);
        Gpu::new(&Pool::builder(&device).hard_limit(LIMIT_BYTES).spill(spill).build().unwrap()).unwrap()
    }

    /// 32 MiB, of which the host has room for 6, and the device for 8.
    fn four_times_the_limit(gpu: &Gpu) -> Vec<Array1D> {
        (0..32).map(|index| GpuArray::from_elem(gpu, LEN, index as f32).unwrap()).collect()
    }

    /// A folder that is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("gpumem-file-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Only if the pool has left nothing in it.
            std::fs::remove_dir(&self.0).unwrap();
        }
    }

    /// The file without a name in a directory.
    fn file_in(directory: &Path) -> File {
        let open_files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let is_there = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.starts_with(directory));
        let path = open_files.into_iter().find(is_there).unwrap();
        File::options().read(true).write(true).open(path).unwrap()
    }

    cases! {
        /// The host has room for a quarter of what moves.
        fn contents_move_on_to_it(driver: &Driver) {
            let gpu = spilling_to(driver, &std::env::temp_dir(), 64 << 20);
            write_all(&gpu, |_| {
                let status = gpu.pool().status().unwrap();
                assert!(status.spilled_file_bytes >= 16 << 20, "{status:#}");
                assert!(status.spilled_host_bytes <= 6 << 20, "{status:#}");
            });
            assert_eq!(gpu.pool().status().unwrap().spilled_file_bytes, 0);
        }
    }

    /// What does not change keeps its place in the file: after the first pass, nothing is written.
    #[test]
    fn contents_that_do_not_change_are_written_once() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let directory = Folder::new();
        let gpu = spilling_to(&driver, &directory.0, 64 << 20);
        let arrays = four_times_the_limit(&gpu);
        let mut sum = GpuArray::<f32, _>::zeros(&gpu, 1).unwrap();
        let pass = |sum: &mut GpuArray<f32, Ix1>| {
            for array in &arrays {
                sum.try_add_assign(&array.slice(s![LEN - 1..]).unwrap()).unwrap();
            }
        };
        pass(&mut sum);
        pass(&mut sum);
        let modified = || file_in(&directory.0).metadata().unwrap().modified().unwrap();
        let written = modified();
        for _ in 0..3 {
            pass(&mut sum);
        }
        assert_eq!(sum.to_vec().unwrap(), [5.0 * 496.0]);
        assert!(gpu.pool().status().unwrap().spilled_file_bytes >= 20 << 20);
        assert_eq!(modified(), written);
    }

    #[test]
    fn a_full_file_refuses_the_request_and_nothing_is_lost() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let gpu = spilling_to(&driver, &std::env::temp_dir(), 4 << 20);
        let mut arrays = Vec::new();
        let report = loop {
            match GpuArray::<f32, _>::from_elem(&gpu, LEN, arrays.len() as f32) {
                Ok(array) => arrays.push(array),
                Err(error) => break report_of(error),
            }
        };
        let file = report.spilling.as_ref().unwrap().file.clone().unwrap();
        assert_eq!((file.limit_bytes, file.in_use_bytes, file.failure), (4 << 20, 4 << 20, None));
        assert!(
            report.to_string().contains("in a file         4.000 MiB  (4.000 MiB of 4.000 MiB used)"),
            "{report}"
        );
        assert!(arrays.len() >= 16, "{report}");
        for _ in 0..2 {
            for (index, array) in arrays.iter().enumerate() {
                assert_eq!(array.slice(s![LEN - 2..]).unwrap().to_vec().unwrap(), [index as f32; 2]);
            }
        }
    }

    /// The host has room for the array that returns, or for the one that makes way for it: the one that returns must not move on to the file.
    #[test]
    fn contents_that_return_do_not_move_on() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let spill = Spill::to_host(2 << 20).then_file(std::env::temp_dir(), 64 << 20);
        let device = Device::new(&driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::builder(&device).hard_limit("4MiB").spill(spill).build().unwrap()).unwrap();
        let array = |len, value| GpuArray::<f32, Ix1>::from_elem(&gpu, len, value).unwrap();
        let [mut first, mut second, mut third] = [1.0, 2.0, 3.0].map(|value| array(LEN, value));
        let large = array(2 * LEN, 4.0);
        // The large one was used least recently.
        second.try_add_assign(1.0).unwrap();
        third.try_add_assign(1.0).unwrap();
        let before = gpu.pool().status().unwrap();
        assert_eq!(before.spilled_bytes, 1 << 20, "{before:#}");
        let expected = if first.try_add_assign(1.0).is_ok() { 2.0 } else { 1.0 };
        for (array, value) in [(&first, expected), (&second, 3.0), (&third, 4.0), (&large, 4.0)] {
            assert!(array.to_vec().unwrap().iter().all(|found| *found == value), "{value}");
        }
    }

    /// Downloads and checkpoints read what is in the file from there.
    #[test]
    fn contents_in_it_are_read_without_the_device() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let directory = Folder::new();
        let gpu = spilling_to(&driver, &directory.0, 64 << 20);
        let arrays = four_times_the_limit(&gpu);
        let before = gpu.pool().status().unwrap();
        assert!(before.spilled_file_bytes >= 16 << 20, "{before:#}");
        for (index, array) in arrays.iter().enumerate() {
            assert!(array.to_vec().unwrap() == vec![index as f32; LEN]);
        }
        let after = gpu.pool().status().unwrap();
        assert_eq!(after.counters.spilled_up_bytes, before.counters.spilled_up_bytes, "{after:#}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_that_says_so() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let directory = Folder::new();
        let gpu = spilling_to(&driver, &directory.0, 64 << 20);
        let arrays = four_times_the_limit(&gpu);
        file_in(&directory.0).set_len(0).unwrap();
        // Reads on the host need no memory, so nothing more is written.
        let is_lost = |result: Result<Vec<f32>, ArrayError>| match result {
            Ok(_) => false,
            Err(ArrayError::Pool(PoolError::SpillFile { size_bytes, .. })) => size_bytes == 1 << 20,
            Err(error) => panic!("{error}"),
        };
        let (mut lost, kept): (Vec<_>, Vec<_>) =
            arrays.into_iter().partition(|array| is_lost(array.to_vec()));
        assert!(lost.len() >= 16, "{}", lost.len());
        drop(kept);
        assert!(is_lost(lost.pop().unwrap().try_mul(2.0).and_then(|twice| twice.to_vec())));
    }

    #[test]
    fn a_directory_that_does_not_exist_is_refused() {
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        let spill = Spill::to_host(1 << 30).then_file("/does/not/exist", 1 << 30);
        let refused = Pool::builder(&Device::new(&driver, 0).unwrap()).spill(spill).build().unwrap_err();
        assert!(
            refused.to_string().contains("spill:file:1073741824:/does/not/exist, No such file"),
            "{refused}"
        );
    }
}

/// What a session has on the host returns when its request is admitted, before any use.
#[test]
fn the_arrays_of_a_session_return_when_it_is_admitted() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let gpu = spilling(Pool::builder(&Device::new(&driver, 0).unwrap()));
    let pool = gpu.pool();
    let sessions = ["one", "other"].map(|name| {
        let tag = pool.tag(name);
        let _scope = pool.scope(name);
        let array = |index: usize| GpuArray::from_elem(&gpu, LEN, index as f32).unwrap();
        (tag, (0..3).map(array).collect::<Vec<_>>())
    });
    assert_eq!(pool.spill(u64::MAX).unwrap(), 6 << 20);
    for (tag, arrays) in &sessions {
        let admitted = pool.room(3 << 20).tag(tag).wait().unwrap();
        assert_eq!(pool.status().unwrap().spilled_bytes, 3 << 20);
        for (index, array) in arrays.iter().enumerate() {
            assert_eq!(array.slice(s![LEN - 2..]).unwrap().to_vec().unwrap(), [index as f32; 2]);
        }
        drop(admitted);
        pool.spill(u64::MAX).unwrap();
    }
    // Without memory for it, it returns at its use.
    let _in_the_way = pool.alloc(LIMIT_BYTES - (2 << 20), gpu.stream()).unwrap();
    let (_, arrays) = &sessions[0];
    assert!(pool.room(3 << 20).tag(&sessions[0].0).try_now().unwrap().is_none());
    let admitted = pool.room(2 << 20).tag(&sessions[0].0).wait().unwrap();
    assert_eq!(pool.status().unwrap().spilled_bytes, 4 << 20);
    assert_eq!(arrays[2].slice(s![..2]).unwrap().to_vec().unwrap(), [2.0; 2]);
    drop(admitted);
}

/// Eight sessions of 1 MiB each, of which two fit: their requests wait for room, arrays of idle sessions make way, and nothing is refused.
#[test]
fn sessions_take_turns() {
    gpumem_tests::for_each_seed!(4, |driver, _seed| {
        let device = Device::new(driver, 0).unwrap();
        let builder = Pool::builder(&device).hard_limit(3 << 20).spill(Spill::to_host(32 << 20));
        let gpu = Gpu::new(&builder.build().unwrap()).unwrap();
        std::thread::scope(|scope| {
            for session in 0..8_u32 {
                let gpu = gpu.fork().unwrap();
                scope.spawn(move || {
                    let tag = gpu.pool().tag(&format!("session {session}"));
                    let room = || gpu.pool().room(3 << 19).tag(&tag).wait().unwrap();
                    let mut kept: Vec<GpuArray<f32, Ix1>> = {
                        let room = room();
                        let _drawing = room.scope();
                        let array = |_| GpuArray::from_elem(&gpu, 1 << 16, session as f32).unwrap();
                        (0..4).map(array).collect()
                    };
                    for request in 1..5_u32 {
                        let room = room();
                        let _drawing = room.scope();
                        for array in &mut kept {
                            let more = (array.lazy() * 0.0 + 1.0).eval().unwrap();
                            array.try_add_assign(&more).unwrap();
                        }
                        let found = kept[3].slice(s![..4]).unwrap().to_vec().unwrap();
                        assert_eq!(found, [(session + request) as f32; 4], "session {session}");
                    }
                });
            }
        });
        let status = gpu.pool().status().unwrap();
        assert!(status.in_use_peak_bytes <= 3 << 20 && status.counters.spill_count > 0, "{status:#}");
        assert_eq!(status.counters.refusal_count, 0, "{status:#}");
    });
}

/// Random programs at a limit that has room for a part of their arrays, beside a twin on the host. The simulator finds races, uses of
/// memory that an array has left, and what is left at the end.
mod random_programs {
    use super::*;
    use gpumem_tests::array::ndarray::Ix2;
    use gpumem_tests::array::{PinnedArray, update};
    use gpumem_tests::for_each_seed;
    use gpumem_tests::pool::Profile;

    type Vector = GpuArray<f32, Ix1>;

    /// Elements of an array of 128 KiB.
    const LEN: usize = 1 << 15;
    /// Two pages: two pools below it can have one each.
    const LIMIT_BYTES: u64 = 4 << 20;

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % end
        }
    }

    /// An array and its elements. All elements of a quarter are equal, which keeps the twin small.
    struct Slot {
        array: Vector,
        quarters: [f32; 4],
    }

    fn elements(quarters: [f32; 4]) -> Vec<f32> {
        quarters.iter().flat_map(|value| vec![*value; LEN / 4]).collect()
    }

    /// The results of an operation that may be refused for lack of memory, and then has no effect.
    fn ok<T>(result: Result<T, ArrayError>, refused: &mut usize) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) if error.is_out_of_memory() => {
                *refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn run(gpu: &Gpu, seed: u64, steps: usize) {
        let mut numbers = Numbers(seed * 2 + 0x9e37_79b9);
        // Arrays of one `Gpu` in three are of a part.
        let part = || Gpu::new(&gpu.pool().private(LIMIT_BYTES).unwrap()).unwrap();
        let third = if seed % 2 == 1 { part() } else { gpu.fork().unwrap() };
        let gpus = [gpu.clone(), gpu.fork().unwrap(), third];
        let (mut slots, mut refused): (Vec<Slot>, _) = (Vec::new(), 0);
        for step in 0..steps {
            let on = &gpus[numbers.below(3)];
            let value = numbers.below(64) as f32;
            let count = slots.len();
            let [one, two] = [0; 2].map(|_| numbers.below(count.max(1)));
            match numbers.below(21) {
                _ if count < 6 => {
                    let array = match numbers.below(3) {
                        0 => Vector::from_elem(on, LEN, value),
                        1 => Vector::from_slice(on, &elements([value; 4])),
                        _ => Vector::uninit(on, LEN).and_then(|memory| memory.fill(value)),
                    };
                    slots.extend(ok(array, &mut refused).map(|array| Slot { array, quarters: [value; 4] }));
                }
                0 | 1 if count < 64 => {
                    let sum = slots[one].array.on(on).try_add(&slots[two].array);
                    let quarters =
                        core::array::from_fn(|at| slots[one].quarters[at] + slots[two].quarters[at]);
                    slots.extend(ok(sum, &mut refused).map(|array| Slot { array, quarters }));
                }
                2 if one != two => {
                    let (from, other) = (slots[two].quarters, slots[two].array.on(on).try_mul(1.0));
                    if let Some(other) = ok(other, &mut refused)
                        && ok(slots[one].array.try_add_assign(&other), &mut refused).is_some()
                    {
                        slots[one].quarters.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                    }
                }
                3 => {
                    let (quarter, slot) = (numbers.below(4), &mut slots[one]);
                    let view = slot.array.slice_mut(s![quarter * LEN / 4..(quarter + 1) * LEN / 4]).unwrap();
                    if ok(view.on_mut(on).fill(value), &mut refused).is_some() {
                        slot.quarters[quarter] = value;
                    }
                }
                4 | 5 => {
                    if let Some(found) = ok(slots[one].array.on(on).to_vec(), &mut refused) {
                        assert!(found == elements(slots[one].quarters), "step {step}, slot {one}");
                    }
                }
                6 => {
                    let sum = slots[one].array.on(on).sum().and_then(|sum| sum.into_scalar());
                    if let Some(sum) = ok(sum, &mut refused) {
                        assert_eq!(sum, slots[one].quarters.iter().sum::<f32>() * (LEN / 4) as f32);
                    }
                }
                7 | 8 if count > 8 => drop(slots.swap_remove(one)),
                9 => {
                    let (x, y) = (slots[one].array.on(on), &slots[two].array);
                    let quarters = core::array::from_fn(|at| {
                        slots[one].quarters[at] * 0.5 + slots[two].quarters[at].min(9.0)
                    });
                    let array = (x.lazy() * 0.5 + y.lazy().min(9.0)).eval();
                    slots.extend(ok(array, &mut refused).map(|array| Slot { array, quarters }));
                }
                10 => {
                    let turned = slots[one].array.view().reshape((4, LEN / 4)).unwrap();
                    let turned: Option<GpuArray<f32, Ix2>> = ok(turned.on(on).t().to_owned(), &mut refused);
                    if let Some(turned) = turned
                        && let Some(row) =
                            ok(turned.slice(s![LEN / 4 - 1, ..]).unwrap().to_vec(), &mut refused)
                    {
                        assert_eq!(row, slots[one].quarters, "step {step}");
                    }
                }
                11 => {
                    let uploaded =
                        slots[one].array.view_mut().on_mut(on).copy_from_slice(&elements([value; 4]));
                    if ok(uploaded, &mut refused).is_some() {
                        slots[one].quarters = [value; 4];
                    }
                }
                12 => {
                    // Another library has the address for some operations.
                    let Some(guard) = ok(slots[one].array.read_on(on), &mut refused) else { continue };
                    let other = slots[two].array.on(on).try_add(&slots[one].array);
                    let quarters =
                        core::array::from_fn(|at| slots[one].quarters[at] + slots[two].quarters[at]);
                    assert_ne!(guard.address(), 0);
                    drop(guard);
                    slots.extend(ok(other, &mut refused).map(|array| Slot { array, quarters }));
                }
                13 if one != two => {
                    let [first, second] = slots.get_disjoint_mut([one, two]).unwrap();
                    let updated = update((&mut first.array, &mut second.array), |(x, y)| (x + y, x - y));
                    if ok(updated, &mut refused).is_some() {
                        for at in 0..4 {
                            let (x, y) = (first.quarters[at], second.quarters[at]);
                            (first.quarters[at], second.quarters[at]) = (x + y, x - y);
                        }
                    }
                }
                14 => {
                    let slot = slots.swap_remove(one);
                    match slot.array.into_block() {
                        Ok(block) => {
                            let array = Vector::from_block(on, block, LEN).unwrap();
                            // SAFETY: the block had the elements of an array.
                            slots.push(Slot { array: unsafe { array.assume_init() }, ..slot });
                        }
                        Err(rejected) => {
                            assert!(rejected.error().is_out_of_memory(), "{rejected}");
                            slots.push(Slot { array: rejected.into_value(), ..slot });
                        }
                    }
                }
                15 => {
                    let rows = slots[one].array.view().reshape((LEN / 64, 64)).unwrap();
                    let picked =
                        rows.on(on).select(gpumem_tests::array::ndarray::Axis(0), &[0_usize, LEN / 64 - 1]);
                    if let Some(picked) = ok(picked.and_then(|picked| picked.to_vec()), &mut refused) {
                        assert_eq!((picked[0], picked[64]), (slots[one].quarters[0], slots[one].quarters[3]));
                    }
                }
                16 => {
                    let pinned: Option<PinnedArray<f32, Ix1>> =
                        ok(slots[one].array.copy_to(&on.pinned()), &mut refused);
                    if let Some(pinned) = pinned {
                        assert_eq!(pinned[LEN - 1], slots[one].quarters[3]);
                    }
                }
                17 => {
                    // A loop: its order is learnt, contents are copied down ahead, and return ahead.
                    for at in (0..3).flat_map(|_| 0..count - 1) {
                        let [to, from] = slots.get_disjoint_mut([at, at + 1]).unwrap();
                        if ok(to.array.try_add_assign(&from.array), &mut refused).is_some() {
                            to.quarters.iter_mut().zip(from.quarters).for_each(|(to, from)| *to += from);
                        }
                    }
                }
                18 if seed.is_multiple_of(2) => {
                    let limit_bytes = LIMIT_BYTES - (numbers.below(3) as u64) * (LIMIT_BYTES / 4);
                    gpu.pool().set_hard_limit(limit_bytes).unwrap();
                }
                19 => gpu.iteration(),
                _ => {}
            }
            // Elements stay small enough for exact sums.
            for slot in &mut slots {
                if slot.quarters.iter().any(|value| value.abs() > 4096.0) && slot.array.fill(1.0).is_ok() {
                    slot.quarters = [1.0; 4];
                }
            }
        }
        for (index, slot) in slots.iter().enumerate() {
            if let Some(found) = ok(slot.array.to_vec(), &mut refused) {
                assert!(found == elements(slot.quarters), "slot {index}");
            }
        }
        let status = gpu.pool().status().unwrap();
        assert!(status.in_use_peak_bytes <= LIMIT_BYTES, "{status:#}");
        assert!(refused < steps, "{refused} of {steps} refused: {status:#}");
    }

    /// A pool of some backend; three in five have little host memory, two of them with a file.
    fn pool(driver: &Driver, seed: u64) -> Gpu {
        let device = Device::new(driver, 0).unwrap();
        let spill = match seed % 5 {
            1 => Spill::to_host(4 << 20),
            2 => Spill::to_host(2 << 20).then_file(std::env::temp_dir(), 2 << 20),
            3 => Spill::to_host(2 << 20).then_file(std::env::temp_dir(), 64 << 20),
            _ => Spill::to_host(64 << 20),
        };
        let builder = Pool::builder(&device).hard_limit(LIMIT_BYTES).spill(spill);
        let builder = match seed % 4 {
            0 => builder.backend(BackendKind::None),
            1 => builder.backend(BackendKind::Native),
            2 => builder.profile(Profile::Tight),
            _ => builder,
        };
        Gpu::new(&builder.build().unwrap()).unwrap()
    }

    #[test]
    fn one_thread() {
        for_each_seed!(12, |driver, seed| run(&pool(driver, seed), seed, 200));
    }

    #[test]
    fn three_threads() {
        for_each_seed!(8, |driver, seed| {
            let gpu = pool(driver, seed);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let gpu = gpu.fork().unwrap();
                    scope.spawn(move || run(&gpu, 100 * seed + thread, 80));
                }
            });
        });
    }
}
