//! `printf` and `assert`: texts in device memory.

use crate::fault::Mistake;
use crate::memory::get;
use crate::program::{Access, Assertion, Memory, Order, Slot};
use crate::run::Run;
use crate::run::access::{ThreadMemory, by_window};
use crate::run::warp::{Executing, Failed, Warp, bits};
use core::ops::Range;

/// The bytes of a text of `printf` or `assert`, at most.
const TEXT_BYTES_MAX: u64 = 1 << 12;
/// The bytes that a launch prints, at most: the default size of a device's buffer. More is dropped.
const PRINTED_BYTES_MAX: usize = 1 << 20;

/// The bytes of formatted output that count as one step.
const BYTES_A_STEP: u64 = 16;

impl Warp {
    /// Prints for each lane. `format` and `arguments` are addresses; the arguments are in the memory of a routine.
    pub(crate) fn print(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        routine: u32,
        to: u32,
        [format, arguments]: [Slot; 2],
        site: u32,
    ) -> Result<(), Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        let [formats, arguments] = [format, arguments].map(|slot| *self.lanes(run, base, slot));
        for lane in bits(active) {
            let thread = self.thread(lane, shared, local);
            let count = run.print(formats[lane], (arguments[lane], routine), site, &thread);
            let count = count.map_err(|mistake| (mistake, lane as u32))?;
            self.registers[(base + to) as usize][lane] = count.into();
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Formats and keeps a text, with arguments in the memory of a routine. Returns their number.
    fn print(
        &mut self,
        format: u64,
        (arguments, routine): (u64, u32),
        site: u32,
        thread: &ThreadMemory<'_>,
    ) -> Result<u32, Mistake> {
        let format = self.text(format, site, thread)?;
        let buffer = self.buffer(arguments, routine, thread);
        let mut arguments = Arguments { at: arguments, count: 0, site, buffer };
        let mut line = String::new();
        let mut rest = &*format;
        while let Some(start) = rest.find('%') {
            line.push_str(&rest[..start]);
            rest = &rest[start + 1..];
            match Conversion::parse(rest) {
                Some((conversion, behind)) => {
                    rest = behind;
                    self.convert(conversion, &mut arguments, thread, &mut line)?;
                }
                // What C leaves undefined is shown as it is written.
                None => line.push('%'),
            }
        }
        line.push_str(rest);
        // A loop that prints would take hours to get to its last step.
        self.steps += line.len() as u64 / BYTES_A_STEP;
        if self.printed.len() + line.len() <= PRINTED_BYTES_MAX {
            self.printed.push_str(&line);
        }
        Ok(arguments.count)
    }

    fn convert(
        &mut self,
        mut conversion: Conversion,
        arguments: &mut Arguments,
        thread: &ThreadMemory<'_>,
        line: &mut String,
    ) -> Result<(), Mistake> {
        if conversion.kind == '%' {
            line.push('%');
            return Ok(());
        }
        if conversion.width == Size::Argument {
            let width = self.argument(arguments, 4, thread)? as i32;
            conversion.is_left |= width < 0;
            conversion.width = Size::Of(width.unsigned_abs().min(SIZE_MAX));
        }
        if conversion.precision == Size::Argument {
            let precision = self.argument(arguments, 4, thread)? as i32;
            let stated = u32::try_from(precision).map(|precision| Size::Of(precision.min(SIZE_MAX)));
            conversion.precision = stated.unwrap_or(Size::Default);
        }
        let is_wide = conversion.is_wide || "aAeEfFgGsp".contains(conversion.kind);
        let value = self.argument(arguments, if is_wide { 8 } else { 4 }, thread)?;
        let text = match conversion.kind {
            's' if value == 0 => Some("(null)".into()),
            's' => Some(self.text(value, arguments.site, thread)?),
            _ => None,
        };
        line.push_str(&conversion.shown(value, text));
        Ok(())
    }

    /// The mistake of a failed assertion.
    pub(crate) fn failed(
        &mut self,
        assertion: &Assertion,
        value: impl Fn(&Self, Slot) -> u64,
        thread: &ThreadMemory<'_>,
    ) -> Mistake {
        let text = |run: &mut Self, slot| {
            let address = value(run, slot);
            run.text(address, assertion.site, thread).unwrap_or_default()
        };
        Mistake::Assert {
            text: text(self, assertion.text),
            file: text(self, assertion.file),
            function: text(self, assertion.function),
            line: value(self, assertion.line) as u32,
        }
    }

    /// The variable of the frame that has this address.
    fn buffer(&self, address: u64, routine: u32, thread: &ThreadMemory<'_>) -> Option<Range<u64>> {
        let (Memory::Local, address) = by_window(address) else { return None };
        let distance = address.checked_sub(thread.frame)?;
        let variables = &self.program.routines.get(routine as usize)?.variables;
        let variable = variables.iter().find(|variable| variable.contains(&distance))?;
        Some(variable.start + thread.frame..variable.end + thread.frame)
    }

    /// The next argument.
    fn argument(
        &mut self,
        arguments: &mut Arguments,
        bytes: u8,
        thread: &ThreadMemory<'_>,
    ) -> Result<u64, Mistake> {
        let address = arguments.at.wrapping_add(u64::from(bytes) - 1) & !(u64::from(bytes) - 1);
        arguments.at = address.wrapping_add(u64::from(bytes));
        arguments.count += 1;
        if let (Some(buffer), (_, offset_bytes)) = (&arguments.buffer, by_window(address))
            && offset_bytes.saturating_add(bytes.into()) > buffer.end
        {
            return Err(Mistake::OutOfBounds {
                space: "local",
                offset_bytes,
                size_bytes: bytes.into(),
                limit_bytes: buffer.end,
                is_write: false,
            });
        }
        Ok(get(self.cells(&generic(bytes, arguments.site), address, thread, false)?))
    }

    /// The text at an address, up to its zero.
    fn text(&mut self, address: u64, site: u32, thread: &ThreadMemory<'_>) -> Result<String, Mistake> {
        let mut bytes = Vec::new();
        for at in address..address.saturating_add(TEXT_BYTES_MAX) {
            match self.cells(&generic(1, site), at, thread, false)?.first().map_or(0, |cell| cell.get()) {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn generic(bytes: u8, site: u32) -> Access {
    Access {
        space: Memory::Generic,
        at: Slot::Constant(0),
        offset_bytes: 0,
        bytes,
        count: 1,
        site,
        order: Order::default(),
    }
}

/// The arguments of a `printf`, in memory.
struct Arguments {
    at: u64,
    count: u32,
    site: u32,
    /// The variable in local memory that has them.
    buffer: Option<Range<u64>>,
}

/// A width or a precision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Default,
    Of(u32),
    /// An argument has it.
    Argument,
}

/// A part of a format that shows an argument, as C has it.
struct Conversion {
    is_left: bool,
    has_sign: bool,
    has_space: bool,
    is_alternative: bool,
    has_zeros: bool,
    width: Size,
    precision: Size,
    is_wide: bool,
    /// The width of a number that is narrower than `int`; 0 for others.
    narrow_bits: u32,
    kind: char,
}

impl Conversion {
    /// The conversion at the beginning of a text behind `%`, and what follows it.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let flags_end = text.find(|c| !"-+ #0".contains(c))?;
        let (flags, mut rest) = text.split_at(flags_end);
        let width = size(&mut rest);
        let precision = match rest.strip_prefix('.') {
            Some(behind) => {
                rest = behind;
                match size(&mut rest) {
                    Size::Default => Size::Of(0),
                    stated => stated,
                }
            }
            None => Size::Default,
        };
        let length_end = rest.find(|c| !"hlLqjzt".contains(c))?;
        let (length, rest) = rest.split_at(length_end);
        let kind = rest.chars().next().filter(|kind| "%diouxXcspfFeEgGaA".contains(*kind))?;
        let conversion = Self {
            is_left: flags.contains('-'),
            has_sign: flags.contains('+'),
            has_space: flags.contains(' '),
            is_alternative: flags.contains('#'),
            has_zeros: flags.contains('0'),
            width,
            precision,
            is_wide: length.contains(['l', 'q', 'j', 'z', 't']),
            narrow_bits: match length {
                "h" => 16,
                "hh" => 8,
                _ => 0,
            },
            kind,
        };
        Some((conversion, &rest[kind.len_utf8()..]))
    }

    /// The bits of an argument as the conversion shows them; `text` for those of `%s`.
    fn shown(&self, value: u64, text: Option<String>) -> String {
        let precision = match self.precision {
            Size::Of(precision) => Some(precision as usize),
            _ => None,
        };
        let (sign, body, may_have_zeros) = match self.kind {
            's' => {
                let text = text.unwrap_or_default();
                (String::new(), text.chars().take(precision.unwrap_or(usize::MAX)).collect(), false)
            }
            'c' => (String::new(), char::from(value as u8).to_string(), false),
            'p' => (String::new(), format!("{value:#x}"), false),
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
                let (sign, digits) = self.integer(value);
                // A precision of 0 shows no digit of zero.
                let digits = if precision == Some(0) && digits == "0" { String::new() } else { digits };
                let body = format!("{digits:0>width$}", width = precision.unwrap_or(1));
                // The zero that marks an octal number counts as a digit.
                let sign = if self.kind == 'o' && body.starts_with('0') { String::new() } else { sign };
                (sign, body, precision.is_none())
            }
            _ => {
                let value = f64::from_bits(value);
                let sign = self.sign(value.is_sign_negative()).to_string();
                (sign, self.fraction(value.abs(), precision), value.is_finite())
            }
        };
        let width = match self.width {
            Size::Of(width) => width as usize,
            _ => 0,
        };
        let missing = width.saturating_sub(sign.chars().count() + body.chars().count());
        if self.is_left {
            format!("{sign}{body}{:missing$}", "")
        } else if self.has_zeros && may_have_zeros {
            format!("{sign}{:0>missing$}{body}", "")
        } else {
            format!("{:missing$}{sign}{body}", "")
        }
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.has_sign, self.has_space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    /// What comes before the digits, and the digits.
    fn integer(&self, value: u64) -> (String, String) {
        let bits = match (self.is_wide, self.narrow_bits) {
            (true, _) => 64,
            (_, 0) => 32,
            (_, narrow) => narrow,
        };
        let unsigned = value << (64 - bits) >> (64 - bits);
        let signed = ((value << (64 - bits)) as i64) >> (64 - bits);
        let prefix =
            |prefix: &str| if self.is_alternative && unsigned != 0 { prefix } else { "" }.to_string();
        match self.kind {
            'u' => (String::new(), unsigned.to_string()),
            'o' => (prefix("0"), format!("{unsigned:o}")),
            'x' => (prefix("0x"), format!("{unsigned:x}")),
            'X' => (prefix("0X"), format!("{unsigned:X}")),
            _ => (self.sign(signed < 0).to_string(), signed.unsigned_abs().to_string()),
        }
    }

    /// A number that is not negative.
    fn fraction(&self, value: f64, precision: Option<usize>) -> String {
        let shown = if !value.is_finite() {
            if value.is_nan() { "nan" } else { "inf" }.to_string()
        } else {
            match self.kind.to_ascii_lowercase() {
                'f' => self.fixed(value, precision.unwrap_or(6)),
                'e' => self.scientific(value, precision.unwrap_or(6)),
                'a' => hexadecimal(value),
                _ => {
                    let digits = precision.unwrap_or(6).max(1);
                    let exponent = exponent_of(&format!("{value:.*e}", digits - 1)).1;
                    let shown = match usize::try_from(digits as i64 - 1 - i64::from(exponent)) {
                        Ok(behind) if exponent >= -4 => self.fixed(value, behind),
                        _ => self.scientific(value, digits - 1),
                    };
                    if self.is_alternative { shown } else { without_zeros(&shown) }
                }
            }
        };
        if self.kind.is_ascii_uppercase() { shown.to_ascii_uppercase() } else { shown }
    }

    fn fixed(&self, value: f64, precision: usize) -> String {
        let point = if self.is_alternative && precision == 0 { "." } else { "" };
        format!("{value:.precision$}{point}")
    }

    fn scientific(&self, value: f64, precision: usize) -> String {
        let shown = format!("{value:.precision$e}");
        let (digits, exponent) = exponent_of(&shown);
        let point = if self.is_alternative && precision == 0 { "." } else { "" };
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}{point}e{sign}{:02}", exponent.unsigned_abs())
    }
}

/// The size at the beginning of a text, which is moved behind it.
fn size(rest: &mut &str) -> Size {
    if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        return Size::Argument;
    }
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, behind) = rest.split_at(end);
    *rest = behind;
    if digits.is_empty() { Size::Default } else { Size::Of(digits.parse().unwrap_or(SIZE_MAX).min(SIZE_MAX)) }
}

