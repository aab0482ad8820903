//! Element-wise `+ - * /` of two arrays, and of an array and a number.
//!
//! Results belong to the `Gpu` of the left operand. Operands are broadcast. An operand with a single element is not copied, so a sum can be
//! used without a download.

use crate::array::{GpuArray, GpuCow, GpuView, GpuViewMut, readers, writers};
use crate::copy::copy;
use crate::element::{Element, Numeric, NumericType};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::table::Kernel;
use crate::kind::Kind;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::blocks;
use crate::ops::operand::{Operand, OperandSource};
use crate::storage::Use;
use ndarray::Dimension;

/// One of the four operations, with its kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    name: &'static str,
    arrays: fn(NumericType) -> Kernel,
    scalar_right: fn(NumericType) -> Kernel,
    /// `None` if the operation is commutative.
    scalar_left: Option<fn(NumericType) -> Kernel>,
}

pub(crate) const ADD: Operation =
    Operation { name: "add", arrays: Kernel::Add, scalar_right: Kernel::AddScalar, scalar_left: None };
pub(crate) const SUB: Operation = Operation {
    name: "sub",
    arrays: Kernel::Sub,
    scalar_right: Kernel::SubScalar,
    scalar_left: Some(Kernel::ScalarSub),
};
pub(crate) const MUL: Operation =
    Operation { name: "mul", arrays: Kernel::Mul, scalar_right: Kernel::MulScalar, scalar_left: None };
pub(crate) const DIV: Operation = Operation {
    name: "div",
    arrays: Kernel::Div,
    scalar_right: Kernel::DivScalar,
    scalar_left: Some(Kernel::ScalarDiv),
};

macro_rules! methods {
    ($($operation:ident $symbol:literal: $try:ident $assign:ident, $result:literal;)*) => {
        readers! {
            Numeric;

            $(
                #[doc = concat!("`self ", $symbol, " other`, element by element, in device memory. Either operand is broadcast: missing")]
                /// axes are added at the front of `other`, axes of length 1 are repeated, and one element is repeated for any shape.
                /// Operands that are not contiguous in the order of the result are copied first.
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let x = GpuArray::from_slice(&gpu, &[6, 8])?;
                /// let y = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("assert_eq!(x.", stringify!($try), "(&y)?.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                /// - [`ArrayError::Shape`] if the operands cannot be broadcast to one shape with the axes of `self`.
                /// - [`ArrayError::NoPeerAccess`] if an operand is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if an operand belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
                pub fn $try[B: Operand<T>](view, other: B) -> Result<GpuArray<T, D>, ArrayError> {
                    apply($operation, view, &other)
                }
            )*
        }

        writers! {
            Numeric;

            $(
                #[doc = concat!("`self ", $symbol, "= other`, element by element. `other` is broadcast to the shape of `self`.")]
                /// Operands that are not contiguous in the same order are copied first.
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let mut x = GpuArray::from_slice(&gpu, &[6, 8])?;
                /// let y = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("x.", stringify!($assign), "(&y)?;")]
                #[doc = concat!("assert_eq!(x.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                #[doc = concat!("As [`GpuView::", stringify!($try), "`]; the shape of `self` does not change.")]
                pub fn $assign<B: Operand<T>>(&mut self, other: B) -> Result<(), ArrayError> {
                    apply_in_place($operation, &mut self.view_mut(), &other)
                }
            )*
        }
    };
}

methods! {
    ADD "+": try_add try_add_assign, "[9, 10]";
    SUB "-": try_sub try_sub_assign, "[3, 6]";
    MUL "*": try_mul try_mul_assign, "[18, 16]";
    DIV "/": try_div try_div_assign, "[2, 4]";
}

macro_rules! reversed {
    ($($operation:ident $symbol:literal: $try:ident, $result:literal;)*) => {
        readers! {
            Numeric;

            $(
                #[doc = concat!("`value ", $symbol, " self`, element by element: the operation with the number on the left.")]
                ///
                /// ```
                /// # use gpumem_array::GpuArray;
                /// # let gpu = gpumem_array::example_gpu()?;
                /// let x = GpuArray::from_slice(&gpu, &[3, 2])?;
                #[doc = concat!("assert_eq!(x.", stringify!($try), "(6)?.to_vec()?, ", $result, ");")]
                /// # Ok::<(), gpumem_array::ArrayError>(())
                /// ```
                ///
                /// # Errors
                ///
                /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
                /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
                /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
                /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
                pub fn $try(view, value: T) -> Result<GpuArray<T, D>, ArrayError> {
                    scalar($operation, ScalarSide::Left, view, value)
                }
            )*
        }
    };
}

reversed! {
    SUB "-": try_rsub, "[3, 4]";
    DIV "/": try_rdiv, "[2, 3]";
}

/// The side of an operation that the scalar is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarSide {
    Left,
    Right,
}

