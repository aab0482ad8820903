//! Rules: injected faults. Each call of the driver is compared with all rules; if several make it fail, the first one decides the
//! code.
//!
//! A rule has a call, the occurrences of the call that it applies to, and an effect. The effects, and the behaviour of a correct
//! program:
//!
//! | effect | stands for | a correct program |
//! | --- | --- | --- |
//! | [`Effect::Fail`] | the driver refuses a call | returns the error, keeps its state, and can continue |
//! | [`Effect::TakeMemory`] | another process takes memory | releases its caches and retries, or reports out of memory |
//! | [`Effect::LoseDevice`] | a hardware error | reports the device as lost, frees nothing there, and never waits forever |
//! | [`Effect::Delay`] | a stream falls behind | waits with events or synchronisation |
//!
//! Several rules may apply to one call. Each counts calls on its own, and all effects happen. Probabilities use the seed of the
//! instance, so a failure repeats with its seed, schedule and rules.

use crate::base::random::Random;
use crate::base::symbol::is_revision;
use core::fmt;
use gpumem_sys::env::parse_size;
use gpumem_sys::text::{Shown, debug_is_display};
use gpumem_sys::types::CUresult;

/// An injected fault: the calls that it applies to, and its effect.
///
/// Written `CALL=EFFECT`, `CALL#NTH=EFFECT` (that occurrence only), `CALL#NTH+=EFFECT` (that occurrence and every later
/// one) or `CALL%PROBABILITY=EFFECT`. `CALL` is the name of a function: `cuMemAlloc` matches every revision (`cuMemAlloc_v2`),
/// `cuMemAlloc_v2` only that one, and `cuMemAlloc*` every function whose name begins with it. Effects are `fail:CODE`,
/// `take:BYTES@DEVICE`, `lose@DEVICE`, `lose:CODE@DEVICE` and `delay:OPERATIONS@STREAM`; `@0` may be omitted.
///
/// ```
/// use gpumem_sim::{Effect, Rule};
/// use gpumem_sys::CUresult;
/// use gpumem_sim::SimConfig;
///
/// let rule = Rule::new("cuMemAlloc*", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).nth(3);
/// assert_eq!(rule.to_string(), "cuMemAlloc*#3=fail:CUDA_ERROR_OUT_OF_MEMORY");
/// assert_eq!("cuMemAlloc*#3=fail:2".parse(), Ok(rule.clone()));
/// let driver = gpumem_sim::driver(SimConfig::new().rule(rule))?;
/// # let _ = driver;
/// # Ok::<(), gpumem_sim::SimError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Rule {
    /// The name of a function, or a prefix and a star.
    pub(crate) call: String,
    pub(crate) when: When,
    pub(crate) effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    Always,
    Nth(u64),
    FromNth(u64),
    Chance(f64),
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The call does nothing and returns this code, which is not `CUDA_SUCCESS`.
    Fail(CUresult),
    /// Another process takes this much free memory of a device, or all if less is free. The call continues.
    TakeMemory {
        /// The device.
        device: u32,
        /// The number of bytes.
        size_bytes: u64,
    },
    /// Every call on a context of the device returns this code, from this call on, until the context is destroyed.
    LoseDevice {
        /// The device.
        device: u32,
        /// The returned code.
        code: CUresult,
    },
    /// A stream pauses for this many operations of other streams, as long as other streams have work.
    Delay {
        /// The stream's number in the order of first use, from 1, as findings name it.
        stream_number: u32,
        /// The number of operations.
        step_count: u64,
    },
}

impl Rule {
    /// Creates a rule for every call of a function in any revision, of one revision (`cuMemAlloc_v2`), or, if the name ends in `*`,
    /// of all functions with that prefix. [`driver`](crate::driver) refuses a rule whose name matches no function of the
    /// simulator.
    pub fn new(call: impl Into<String>, effect: Effect) -> Self {
        Self { call: call.into(), when: When::Always, effect }
    }

