//! Arrays as tensors of DLPack, against another library that knows only the C structures.

use crate::support::{gpu, gpu_with};
use gpumem_array::dlpack::DlpackArray;
use gpumem_array::dlpack::dlpark::ffi::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
use gpumem_array::dlpack::dlpark::{DlpackFlags, Managed, ManagedTensorBase, legacy, versioned};
use gpumem_array::ndarray::{Axis, Dimension, Ix1, Ix2, IxDyn, array, s};
use gpumem_array::pool::{Device, MemoryRange, Pool, Stream};
use gpumem_array::{ArrayError, Gpu, GpuArray};
use gpumem_sim::{Sim, SimConfig};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The C structure of DLPack 1.x, as another library declares it.
#[repr(C)]
struct CTensor {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: CElements,
}

/// The C structure from before DLPack 1.0.
#[repr(C)]
struct CLegacyTensor {
    tensor: CElements,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct CElements {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

fn check_clean(gpu: Gpu, seed: u64) {
    let driver = gpu.device().driver().clone();
    drop(gpu);
    assert_eq!(Sim::of(&driver).unwrap().report().silent_findings(), [], "replay: GPUMEM_SIM_SEED={seed}");
}

/// The other library doubles the bytes of a matrix on its own stream, and deletes the tensor while that work is queued.
#[test]
fn another_library_uses_an_array() {
    for seed in 0..50 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let (writer, theirs) = (gpu.fork().unwrap(), Stream::new(gpu.device()).unwrap());
        let mut x = GpuArray::from_array(&gpu, &array![[1_u8, 2, 3], [4, 5, 6]]).unwrap();
        x.on_mut(&writer).fill(7).unwrap();
        let mut y = GpuArray::<u8, _>::zeros(&gpu, 6).unwrap();
        let tensor: versioned::Dlpack = x.into_dlpack(&theirs).unwrap();
        let raw: *mut CTensor = tensor.into_raw().cast();
        {
            let target = y.write_on(&theirs).unwrap();
            let _bound = gpu.device().bind().unwrap();
            // SAFETY: the structure is that of DLPack 1.0, alive until the deleter is called, once.
            unsafe {
                assert_eq!(((*raw).major, (*raw).flags), (1, 0));
                let tensor = &(*raw).tensor;
                assert_eq!((tensor.device_type, tensor.device_id), (2, 0));
                assert_eq!((tensor.ndim, tensor.code, tensor.bits, tensor.lanes), (2, 1, 8, 1));
                assert_eq!(std::slice::from_raw_parts(tensor.shape, 2), [2, 3]);
                assert_eq!(std::slice::from_raw_parts(tensor.strides, 2), [3, 1]);
                let from = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
                gpu.device().driver().cuMemcpyDtoDAsync_v2(target.address(), from, 6, theirs.raw()).unwrap();
                (*raw).deleter.unwrap()(raw);
            }
        }
        // The memory comes again, behind the other library's copy.
        let next = GpuArray::from_elem(&gpu, (2, 3), 9_u8).unwrap();
        assert_eq!(y.to_vec().unwrap(), [7; 6]);
        assert_eq!(next.to_vec().unwrap(), [9; 6]);
        drop((y, next, writer, theirs));
        check_clean(gpu, seed);
    }
}

/// A library from before DLPack 1.0 reads an array, and deletes the tensor on another thread.
#[test]
fn legacy_tensors_have_their_own_structure() {
    let gpu = gpu();
    let theirs = Stream::new(gpu.device()).unwrap();
    let x = GpuArray::from_array(&gpu, &array![[1_i16, 2], [3, 4], [5, 6]]).unwrap();
    let address = x.address();
    let tensor: legacy::Dlpack = x.into_dlpack(&theirs).unwrap();
    let raw: *mut CLegacyTensor = tensor.into_raw().cast();
    // SAFETY: the structure is that of DLPack 0.8, alive until the deleter is called.
    let tensor = unsafe { &(*raw).tensor };
    assert_eq!(tensor.data.expose_provenance() as u64 + tensor.byte_offset, address);
    assert_eq!((tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes), (2, 2, 0, 16, 1));
    // SAFETY: there are two axes.
    assert_eq!(unsafe { std::slice::from_raw_parts(tensor.strides, 2) }, [2, 1]);
    let before = gpu.pool().status().unwrap().in_use_bytes;
    let exposed = raw.expose_provenance();
    std::thread::spawn(move || {
        let raw: *mut CLegacyTensor = std::ptr::with_exposed_provenance_mut(exposed);
        // SAFETY: the only call of the deleter, which DLPack allows on any thread.
        unsafe { (*raw).deleter.unwrap()(raw) };
    })
    .join()
    .unwrap();
    assert!(gpu.pool().status().unwrap().in_use_bytes < before);
    drop(theirs);
    check_clean(gpu, 0);
}

/// The description of an exported tensor.
fn described<M: ManagedTensorBase>(tensor: &Managed<M>) -> DLTensor {
    // SAFETY: the tensor is alive, and nothing changes it.
    unsafe { *tensor.tensor() }
}

#[test]
fn every_kind_of_array_is_described() {
    let gpu = gpu();
    let columns = GpuArray::from_array(&gpu, &array![[1.0_f64, 2.0], [3.0, 4.0]].reversed_axes()).unwrap();
    let tensor: versioned::Dlpack = columns.into_dlpack(gpu.stream()).unwrap();
    assert_eq!((described(&tensor).dtype.code.0, described(&tensor).dtype.bits), (2, 64));
    assert_eq!(tensor.validate().unwrap().strides().unwrap(), [1, 2]);
    let pinned = GpuArray::from_elem(&gpu.pinned(), 3, true).unwrap();
    let pinned: versioned::Dlpack = pinned.into_dlpack(gpu.stream()).unwrap();
    assert_eq!((described(&pinned).device.device_type.0, described(&pinned).dtype.code.0), (3, 6));
    let unified = GpuArray::from_elem(&gpu.unified(), 3, 1_i16).unwrap();
    let unified: versioned::Dlpack = unified.into_dlpack(gpu.stream()).unwrap();
    assert_eq!((described(&unified).device.device_type.0, described(&unified).dtype.bits), (13, 16));
    let empty: versioned::Dlpack =
        GpuArray::<bool, _>::zeros(&gpu, (0, 3)).unwrap().into_dlpack(gpu.stream()).unwrap();
    assert!(described(&empty).data.is_null());
    let scalar: versioned::Dlpack =
        GpuArray::from_elem(&gpu, (), true).unwrap().into_dlpack(gpu.stream()).unwrap();
    assert_eq!(described(&scalar).ndim, 0);
    // And back, in every kind.
    for (tensor, expected) in [(pinned, Some(3)), (unified, None), (empty, Some(0)), (scalar, Some(1))] {
        // SAFETY: the tensors are those of this crate, and nothing else uses them.
        let back: Result<DlpackArray<bool, IxDyn>, _> = unsafe { DlpackArray::from_dlpack(&gpu, tensor) };
        assert_eq!(back.ok().map(|array| array.view().to_array().unwrap().len()), expected);
    }
}

/// Python names streams by numbers.
#[test]
fn streams_have_the_numbers_of_python() {
    let gpu = gpu();
    let theirs = Stream::new(gpu.device()).unwrap();
    // SAFETY: the handles are those of live streams.
    let stream = |number| unsafe { gpu.dlpack_stream(number) };
    assert_eq!(stream(Some(-1)).unwrap().id(), gpu.stream().id());
    assert_eq!(stream(None).unwrap().id(), Stream::legacy(gpu.device()).unwrap().id());
    assert_eq!(stream(Some(1)).unwrap().id(), Stream::legacy(gpu.device()).unwrap().id());
    assert_eq!(stream(Some(2)).unwrap().id(), Stream::per_thread(gpu.device()).unwrap().id());
    assert_eq!(stream(Some(theirs.raw() as i64)).unwrap().raw(), theirs.raw());
    let error = stream(Some(0)).unwrap_err();
    assert!(matches!(&error, ArrayError::Dlpack { field: "stream", .. }), "{error}");
}

/// A tensor of the other library, over a block of memory.
struct Theirs {
    tensor: DLManagedTensorVersioned,
    _memory: GpuArray<f32, Ix1>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: &'static AtomicUsize,
    home: Stream,
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the context is the box of `theirs`, and this is the only call.
    let theirs = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Theirs>()) };
    theirs.deleted.fetch_add(1, Ordering::SeqCst);
    // Their next work on the memory, in the order of the stream alone. It races with any use that is not ordered before.
    let (driver, address) = (theirs.home.device().driver(), theirs._memory.address());
    let _bound = theirs.home.device().bind().unwrap();
    // SAFETY: the memory has as many bytes.
    let queued = theirs.home.queue_work(MemoryRange::NONE, |raw| unsafe {
        driver.cuMemsetD8Async(address, 0, 4 * theirs._memory.len(), raw)
    });
    queued.unwrap().unwrap();
}

