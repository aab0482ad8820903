//! Points of streams: the work that a wait for a point includes, and its cost.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, small};
use gpumem_pool::{Capture, CaptureError, CaptureMode, DeviceError, Stream, StreamError};
use gpumem_sim::Sim;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The virtual time on the host until all work that `stream` waits for is complete.
fn time_of(fixture: &Fixture, stream: &Stream) -> Duration {
    let sim = Sim::of(&fixture.driver).unwrap();
    let begin = sim.host_time();
    stream.synchronize().unwrap();
    sim.host_time() - begin
}

#[test]
fn a_wait_ends_at_the_marker_behind_its_point() {
    on_device_memory(&small().memory_bytes(256 * MIB), |fixture| {
        let pool = fixture.pool();
        let times: Vec<_> = [true, false]
            .into_iter()
            .map(|is_marked| {
                let (ahead, waiter) = (fixture.stream(), fixture.stream());
                let block = pool.alloc(32 * MIB, &ahead).unwrap();
                fixture.fill(&block, 1, &ahead);
                let point = ahead.point();
                if is_marked {
                    assert!(ahead.mark().unwrap());
                }
                for value in 0..20 {
                    fixture.fill(&block, value, &ahead);
                }
                assert!(!waiter.is_behind(point));
                assert!(waiter.wait_for_point(point).unwrap());
                assert!(waiter.is_behind(point) && ahead.has_waiters() && !waiter.has_waiters());
                let time = time_of(fixture, &waiter);
                ahead.synchronize().unwrap();
                time
            })
            .collect();
        assert!(times[0] * 4 < times[1], "{times:?}");
    });
}

#[test]
fn the_host_waits_for_a_point_alone() {
    on_device_memory(&small().memory_bytes(256 * MIB), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(32 * MIB, &stream).unwrap();
        fixture.fill(&block, 1, &stream);
        let point = stream.point();
        assert!(stream.mark().unwrap());
        for value in 0..20 {
            fixture.fill(&block, value, &stream);
        }
        let sim = Sim::of(&fixture.driver).unwrap();
        let begin = sim.host_time();
        assert!(fixture.device.synchronize_point(point).unwrap());
        let first = sim.host_time() - begin;
        assert!(fixture.device.is_point_complete(point));
        assert!(fixture.device.synchronize_point(stream.point()).unwrap());
        assert!(first * 4 < sim.host_time() - begin);
    });
}

#[test]
fn a_latest_point_includes_what_is_queued_later() {
    on_each_backend(&small(), |fixture| {
        let (pool, writer, reader) = (fixture.pool(), fixture.stream(), fixture.stream());
        let point = writer.latest_point();
        let block = pool.alloc(64, &writer).unwrap();
        fixture.fill(&block, 7, &writer);
        assert!(reader.wait_for_point(point).unwrap());
        block.record_use(&reader);
        assert!(fixture.holds(&block, 7, &reader));
    });
}

