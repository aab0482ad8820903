//! Refuses rules that can never apply: the call of a rule must be a function that the simulator has.

use crate::base::symbol::plain_name;
use crate::config::rules::{Effect, Rule, RuleError, When, parse};
use crate::entry;
use core::str::FromStr;
use gpumem_sys::Table;
use gpumem_sys::env::nearest_of;
use gpumem_sys::types::CUresult;
use std::sync::OnceLock;

impl Rule {
    /// Refuses a rule that can never apply.
    fn check(&self) -> Result<(), RuleError> {
        match self.when {
            When::Nth(0) | When::FromNth(0) => return Err(RuleError::ZerothCall { call: self.call.clone() }),
            When::Chance(probability) if !(0.0..=1.0).contains(&probability) => {
                return Err(RuleError::BadChance { call: self.call.clone() });
            }
            _ => {}
        }
        if let Effect::Fail(CUresult::CUDA_SUCCESS)
        | Effect::LoseDevice { code: CUresult::CUDA_SUCCESS, .. } = self.effect
        {
            return Err(RuleError::NoFailure { call: self.call.clone() });
        }
        if calls().iter().any(|call| self.names(call)) {
            return Ok(());
        }
        let is_lacking = Table::SYMBOLS.iter().any(|symbol| self.names(symbol.name));
        let (call, nearest) = (self.call.clone(), self.nearest());
        Err(if is_lacking {
            RuleError::LackingCall { call }
        } else {
            RuleError::UnknownCall { call, nearest }
        })
    }

    /// The most similar known name, star included.
    fn nearest(&self) -> Option<String> {
        match self.call.strip_suffix('*') {
            None => nearest_of(&self.call, calls().iter().flat_map(|call| [plain_name(call), call]))
                .map(str::to_string),
            Some(beginning) => {
                let len = beginning.len();
                let beginnings = calls()
                    .iter()
                    .flat_map(|call| [len, len + 1, len.saturating_sub(1)].map(|len| call.get(..len)))
                    .flatten();
                nearest_of(beginning, beginnings).map(|nearest| format!("{nearest}*"))
            }
        }
    }
}

/// The functions that the simulator supports.
fn calls() -> &'static [&'static str] {
    static CALLS: OnceLock<Vec<&'static str>> = OnceLock::new();
    CALLS.get_or_init(|| entry::table::<0>().present().map(|symbol| symbol.name).collect())
}

/// Refuses rules that can never apply to a machine with this many devices.
pub(crate) fn check_all(rules: &[Rule], device_count: u32) -> Result<(), RuleError> {
    for rule in rules {
        rule.check()?;
        if let Effect::TakeMemory { device, .. } | Effect::LoseDevice { device, .. } = rule.effect
            && device >= device_count
        {
            let call = rule.call.clone();
            return Err(RuleError::UnknownDevice { call, device, count: device_count });
        }
    }
    Ok(())
}

impl FromStr for Rule {
    type Err = RuleError;

    /// Reads a rule as [`Rule`] describes it.
    ///
    /// # Errors
    ///
    /// [`RuleError::Malformed`] for text of another form; [`RuleError::UnknownCall`], [`RuleError::LackingCall`] and
    /// [`RuleError::ZerothCall`] for a rule that can never apply; [`RuleError::NoFailure`] for one that fails with success.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let rule =
            parse(text.trim()).ok_or_else(|| RuleError::Malformed { rule: text.trim().to_string() })?;
        rule.check()?;
        Ok(rule)
    }
}
