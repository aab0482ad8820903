//! Graphs of arrays on the simulator: the work that a capture records, the requirements of a launch, and the state after errors,
//! panics and calls that the driver refuses.

use crate::support::{gpu, gpu_with};
use core::ops::Range;
use gpumem_array::ndarray::{Axis, Ix1, Slice, s};
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Capture, CaptureError, CaptureMode, Device, DeviceError, Pool, PoolError};
use gpumem_array::{
    ArrayError, Gpu, GpuArray, GpuGraph, GraphError, KernelSource, LaunchShape, Out, UnifiedArray,
    UninitArray, update,
};
use gpumem_sim::{Schedule, Sim, SimConfig};

type Vector = GpuArray<f32, Ix1>;

fn vector(gpu: &Gpu, values: &[f32]) -> Vector {
    GpuArray::from_slice(gpu, values).unwrap()
}

fn graph_error<T>(result: Result<T, ArrayError>) -> GraphError {
    match result {
        Err(ArrayError::Graph(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Checks that no graphs are left and the simulator has no findings.
fn check_clean(gpu: &Gpu) {
    gpu.device().synchronize().unwrap();
    let report = Sim::of(gpu.device().driver()).unwrap().report();
    assert_eq!(report.findings, [], "{report}");
    assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{report}");
}

/// `y = x * 2 + w`, and `w += x`.
fn step(gpu: &Gpu, x: &Vector, w: &mut Vector) -> (GpuGraph, Out<f32, Ix1>) {
    gpu.capture(|c| {
        let y = x.on(c).try_mul(2.0)?.try_add(&*w)?;
        w.on_mut(c).try_add_assign(x)?;
        Ok(y)
    })
    .unwrap()
}

#[test]
fn a_graph_runs_at_every_launch() {
    let gpu = gpu();
    let (x, mut w) = (vector(&gpu, &[1.0, 2.0]), vector(&gpu, &[10.0, 20.0]));
    let (mut graph, y) = step(&gpu, &x, &mut w);
    assert_eq!(w.to_vec().unwrap(), [10.0, 20.0], "the capture has run");
    for round in 0..4 {
        let done = graph.launch(&gpu).write(&mut w).read(&x).run().unwrap();
        let expected = [1.0, 2.0].map(|x| 2.0 * x + 10.0 * x + round as f32 * x);
        assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), expected);
    }
    assert_eq!(w.to_vec().unwrap(), [14.0, 28.0]);
    drop((graph, x, w));
    check_clean(&gpu);
}

/// An update in a capture: each launch goes on from the elements of the one before.
#[test]
fn an_update_is_captured() {
    let gpu = gpu();
    let (mut p, mut m, g) =
        (vector(&gpu, &[1.0, 2.0]), vector(&gpu, &[0.0, 8.0]), vector(&gpu, &[4.0, -4.0]));
    let (mut graph, ()) = gpu
        .capture(|c| {
            update((&mut p.on_mut(c), &mut m.on_mut(c)), |(p, m)| {
                let m = m * 0.5 + g.lazy();
                (p - m * 0.25, m)
            })
        })
        .unwrap();
    assert_eq!(p.to_vec().unwrap(), [1.0, 2.0], "the capture has run");
    graph.launch(&gpu).write(&mut p).write(&mut m).read(&g).run().unwrap();
    assert_eq!((p.to_vec().unwrap(), m.to_vec().unwrap()), (vec![0.0, 2.0], vec![4.0, 0.0]));
    graph.launch(&gpu).write(&mut p).write(&mut m).read(&g).run().unwrap();
    assert_eq!((p.to_vec().unwrap(), m.to_vec().unwrap()), (vec![-1.5, 3.0], vec![6.0, -4.0]));
    drop((graph, p, m, g));
    check_clean(&gpu);
}

#[test]
fn results_have_the_form_of_what_was_returned() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0, 2.0]);
    let (mut graph, (list, maybe, none, [first, second], ())) = gpu
        .capture(|c| {
            let scaled = |factor: f32| x.on(c).try_mul(factor);
            let list = vec![scaled(1.0)?, scaled(2.0)?, scaled(3.0)?];
            let empty: Option<Vector> = None;
            Ok((list, Some(x.on(c).sum()?), empty, [scaled(4.0)?, GpuArray::zeros(c, 2)?], ()))
        })
        .unwrap();
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    let read = |out| done.get(out).unwrap().to_vec().unwrap();
    for (factor, out) in [1.0, 2.0, 3.0].into_iter().zip(&list) {
        assert_eq!(read(out), [factor, 2.0 * factor]);
    }
    assert_eq!(done.get(&maybe.unwrap()).unwrap().into_scalar().unwrap(), 3.0);
    assert!(none.is_none());
    assert_eq!((read(&first), read(&second)), (vec![4.0, 8.0], vec![0.0, 0.0]));
}

