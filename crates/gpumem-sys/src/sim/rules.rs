//! Rules: faults on purpose. Every call of the driver is offered to the rules; the first verdict wins.
//!
//! A rule names a call, says which of its occurrences it means, and what happens then. Each effect, and what a correct
//! program makes of it:
//!
//! | effect | stands for | a correct program |
//! | --- | --- | --- |
//! | [`Effect::Fail`] | the driver refuses, now | hands the error on, keeps what it had, and can go on afterwards |
//! | [`Effect::TakeMemory`] | another process takes memory | gives back what it caches and retries, or reports out of memory |
//! | [`Effect::LoseDevice`] | an error of the hardware | reports the device as lost, frees nothing there, never waits for ever |
//! | [`Effect::Delay`] | a stream falls behind | waits with events or synchronisation, never with luck |
//!
//! Rules compose: several may meet one call, each counts for itself, and all their effects happen. Chance comes from
//! the instance's seed, so a failure repeats with seed, schedule and rules.

use super::execute::Fault;
use super::finding::FaultKind;
use super::machine::Machine;
use super::random::Random;
use crate::generated::codes::NAMES;
use crate::types::CUresult;
use bytesize::ByteSize;
use core::fmt;
use core::str::FromStr;

/// A fault on purpose: which calls it means, and what happens to them.
///
/// ```
/// use gpumem_sys::sim::{Effect, Rule};
/// use gpumem_sys::{CUresult, Driver, SimConfig};
///
/// let rule = Rule::new("cuMemAlloc*", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).nth(3);
/// assert_eq!(rule.to_string(), "cuMemAlloc*#3=fail:CUDA_ERROR_OUT_OF_MEMORY");
/// assert_eq!("cuMemAlloc*#3=fail:2".parse(), Ok(rule.clone()));
/// let driver = Driver::sim(SimConfig::new().rule(rule))?;
/// # let _ = driver;
/// # Ok::<(), gpumem_sys::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Rule {
    /// A function's name, or the beginning of one and a star.
    call: String,
    when: When,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Always,
    Nth(u64),
    Chance(f64),
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The call does nothing and answers this.
    Fail(CUresult),
    /// So much of a device's free memory is gone, or all that is free if it is less. The call goes on.
    TakeMemory {
        /// The device.
        device: u32,
        /// The number of bytes.
        size_bytes: u64,
    },
    /// Every context of a device answers this from now on, this call included, until it is destroyed.
    LoseDevice {
        /// The device.
        device: u32,
        /// What it answers.
        code: CUresult,
    },
    /// A stream does not run while others have something to do, for so many of their operations.
    Delay {
        /// The stream's number in the order of first use, from 1, as findings name it.
        stream_number: u32,
        /// The number of operations.
        step_count: u64,
    },
}

impl Rule {
    /// A rule about every call of a function, or, where the name ends in `*`, of all that begin like it.
    pub fn new(call: impl Into<String>, effect: Effect) -> Self {
        Self { call: call.into(), when: When::Always, effect }
    }

    /// Only the `nth` of these calls, from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        self.when = When::Nth(nth);
        self
    }

    /// Each of these calls with this probability, from 0 to 1.
    pub fn chance(mut self, probability: f64) -> Self {
        self.when = When::Chance(probability);
        self
    }

    fn names(&self, call: &str) -> bool {
        match self.call.strip_suffix('*') {
            Some(beginning) => call.starts_with(beginning),
            None => self.call == call,
        }
    }

    /// Several rules, as `GPUMEM_SIM_RULES` has them.
    pub(super) fn parse_list(text: &str) -> Option<Vec<Self>> {
        text.split(';').map(|rule| rule.parse().ok()).collect()
    }
}

/// The rules of an instance, and how far each has counted.
pub(super) struct Rules {
    rules: Vec<(Rule, u64)>,
    random: Random,
}

impl Rules {
    pub(super) fn new(rules: &[Rule], seed: u64) -> Self {
        let rules = rules.iter().map(|rule| (rule.clone(), 0)).collect();
        Self { rules, random: Random::new(seed ^ OTHER_CHANCE) }
    }

    /// What happens at this call.
    fn effects(&mut self, call: &str) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (rule, seen_count) in self.rules.iter_mut().filter(|(rule, _)| rule.names(call)) {
            *seen_count += 1;
            let is_meant = match rule.when {
                When::Always => true,
                When::Nth(nth) => *seen_count == nth,
                When::Chance(probability) => self.random.fraction() < probability,
            };
            if is_meant {
                effects.push(rule.effect);
            }
        }
        effects
    }
}

