//! [`Extensions`]: what the rooms above keep with a GPU, one value of each type.

use core::any::Any;
use gpumem_base::sync::Lock;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Extensions(Lock<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The value of a type. The first call creates it.
    pub(super) fn get<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = self.0.lock();
        let found = values.iter().find_map(|value| Arc::clone(value).downcast().ok());
        found.unwrap_or_else(|| {
            let made = Arc::new(make());
            values.push(Arc::<T>::clone(&made));
            made
        })
    }
}