/// The memory of results is reused neither by later temporaries nor after the capture.
#[test]
fn results_keep_their_memory() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0; 4096]);
    let (mut graph, (first, last)) = gpu
        .capture(|c| {
            let first = x.on(c).try_mul(3.0)?;
            let mut last = x.on(c).try_mul(1.0)?;
            for _ in 0..8 {
                last = last.try_add(1.0)?;
            }
            Ok((first, last))
        })
        .unwrap();
    graph.launch(&gpu).read(&x).run().unwrap();
    let others: Vec<Vector> = (0..8).map(|_| GpuArray::from_elem(&gpu, 4096, 7.0).unwrap()).collect();
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    assert_eq!(done.get(&first).unwrap().to_vec().unwrap(), [3.0; 4096]);
    assert_eq!(done.get(&last).unwrap().to_vec().unwrap(), [9.0; 4096]);
    assert!(others.iter().all(|other| other.to_vec().unwrap() == [7.0; 4096]));
}

#[test]
fn arrays_of_a_capture_stay_in_it() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let x = vector(&gpu, &[1.0, 2.0]);
    let (mut leaked, mut leaked_gpu) = (None, None);
    let (mut graph, ()) = gpu
        .capture(|c| {
            let y = x.on(c).try_mul(2.0)?;
            assert_eq!(graph_error(y.on(&gpu).try_add(1.0)), GraphError::OutsideCapture { operation: "add" });
            (leaked, leaked_gpu) = (Some(y), Some(Gpu::clone(c)));
            Ok(())
        })
        .unwrap();
    graph.launch(&gpu).read(&x).run().unwrap();
    let (mut leaked, leaked_gpu) = (leaked.unwrap(), leaked_gpu.unwrap());
    assert_eq!(graph_error(leaked.to_vec()), GraphError::CaptureEnded);
    assert_eq!(graph_error(leaked.on(&gpu).to_vec()), GraphError::ArrayOfCapture);
    assert_eq!(graph_error(leaked.on(&other).sum()), GraphError::ArrayOfCapture);
    assert_eq!(graph_error(leaked.fill(0.0)), GraphError::CaptureEnded);
    assert_eq!(graph_error(leaked.copy_from_slice(&[1.0, 2.0])), GraphError::CaptureEnded);
    assert_eq!(graph_error(x.on(&leaked_gpu).try_mul(2.0)), GraphError::CaptureEnded);
    assert_eq!(graph_error(Vector::zeros(&leaked_gpu, 4)), GraphError::CaptureEnded);
    assert_eq!(
        graph_error(graph.launch(&gpu).read(&x).read(&leaked).run()),
        GraphError::ExtraArgument { index: 1 }
    );
    // Refused in another capture too.
    let refused = gpu.capture(|c| leaked.on(c).try_add(1.0));
    assert_eq!(graph_error(refused), GraphError::ArrayOfCapture);
    drop((graph, leaked, leaked_gpu, x));
    check_clean(&gpu);
}