    /// Restricts the rule to the `nth` of these calls, from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        self.when = When::Nth(nth);
        self
    }

    /// Restricts the rule to the `nth` of these calls, from 1, and every later one.
    ///
    /// ```
    /// # use gpumem_sys::CUresult;
    /// # use gpumem_sim::{Effect, Rule};
    /// let rule = Rule::new("cuMemAlloc", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).from_nth(3);
    /// assert_eq!("cuMemAlloc#3+=fail:OUT_OF_MEMORY".parse(), Ok(rule));
    /// ```
    pub fn from_nth(mut self, nth: u64) -> Self {
        self.when = When::FromNth(nth);
        self
    }

    /// Applies the rule to each of these calls with a probability from 0 to 1.
    pub fn chance(mut self, probability: f64) -> Self {
        self.when = When::Chance(probability);
        self
    }

    pub(crate) fn names(&self, call: &str) -> bool {
        match self.call.strip_suffix('*') {
            Some(beginning) => call.starts_with(beginning),
            None => is_revision(call, &self.call),
        }
    }

    /// Parses several rules, in the syntax of `GPUMEM_SIM_RULES`.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, RuleError> {
        text.split(';').map(str::parse).collect()
    }
}

/// A rule is malformed or can never apply.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The text is not a rule.
    #[error(
        "invalid rule {:?}; expected CALL=EFFECT, CALL#3=EFFECT (the third call), CALL#3+=EFFECT (from the third on) or CALL%0.01=EFFECT, where EFFECT is fail:CODE, take:SIZE@DEVICE, lose@DEVICE or delay:OPERATIONS@STREAM",
        Shown::sentence(.rule)
    )]
    Malformed {
        /// The text.
        rule: String,
    },
    /// No function of the driver has this name.
    #[error("unknown function {} in a rule{}", Shown::name(.call), did_you_mean(.nearest))]
    UnknownCall {
        /// The name.
        call: String,
        /// A known name with a similar spelling.
        nearest: Option<String>,
    },
    /// The simulator lacks the function.
    #[error("the simulator has no {}, so its rule can never apply; remove the rule", Shown::name(.call))]
    LackingCall {
        /// The name.
        call: String,
    },
    /// The rule is for call 0; calls are counted from 1.
    #[error("the rule for {} is for call 0; calls are counted from 1, so use #1 for the first", Shown::name(.call))]
    ZerothCall {
        /// The name.
        call: String,
    },
    /// The code of the rule is `CUDA_SUCCESS`, so the caller could not detect that the call did nothing.
    #[error("the rule for {} fails with CUDA_SUCCESS, which is not an error; use another code", Shown::name(.call))]
    NoFailure {
        /// The name.
        call: String,
    },
    /// The probability is not between 0 and 1.
    #[error("the probability of the rule for {} is out of range; use a number from 0 to 1", Shown::name(.call))]
    BadChance {
        /// The name.
        call: String,
    },
    /// The device does not exist.
    #[error(
        "the rule for {} is for device {device}, but the simulator has {count}; use a device below {count}, or set GPUMEM_SIM_DEVICES",
        Shown::name(.call)
    )]
    UnknownDevice {
        /// The name.
        call: String,
        /// The device.
        device: u32,
        /// The number of devices.
        count: u32,
    },
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean {}?", Shown::name(name))).unwrap_or_default()
}

debug_is_display!(RuleError);

/// The rules of an instance, each with the number of matching calls so far.
pub(crate) struct Rules {
    pub(crate) rules: Vec<(Rule, u64)>,
    random: Random,
}

impl Rules {
    pub(crate) fn new(rules: &[Rule], seed: u64) -> Self {
        let rules = rules.iter().map(|rule| (rule.clone(), 0)).collect();
        Self { rules, random: Random::new(seed ^ OTHER_CHANCE) }
    }