/// Applies the operation to `left` and the operand, as a new array.
pub(crate) fn apply<T: Numeric, D: Dimension, B: Operand<T>>(
    operation: Operation,
    left: &GpuView<'_, T, D>,
    right: &B,
) -> Result<GpuArray<T, D>, ArrayError> {
    match right.source() {
        OperandSource::View(right) => arrays(operation, left, &right),
        OperandSource::Scalar(value) => scalar(operation, ScalarSide::Right, left, value),
    }
}

/// Applies the operation to `target` and the operand, in place.
pub(crate) fn apply_in_place<T: Numeric, D: Dimension, B: Operand<T>>(
    operation: Operation,
    target: &mut GpuViewMut<'_, T, D>,
    right: &B,
) -> Result<(), ArrayError> {
    match right.source() {
        OperandSource::View(right) => arrays_in_place(operation, target, &right),
        OperandSource::Scalar(value) => scalar_in_place(operation, ScalarSide::Right, target, value),
    }
}

/// Applies the operation to an owned array and the operand: in place, or in a new array if the operand is larger or the array is not in
/// device memory.
pub(crate) fn apply_owned<T: Numeric, D: Dimension, K: Kind, B: Operand<T>>(
    operation: Operation,
    left: GpuArray<T, D, K>,
    right: &B,
) -> Result<GpuArray<T, D>, ArrayError> {
    let mut left = match left.into_device() {
        Ok(left) => left,
        Err(left) => return apply(operation, &left.view(), right),
    };
    if let OperandSource::View(view) = right.source()
        && view.len() != 1
        && view.shape() != left.shape()
    {
        return apply(operation, &left.view(), right);
    }
    apply_in_place(operation, &mut left.view_mut(), right)?;
    Ok(left)
}

/// Applies the operation to a number and an owned array.
pub(crate) fn scalar_owned<T: Numeric, D: Dimension, K: Kind>(
    operation: Operation,
    value: T,
    right: GpuArray<T, D, K>,
) -> Result<GpuArray<T, D>, ArrayError> {
    match right.into_device() {
        Ok(mut right) => {
            scalar_in_place(operation, ScalarSide::Left, &mut right.view_mut(), value)?;
            Ok(right)
        }
        Err(right) => scalar(operation, ScalarSide::Left, &right.view(), value),
    }
}

fn arrays<T: Numeric, D: Dimension, E: Dimension>(
    operation: Operation,
    left: &GpuView<'_, T, D>,
    right: &GpuView<'_, T, E>,
) -> Result<GpuArray<T, D>, ArrayError> {
    let (dim, order) = fit(operation, left.layout(), right.layout())?;
    let gpu = left.gpu();
    left.storage().share(gpu, operation.name)?;
    right.storage().share(gpu, operation.name)?;
    let result = GpuArray::unwritten(gpu, Layout::dense(dim.clone(), order, size_of::<T>())?)?;
    if result.is_empty() {
        return Ok(result);
    }
    let (left, right) = (operand(left, &dim, order)?, operand(&right.on(gpu), &dim, order)?);
    let (left, right) = (left.view(), right.view());
    let out = (result.writes(), result.address());
    launch_arrays::<T>(operation, gpu, out, [Input::of(&left), Input::of(&right)], result.len())?;
    Ok(result)
}

/// The operand of a kernel: one element, or the elements of the result's shape, contiguous in its order.
fn operand<'a, T: Numeric, D: Dimension, E: Dimension>(
    view: &GpuView<'a, T, E>,
    dim: &D,
    order: ElementOrder,
) -> Result<GpuCow<'a, T, D>, ArrayError> {
    if view.len() == 1 {
        let mut one = dim.clone();
        one.slice_mut().fill(1);
        return Ok(GpuCow::View(view.with_layout(Layout::one(one, view.layout().offset))));
    }
    view.broadcast(dim.clone())?.dense(order)
}

fn arrays_in_place<T: Numeric, D: Dimension, E: Dimension>(
    operation: Operation,
    target: &mut GpuViewMut<'_, T, D>,
    right: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    let (dim, _) = fit(operation, target.layout(), right.layout())?;
    if dim != target.raw_dim() {
        return Err(misfit(
            operation,
            target.shape(),
            right.shape(),
            "an operation in place keeps the shape of the left operand",
        ));
    }
    let gpu = target.gpu();
    target.storage().share(gpu, operation.name)?;
    right.storage().share(gpu, operation.name)?;
    if target.is_empty() {
        return Ok(());
    }
    let Some(order) = target.layout().order() else {
        let mut gathered = target.view().to_order(ElementOrder::Row)?;
        arrays_in_place(operation, &mut gathered.view_mut(), right)?;
        return copy(target, &gathered.view());
    };
    let right = operand(&right.on(gpu), &dim, order)?;
    let right = right.view();
    let out = (target.writes(), target.address());
    let left = Input { place: (target.writes(), target.address()), len: target.len() };
    launch_arrays::<T>(operation, gpu, out, [left, Input::of(&right)], target.len())
}

