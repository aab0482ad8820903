//! Streams.

use crate::base::codes::{INVALID_HANDLE, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put};
use crate::entry::entries;
use crate::stream::capture::EXTERNAL;
use crate::stream::operation::{HostCall, HostFunction, Operation};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{CUcontext, CUdevice, CUevent, CUhostFn, CUresult, CUstream, CUstreamCallback};

entries! {
    fn cuStreamCreate(call, target: Target<CUstream>, flags: c_uint) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        put(target, call.stream_create(context, flags, 0)?.to_ptr())
    }

    fn cuStreamCreateWithPriority(call, target: Target<CUstream>, flags: c_uint, priority: c_int) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        put(target, call.stream_create(context, flags, priority)?.to_ptr())
    }

    fn cuStreamDestroy_v2(call, stream: CUstream) {
        call.capture_check_outside(Handle::from_ptr(stream))?;
        call.stream_destroy(Handle::from_ptr(stream))
    }

    fn cuStreamQuery(call, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_check_observed(stream, thread)?;
        call.poll(|machine| machine.is_stream_idle(stream))?;
        call.host_saw_stream(stream);
        Ok(())
    }

    fn cuStreamSynchronize(call, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_check_observed(stream, thread)?;
        let tail = call.tail(stream);
        call.wait_for(tail)?;
        call.host_saw_stream(stream);
        call.pools_synchronised();
        Ok(())
    }

    fn cuStreamWaitEvent(call, stream: CUstream, event: CUevent, flags: c_uint) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.make_room(stream)?;
        match flags {
            0 => call.stream_wait(stream, Handle::from_ptr(event)),
            EXTERNAL => call.capture_external(Handle::from_ptr(event), stream, true),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuStreamGetCtx(call, stream: CUstream, target: Target<CUcontext>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(target, call.streams.get(stream).ok_or(INVALID_HANDLE)?.context.to_ptr())
    }

    fn cuStreamGetDevice(call, stream: CUstream, target: Target<CUdevice>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(target, call.streams.get(stream).ok_or(INVALID_HANDLE)?.device as CUdevice)
    }

    fn cuStreamGetId(call, stream: CUstream, id: Target<c_ulonglong>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_check_outside(stream)?;
        put(id, stream.to_bits())
    }

    fn cuStreamGetFlags(call, stream: CUstream, flags: Target<c_uint>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_check_outside(stream)?;
        put(flags, call.streams.get(stream).ok_or(INVALID_HANDLE)?.flags)
    }

    fn cuStreamGetPriority(call, stream: CUstream, priority: Target<c_int>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(priority, call.streams.get(stream).ok_or(INVALID_HANDLE)?.priority)
    }

    fn cuLaunchHostFunc(call, stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        let run = HostFunction::Plain(function.ok_or(INVALID_VALUE)?);
        call.make_room(stream)?;
        call.enqueue(stream, Operation::Call(HostCall { run, data }));
        Ok(())
    }

    // The older form, which a graph cannot contain.
    fn cuStreamAddCallback(
        call,
        stream: CUstream,
        callback: CUstreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) {
        let (thread, named) = (call.thread, Handle::from_ptr(stream));
        let stream = call.stream(thread, named)?;
        let run = callback.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        call.capture_check_outside(stream)?;
        call.make_room(stream)?;
        let run = HostFunction::Callback { run, stream: named, status: CUresult::CUDA_SUCCESS };
        call.enqueue(stream, Operation::Call(HostCall { run, data }));
        Ok(())
    }
}
