//! The C functions of the table: each decodes its arguments, calls the machine and encodes the result.
//!
//! Each file lists its functions once in `entries!`. A line of the list makes the body, which runs under the instance's lock, and a
//! thunk for each slot, which adds the slot's number.

pub(crate) mod any_node;
pub(crate) mod argument;
pub(crate) mod call;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod exec;
pub(crate) mod graph;
pub(crate) mod host_call;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod linker;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod node;
pub(crate) mod node_parameters;
pub(crate) mod occupancy;
pub(crate) mod pool;
pub(crate) mod rule_names;
pub(crate) mod settings;
pub(crate) mod sharing;
pub(crate) mod slot;
pub(crate) mod stream;
pub(crate) mod symbol;
pub(crate) mod transfer;
pub(crate) mod value;
pub(crate) mod virtual_memory;
pub(crate) mod volume;

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Argument, take_at};
use crate::entry::slot::SLOT_COUNT;
use gpumem_sys::Table;

/// The table of functions for the instance in a slot.
pub(crate) fn table<const SLOT: usize>() -> Table {
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
    library::install::<SLOT>(&mut table);
    linker::install::<SLOT>(&mut table);
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

macro_rules! tables {
    ($($slot:literal)*) => {
        /// The table of each slot.
        pub(crate) const TABLES: [fn() -> Table; SLOT_COUNT] = [$(table::<$slot>),*];
    };
}

tables! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

/// Defines entries: the function that runs a body under the instance's lock, and a thunk for each slot.
///
/// A body is safe code. Its arguments have the types in the list ([`Argument`]); a body that dereferences a raw pointer states why it
/// may in a block of its own.
macro_rules! entries {
    ($( fn $name:ident($call:ident $(, $arg:ident: $kind:ty)* $(,)?) $body:block )*) => {
        $(
            /// # Safety
            ///
            /// The conditions that the driver's documentation states for this function.
            // One function for all slots, so that the body is compiled once.
            #[inline(never)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe fn $name(slot: usize, $($arg: <$kind as crate::entry::Argument>::Raw),*) -> CUresult {
                const COST: crate::machine::call_cost::CallCost = crate::machine::call_cost::CallCost::of(stringify!($name));
                // SAFETY: the caller guarantees the conditions in the function's documentation: a pointer that is a target or a
                // source in the list is null, or valid for one value of its type until the call returns.
                $( let $arg = unsafe { <$kind as crate::entry::Argument>::of($arg) }; )*
                crate::entry::call::enter(slot, stringify!($name), COST, |$call| $body)
            }
        )*

        pub(crate) fn install<const SLOT: usize>(table: &mut Table) {
            $( table.$name = Some({
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn thunk<const SLOT: usize>(
                    $($arg: <$kind as crate::entry::Argument>::Raw),*
                ) -> CUresult {
                    // SAFETY: the caller guarantees the conditions of the function.
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
/// The pointer is null or points to `count` handles.
unsafe fn handles<T>(source: *const *mut T, count: usize) -> Answer<Vec<Handle>> {
    // SAFETY: null was refused before, so the caller guarantees `count` handles.
    let take_one = |index| unsafe { take_at(source.wrapping_add(index)).map(Handle::from_ptr) };
    if source.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    (0..count).map(take_one).collect()
}
