//! [`Names`]: a pool's tags by number, for its counters, its adaptors and a trace's writer. Shared ownership lets them
//! outlive the pool.

use gpumem_sys::fork;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct Names(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// Tag 1 first.
    names: Vec<Arc<str>>,
    numbers: BTreeMap<Arc<str>, u16>,
}

impl Names {
    /// The number of a name, from 1. If there are too many names, further ones share the last number.
    pub(crate) fn number(&self, name: &str) -> u16 {
        if fork::is_child() {
            return 0;
        }
        let mut book = self.book();
        if let Some(number) = book.numbers.get(name) {
            return *number;
        }
        if book.names.len() == TAG_COUNT_MAX {
            return u16::MAX;
        }
        let name: Arc<str> = if book.names.len() + 1 == TAG_COUNT_MAX { OTHERS } else { name }.into();
        book.names.push(Arc::clone(&name));
        let number = book.names.len() as u16;
        book.numbers.insert(name, number);
        number
    }

    /// The name of a number; `None` if the number is unused.
    pub(crate) fn get(&self, tag: u16) -> Option<Arc<str>> {
        if fork::is_child() {
            return None;
        }
        let index = usize::from(tag).wrapping_sub(1);
        self.book().names.get(index).cloned()
    }

    /// All names, tag 1 first.
    pub(crate) fn all(&self) -> Vec<Arc<str>> {
        self.book().names.clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block stores its tag in 16 bits, and 0 means no tag.
const TAG_COUNT_MAX: usize = u16::MAX as usize;

/// The shared name of all names beyond the last number.
const OTHERS: &str = "(others)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_from_one() {
        let names = Names::default();
        assert_eq!((names.number("a"), names.number("b"), names.number("a")), (1, 2, 1));
        assert_eq!((names.get(2).as_deref(), names.get(0), names.get(3)), (Some("b"), None, None));
    }

    #[test]
    fn names_beyond_the_last_number_share_it() {
        let names = Names::default();
        for index in 1..TAG_COUNT_MAX {
            assert_eq!(usize::from(names.number(&index.to_string())), index);
        }
        assert_eq!((names.number("one more"), names.number("and one")), (u16::MAX, u16::MAX));
        assert_eq!((names.number("1"), names.get(u16::MAX).as_deref()), (1, Some("(others)")));
        assert_eq!(names.all().len(), TAG_COUNT_MAX);
    }
}
