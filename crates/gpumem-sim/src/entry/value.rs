//! Values in memory that streams wait for and write.

use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::entry::argument::take_at;
use crate::entry::call::Call;
use crate::entry::entries;
use crate::stream::value::{Condition, Value};
use core::ffi::c_uint;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, cuuint32_t, cuuint64_t,
};

entries! {
    fn cuStreamWaitValue32_v2(
        call,
        stream: CUstream,
        address: CUdeviceptr,
        value: cuuint32_t,
        flags: c_uint,
    ) {
        let wish = Value { address, is_wide: false, value: u64::from(value) };
        queue(call, stream, &[(wish, Some(Condition::from_flags(flags)?))])
    }

    fn cuStreamWaitValue64_v2(
        call,
        stream: CUstream,
        address: CUdeviceptr,
        value: cuuint64_t,
        flags: c_uint,
    ) {
        let wish = Value { address, is_wide: true, value };
        queue(call, stream, &[(wish, Some(Condition::from_flags(flags)?))])
    }

    fn cuStreamWriteValue32_v2(
        call,
        stream: CUstream,
        address: CUdeviceptr,
        value: cuuint32_t,
        flags: c_uint,
    ) {
        check_write_flags(flags)?;
        queue(call, stream, &[(Value { address, is_wide: false, value: u64::from(value) }, None)])
    }

    fn cuStreamWriteValue64_v2(
        call,
        stream: CUstream,
        address: CUdeviceptr,
        value: cuuint64_t,
        flags: c_uint,
    ) {
        check_write_flags(flags)?;
        queue(call, stream, &[(Value { address, is_wide: true, value }, None)])
    }

    fn cuStreamBatchMemOp_v2(
        call,
        stream: CUstream,
        count: c_uint,
        operations: *mut CUstreamBatchMemOpParams,
        flags: c_uint,
    ) {
        if flags != 0 || count > BATCH_MAX {
            return Err(INVALID_VALUE);
        }
        let mut wishes = Vec::new();
        for index in 0..count as usize {
            // SAFETY: there are `count` operations, and the kind of each names the part of the union that was written.
            wishes.push(unsafe { parse(&take_at(operations.wrapping_add(index))?)? });
        }
        queue(call, stream, &wishes)
    }
}

/// Queues writes, and waits if there is a condition.
fn queue(call: &mut Call<'_>, stream: CUstream, wishes: &[(Value, Option<Condition>)]) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    wishes.iter().try_for_each(|&(wish, condition)| match condition {
        Some(condition) => call.value_wait(stream, wish, condition),
        None => call.value_write(stream, wish),
    })
}

fn check_write_flags(flags: c_uint) -> Answer<()> {
    if flags > 1 { Err(INVALID_VALUE) } else { Ok(()) }
}

/// One operation of a batch.
///
/// # Safety
///
/// The kind names the member of the union that was written.
unsafe fn parse(operation: &CUstreamBatchMemOpParams) -> Answer<(Value, Option<Condition>)> {
    use CUstreamBatchMemOpType as Kind;
    // SAFETY: each member begins with the kind; the caller guarantees the member of that kind.
    unsafe {
        let kind = operation.operation;
        let is_wide =
            matches!(kind, Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64 | Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64);
        match kind {
            Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32 | Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                let wait = operation.waitValue;
                let number = wait.__bindgen_anon_1;
                let value = if is_wide { number.value64 } else { u64::from(number.value) };
                let condition = Condition::from_flags(wait.flags)?;
                Ok((Value { address: wait.address, is_wide, value }, Some(condition)))
            }
            Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32 | Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                let write = operation.writeValue;
                let number = write.__bindgen_anon_1;
                let value = if is_wide { number.value64 } else { u64::from(number.value) };
                check_write_flags(write.flags)?;
                Ok((Value { address: write.address, is_wide, value }, None))
            }
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// The maximum number of operations in a batch.
const BATCH_MAX: c_uint = 256;