#[test]
fn a_wait_outside_captures_does_not_join_one() {
    on_each_backend(&small(), |fixture| {
        let (writer, reader) = (fixture.stream(), fixture.stream());
        let before = writer.point();
        let capture = Capture::begin(&writer, CaptureMode::Relaxed).unwrap();
        assert!(reader.wait_for_point_outside_captures(before).unwrap());
        for point in [writer.point(), writer.latest_point()] {
            let refused = reader.wait_for_point_outside_captures(point);
            assert!(
                matches!(refused, Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
                "{refused:?}"
            );
            assert!(!reader.is_capturing().unwrap());
        }
        capture.end().unwrap();
        assert!(reader.wait_for_point_outside_captures(writer.latest_point()).unwrap());
    });
}

#[test]
fn a_block_has_the_points_of_its_uses() {
    on_each_backend(&small(), |fixture| {
        let (pool, owner, user, reader) =
            (fixture.pool(), fixture.stream(), fixture.stream(), fixture.stream());
        let block = pool.alloc(64, &owner).unwrap();
        fixture.fill(&block, 7, &owner);
        assert!(block.use_points().all(|point| point.has_stream_of(owner.point())));
        assert_eq!(block.use_points().count(), 1);
        user.wait_for(&owner).unwrap();
        block.record_use(&user);
        fixture.fill(&block, 8, &user);
        drop((owner, user));
        for point in block.use_points() {
            assert!(reader.wait_for_point(point).unwrap());
        }
        assert!(fixture.holds(&block, 8, &reader));
    });
}

#[test]
fn points_outlive_their_stream() {
    on_each_backend(&small(), |fixture| {
        let (pool, writer, reader) = (fixture.pool(), fixture.stream(), fixture.stream());
        let block = pool.alloc(64, &writer).unwrap();
        fixture.fill(&block, 7, &writer);
        let point = writer.point();
        drop(writer);
        assert!(reader.wait_for_point(point).unwrap());
        block.record_use(&reader);
        assert!(fixture.holds(&block, 7, &reader));
        // Another stream may get the index; its work is not covered by the point.
        let streams: Vec<_> = (0..4).map(|_| fixture.stream()).collect();
        assert!(streams.iter().all(|stream| stream.wait_for_point(point).unwrap()));
    });
}

#[test]
fn a_capture_defers_the_wait_to_its_launches() {
    on_each_backend(&small(), |fixture| {
        let (pool, writer, captured) = (fixture.pool(), fixture.stream(), fixture.stream());
        let block = pool.alloc(64, &writer).unwrap();
        fixture.fill(&block, 3, &writer);
        let point = writer.point();
        let capture = Capture::begin(&captured, CaptureMode::Relaxed).unwrap();
        assert!(captured.wait_for_point(point).unwrap());
        block.record_use(&captured);
        fixture.fill(&block, 9, &captured);
        // A stream that waits for work of the capture joins it.
        let joined = fixture.stream();
        assert!(joined.wait_for_point(captured.point()).unwrap());
        assert!(joined.is_capturing().unwrap());
        assert!(captured.wait_for_point(joined.point()).unwrap());
        let graph = capture.end().unwrap().instantiate().unwrap();
        let launched = fixture.stream();
        // SAFETY: the block that the graph uses is alive until the launch is complete.
        unsafe { graph.launch(&launched).unwrap() };
        assert!(fixture.holds(&block, 9, &launched));
    });
}

#[test]
fn a_stream_of_another_library_is_waited_for_by_name() {
    on_each_backend(&small(), |fixture| {
        let legacy = Stream::legacy(&fixture.device).unwrap();
        let (pool, own) = (fixture.pool(), fixture.stream());
        assert!(legacy.is_foreign() && !own.is_foreign());
        let block = pool.alloc(64, &legacy).unwrap();
        fixture.fill(&block, 5, &legacy);
        let point = legacy.point();
        assert!(!own.wait_for_point(point).unwrap(), "only a call that names it may mark it");
        own.wait_for(&legacy).unwrap();
        assert!(own.wait_for_point(point).unwrap());
        block.record_use(&own);
        assert!(fixture.holds(&block, 5, &own));
        legacy.retire().unwrap();
        assert!(!legacy.mark().unwrap());
        assert!(matches!(legacy.wait_for_point(own.point()), Err(DeviceError::Stream(StreamError::Retired))));
    });
}

#[test]
fn marks_ahead_end_when_no_stream_waits_any_more() {
    on_device_memory(&small(), |fixture| {
        let (ahead, waiter) = (fixture.stream(), fixture.stream());
        assert!(waiter.wait_for_point(ahead.point()).unwrap());
        let marked = (0..1000).take_while(|_| ahead.has_waiters() && ahead.mark().unwrap()).count();
        assert!((1..1000).contains(&marked), "{marked}");
    });
}
