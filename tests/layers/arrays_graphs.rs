//! Seven errors that programs of arrays in safe code once met, on both drivers, and on the simulator under 200 seeds with race detection:
//!
//! 1. The values of captured work were read although it never ran.
//! 2. A capture spread to other streams.
//! 3. The launch of a graph was not ordered with other uses of its arrays.
//! 4. A consumer waited for all work behind its array.
//! 5. A launch made more driver calls and host work than its kernel needs. Here its driver calls are counted; the bench `tracking`
//!    measures its time.
//! 6. A kernel ran with arguments of other types than its text has. Here the declaration is compared with the text; `launches.rs`
//!    compares the arguments, because launches of a program's kernels are `unsafe`.
//! 7. Halves of one array, a number and the work behind it, and operands in different orders were treated as one.

#![forbid(unsafe_code)]

use gpumem_tests::array::ndarray::{Array2, Axis, Ix1, ShapeBuilder};
use gpumem_tests::array::{ArrayError, CaptureGpu, Gpu, GpuArray, GraphError, PinnedArray};
use gpumem_tests::driver::count_calls;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::harness::cases::skip;
use gpumem_tests::pool::{BackendKind, Capture, CaptureMode, Device, Pool};
use gpumem_tests::sys::Driver;
use gpumem_tests::{cases, for_each_seed, for_each_seed_with_gates};
use gpumem_trace::calls::reading;

type Vector = GpuArray<f32, Ix1>;

const LEN: usize = 1 << 12;

fn gpu(driver: &Driver) -> Gpu {
    let gpu = Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap();
    // Preloaded, because the driver otherwise compiles the kernels at their first use, for longer than the rest of the test
    // takes.
    gpu.preload::<f32>().unwrap();
    gpu
}

fn filled(gpu: &Gpu, value: f32) -> Vector {
    Vector::from_elem(gpu, LEN, value).unwrap()
}

fn check(array: &Vector, expected: f32) {
    let values = array.to_vec().unwrap();
    assert!(values.iter().all(|value| *value == expected), "{} instead of {expected}", values[0]);
}

fn refusal<T>(result: Result<T, ArrayError>) -> GraphError {
    match result {
        Err(ArrayError::Graph(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

/// The results of captured work cannot be read before a launch, nor after the capture was dropped.
fn values_exist_through_a_launch(driver: &Driver) {
    let gpu = gpu(driver);
    let x = filled(&gpu, 21.0);
    let mut leaked = None;
    let (mut graph, y) = gpu
        .capture(|c| {
            leaked = Some(x.on(c).try_add(1.0)?);
            x.on(c).try_mul(2.0)
        })
        .unwrap();
    assert_eq!(refusal(leaked.unwrap().to_vec()), GraphError::CaptureEnded);
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [42.0; LEN]);

    let mut leaked = None;
    let dropped = gpu.capture(|c| {
        leaked = Some(filled(c, 5.0));
        // The closure fails, so there is no graph.
        x.on(c).try_add(&Vector::zeros(c, 3)?)
    });
    assert!(matches!(dropped, Err(ArrayError::Shape { .. })));
    let leaked = leaked.unwrap();
    assert_eq!(refusal(leaked.on(&gpu).to_vec()), GraphError::ArrayOfCapture);
    assert_eq!(refusal(leaked.to_vec()), GraphError::CaptureEnded);
    drop(leaked);

    // A capture of a stream alone does not include arrays.
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    assert_eq!(refusal(x.try_mul(2.0)), GraphError::StreamCaptures);
    assert_eq!(refusal(Vector::from_elem(&gpu, LEN, 1.0)), GraphError::StreamCaptures);
    drop(capture);
    check(&x, 21.0);
}

/// While one thread captures, another thread's stream reads an array that the capture writes, and writes one that it reads. That
/// work does not join the capture.
fn captures_do_not_spread(driver: &Driver) {
    let gpu = gpu(driver);
    let (x, mut w) = (filled(&gpu, 1.0), filled(&gpu, 10.0));
    let mut v = filled(&gpu, 2.0);
    let (mut graph, sum) = gpu
        .capture(|c| {
            w.on_mut(c).try_add_assign(&x)?;
            let sum = w.on(c).try_add(&v)?;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let fork = gpu.fork().unwrap();
                    // The capture runs nothing, so `w` has its old values.
                    check(&w.on(&fork).try_add(&x).unwrap(), 11.0);
                    check(&w, 10.0);
                    v.on_mut(&fork).try_add_assign(&x).unwrap();
                    check(&v, 3.0);
                });
            });
            // The capture goes on with both arrays.
            v.on_mut(c).try_add_assign(&w)?;
            assert_eq!(refusal(w.on(&gpu).to_vec()), GraphError::OutsideCapture { operation: "a download" });
            Ok(sum)
        })
        .unwrap();
    check(&w, 10.0);
    check(&v, 3.0);
    let mut expected = 3.0;
    for round in 1..=3 {
        let done = graph.launch(&gpu).write(&mut w).read(&x).write(&mut v).run().unwrap();
        let added = 10.0 + round as f32;
        assert_eq!(done.get(&sum).unwrap().to_vec().unwrap(), [added + expected; LEN]);
        expected += added;
    }
    check(&v, expected);

    // A stream captured without arrays is not waited for either.
    let fork = gpu.fork().unwrap();
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    check(&w.on(&fork).try_add(1.0).unwrap(), 14.0);
    check(&filled(&fork, 4.0), 4.0);
    capture.end().unwrap();
    check(&w, 13.0);
}

