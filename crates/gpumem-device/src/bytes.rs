//! A number of bytes, printed in binary units, with three decimals by default.

use core::fmt;

/// Prints a number of bytes as `0 bytes`, `8.000 KiB` or, with `{:.1}`, `139.8 GiB`.
///
/// ```
/// use gpumem_device::Bytes;
///
/// assert_eq!(Bytes(8 << 10).to_string(), "8.000 KiB");
/// assert_eq!(format!("{:.1}", Bytes(150_754_820_096)), "140.4 GiB");
/// assert_eq!(Bytes(1).to_string(), "1 byte");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The smallest number of bytes that is at least `self` and prints as such, without rounding down.
    #[doc(hidden)]
    pub fn rounded_up(self) -> Self {
        let unit = u128::from(self.unit().map_or(1000, |(unit, _)| unit));
        let thousandths = (u128::from(self.0) * 1000).div_ceil(unit);
        Self(u64::try_from((thousandths * unit).div_ceil(1000)).unwrap_or(u64::MAX))
    }

    /// The largest unit that fits; `None` below 1 KiB.
    fn unit(self) -> Option<(u64, &'static str)> {
        self.0.checked_ilog2()?.checked_div(10)?.checked_sub(1).map(|index| UNITS[index as usize])
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.unit()) {
            (1, _) => f.pad("1 byte"),
            (count, None) => f.pad(&format!("{count} bytes")),
            (count, Some((unit, name))) => {
                let decimals = f.precision().unwrap_or(3);
                let (number, name) = match format!("{:.decimals$}", count as f64 / unit as f64) {
                    // Rounded up to the next unit.
                    full if full.starts_with("1024") && name != "EiB" => {
                        let index = UNITS.iter().position(|(known, _)| *known == unit).unwrap_or_default();
                        (format!("{:.decimals$}", 1.0), UNITS.get(index + 1).map_or(name, |(_, next)| next))
                    }
                    number => (number, name),
                };
                // `pad` would apply the precision to the text and truncate it.
                let text = format!("{number} {name}");
                match f.width() {
                    Some(width) => write!(f, "{text:>width$}"),
                    None => f.write_str(&text),
                }
            }
        }
    }
}

const UNITS: [(u64, &str); 6] = [
    (1 << 10, "KiB"),
    (1 << 20, "MiB"),
    (1 << 30, "GiB"),
    (1 << 40, "TiB"),
    (1 << 50, "PiB"),
    (1 << 60, "EiB"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_prints_in_its_own_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.000 KiB"),
            (32 << 20, "32.000 MiB"),
            (2_764_875_366, "2.575 GiB"),
            (1 << 40, "1.000 TiB"),
            ((1 << 30) - 1, "1.000 GiB"),
            ((1 << 30) - (1 << 10), "1023.999 MiB"),
            (u64::MAX, "16.000 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (32 << 20, "32.000 MiB"),
            ((32 << 20) + 1, "32.001 MiB"),
            (2_764_875_366, "2.575 GiB"),
            (2_764_986_941, "2.576 GiB"),
            (u64::MAX, "16.000 EiB"),
        ] {
            assert_eq!(Bytes(bytes).rounded_up().to_string(), text);
            assert!(Bytes(bytes).rounded_up().0 >= bytes);
        }
        assert_eq!(format!("{:12}|{:.0}", Bytes(1024), Bytes(1024)), "   1.000 KiB|1 KiB");
    }
}
