//! Programs that the compiler refuses: lifetimes of views and of host memory that devices use.
//!
//! The memory of an array is not freed while a view reads it.
//!
//! ```compile_fail,E0505
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, GpuArray};
//!
//! fn read_after_free(array: GpuArray<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
//!     let view = array.view();
//!     drop(array);
//!     view.sum()?.to_vec()
//! }
//! # fn main() {}
//! ```
//!
//! An array is not written through its owner while a view reads it.
//!
//! ```compile_fail,E0502
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, GpuArray};
//!
//! fn write_under_a_reader(array: &mut GpuArray<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
//!     let view = array.view();
//!     array.fill(0.0)?;
//!     view.sum()?.to_vec()
//! }
//! # fn main() {}
//! ```
//!
//! A launch overwrites the results of the previous one, so it is refused while a result is borrowed.
//!
//! ```compile_fail,E0499
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, Gpu, GpuGraph, Out};
//!
//! fn twice(gpu: &Gpu, graph: &mut GpuGraph, out: &Out<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
//!     let done = graph.launch(gpu).run()?;
//!     let first = done.get(out)?;
//!     graph.launch(gpu).run()?;
//!     first.to_vec()
//! }
//! # fn main() {}
//! ```
//!
//! A registered buffer belongs to its registration until `into_inner`.
//!
//! ```compile_fail,E0382
//! use gpumem_array::pool::{Device, HostMemory};
//!
//! fn read(device: &Device, buffer: Vec<u32>) -> u32 {
//!     let _memory = HostMemory::register(device, buffer);
//!     buffer[0]
//! }
//! # fn main() {}
//! ```
//!
//! Borrowed host memory cannot be stored outside the closure.
//!
//! ```compile_fail,E0521
//! use gpumem_array::pool::{BorrowedHostMemory, Device};
//!
//! fn keep<'a>(device: &Device, table: &'a mut [u32], kept: &mut Option<&'a BorrowedHostMemory<'a, u32>>) {
//!     let _ = device.with_host_memory(table, |memory| *kept = Some(memory));
//! }
//! # fn main() {}
//! ```
//!
//! Borrowed host memory ends with the closure that it was registered for.
//!
//! ```compile_fail
//! use gpumem_array::pool::Device;
//!
//! fn escape(device: &Device, table: &mut [u32]) {
//!     let _ = device.with_host_memory(table, |memory| memory);
//! }
//! # fn main() {}
//! ```
//!
//! The host does not touch the slice while a device may write it.
//!
//! ```compile_fail,E0501
//! use gpumem_array::pool::Device;
//!
//! fn write(device: &Device, table: &mut [u32]) {
//!     let _ = device.with_host_memory(table, |_| table[0] = 1);
//! }
//! # fn main() {}
//! ```
//!
//! A view of pageable memory cannot be sent to a thread that outlives the closure.
//!
//! ```compile_fail,E0521
//! use gpumem_array::Gpu;
//!
//! fn send(gpu: &'static Gpu, table: &mut [f32]) {
//!     let _ = gpu.with_pageable(table, |view| {
//!         std::thread::spawn(move || view.shape().len());
//!     });
//! }
//! # fn main() {}
//! ```
//!
//! The host does not access a slice while devices may write it.
//!
//! ```compile_fail,E0502
//! use gpumem_array::Gpu;
//!
//! fn read(gpu: &Gpu, table: &mut [f32]) {
//!     let _ = gpu.with_registered(table, |mut view| {
//!         view.fill(1.0).unwrap();
//!         table[0]
//!     });
//! }
//! # fn main() {}
//! ```
//!
//! A view of registered memory cannot be stored outside the closure.
//!
//! ```compile_fail,E0521
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{Gpu, GpuView};
//!
//! fn keep<'a>(gpu: &Gpu, table: &'a [f32], kept: &mut Option<GpuView<'a, f32, Ix1>>) {
//!     let _ = gpu.with_registered_read_only(table, |view| *kept = Some(view));
//! }
//! # fn main() {}
//! ```
//!
//! A view of registered memory ends with the closure that it was made for.
//!
//! ```compile_fail
//! use gpumem_array::Gpu;
//!
//! fn escape(gpu: &Gpu, table: &mut [f32]) {
//!     let _ = gpu.with_registered(table, |view| view);
//! }
//! # fn main() {}
//! ```
//!
//! The host cannot get a slice of device memory; the message names the alternatives.
//!
//! ```compile_fail,E0277
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, GpuArray};
//!
//! fn sum(array: &GpuArray<f32, Ix1>) -> Result<f32, ArrayError> {
//!     Ok(array.as_slice()?.iter().sum())
//! }
//! # fn main() {}
//! ```
//!
//! An array has one view that writes at a time.
//!
//! ```compile_fail,E0499
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, GpuArray};
//!
//! fn write_twice(array: &mut GpuArray<f32, Ix1>) -> Result<(), ArrayError> {
//!     let mut first = array.view_mut();
//!     let mut second = array.view_mut();
//!     first.fill(1.0)?;
//!     second.fill(2.0)
//! }
//! # fn main() {}
//! ```
//!
//! No work that reads an array is queued while the host has a mutable slice of it.
//!
//! ```compile_fail,E0502
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, UnifiedArray};
//!
//! fn sum(array: &mut UnifiedArray<f32, Ix1>) -> Result<(), ArrayError> {
//!     let slice = array.as_mut_slice()?;
//!     let _sum = array.sum()?;
//!     slice[0] = 1.0;
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! No work that writes an array is queued while the host has a slice of it.
//!
//! ```compile_fail,E0502
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{ArrayError, UnifiedArray};
//!
//! fn fill(array: &mut UnifiedArray<f32, Ix1>) -> Result<f32, ArrayError> {
//!     let slice = array.as_slice()?;
//!     array.fill(1.0)?;
//!     Ok(slice[0])
//! }
//! # fn main() {}
//! ```
//!
//! A view borrows the array, so it cannot outlive it.
//!
//! ```compile_fail,E0515
//! use gpumem_array::ndarray::Ix1;
//! use gpumem_array::{GpuArray, GpuView};
//!
//! fn escape(array: GpuArray<f32, Ix1>) -> GpuView<'static, f32, Ix1> {
//!     array.view()
//! }
//! # fn main() {}
//! ```