/// Launches on any stream are ordered behind the work that they need and before the work that needs them.
fn launches_are_ordered(driver: &Driver) {
    let gpu = gpu(driver);
    let forks = [gpu.fork().unwrap(), gpu.fork().unwrap(), gpu.fork().unwrap()];
    let (mut x, mut w) = (filled(&gpu, 0.0), filled(&gpu, 0.0));
    let (mut graph, (y, total)) = gpu
        .capture(|c| {
            let y = x.on(c).try_mul(2.0)?;
            w.on_mut(c).try_add_assign(&y)?;
            let total = w.on(c).sum()?;
            Ok((y, total))
        })
        .unwrap();
    let (mut sum, mut copies) = (0.0, Vec::new());
    for round in 1..=9 {
        let (writer, launcher, reader) =
            (&forks[round % 3], &forks[(round + 1) % 3], &forks[(round / 2) % 3]);
        x.on_mut(writer).fill(round as f32).unwrap();
        sum += 2.0 * round as f32;
        let done = graph.launch(launcher).read(&x).write(&mut w).run().unwrap();
        // Read on another stream. The next launch must wait for this work.
        copies.push((done.get(&y).unwrap().on(reader).try_add(0.0).unwrap(), 2.0 * round as f32));
        copies.push((w.on(reader).try_mul(1.0).unwrap(), sum));
        if round % 4 == 0 {
            let total = done.get(&total).unwrap().on(writer).into_scalar().unwrap();
            assert_eq!(total, sum * LEN as f32);
        }
    }
    // The graph runs while it and its arrays are dropped.
    drop((graph, x, w));
    let _others = forks.each_ref().map(|fork| filled(fork, 42.0));
    copies.iter().for_each(|(array, expected)| check(array, *expected));
}

/// Numbers change between launches on any stream; one that is not returned keeps its value.
fn numbers_change_between_launches(driver: &Driver) {
    let gpu = gpu(driver);
    let other = gpu.fork().unwrap();
    let mut x = filled(&gpu, 1.0);
    let (mut graph, (factor, sum)) = gpu
        .capture(|c| {
            let (factor, fixed) = (c.scalar(2.0_f32)?, c.scalar(1.0_f32)?);
            x.on_mut(c).try_mul_assign(&factor)?;
            x.on_mut(c).try_add_assign(&fixed)?;
            let sum = x.on(c).sum()?;
            Ok((factor, sum))
        })
        .unwrap();
    let mut expected = 1.0;
    for (round, value) in [None, Some(3.0), None, Some(-1.0)].into_iter().enumerate() {
        let stream = if round % 2 == 0 { &other } else { &gpu };
        let launch = graph.launch(stream).write(&mut x);
        let done = match value {
            Some(value) => launch.set(&factor, value).run().unwrap(),
            None => launch.run().unwrap(),
        };
        expected = expected * [2.0, 3.0, 3.0, -1.0][round] + 1.0;
        assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), expected * LEN as f32);
    }
    check(&x, expected);
    let (mut wrong, ()) = gpu.capture(|_| Ok(())).unwrap();
    assert_eq!(refusal(wrong.launch(&gpu).set(&factor, 1.0).run()), GraphError::ForeignResult);
}

