//! `elementwise.cu`.

use super::number::{TwinNumber, count};
use gpumem_sim::{KernelFault, Launch};
use std::cell::Cell;

/// One of the four operations.
pub(crate) trait BinaryOperation {
    fn of<T: TwinNumber>(left: T, right: T) -> T;
}

macro_rules! operations {
    ($($name:ident $method:ident),*) => {
        $(
            pub(crate) struct $name;
            impl BinaryOperation for $name {
                #[inline]
                fn of<T: TwinNumber>(left: T, right: T) -> T {
                    left.$method(right)
                }
            }
        )*
    };
}
operations!(Add plus, Sub minus, Mul times, Div over);

pub(crate) fn arrays<T: TwinNumber, O: BinaryOperation>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let left: (u64, u32) = (launch.arg()?, launch.arg()?);
    let right: (u64, u32) = (launch.arg()?, launch.arg()?);
    let n = count(launch)?;
    let read = |(address, step): (u64, u32)| launch.read::<T>(address, if step == 0 { 1 } else { n });
    let (out, a, b) = (launch.write::<T>(out, n)?, read(left)?, read(right)?);
    match (left.1, right.1) {
        (0, 0) => out.iter().for_each(|out| out.set(O::of(a[0].get(), b[0].get()))),
        (0, _) => each(out, b, |b| O::of(a[0].get(), b)),
        (_, 0) => each(out, a, |a| O::of(a, b[0].get())),
        _ => out.iter().zip(a).zip(b).for_each(|((out, a), b)| out.set(O::of(a.get(), b.get()))),
    }
    Ok(())
}

pub(crate) fn array_scalar<T: TwinNumber, O: BinaryOperation>(
    launch: &mut Launch<'_>,
) -> Result<(), KernelFault> {
    let (out, array): (u64, u64) = (launch.arg()?, launch.arg()?);
    let value: T = launch.arg()?;
    let n = count(launch)?;
    each(launch.write(out, n)?, launch.read(array, n)?, |element| O::of(element, value));
    Ok(())
}

pub(crate) fn scalar_array<T: TwinNumber, O: BinaryOperation>(
    launch: &mut Launch<'_>,
) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let value: T = launch.arg()?;
    let array: u64 = launch.arg()?;
    let n = count(launch)?;
    each(launch.write(out, n)?, launch.read(array, n)?, |element| O::of(value, element));
    Ok(())
}

fn each<T: TwinNumber>(out: &[Cell<T>], source: &[Cell<T>], f: impl Fn(T) -> T) {
    out.iter().zip(source).for_each(|(out, element)| out.set(f(element.get())));
}
