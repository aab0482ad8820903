//! Kinds of memory as types: [`DeviceLocal`], [`Unified`], [`Pinned`].
//!
//! The kind of an array decides, at compile time, whether the host can access its elements. Every operation takes arrays of all
//! kinds; results are of kind [`DeviceLocal`], except for copies (`clone`, `copy_to`, `cast_to`).

use gpumem_pool::MemoryKind;

/// Device memory: only work on streams can access it. The default kind of [`GpuArray`](crate::GpuArray).
///
/// The pool of the [`Gpu`](crate::Gpu) backs it. That pool may have another kind (`GPUMEM_KIND`), which affects where elements are stored,
/// but not the type: the host has no access.
#[derive(Clone, Copy, Debug)]
pub enum DeviceLocal {}

/// Unified memory: one address for the host and all devices. Pages migrate to the processor that accesses them.
#[derive(Clone, Copy, Debug)]
pub enum Unified {}

/// Pinned host memory: the fastest source and destination of copies. Devices access it in place, over the bus.
#[derive(Clone, Copy, Debug)]
pub enum Pinned {}

/// A kind of memory: [`DeviceLocal`], [`Unified`] or [`Pinned`].
pub trait Kind: sealed::HasMemoryKind + Send + Sync + 'static {
    /// The name: `device`, `unified` or `pinned`.
    const NAME: &'static str;
}

/// A kind of memory that the host can access: [`Unified`] or [`Pinned`].
#[diagnostic::on_unimplemented(
    message = "the host cannot access the elements of an array of kind `{Self}`",
    label = "the elements are in device memory",
    note = "download the elements with `to_array()` or `to_vec()`, or a single one with `slice(…)` and `into_scalar()`",
    note = "or compute on the device: with operators, with `sum()` and `dot()`, or with a kernel of your own in `map_kernel()`",
    note = "or allocate the array in memory of another kind: `GpuArray::zeros(&gpu.unified(), shape)`, or `&gpu.pinned()`"
)]
pub trait HostAccess: Kind {}

impl HostAccess for Unified {}
impl HostAccess for Pinned {}

pub(crate) mod sealed {
    /// The pool's name for the kind.
    pub trait HasMemoryKind {
        #[doc(hidden)]
        const MEMORY: super::MemoryKind;
    }
}

macro_rules! kinds {
    ($($kind:ident: $memory:ident, $name:literal;)*) => {
        $(
            impl Kind for $kind {
                const NAME: &'static str = $name;
            }
            impl sealed::HasMemoryKind for $kind {
                const MEMORY: MemoryKind = MemoryKind::$memory;
            }
        )*
    };
}

kinds! {
    DeviceLocal: Device, "device";
    Unified: Unified, "unified";
    Pinned: Host, "pinned";
}
