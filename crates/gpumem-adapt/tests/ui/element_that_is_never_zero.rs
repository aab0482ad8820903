//! Zeroed memory is a valid element.

use gpumem_array::Element;
use std::num::NonZeroU8;

fn hold<T: Element>(_: &[T]) {}

fn main() {
    hold(&[NonZeroU8::MIN]);
}
