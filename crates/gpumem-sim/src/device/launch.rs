//! Launches: the memory that a kernel reaches, from its text or from a Rust function that replaces it.
//!
//! Such a kernel runs once for a whole launch, not once a thread: it reads its parameters in the order of the PTX
//! signature, asks for the ranges of device memory that they point to, and computes what the grid would have. Ranges
//! are checked like everything that touches memory: alive at this moment, whole, aligned, within reach of the device.

use crate::backing::Bytes;
use crate::base::codes::{ILLEGAL_ADDRESS, NOT_PERMITTED};
use crate::base::handle::Handle;
use crate::device::declared::{Declared, DeclaredPart};
use crate::device::module::{Body, Shape};
use crate::report::finding::{FaultKind, KernelPlace, Origin};
use bytemuck::{AnyBitPattern, Pod};
use core::cell::{Cell, OnceCell, RefCell};
use core::fmt;
use core::ops::Range;
use gpumem_sys::text::{Shown, debug_is_display};
use gpumem_sys::types::CUresult;
use std::any::Any;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A Rust function that runs in place of the PTX entry of the same name.
///
/// ```
/// use gpumem_sim::{Kernel, KernelFault, Launch};
///
/// /// y[i] *= factor
/// fn scale(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
///     let (y, factor, len) = (launch.arg::<u64>()?, launch.arg::<f32>()?, launch.arg::<u64>()?);
///     for value in launch.write::<f32>(y, len as usize)? {
///         value.set(value.get() * factor);
///     }
///     Ok(())
/// }
/// static KERNELS: [Kernel; 1] = [Kernel::new("scale", scale)];
/// # let sim = gpumem_sim::driver(gpumem_sim::SimConfig::new())?;
/// # if let Some(sim) = gpumem_sim::Sim::of(&sim) { sim.register(&KERNELS) }
/// # Ok::<(), gpumem_sim::SimError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Kernel {
    /// The name of the entry.
    pub name: &'static str,
    /// The function.
    pub run: fn(&mut Launch<'_>) -> Result<(), KernelFault>,
}

impl Kernel {
    /// A kernel, for use in a `static` table.
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&mut Launch<'_>) -> Result<(), KernelFault>) -> Self {
        Self { name, run }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &Shown::name(self.name)).finish_non_exhaustive()
    }
}

/// The error of a kernel that stopped. Its context is lost.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", Shown::sentence(.text))]
pub struct KernelFault {
    pub(crate) kind: FaultKind,
    pub(crate) code: CUresult,
    pub(crate) text: String,
    pub(crate) allocation: Option<Box<Origin>>,
    pub(crate) place: Option<Box<KernelPlace>>,
}

debug_is_display!(KernelFault);

impl KernelFault {
    /// An error raised by the kernel itself, like a failed assertion on a device.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            kind: FaultKind::Kernel,
            code: CUresult::CUDA_ERROR_ASSERT,
            text: text.into(),
            allocation: None,
            place: None,
        }
    }

    /// The kernel called a function that kernels may not call.
    pub(crate) fn refused(call: &str) -> Self {
        let text = format!("it called `Sim::{call}`, which changes the machine that runs it");
        Self { kind: FaultKind::Kernel, code: NOT_PERMITTED, text, allocation: None, place: None }
    }

    /// The code that later calls in the context return.
    #[must_use]
    pub fn code(&self) -> CUresult {
        self.code
    }
}

/// The memory of the machine that runs a kernel.
pub(crate) trait LaunchMemory {
    /// The bytes behind a range that lies whole in one allocation, alive for as long as the machine is borrowed, and whether
    /// they may only be read.
    ///
    /// # Errors
    ///
    /// [`KernelFault`] if no allocation has the address, if the context may not use it in this way, or if the address is
    /// misaligned.
    fn range(
        &self,
        context: Handle,
        is_write: bool,
        address: u64,
        size_bytes: u64,
        align_bytes: usize,
    ) -> Result<(Bytes, bool), KernelFault>;

    /// True unless bytes of it were never written, as far as that is known.
    fn is_written(&self, address: u64, size_bytes: u64) -> bool;

