//! Copies and memsets at the time of the call: the kinds of the addresses, the access checks, and the point for which the call
//! waits.
//!
//! Between host and device, pinned memory is read or written when the copy runs. Pageable memory is read during the call
//! (staged), and a copy into it is complete when the call returns. The calls without a stream use the null stream. They wait for
//! copies to or from pinned memory. For copies from pageable memory they wait only for earlier work, and return once the bytes
//! are staged. They never wait for copies within and between devices, or for memsets. Copies from host memory to host memory are
//! complete when any call returns.

use crate::base::address::is_device_address;
use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::order::Point;
use crate::stream::operation::{CopyRows, Fill, Operation, Route};
use gpumem_sys::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype};

/// The directions that a call allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// From device to device, by a call that names the contexts of both: it needs no access to the memory.
    Peers,
    /// The addresses determine the direction.
    Any,
}

impl Direction {
    /// The direction that the memory types of a copy of rows name.
    pub(crate) fn of(copy: &CUDA_MEMCPY3D) -> Self {
        use CUmemorytype as Type;
        match (copy.srcMemoryType, copy.dstMemoryType) {
            (Type::CU_MEMORYTYPE_HOST, Type::CU_MEMORYTYPE_DEVICE) => Self::HostToDevice,
            (Type::CU_MEMORYTYPE_DEVICE, Type::CU_MEMORYTYPE_HOST) => Self::DeviceToHost,
            (Type::CU_MEMORYTYPE_DEVICE, Type::CU_MEMORYTYPE_DEVICE) => Self::DeviceToDevice,
            _ => Self::Any,
        }
    }
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Device(Allocation),
    Managed,
    Pinned,
    /// Pinned host memory of a pool, which is never treated as device memory.
    PinnedPool(Allocation),
    Pageable,
}

impl End {
    fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::PinnedPool(_) | Self::Pageable)
    }
}

impl Machine {
    /// Queues a copy. Returns the point to wait for before the call returns: pageable memory is its target, or `is_blocking` is
    /// set and the host takes part.
    pub(crate) fn copy(
        &mut self,
        stream: Handle,
        (target, source, size_bytes): (u64, u64, u64),
        direction: Direction,
        is_blocking: bool,
    ) -> Answer<Option<Point>> {
        if size_bytes == 0 {
            return Ok(None);
        }
        let ends = (self.end(target, size_bytes)?, self.end(source, size_bytes)?);
        check_direction(direction, ends)?;
        let route = self.route(stream, ends, direction);
        let route = self.note_if_foreign(target, route)?;
        let is_staged = matches!(ends.1, End::Pageable) && !self.is_capturing(stream);
        let is_host_waiting = matches!(ends.0, End::Pageable)
            || ends.0.is_host() && ends.1.is_host()
            || is_blocking && route.touches_host() && !is_staged;
        let before = self.tail(stream).filter(|_| is_blocking);
        let operation = match ends.1 {
            // A graph stores no bytes: its copies read the source whenever they run.
            End::Pageable if is_staged => Operation::Staged { target, bytes: stage(source, size_bytes) },
            _ => Operation::Copy { target, source, size_bytes, route },
        };
        let point = self.enqueue(stream, operation);
        Ok(if is_host_waiting { Some(point) } else { before.filter(|_| is_staged) })
    }

    /// Queues a copy of rows.
    pub(crate) fn copy_2d(
        &mut self,
        stream: Handle,
        copy: &CUDA_MEMCPY2D,
        is_blocking: bool,
    ) -> Answer<Option<Point>> {
        let slice = CUDA_MEMCPY3D {
            srcXInBytes: copy.srcXInBytes,
            srcY: copy.srcY,
            srcMemoryType: copy.srcMemoryType,
            srcHost: copy.srcHost,
            srcDevice: copy.srcDevice,
            srcPitch: copy.srcPitch,
            dstXInBytes: copy.dstXInBytes,
            dstY: copy.dstY,
            dstMemoryType: copy.dstMemoryType,
            dstHost: copy.dstHost,
            dstDevice: copy.dstDevice,
            dstPitch: copy.dstPitch,
            WidthInBytes: copy.WidthInBytes,
            Height: copy.Height,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        };
        self.copy_3d(stream, &slice, Direction::of(&slice), is_blocking)
    }