/// A graph that is captured again has the new arrays, numbers and operations, and an update that fails changes nothing.
fn graphs_are_updated(driver: &Driver) {
    let gpu = gpu(driver);
    let other = gpu.fork().unwrap();
    let (mut x, mut y) = (filled(&gpu, 1.0), filled(&other, 10.0));
    let (mut graph, first) = gpu.capture(|c| x.on(c).try_mul(2.0)).unwrap();
    let mut copies = Vec::new();
    for round in 1..=6 {
        let number = round as f32;
        graph.launch(&other).read(&x).run().unwrap();
        core::mem::swap(&mut x, &mut y);
        // The operations are others every third time.
        let out = match round % 3 {
            0 => graph.update(&gpu, |c| x.on(c).try_add(number)?.try_add(1.0)),
            _ => graph.update(&gpu, |c| x.on(c).try_mul(number)),
        }
        .unwrap();
        let done = graph.launch(if round % 2 == 0 { &gpu } else { &other }).read(&x).run().unwrap();
        let old = if round % 2 == 0 { 1.0 } else { 10.0 };
        let expected = if round % 3 == 0 { old + number + 1.0 } else { old * number };
        copies.push((done.get(&out).unwrap().on(&gpu).try_add(0.0).unwrap(), expected));
        assert_eq!(refusal(done.get(&first)), GraphError::ForeignResult);
    }
    let failed = graph.update(&gpu, |c| x.on(c).try_add(&Vector::zeros(c, 3)?));
    assert!(matches!(failed, Err(ArrayError::Shape { .. })));
    graph.launch(&gpu).read(&x).run().unwrap();
    drop((graph, x, y));
    copies.iter().for_each(|(array, expected)| check(array, *expected));
}

/// Two arrays of one shape, of which each step writes one from the other: the graph is updated with them swapped, in both directions, and
/// its executable stays.
fn arrays_of_one_shape_are_swapped(driver: &Driver) {
    let gpu = gpu(&count_calls(driver));
    let _bound = gpu.device().bind().unwrap();
    let other = gpu.fork().unwrap();
    let (mut x, mut y) = (filled(&gpu, 1.0), filled(&other, 100.0));
    let step = |c: &CaptureGpu, x: &Vector, y: &mut Vector| {
        y.on_mut(c).assign(&x.on(c))?;
        y.on_mut(c).try_mul_assign(3.0)
    };
    let (mut graph, ()) = gpu.capture(|c| step(c, &x, &mut y)).unwrap();
    let (before, mut expected) = (reading(), 1.0);
    for round in 0..6 {
        graph.launch(if round % 2 == 0 { &gpu } else { &other }).read(&x).write(&mut y).run().unwrap();
        expected *= 3.0;
        core::mem::swap(&mut x, &mut y);
        // The arrays of the last capture, in their old places.
        let refused = refusal(graph.launch(&gpu).read(&x).write(&mut y).run());
        assert!(matches!(refused, GraphError::ReadOnlyArgument { .. }), "{refused}");
        graph.update(&gpu, |c| step(c, &x, &mut y)).unwrap();
        // `x` has been written by the launch, and `y` has the values before.
        check(&x, expected);
        check(&y, if round == 0 { 1.0 } else { expected / 3.0 });
    }
    let calls = reading().since(&before).calls;
    assert_eq!(
        calls.cuGraphInstantiateWithFlags + calls.cuGraphInstantiateWithParams,
        0,
        "{:?}",
        calls.by_name()
    );

    // A third array takes part, and another one leaves.
    let mut z = filled(&gpu, 7.0);
    graph.update(&gpu, |c| step(c, &z, &mut x)).unwrap();
    let refused = refusal(graph.launch(&gpu).read(&y).write(&mut x).run());
    assert!(
        matches!(refused, GraphError::MissingArgument { element: "f32", ref shape, .. } if *shape == [LEN]),
        "{refused}"
    );
    graph.launch(&gpu).read(&z).write(&mut x).run().unwrap();
    z.fill(8.0).unwrap();
    check(&x, 21.0);
}

