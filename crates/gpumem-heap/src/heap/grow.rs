//! [`GrowthLimits`]: how many new handles a block gets, how large, and how far.

use super::extension::{Extension, extensions};
use super::idle_scan::{IdlePages, IdleScan};
use super::memory_map::MemoryMap;
use super::plan::{self, MappingPlan};
use super::space::{PAGE_BYTES, PAGE_SHIFT, pages_in};
use super::view::View;
use gpumem_base::order::Order;

#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthLimits {
    /// The new pages that may be reserved.
    pub(super) room_pages: u64,
    /// The new pages that are preferred to more expensive steps.
    pub(super) target_pages: u64,
    /// The least growth.
    pub(super) step_pages: u32,
    /// The size of the largest handle.
    pub(super) handle_max_pages: u32,
}

impl GrowthLimits {
    /// A place and a row with new handles. `None` if they exceed the limits.
    pub(super) fn plan(
        &self,
        map: &MemoryMap,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        scan: &IdleScan,
        view: &View<impl Order>,
    ) -> Option<(Option<Extension>, MappingPlan)> {
        let mut extensions = extensions(map, index, (size_bytes, alignment), scan, view);
        let missing_pages = extensions.last()?.missing_pages;
        if missing_pages == 0 {
            return Some((extensions.pop(), MappingPlan::default()));
        }
        let most_pages = self.room_pages.min(self.target_pages);
        if u64::from(missing_pages) > most_pages {
            return self.mixed(map, extensions, scan, (size_bytes, alignment));
        }
        let page_count =
            missing_pages.max(self.step_pages).min(u32::try_from(most_pages).unwrap_or(u32::MAX));
        let place = extensions.pop().filter(|one| one.is_worth_it(alignment));
        Some((
            place,
            MappingPlan { new: handles(page_count, self.handle_max_pages), ..MappingPlan::default() },
        ))
    }

    /// The plan with the fewest new pages.
    fn mixed(
        &self,
        map: &MemoryMap,
        extensions: Vec<Extension>,
        scan: &IdleScan,
        (size_bytes, alignment): (u64, u64),
    ) -> Option<(Option<Extension>, MappingPlan)> {
        let extensions = extensions.into_iter().filter(|one| one.is_worth_it(alignment));
        let extended = extensions.filter_map(|extension| {
            let rest = scan.without(&extension.scan);
            let row = self.mixed_row(map, &rest.idle, extension.missing_pages, true)?;
            (row.size_bytes(&map.pages) >> PAGE_SHIFT <= extension.room_pages)
                .then_some((Some(extension), row))
        });
        let fresh = (alignment <= PAGE_BYTES)
            .then(|| self.mixed_row(map, &scan.idle, pages_in(size_bytes), false))
            .flatten();
        let partial = scan.partial(size_bytes).and_then(|partial| {
            let rest = pages_in(size_bytes - partial.size_bytes);
            Some(MappingPlan { partial: Some(partial), ..self.mixed_row(map, &scan.idle, rest, true)? })
        });
        let all = extended.chain(fresh.into_iter().chain(partial).map(|row| (None, row)));
        all.min_by_key(|(_, row)| (row.new.iter().sum::<u32>(), row.mapping_count()))
    }

    /// A row of all idle pages that can be adjacent, and new handles for the rest.
    fn mixed_row(
        &self,
        map: &MemoryMap,
        idle: &[IdlePages],
        missing: u32,
        from_start: bool,
    ) -> Option<MappingPlan> {
        let sizes = |handle| map.pages.handle(handle).page_count;
        let (mut parts, last) = plan::reach(idle, sizes, from_start);
        let mut missing = missing.checked_sub(last.map_or(0, |part| part.count))?;
        parts.retain_mut(|part| {
            part.count = part.count.min(missing);
            missing -= part.count;
            part.count > 0
        });
        (missing > 0 && u64::from(missing) <= self.room_pages).then(|| MappingPlan {
            parts,
            new: handles(missing, self.handle_max_pages),
            last,
            ..MappingPlan::default()
        })
    }
}

/// The sizes of new handles for some pages.
pub(super) fn handles(page_count: u32, largest: u32) -> Vec<u32> {
    let mut handles = vec![largest; (page_count / largest) as usize];
    let rest = page_count % largest;
    handles.extend((rest > 0).then_some(rest));
    handles
}