fn theirs(
    gpu: &Gpu,
    deleted: &'static AtomicUsize,
    (shape, strides): (&[i64], Option<&[i64]>),
    change: impl FnOnce(&mut DLManagedTensorVersioned),
) -> versioned::Dlpack {
    let memory = GpuArray::from_fn(gpu, 24, |index| index as f32).unwrap();
    let data = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
    let dl_tensor = DLTensor {
        data,
        device: DLDevice::cuda(0),
        ndim: shape.len() as i32,
        dtype: DLDataType::F32,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let tensor = DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 1 },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete),
        flags: DlpackFlags::empty(),
        dl_tensor,
    };
    let (shape, strides) = (shape.to_vec(), strides.map(<[i64]>::to_vec));
    let has_strides = strides.is_some();
    let strides = strides.unwrap_or_default();
    let theirs = Theirs { tensor, _memory: memory, shape, strides, deleted, home: gpu.stream().clone() };
    let theirs = Box::into_raw(Box::new(theirs));
    // SAFETY: the box is alive, and nothing else has it.
    unsafe {
        (*theirs).tensor.manager_ctx = theirs.cast();
        (*theirs).tensor.dl_tensor.shape = (*theirs).shape.as_mut_ptr();
        if has_strides {
            (*theirs).tensor.dl_tensor.strides = (*theirs).strides.as_mut_ptr();
        }
        change(&mut (*theirs).tensor);
        versioned::Dlpack::from_raw(&raw mut (*theirs).tensor).unwrap()
    }
}

