//! The C functions of the table: decode the arguments, call the machine, encode the answer. No logic.
//!
//! Each file lists its functions once in `entries!`. From a line of the list come the body, which runs under the
//! instance's lock, and a thunk for each slot, which only adds the slot's number.

mod any_node;
mod argument;
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
use argument::{Argument, Source, Target, check_place, put, put_at, put_if_wanted, take, take_at};
use gpumem_sys::Table;

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

/// Defines entries: the function that runs a body under the instance's lock, and a thunk for each slot.
///
/// A body is safe code. Its arguments have the types that the list names ([`Argument`]); a body that follows a raw pointer
/// says in a block of its own why it may.
macro_rules! entries {
    ($( fn $name:ident($call:ident $(, $arg:ident: $kind:ty)* $(,)?) $body:block )*) => {
        $(
            /// # Safety
            ///
            /// What the driver's documentation asks of the caller of this function.
            // Once, not once in the thunk of every slot.
            #[inline(never)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe fn $name(slot: usize, $($arg: <$kind as crate::entry::Argument>::Raw),*) -> CUresult {
                const COST: crate::call_cost::CallCost = crate::call_cost::CallCost::of(stringify!($name));
                // SAFETY: the caller promises what the function's documentation asks: of a pointer that the list calls
                // a target or a source, that it is null or good for one value of its type until the call returns.
                $( let $arg = unsafe { <$kind as crate::entry::Argument>::of($arg) }; )*
                crate::call::enter(slot, stringify!($name), COST, |$call| $body)
            }
        )*

        pub(super) fn install<const SLOT: usize>(table: &mut Table) {
            $( table.$name = Some({
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn thunk<const SLOT: usize>(
                    $($arg: <$kind as crate::entry::Argument>::Raw),*
                ) -> CUresult {
                    // SAFETY: the caller's promise is the one that the function asks for.
                    unsafe { $name(SLOT, $($arg),*) }
                }
                thunk::<SLOT>
            }); )*
        }
    };
}
use entries;

/// Reads a list of handles.
///
/// # Safety
///
/// The pointer is null, or leads to `count` of them.
unsafe fn handles<T>(source: *const *mut T, count: usize) -> Answer<Vec<Handle>> {
    // SAFETY: not null, which is refused before this is called, so the caller promises `count` of them.
    let take_one = |index| unsafe { take_at(source.wrapping_add(index)).map(Handle::from_ptr) };
    if source.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    (0..count).map(take_one).collect()
}