/// An array that grows in place between launches: the graph goes on with the elements of the capture.
fn arrays_grow_between_launches(driver: &Driver) {
    let gpu = gpu(driver);
    let other = gpu.fork().unwrap();
    let mut x = match Vector::growable(&gpu, 8 << 20) {
        Ok(x) => x,
        Err(refused) => return skip(&format!("no memory that grows in place: {refused}")),
    };
    // All elements that the first unit of memory has room for, so that the graph uses the memory as a whole.
    x.resize(1, 1.0).unwrap();
    let unit = x.capacity();
    x.resize(unit, 1.0).unwrap();
    let y = filled(&gpu, 2.0);
    let (mut graph, sum) = gpu
        .capture(|c| {
            x.on_mut(c).try_mul_assign(2.0)?;
            x.on(c).sum()
        })
        .unwrap();
    let mut expected = 1.0;
    for (round, len) in [unit, 3 * unit + 5, 7 * unit, 2 * unit, unit].into_iter().enumerate() {
        x.resize(len, 0.5).unwrap();
        let launcher = if round % 2 == 0 { &other } else { &gpu };
        let done = graph.launch(launcher).write(&mut x).run().unwrap();
        expected *= 2.0;
        assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), expected * unit as f32);
        let values = x.to_vec().unwrap();
        assert!(values[..unit].iter().all(|value| *value == expected), "round {round}");
        assert!(values[unit..].iter().all(|value| *value == 0.5), "round {round}");
    }
    x.resize(unit - 1, 0.0).unwrap();
    let refused = refusal(graph.launch(&gpu).write(&mut x).run());
    assert!(matches!(refused, GraphError::PartialArgument { index: 0, .. }), "{refused}");
    // Updated with the shorter array, with another one, and with the array after its growth.
    let sum = graph.update(&gpu, |c| x.on(c).sum()).unwrap();
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), expected * (unit - 1) as f32);
    let sum = graph.update(&gpu, |c| y.on(c).sum()).unwrap();
    let done = graph.launch(&gpu).read(&y).run().unwrap();
    assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), 2.0 * LEN as f32);
    x.resize(2 * unit, 0.0).unwrap();
    let sum = graph.update(&gpu, |c| x.on(c).sum()).unwrap();
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    drop(x);
    assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), expected * (unit - 1) as f32);
}

/// True if the case is skipped: on the backend `none`, frees wait for the device.
fn frees_wait(gpu: &Gpu) -> bool {
    let waits = gpu.pool().backend() == BackendKind::None;
    if waits {
        skip("frees of the backend `none` wait for the device");
    }
    waits
}

/// The sum of the first batch does not wait for the uploads behind it.
fn the_first_batch_is_summed_alone(driver: &Driver) {
    let gpu = gpu(driver);
    if frees_wait(&gpu) {
        return;
    }
    let copies = gpu.fork().unwrap();
    let batches: Vec<_> = (1..=4_u8)
        .map(|index| PinnedArray::from_elem(&gpu.pinned(), LEN, f32::from(index)).unwrap())
        .collect();
    let mut arrays: Vec<_> = batches.iter().map(|_| GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap()).collect();
    assert_eq!(arrays[0].sum().unwrap().into_scalar().unwrap(), 0.0);
    arrays[0].on_mut(&copies).assign(&batches[0]).unwrap();
    let gate = StreamGate::on(copies.stream()).unwrap();
    for (array, batch) in arrays.iter_mut().zip(&batches).skip(1) {
        array.on_mut(&copies).assign(batch).unwrap();
    }
    assert_eq!(arrays[0].sum().unwrap().into_scalar().unwrap(), LEN as f32);
    assert!(gate.open(), "the sum has waited for later uploads");
    for (array, value) in arrays.iter().zip(1_u8..) {
        assert_eq!(array.to_vec().unwrap(), [f32::from(value); LEN]);
    }
}