/// An array of another library is read and written on several streams, and goes back behind all of that.
#[test]
fn an_array_of_another_library_is_used_in_place() {
    static DELETED: AtomicUsize = AtomicUsize::new(0);
    for seed in 0..50 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let (second, third) = (gpu.fork().unwrap(), gpu.fork().unwrap());
        // Every second column, rows backwards.
        let tensor = theirs(&gpu, &DELETED, (&[4, 3], Some(&[-6, 2])), |tensor| {
            tensor.dl_tensor.byte_offset = 18 * 4;
        });
        // SAFETY: the tensor lies within its memory, and its owner uses it only when it is deleted.
        let mut x: DlpackArray<f32, Ix2> = unsafe { DlpackArray::from_dlpack(&gpu, tensor) }.unwrap();
        let expected = array![[18.0, 20.0, 22.0], [12.0, 14.0, 16.0], [6.0, 8.0, 10.0], [0.0, 2.0, 4.0]];
        assert_eq!(x.view().to_array().unwrap(), expected);
        x.view_mut().unwrap().on_mut(&second).try_add_assign(1.0).unwrap();
        let doubled = x.view().on(&third).try_mul(2.0).unwrap();
        let sum = x.view().on(&second).sum().unwrap();
        drop(x);
        assert_eq!(DELETED.load(Ordering::SeqCst) as u64, seed + 1);
        assert_eq!(doubled.to_array().unwrap(), (&expected + 1.0) * 2.0);
        assert_eq!(sum.into_scalar().unwrap(), expected.sum() + 12.0);
        drop((doubled, second, third));
        gpu.device().synchronize().unwrap();
        check_clean(gpu, seed);
    }
}

/// Two arrays over one address are two arrays, also in an expression: a write of either waits for it.
#[test]
fn a_tensor_that_is_imported_twice_is_used_twice() {
    static DELETED: AtomicUsize = AtomicUsize::new(0);
    for seed in 0..50 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let (reader, writer) = (gpu.fork().unwrap(), gpu.fork().unwrap());
        let first = theirs(&gpu, &DELETED, (&[24], None), |_| {});
        let data = described(&first).data;
        let second = theirs(&gpu, &DELETED, (&[24], None), |tensor| tensor.dl_tensor.data = data);
        // SAFETY: the tensors lie within the memory of the first, and their owner uses it only when they are deleted.
        let x: DlpackArray<f32, Ix1> = unsafe { DlpackArray::from_dlpack(&gpu, first) }.unwrap();
        // SAFETY: that holds for the second tensor too.
        let mut y: DlpackArray<f32, Ix1> = unsafe { DlpackArray::from_dlpack(&gpu, second) }.unwrap();
        let sum = (x.view().on(&reader).lazy() + y.view()).eval().unwrap();
        y.view_mut().unwrap().on_mut(&writer).fill(-1.0).unwrap();
        gpu.device().synchronize().unwrap();
        let wanted: Vec<_> = (0..24).map(|index| 2.0 * index as f32).collect();
        assert_eq!(sum.to_vec().unwrap(), wanted, "replay: GPUMEM_SIM_SEED={seed}");
        drop((x, y, sum, reader, writer));
        gpu.device().synchronize().unwrap();
        check_clean(gpu, seed);
    }
}

