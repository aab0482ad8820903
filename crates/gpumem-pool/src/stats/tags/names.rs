//! [`Names`]: a pool's tags by number, for its counters, its adaptors and a trace's writer. Shared ownership lets them
//! outlive the pool.
//!
//! A name has a number while something holds it ([`Name`]), while blocks count for it, and while it is among the last names used
//! without either. Then it is forgotten, and another name gets the number. Recorders store numbers, so a recorded pool never reuses a
//! number.

use gpumem_base::sync::Lock;
use gpumem_sys::fork;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Names(pub(super) Lock<NameTable>);

#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    pub(crate) number: u16,
}

pub(super) struct NameTable {
    in_use: BTreeMap<Arc<str>, NameUse>,
    /// The names of the numbers given so far, number 1 first; `None` for numbers that are free.
    given: Vec<Option<Arc<str>>>,
    free: Vec<u16>,
    is_recorded: bool,
    use_count: u64,
    /// The number of further names before unused ones are forgotten.
    left_count: usize,
}

struct NameUse {
    name: Arc<Name>,
    first_use: u64,
    last_use: u64,
}

impl Default for NameTable {
    fn default() -> Self {
        Self {
            in_use: BTreeMap::new(),
            given: Vec::new(),
            free: Vec::new(),
            is_recorded: false,
            use_count: 0,
            left_count: 2 * UNUSED_COUNT_MAX,
        }
    }
}

impl Names {
    /// The name of a number; `None` if the number is unused.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<str>> {
        if fork::is_child() {
            return None;
        }
        let index = usize::from(number).wrapping_sub(1);
        self.0.lock().given.get(index).cloned().flatten()
    }

    pub(crate) fn hold(&self, number: u16) -> Option<Arc<Name>> {
        if fork::is_child() {
            return None;
        }
        let table = self.0.lock();
        let name = table.given.get(usize::from(number).wrapping_sub(1))?.as_ref()?;
        table.in_use.get(name).map(|found| Arc::clone(&found.name))
    }

    /// The number of a name; 0 if it has none.
    pub(crate) fn find(&self, name: &str) -> u16 {
        if fork::is_child() {
            return 0;
        }
        self.0.lock().in_use.get(name).map_or(0, |found| found.name.number)
    }

    /// From now on numbers are not reused, because a recorder stores them.
    pub(crate) fn set_recorded(&self) {
        let mut table = self.0.lock();
        table.is_recorded = true;
        table.free = Vec::new();
    }
}

impl NameTable {
    pub(super) fn find(&mut self, name: &str) -> Option<Arc<Name>> {
        self.use_count += 1;
        let found = self.in_use.get_mut(name)?;
        found.last_use = self.use_count;
        Some(Arc::clone(&found.name))
    }

    /// True if unused names must be forgotten before the next name is added.
    pub(super) fn is_due(&self) -> bool {
        self.left_count == 0
    }

    /// Gives a new name a number. If there are too many names, further ones share a name and its number.
    pub(super) fn add(&mut self, name: &str) -> Arc<Name> {
        self.left_count = self.left_count.saturating_sub(1);
        let number = self.free.pop().unwrap_or_else(|| {
            self.given.resize((self.given.len() + 1).min(usize::from(OTHERS_NUMBER)), None);
            self.given.len() as u16
        });
        match number {
            OTHERS_NUMBER => self.find(OTHERS).unwrap_or_else(|| self.insert(OTHERS, OTHERS_NUMBER)),
            number => self.insert(name, number),
        }
    }

    fn insert(&mut self, text: &str, number: u16) -> Arc<Name> {
        let text: Arc<str> = text.into();
        if let Some(given) = self.given.get_mut(usize::from(number) - 1) {
            *given = Some(Arc::clone(&text));
        }
        let name = Arc::new(Name { text: Arc::clone(&text), number });
        let used = NameUse { name: Arc::clone(&name), first_use: self.use_count, last_use: self.use_count };
        self.in_use.insert(text, used);
        name
    }

