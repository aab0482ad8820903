//! `Adapt` for arrays on the host and on devices. [`Receive`] decides what they become.

use crate::adapt::{Adapt, Separate};
use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::storage::Storable;
use crate::target::Receive;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{ArrayBase, Data, Dimension};
use gpumem_array::{Element, GpuArray, GpuView};

impl<To, T, S, D> Adapt<To> for ArrayBase<S, D>
where
    To: Receive<T, D>,
    T: Storable,
    S: Data<Elem = T>,
    D: Dimension + 'static,
{
    type Adapted = To::Array;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::copy_from_host(self.view(), cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        match cx.to().gpu() {
            Some(_) => To::copy_from_host(self.view(), cx),
            None => To::take_from_host(self.into_owned(), cx),
        }
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        To::plan_upload(self.view(), plan);
    }

    fn is_at(&self, to: &To) -> bool {
        To::keeps() && to.gpu().is_none()
    }
}

impl<To, T, D, K> Adapt<To> for GpuArray<T, D, K>
where
    To: Receive<T, D>,
    T: Element,
    D: Dimension + 'static,
    K: Kind,
{
    type Adapted = To::Array;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::copy_from_gpu(self.view(), cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::take_from_gpu(self, cx)
    }

    fn is_at(&self, to: &To) -> bool {
        To::keeps() && to.gpu().is_some_and(|gpu| gpu.device() == self.gpu().device())
    }
}

impl<To, T, D> Adapt<To> for GpuView<'_, T, D>
where
    To: Receive<T, D>,
    T: Element,
    D: Dimension + 'static,
{
    type Adapted = To::Array;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::copy_from_gpu(self.view(), cx)
    }
}
