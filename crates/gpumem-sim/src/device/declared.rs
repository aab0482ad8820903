//! What a launch declares to access, for the comparison with what its kernel accesses.

use core::cell::Cell;
use core::ops::Range;

/// Bytes that a launch declares to access.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredRange {
    /// The addresses.
    pub bytes: Range<u64>,
    /// False for bytes that the kernel only reads.
    pub is_write: bool,
}

/// Lists the bytes that a launch declares.
pub(crate) type Declares<'a> = &'a dyn Fn() -> Vec<DeclaredRange>;

/// Calls `launch`. Each launch of this thread in it declares these bytes.
#[inline]
pub(crate) fn declaring<R>(declares: Declares<'_>, launch: impl FnOnce() -> R) -> R {
    struct Restored(Option<Declares<'static>>);
    impl Drop for Restored {
        fn drop(&mut self) {
            DECLARES.set(self.0);
        }
    }
    // SAFETY: only the lifetime changes. The guard removes the reference before its lifetime ends, and `of_launch` keeps none.
    let declares = unsafe { core::mem::transmute::<Declares<'_>, Declares<'static>>(declares) };
    let _restored = Restored(DECLARES.replace(Some(declares)));
    launch()
}

thread_local!(static DECLARES: Cell<Option<Declares<'static>>> = const { Cell::new(None) });

/// All that a launch declares.
#[derive(Clone)]
pub(crate) struct Declared(Box<[DeclaredRange]>);

/// Bytes around an access that a launch may access in the same way.
pub(crate) struct DeclaredPart {
    pub(crate) bytes: Range<u64>,
    pub(crate) is_writable: bool,
}

impl Declared {
    /// What the launch that this thread is in declares. `None` for a launch that is not checked.
    pub(crate) fn of_launch() -> Option<Self> {
        let mut ranges = DECLARES.get()?();
        ranges.retain(|range| !range.bytes.is_empty());
        Some(Self(ranges.into()))
    }

    /// The declared bytes around an access; `None` if it is not declared.
    pub(crate) fn part(&self, access: &Range<u64>, is_write: bool) -> Option<DeclaredPart> {
        if let Some(bytes) = self.joined(access, |range| range.is_write) {
            return Some(DeclaredPart { bytes, is_writable: true });
        }
        let mut bytes = self.joined(access, |_| !is_write)?;
        // Without those that may be written, so that parts do not overlap.
        for written in self.0.iter().filter(|range| range.is_write).map(|range| &range.bytes) {
            if written.end <= access.start {
                bytes.start = bytes.start.max(written.end);
            } else if written.start >= access.end {
                bytes.end = bytes.end.min(written.start);
            } else {
                bytes = access.clone();
                break;
            }
        }
        Some(DeclaredPart { bytes, is_writable: false })
    }

    /// The bytes of neighbouring and overlapping ranges, if all of an access is in them.
    fn joined(&self, access: &Range<u64>, is_meant: impl Fn(&DeclaredRange) -> bool) -> Option<Range<u64>> {
        let mut joined = access.start..access.start;
        loop {
            let before = joined.clone();
            for DeclaredRange { bytes, .. } in self.0.iter().filter(|range| is_meant(range)) {
                if bytes.start <= joined.end && joined.start <= bytes.end {
                    joined = joined.start.min(bytes.start)..joined.end.max(bytes.end);
                }
            }
            if joined == before {
                return (joined.end >= access.end).then_some(joined);
            }
        }
    }

    /// Why an access has no [`Declared::part`]. `name` is that of the parameter with an address in a range.
    pub(crate) fn refusal(
        &self,
        access: &Range<u64>,
        is_write: bool,
        name: impl Fn(&Range<u64>) -> String,
    ) -> String {
        let (verb, start) = (if is_write { "writes" } else { "reads" }, access.start);
        let text = format!("it {verb} {} bytes at {start:#x}", access.end - start);
        let has_start = |range: &&DeclaredRange| range.bytes.contains(&start);
        if let Some(range) = self.0.iter().find(has_start).filter(|_| self.joined(access, |_| true).is_some())
        {
            return format!("{text}, which the launch declares as read only: {}", name(&range.bytes));
        }
        let distance = |bytes: &Range<u64>| match start < bytes.start {
            true => (bytes.start - start, "before the beginning"),
            false => (start.saturating_sub(bytes.end), "past the end"),
        };
        match self.0.iter().map(|range| &range.bytes).min_by_key(|bytes| distance(bytes).0) {
            None => format!("{text}, and the launch declares no memory"),
            Some(bytes) => {
                let ((distance, side), size_bytes) = (distance(bytes), bytes.end - bytes.start);
                let distance = if distance > 0 { format!("{distance} bytes ") } else { String::new() };
                format!("{text}, {distance}{side} of {}, which has {size_bytes} bytes", name(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(ranges: &[(Range<u64>, bool)]) -> Declared {
        let ranges = ranges.iter().cloned();
        Declared(ranges.map(|(bytes, is_write)| DeclaredRange { bytes, is_write }).collect())
    }

    #[test]
    fn parts_are_declared_alike_and_do_not_overlap() {
        let declared = declared(&[(100..200, false), (150..160, true), (200..300, false), (400..500, true)]);
        let part = |access: Range<u64>, is_write| {
            declared.part(&access, is_write).map(|part| (part.bytes, part.is_writable))
        };
        assert_eq!(part(100..104, false), Some((100..150, false)));
        assert_eq!(part(148..152, false), Some((148..152, false)), "half of it may be written");
        assert_eq!(part(152..156, false), Some((150..160, true)));
        assert_eq!(part(196..204, false), Some((160..300, false)), "neighbours");
        assert_eq!(part(152..156, true), Some((150..160, true)));
        for (access, is_write) in
            [(148..152, true), (100..104, true), (296..304, false), (96..104, false), (350..354, false)]
        {
            assert_eq!(part(access, is_write), None);
        }
    }

    #[test]
    fn a_refusal_names_what_is_nearest() {
        let declared = declared(&[(0x100..0x200, false), (0x300..0x400, true)]);
        let refusal = |access, is_write| declared.refusal(&access, is_write, |bytes| format!("{bytes:?}"));
        assert_eq!(
            refusal(0x1FC..0x200, true),
            "it writes 4 bytes at 0x1fc, which the launch declares as read only: 256..512"
        );
        assert_eq!(
            refusal(0x200..0x204, false),
            "it reads 4 bytes at 0x200, past the end of 256..512, which has 256 bytes"
        );
        assert_eq!(
            refusal(0x210..0x214, false),
            "it reads 4 bytes at 0x210, 16 bytes past the end of 256..512, which has 256 bytes"
        );
        assert_eq!(
            refusal(0x2FC..0x300, true),
            "it writes 4 bytes at 0x2fc, 4 bytes before the beginning of 768..1024, which has 256 bytes"
        );
        assert_eq!(
            Declared([].into()).refusal(&(8..9), false, |_| String::new()),
            "it reads 1 bytes at 0x8, and the launch declares no memory"
        );
    }

    #[test]
    fn a_declaration_counts_for_its_own_launches_on_its_own_thread() {
        let ranges = |start: u64| vec![DeclaredRange { bytes: start..start + 8, is_write: true }];
        let found = || Declared::of_launch().map(|declared| declared.0[0].bytes.start);
        declaring(&|| ranges(1), || {
            assert_eq!(declaring(&|| ranges(2), found), Some(2));
            assert_eq!(found(), Some(1));
            assert_eq!(std::thread::spawn(move || Declared::of_launch().is_none()).join().ok(), Some(true));
        });
        assert_eq!(found(), None);
    }
}
