//! Captures and graphs of arrays in safe code, on both drivers, and on the simulator under 200 seeds with race detection.
//!
//! Three errors were once possible without `unsafe`: reading an array of a capture that never ran, letting a capture spread to
//! other streams, and launching a graph without the order of its uses.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::array::ndarray::Ix1;
use gpumem_tests::array::{ArrayError, Gpu, GpuArray, GraphError};
use gpumem_tests::pool::{CaptureMode, Device, Pool};
use gpumem_tests::sys::Driver;
use gpumem_tests::{cases, for_each_seed};

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
    let capture = gpu.stream().begin_capture(CaptureMode::Relaxed).unwrap();
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
            assert_eq!(refusal(w.on(&gpu).to_vec()), GraphError::OutsideCapture);
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
    let capture = gpu.stream().begin_capture(CaptureMode::Relaxed).unwrap();
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

fn nothing_is_left(driver: &Driver) {
    let report = gpumem_sim::Sim::of(driver).unwrap().report();
    assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{report}");
}
