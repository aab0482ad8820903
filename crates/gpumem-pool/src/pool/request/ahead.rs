//! [`ahead_of_use`]: requests for memory that is not needed yet.

use core::cell::Cell;
use gpumem_device::internal::ReentrancyGuard;

thread_local! {
    static IS_AHEAD: Cell<bool> = const { Cell::new(false) };
}

/// Calls `request`. Its requests do not wait on the host, and their refusals are not announced.
pub(crate) fn ahead_of_use<R>(request: impl FnOnce() -> R) -> R {
    let _ahead = ReentrancyGuard::begin(&IS_AHEAD);
    request()
}

/// True inside of [`ahead_of_use`].
pub(super) fn is_ahead_of_use() -> bool {
    IS_AHEAD.get()
}