    /// Queues a copy of slices of rows.
    pub(crate) fn copy_3d(
        &mut self,
        stream: Handle,
        copy: &CUDA_MEMCPY3D,
        direction: Direction,
        is_blocking: bool,
    ) -> Answer<Option<Point>> {
        let extent = [copy.WidthInBytes, copy.Height, copy.Depth];
        if extent.contains(&0) {
            return Ok(None);
        }
        let target = Volume {
            base: base_of(copy.dstMemoryType, copy.dstHost.expose_provenance(), copy.dstDevice)?,
            pitch: copy.dstPitch as u64,
            slice_rows: copy.dstHeight as u64,
            x_bytes: copy.dstXInBytes as u64,
            y: copy.dstY as u64,
            z: copy.dstZ as u64,
        };
        let source = Volume {
            base: base_of(copy.srcMemoryType, copy.srcHost.expose_provenance(), copy.srcDevice)?,
            pitch: copy.srcPitch as u64,
            slice_rows: copy.srcHeight as u64,
            x_bytes: copy.srcXInBytes as u64,
            y: copy.srcY as u64,
            z: copy.srcZ as u64,
        };
        self.copy_rows(stream, (target, source), extent, direction, is_blocking)
    }

    /// Queues a copy of at least one row. Pageable memory makes it blocking in both directions: rows are not staged.
    fn copy_rows(
        &mut self,
        stream: Handle,
        (target, source): (Volume, Volume),
        extent: [usize; 3],
        direction: Direction,
        is_blocking: bool,
    ) -> Answer<Option<Point>> {
        let [width_bytes, height, depth] = extent.map(|extent| extent as u64);
        let (target_bytes, source_bytes) =
            (target.range(width_bytes, height, depth)?, source.range(width_bytes, height, depth)?);
        let ends = (self.end(target_bytes.0, target_bytes.1)?, self.end(source_bytes.0, source_bytes.1)?);
        check_direction(direction, ends)?;
        let route = self.route(stream, ends, direction)?;
        let is_pageable = matches!(ends.0, End::Pageable) || matches!(ends.1, End::Pageable);
        let rows = CopyRows {
            target: target_bytes.0,
            target_pitch: target.pitch,
            target_slice_bytes: target.slice_bytes(),
            source: source_bytes.0,
            source_pitch: source.pitch,
            source_slice_bytes: source.slice_bytes(),
            width_bytes,
            height,
            depth,
            route,
        };
        let point = self.enqueue(stream, Operation::CopyRows(Box::new(rows)));
        Ok((is_pageable || is_blocking && route.touches_host()).then_some(point))
    }

    /// Queues a memset. Returns the point to wait for if the target is host memory and the call is blocking.
    pub(crate) fn fill(&mut self, stream: Handle, fill: Fill, is_blocking: bool) -> Answer<Option<Point>> {
        let row_bytes = fill.width.checked_mul(fill.pattern_bytes).ok_or(INVALID_VALUE)?;
        if row_bytes == 0 || fill.height == 0 {
            return Ok(None);
        }
        let is_pitch_bad =
            fill.height > 1 && (fill.pitch < row_bytes || !fill.pitch.is_multiple_of(fill.pattern_bytes));
        if !fill.target.is_multiple_of(fill.pattern_bytes) || is_pitch_bad {
            return Err(INVALID_VALUE);
        }
        let volume = Volume { base: fill.target, pitch: fill.pitch, ..Volume::default() };
        let (target, size_bytes) = volume.range(row_bytes, fill.height, 1)?;
        let end = self.end(target, size_bytes)?;
        match end {
            End::Device(allocation) | End::PinnedPool(allocation) => {
                let answer = self.check_access(stream, &allocation);
                self.note_if_foreign(target, answer)?;
            }
            End::Pinned | End::Managed => {}
            End::Pageable => return Err(INVALID_VALUE),
        }
        let point = self.enqueue(stream, Operation::Fill(fill));
        Ok((is_blocking && matches!(end, End::Pinned | End::PinnedPool(_) | End::Managed)).then_some(point))
    }