/// The digits and the exponent of a number that Rust has written with an exponent.
fn exponent_of(shown: &str) -> (&str, i32) {
    let (digits, exponent) = shown.split_once('e').unwrap_or((shown, "0"));
    (digits, exponent.parse().unwrap_or(0))
}

/// Without zeros at the end of the fraction, which may be before an exponent.
fn without_zeros(shown: &str) -> String {
    let (digits, exponent) = shown.split_at(shown.find('e').unwrap_or(shown.len()));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{exponent}")
}

/// `%a`, with as many digits as the number has, whatever the precision.
fn hexadecimal(value: f64) -> String {
    const FRACTION_BITS: u32 = 52;
    let (bits, fraction) = (value.to_bits(), value.to_bits() & ((1 << FRACTION_BITS) - 1));
    let (first, exponent) = match (bits >> FRACTION_BITS, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        (exponent, _) => (1, exponent as i64 - 1023),
    };
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{first}{point}{digits}p{exponent:+}")
}

/// The largest width or precision.
const SIZE_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(format: &str, bits: u64) -> String {
        let (conversion, rest) = Conversion::parse(format.strip_prefix('%').unwrap()).unwrap();
        assert_eq!(rest, "");
        conversion.shown(bits, None)
    }

    /// The expected texts are those of `snprintf` of the GNU C library.
    #[test]
    fn conversions_show_what_c_shows() {
        let integers = [
            ("%d", -7_i64, "-7"),
            ("%+5d", 42, "  +42"),
            ("%06d", -42, "-00042"),
            ("%.4d", 7, "0007"),
            ("% d", 3, " 3"),
            ("%u", -1, "4294967295"),
            ("%lld", i64::MIN, "-9223372036854775808"),
            ("%llu", -1, "18446744073709551615"),
            ("%#x", 255, "0xff"),
            ("%08X", 0xbeef, "0000BEEF"),
            ("%#o", 8, "010"),
            ("%#.3o", 8, "010"),
            ("%.0d", 0, ""),
            ("%5.0d", 0, "     "),
            ("%c", 65, "A"),
            ("%hhd", 300, "44"),
            ("%hd", 40_000, "-25536"),
            ("%hhu", -1, "255"),
        ];
        for (format, value, expected) in integers {
            assert_eq!(shown(format, value as u64), expected, "{format}");
        }
        assert_eq!(shown("%-6d", 0), "0     ");
        assert_eq!(shown("%99999d", 1).len(), SIZE_MAX as usize);
        let fractions = [
            ("%f", 1.5, "1.500000"),
            ("%.2f", -0.005, "-0.01"),
            ("%8.3f", 2.71649, "   2.716"),
            ("%010.2f", -1.0, "-000001.00"),
            ("%e", 0.0, "0.000000e+00"),
            ("%.3E", 12345.678, "1.235E+04"),
            ("%g", 0.0, "0"),
            ("%g", 1.0, "1"),
            ("%g", 100000.0, "100000"),
            ("%g", 1e6, "1e+06"),
            ("%g", 0.0001, "0.0001"),
            ("%g", 0.00001234, "1.234e-05"),
            ("%#g", 1.0, "1.00000"),
            ("%.3g", 1234.0, "1.23e+03"),
            ("%G", 1e-10, "1E-10"),
            ("%g", 5e-324, "4.94066e-324"),
            ("%#.0e", 1.0, "1.e+00"),
            ("%.0f", 2.5, "2"),
            ("%f", f64::INFINITY, "inf"),
            ("%05f", f64::NEG_INFINITY, " -inf"),
            ("%a", 1.0, "0x1p+0"),
            ("%a", 0.1, "0x1.999999999999ap-4"),
            ("%A", 10.5, "0X1.5P+3"),
        ];
        for (format, value, expected) in fractions {
            assert_eq!(shown(format, value.to_bits()), expected, "{format}");
        }
        assert_eq!(shown("%-8.1f", 0.25_f64.to_bits()), "0.2     ");
    }

    #[test]
    fn what_is_no_conversion_is_none() {
        for text in ["", "y", "5", "l", "-", ".", "é"] {
            assert!(Conversion::parse(text).is_none(), "{text}");
        }
    }
}