    /// The bytes around an access that belong to the same allocation: the first address and the number.
    fn around(&self, address: u64, size_bytes: u64) -> (u64, u64);
}

/// The launch that a kernel runs for: its shape, its parameters and the memory that it may access.
pub struct Launch<'a> {
    memory: &'a dyn LaunchMemory,
    context: Handle,
    queued: &'a QueuedLaunch,
    next: usize,
    /// The ranges that the kernel has requested so far.
    touched: RefCell<Vec<Touch>>,
    copies: &'a Copies,
}

/// Copies of host memory that is registered for reading only. A kernel gets cells of a copy, so that a write does not reach the
/// memory.
#[derive(Default)]
pub(crate) struct Copies(OnceCell<Box<HostCopy>>);

struct HostCopy {
    words: Box<[Cell<u128>]>,
    next: Copies,
}

impl Copies {
    /// Zeroed, and where it is until this is dropped.
    fn add(&self, size_bytes: usize) -> &[Cell<u128>] {
        let mut end = self;
        while let Some(copy) = end.0.get() {
            end = &copy.next;
        }
        let words = vec![Cell::new(0); size_bytes.div_ceil(size_of::<u128>())].into();
        &end.0.get_or_init(|| Box::new(HostCopy { words, next: Self::default() })).words
    }
}

/// A range that a kernel requested.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) is_write: bool,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) bytes: Bytes,
}

/// A launch that waits for its turn.
#[derive(Clone)]
pub(crate) struct QueuedLaunch {
    pub(crate) function: Handle,
    pub(crate) body: Body,
    /// The parameters, packed by the entry, copied at the call.
    pub(crate) parameters: Box<[u8]>,
    pub(crate) shape: Shape,
    /// The memory that the kernel may access; `None` if the launch declares none, and is not checked.
    pub(crate) declared: Option<Declared>,
}

/// A launch that has run from its text, as far as it takes to run it again.
pub(crate) struct Launched {
    pub(crate) context: Handle,
    pub(crate) queued: Arc<QueuedLaunch>,
    /// The call that queued it.
    pub(crate) call: u64,
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    /// A hash of what it touched.
    pub(crate) touched: u64,
}

/// The launches that have run last, by stream and position.
#[derive(Default)]
pub(crate) struct LaunchHistory {
    launches: HashMap<(u64, u64), Launched>,
    order: VecDeque<(u64, u64)>,
    /// The steps for which launches have been run again.
    pub(crate) steps: u64,
}

impl LaunchHistory {
    pub(crate) fn add(&mut self, stream: Handle, position: u64, launched: Launched) {
        let key = (stream.to_bits(), position);
        if self.launches.insert(key, launched).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > LAUNCHES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.launches.remove(&oldest);
        }
    }

    pub(crate) fn find(&self, stream: u64, position: u64) -> Option<&Launched> {
        self.launches.get(&(stream, position))
    }
}

const LAUNCHES_MAX: usize = 4096;

impl QueuedLaunch {
    /// The bytes around an access that the launch declares, or those of a variable of the module.
    fn declared_part(&self, access: &Range<u64>, is_write: bool) -> Result<DeclaredPart, KernelFault> {
        let Some(declared) = &self.declared else {
            return Ok(DeclaredPart { bytes: 0..u64::MAX, is_writable: true });
        };
        let variable = || {
            let variables = self.body.text.variables().iter().zip(&*self.body.variables);
            let mut variables = variables.map(|(variable, start)| *start..start + variable.size_bytes);
            let bytes = variables.find(|bytes| bytes.start <= access.start && access.end <= bytes.end)?;
            Some(DeclaredPart { bytes, is_writable: true })
        };
        declared.part(access, is_write).or_else(variable).ok_or_else(|| KernelFault {
            kind: FaultKind::Undeclared,
            code: ILLEGAL_ADDRESS,
            text: declared.refusal(access, is_write, |bytes| self.parameter_in(bytes)),
            allocation: None,
            place: None,
        })
    }

