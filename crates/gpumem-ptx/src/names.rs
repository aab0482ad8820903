//! What the names of functions and variables stand for, over all texts of a link. Pure.

use crate::error::{LinkError, Place, PtxError, short};
use crate::syntax::{Linkage, Source};
use std::collections::{HashMap, HashSet};

/// The numbers of functions and variables, by the text that names them.
pub(crate) struct Names<'s> {
    functions: Table<'s>,
    variables: Table<'s>,
}

type Table<'s> = HashMap<(u32, &'s str), usize>;

struct Declared<'s> {
    name: &'s str,
    unit: u32,
    linkage: Linkage,
    is_definition: bool,
    place: Place,
}

impl<'s> Names<'s> {
    /// # Errors
    ///
    /// [`LinkError`] for a name that texts define twice.
    pub(crate) fn new(source: &'s Source<'_>) -> Result<Self, LinkError> {
        let functions = source.functions.iter().map(|function| Declared {
            name: function.name,
            unit: function.unit,
            linkage: function.linkage,
            is_definition: function.body.is_some(),
            place: function.place,
        });
        let variables = source.variables.iter().map(|variable| Declared {
            name: &variable.name,
            unit: variable.unit,
            linkage: variable.linkage,
            is_definition: variable.linkage != Linkage::Extern,
            place: variable.place,
        });
        let mut functions = table(functions)?;
        for (unit, alias, name) in &source.aliases {
            if let Some(&number) = functions.get(&(*unit, *name)) {
                functions.insert((*unit, alias), number);
            }
        }
        Ok(Self { functions, variables: table(variables)? })
    }

    /// The function that a text means.
    pub(crate) fn function(&self, unit: u32, name: &str) -> Option<usize> {
        self.functions.get(&(unit, name)).copied()
    }

    /// The variable that a text means.
    pub(crate) fn variable(&self, unit: u32, name: &str) -> Option<usize> {
        self.variables.get(&(unit, name)).copied()
    }
}

/// A definition of the text itself comes before its declarations, and before what other texts define.
fn table<'s>(declared: impl Iterator<Item = Declared<'s>> + Clone) -> Result<Table<'s>, LinkError> {
    let twice = |found: Declared<'_>| LinkError {
        input: found.unit as usize,
        error: PtxError::syntax(found.place, format!("`{}` is defined twice", short(found.name))),
    };
    let mut exported: HashMap<&str, (usize, Linkage)> = HashMap::new();
    let mut defined = HashSet::new();
    for (number, found) in declared.clone().enumerate().filter(|(_, found)| found.is_definition) {
        if !defined.insert((found.unit, found.name)) {
            return Err(twice(found));
        }
        match (exported.get(found.name), found.linkage) {
            (_, Linkage::Internal | Linkage::Extern) => {}
            (Some((_, Linkage::Visible)), Linkage::Visible) => {
                return Err(twice(found));
            }
            (Some(_), Linkage::Weak) => {}
            (_, linkage) => drop(exported.insert(found.name, (number, linkage))),
        }
    }
    let mut table = Table::new();
    for (number, found) in declared.enumerate() {
        let number = match exported.get(found.name) {
            Some((exported, _)) if found.linkage != Linkage::Internal => *exported,
            _ => number,
        };
        if found.is_definition || !table.contains_key(&(found.unit, found.name)) {
            table.insert((found.unit, found.name), number);
        }
    }
    Ok(table)
}
