//! Which copies the driver accepts where an end is memory of another device: every copy call, every kind of memory, with access to it
//! and without. A table holds the answers. A case that finds others prints the whole table as it is on the driver.

use super::{Pair, access};
use gpumem_tests::cases;
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver, DriverError, DriverKind};
use std::fmt::Write;
use std::ptr::null_mut;

cases! {
    /// Each copy call accepts or refuses each kind of memory as the table says, and what it accepts has copied.
    fn every_copy_of_every_memory(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        let table = table(&pair);
        // A GPU may lack a kind of memory. The simulator has all of them, and gives the answers of a GPU, no more and no fewer.
        let is_whole = driver.kind() == DriverKind::Sim && cfg!(target_os = "linux");
        assert!(!is_whole || table == EXPECTED, "the simulator differs, by these lines (- GPU, + simulator):\n{}", changes(&table));
        let is_new = |line: &&str| EXPECTED.lines().all(|expected| expected != *line);
        let others: Vec<&str> = table.lines().filter(is_new).collect();
        assert!(others.is_empty(), "not in the table: {others:#?}\n\nthe table of this driver:\n\n{table}");
    }

    /// A mapping is opened to another device without that device's context.
    fn access_needs_no_context(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        // SAFETY: releases the context of device 1, as `Pair` would.
        unsafe { pair.driver.cuDevicePrimaryCtxRelease_v2(1).unwrap() };
        let was_active = is_active(&pair.driver, 1);
        let memory = Memory::new(&pair, Kind::Mapped, 0);
        if let Some(memory) = &memory {
            memory.grant(&pair, 1);
        }
        assert_eq!(is_active(&pair.driver, 1), was_active);
        let mut context = null_mut();
        // SAFETY: a local outlives the call; `Pair` releases the context.
        unsafe { pair.driver.cuDevicePrimaryCtxRetain(&mut context, 1).unwrap() };
        if let Some(memory) = memory {
            memory.free(&pair);
        }
    }
}