    /// The name of the parameter with an address in a range.
    fn parameter_in(&self, bytes: &Range<u64>) -> String {
        let is_in = |parameter: &gpumem_ptx::Parameter| {
            let value = self.parameters.get(parameter.offset_bytes..).and_then(<[u8]>::first_chunk);
            parameter.size_bytes == 8
                && value.is_some_and(|value| bytes.contains(&u64::from_le_bytes(*value)))
        };
        match self.body.entry().parameters().iter().position(is_in) {
            Some(index) => format!("parameter {index}"),
            None => "an array of the launch".into(),
        }
    }
}

impl<'a> Launch<'a> {
    pub(crate) fn new(
        memory: &'a dyn LaunchMemory,
        context: Handle,
        queued: &'a QueuedLaunch,
        copies: &'a Copies,
    ) -> Self {
        Self { memory, context, queued, next: 0, touched: RefCell::default(), copies }
    }

    /// The ranges that the kernel requested.
    pub(crate) fn into_touched(self) -> Vec<Touch> {
        self.touched.into_inner()
    }

    /// The blocks in each direction.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.queued.shape.grid
    }

    /// The threads of a block in each direction.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.queued.shape.block
    }

    /// The dynamic shared memory of a block.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.queued.shape.shared_bytes
    }

    /// The next parameter.
    ///
    /// # Errors
    ///
    /// [`KernelFault`] if the entry has no more parameters, or if the next one has another size.
    pub fn arg<T: AnyBitPattern>(&mut self) -> Result<T, KernelFault> {
        let index = self.next;
        let parameters = self.queued.body.entry().parameters();
        let Some(parameter) = parameters.get(index) else {
            return Err(KernelFault::new(format!("it reads more than its {} parameters", parameters.len())));
        };
        let end = parameter.offset_bytes + parameter.size_bytes;
        let bytes = self.queued.parameters.get(parameter.offset_bytes..end).unwrap_or_default();
        self.next += 1;
        bytemuck::try_pod_read_unaligned(bytes).map_err(|_| {
            KernelFault::new(format!(
                "parameter {index} has {} bytes in the PTX and is read as {} ({} bytes)",
                parameter.size_bytes,
                core::any::type_name::<T>(),
                size_of::<T>()
            ))
        })
    }

    /// `len` elements of device memory, to be read. The elements are cells, because two parameters may name the same memory. For
    /// host memory registered for reading only, the result is a copy.
    ///
    /// # Errors
    ///
    /// [`KernelFault`] unless the range lies in one live allocation that the device may use, and is aligned.
    pub fn read<T: Pod>(&self, address: u64, len: usize) -> Result<&'a [Cell<T>], KernelFault> {
        self.range(false, address, len)
    }

    /// `len` elements of device memory, to be written.
    ///
    /// # Errors
    ///
    /// [`KernelFault`] under the conditions of [`Launch::read`], and for memory registered for reading only.
    pub fn write<T: Pod>(&self, address: u64, len: usize) -> Result<&'a [Cell<T>], KernelFault> {
        self.range(true, address, len)
    }

    fn range<T: Pod>(&self, is_write: bool, address: u64, len: usize) -> Result<&'a [Cell<T>], KernelFault> {
        if len == 0 {
            return Ok(&[]);
        }
        let (cells, bytes, _) = self.cells(is_write, address, len)?;
        let size_bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        self.queued.declared_part(&(address..address.saturating_add(size_bytes)), is_write)?;
        self.touched.borrow_mut().push(Touch { is_write, address, size_bytes, bytes });
        Ok(cells)
    }

    /// The elements at an address, where they are in this process, and whether they may be written.
    fn cells<T: Pod>(
        &self,
        is_write: bool,
        address: u64,
        len: usize,
    ) -> Result<(&'a [Cell<T>], Bytes, bool), KernelFault> {
        let size_bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let (bytes, is_read_only) =
            self.memory.range(self.context, is_write, address, size_bytes, align_of::<T>())?;
        if is_read_only {
            let copied = self.copied(bytes.0, len).ok_or_else(|| KernelFault::new(format!(
                "it reads memory that is registered read-only as {}, which is aligned to more than 16 bytes",
                core::any::type_name::<T>()
            )))?;
            return Ok((copied, bytes, false));
        }
        // SAFETY: the range lies whole in an allocation that is alive for as long as the machine is borrowed: frees
        // are queued work too and only one operation runs at a time. The type has no invalid bits, the address is
        // aligned, and a cell allows others to name the same memory.
        Ok((unsafe { core::slice::from_raw_parts(bytes.0.cast::<Cell<T>>(), len) }, bytes, true))
    }

    /// Copies memory that the host registered for reading only. The program may hold it as a `&[u8]`, so no reference to cells may
    /// point there. Returns `None` for a type whose alignment is larger than a copy's.
    fn copied<T: Pod>(&self, bytes: *const u8, len: usize) -> Option<&'a [Cell<T>]> {
        if align_of::<T>() > align_of::<u128>() {
            return None;
        }
        let size_bytes = len * size_of::<T>();
        let words = self.copies.add(size_bytes);
        // SAFETY: the source is alive for as long as the machine is borrowed, and only read; the copy is as large, was just made,
        // and holds cells.
        unsafe { core::ptr::copy_nonoverlapping(bytes, words.as_ptr().cast_mut().cast::<u8>(), size_bytes) };
        // SAFETY: the copy is as large and lives as long as the launch; the type is aligned no more than it, and has no invalid
        // bits.
        Some(unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<Cell<T>>(), len) })
    }
}