#[test]
fn operations_that_need_the_host_are_refused_and_the_capture_goes_on() {
    let gpu = gpu();
    let mut x = vector(&gpu, &[1.0, 2.0]);
    let (mut graph, y) = gpu
        .capture(|c| {
            let y = x.on(c).try_mul(2.0)?;
            let refused = |result: Result<(), ArrayError>| {
                assert!(
                    matches!(
                        result,
                        Err(ArrayError::Pool(PoolError::Device(DeviceError::Capture(
                            CaptureError::NotCapturable { .. }
                        ))))
                    ),
                    "{result:?}"
                );
            };
            refused(y.to_vec().map(drop));
            refused(x.on(c).to_vec().map(drop));
            refused(x.on_mut(c).copy_from_slice(&[0.0, 0.0]));
            refused(Vector::from_slice(c, &[1.0]).map(drop));
            refused(c.synchronize());
            assert_eq!(
                graph_error(gpu.synchronize()),
                GraphError::OutsideCapture { operation: "synchronize" }
            );
            assert_eq!(graph_error(x.to_vec()), GraphError::OutsideCapture { operation: "a download" });
            assert_eq!(graph_error(x.try_add(1.0)), GraphError::OutsideCapture { operation: "add" });
            assert_eq!(graph_error(x.fill(1.0)), GraphError::OutsideCapture { operation: "fill" });
            assert_eq!(graph_error(gpu.capture(|_| Ok(()))), GraphError::NestedCapture);
            assert_eq!(graph_error(c.capture(|_| Ok(()))), GraphError::NestedCapture);
            Ok(y)
        })
        .unwrap();
    // Nothing of the refused work was recorded: the graph only reads `x`.
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [2.0, 4.0]);
}

#[test]
fn arguments_are_matched_before_anything_is_queued() {
    let gpu = gpu();
    let (x, mut w) = (vector(&gpu, &[1.0, 2.0]), vector(&gpu, &[10.0, 20.0]));
    let (mut graph, y) = step(&gpu, &x, &mut w);
    let mut stranger = vector(&gpu, &[0.0, 0.0]);
    let (mut another, foreign) = gpu.capture(|c| x.on(c).try_mul(1.0)).unwrap();
    let queued = || Sim::of(gpu.device().driver()).unwrap().report().queued_count;
    let before = queued();

    let missing = graph_error(graph.launch(&gpu).read(&x).run());
    assert_eq!(
        missing,
        GraphError::MissingArgument {
            element: "f32",
            shape: vec![2],
            address: w.address(),
            range: 0..8,
            method: "write(&mut array)"
        }
    );
    let missing = graph_error(graph.launch(&gpu).write(&mut w).run());
    assert!(matches!(missing, GraphError::MissingArgument { method: "read(&array)", .. }), "{missing}");
    let read_only = graph_error(graph.launch(&gpu).read(&x).read(&w).run());
    assert_eq!(read_only, GraphError::ReadOnlyArgument { index: 1 });
    let extra = graph_error(graph.launch(&gpu).read(&x).write(&mut w).write(&mut stranger).run());
    assert_eq!(extra, GraphError::ExtraArgument { index: 2 });
    let twice = graph_error(graph.launch(&gpu).read(&x).read(&x).write(&mut w).run());
    assert_eq!(twice, GraphError::ExtraArgument { index: 1 });
    let part = w.slice_axis_mut(Axis(0), Slice::from(1..)).unwrap();
    let partial = graph_error(graph.launch(&gpu).read(&x).write(&mut { part }).run());
    assert_eq!(partial, GraphError::PartialArgument { index: 1, expected: 0..8, found: 4..8 });
    let elsewhere = gpu_with(SimConfig::new());
    let refused = graph.launch(&elsewhere).read(&x).write(&mut w).run();
    assert!(matches!(refused, Err(ArrayError::WrongDevice { .. })));
    assert_eq!(queued(), before);

    let done = graph.launch(&gpu).read(&x).write(&mut w).run().unwrap();
    assert_eq!(graph_error(done.get(&foreign)), GraphError::ForeignResult);
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [12.0, 24.0]);
    // An argument for writing cannot be a read argument, and empty arrays are not arguments.
    let (mut x, empty) = (x, vector(&gpu, &[]));
    another.launch(&gpu).write(&mut x).read(&empty).run().unwrap();
    // Another array at the same address is a different argument.
    let address = x.address();
    let block = x.into_block().unwrap();
    let x: UninitArray<f32, Ix1> = GpuArray::from_block(&gpu, block, 2).unwrap();
    let x = x.fill(1.0).unwrap();
    assert_eq!(x.address(), address);
    assert!(matches!(graph_error(another.launch(&gpu).read(&x).run()), GraphError::MissingArgument { .. }));
}

#[test]
fn only_arrays_of_the_capture_are_results() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0, 2.0]);
    assert_eq!(graph_error(gpu.capture(|_| Ok(x))), GraphError::ArrayFromOutside);
    check_clean(&gpu);
}

