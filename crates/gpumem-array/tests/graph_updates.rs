//! Numbers and arrays of a graph change between launches.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod support;

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, Gpu, GpuArray, GraphError};
use gpumem_sim::{Sim, SimConfig};
use support::{gpu, gpu_with};

type Vector = GpuArray<f32, Ix1>;

const LEN: usize = 64;

fn filled(gpu: &Gpu, value: f32) -> Vector {
    Vector::from_elem(gpu, LEN, value).unwrap()
}

fn check(array: &Vector, expected: f32) {
    assert_eq!(array.to_vec().unwrap(), [expected; LEN]);
}

fn refusal<T>(result: Result<T, ArrayError>) -> GraphError {
    match result {
        Err(ArrayError::Graph(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Numbers change between launches on any stream; one that is not returned keeps its value.
fn numbers_change_between_launches(gpu: &Gpu) {
    let other = gpu.fork().unwrap();
    let mut x = filled(gpu, 1.0);
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
        let stream = if round % 2 == 0 { &other } else { gpu };
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
    assert_eq!(refusal(wrong.launch(gpu).set(&factor, 1.0).run()), GraphError::ForeignResult);
}

/// A graph that is captured again has the new arrays, numbers and operations, and an update that fails changes nothing.
fn graphs_are_updated(gpu: &Gpu) {
    let other = gpu.fork().unwrap();
    let (mut x, mut y) = (filled(gpu, 1.0), filled(&other, 10.0));
    let (mut graph, first) = gpu.capture(|c| x.on(c).try_mul(2.0)).unwrap();
    let mut copies = Vec::new();
    for round in 1..=6 {
        let number = round as f32;
        graph.launch(&other).read(&x).run().unwrap();
        core::mem::swap(&mut x, &mut y);
        // The operations are others every third time.
        let out = match round % 3 {
            0 => graph.update(gpu, |c| x.on(c).try_add(number)?.try_add(1.0)),
            _ => graph.update(gpu, |c| x.on(c).try_mul(number)),
        }
        .unwrap();
        let done = graph.launch(if round % 2 == 0 { gpu } else { &other }).read(&x).run().unwrap();
        let old = if round % 2 == 0 { 1.0 } else { 10.0 };
        let expected = if round % 3 == 0 { old + number + 1.0 } else { old * number };
        copies.push((done.get(&out).unwrap().on(gpu).try_add(0.0).unwrap(), expected));
        assert_eq!(refusal(done.get(&first)), GraphError::ForeignResult);
    }
    let failed = graph.update(gpu, |c| x.on(c).try_add(&Vector::zeros(c, 3)?));
    assert!(matches!(failed, Err(ArrayError::Shape { .. })));
    graph.launch(gpu).read(&x).run().unwrap();
    drop((graph, x, y));
    copies.iter().for_each(|(array, expected)| check(array, *expected));
}

fn under_every_seed(test: fn(&Gpu)) {
    test(&gpu());
    for seed in 0..200 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        test(&gpu);
        gpu.device().synchronize().unwrap();
        let report = Sim::of(gpu.device().driver()).unwrap().report();
        assert_eq!(report.findings, [], "replay: GPUMEM_SIM_SEED={seed}");
        assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{report}");
    }
}

#[test]
fn numbers_change() {
    under_every_seed(numbers_change_between_launches);
}

#[test]
fn arrays_and_operations_change() {
    under_every_seed(graphs_are_updated);
}
