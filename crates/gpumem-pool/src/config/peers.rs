//! [`PeerOption`]: the option `peers`.

use core::fmt;
use core::str::FromStr;

/// The other devices that may use a pool's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PeerOption {
    #[default]
    None,
    /// Every device with a link to the pool's device.
    All,
    /// These devices. Each has a link, or the pool cannot be built.
    Ordinals(Vec<u32>),
}

impl PeerOption {
    pub(crate) const FORMS: &'static str = "`none`, `all`, an ordinal (1), or a list of them (`[0,1]`)";
}

impl FromStr for PeerOption {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim().to_lowercase().as_str() {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            text => {
                let list =
                    text.strip_prefix('[').map_or(Some(text), |list| list.strip_suffix(']')).ok_or(())?;
                let ordinals: Result<_, _> = list.split(',').map(|ordinal| ordinal.trim().parse()).collect();
                ordinals.map(Self::Ordinals).map_err(drop)
            }
        }
    }
}

/// Prints a text that parses to an equal value.
impl fmt::Display for PeerOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Ordinals(ordinals) => {
                let list: Vec<String> = ordinals.iter().map(u32::to_string).collect();
                write!(f, "[{}]", list.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PeerOption;

    #[test]
    fn lists_have_brackets_or_none() {
        let list = Ok(PeerOption::Ordinals(vec![0, 2]));
        assert_eq!("[0, 2]".parse(), list);
        assert_eq!("0,2".parse(), list);
        assert_eq!("3".parse(), Ok(PeerOption::Ordinals(vec![3])));
        assert_eq!("ALL".parse(), Ok(PeerOption::All));
        for text in ["", "[]", "[0", "0]", "0,", "-1", "some", "0 1"] {
            assert_eq!(text.parse::<PeerOption>(), Err(()), "{text:?}");
        }
    }
}