#[test]
fn captures_that_fail_leave_nothing() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0; 1000]);
    let before = gpu.pool().status().unwrap().in_use_bytes;
    let failed: Result<(_, Out<f32, Ix1>), _> = gpu.capture(|c| {
        let _y = x.on(c).try_mul(2.0)?;
        x.on(c).try_add(&Vector::zeros(c, 3)?)
    });
    assert!(matches!(failed, Err(ArrayError::Shape { .. })));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        gpu.capture(|c| -> Result<Vector, _> {
            let _y = x.on(c).try_mul(2.0)?;
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, before);
    check_clean(&gpu);
    // An empty graph is valid.
    let (mut graph, ()) = gpu.capture(|_| Ok(())).unwrap();
    graph.launch(&gpu).run().unwrap();
    assert_eq!(x.sum().unwrap().into_scalar().unwrap(), 1000.0);
}

/// Objects dropped while a graph runs live until the graph has run, in any order of drops.
#[test]
fn anything_may_be_dropped_while_a_graph_runs() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let gpu = gpu_with(SimConfig::new().schedule(Schedule::Late));
        let other = gpu.fork().unwrap();
        let (x, mut w) = (vector(&gpu, &[1.0; 4096]), vector(&gpu, &[10.0; 4096]));
        let (mut graph, y) = step(&gpu, &x, &mut w);
        let sum = graph.launch(&other).read(&x).write(&mut w).run().unwrap().get(&y).unwrap().sum().unwrap();
        let mut parts: [Option<Box<dyn Send>>; 3] =
            [Some(Box::new(graph)), Some(Box::new(x)), Some(Box::new(w))];
        for part in order {
            parts[part] = None;
            let _next = Vector::from_elem(&gpu, 4096, 42.0).unwrap();
        }
        assert_eq!(sum.into_scalar().unwrap(), 12.0 * 4096.0);
        drop(other);
        check_clean(&gpu);
    }
}

#[test]
fn a_graph_is_launched_from_other_threads() {
    let gpu = gpu();
    let (x, mut w) = (vector(&gpu, &[1.0, 2.0]), vector(&gpu, &[0.0, 0.0]));
    let (mut graph, _y) = step(&gpu, &x, &mut w);
    for _ in 0..3 {
        let (x, w, gpu) = (&x, &mut w, &gpu);
        (graph, _) = std::thread::scope(|scope| {
            let launch = move || {
                let fork = gpu.fork().unwrap();
                graph.launch(&fork).read(x).write(w).run().unwrap();
                (graph, ())
            };
            scope.spawn(launch).join().unwrap()
        });
    }
    assert_eq!(w.to_vec().unwrap(), [3.0, 6.0]);
}

/// Other threads are not captured: their streams read an array that the capture writes, and write one that it reads.
#[test]
fn a_capture_is_not_contagious() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0, 2.0]);
    let (mut v, mut w) = (vector(&gpu, &[3.0, 4.0]), vector(&gpu, &[5.0, 6.0]));
    let (mut graph, y) = gpu
        .capture(|c| {
            let y = x.on(c).try_mul(2.0)?;
            w.on_mut(c).try_add_assign(&v)?;
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let fork = gpu.fork().unwrap();
                    assert_eq!(w.on(&fork).to_vec().unwrap(), [5.0, 6.0]);
                    v.on_mut(&fork).try_mul_assign(10.0).unwrap();
                    assert_eq!(v.to_vec().unwrap(), [30.0, 40.0]);
                    assert_eq!(x.on(&fork).to_vec().unwrap(), [1.0, 2.0]);
                    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0]);
                    let mut own = x.on(&fork).try_add(1.0).unwrap();
                    own.on_mut(&gpu).try_add_assign(&x).unwrap();
                    assert_eq!(own.to_vec().unwrap(), [3.0, 5.0]);
                    // Another thread can capture work on the capture's own stream.
                    own.on(c).try_add(1.0).map(drop).unwrap();
                    own
                });
                other.join().unwrap();
            });
            Ok(y)
        })
        .unwrap();
    assert!(matches!(graph_error(graph.launch(&gpu).read(&x).run()), GraphError::MissingArgument { .. }));
    let (mut graph, y) = {
        drop((graph, y));
        let captured = gpu.capture(|c| {
            w.on_mut(c).try_add_assign(&v)?;
            std::thread::scope(|scope| {
                scope.spawn(|| v.on_mut(&gpu.fork().unwrap()).try_add_assign(1.0).unwrap());
            });
            x.on(c).try_mul(2.0)
        });
        captured.unwrap()
    };
    let done = graph.launch(&gpu).read(&x).read(&v).write(&mut w).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [2.0, 4.0]);
    assert_eq!(w.to_vec().unwrap(), [36.0, 47.0]);
    drop(graph);
    check_clean(&gpu);
}

