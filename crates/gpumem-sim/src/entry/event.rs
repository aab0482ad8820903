//! Events.

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::stream::capture::EXTERNAL;
use core::ffi::c_uint;
use gpumem_sys::Table;
use gpumem_sys::types::{CUcontext, CUevent, CUresult, CUstream};

entries! {
    fn cuEventCreate(call, target: Target<CUevent>, flags: c_uint) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        put(target, call.event_create(context, flags)?.to_ptr())
    }

    fn cuEventDestroy_v2(call, event: CUevent) {
        call.event_destroy(Handle::from_ptr(event))
    }

    fn cuEventRecord(call, event: CUevent, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.make_room(stream)?;
        call.event_record(Handle::from_ptr(event), stream)?;
        run_if_shared(call, Handle::from_ptr(event))
    }

    fn cuEventRecordWithFlags(call, event: CUevent, stream: CUstream, flags: c_uint) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.make_room(stream)?;
        match flags {
            0 => {
                call.event_record(Handle::from_ptr(event), stream)?;
                run_if_shared(call, Handle::from_ptr(event))
            }
            EXTERNAL => call.capture_external(Handle::from_ptr(event), stream, false),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuCtxRecordEvent(call, context: CUcontext, event: CUevent) {
        let context = Handle::from_ptr(context);
        call.contexts.get(context).ok_or(INVALID_CONTEXT)?;
        call.check_context(context)?;
        call.capture_check_context(context)?;
        call.event_record_context(Handle::from_ptr(event), context)
    }

    fn cuEventQuery(call, event: CUevent) {
        let (event, thread) = (Handle::from_ptr(event), call.thread);
        let point = call.event_point(event)?;
        call.capture_check_event(event, thread)?;
        if let Some(point) = point {
            call.poll(|machine| machine.is_done(point))?;
        }
        call.host_saw_event(event);
        Ok(())
    }

    fn cuEventSynchronize(call, event: CUevent) {
        let (event, thread) = (Handle::from_ptr(event), call.thread);
        let point = call.event_point(event)?;
        call.capture_check_event(event, thread)?;
        point.map_or(Ok(()), |point| call.wait_for_point(point))?;
        call.event_point(event)?;
        call.host_saw_event(event);
        call.pools_synchronised();
        Ok(())
    }

    fn cuEventElapsedTime(call, elapsed_ms: Target<f32>, start: CUevent, end: CUevent) {
        call.context(call.thread)?;
        put(elapsed_ms, call.elapsed_ms(Handle::from_ptr(start), Handle::from_ptr(end))?)
    }

    fn cuEventElapsedTime_v2(call, elapsed_ms: Target<f32>, start: CUevent, end: CUevent) {
        call.context(call.thread)?;
        put(elapsed_ms, call.elapsed_ms(Handle::from_ptr(start), Handle::from_ptr(end))?)
    }
}

/// Runs the work before the recording of an interprocess event.
pub(crate) fn run_if_shared(call: &mut Call<'_>, event: Handle) -> Answer<()> {
    call.ipc_event_due(event).map_or(Ok(()), |point| call.wait_for_point(point))
}