pub(crate) fn scalar<T: Numeric, D: Dimension>(
    operation: Operation,
    side: ScalarSide,
    array: &GpuView<'_, T, D>,
    value: T,
) -> Result<GpuArray<T, D>, ArrayError> {
    let gpu = array.gpu();
    array.storage().share(gpu, operation.name)?;
    let Some(order) = array.layout().order() else {
        let mut gathered = array.to_order(ElementOrder::Row)?;
        scalar_in_place(operation, side, &mut gathered.view_mut(), value)?;
        return Ok(gathered);
    };
    let result = GpuArray::unwritten(gpu, Layout::dense(array.raw_dim(), order, size_of::<T>())?)?;
    if result.is_empty() {
        return Ok(result);
    }
    let places = [(result.writes(), result.address()), (array.reads(), array.address())];
    launch_scalar(gpu, (operation, side), places, value, result.len())?;
    Ok(result)
}

fn scalar_in_place<T: Numeric, D: Dimension>(
    operation: Operation,
    side: ScalarSide,
    target: &mut GpuViewMut<'_, T, D>,
    value: T,
) -> Result<(), ArrayError> {
    let gpu = target.gpu();
    target.storage().share(gpu, operation.name)?;
    if target.is_empty() {
        return Ok(());
    }
    if target.layout().order().is_none() {
        let mut gathered = target.view().to_order(ElementOrder::Row)?;
        scalar_in_place(operation, side, &mut gathered.view_mut(), value)?;
        return copy(target, &gathered.view());
    }
    let place = (target.writes(), target.address());
    launch_scalar(gpu, (operation, side), [place, place], value, target.len())
}

/// The shape and the order of the result. The order saves a copy of an operand if possible.
fn fit<D: Dimension, E: Dimension>(
    operation: Operation,
    left: &Layout<D>,
    right: &Layout<E>,
) -> Result<(D, ElementOrder), ArrayError> {
    if left.shape() == right.shape() {
        let order = left.common_order(right).or(left.order());
        return Ok((left.dim.clone(), order.unwrap_or(ElementOrder::Row)));
    }
    let expected =
        "from the last axis on, lengths must be equal or 1, and the right operand has no further axes";
    let refuse = || misfit(operation, left.shape(), right.shape(), expected);
    let mut dim = left.dim.clone();
    if right.len() != 1 {
        let added = left.shape().len().checked_sub(right.shape().len()).ok_or_else(refuse)?;
        for (len, right) in dim.slice_mut()[added..].iter_mut().zip(right.shape()) {
            match (*len, *right) {
                (left, right) if left == right => {}
                (_, 1) => {}
                (1, right) => *len = right,
                _ => return Err(refuse()),
            }
        }
    }
    let order = if dim == left.dim { left.order() } else { right.order() };
    Ok((dim, order.unwrap_or(ElementOrder::Row)))
}

fn misfit(operation: Operation, left: &[usize], right: &[usize], expected: &'static str) -> ArrayError {
    ArrayError::Shape { operation: operation.name, left: left.to_vec(), right: right.to_vec(), expected }
}

/// An operand of a kernel. A single element is broadcast.
struct Input<'a> {
    place: (Use<'a>, u64),
    len: usize,
}

impl<'a> Input<'a> {
    fn of<T: Element, D: Dimension>(view: &GpuView<'a, T, D>) -> Self {
        Self { place: (view.reads(), view.address()), len: view.len() }
    }
}

/// Each operand has `len` elements, contiguous in the order of the target, or one.
fn launch_arrays<T: Numeric>(
    operation: Operation,
    gpu: &Gpu,
    out: (Use<'_>, u64),
    [left, right]: [Input<'_>; 2],
    len: usize,
) -> Result<(), ArrayError> {
    let step = |one: &Input<'_>| u32::from(one.len == len);
    let launch = start::<T>(gpu, (operation.arrays)(T::TYPE), len)?.array(out);
    let launch = launch.array(left.place).value(step(&left)).array(right.place).value(step(&right));
    launch.value(len as u64).queue(operation.name)
}

/// Both places, of the result and of the array, have `len` elements.
fn launch_scalar<T: Numeric>(
    gpu: &Gpu,
    (operation, side): (Operation, ScalarSide),
    [out, array]: [(Use<'_>, u64); 2],
    value: T,
    len: usize,
) -> Result<(), ArrayError> {
    let launch = match operation.scalar_left.filter(|_| side == ScalarSide::Left) {
        Some(kernel) => start::<T>(gpu, kernel(T::TYPE), len)?.array(out).value(value).array(array),
        None => start::<T>(gpu, (operation.scalar_right)(T::TYPE), len)?.array(out).array(array).value(value),
    };
    launch.value(len as u64).queue(operation.name)
}

/// One thread for each 16 bytes.
fn start<T>(gpu: &Gpu, kernel: Kernel, len: usize) -> Result<OwnLaunch<'_>, ArrayError> {
    OwnLaunch::new(gpu, kernel, [blocks(len * size_of::<T>(), 16 * 256), 1, 1], [256, 1, 1])
}