/// While `Capture::begin` captures a stream, arrays cannot be used on it, and no stream joins it.
#[test]
fn captures_of_the_pool_are_not_for_arrays() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let mut x = vector(&gpu, &[1.0, 2.0]);
    let mut theirs = vector(&other, &[3.0, 4.0]);
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    assert_eq!(graph_error(x.try_mul(2.0)), GraphError::StreamCaptures);
    assert_eq!(graph_error(x.fill(2.0)), GraphError::StreamCaptures);
    assert_eq!(graph_error(theirs.on(&gpu).sum()), GraphError::StreamCaptures);
    // Other streams wait for work queued before the capture, and do not join it.
    assert_eq!(x.on(&other).try_mul(2.0).unwrap().to_vec().unwrap(), [2.0, 4.0]);
    x.on_mut(&other).fill(2.0).unwrap();
    assert_eq!(x.on(&other).to_vec().unwrap(), [2.0, 2.0]);
    theirs.fill(5.0).unwrap();
    assert_eq!(theirs.to_vec().unwrap(), [5.0, 5.0]);
    let (mut graph, y) = other.capture(|c| theirs.on(c).try_mul(2.0)).unwrap();
    assert!(matches!(
        graph.launch(&gpu).read(&theirs).run(),
        Err(ArrayError::Graph(GraphError::StreamCaptures))
    ));
    let done = graph.launch(&other).read(&theirs).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [10.0, 10.0]);
    capture.end().unwrap();
    assert_eq!(x.to_vec().unwrap(), [2.0, 2.0]);
    drop(graph);
    check_clean(&gpu);
}

/// A capture runs nothing, so elements that a resize writes in it would have no values outside of it.
#[test]
fn an_array_from_outside_keeps_its_length_in_a_capture() {
    let gpu = gpu();
    let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4]).unwrap();
    x.resize(2, 0).unwrap();
    assert_eq!(x.capacity(), 4);
    let more = GpuArray::from_slice(&gpu, &[8]).unwrap();
    let mut kept = None;
    let (mut graph, sum) = gpu
        .capture(|c| {
            let refused = |result: Result<(), ArrayError>| {
                assert!(
                    matches!(
                        result,
                        Err(ArrayError::Pool(PoolError::Device(DeviceError::Capture(
                            CaptureError::NotCapturable { .. }
                        ))))
                    ),
                    "{result:?}"
                );
            };
            assert!(matches!(graph_error(x.resize(4, 9)), GraphError::OutsideCapture { .. }));
            let mut x = x.into_gpu(c).unwrap();
            for len in [0, 1, 4, 100] {
                refused(x.resize(len, 9));
            }
            refused(x.append(&more));
            refused(x.extend_from_slice(&[7]));
            // One that was made here has values in launches alone.
            let mut own = x.try_mul(10)?;
            own.resize(5, 7)?;
            own.append(&more)?;
            kept = Some(x);
            own.sum()
        })
        .unwrap();
    let mut x = kept.unwrap();
    assert_eq!(graph_error(x.resize(4, 9)), GraphError::CaptureEnded);
    let (error, x) = x.into_block().unwrap_err().into_parts();
    assert_eq!(graph_error::<()>(Err(error)), GraphError::CaptureEnded);
    let x = x.into_gpu(&gpu).unwrap();
    assert_eq!(x.to_vec().unwrap(), [1, 2]);
    let done = graph.launch(&gpu).read(&x).read(&more).run().unwrap();
    assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), 10 + 20 + 3 * 7 + 8);
    drop(graph);
    check_clean(&gpu);
}

/// The halves of an array are separate arguments.
#[test]
fn a_graph_uses_parts_of_arrays() {
    let gpu = gpu();
    let x = vector(&gpu, &[1.0, 2.0, 3.0, 4.0]);
    let (mut graph, y) =
        gpu.capture(|c| x.slice_axis(Axis(0), Slice::from(2..)).unwrap().on(c).try_mul(2.0)).unwrap();
    let done = graph.launch(&gpu).read(&x).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [6.0, 8.0]);
}