/// Halves of one array along each axis, on a stream each: one is written and read while the work on the other is held back.
fn halves_do_not_serialise(driver: &Driver) {
    let gpu = gpu(driver);
    if frees_wait(&gpu) {
        return;
    }
    let other = gpu.fork().unwrap();
    for axis in 0..2 {
        let mut array = GpuArray::<f32, _>::zeros(&gpu, (64, LEN / 32)).unwrap();
        gpu.device().synchronize().unwrap();
        let half = array.shape()[axis] / 2;
        let (mut left, mut right) = array.split_at_mut(Axis(axis), half).unwrap();
        // A driver that loads a kernel at its first use may wait for the device.
        right.view().on(&other).sum().unwrap();
        let gate = StreamGate::on(gpu.stream()).unwrap();
        left.fill(1.0).unwrap();
        right.view_mut().on_mut(&other).fill(2.0).unwrap();
        assert_eq!(right.view().on(&other).sum().unwrap().into_scalar().unwrap(), 2.0 * LEN as f32);
        assert!(gate.open(), "one half of axis {axis} has waited for the other");
        assert_eq!(array.sum().unwrap().into_scalar().unwrap(), 3.0 * LEN as f32);
    }
}

/// A number waits for its own value, not for the work behind it.
fn a_number_waits_for_its_own_value(driver: &Driver) {
    let gpu = gpu(driver);
    if frees_wait(&gpu) {
        return;
    }
    let x = GpuArray::from_elem(&gpu, LEN, 2.0_f32).unwrap();
    let wide = GpuArray::from_elem(&gpu, LEN, 2.0_f64).unwrap();
    let mut behind = GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap();
    for (is_wide, is_of_others) in [(false, false), (true, false), (false, true)] {
        let (sum, wide_sum) = (x.sum().unwrap(), wide.sum().unwrap());
        let gate = StreamGate::on(gpu.stream()).unwrap();
        match is_of_others {
            true => drop(behind.write_on(gpu.stream()).unwrap()),
            false => behind.fill(1.0).unwrap(),
        }
        let value = match is_wide {
            true => wide_sum.into_scalar().unwrap(),
            false => f64::from(sum.into_scalar().unwrap()),
        };
        assert_eq!(value, 2.0 * LEN as f64);
        assert!(gate.open(), "the number has waited for later work");
    }
}

/// Operands in row-major and in column-major order.
fn orders_mix(driver: &Driver) {
    let gpu = gpu(driver);
    let element = |(row, column): (usize, usize)| (10 * row + column) as f32;
    let rows = Array2::from_shape_fn((3, 5), element);
    let columns = Array2::from_shape_fn((3, 5).f(), element);
    let (x, y) = (GpuArray::from_array(&gpu, &rows).unwrap(), GpuArray::from_array(&gpu, &columns).unwrap());
    assert_eq!(x.try_add(&y).unwrap().to_array().unwrap(), &rows + &columns);
    assert_eq!(y.try_sub(&x).unwrap().to_array().unwrap(), &columns - &rows);
    let mut z = x.try_clone().unwrap();
    z.try_mul_assign(&y).unwrap();
    assert_eq!(z.to_array().unwrap(), &rows * &columns);
}

/// A launch on arrays that the stream is ordered behind is one driver call, also if another stream reads them.
fn a_launch_is_one_driver_call(driver: &Driver) {
    let gpu = gpu(&count_calls(driver));
    let _bound = gpu.device().bind().unwrap();
    let other = gpu.fork().unwrap();
    let (mut y, own, shared) = (filled(&gpu, 1.0), filled(&gpu, 2.0), filled(&other, 3.0));
    let read = shared.on(&other).sum().unwrap();
    for round in 1..=10 {
        let before = reading();
        y.try_add_assign(&own).unwrap();
        y.try_add_assign(&shared).unwrap();
        let calls = reading().since(&before).calls;
        // In the first round, the stream waits for the other one. Each launch looks up the current context, and whether it is still alive.
        let of_contexts = calls.cuCtxGetCurrent + calls.cuCtxGetId;
        let is_ordered = calls.total() == calls.cuLaunchKernel + of_contexts;
        assert!(
            calls.cuLaunchKernel == 2 && (round == 1 || is_ordered),
            "round {round}: {:?}",
            calls.by_name()
        );
    }
    check(&y, 51.0);
    assert_eq!(read.into_scalar().unwrap(), 3.0 * LEN as f32);
}