/// The memory of a kernel that runs from its text.
pub(crate) struct TextMemory<'l, 'a> {
    launch: &'l Launch<'a>,
    /// Why the last access was refused.
    refused: RefCell<Option<KernelFault>>,
}

impl<'l, 'a> TextMemory<'l, 'a> {
    pub(crate) fn new(launch: &'l Launch<'a>) -> Self {
        Self { launch, refused: RefCell::default() }
    }

    pub(crate) fn into_refused(self) -> Option<KernelFault> {
        self.refused.into_inner()
    }
}

impl gpumem_ptx::DeviceMemory for TextMemory<'_, '_> {
    fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<gpumem_ptx::Region<'_>> {
        let part = self.launch.queued.declared_part(&(address..address.saturating_add(size_bytes)), is_write);
        let (start, around_bytes) = self.launch.memory.around(address, size_bytes);
        let wide = part.as_ref().ok().and_then(|part| {
            let end = (start + around_bytes).min(part.bytes.end);
            let start = start.max(part.bytes.start);
            let (cells, _, is_writable) =
                self.launch.cells::<u8>(is_write, start, (end - start) as usize).ok()?;
            Some((start, cells, is_writable))
        });
        let exact = || {
            let exact = self.launch.cells::<u8>(is_write, address, size_bytes as usize);
            exact.map(|(cells, _, is_writable)| (address, cells, is_writable))
        };
        // If the memory refuses the access, too, that is the reason to report.
        let found = wide.map_or_else(exact, Ok).and_then(|found| Ok((found, part?)));
        match found {
            Ok(((start, cells, is_writable), part)) => {
                Some(gpumem_ptx::Region { start, cells, is_writable: is_writable && part.is_writable })
            }
            Err(fault) => {
                self.refused.replace(Some(fault));
                None
            }
        }
    }

    fn is_written(&self, address: u64, size_bytes: u64) -> bool {
        self.launch.memory.is_written(address, size_bytes)
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("kernel", &Shown::name(&self.queued.body.name))
            .field("grid", &self.grid())
            .field("block", &self.block())
            .finish_non_exhaustive()
    }
}

/// The message of a panic. A payload of another type is never dropped: its drop may panic, wait for the lock that is held
/// here, or give memory back through the driver, which is in a call.
pub(crate) fn panic_text(panic: Box<dyn Any + Send>) -> Cow<'static, str> {
    let panic = match panic.downcast::<&'static str>() {
        Ok(text) => return Cow::Borrowed(*text),
        Err(panic) => panic,
    };
    match panic.downcast::<String>() {
        Ok(text) => Cow::Owned(*text),
        Err(panic) => {
            core::mem::forget(panic);
            Cow::Borrowed("no text")
        }
    }
}