    /// The effects at this call.
    pub(crate) fn effects(&mut self, call: &str) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (rule, seen_count) in self.rules.iter_mut().filter(|(rule, _)| rule.names(call)) {
            *seen_count += 1;
            let is_meant = match rule.when {
                When::Always => true,
                When::Nth(nth) => *seen_count == nth,
                When::FromNth(nth) => *seen_count >= nth,
                When::Chance(probability) => self.random.fraction() < probability,
            };
            if is_meant {
                effects.push(rule.effect);
            }
        }
        effects
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown::name(&self.call).fmt(f)?;
        match self.when {
            When::Always => {}
            When::Nth(nth) => write!(f, "#{nth}")?,
            When::FromNth(nth) => write!(f, "#{nth}+")?,
            When::Chance(probability) => write!(f, "%{probability}")?,
        }
        let name = |code: CUresult| code.name().map_or_else(|| code.0.to_string(), str::to_string);
        match self.effect {
            Effect::Fail(code) => write!(f, "=fail:{}", name(code)),
            Effect::TakeMemory { device, size_bytes } => write!(f, "=take:{size_bytes}@{device}"),
            Effect::LoseDevice { device, code } => write!(f, "=lose:{}@{device}", name(code)),
            Effect::Delay { stream_number, step_count } => write!(f, "=delay:{step_count}@{stream_number}"),
        }
    }
}

pub(crate) fn parse(text: &str) -> Option<Rule> {
    let (call, effect) = text.split_once('=')?;
    let (call, when) = match (call.split_once('#'), call.split_once('%')) {
        (Some((call, nth)), _) => (call, parse_nth(nth)?),
        (_, Some((call, chance))) => {
            let chance = chance.parse().ok().filter(|chance| (0.0..=1.0).contains(chance))?;
            (call, When::Chance(chance))
        }
        _ => (call, When::Always),
    };
    let is_name =
        call.strip_suffix('*').unwrap_or(call).chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let rule = Rule { call: call.to_string(), when, effect: parse_effect(effect)? };
    (is_name && !call.is_empty()).then_some(rule)
}

fn parse_nth(text: &str) -> Option<When> {
    match text.strip_suffix('+') {
        Some(nth) => Some(When::FromNth(nth.parse().ok()?)),
        None => Some(When::Nth(text.parse().ok()?)),
    }
}

fn parse_effect(text: &str) -> Option<Effect> {
    let (text, place) = match text.split_once('@') {
        Some((text, place)) => (text, place.parse().ok()?),
        None => (text, 0),
    };
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    match (kind.to_lowercase().as_str(), value) {
        ("fail", code) => Some(Effect::Fail(parse_code(code)?)),
        ("take", size) => Some(Effect::TakeMemory { device: place, size_bytes: parse_size(size)? }),
        ("lose", "") => {
            Some(Effect::LoseDevice { device: place, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE })
        }
        ("lose", code) => Some(Effect::LoseDevice { device: place, code: parse_code(code)? }),
        ("delay", count) => Some(Effect::Delay { stream_number: place, step_count: count.parse().ok()? }),
        _ => None,
    }
}

/// A number, or a name with or without `CUDA_ERROR_`.
fn parse_code(text: &str) -> Option<CUresult> {
    if let Ok(number) = text.parse() {
        return Some(CUresult(number));
    }
    let text = text.to_uppercase();
    let is_meant = |name: &str| name == text || name.strip_prefix("CUDA_ERROR_") == Some(&*text);
    CUresult::NAMES.iter().find(|(_, name)| is_meant(name)).map(|(code, _)| *code)
}