/// The answers, in the order of [`CALLS`]. The memory lives on device 0, and the other end on device 1. A call runs at `home`, on a
/// stream or in the context of device 0, or `away`, on device 1; the memory is the source (`from`) or the target (`to`).
///
/// `+` copied, `v` `INVALID_VALUE`, `c` `INVALID_CONTEXT`, `-` not such a call or unknown to the driver.
const EXPECTED: &str = "\
Plain/Plain       None     home from ++++++++++++++--++----
Plain/Plain       None     home to   ++++++++++++++++--++++
Plain/Plain       None     away from ++++++++++++++--++----
Plain/Plain       None     away to   ++++++++++++++++--vvvv
Plain/Plain       Contexts home from ++++++++++++++--++----
Plain/Plain       Contexts home to   ++++++++++++++++--++++
Plain/Plain       Contexts away from ++++++++++++++--++----
Plain/Plain       Contexts away to   ++++++++++++++++--++++
Mapped/Plain      None     home from ++++++++++++++--++----
Mapped/Plain      None     home to   ++++++++++++++++--++++
Mapped/Plain      None     away from vvvv++vvvvv++v--vv----
Mapped/Plain      None     away to   vvvv++vvvvv++vvv--vvvv
Mapped/Plain      Contexts home from ++++++++++++++--++----
Mapped/Plain      Contexts home to   ++++++++++++++++--++++
Mapped/Plain      Contexts away from vvvv++vvvvv++v--vv----
Mapped/Plain      Contexts away to   vvvv++vvvvv++vvv--vvvv
Mapped/Plain      Granted  home from ++++++++++++++--++----
Mapped/Plain      Granted  home to   ++++++++++++++++--++++
Mapped/Plain      Granted  away from ++++++++++++++--++----
Mapped/Plain      Granted  away to   ++++++++++++++++--++++
Mapped/Mapped     None     home from vvvv++vvvvv++v--++----
Mapped/Mapped     None     home to   vvvv++vvvvv++v++--++++
Mapped/Mapped     None     away from vvvv++vvvvv++v--vv----
Mapped/Mapped     None     away to   vvvv++vvvvv++vvv--vvvv
Mapped/Mapped     Granted  home from ++++++++++++++--++----
Mapped/Mapped     Granted  home to   ++++++++++++++++--++++
Mapped/Mapped     Granted  away from ++++++++++++++--++----
Mapped/Mapped     Granted  away to   ++++++++++++++++--++++
DefaultPool/Plain None     home from ++++++++++++++--++----
DefaultPool/Plain None     home to   ++++++++++++++++--++++
DefaultPool/Plain None     away from vvvv++vvvvv++v--vv----
DefaultPool/Plain None     away to   vvvv++vvvvv++vvv--vvvv
DefaultPool/Plain Contexts home from ++++++++++++++--++----
DefaultPool/Plain Contexts home to   ++++++++++++++++--++++
DefaultPool/Plain Contexts away from vvvv++vvvvv++v--vv----
DefaultPool/Plain Contexts away to   vvvv++vvvvv++vvv--vvvv
DefaultPool/Plain Granted  home from ++++++++++++++--++----
DefaultPool/Plain Granted  home to   ++++++++++++++++--++++
DefaultPool/Plain Granted  away from ++++++++++++++--++----
DefaultPool/Plain Granted  away to   ++++++++++++++++--++++
OwnPool/Plain     None     home from ++++++++++++++--++----
OwnPool/Plain     None     home to   ++++++++++++++++--++++
OwnPool/Plain     None     away from vvvv++vvvvv++v--vv----
OwnPool/Plain     None     away to   vvvv++vvvvv++vvv--vvvv
OwnPool/Plain     Contexts home from ++++++++++++++--++----
OwnPool/Plain     Contexts home to   ++++++++++++++++--++++
OwnPool/Plain     Contexts away from vvvv++vvvvv++v--vv----
OwnPool/Plain     Contexts away to   vvvv++vvvvv++vvv--vvvv
OwnPool/Plain     Granted  home from ++++++++++++++--++----
OwnPool/Plain     Granted  home to   ++++++++++++++++--++++
OwnPool/Plain     Granted  away from ++++++++++++++--++----
OwnPool/Plain     Granted  away to   ++++++++++++++++--++++
OwnPool/OwnPool   None     home from vvvv++vvvvv++v--++----
OwnPool/OwnPool   None     home to   vvvv++vvvvv++v++--++++
OwnPool/OwnPool   None     away from vvvv++vvvvv++v--vv----
OwnPool/OwnPool   None     away to   vvvv++vvvvv++vvv--vvvv
OwnPool/OwnPool   Granted  home from ++++++++++++++--++----
OwnPool/OwnPool   Granted  home to   ++++++++++++++++--++++
OwnPool/OwnPool   Granted  away from ++++++++++++++--++----
OwnPool/OwnPool   Granted  away to   ++++++++++++++++--++++
OwnPool/Mapped    None     home from vvvv++vvvvv++v--++----
OwnPool/Mapped    None     home to   vvvv++vvvvv++v++--++++
OwnPool/Mapped    None     away from vvvv++vvvvv++v--vv----
OwnPool/Mapped    None     away to   vvvv++vvvvv++vvv--vvvv
Managed/Plain     None     home from ++++++++++++++--++----
Managed/Plain     None     home to   ++++++++++++++++--++++
Managed/Plain     None     away from ++++++++++++++--++----
Managed/Plain     None     away to   ++++++++++++++++--++++
Managed/Plain     Contexts home from ++++++++++++++--++----
Managed/Plain     Contexts home to   ++++++++++++++++--++++
Managed/Plain     Contexts away from ++++++++++++++--++----
Managed/Plain     Contexts away to   ++++++++++++++++--++++
Pinned/Plain      None     home from ++++++++++++++--++----
Pinned/Plain      None     home to   ++++++++++++++++--++++
Pinned/Plain      None     away from ++++++++++++++--++----
Pinned/Plain      None     away to   ++++++++++++++++--++++
Registered/Plain  None     home from ++++++++++++++--++----
Registered/Plain  None     home to   ++++++++++++++++--++++
Registered/Plain  None     away from ++++++++++++++--++----
Registered/Plain  None     away to   ++++++++++++++++--++++
";

