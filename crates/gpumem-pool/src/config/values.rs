//! Values of single options in text form.

use crate::config::error::beyond_whole;
use crate::config::{BackendKind, Limit};
use core::str::FromStr;
use core::time::Duration;
use gpumem_base::SPLIT_BYTES_MAX_MIN;

/// A parsed value, or the mistake and its position, as far as there is more to say than which values are valid.
type Parsed<T> = Result<T, String>;

fn parsed<T: FromStr>(text: &str, is_valid: impl Fn(&T) -> bool) -> Parsed<T> {
    text.trim().parse().ok().filter(is_valid).ok_or_else(String::new)
}

pub(super) fn limit(text: &str) -> Parsed<Limit> {
    text.trim().parse().map_err(|_| beyond_whole(text).into())
}

pub(crate) fn named<T: FromStr>(text: &str) -> Parsed<T> {
    parsed(text, |_| true)
}

pub(super) fn number(text: &str) -> Parsed<u32> {
    parsed(text, |_| true)
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text.to_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(String::new()),
    }
}

/// The backend for PyTorch's setting that turns caching off.
pub(super) fn no_caching(text: &str) -> Parsed<BackendKind> {
    boolean(text)?.then_some(BackendKind::None).ok_or_else(String::new)
}

pub(super) fn share(text: &str) -> Parsed<f64> {
    parsed(text, |share| *share > 0.0 && *share < 1.0)
}

pub(super) fn fraction(text: &str) -> Parsed<Limit> {
    parsed(text, |share| *share > 0.0 && *share <= 1.0).map(|share: f64| Limit::Percent(100.0 * share))
}

pub(super) fn byte_count(text: &str) -> Parsed<u64> {
    match named(text)? {
        Limit::Bytes(size_bytes) => Ok(size_bytes),
        Limit::Percent(_) | Limit::PercentFree(_) => Err(String::new()),
    }
}

pub(super) fn handle_pages(text: &str) -> Parsed<u32> {
    Ok((byte_count(text)? >> 21).clamp(1, 64) as u32)
}

/// A number of MiB from which segments are not shared, in bytes rounded up to 2 MiB.
pub(super) fn split_bytes(text: &str) -> Parsed<u64> {
    let size_mib = parsed::<u32>(text, |size_mib| u64::from(*size_mib) << 20 >= SPLIT_BYTES_MAX_MIN)?;
    Ok(u64::from(size_mib).next_multiple_of(2) << 20)
}

pub(super) fn milliseconds(text: &str) -> Parsed<Duration> {
    Ok(Duration::from_millis(named(text)?).min(DURATION_MAX))
}

pub(super) fn microseconds(text: &str) -> Parsed<Duration> {
    Ok(Duration::from_micros(named(text)?).min(DURATION_MAX))
}

pub(super) fn divisions(text: &str) -> Parsed<u32> {
    parsed(text, |divisor: &u32| *divisor == 0 || divisor.is_power_of_two() && *divisor <= 64)
}

/// A century: adding it to an `Instant` cannot overflow.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
