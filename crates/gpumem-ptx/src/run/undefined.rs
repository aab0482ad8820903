//! Which lanes of registers have values that a shuffle left undefined.

use std::collections::HashMap;

/// By register.
#[derive(Default)]
pub(crate) struct Undefined(HashMap<u32, Origin>);

/// The lanes of one register, and where their values come from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin {
    pub(crate) lanes: u32,
    /// The shuffle.
    pub(crate) step: u32,
    /// The lane that it wanted a value of.
    pub(crate) source: u32,
}

impl Undefined {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The undefined ones among lanes of a register.
    pub(crate) fn among(&self, register: u32, lanes: u32) -> Option<Origin> {
        let origin = self.0.get(&register)?;
        let lanes = origin.lanes & lanes;
        (lanes != 0).then_some(Origin { lanes, ..*origin })
    }

    /// Lanes of a register have defined values from now on.
    pub(crate) fn remove(&mut self, register: u32, lanes: u32) {
        if let Some(origin) = self.0.get_mut(&register) {
            origin.lanes &= !lanes;
            if origin.lanes == 0 {
                self.0.remove(&register);
            }
        }
    }

    /// Lanes of all registers from this one on have defined values from now on.
    pub(crate) fn remove_from(&mut self, first: u32, lanes: u32) {
        self.0.retain(|register, origin| {
            origin.lanes &= if *register >= first { !lanes } else { u32::MAX };
            origin.lanes != 0
        });
    }

    /// Lanes of a register have undefined values from now on.
    pub(crate) fn add(&mut self, register: u32, Origin { lanes, step, source }: Origin) {
        if lanes != 0 {
            let known = self.0.entry(register).or_default();
            *known = Origin { lanes: known.lanes | lanes, step, source };
        }
    }
}