/// The parts of an array are arguments of their own, or one with all of their bytes is.
#[test]
fn parts_of_an_array_are_arguments_of_their_own() {
    for seed in 0..200 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let other = gpu.fork().unwrap();
        let mut x = vector(&gpu, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let (mut graph, sum) = gpu
            .capture(|c| {
                let [left, right] = x.multi_slice_mut([s![..2], s![4..]])?;
                left.on_mut(c).try_add_assign(&right)?;
                right.view().on(c).sum()
            })
            .unwrap();
        // Each part by itself, while another stream writes the bytes between them.
        for round in 0..2 {
            let [mut left, mut middle, right] = x.multi_slice_mut([s![..2], s![2..4], s![4..]]).unwrap();
            middle.view_mut().on_mut(&other).fill(round as f32).unwrap();
            let done = graph.launch(&gpu).write(&mut left).read(&right).run().unwrap();
            middle.view_mut().on_mut(&other).try_add_assign(10.0).unwrap();
            assert_eq!(done.get(&sum).unwrap().into_scalar().unwrap(), 11.0);
        }
        assert_eq!(x.to_vec().unwrap(), [11.0, 14.0, 11.0, 11.0, 5.0, 6.0], "replay: GPUMEM_SIM_SEED={seed}");
        x.slice_mut(s![4..]).unwrap().on_mut(&other).fill(1.0).unwrap();
        graph.launch(&gpu).write(&mut x).run().unwrap();
        assert_eq!(x.on(&other).to_vec().unwrap(), [12.0, 15.0, 11.0, 11.0, 1.0, 1.0]);

        let [mut left, right] = x.multi_slice_mut([s![..2], s![5..]]).unwrap();
        let lacking = graph_error(graph.launch(&gpu).write(&mut left).read(&right).run());
        assert_eq!(lacking, GraphError::PartialArgument { index: 1, expected: 16..24, found: 20..24 });
        let [mut left] = x.multi_slice_mut([s![..2]]).unwrap();
        let lacking = graph_error(graph.launch(&gpu).write(&mut left).run());
        assert!(
            matches!(lacking, GraphError::MissingArgument { range: Range { start: 16, end: 24 }, .. }),
            "{lacking}"
        );
        let unwritten = graph_error(graph.launch(&gpu).read(&x).run());
        assert_eq!(unwritten, GraphError::ReadOnlyArgument { index: 0 });
        drop((graph, x));
        check_clean(&gpu);
    }
}

/// The host cannot read the results of captured work, and cannot wait in the closure.
#[test]
fn memory_of_the_host_has_no_values_in_a_capture() {
    let gpu = gpu();
    let mut x = GpuArray::from_elem(&gpu.unified(), 4, 1.0_f32).unwrap();
    let (mut graph, y) = gpu
        .capture(|c| {
            let y: UnifiedArray<f32, Ix1> = GpuArray::from_elem(&c.unified(), 4, 2.0)?;
            assert_eq!(graph_error(y.as_slice()), GraphError::ArrayOfCapture);
            assert_eq!(
                graph_error(x.as_slice()),
                GraphError::OutsideCapture { operation: "access by the host" }
            );
            x.on_mut(c).try_add_assign(&y)?;
            Ok(y)
        })
        .unwrap();
    assert_eq!(x.as_slice().unwrap(), [1.0; 4]);
    let done = graph.launch(&gpu).write(&mut x).run().unwrap();
    assert_eq!(done.get(&y).unwrap().to_vec().unwrap(), [2.0; 4]);
    assert_eq!(x.as_slice().unwrap(), [3.0; 4]);
    graph.launch(&gpu).write(&mut x).run().unwrap();
    assert_eq!(x[3], 5.0);
    drop((graph, x));
    check_clean(&gpu);
}

const PTX: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry twice(.param .u64 x) {
        .reg .b32 %i;
        .reg .b64 %x;
        .reg .f32 %value;
        mov.u32 %i, %tid.x;
        ld.param.u64 %x, [x];
        mad.wide.u32 %x, %i, 4, %x;
        ld.global.f32 %value, [%x];
        add.f32 %value, %value, %value;
        st.global.f32 [%x], %value;
        ret;
    }";