    /// Forgets names that nothing holds and that no block counts for, except those used last. Returns their numbers, which may go to
    /// other names from now on. `is_unused` returns true for a number that no block counts for.
    pub(super) fn forget_unused(&mut self, is_unused: impl Fn(u16) -> bool) -> Vec<u16> {
        // Nothing else can hold a name, because that takes the lock of the table.
        let last_use = |used: &mut NameUse| {
            let is_free = Arc::get_mut(&mut used.name).is_some() && is_unused(used.name.number);
            is_free.then_some(used.last_use)
        };
        let mut oldest: Vec<_> = self.in_use.values_mut().filter_map(last_use).collect();
        oldest.sort_unstable();
        oldest.truncate(oldest.len().saturating_sub(UNUSED_COUNT_MAX));
        let mut forgotten = Vec::new();
        self.in_use.retain(|_, used| {
            let is_kept = oldest.binary_search(&used.last_use).is_err();
            forgotten.extend((!is_kept).then_some(used.name.number));
            is_kept
        });
        if !self.is_recorded {
            for number in &forgotten {
                if let Some(given) = self.given.get_mut(usize::from(*number) - 1) {
                    *given = None;
                }
            }
            self.free.extend(forgotten.iter().filter(|number| **number != OTHERS_NUMBER));
        }
        // The cost of a pass is proportional to the number of names, so it runs once per fraction of them; earlier if the numbers run out.
        let number_count = self.free.len() + usize::from(OTHERS_NUMBER - 1).saturating_sub(self.given.len());
        self.left_count = (self.in_use.len() / 2).min(number_count).max(UNUSED_COUNT_MAX);
        forgotten
    }

    /// The names that are not forgotten, in the order of their first uses.
    pub(super) fn all(&self) -> Vec<Arc<Name>> {
        let mut all: Vec<_> = self.in_use.values().map(|used| (used.first_use, &used.name)).collect();
        all.sort_unstable_by_key(|(first_use, _)| *first_use);
        all.into_iter().map(|(_, name)| Arc::clone(name)).collect()
    }
}

/// The number of names that stay although no block counts for them and nothing holds them, because their peaks and counts are of interest.
pub(super) const UNUSED_COUNT_MAX: usize = 256;

/// The last number: a block stores its tag in 16 bits, and 0 means no tag.
const OTHERS_NUMBER: u16 = u16::MAX;

/// The shared name of all names beyond the last number.
const OTHERS: &str = "(others)";

#[cfg(test)]
mod tests {
    use super::*;

    fn number(table: &mut NameTable, name: &str) -> Arc<Name> {
        table.find(name).unwrap_or_else(|| table.add(name))
    }

    #[test]
    fn names_are_numbered_from_one() {
        let names = Names::default();
        let numbers = ["a", "b", "a"].map(|name| number(&mut names.0.lock(), name).number);
        assert_eq!((numbers, names.find("b"), names.find("c")), ([1, 2, 1], 2, 0));
        assert_eq!((names.get(2).as_deref(), names.get(0), names.get(3)), (Some("b"), None, None));
    }

    #[test]
    fn names_beyond_the_last_number_share_it() {
        let names = Names::default();
        let mut table = names.0.lock();
        for index in 1..OTHERS_NUMBER {
            assert_eq!(number(&mut table, &index.to_string()).number, index);
        }
        assert_eq!(["one more", "and one"].map(|name| number(&mut table, name).number), [u16::MAX; 2]);
        assert_eq!(table.all().len(), usize::from(u16::MAX));
        drop(table);
        assert_eq!((names.find("1"), names.get(u16::MAX).as_deref()), (1, Some("(others)")));
    }

    /// Held names, used numbers and the names used last stay; the numbers of the others go to new names, unless they are recorded.
    #[test]
    fn unused_names_are_forgotten() {
        for is_recorded in [false, true] {
            let names = Names::default();
            if is_recorded {
                names.set_recorded();
            }
            let mut table = names.0.lock();
            let held = number(&mut table, "held");
            (0..1000).for_each(|index| drop(number(&mut table, &format!("name {index}"))));
            drop(number(&mut table, "name 0"));
            let forgotten = table.forget_unused(|number| number != 3);
            assert_eq!(forgotten.len(), 1001 - UNUSED_COUNT_MAX - 2);
            let left: Vec<_> = table.all().iter().map(|name| name.text.to_string()).collect();
            assert_eq!(left.len(), UNUSED_COUNT_MAX + 2);
            assert_eq!(
                left[..4],
                ["held", "name 0", "name 1", "name 745"],
                "in the order of their first uses"
            );
            assert_eq!(number(&mut table, "held").number, held.number);
            let new = number(&mut table, "new").number;
            assert_eq!(new > 1001, is_recorded, "{new}");
            drop(table);
            assert_eq!(names.get(4).is_some(), is_recorded);
        }
    }

    #[test]
    fn passes_are_rare_and_leave_a_number_for_every_name() {
        let names = Names::default();
        let mut table = names.0.lock();
        let (mut held, mut pass_count) = (Vec::new(), 0);
        for index in 0..200_000_u32 {
            if table.is_due() {
                table.forget_unused(|_| true);
                pass_count += 1;
            }
            let name = number(&mut table, &index.to_string());
            assert!(&*name.text == index.to_string().as_str());
            held.extend((index % 4 == 0).then_some(name));
        }
        assert!(pass_count < 100, "{pass_count}");
    }
}
