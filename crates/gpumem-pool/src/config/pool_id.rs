//! [`PoolId`]: the identity of a pool, and [`PoolName`]: the name that reports list it under.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::text::Shown;
use std::sync::Arc;

/// Identifies a pool: unique in the process, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolId(u64);

impl PoolId {
    pub(crate) fn next() -> Self {
        static POOL_COUNT: AtomicU64 = AtomicU64::new(0);
        Self(POOL_COUNT.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.0)
    }
}

/// A pool's identity and its name: the given name, otherwise the number of the identity. The name of a private pool begins with its
/// parent's: `training/cache`.
#[derive(Clone, Debug)]
pub(crate) struct PoolName {
    pub(crate) id: PoolId,
    name: Arc<str>,
    pub(crate) is_given: bool,
}

impl PoolName {
    pub(crate) fn new(given: Option<&str>, parent: Option<&Self>) -> Self {
        let id = PoolId::next();
        let own = given.map_or_else(|| id.number().to_string(), |name| Shown::whole(name).to_string());
        let name = parent.map_or_else(|| own.clone(), |parent| format!("{}/{own}", parent.name));
        let is_given = given.is_some() || parent.is_some_and(|parent| parent.is_given);
        Self { id, name: name.into(), is_given }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_a_name_has_its_number() {
        let plain = PoolName::new(None, None);
        assert_eq!((plain.as_str(), plain.is_given), (&*plain.id.number().to_string(), false));
        let private = PoolName::new(None, Some(&plain));
        assert_eq!(private.as_str(), format!("{}/{}", plain.id.number(), private.id.number()));
        assert!(!private.is_given);
        let named = PoolName::new(Some("a\nb"), None);
        assert_eq!((named.as_str(), PoolName::new(Some("c"), Some(&named)).as_str()), ("a\\nb", "a\\nb/c"));
        assert!(PoolName::new(None, Some(&named)).is_given);
    }
}
