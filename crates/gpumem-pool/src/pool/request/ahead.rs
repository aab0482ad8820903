//! [`ahead_of_use`]: requests for memory that is not needed yet.

use core::cell::Cell;
use gpumem_device::internal::ReentrancyGuard;

thread_local! {
    static IS_AHEAD: Cell<bool> = const { Cell::new(false) };
    static LEAVES_CONTENTS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `request`. Its requests do not wait on the host, and their refusals are not announced.
pub(crate) fn ahead_of_use<R>(request: impl FnOnce() -> R) -> R {
    let _ahead = ReentrancyGuard::begin(&IS_AHEAD);
    request()
}

/// Like [`ahead_of_use`], for requests that also leave all contents where they are.
pub(crate) fn without_moves<R>(request: impl FnOnce() -> R) -> R {
    let _leaves = ReentrancyGuard::begin(&LEAVES_CONTENTS);
    ahead_of_use(request)
}

/// True inside of [`without_moves`].
pub(super) fn leaves_contents() -> bool {
    LEAVES_CONTENTS.get()
}

/// True inside of [`ahead_of_use`].
pub(super) fn is_ahead_of_use() -> bool {
    IS_AHEAD.get()
}
