//! The attribute `#[adapt(…)]` of types and fields.

use syn::{Attribute, Error, Path, Result, Token};

/// The options that `#[adapt(…)]` sets for a type.
#[derive(Default)]
pub(crate) struct OfType {
    pub(crate) krate: Option<Path>,
    pub(crate) is_element: bool,
}

/// The option that `#[adapt(…)]` sets for a field.
#[derive(Default)]
pub(crate) enum OfField {
    #[default]
    Adapt,
    Skip,
    With(Path),
}

impl OfType {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("adapt")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("element") {
                    found.is_element = true;
                } else if meta.path.is_ident("crate") {
                    meta.input.parse::<Token![=]>()?;
                    found.krate = Some(meta.input.call(Path::parse_mod_style)?);
                } else {
                    return Err(meta.error("unknown option of a type; expected `element` or `crate = path`"));
                }
                Ok(())
            })?;
        }
        Ok(found)
    }
}

impl OfField {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("adapt")) {
            attribute.parse_nested_meta(|meta| {
                let option = if meta.path.is_ident("skip") {
                    Self::Skip
                } else if meta.path.is_ident("with") {
                    meta.input.parse::<Token![=]>()?;
                    Self::With(meta.input.parse()?)
                } else {
                    return Err(meta.error("unknown option of a field; expected `skip` or `with = path`"));
                };
                if !matches!(found, Self::Adapt) {
                    return Err(meta.error("a field has one option: `skip`, or `with = path`"));
                }
                found = option;
                Ok(())
            })?;
        }
        Ok(found)
    }
}

/// Variants have no options.
pub(crate) fn refuse(attributes: &[Attribute]) -> Result<()> {
    match attributes.iter().find(|attribute| attribute.path().is_ident("adapt")) {
        Some(attribute) => {
            Err(Error::new_spanned(attribute, "a variant has no options; give them to its fields"))
        }
        None => Ok(()),
    }
}
