//! [`SizeRounding`]: the rule by which the sizes of large blocks are rounded up. It has no state.

use core::fmt;
use core::str::FromStr;

/// The number of steps per power of two for block sizes above 1 MiB: one number for all sizes, or a list by size, in
/// PyTorch's syntax. The documentation of [`conf`](crate::conf) describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizeRounding {
    /// Increasing sizes, each with the divisor of the sizes below it.
    below: Vec<(u64, u32)>,
    beyond: u32,
}

impl SizeRounding {
    /// No rounding.
    pub(crate) const EXACT: Self = Self { below: Vec::new(), beyond: 0 };

    /// The divisor for a size.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn of(&self, size_bytes: u64) -> u32 {
        self.below.iter().find(|(end, _)| size_bytes < *end).map_or(self.beyond, |(_, divisor)| *divisor)
    }
}

impl From<u32> for SizeRounding {
    /// One divisor for all sizes; 0 rounds none.
    fn from(divisor: u32) -> Self {
        Self { below: Vec::new(), beyond: divisor }
    }
}

impl FromStr for SizeRounding {
    /// The position of the mistake, in characters from 1, and the mistake.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mistake = |start: usize, item: &str, problem| {
            let position = text.get(..start).unwrap_or_default().chars().count() + 1;
            format!("at character {position}, `{item}`: {problem}")
        };
        let Some(list) = text.strip_prefix('[') else {
            return divisor(text).map(Self::from).ok_or_else(|| mistake(0, text, NO_DIVISOR));
        };
        let list = list.strip_suffix(']').ok_or_else(|| mistake(0, "[", "the list is not closed by `]`"))?;
        let (mut divisions, mut is_complete, mut end) = (Self::from(0), false, 1);
        for item in list.split(',') {
            let start = end + item.len() - item.trim_start().len();
            let bad = |problem| mistake(start, item.trim(), problem);
            end += item.len() + 1;
            if is_complete {
                return Err(bad("no item may follow `>`"));
            }
            let (size, count) = item.split_once(':').ok_or_else(|| bad("expected `size:divisions`"))?;
            let divisor = divisor(count).ok_or_else(|| bad(NO_DIVISOR))?;
            if size.trim() == ">" {
                (divisions.beyond, is_complete) = (divisor, true);
                continue;
            }
            let size_bytes = size_bytes(size).ok_or_else(|| bad("sizes must be powers of two, in MiB"))?;
            match divisions.below.last() {
                Some((last_bytes, _)) if *last_bytes == size_bytes => {
                    return Err(bad("this size is listed twice"));
                }
                Some((last_bytes, _)) if *last_bytes > size_bytes => {
                    return Err(bad("sizes must increase"));
                }
                _ => divisions.below.push((size_bytes, divisor)),
            }
        }
        Ok(divisions)
    }
}

/// Prints a text that parses to an equal rule.
impl fmt::Display for SizeRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { below, beyond } = self;
        if below.is_empty() {
            return write!(f, "{beyond}");
        }
        let sizes = below.iter().map(|(end, divisor)| format!("{}:{divisor}", end >> 20));
        let rest = (*beyond > 0).then(|| format!(">:{beyond}"));
        write!(f, "[{}]", sizes.chain(rest).collect::<Vec<_>>().join(","))
    }
}

fn divisor(text: &str) -> Option<u32> {
    text.trim()
        .parse::<u32>()
        .ok()
        .filter(|divisor| *divisor == 0 || divisor.is_power_of_two() && *divisor <= 64)
}

fn size_bytes(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|size_mib| size_mib.is_power_of_two())?.checked_mul(1 << 20)
}

const NO_DIVISOR: &str = "divisions must be a power of two up to 64, or 0";

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_size_has_the_divisions_of_its_interval() {
        let divisions: SizeRounding = "[256:1,512:2,1024:4,>:8]".parse().unwrap();
        let of = |mib: u64| divisions.of(mib * MIB);
        assert_eq!([2, 255, 256, 511, 512, 1023, 1024, 1 << 30].map(of), [1, 1, 2, 2, 4, 4, 8, 8]);
        assert_eq!(divisions.of(256 * MIB - 1), 1);
        let open: SizeRounding = "[ 4 : 2 ]".parse().unwrap();
        assert_eq!((open.of(4 * MIB - 1), open.of(4 * MIB)), (2, 0));
        assert_eq!("16".parse(), Ok(SizeRounding::from(16)));
        assert_eq!("[>:16]".parse(), Ok(SizeRounding::from(16)));
    }

    #[test]
    fn mistakes_are_found_where_they_are() {
        for (text, position, said) in [
            ("3", 1, "power of two"),
            ("128", 1, "up to 64"),
            ("many", 1, "`many`"),
            ("8]", 1, "`8]`"),
            ("[256:1,512:2", 1, "not closed"),
            ("[]", 2, "size:divisions"),
            ("[256:1,]", 8, "size:divisions"),
            ("[256]", 2, "size:divisions"),
            ("[256:1,256:2]", 8, "listed twice"),
            ("[512:1, 256:2]", 9, "must increase"),
            ("[300:1]", 2, "sizes must be powers of two"),
            ("[0:1]", 2, "sizes must be powers of two"),
            ("[9223372036854775808:1]", 2, "sizes must be powers of two"),
            ("[256:3]", 2, "divisions must be a power of two"),
            ("[>:8,256:1]", 6, "follow `>`"),
            ("[>:8,>:8]", 6, "follow `>`"),
        ] {
            let error = text.parse::<SizeRounding>().unwrap_err();
            assert!(error.starts_with(&format!("at character {position}, `")), "{text}: {error}");
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