/// The lines of [`EXPECTED`] that the table lacks, and those that it has instead.
fn changes(table: &str) -> String {
    let lacking = EXPECTED.lines().filter(|line| table.lines().all(|other| other != *line));
    let new = table.lines().filter(|line| EXPECTED.lines().all(|other| other != *line));
    lacking.map(|line| format!("- {line}\n")).chain(new.map(|line| format!("+ {line}\n"))).collect()
}

/// Device memory, and the access to it.
const ROWS: &[(Kind, Kind, Access)] = &[
    (Kind::Plain, Kind::Plain, Access::None),
    (Kind::Plain, Kind::Plain, Access::Contexts),
    (Kind::Mapped, Kind::Plain, Access::None),
    (Kind::Mapped, Kind::Plain, Access::Contexts),
    (Kind::Mapped, Kind::Plain, Access::Granted),
    (Kind::Mapped, Kind::Mapped, Access::None),
    (Kind::Mapped, Kind::Mapped, Access::Granted),
    (Kind::DefaultPool, Kind::Plain, Access::None),
    (Kind::DefaultPool, Kind::Plain, Access::Contexts),
    (Kind::DefaultPool, Kind::Plain, Access::Granted),
    (Kind::OwnPool, Kind::Plain, Access::None),
    (Kind::OwnPool, Kind::Plain, Access::Contexts),
    (Kind::OwnPool, Kind::Plain, Access::Granted),
    (Kind::OwnPool, Kind::OwnPool, Access::None),
    (Kind::OwnPool, Kind::OwnPool, Access::Granted),
    (Kind::OwnPool, Kind::Mapped, Access::None),
    (Kind::Managed, Kind::Plain, Access::None),
    (Kind::Managed, Kind::Plain, Access::Contexts),
    (Kind::Pinned, Kind::Plain, Access::None),
    (Kind::Registered, Kind::Plain, Access::None),
];

const BYTES: usize = 4096;
const PIECE: usize = 2 << 20;

/// A copy or a fill: the ends, with their contexts, and a stream of the current context.
struct Work {
    target: u64,
    source: u64,
    target_context: CUcontext,
    source_context: CUcontext,
    stream: CUstream,
    /// Pageable memory of the size of the copy.
    host: *mut u8,
    types: [CUmemorytype; 2],
}

type Call = fn(&Driver, &Work) -> Result<(), DriverError>;

/// The ends that a call takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Device memory and device memory.
    Both,
    /// Only a target on the device.
    Target,
    /// Only a source on the device.
    Source,
}

macro_rules! calls {
    ($($name:literal $takes:ident |$driver:ident, $work:ident| $call:expr;)+) => {
        &[$(($name, Takes::$takes, |$driver, $work| {
            // SAFETY: the ends are live and large enough, and the caller waits for the work; the driver checks who may use them.
            unsafe { $call }
        })),+]
    };
}