cases! {
    #[serial_test::serial]
    fn numbers_change_between_launches_on(driver: &Driver) {
        numbers_change_between_launches(driver);
    }

    #[serial_test::serial]
    fn graphs_are_updated_on(driver: &Driver) {
        graphs_are_updated(driver);
    }

    #[serial_test::serial]
    fn arrays_of_one_shape_are_swapped_on(driver: &Driver) {
        arrays_of_one_shape_are_swapped(driver);
    }

    #[serial_test::serial]
    fn arrays_grow_between_launches_on(driver: &Driver) {
        arrays_grow_between_launches(driver);
    }

    #[serial_test::serial]
    fn values_exist_through_a_launch_on(driver: &Driver) {
        values_exist_through_a_launch(driver);
    }

    #[serial_test::serial]
    fn captures_do_not_spread_on(driver: &Driver) {
        captures_do_not_spread(driver);
    }

    #[serial_test::serial]
    fn launches_are_ordered_on(driver: &Driver) {
        launches_are_ordered(driver);
    }

    #[serial_test::serial]
    fn the_first_batch_is_summed_alone_on(driver: &Driver) {
        the_first_batch_is_summed_alone(driver);
    }

    #[serial_test::serial]
    fn halves_do_not_serialise_on(driver: &Driver) {
        halves_do_not_serialise(driver);
    }

    #[serial_test::serial]
    fn a_number_waits_for_its_own_value_on(driver: &Driver) {
        a_number_waits_for_its_own_value(driver);
    }

    #[serial_test::serial]
    fn orders_mix_on(driver: &Driver) {
        orders_mix(driver);
    }

    #[serial_test::serial]
    fn a_launch_is_one_driver_call_on(driver: &Driver) {
        a_launch_is_one_driver_call(driver);
    }
}

#[test]
fn values_exist_through_a_launch_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| values_exist_through_a_launch(driver));
}

#[test]
fn captures_do_not_spread_under_any_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| captures_do_not_spread(driver));
}

#[test]
fn launches_are_ordered_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| launches_are_ordered(driver));
}

#[test]
fn numbers_change_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| {
        numbers_change_between_launches(driver);
        nothing_is_left(driver);
    });
}

#[test]
fn graphs_are_updated_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| {
        graphs_are_updated(driver);
        nothing_is_left(driver);
    });
}

#[test]
fn arrays_of_one_shape_are_swapped_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| {
        arrays_of_one_shape_are_swapped(driver);
        nothing_is_left(driver);
    });
}

#[test]
fn arrays_grow_between_launches_under_every_seed() {
    for_each_seed!(20, |driver: &Driver, _seed| {
        arrays_grow_between_launches(driver);
        nothing_is_left(driver);
    });
}

fn nothing_is_left(driver: &Driver) {
    let report = gpumem_sim::Sim::of(driver).unwrap().report();
    assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{report}");
}

#[test]
fn the_first_batch_is_summed_alone_under_every_seed() {
    for_each_seed_with_gates!(200, |driver: &Driver, _seed| the_first_batch_is_summed_alone(driver));
}

#[test]
fn halves_do_not_serialise_under_any_seed() {
    for_each_seed_with_gates!(200, |driver: &Driver, _seed| halves_do_not_serialise(driver));
}

#[test]
fn a_number_waits_for_its_own_value_under_every_seed() {
    for_each_seed_with_gates!(200, |driver: &Driver, _seed| a_number_waits_for_its_own_value(driver));
}

/// The work behind a number reuses what it was calculated from.
#[test]
fn numbers_have_their_own_value_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| {
        let gpu = gpu(driver);
        let mut x = filled(&gpu, 2.0);
        for round in 0..4 {
            let (sum, value) = (x.sum().unwrap(), [2.0, 0.0, 1.0, 2.0][round]);
            x.fill(round as f32).unwrap();
            assert_eq!(sum.into_scalar().unwrap(), value * LEN as f32);
        }
    });
}

#[test]
fn orders_mix_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| orders_mix(driver));
}

#[test]
fn a_launch_is_one_driver_call_under_every_seed() {
    for_each_seed!(200, |driver: &Driver, _seed| a_launch_is_one_driver_call(driver));
}
