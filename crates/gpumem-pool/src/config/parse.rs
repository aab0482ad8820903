//! Options in text form: `key:value,…`.

#[cfg(test)]
mod tests;

use crate::config::ConfigError;
use crate::config::options::{KEYS, Key, Options};
use gpumem_sys::env;

impl Options {
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for item in items(text).map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = read(item)?;
            if let Some(other) = (key.given)(&options) {
                return Err(ConfigError::Twice { key: key.name, other });
            }
            key.set(&mut options, value, key.name)?;
        }
        Ok(options)
    }
}

impl Key {
    /// Sets the option to a value in text form, given under the name of a key or variable.
    pub(crate) fn set(
        &self,
        options: &mut Options,
        value: &str,
        given_as: &'static str,
    ) -> Result<(), ConfigError> {
        (self.set)(options, value, given_as)
            .map_err(|place| ConfigError::bad_value(self.name, value, place, self.expected))
    }
}

/// Splits at the commas outside lists.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut is_in_list = false;
    text.split(move |letter| {
        is_in_list = letter == '[' || is_in_list && letter != ']';
        letter == ',' && !is_in_list
    })
}

fn read(item: &str) -> Result<(&'static Key, &str), ConfigError> {
    let (name, value) = item.split_once(':').ok_or_else(|| ConfigError::NoValue { item: item.into() })?;
    let name = name.trim().to_lowercase();
    let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let nearest = env::nearest_of(&name, KEYS.iter().map(|key| key.name));
        ConfigError::UnknownKey { key: name, nearest, known: KEYS.iter().map(|key| key.name).collect() }
    })?;
    Ok((key, value.trim()))
}