#[test]
fn tensors_that_do_not_fit_are_given_back() {
    static DELETED: AtomicUsize = AtomicUsize::new(0);
    type Change = fn(&mut DLManagedTensorVersioned);
    let gpu = gpu();
    let changes: [(&str, Change); 13] = [
        ("device", |tensor| tensor.dl_tensor.device = DLDevice::CPU),
        ("device", |tensor| tensor.dl_tensor.device.device_id = 1),
        ("device", |tensor| tensor.dl_tensor.device.device_id = -1),
        ("dtype", |tensor| tensor.dl_tensor.dtype.bits = 64),
        ("dtype", |tensor| tensor.dl_tensor.dtype.lanes = 4),
        ("ndim", |tensor| tensor.dl_tensor.ndim = 1),
        ("tensor", |tensor| tensor.dl_tensor.ndim = -1),
        ("tensor", |tensor| tensor.dl_tensor.shape = std::ptr::null_mut()),
        // Required since DLPack 1.2.
        ("tensor", |tensor| (tensor.version.minor, tensor.dl_tensor.strides) = (2, std::ptr::null_mut())),
        // SAFETY: the pointer is that of two lengths.
        ("tensor", |tensor| unsafe { *tensor.dl_tensor.shape = -3 }),
        // SAFETY: the pointer is that of two strides.
        ("strides", |tensor| unsafe { *tensor.dl_tensor.strides = i64::MAX / 2 }),
        ("data", |tensor| tensor.dl_tensor.data = std::ptr::null_mut()),
        ("byte_offset", |tensor| tensor.dl_tensor.byte_offset = 2),
    ];
    for (index, (expected, change)) in changes.into_iter().enumerate() {
        let tensor = theirs(&gpu, &DELETED, (&[4, 6], Some(&[6, 1])), change);
        // SAFETY: what is wrong is refused.
        let refused = unsafe { DlpackArray::<f32, Ix2>::from_dlpack(&gpu, tensor) }.unwrap_err();
        let ArrayError::Dlpack { field, .. } = refused.error() else { panic!("{refused}") };
        assert_eq!(*field, expected, "{refused}");
        assert_eq!(DELETED.load(Ordering::SeqCst), index);
        drop(refused.into_value());
    }
}

#[test]
fn what_cannot_be_written_has_no_mutable_view() {
    const NONE: DlpackFlags = DlpackFlags::empty();
    static DELETED: AtomicUsize = AtomicUsize::new(0);
    let gpu = gpu();
    let cases: [(&[i64], &[i64], DlpackFlags, bool); 5] = [
        (&[4, 6], &[6, 1], NONE, true),
        (&[4, 6], &[6, 1], DlpackFlags::READ_ONLY, false),
        (&[4, 6], &[0, 1], NONE, false),
        (&[4, 3], &[2, 1], NONE, false),
        (&[6, 4], &[1, 6], NONE, true),
    ];
    for (shape, strides, flags, is_writable) in cases {
        let tensor = theirs(&gpu, &DELETED, (shape, Some(strides)), |tensor| tensor.flags = flags);
        // SAFETY: the elements lie within the memory.
        let mut x: DlpackArray<f32, IxDyn> = unsafe { DlpackArray::from_dlpack(&gpu, tensor) }.unwrap();
        assert_eq!(x.view_mut().is_ok(), is_writable, "{shape:?} {strides:?}");
        let found = x.view().to_array().unwrap();
        for (index, element) in found.indexed_iter() {
            let place: i64 =
                index.slice().iter().zip(strides).map(|(index, stride)| *index as i64 * stride).sum();
            assert_eq!(*element, place as f32);
        }
    }
    // Without strides, elements are contiguous by rows.
    let tensor = theirs(&gpu, &DELETED, (&[2, 3, 4], None), |_| {});
    // SAFETY: the elements lie within the memory.
    let x: DlpackArray<f32, IxDyn> = unsafe { DlpackArray::from_dlpack(&gpu, tensor) }.unwrap();
    assert_eq!(
        x.view().index_axis(Axis(0), 1).unwrap().slice(s![2, ..]).unwrap().to_vec().unwrap(),
        [20.0, 21.0, 22.0, 23.0]
    );
}

#[test]
fn arrays_of_captures_and_of_other_devices_are_not_exported() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let [first, second] = [0, 1]
        .map(|ordinal| Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap());
    let x = GpuArray::from_elem(&first, 3, 1.0_f32).unwrap();
    let Err(rejected) = x.into_dlpack::<DLManagedTensor>(second.stream()) else { panic!("another device") };
    assert!(matches!(rejected.error(), ArrayError::WrongDevice { .. }), "{rejected}");
    assert_eq!(rejected.into_value().to_vec().unwrap(), [1.0; 3]);
    let captured = first.capture(|c| {
        GpuArray::<f32, _>::zeros(c, 3)?.into_dlpack::<DLManagedTensorVersioned>(c.stream())?;
        Ok(())
    });
    assert!(matches!(captured, Err(ArrayError::Graph(_))), "{captured:?}");
    first.device().synchronize().unwrap();
}