const CALLS: &[(&str, Takes, Call)] = calls! {
    "Memcpy" Both |driver, work| driver.cuMemcpy(work.target, work.source, BYTES);
    "MemcpyAsync" Both |driver, work| driver.cuMemcpyAsync(work.target, work.source, BYTES, work.stream);
    "DtoD" Both |driver, work| driver.cuMemcpyDtoD_v2(work.target, work.source, BYTES);
    "DtoDAsync" Both |driver, work| driver.cuMemcpyDtoDAsync_v2(work.target, work.source, BYTES, work.stream);
    "Peer" Both |driver, work|
        driver.cuMemcpyPeer(work.target, work.target_context, work.source, work.source_context, BYTES);
    "PeerAsync" Both |driver, work| driver.cuMemcpyPeerAsync(
        work.target, work.target_context, work.source, work.source_context, BYTES, work.stream);
    "2D" Both |driver, work| driver.cuMemcpy2D_v2(&work.flat());
    "2DUnaligned" Both |driver, work| driver.cuMemcpy2DUnaligned_v2(&work.flat());
    "2DAsync" Both |driver, work| driver.cuMemcpy2DAsync_v2(&work.flat(), work.stream);
    "3D" Both |driver, work| driver.cuMemcpy3D_v2(&work.deep());
    "3DAsync" Both |driver, work| driver.cuMemcpy3DAsync_v2(&work.deep(), work.stream);
    "3DPeer" Both |driver, work| driver.cuMemcpy3DPeer(&work.deep_between());
    "3DPeerAsync" Both |driver, work| driver.cuMemcpy3DPeerAsync(&work.deep_between(), work.stream);
    "BatchAsync" Both |driver, work| work.batch(driver);
    "HtoD" Target |driver, work| driver.cuMemcpyHtoD_v2(work.target, work.host.cast(), BYTES);
    "HtoDAsync" Target |driver, work| driver.cuMemcpyHtoDAsync_v2(work.target, work.host.cast(), BYTES, work.stream);
    "DtoH" Source |driver, work| driver.cuMemcpyDtoH_v2(work.host.cast(), work.source, BYTES);
    "DtoHAsync" Source |driver, work| driver.cuMemcpyDtoHAsync_v2(work.host.cast(), work.source, BYTES, work.stream);
    "D8" Target |driver, work| driver.cuMemsetD8_v2(work.target, VALUE, BYTES);
    "D8Async" Target |driver, work| driver.cuMemsetD8Async(work.target, VALUE, BYTES, work.stream);
    "D32Async" Target |driver, work|
        driver.cuMemsetD32Async(work.target, u32::from_ne_bytes([VALUE; 4]), BYTES / 4, work.stream);
    "D2D8Async" Target |driver, work| driver.cuMemsetD2D8Async(work.target, ROW, VALUE, ROW, BYTES / ROW, work.stream);
};

/// The copied byte, and the length of a row.
const VALUE: u8 = 0x5A;
const ROW: usize = 512;

impl Work {
    fn flat(&self) -> CUDA_MEMCPY2D {
        CUDA_MEMCPY2D {
            dstMemoryType: self.types[0],
            dstDevice: self.target,
            dstPitch: ROW,
            srcMemoryType: self.types[1],
            srcDevice: self.source,
            srcPitch: ROW,
            WidthInBytes: ROW,
            Height: BYTES / ROW,
            ..Default::default()
        }
    }