/// A graph keeps the kernels that it launches, including those of modules that the program has dropped.
#[test]
fn a_graph_keeps_kernels_loaded() {
    let gpu = gpu();
    let twice = gpu.compile(&KernelSource::ptx("twice", PTX)).unwrap().function("twice").unwrap();
    let mut x = vector(&gpu, &[1.0, 2.0]);
    let (mut graph, ()) = gpu
        .capture(|c| {
            let shape = LaunchShape { grid: [1; 3], block: [2, 1, 1], shared_bytes: 0 };
            let launch = twice.launch(shape).write(&mut x);
            // SAFETY: the arguments are those of the kernel, and `x` has two elements.
            unsafe { launch.enqueue(c) }
        })
        .unwrap();
    drop(twice);
    for _ in 0..3 {
        graph.launch(&gpu).write(&mut x).run().unwrap();
    }
    assert_eq!(x.to_vec().unwrap(), [8.0, 16.0]);
    drop(graph);
    check_clean(&gpu);
}

/// Each driver call fails once, in a program that captures and launches: a second attempt succeeds, and no memory is lost.
#[test]
fn each_call_fails_once_and_nothing_is_lost() {
    let attempt = |gpu: &Gpu, x: &Vector, w: &mut Vector| -> Result<f32, ArrayError> {
        let other = gpu.fork()?;
        let (mut graph, y) = gpu.capture(|c| {
            let y = x.on(c).try_mul(2.0)?.try_add(&*w)?;
            w.on_mut(c).try_add_assign(x)?;
            Ok(y)
        })?;
        graph.launch(gpu).read(x).write(w).run()?;
        graph.launch(&other).read(x).write(w).run()?.get(&y)?.sum()?.into_scalar()
    };
    let program = |driver: &Driver| -> Result<(), ArrayError> {
        let gpu = Gpu::new(&Pool::from_env(&Device::new(driver, 0)?)?)?;
        gpu.preload::<f32>()?;
        let (x, mut w) = (Vector::from_slice(&gpu, &[1.0; 1000])?, Vector::from_elem(&gpu, 1000, 10.0)?);
        if attempt(&gpu, &x, &mut w).is_err() {
            // If the driver did not end a capture, its stream and the memory captured on it may be lost. Nothing else is.
            w.fill(10.0)?;
            attempt(&gpu, &x, &mut w)?;
        }
        assert_eq!(w.to_vec()?, [12.0; 1000]);
        Ok(())
    };
    let mut failed_count = 0;
    for call in CALLS {
        for nth in 1..=40 {
            let rule = format!("{call}#{nth}=fail:OUT_OF_MEMORY").parse().unwrap();
            let driver = gpumem_sim::driver(SimConfig::new().rule(rule)).unwrap();
            let done = program(&driver);
            failed_count += usize::from(done.is_err());
            let report = Sim::of(&driver).unwrap().report();
            let left = [report.graph_count, report.executable_graph_count, report.module_count];
            assert_eq!(left, [0; 3], "{call}#{nth}: {done:?} {report}");
            let found = report.silent_findings();
            assert_eq!(found, [], "{call}#{nth}: {done:?} {report}");
        }
    }
    assert!(failed_count > 20, "{failed_count}");
}

/// The calls of the program.
const CALLS: [&str; 15] = [
    "cuCtx*",
    "cuStreamCreate*",
    "cuStreamDestroy*",
    "cuStreamBeginCapture*",
    "cuStreamGetCaptureInfo*",
    "cuStreamEndCapture",
    "cuStreamWaitEvent",
    "cuGraphInstantiate*",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEvent*",
    "cuLaunchKernel",
    "cuMem*",
    "cuModule*",
];