impl Machine {
    /// Offers a call to the rules. What it answers instead of doing anything, if one says so.
    pub(super) fn offer(&mut self, call: &str) -> Option<CUresult> {
        if self.rules.rules.is_empty() {
            return None;
        }
        let mut verdict = None;
        for effect in self.rules.effects(call) {
            match effect {
                Effect::Fail(code) => verdict = verdict.or(Some(code)),
                Effect::TakeMemory { device, size_bytes } => _ = self.take_memory(device, size_bytes),
                Effect::LoseDevice { device, code } => self.lose_device(device, code),
                Effect::Delay { stream_number, step_count } => {
                    self.schedule.delay(stream_number, step_count);
                }
            }
        }
        verdict
    }

    fn lose_device(&mut self, device: u32, code: CUresult) {
        for context in self.contexts.values_mut().filter(|context| context.device == device as usize) {
            context.error = context.error.or(Some(code));
        }
        let text = format!("a rule took device {device} away");
        self.note_fault(Fault { kind: FaultKind::DeviceLost, code, text, allocation: None });
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call)?;
        match self.when {
            When::Always => {}
            When::Nth(nth) => write!(f, "#{nth}")?,
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

/// `CALL=EFFECT`, `CALL#NTH=EFFECT` or `CALL%PROBABILITY=EFFECT`; effects are `fail:CODE`, `take:BYTES@DEVICE`,
/// `lose@DEVICE`, `lose:CODE@DEVICE` and `delay:OPERATIONS@STREAM`. `@0` may be left out.
impl FromStr for Rule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        parse(text.trim()).ok_or(())
    }
}

fn parse(text: &str) -> Option<Rule> {
    let (call, effect) = text.split_once('=')?;
    let (call, when) = match (call.split_once('#'), call.split_once('%')) {
        (Some((call, nth)), _) => (call, When::Nth(nth.parse().ok()?)),
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

fn parse_effect(text: &str) -> Option<Effect> {
    let (text, place) = match text.split_once('@') {
        Some((text, place)) => (text, place.parse().ok()?),
        None => (text, 0),
    };
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    match (kind, value) {
        ("fail", code) => Some(Effect::Fail(parse_code(code)?)),
        ("take", size) => {
            let size_bytes = size.parse::<ByteSize>().ok()?.as_u64();
            Some(Effect::TakeMemory { device: place, size_bytes })
        }
        ("lose", "") => {
            Some(Effect::LoseDevice { device: place, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE })
        }
        ("lose", code) => Some(Effect::LoseDevice { device: place, code: parse_code(code)? }),
        ("delay", count) => Some(Effect::Delay { stream_number: place, step_count: count.parse().ok()? }),
        _ => None,
    }
}

/// A number, or a name with or without what all names begin with.
fn parse_code(text: &str) -> Option<CUresult> {
    if let Ok(number) = text.parse() {
        return Some(CUresult(number));
    }
    let is_meant = |name: &str| name == text || name.strip_prefix("CUDA_ERROR_") == Some(text);
    NAMES.iter().find(|(_, name)| is_meant(name)).map(|(code, _)| *code)
}

/// Makes the rules' numbers others than the schedule's.
const OTHER_CHANCE: u64 = 0x5DEE_CE66_D1CE_4E5B;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_they_are_written() {
        let text = "cuMemAlloc_v2#3=fail:CUDA_ERROR_OUT_OF_MEMORY;*%0.25=take:4096@1;\
                    cuLaunchKernel=lose:CUDA_ERROR_LAUNCH_FAILED@0;cuStream*#1=delay:100@2";
        let rules = Rule::parse_list(text).unwrap();
        let shown: Vec<String> = rules.iter().map(Rule::to_string).collect();
        assert_eq!(shown.join(";"), text);
        assert_eq!("x=fail:OUT_OF_MEMORY".parse::<Rule>(), "x=fail:2".parse());
        assert_eq!("x=lose".parse::<Rule>(), "x=lose:214@0".parse());
        assert_eq!("x=take:1KiB".parse::<Rule>(), "x=take:1024@0".parse());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in
            ["", "x", "x=", "x=fail", "x=fail:WHATEVER", "x#a=fail:2", "x%2=fail:2", "=fail:2", "a b=fail:2"]
        {
            assert_eq!(bad.parse::<Rule>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn each_rule_counts_for_itself() {
        let list = Rule::parse_list("a*#2=fail:1;ab#1=fail:2;*=fail:3").unwrap();
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