/// Separates the random numbers of rules from those of the schedule.
const OTHER_CHANCE: u64 = 0x5DEE_CE66_D1CE_4E5B;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_they_are_written() {
        let text = "cuMemAlloc_v2#3=fail:CUDA_ERROR_OUT_OF_MEMORY;*%0.25=take:4096@1;\
                    cuLaunchKernel=lose:CUDA_ERROR_LAUNCH_FAILED@0;cuStream*#1=delay:100@2;\
                    cuMemAlloc#3+=fail:CUDA_ERROR_OUT_OF_MEMORY";
        let rules = Rule::parse_list(text).unwrap();
        let shown: Vec<String> = rules.iter().map(Rule::to_string).collect();
        assert_eq!(shown.join(";"), text);
        assert_eq!("cuInit=fail:OUT_OF_MEMORY".parse::<Rule>(), "cuInit=fail:2".parse());
        assert_eq!("cuInit=Fail:out_of_memory".parse::<Rule>(), "cuInit=fail:2".parse());
        assert_eq!("cuInit=lose".parse::<Rule>(), "cuInit=lose:214@0".parse());
        assert_eq!("cuInit=take:1KiB".parse::<Rule>(), "cuInit=take:1024@0".parse());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in [
            "",
            "cuInit",
            "cuInit=",
            "cuInit=fail",
            "cuInit=fail:WHATEVER",
            "cuInit#a=fail:2",
            "cuInit#+=fail:2",
            "cuInit%2=fail:2",
            "=fail:2",
            "a b=fail:2",
        ] {
            assert_eq!(bad.parse::<Rule>(), Err(RuleError::Malformed { rule: bad.into() }));
        }
    }

    #[test]
    fn a_rule_that_could_never_apply_is_refused_with_the_name_that_was_meant() {
        let text = |rule: &str| rule.parse::<Rule>().unwrap_err().to_string();
        for (wrong, meant) in [
            ("cuMemAloc=fail:2", "cuMemAlloc"),
            ("cuMemAloc*=fail:2", "cuMemAlloc*"),
            ("cuMemAlloc_v3=fail:2", "cuMemAlloc_v2"),
            ("cumemalloc=fail:2", "cuMemAlloc"),
            ("cuGrph*=fail:2", "cuGraph*"),
            ("MemFree=fail:2", "cuMemFree"),
        ] {
            assert!(text(wrong).ends_with(&format!("did you mean {meant}?")), "{}", text(wrong));
        }
        assert!(!text("cuCoffeeMachineStart=fail:2").contains("did you mean"));
        assert!(text("cuArrayCreate=fail:2").contains("simulator has no cuArrayCreate"));
        assert!(text("cuInit#0=fail:2").contains("counted from 1"));
        assert!(
            text("cuInit=fail:0").contains("not an error") && text("cuInit=lose:0").contains("not an error")
        );
        assert!(text("cuInit#0+=fail:2").contains("counted from 1"));
    }

    #[test]
    fn a_plain_name_means_every_revision_and_a_revision_only_itself() {
        let codes = |rule: &str| {
            let mut rules = Rules::new(&[rule.parse().unwrap()], 0);
            ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAdvise", "cuMemAdvise_v2"]
                .map(|call| !rules.effects(call).is_empty())
        };
        assert_eq!(codes("cuMemAlloc=fail:2"), [true, false, false, false]);
        assert_eq!(codes("cuMemAlloc_v2=fail:2"), [true, false, false, false]);
        assert_eq!(codes("cuMemAlloc*=fail:2"), [true, true, false, false]);
        assert_eq!(codes("cuMemAdvise=fail:2"), [false, false, true, true]);
        assert_eq!(codes("cuMemAdvise_v2=fail:2"), [false, false, false, true]);
    }

    #[test]
    fn from_the_nth_on_means_every_later_call() {
        let mut rules = Rules::new(&["cuInit#3+=fail:2".parse().unwrap()], 0);
        let fails = [(); 5].map(|()| !rules.effects("cuInit").is_empty());
        assert_eq!(fails, [false, false, true, true, true]);
    }

    #[test]
    fn each_rule_counts_for_itself() {
        let fail = |call, code| Rule::new(call, Effect::Fail(CUresult(code)));
        let list = [fail("a*", 1).nth(2), fail("ab", 2).nth(1), fail("*", 3)];
        let mut rules = Rules::new(&list, 0);
        let mut codes = |call| {
            let code = |effect| match effect {
                Effect::Fail(code) => code.0,
                other => panic!("{other:?}"),
            };
            rules.effects(call).into_iter().map(code).collect::<Vec<_>>()
        };
        assert_eq!(
            [codes("a"), codes("ab"), codes("ab"), codes("b")],
            [vec![3], vec![1, 2, 3], vec![3], vec![3]]
        );
    }
}
