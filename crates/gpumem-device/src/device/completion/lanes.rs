//! [`Lanes`]: streams of a device on which host functions run behind markers of other streams.
//!
//! A host function in the program's stream would delay later work until the host has run the function. So a lane waits for the marker, and
//! the host function is queued on the lane. Work of one stream completes in order, so all of its markers use one lane. A lane serves
//! another stream only once it is idle, unless all lanes are in use: then a notification may be late, but the notifier's own queries are
//! not.

use crate::device::context::Handle;
use crate::device::objects::{Object, Owned};
use crate::device::primary::PrimaryContext;
use gpumem_base::order::StreamIndex;
use gpumem_base::sync::Lock;
use gpumem_sys::types::{CUcontext, CUevent, CUstream, CUstream_flags, CUstream_st};
use gpumem_sys::{Driver, DriverError};

#[derive(Default)]
pub(crate) struct Lanes(Lock<Vec<Lane>>);

struct Lane {
    raw: Handle<CUstream_st>,
    source: StreamIndex,
}

impl Lanes {
    /// Queues work on a lane, behind a live event of the stream `source`. The context is current.
    pub(super) fn queue_behind(
        &self,
        device: &PrimaryContext,
        source: StreamIndex,
        event: CUevent,
        work: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut lanes = self.0.lock();
        let index = match lanes.iter().position(|lane| lane.source == source) {
            Some(index) => index,
            None => choose(&mut lanes, device, source)?,
        };
        let lane = &mut lanes[index];
        lane.source = source;
        // SAFETY: the lane is alive, its context is current, and the caller keeps the event alive during the call.
        unsafe { device.driver().cuStreamWaitEvent(lane.raw.0, event, 0)? };
        work(lane.raw.0)
    }

    /// Destroys all lanes. The device is being dropped, so no marker is pending.
    pub(crate) fn destroy(&mut self, driver: &Driver, context: CUcontext) {
        let lanes = core::mem::take(self.0.get_mut());
        for lane in lanes {
            Owned { object: Object::Stream(lane.raw.0), context }.destroy_at_end(driver);
        }
    }
}

/// A lane for a stream that has none: idle, new, or in use.
fn choose(lanes: &mut Vec<Lane>, device: &PrimaryContext, source: StreamIndex) -> Result<usize, DriverError> {
    let driver = device.driver();
    // SAFETY: the lanes are alive, and their context is current.
    let is_idle = |lane: &Lane| unsafe { driver.cuStreamQuery(lane.raw.0) }.is_ok();
    if let Some(index) = lanes.iter().position(is_idle) {
        return Ok(index);
    }
    if lanes.len() >= LANES_MAX {
        return Ok(usize::from(source.0) % lanes.len());
    }
    let mut raw = core::ptr::null_mut();
    // SAFETY: `raw` outlives the call, and the context is current.
    unsafe { driver.cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
    lanes.push(Lane { raw: Handle(raw), source });
    Ok(lanes.len() - 1)
}

const LANES_MAX: usize = 16;