    fn deep(&self) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            dstMemoryType: self.types[0],
            dstDevice: self.target,
            dstPitch: ROW,
            dstHeight: BYTES / ROW / 2,
            srcMemoryType: self.types[1],
            srcDevice: self.source,
            srcPitch: ROW,
            srcHeight: BYTES / ROW / 2,
            WidthInBytes: ROW,
            Height: BYTES / ROW / 2,
            Depth: 2,
            ..Default::default()
        }
    }

    fn deep_between(&self) -> CUDA_MEMCPY3D_PEER {
        CUDA_MEMCPY3D_PEER {
            dstMemoryType: self.types[0],
            dstDevice: self.target,
            dstContext: self.target_context,
            dstPitch: ROW,
            dstHeight: BYTES / ROW / 2,
            srcMemoryType: self.types[1],
            srcDevice: self.source,
            srcContext: self.source_context,
            srcPitch: ROW,
            srcHeight: BYTES / ROW / 2,
            WidthInBytes: ROW,
            Height: BYTES / ROW / 2,
            Depth: 2,
            ..Default::default()
        }
    }

    /// # Safety
    ///
    /// As for a copy.
    unsafe fn batch(&self, driver: &Driver) -> Result<(), DriverError> {
        let (mut target, mut source, mut size, mut start) = (self.target, self.source, BYTES, 0);
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            ..Default::default()
        };
        // SAFETY: locals outlive the calls, which read one element of each list; the rest is the caller's.
        unsafe {
            match driver.table().cuMemcpyBatchAsync_v2 {
                Some(_) => driver.cuMemcpyBatchAsync_v2(
                    &mut target,
                    &mut source,
                    &mut size,
                    1,
                    &mut attributes,
                    &mut start,
                    1,
                    self.stream,
                ),
                None => driver.cuMemcpyBatchAsync(
                    &mut target,
                    &mut source,
                    &mut size,
                    1,
                    &mut attributes,
                    &mut start,
                    1,
                    null_mut(),
                    self.stream,
                ),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Mapped,
    DefaultPool,
    OwnPool,
    Managed,
    Pinned,
    Registered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    /// Each context has access to the plain memory of the other.
    Contexts,
    /// Each device has access to the mapping or the pool of the other.
    Granted,
}

/// Memory of a device, and what it was made of.
struct Memory {
    kind: Kind,
    device: i32,
    address: u64,
    /// Of mapped memory.
    handle: CUmemGenericAllocationHandle,
    pool: CUmemoryPool,
    /// Registered memory.
    host: Vec<u8>,
}

impl Memory {
    /// Allocates memory of a kind. `None` if the device has none of it.
    fn new(pair: &Pair, kind: Kind, device: i32) -> Option<Self> {
        pair.enter(device as usize);
        let mut memory = Self { kind, device, address: 0, handle: 0, pool: null_mut(), host: Vec::new() };
        memory.allocate(&pair.driver)?;
        Some(memory)
    }

    fn allocate(&mut self, driver: &Driver) -> Option<()> {
        // SAFETY: locals and fields outlive the calls, and `free` undoes them.
        unsafe {
            match self.kind {
                Kind::Plain => driver.cuMemAlloc_v2(&mut self.address, BYTES).ok(),
                Kind::Mapped => self.map(driver),
                Kind::DefaultPool => {
                    driver.cuDeviceGetDefaultMemPool(&mut self.pool, self.device).ok()?;
                    self.allocate_from_pool(driver)
                }
                Kind::OwnPool => {
                    let properties = CUmemPoolProps {
                        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                        location: access(self.device).location,
                        ..Default::default()
                    };
                    driver.cuMemPoolCreate(&mut self.pool, &properties).ok()?;
                    self.allocate_from_pool(driver)
                }
                Kind::Managed => {
                    let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
                    driver.cuMemAllocManaged(&mut self.address, BYTES, global).ok()
                }
                Kind::Pinned => {
                    let mut host = null_mut();
                    driver.cuMemHostAlloc(&mut host, BYTES, 0).ok()?;
                    self.address = host.expose_provenance() as u64;
                    Some(())
                }
                Kind::Registered => {
                    self.host = vec![0; 3 * BYTES];
                    let start = self.host.as_mut_ptr().expose_provenance().next_multiple_of(BYTES);
                    self.address = start as u64;
                    driver.cuMemHostRegister_v2(std::ptr::with_exposed_provenance_mut(start), BYTES, 0).ok()
                }
            }
        }
    }

    fn map(&mut self, driver: &Driver) -> Option<()> {
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: access(self.device).location,
            ..Default::default()
        };
        // SAFETY: locals and fields outlive the calls, and `free` undoes them.
        unsafe {
            driver.cuMemAddressReserve(&mut self.address, PIECE, 0, 0, 0).ok()?;
            driver.cuMemCreate(&mut self.handle, PIECE, &properties, 0).unwrap();
            driver.cuMemMap(self.address, PIECE, 0, self.handle, 0).unwrap();
            driver.cuMemSetAccess(self.address, PIECE, &access(self.device), 1).unwrap();
        }
        Some(())
    }

    fn allocate_from_pool(&mut self, driver: &Driver) -> Option<()> {
        // SAFETY: a field outlives the call; the pool and the default stream are live.
        unsafe {
            driver.cuMemAllocFromPoolAsync(&mut self.address, BYTES, self.pool, null_mut()).unwrap();
            driver.cuCtxSynchronize().unwrap();
        }
        Some(())
    }

    /// Lets a device use the memory, where the memory itself has a setting.
    fn grant(&self, pair: &Pair, device: i32) {
        self.set_access(pair, access(device));
    }

    fn set_access(&self, pair: &Pair, access: CUmemAccessDesc) {
        // SAFETY: the memory or its pool is live; locals outlive the calls.
        unsafe {
            match self.kind {
                Kind::Mapped => pair.driver.cuMemSetAccess(self.address, PIECE, &access, 1).unwrap(),
                Kind::DefaultPool | Kind::OwnPool => {
                    pair.driver.cuMemPoolSetAccess(self.pool, &access, 1).unwrap();
                }
                _ => {}
            }
        }
    }

    fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned | Kind::Registered)
    }

    fn memory_type(&self) -> CUmemorytype {
        match self.is_host() {
            true => CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            false => CUmemorytype::CU_MEMORYTYPE_DEVICE,
        }
    }

    /// Writes a byte everywhere, without any access of the other device.
    fn set(&self, pair: &Pair, value: u8) {
        pair.enter(self.device as usize);
        // SAFETY: the memory is live, and no work uses it.
        unsafe {
            if self.is_host() {
                let host: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
                host.write_bytes(value, BYTES);
            } else {
                pair.driver.cuMemsetD8_v2(self.address, value, BYTES).unwrap();
                pair.driver.cuCtxSynchronize().unwrap();
            }
        }
    }

    /// True if all bytes have this value.
    fn holds(&self, pair: &Pair, value: u8) -> bool {
        let mut bytes = vec![0_u8; BYTES];
        pair.enter(self.device as usize);
        // SAFETY: the memory is live, and no work uses it; `bytes` has room for all of it.
        unsafe {
            if self.is_host() {
                let host: *const u8 = std::ptr::with_exposed_provenance(self.address as usize);
                host.copy_to(bytes.as_mut_ptr(), BYTES);
            } else {
                pair.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address, BYTES).unwrap();
            }
        }
        bytes.iter().all(|byte| *byte == value)
    }

    fn free(self, pair: &Pair) {
        pair.enter(self.device as usize);
        let driver = &pair.driver;
        let host = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: undoes `allocate`; no work uses the memory.
        unsafe {
            match self.kind {
                Kind::Plain | Kind::Managed => driver.cuMemFree_v2(self.address).unwrap(),
                Kind::Mapped => {
                    driver.cuMemUnmap(self.address, PIECE).unwrap();
                    driver.cuMemRelease(self.handle).unwrap();
                    driver.cuMemAddressFree(self.address, PIECE).unwrap();
                }
                Kind::DefaultPool | Kind::OwnPool => {
                    driver.cuMemFreeAsync(self.address, null_mut()).unwrap();
                    driver.cuCtxSynchronize().unwrap();
                    // The default pool is everybody's.
                    let other = 1 - self.device;
                    self.set_access(
                        pair,
                        CUmemAccessDesc {
                            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
                            ..access(other)
                        },
                    );
                    if self.kind == Kind::OwnPool {
                        driver.cuMemPoolDestroy(self.pool).unwrap();
                    }
                }
                Kind::Pinned => driver.cuMemFreeHost(host).unwrap(),
                Kind::Registered => driver.cuMemHostUnregister(host).unwrap(),
            }
        }
    }
}

