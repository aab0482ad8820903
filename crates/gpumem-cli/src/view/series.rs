//! [`Series`]: the memory of the largest holders, and of all others together.

use gpumem_trace::{Event, Trace};

/// The groups of blocks, and the memory of each of them event by event.
pub(super) struct Series<'a> {
    trace: &'a Trace,
    /// The names; the last one is that of the others, if there are any.
    pub(super) names: Vec<String>,
    /// The peak of each group.
    pub(super) peaks: Vec<u64>,
    of_holders: Vec<usize>,
    holders: Vec<u32>,
}

impl<'a> Series<'a> {
    pub(super) fn of(trace: &'a Trace, count_max: usize) -> Self {
        let (names, holders) = trace.holder_numbers();
        let all = Self {
            trace,
            names: names.iter().map(ToString::to_string).collect(),
            peaks: vec![0; names.len()],
            of_holders: (0..names.len()).collect(),
            holders,
        };
        let mut peaks = vec![0; names.len()];
        all.walk(|_, live, changed| {
            if let Some(group) = changed {
                peaks[group] = live[group].max(peaks[group]);
            }
        });
        let mut order: Vec<usize> = (0..names.len()).filter(|holder| peaks[*holder] > 0).collect();
        order.sort_by_key(|holder| (core::cmp::Reverse(peaks[*holder]), *holder));
        let shown = order.len().min(count_max);
        let mut of_holders = vec![shown; names.len()];
        order[..shown].iter().enumerate().for_each(|(group, holder)| of_holders[*holder] = group);
        let mut shown_names: Vec<String> =
            order[..shown].iter().map(|holder| all.names[*holder].clone()).collect();
        let mut shown_peaks: Vec<u64> = order[..shown].iter().map(|holder| peaks[*holder]).collect();
        if order.len() > shown {
            let rest = order.len() - shown;
            shown_names.push(if rest == 1 { "1 other".into() } else { format!("{rest} others") });
            shown_peaks.push(0);
        }
        Self { names: shown_names, peaks: shown_peaks, of_holders, ..all }
    }

    /// Visits each event with the live bytes of all groups after it, and the group that it changed.
    pub(super) fn walk(&self, mut visit: impl FnMut(usize, &[u64], Option<usize>)) {
        let mut live = vec![0_u64; self.names.len() + 1];
        let mut sizes = vec![0_u64; self.trace.slot_count() as usize];
        for (index, event) in self.trace.events().iter().enumerate() {
            let group = self.of_holders[self.holders[index] as usize];
            let changed = match *event {
                Event::Alloc { slot, size_bytes, .. } => {
                    sizes[slot as usize] = size_bytes;
                    live[group] = live[group].saturating_add(size_bytes);
                    Some(group)
                }
                Event::Free { slot } | Event::FreeUsed { slot } => {
                    live[group] = live[group].saturating_sub(sizes[slot as usize]);
                    Some(group)
                }
                Event::Complete { .. } | Event::Refused { .. } => None,
            };
            visit(index, &live[..self.names.len()], changed.filter(|group| *group < self.names.len()));
        }
    }

    /// The group of an event's block or request; `None` if it is not among the names.
    pub(super) fn group(&self, event: usize) -> Option<usize> {
        let group = self.of_holders[self.holders[event] as usize];
        (group < self.names.len()).then_some(group)
    }
}
