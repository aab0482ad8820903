//! The C functions of the table: decode the arguments, call the machine, encode the answer. No logic.
//!
//! Each file lists its functions once in `entries!`. From a line of the list come the body, which runs under the
//! instance's lock, and a thunk for each slot, which only adds the slot's number.

mod any_node;
mod capture;
mod context;
mod device;
mod event;
mod exec;
mod graph;
mod managed;
mod memory;
mod module;
mod node;
mod node_parameters;
mod occupancy;
mod pool;
mod settings;
mod sharing;
mod stream;
mod symbol;
mod transfer;
mod value;
mod virtual_memory;
mod volume;

use super::codes::{Answer, INVALID_VALUE};
use super::handle::Handle;
use crate::table::Table;

/// The table whose functions reach the instance in a slot.
pub(super) fn table<const SLOT: usize>() -> Table {
    let mut table = Table::default();
    device::install::<SLOT>(&mut table);
    context::install::<SLOT>(&mut table);
    stream::install::<SLOT>(&mut table);
    event::install::<SLOT>(&mut table);
    memory::install::<SLOT>(&mut table);
    managed::install::<SLOT>(&mut table);
    pool::install::<SLOT>(&mut table);
    virtual_memory::install::<SLOT>(&mut table);
    transfer::install::<SLOT>(&mut table);
    volume::install::<SLOT>(&mut table);
    module::install::<SLOT>(&mut table);
    symbol::install::<SLOT>(&mut table);
    value::install::<SLOT>(&mut table);
    settings::install::<SLOT>(&mut table);
    sharing::install::<SLOT>(&mut table);
    capture::install::<SLOT>(&mut table);
    graph::install::<SLOT>(&mut table);
    node::install::<SLOT>(&mut table);
    occupancy::install::<SLOT>(&mut table);
    node_parameters::install::<SLOT>(&mut table);
    any_node::install::<SLOT>(&mut table);
    exec::install::<SLOT>(&mut table);
    table
}

/// Defines entries.
macro_rules! entries {
    ($( fn $name:ident($call:ident $(, $arg:ident: $kind:ty)* $(,)?) $body:block )*) => {
        $(
            /// # Safety
            ///
            /// What the driver's documentation asks of the caller of this function.
            // Once, not once in the thunk of every slot.
            #[inline(never)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe fn $name(slot: usize, $($arg: $kind),*) -> CUresult {
                const COST: crate::sim::call_cost::CallCost = crate::sim::call_cost::CallCost::of(stringify!($name));
                crate::sim::call::enter(slot, stringify!($name), COST, |$call| {
                    // SAFETY: whoever calls a driver function promises what its documentation asks, and that is all
                    // that the body relies on: pointers are null or good for what the function reads and writes.
                    #[allow(unused_unsafe)]
                    unsafe { $body }
                })
            }
        )*

        pub(super) fn install<const SLOT: usize>(table: &mut Table) {
            $( table.$name = Some({
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn thunk<const SLOT: usize>($($arg: $kind),*) -> CUresult {
                    // SAFETY: the caller's promise is the same.
                    unsafe { $name(SLOT, $($arg),*) }
                }
                thunk::<SLOT>
            }); )*
        }
    };
}
use entries;

/// Writes an answer to where the caller wants it.
///
/// # Safety
///
/// The pointer is null or may be written.
unsafe fn put<T>(target: *mut T, value: T) -> Answer<()> {
    if target.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller promises that it may be written.
    unsafe { target.write_unaligned(value) };
    Ok(())
}

/// Before something is made whose handle a caller wants: there has to be a place for it.
fn check_place<T>(target: *mut T) -> Answer<()> {
    if target.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Reads what a caller points to.
///
/// # Safety
///
/// The pointer is null or may be read as a `T`.
unsafe fn take<T: Copy>(source: *const T) -> Answer<T> {
    if source.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller promises that it may be read.
    Ok(unsafe { source.read_unaligned() })
}

/// Reads a list of handles.
///
/// # Safety
///
/// The pointer is null or leads to that many.
unsafe fn handles<T>(source: *const *mut T, count: usize) -> Answer<Vec<Handle>> {
    // SAFETY: the caller's promise; `wrapping_add` keeps null null only at 0, so null is refused first.
    let take_one = |index| unsafe { take(source.wrapping_add(index)).map(Handle::from_ptr) };
    if source.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    (0..count).map(take_one).collect()
}