/// The table as it is on this driver.
fn table(pair: &Pair) -> String {
    let mut table = String::new();
    for (kind, other_kind, access) in ROWS.iter().copied() {
        let made = (Memory::new(pair, kind, 0), Memory::new(pair, other_kind, 1));
        let (Some(memory), Some(other)) = made else { continue };
        set_contexts(pair, access == Access::Contexts, true);
        if access == Access::Granted {
            memory.grant(pair, 1);
            other.grant(pair, 0);
        }
        for (place, device) in [("home", 0), ("away", 1)] {
            for (direction, target, source) in [("from", &other, &memory), ("to", &memory, &other)] {
                let is_own = |takes| match takes {
                    Takes::Both => true,
                    Takes::Target => direction == "to",
                    Takes::Source => direction == "from",
                };
                let mut cells = String::new();
                for (name, takes, call) in CALLS {
                    let cell = match is_own(*takes) {
                        true => answer(pair, device, (target, source), *takes, *call),
                        false => Ok('-'),
                    };
                    cells.push(cell.unwrap_or_else(|error| {
                        panic!("{table}{kind:?}/{other_kind:?} {access:?} {place} {direction} {cells}\n{name}: {error}")
                    }));
                }
                let ends = format!("{kind:?}/{other_kind:?}");
                let access = format!("{access:?}");
                writeln!(table, "{ends:<17} {access:<8} {place} {direction:<4} {cells}").unwrap();
            }
        }
        set_contexts(pair, access == Access::Contexts, false);
        memory.free(pair);
        other.free(pair);
    }
    table
}

