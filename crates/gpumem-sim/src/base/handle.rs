//! Handles, and the table behind each kind of them.
//!
//! A `CUstream`, `CUevent` or other handle of the driver is a number here: kind, index in the table, generation, instance. A handle
//! that was destroyed, is of another kind, or belongs to another live instance is not found, so it is refused, not dereferenced. No
//! handle equals null or the pseudo handles of the driver (1 and 2).

use crate::base::codes::{Answer, OUT_OF_MEMORY};
use core::fmt;

/// One object of an instance. Never reused while the instance lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle(u64);

impl Handle {
    /// Refers to no object.
    pub(crate) const NONE: Self = Self(0);

    /// A handle as the caller passed it, unchecked.
    pub(crate) fn from_ptr<T>(handle: *mut T) -> Self {
        Self(handle.addr() as u64)
    }

    /// From a handle that is an integer.
    pub(crate) fn from_bits(handle: u64) -> Self {
        Self(handle)
    }

    /// The form that the caller gets: a number cast to a pointer.
    pub(crate) fn to_ptr<T>(self) -> *mut T {
        core::ptr::without_provenance_mut(self.0 as usize)
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// True for a handle of this kind, whether the object exists or not.
    pub(crate) fn is(self, kind: Kind) -> bool {
        self.0 & ((1 << KIND_BITS) - 1) == kind as u64
    }

    fn index(self) -> usize {
        (self.0 >> KIND_BITS) as usize & INDEX_MAX
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The kind of object of a handle: the low bits of its number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Context = 3,
    Stream = 4,
    Event = 5,
    Pool = 6,
    Module = 7,
    Function = 8,
    Physical = 9,
    Library = 10,
    LibraryKernel = 11,
    Graph = 12,
    GraphNode = 13,
    GraphExec = 14,
    Link = 15,
}

/// The objects of one kind.
pub(crate) struct Slab<T> {
    tag: u64,
    entries: Vec<Entry<T>>,
    vacant: Vec<usize>,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// The low byte of the instance's number becomes part of the handles.
    pub(crate) fn new(kind: Kind, instance: u64) -> Self {
        let tag = kind as u64 | (instance << (KIND_BITS + INDEX_BITS + 32));
        Self { tag, entries: Vec::new(), vacant: Vec::new() }
    }

    /// # Errors
    ///
    /// `OUT_OF_MEMORY` if all handles of the kind are in use.
    pub(crate) fn insert(&mut self, value: T) -> Answer<Handle> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if self.entries.len() > INDEX_MAX => return Err(OUT_OF_MEMORY),
            None => {
                self.entries.push(Entry { generation: 0, value: None });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[index];
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.value = Some(value);
        let generation = entry.generation;
        Ok(self.handle(index, generation))
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<&T> {
        let entry = self.entries.get(handle.index())?;
        (self.handle(handle.index(), entry.generation) == handle).then_some(entry.value.as_ref())?
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let generation = self.entries.get(handle.index())?.generation;
        (self.handle(handle.index(), generation) == handle)
            .then(|| self.entries.get_mut(handle.index())?.value.as_mut())?
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        self.vacant.push(handle.index());
        self.entries.get_mut(handle.index())?.value.take()
    }

    /// Removes the objects for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.value.as_ref().is_some_and(|value| !keep(value)) {
                entry.value = None;
                self.vacant.push(index);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            entry.value.as_ref().map(|value| (self.handle(index, entry.generation), value))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.iter().map(|(handle, _)| handle).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    fn handle(&self, index: usize, generation: u32) -> Handle {
        Handle(self.tag | (index as u64) << KIND_BITS | u64::from(generation) << (KIND_BITS + INDEX_BITS))
    }
}

const KIND_BITS: u32 = 4;
const INDEX_BITS: u32 = 20;
const INDEX_MAX: usize = (1 << INDEX_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_handle_stays_unknown_when_its_place_is_taken_again() {
        let mut slab = Slab::new(Kind::Event, 3);
        let first = slab.insert("first").unwrap();
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second").unwrap();
        assert_ne!(first, second);
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&"second")));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_full_table_says_so_until_something_is_removed() {
        let mut slab = Slab::new(Kind::Event, 3);
        let first = slab.insert(0).unwrap();
        (1..=INDEX_MAX).for_each(|value| assert_ne!(slab.insert(value), Ok(first)));
        assert_eq!(slab.insert(0), Err(OUT_OF_MEMORY));
        slab.remove(first);
        assert!(slab.insert(0).is_ok());
    }

    #[test]
    fn handles_of_other_kinds_and_instances_are_unknown() {
        let mut events = Slab::new(Kind::Event, 3);
        let event = events.insert(1).unwrap();
        for mut other in [Slab::new(Kind::Stream, 3), Slab::new(Kind::Event, 4)] {
            other.insert(2).unwrap();
            assert_eq!(other.get(event), None);
        }
        for bits in [0, 1, 2, u64::MAX] {
            assert_eq!(events.get(Handle(bits)), None);
        }
    }
}