    /// The kind of memory at an address. A device range must lie in one allocation;
    /// host memory ends before the devices' addresses begin.
    fn end(&self, address: u64, size_bytes: u64) -> Answer<End> {
        match self.memory.known(address, size_bytes) {
            Some(allocation) if matches!(allocation.allocated_by, AllocatedBy::PinnedPool(_)) => {
                Ok(End::PinnedPool(allocation))
            }
            Some(allocation) if allocation.allocated_by.is_host() => Ok(End::Pinned),
            Some(allocation) if allocation.allocated_by.is_managed() => Ok(End::Managed),
            Some(allocation) => Ok(End::Device(allocation)),
            None if address != 0
                && address.checked_add(size_bytes).is_some_and(|end| !is_device_address(end)) =>
            {
                Ok(End::Pageable)
            }
            None => Err(INVALID_VALUE),
        }
    }

    fn route(&self, stream: Handle, ends: (End, End), direction: Direction) -> Answer<Route> {
        let device = self.streams.get(stream).ok_or(INVALID_HANDLE)?.device;
        for end in [ends.0, ends.1] {
            if let End::Device(allocation) = end {
                let device = if direction == Direction::Peers { allocation.device } else { device };
                self.check_granted(device, &allocation)?;
            }
        }
        match ends {
            (End::Device(target), End::Device(source)) => {
                let direct =
                    self.has_peer_access(stream, &target)? && self.has_peer_access(stream, &source)?;
                let is_within = target.device == source.device && (direct || direction != Direction::Peers);
                Ok(if is_within { Route::Within } else { Route::Across { direct } })
            }
            (End::Device(_), _) => Ok(Route::Up),
            (End::Pageable, _) => Ok(Route::DownPageable),
            (End::Pinned | End::PinnedPool(_) | End::Managed, _) => Ok(Route::Down),
        }
    }

