//! Items that the code of `#[derive(Adapt)]` uses beyond the public ones: checks that name the field at fault.

use crate::adapt::Adapt;
use gpumem_array::Gpu;

/// Fails to compile unless a field of type `F` becomes one of type `G` on a GPU.
pub fn field<F, G>()
where
    F: Adapt<Gpu>,
    F::Adapted: Becomes<G>,
{
}

/// Implemented by every type for itself.
#[diagnostic::on_unimplemented(
    message = "this field becomes `{Self}` on a GPU, and its type there is `{G}`",
    label = "`{G}` cannot hold what this field becomes",
    note = "make the type generic over its storage, and the field an `S::Array<f32, Ix2>` or a type that contains one",
    note = "a field that stays on the host has `#[adapt(skip)]`"
)]
pub trait Becomes<G> {}

impl<G> Becomes<G> for G {}