/// The letter of a call's answer. An error if the accepted copy has failed, after which the device is lost.
fn answer(
    pair: &Pair,
    device: usize,
    ends: (&Memory, &Memory),
    takes: Takes,
    call: Call,
) -> Result<char, DriverError> {
    let (target, source) = ends;
    let mut host = vec![if takes == Takes::Target { VALUE } else { 0 }; BYTES];
    source.set(pair, VALUE);
    if takes != Takes::Source {
        target.set(pair, 0);
    }
    pair.enter(device);
    let stream = pair.stream();
    let work = Work {
        target: target.address,
        source: source.address,
        target_context: pair.contexts[target.device as usize],
        source_context: pair.contexts[source.device as usize],
        stream,
        host: host.as_mut_ptr(),
        types: [target.memory_type(), source.memory_type()],
    };
    let result = call(&pair.driver, &work);
    // SAFETY: the stream is live, and destroyed once.
    let ended = unsafe {
        let ended = pair.driver.cuStreamSynchronize(stream).and_then(|()| pair.driver.cuCtxSynchronize());
        pair.driver.cuStreamDestroy_v2(stream).unwrap();
        ended
    };
    ended?;
    let has_copied = || match takes {
        Takes::Source => host.iter().all(|byte| *byte == VALUE),
        _ => target.holds(pair, VALUE),
    };
    Ok(match result.map_err(|error| error.code()) {
        Ok(()) if has_copied() => '+',
        Ok(()) => 'w',
        Err(CUresult::CUDA_ERROR_INVALID_VALUE) => 'v',
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) => 'c',
        Err(CUresult::CUDA_ERROR_INVALID_HANDLE) => 'h',
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => 's',
        Err(CUresult::CUDA_ERROR_NOT_PERMITTED) => 'p',
        Err(CUresult::CUDA_ERROR_NOT_FOUND) => '-',
        Err(code) => panic!("a copy returned {code:?}, which the table has no letter for"),
    })
}

/// Gives each context access to the other's plain memory, or takes it.
fn set_contexts(pair: &Pair, is_wanted: bool, are_peers: bool) {
    for (device, peer) in [(0, 1), (1, 0)] {
        if is_wanted {
            pair.enter(device);
            let peer = pair.contexts[peer];
            // SAFETY: both contexts are live.
            unsafe {
                match are_peers {
                    true => pair.driver.cuCtxEnablePeerAccess(peer, 0).unwrap(),
                    false => pair.driver.cuCtxDisablePeerAccess(peer).unwrap(),
                }
            }
        }
    }
}

fn is_active(driver: &Driver, device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { driver.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active).unwrap() };
    active != 0
}
