//! What lanes at a barrier run behind it in any case.
//!
//! Lanes that end are not waited for, and a kernel may end some of them early. But lanes that go around a barrier, and then run what those at
//! the barrier will run too, have evaluated the condition of the barrier in another way, which `bar.sync` does not allow.

use crate::program::Program;

/// The steps of the kernel that come behind a step on every way to the end, without those that end it.
pub(crate) fn common_behind(program: &Program, step: u32) -> Vec<bool> {
    let mut common = vec![false; program.steps.len()];
    let starts = program.successors(step).0;
    let Some(way) = way_to_the_end(program, &starts) else { return common };
    // Where a step is on that one way.
    let mut index_of = vec![usize::MAX; program.steps.len()];
    way.iter().enumerate().for_each(|(index, step)| index_of[*step as usize] = index);
    let mut is_seen = vec![false; program.steps.len()];
    // The last step of the way that another way comes to, without those between.
    let mut furthest = 0;
    let mut open: Vec<u32> = starts;
    for (index, step) in way.iter().enumerate() {
        while let Some(next) = open.pop() {
            match index_of[next as usize] {
                usize::MAX if core::mem::replace(&mut is_seen[next as usize], true) => {}
                usize::MAX => {
                    let (nexts, may_end) = program.successors(next);
                    if may_end {
                        return common;
                    }
                    open.extend(nexts);
                }
                reached => furthest = furthest.max(reached),
            }
        }
        let (nexts, may_end) = program.successors(*step);
        if furthest == index && !may_end {
            common[*step as usize] = true;
        }
        if may_end {
            return common;
        }
        open.extend(nexts);
    }
    common
}

/// A shortest way from one of several steps to an end.
fn way_to_the_end(program: &Program, starts: &[u32]) -> Option<Vec<u32>> {
    let mut before = vec![None; program.steps.len()];
    let mut found: Vec<u32> = Vec::new();
    for start in starts {
        if before[*start as usize].replace(*start).is_none() {
            found.push(*start);
        }
    }
    let mut next = 0;
    while let Some(&step) = found.get(next) {
        let (nexts, may_end) = program.successors(step);
        if may_end {
            let mut way = vec![step];
            while let Some(Some(earlier)) = way.last().map(|last| before[*last as usize])
                && Some(&earlier) != way.last()
            {
                way.push(earlier);
            }
            way.reverse();
            return Some(way);
        }
        for other in nexts {
            if before[other as usize].is_none() {
                before[other as usize] = Some(step);
                found.push(other);
            }
        }
        next += 1;
    }
    None
}
