//! The output of `cargo xtask bindgen` for `cuda.h`: types, the list of functions, the names of result codes.

pub(crate) mod codes;
mod functions;
// As it was generated, or `cargo xtask bindgen --check` would see a difference.
#[rustfmt::skip]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unpredictable_function_pointer_comparisons,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
pub mod types;
