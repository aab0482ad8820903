//! Checks that work reaches the driver's queue only in calls that name the memory it uses: `Stream::queue_work`, `Stream::run_borrowed`.
//!
//! Both pass the stream's handle to a closure, after they have refused memory that sleeps. Code that takes the handle by
//! `Stream::raw` could queue work without that check.

use super::Finding;
use super::source::Source;

/// The sources that queue work on memory of pools.
const SOURCES: [&str; 3] =
    ["crates/gpumem-pool/src/", "crates/gpumem-array/src/", "crates/gpumem-adapt/src/"];
/// The room that has these calls, and the backend whose allocations are queued: memory that is not there yet does not sleep.
const EXEMPT: [&str; 2] = ["crates/gpumem-pool/src/device/", "crates/gpumem-pool/src/backend/native.rs"];

pub(super) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    if !is_in(&SOURCES) || is_in(&EXEMPT) {
        return Vec::new();
    }
    let takes_handle = |code: &str| ["stream.raw()", "stream().raw()"].iter().any(|call| code.contains(call));
    let lines = source.lines.iter().enumerate().filter(|(_, line)| takes_handle(&line.code));
    let advice = "queue the work in `Stream::queue_work`, which takes the memory that it uses";
    lines.map(|(index, _)| Finding::new(path, index + 1, "the handle of a stream is taken", advice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_found_in_code_outside_of_the_room() {
        let text = "/// unsafe { set(stream.raw()) }\nfn f() {\n    set(gpu.stream().raw());\n}\n";
        let found =
            |path| check(path, &Source::parse(text)).iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(found("crates/gpumem-array/src/copy.rs"), [3]);
        assert!(found("crates/gpumem-pool/src/device/event.rs").is_empty());
        assert!(found("tests/pool/sleep.rs").is_empty());
    }
}
