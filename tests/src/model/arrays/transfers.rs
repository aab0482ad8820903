//! Transfers that own their host memory, and stay in flight while the program goes on.

use super::operation::{End, On, Owned};
use super::values::Value;
use super::views::{LEN_MAX, Look, of_twin, turned};
use super::world::{Real, Step, World, numbered, turns};
use crate::array::ndarray::{ArrayD, IxDyn};
use crate::array::{ArrayError, Download, GpuArray, PinnedArray, Rejected, Upload, UploadSource};
use crate::model::operation::Pick;
use crate::model::step::text;
use std::fmt;

/// A transfer in flight.
pub(super) struct Transfer<T: Value> {
    name: u32,
    /// The elements of the array, or of the download.
    twin: ArrayD<T>,
    device: usize,
    flight: Flight<T>,
}

/// A download into memory of the host, which an error returns.
type DownloadInto<B> = Download<B, Rejected<Option<B>>>;

#[allow(clippy::large_enum_variant, reason = "a program has few at a time")]
enum Flight<T: Value> {
    FromVec(Upload<Vec<T>>),
    FromArray(Upload<ArrayD<T>>),
    FromPinned(Upload<PinnedArray<T, IxDyn>>),
    ToVec(DownloadInto<Vec<T>>),
    ToArray(Download<ArrayD<T>>),
    ToPinned(DownloadInto<PinnedArray<T, IxDyn>>),
}

/// The result of a transfer.
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Landed<T: Value> {
    Array(GpuArray<T, IxDyn>),
    Host(ArrayD<T>),
}

impl<T: Value> World<'_, T> {
    pub(super) fn start_upload(&mut self, on: On, shape: &[usize], owned: Owned) -> Step {
        let (gpu, name) = self.any(on);
        let twin = match owned {
            Owned::Vec => numbered(&[shape.iter().product()]),
            _ => numbered(shape),
        };
        let flight = match owned {
            Owned::Vec => Flight::FromVec(GpuArray::upload(&gpu, twin.iter().copied().collect::<Vec<T>>())),
            Owned::Array => Flight::FromArray(GpuArray::upload(&gpu, twin.clone())),
            Owned::Pinned => {
                let pinned = PinnedArray::from_array(&gpu.pinned(), &twin).map_err(text)?;
                Flight::FromPinned(GpuArray::upload(&gpu, pinned))
            }
        };
        let said = format!("upload({name}, {owned:?} {:?})", twin.shape());
        self.start(Transfer { name: 0, twin, device: usize::from(on.0) % 6 / 3, flight }, &said)
    }

    pub(super) fn start_download(&mut self, source: &Look, on: On, owned: Owned) -> Step {
        let Some(index) = self.find(source.array) else { return Ok(false) };
        let slot = &self.arrays[index];
        let (gpu, name) = self.of_device(on, slot.device);
        let view = turned(slot.array.view(), &source.turns).map_err(text)?;
        if view.len() > LEN_MAX {
            return Ok(false);
        }
        let (view, twin, device) = (view.on(&gpu), of_twin(slot.twin.view(), &source.turns), slot.device);
        let flight = match owned {
            Owned::Vec => Flight::ToVec(view.download_into(Vec::with_capacity(7))),
            Owned::Array => Flight::ToArray(view.download_array()),
            Owned::Pinned => {
                let target = PinnedArray::zeros(&gpu.pinned(), view.raw_dim()).map_err(text)?;
                Flight::ToPinned(view.download_into(target))
            }
        };
        let said = format!("a{}{}.on({name}).download({owned:?})", slot.name, turns(&source.turns));
        self.start(Transfer { name: 0, twin, device, flight }, &said)
    }

    fn start(&mut self, mut transfer: Transfer<T>, said: &str) -> Step {
        transfer.name = self.next_name;
        self.next_name += 1;
        self.said.push(format!("let t{} = {said}", transfer.name));
        self.transfers.push(transfer);
        Ok(true)
    }

    pub(super) fn end_transfer(&mut self, transfer: Pick, end: End) -> Step {
        let Some(index) = transfer.of(self.transfers.len()) else { return Ok(false) };
        let Transfer { name, twin, device, flight } = self.transfers.remove(index);
        self.said.push(format!("t{name}: {end:?}"));
        let is_polled = match end {
            End::Drop => return Ok(true),
            End::Wait => false,
            End::Poll => true,
        };
        let landed = match flight {
            Flight::FromVec(upload) => Landed::Array(uploaded(upload, is_polled)?.0.into_dyn()),
            Flight::FromArray(upload) => Landed::Array(uploaded(upload, is_polled)?.0),
            Flight::FromPinned(upload) => Landed::Array(uploaded(upload, is_polled)?.0),
            Flight::ToVec(download) => {
                let elements = downloaded(download, is_polled)?;
                Landed::Host(ArrayD::from_shape_vec(twin.raw_dim(), elements).map_err(text)?)
            }
            Flight::ToArray(download) => Landed::Host(downloaded(download, is_polled)?),
            Flight::ToPinned(download) => {
                let target = downloaded(download, is_polled)?;
                let slice = target.as_slice().map_err(text)?;
                self.sim.host_reads(slice.as_ptr(), slice.len());
                Landed::Host(target.as_array().map_err(text)?.to_owned())
            }
        };
        match landed {
            Landed::Array(array) => self.add(Real::Device(array), twin, device, &format!("t{name}")),
            Landed::Host(found) => self.compare(&format!("t{name}"), &found, &twin)?,
        }
        Ok(true)
    }
}

type Ended<S> = (GpuArray<<S as UploadSource>::Elem, <S as UploadSource>::Dim>, S);

fn uploaded<S: UploadSource>(upload: Upload<S>, is_polled: bool) -> Result<Ended<S>, String> {
    let ended = if is_polled { pollster::block_on(upload) } else { upload.wait() };
    ended.map_err(|error| ArrayError::from(error).to_string())
}

fn downloaded<B, E: fmt::Display>(download: Download<B, E>, is_polled: bool) -> Result<B, String> {
    if is_polled { pollster::block_on(download) } else { download.wait() }.map_err(text)
}