    /// Checks that the copy engines of a stream's device may access memory: otherwise `INVALID_VALUE`.
    pub(crate) fn check_access(&self, stream: Handle, allocation: &Allocation) -> Answer<()> {
        if self.has_peer_access(stream, allocation)? { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Memory of another device's pool must be shared before this device's streams may copy it, and mapped memory is accessible
    /// to devices that were given access. Plain memory is staged through the host instead.
    fn check_granted(&self, device: usize, allocation: &Allocation) -> Answer<()> {
        let is_granted = match allocation.allocated_by {
            AllocatedBy::Pool(pool) | AllocatedBy::Imported(pool) if allocation.device != device => {
                self.pools.get(pool).is_some_and(|pool| pool.shared_with.contains(&device))
            }
            AllocatedBy::Mapped { .. } => allocation.allocated_by.is_open_to(device),
            _ => true,
        };
        if is_granted { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn has_peer_access(&self, stream: Handle, allocation: &Allocation) -> Answer<bool> {
        let context = self.streams.get(stream).ok_or(INVALID_HANDLE)?.context;
        self.may_use(context, allocation).ok_or(INVALID_CONTEXT)
    }

    /// True if kernels of a context may access an allocation.
    pub(crate) fn may_use(&self, handle: Handle, allocation: &Allocation) -> Option<bool> {
        let context = self.contexts.get(handle)?;
        Some(match allocation.allocated_by {
            AllocatedBy::Managed | AllocatedBy::ManagedPool(_) => true,
            AllocatedBy::PinnedPool(pool) => self.pools.get(pool)?.shared_with.contains(&context.device),
            AllocatedBy::Mapped { .. } => allocation.allocated_by.is_open_to(context.device),
            _ if allocation.device == context.device => true,
            AllocatedBy::Host { .. } | AllocatedBy::Registered { .. } => true,
            AllocatedBy::Plain | AllocatedBy::Variable => context.peers.contains(&allocation.context),
            // The context that opened the memory has access.
            AllocatedBy::Opened => allocation.context == handle,
            AllocatedBy::Graph => false,
            AllocatedBy::Pool(pool) | AllocatedBy::Imported(pool) => {
                self.pools.get(pool)?.shared_with.contains(&context.device)
            }
        })
    }
}

impl Route {
    fn touches_host(self) -> bool {
        matches!(self, Self::Up | Self::Down | Self::DownPageable)
    }
}

/// The first address of a box of rows, and the distances of rows and slices.
#[derive(Clone, Copy, Default)]
struct Volume {
    base: u64,
    pitch: u64,
    slice_rows: u64,
    x_bytes: u64,
    y: u64,
    z: u64,
}

impl Volume {
    /// The first byte, and the bytes from first to last.
    fn range(&self, width_bytes: u64, height: u64, depth: u64) -> Answer<(u64, u64)> {
        let row_end_bytes = self.x_bytes.checked_add(width_bytes).ok_or(INVALID_VALUE)?;
        let row_end = self.y.checked_add(height).ok_or(INVALID_VALUE)?;
        let is_sliced = depth > 1 || self.z > 0;
        if (row_end > 1 || is_sliced) && self.pitch < row_end_bytes || is_sliced && self.slice_rows < row_end
        {
            return Err(INVALID_VALUE);
        }
        let bytes_to = |slice: u64, row: u64, bytes: u64| {
            let rows = self.slice_rows.checked_mul(slice)?.checked_add(row)?;
            self.pitch.checked_mul(rows)?.checked_add(bytes)
        };
        let skipped_bytes = bytes_to(self.z, self.y, self.x_bytes).ok_or(INVALID_VALUE)?;
        let first = self.base.checked_add(skipped_bytes).ok_or(INVALID_VALUE)?;
        Ok((first, bytes_to(depth - 1, height - 1, width_bytes).ok_or(INVALID_VALUE)?))
    }

    /// The distance between slices; arbitrary for a single slice.
    fn slice_bytes(&self) -> u64 {
        self.pitch.saturating_mul(self.slice_rows)
    }
}

fn base_of(kind: CUmemorytype, host: usize, device: u64) -> Answer<u64> {
    let base = match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => host as u64,
        CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED => device,
        CUmemorytype::CU_MEMORYTYPE_ARRAY => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    };
    // Null stays null, wherever the first row starts.
    if base == 0 { Err(INVALID_VALUE) } else { Ok(base) }
}

fn check_direction(direction: Direction, (target, source): (End, End)) -> Answer<()> {
    // A copy treats managed memory like pinned memory, in both directions.
    let is_device = |end| matches!(end, End::Device(_) | End::Managed | End::Pinned);
    let is_host = |end| matches!(end, End::Pageable | End::Managed | End::Pinned | End::PinnedPool(_));
    let is_allowed = match direction {
        Direction::HostToDevice => is_device(target) && is_host(source),
        Direction::DeviceToHost => is_host(target) && is_device(source),
        Direction::DeviceToDevice | Direction::Peers => is_device(target) && is_device(source),
        Direction::Any => true,
    };
    if is_allowed { Ok(()) } else { Err(INVALID_VALUE) }
}

fn stage(source: u64, size_bytes: u64) -> Box<[u8]> {
    let source = core::ptr::with_exposed_provenance::<u8>(source as usize);
    // SAFETY: the address is not a device address, so the program guarantees that many readable bytes, as the driver requires.
    unsafe { core::slice::from_raw_parts(source, size_bytes as usize) }.into()
}
