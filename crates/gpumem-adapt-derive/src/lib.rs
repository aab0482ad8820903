//! `#[derive(Adapt)]` of `gpumem-adapt`, which re-exports it with the feature `derive`.
//!
//! The macro writes one implementation of `Adapt<To>` for all targets. It replaces the type parameters of the value by those of the
//! result, and requires of each field's type that it becomes the field's type in the result:
//!
//! | parameter | recognised by | in the result |
//! | --- | --- | --- |
//! | a family of arrays | the bound `Storage` | `To::Storage` |
//! | an element type | the bound `Element` or `Numeric` | the type that the element policy of `To` chooses |
//! | any other that a field has | | what it becomes: `<A as Adapt<To>>::Adapted` |
//!
//! A field that is an element itself changes as the elements of arrays do.
//!
//! The documentation of `gpumem_adapt::Adapt` has examples.

#![forbid(unsafe_code)]

mod attributes;
mod expand;
mod fields;
mod parameters;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `Adapt` for a struct or an enum, field by field.
///
/// # On the type
///
/// - `#[adapt(element)]`: the type is plain bytes and stays as it is, and a `Vec` of it becomes an array.
/// - `#[adapt(crate = path)]`: the path of `gpumem-adapt`, if it is neither a dependency nor part of `gpumem`.
///
/// # On a field
///
/// - `#[adapt(skip)]`: the field stays as it is. A copy clones it.
/// - `#[adapt(with = path)]`: the function `path(&field, cx)` returns the new field or an `AdaptError`; `cx` is a `&mut Context<'_, To>`.
///
/// # Limits
///
/// - A field cannot be a reference, except to a `str`, `Path`, `OsStr` or `CStr`: the result has values of its own.
/// - A type that implements `Drop` cannot be taken apart, so it cannot derive `Adapt`.
/// - A field whose type contains the type itself, such as `Vec<Node<S>>` in a tree, is supported; two types that contain each other are
///   not.
#[proc_macro_derive(Adapt, attributes(adapt))]
pub fn adapt(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}
