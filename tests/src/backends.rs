//! The backends of the pool that this program was built with, for tests that hold for each.

use crate::pool::{BackendKind, Device, Pool, PoolError};

/// Every backend by name; one that is not built in is left out below, and one that is new joins here.
const NAMES: [&str; 3] = ["caching", "native", "none"];

/// Those that are built in.
///
/// # Panics
///
/// When one is built in and does not work here: a test must not pass because its subject is broken.
#[must_use]
pub fn backends(device: &Device) -> Vec<BackendKind> {
    let kinds = NAMES.iter().filter_map(|name| name.parse::<BackendKind>().ok());
    kinds.filter(|kind| is_built(device, *kind)).collect()
}

fn is_built(device: &Device, kind: BackendKind) -> bool {
    match Pool::builder(device).backend(kind).build() {
        Ok(_) => true,
        Err(PoolError::BackendNotBuilt { .. }) => false,
        Err(error) => panic!("{kind}: {error}"),
    }
}
