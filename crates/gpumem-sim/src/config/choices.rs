//! Schedules, and the choices that a schedule made.
//!
//! There is a choice if several operations could run next, or if a call could return before any runs. Under
//! [`Schedule::Choices`] a list gives the alternative to take at each choice, and each choice is recorded with the number of its
//! alternatives. A caller that counts such a list up, digit by digit, runs a program under every possible schedule. This is
//! feasible for small programs only: two streams with three operations each, under six calls, have hundreds of schedules.

use core::fmt;
use core::str::FromStr;

/// The order in which queued work runs, among those that streams and events allow.
///
/// ```
/// use gpumem_sim::{Schedule, SimConfig};
///
/// let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late))?;
/// assert_eq!("0.2.1".parse(), Ok(Schedule::Choices(vec![0, 2, 1])));
/// # let _ = driver;
/// # Ok::<(), gpumem_sim::SimError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// An order drawn from the seed.
    #[default]
    Random,
    /// As late as possible: work runs only when a call waits, and only as much as the wait needs.
    Late,
    /// As early as possible: work has run when the call that queued it returns.
    Early,
    /// The given choices in order, and 0 after the end of the list.
    Choices(Vec<u32>),
}

/// One choice of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The alternative taken, from 0.
    pub taken: u32,
    /// The number of alternatives, at least 2.
    pub count: u32,
}

impl Schedule {
    /// The schedule after the one that made these choices, in an order that visits every schedule; `None` after the last.
    #[must_use]
    pub fn next(choices: &[Choice]) -> Option<Self> {
        let last = choices.iter().rposition(|choice| choice.taken + 1 < choice.count)?;
        let mut list: Vec<u32> = choices[..=last].iter().map(|choice| choice.taken).collect();
        list[last] += 1;
        Some(Self::Choices(list))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Late => f.write_str("late"),
            Self::Early => f.write_str("early"),
            Self::Choices(list) if list.is_empty() => f.write_str("0"),
            Self::Choices(list) => {
                let list: Vec<String> = list.iter().map(u32::to_string).collect();
                f.write_str(&list.join("."))
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim().to_lowercase().as_str() {
            "random" => Ok(Self::Random),
            "late" => Ok(Self::Late),
            "early" => Ok(Self::Early),
            list => list
                .split('.')
                .map(|choice| choice.parse().map_err(drop))
                .collect::<Result<_, _>>()
                .map(Self::Choices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_read_as_they_are_written() {
        for schedule in [Schedule::Random, Schedule::Late, Schedule::Early, Schedule::Choices(vec![0, 12, 3])]
        {
            assert_eq!(schedule.to_string().to_uppercase().parse(), Ok(schedule.clone()));
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        assert_eq!(Schedule::Choices(vec![]).to_string(), "0");
        for bad in ["", "sometimes", "1.-2", "1."] {
            assert_eq!(bad.parse::<Schedule>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn counting_up_ends() {
        let choice = |taken, count| Choice { taken, count };
        let list = |list: &[u32]| Some(Schedule::Choices(list.to_vec()));
        assert_eq!(Schedule::next(&[choice(0, 2), choice(0, 3)]), list(&[0, 1]));
        assert_eq!(Schedule::next(&[choice(0, 2), choice(2, 3)]), list(&[1]));
        assert_eq!(Schedule::next(&[choice(1, 2), choice(2, 3)]), None);
    }
}