/// The halves of a matrix along its columns alternate in memory: the bytes from the first element of one to its last include
/// elements of the other.
#[test]
fn a_strided_view_does_not_serve_for_the_elements_between_its_own() {
    let gpu = gpu();
    let mut x = GpuArray::<i32, _>::zeros(&gpu, (4, 4)).unwrap();
    let (mut rows, _) = gpu.capture(|c| x.slice_mut(s![1, ..])?.on_mut(c).fill(9)).unwrap();
    let (mut total, _) = gpu.capture(|c| x.slice(s![1, ..])?.on(c).sum()).unwrap();
    let (mut columns, _) = gpu.capture(|c| x.slice_mut(s![.., 2..])?.on_mut(c).fill(7)).unwrap();
    let (left, mut right) = x.split_at_mut(Axis(1), 2).unwrap();
    let expected = GraphError::StridedArgument { index: 0, expected: 16..32 };
    assert_eq!(graph_error(rows.launch(&gpu).write(&mut right).run()), expected);
    assert_eq!(graph_error(total.launch(&gpu).read(&right).run()), expected);
    // The same view has the same gaps.
    columns.launch(&gpu).write(&mut right).run().unwrap();
    assert_eq!(left.view().to_vec().unwrap(), [0; 8]);
    let right = right.view();
    assert_eq!(right.to_vec().unwrap(), [7; 8]);
    // Two columns with the same first and last row, but other gaps.
    let narrow = right.slice(s![.., 1..]).unwrap();
    let partial = graph_error(columns.launch(&gpu).read(&narrow).run());
    assert!(matches!(partial, GraphError::PartialArgument { .. }), "{partial}");
    // The whole array has all elements.
    rows.launch(&gpu).write(&mut x).run().unwrap();
    columns.launch(&gpu).write(&mut x).run().unwrap();
    assert_eq!(x.to_vec().unwrap(), [0, 0, 7, 7, 9, 9, 7, 7, 0, 0, 7, 7, 0, 0, 7, 7]);
    drop((rows, total, columns));
    check_clean(&gpu);
}

/// Every second element of every second row: the gaps have two distances.
#[test]
fn a_view_with_nested_gaps_serves_for_its_own_elements() {
    let gpu = gpu();
    let mut x = GpuArray::<i32, _>::zeros(&gpu, (4, 6)).unwrap();
    let comb = s![..;2, ..;2];
    let (mut graph, _) = gpu.capture(|c| x.slice_mut(comb)?.on_mut(c).fill(7)).unwrap();
    let mut view = x.slice_mut(comb).unwrap();
    graph.launch(&gpu).write(&mut view).run().unwrap();
    let found = x.to_array().unwrap();
    assert!(
        found
            .indexed_iter()
            .all(|((row, column), found)| *found == if row % 2 + column % 2 == 0 { 7 } else { 0 })
    );
    // From the first to the last of these bytes, but with other gaps.
    let other = x.slice(s![0..3, 0..5]).unwrap();
    let error = graph_error(graph.launch(&gpu).read(&other.slice(s![..;2, ..]).unwrap()).run());
    assert!(matches!(error, GraphError::StridedArgument { .. }), "{error}");
    // Three distances are not told apart.
    let mut cube = GpuArray::<i32, _>::zeros(&gpu, (4, 6, 6)).unwrap();
    let comb = s![..;2, ..;2, ..;2];
    drop(graph);
    let (mut graph, _) = gpu.capture(|c| cube.slice_mut(comb)?.on_mut(c).fill(7)).unwrap();
    let error = graph_error(graph.launch(&gpu).write(&mut cube.slice_mut(comb).unwrap()).run());
    assert!(error.to_string().contains("two distances"), "{error}");
    graph.launch(&gpu).write(&mut cube).run().unwrap();
    assert_eq!(cube.sum().unwrap().into_scalar().unwrap(), 7 * 2 * 3 * 3);
    drop(graph);
    check_clean(&gpu);
}

#[test]
fn a_view_that_repeats_one_half_does_not_serve_for_the_other() {
    let gpu = gpu();
    let mut x = GpuArray::<f32, _>::ones(&gpu, 8).unwrap();
    let (mut graph, out) = gpu.capture(|c| x.slice(s![..4])?.on(c).sum()).unwrap();
    let (left, right) = x.split_at_mut(Axis(0), 4).unwrap();
    let (left, right) = (left.view(), right.view());
    let wide = right.broadcast((2, 4)).unwrap();
    let error = graph_error(graph.launch(&gpu).read(&wide).run());
    assert!(matches!(error, GraphError::MissingArgument { .. }), "{error}");
    // A view that repeats elements has each of them, however many they are.
    for count in [2, 1_usize << 60] {
        let wide = left.broadcast((count, 4)).unwrap();
        let done = graph.launch(&gpu).read(&wide).run().unwrap();
        assert_eq!(done.get(&out).unwrap().into_scalar().unwrap(), 4.0);
    }
    drop(graph);
    check_clean(&gpu);
}
