//! Checkpoints: every type and shape there and back, damaged and hostile files, and failures in the middle.

use core::fmt::Debug;
use gpumem_adapt::array::ndarray::{Array1, ArrayD, Ix0, Ix1, Ix2, IxDyn, array, s};
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_adapt::array::pool::{Device, Limit, Pool, PoolError};
use gpumem_adapt::array::{Gpu, GpuArray, GpuView};
use gpumem_adapt::{
    Checkpoint, CheckpointElement, CheckpointError, Dtype, SaveTensor, Tensor, Tensors, save,
    save_with_metadata,
};
use gpumem_sim::{Effect, Rule, Sim, SimConfig};
use half::{bf16, f16};
use num_complex::Complex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn on(driver: &Driver) -> Result<Gpu, Box<dyn std::error::Error>> {
    Ok(Gpu::new(&Pool::new(&Device::new(driver, 0)?)?)?)
}

fn gpu() -> Gpu {
    on(&gpumem_sim::driver(SimConfig::new()).unwrap()).unwrap()
}

/// A folder of the test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// Writes bytes, and opens the file in both ways.
    fn opened(&self, bytes: &[u8]) -> [Result<Checkpoint, CheckpointError>; 2] {
        fs::write(self.file(), bytes).unwrap();
        both(&self.file())
    }

    fn names(&self) -> Vec<String> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Read and mapped.
fn both(path: &Path) -> [Result<Checkpoint, CheckpointError>; 2] {
    // SAFETY: the tests change the file only after the checkpoint's end.
    [Checkpoint::open(path), unsafe { Checkpoint::map(path) }]
}

/// A file with this header. The text is not checked.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn there_and_back<T: CheckpointElement + Debug + PartialEq>(dtype: Dtype, values: [T; 6]) {
    let (gpu, folder) = (gpu(), Folder::new(&format!("round-trip-{dtype}")));
    let long: Vec<T> = values.iter().copied().cycle().take(100_003).collect();
    let shapes: [(&str, Vec<usize>, &[T]); 6] = [
        ("", vec![], &values[..1]),
        ("line\nand \"quotes\"", vec![6], &values),
        ("Gewicht.Ω", vec![3, 2], &values),
        ("empty", vec![0], &[]),
        ("empty.matrices", vec![2, 0, 3], &[]),
        ("long", vec![100_003], &long),
    ];
    let arrays = shapes.each_ref().map(|(name, shape, elements)| {
        let array = ArrayD::from_shape_vec(IxDyn(shape), elements.to_vec()).unwrap();
        (*name, GpuArray::from_array(&gpu, &array).unwrap())
    });
    save(folder.file(), arrays.iter().map(|(name, array)| (name, array))).unwrap();
    assert_eq!(folder.names(), ["model.safetensors"]);
    for checkpoint in both(&folder.file()) {
        let checkpoint = checkpoint.unwrap();
        let mut names = shapes.each_ref().map(|(name, ..)| *name);
        names.sort_unstable();
        assert!(checkpoint.names().eq(names));
        let mut all = checkpoint.load_all(&gpu).unwrap();
        for (name, shape, elements) in &shapes {
            let info = checkpoint.info(name).unwrap();
            assert_eq!((info.dtype, &info.shape), (dtype, shape));
            let array = checkpoint.load::<T, IxDyn>(name, &gpu).unwrap();
            assert_eq!((array.shape(), &array.to_vec().unwrap()[..]), (&shape[..], *elements));
            let tensor = all.remove(*name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &shape[..]));
            assert_eq!(tensor.into_array::<T>().unwrap().to_vec().unwrap(), *elements);
        }
        assert_eq!(checkpoint.load::<T, Ix0>("", &gpu).unwrap().into_scalar().unwrap(), values[0]);
        assert_eq!(checkpoint.load::<T, Ix2>("Gewicht.Ω", &gpu).unwrap().shape(), [3, 2]);
    }
    drop(arrays);
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    assert_eq!(Sim::of(gpu.device().driver()).unwrap().report().findings, []);
}

#[test]
fn every_type_and_shape_there_and_back() {
    there_and_back(Dtype::F64, [0.0, -1.5, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, 1e-9]);
    there_and_back(Dtype::F32, [0.0, -1.5, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, 1e-9]);
    there_and_back(Dtype::F16, [0.0, -1.5, 65504.0, 6e-5, 2.0, 3.0].map(f16::from_f32));
    there_and_back(Dtype::BF16, [0.0, -1.5, 1e38, 1e-38, 2.0, 3.0].map(bf16::from_f32));
    there_and_back(Dtype::I64, [0, -1, i64::MAX, i64::MIN, 5, 6]);
    there_and_back(Dtype::I32, [0, -1, i32::MAX, i32::MIN, 5, 6]);
    there_and_back(Dtype::I16, [0, -1, i16::MAX, i16::MIN, 5, 6]);
    there_and_back(Dtype::I8, [0, -1, i8::MAX, i8::MIN, 5, 6]);
    there_and_back(Dtype::U64, [0, 1, u64::MAX, 4, 5, 6]);
    there_and_back(Dtype::U32, [0, 1, u32::MAX, 4, 5, 6]);
    there_and_back(Dtype::U16, [0, 1, u16::MAX, 4, 5, 6]);
    there_and_back(Dtype::U8, [0, 1, u8::MAX, 4, 5, 6]);
    there_and_back(Dtype::C64, [0.0, -1.5, f32::MAX, 1e-9, 2.0, 3.0].map(|re| Complex::new(re, 0.5 - re)));
    there_and_back(Dtype::BOOL, [true, false, false, true, true, false]);
}

/// Read and written in several chunks.
#[test]
fn a_tensor_larger_than_a_chunk() {
    let (gpu, folder) = (gpu(), Folder::new("large"));
    let numbers = Array1::from_iter(0..(9 << 20) + 7_u32);
    let there = GpuArray::from_array(&gpu, &numbers).unwrap();
    save(folder.file(), [("numbers", &there)]).unwrap();
    for checkpoint in both(&folder.file()) {
        let back = checkpoint.unwrap().load::<u32, Ix1>("numbers", &gpu).unwrap();
        assert!(back.to_array().unwrap() == numbers);
    }
}

/// The error of one chunk ends the threads that read the others.
#[test]
fn an_invalid_element_behind_the_first_chunk_is_named() {
    let (gpu, folder) = (gpu(), Folder::new("invalid"));
    let mut bytes = vec![1_u8; 30 << 20];
    let header =
        format!("{{\"a\":{{\"dtype\":\"BOOL\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}", bytes.len());
    for index in [5, 17 << 20, bytes.len() - 1] {
        bytes[index] = 2;
        for opened in folder.opened(&file(&header, &bytes)) {
            let error = opened.unwrap().load::<bool, Ix1>("a", &gpu).unwrap_err();
            let CheckpointError::InvalidBool { index: found, value: 2, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(found, index);
        }
        bytes[index] = 1;
    }
    for opened in folder.opened(&file(&header, &bytes)) {
        assert!(
            opened
                .unwrap()
                .load::<bool, Ix1>("a", &gpu)
                .unwrap()
                .to_vec()
                .unwrap()
                .iter()
                .all(|truth| *truth)
        );
    }
}

#[test]
fn views_orders_and_kinds_are_saved_in_row_major_order() {
    let (gpu, folder) = (gpu(), Folder::new("orders"));
    let matrix = array![[1, 2, 3], [4, 5, 6]];
    let there = GpuArray::from_array(&gpu, &matrix).unwrap();
    let columns = GpuArray::from_array(&gpu, &matrix.t()).unwrap();
    let steps: GpuView<'_, i32, Ix2> = there.slice(s![.., ..;-2]).unwrap();
    let unified = GpuArray::from_array(&gpu.unified(), &matrix).unwrap();
    let pinned = GpuArray::from_array(&gpu.pinned(), &matrix).unwrap();
    let values: [(&str, &dyn SaveTensor); 4] =
        [("columns", &columns), ("steps", &steps), ("unified", &unified), ("pinned", &pinned)];
    save(folder.file(), values).unwrap();
    let checkpoint = Checkpoint::open(folder.file()).unwrap();
    let load = |name| checkpoint.load::<i32, Ix2>(name, &gpu).unwrap().to_array().unwrap();
    assert_eq!(load("columns"), matrix.t());
    assert_eq!(load("steps"), array![[3, 1], [6, 4]]);
    assert_eq!((load("unified"), load("pinned")), (matrix.clone(), matrix));
}

#[test]
fn texts_and_many_small_tensors_are_kept() {
    let (gpu, folder) = (gpu(), Folder::new("many"));
    let array =
        |index: i64| Tensor::from(GpuArray::from_elem(&gpu, IxDyn(&[index as usize % 7]), index).unwrap());
    let tensors: Tensors = (0..300).map(|index| (format!("layers.{index}"), array(index))).collect();
    let texts = BTreeMap::from([("format".to_owned(), "pt".to_owned()), (String::new(), "Ω\n".to_owned())]);
    save_with_metadata(folder.file(), &tensors, &texts).unwrap();
    for checkpoint in both(&folder.file()) {
        let checkpoint = checkpoint.unwrap();
        assert_eq!(checkpoint.metadata(), &texts);
        let back = checkpoint.load_all(&gpu).unwrap();
        assert!(back.keys().eq(tensors.keys()));
        for (index, tensor) in back {
            let index: i64 = index["layers.".len()..].parse().unwrap();
            assert_eq!(
                tensor.into_array::<i64>().unwrap().to_vec().unwrap(),
                vec![index; index as usize % 7]
            );
        }
    }
    save(folder.file(), &Tensors::new()).unwrap();
    assert!(both(&folder.file()).into_iter().all(|empty| empty.unwrap().load_all(&gpu).unwrap().is_empty()));
}

/// Three tensors, with names, of 4, 6 and 8 bytes.
fn small_file(gpu: &Gpu, folder: &Folder) -> Vec<u8> {
    let bools = GpuArray::from_slice(gpu, &[true, false, true, true]).unwrap();
    let halves = GpuArray::from_elem(gpu, 3, f16::from_f32(1.5)).unwrap();
    let floats = GpuArray::from_elem(gpu, (1, 2), 2.5_f32).unwrap();
    let values: [(&str, &dyn SaveTensor); 3] = [("bools", &bools), ("halves", &halves), ("floats", &floats)];
    save(folder.file(), values).unwrap();
    fs::read(folder.file()).unwrap()
}

#[test]
fn truncated_files_are_errors() {
    let (gpu, folder) = (gpu(), Folder::new("truncated"));
    let bytes = small_file(&gpu, &folder);
    for len in 0..bytes.len() {
        for opened in folder.opened(&bytes[..len]) {
            assert!(matches!(opened, Err(CheckpointError::Malformed { .. })), "{len}: {opened:?}");
        }
    }
    for opened in folder.opened(&[&bytes[..], &[0]].concat()) {
        assert!(matches!(opened, Err(CheckpointError::Malformed { .. })), "{opened:?}");
    }
    // Shorter once it is open: only the safe way allows this.
    fs::write(folder.file(), &bytes).unwrap();
    let checkpoint = Checkpoint::open(folder.file()).unwrap();
    fs::write(folder.file(), &bytes[..bytes.len() - 1]).unwrap();
    let error = checkpoint.load::<bool, Ix1>("bools", &gpu).unwrap_err();
    assert!(matches!(error, CheckpointError::Malformed { .. }), "{error}");
    assert!(error.to_string().contains("became shorter"), "{error}");
    assert!(checkpoint.load_all(&gpu).is_err());
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}

/// Any result, but no panic, and nothing is lost.
#[test]
fn changed_headers_are_results() {
    let (gpu, folder) = (gpu(), Folder::new("changed"));
    let bytes = small_file(&gpu, &folder);
    let mut refused_count = 0;
    for index in 0..bytes.len() {
        for byte in [0, 1, b'"', b'9', b'}', 0xff] {
            let mut changed = bytes.clone();
            changed[index] = byte;
            for opened in folder.opened(&changed) {
                refused_count += usize::from(opened.and_then(|opened| opened.load_all(&gpu)).is_err());
            }
        }
    }
    assert!(refused_count > bytes.len(), "{refused_count}");
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}

#[test]
fn hostile_headers_are_errors() {
    let folder = Folder::new("hostile");
    let tensor = |shape: &str, start: u64, end: u64| {
        format!("{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
    };
    let one = tensor("[1]", 0, 4);
    let cases = [
        (format!("{{\"a\":{one},\"a\":{one}}}"), 4),
        (format!("{{\"a\":{one},\"a\":{}}}", tensor("[1]", 4, 8)), 8),
        (format!("{{\"a\":{one},\"b\":{one}}}"), 4),
        (format!("{{\"a\":{one},\"b\":{}}}", tensor("[1]", 2, 6)), 6),
        (format!("{{\"a\":{one},\"b\":{}}}", tensor("[1]", 8, 12)), 12),
        (format!("{{\"a\":{}}}", tensor("[1]", 4, 0)), 4),
        (format!("{{\"a\":{}}}", tensor("[1]", 0, u64::MAX)), 4),
        (format!("{{\"a\":{}}}", tensor("[2]", 0, 4)), 4),
        (format!("{{\"a\":{}}}", tensor("[4611686018427387905]", 0, 4)), 4),
        (format!("{{\"a\":{}}}", tensor("[4294967296,4294967296,4]", 0, 0)), 0),
        (format!("{{\"a\":{}}}", tensor("[-1]", 0, 4)), 4),
        (format!("{{\"a\":{}}}", tensor("[1.5]", 0, 6)), 6),
        (format!("{{\"a\":{}}}", tensor("[99999999999999999999]", 0, 4)), 4),
        (format!("{{\"a\":{}}}", one.replace("F32", "F33")), 4),
        (format!("{{\"a\":{one}"), 4),
        (format!("{{\"a\":{one}}} x"), 4),
        (format!("[{one}]"), 4),
        ("{\"__metadata__\":{\"a\":1}}".to_owned(), 0),
        ("[".repeat(100_000), 0),
        (format!("{{\"a\":{}", "{\"a\":".repeat(100_000)), 0),
        (String::new(), 0),
        ("null".to_owned(), 0),
    ];
    for (header, size_bytes) in &cases {
        for opened in folder.opened(&file(header, &vec![0; *size_bytes])) {
            let Err(error) = opened else { panic!("{header} was accepted") };
            assert!(matches!(error, CheckpointError::Malformed { .. }), "{error}");
        }
    }
    let header = format!("{{\"a\":{one}}}");
    let valid = file(&header, &[0; 4]);
    assert!(folder.opened(&valid).iter().all(Result::is_ok));
    let no_utf8 = [&valid[..10], &[0xff], &valid[11..]].concat();
    let lengths = [0, 1, valid.len() as u64, 1 << 32, 1 << 62, u64::MAX - 7, u64::MAX];
    let lengths = lengths.map(|length| [&length.to_le_bytes(), &valid[8..]].concat());
    for bytes in lengths.iter().chain([&no_utf8, &Vec::new()]) {
        for opened in folder.opened(bytes) {
            assert!(matches!(opened, Err(CheckpointError::Malformed { .. })), "{opened:?}");
        }
    }
    for opened in both(&folder.0.join("missing")) {
        let error = opened.unwrap_err();
        assert!(matches!(error, CheckpointError::Io { operation: "open", .. }), "{error}");
    }
}

/// The format asks for aligned tensors, and older files have others.
#[test]
fn unaligned_tensors_are_loaded() {
    let (gpu, folder) = (gpu(), Folder::new("unaligned"));
    let numbers = [1.5_f64, -2.5];
    for padding in 0..16 {
        let header = format!(
            "{{\"byte\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}},\
             \"numbers\":{{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[1,17]}}}}{}",
            " ".repeat(padding)
        );
        let data = [&[7][..], bytemuck::cast_slice(&numbers)].concat();
        for checkpoint in folder.opened(&file(&header, &data)) {
            let checkpoint = checkpoint.unwrap();
            assert_eq!(checkpoint.load::<f64, Ix1>("numbers", &gpu).unwrap().to_vec().unwrap(), numbers);
            assert_eq!(checkpoint.load::<u8, Ix1>("byte", &gpu).unwrap().to_vec().unwrap(), [7]);
        }
    }
}

#[test]
fn tensors_that_are_not_as_expected() {
    let (gpu, folder) = (gpu(), Folder::new("unexpected"));
    let tensor = |dtype: &str, shape: &str, start: usize, end: usize| {
        format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
    };
    let header = format!(
        "{{\"flags\":{},\"eighth\":{},\"wide\":{}}}",
        tensor("BOOL", "[5]", 0, 5),
        tensor("F8_E4M3", "[2]", 5, 7),
        tensor("F32", "[0,9223372036854775807]", 7, 7)
    );
    for checkpoint in folder.opened(&file(&header, &[0, 1, 1, 2, 3, 0, 0])) {
        let checkpoint = checkpoint.unwrap();
        let error = checkpoint.load::<bool, Ix1>("flags", &gpu).unwrap_err();
        assert!(matches!(&error, CheckpointError::InvalidBool { index: 3, value: 2, .. }), "{error}");
        let error = checkpoint.load::<u8, Ix1>("flags", &gpu).unwrap_err();
        assert_eq!(
            error.to_string().split(';').next(),
            Some("tensor \"flags\": expected elements of type U8, found BOOL")
        );
        let error = checkpoint.load::<bool, Ix2>("flags", &gpu).unwrap_err();
        assert_eq!(
            error.to_string().split(';').next(),
            Some("tensor \"flags\": expected 2 axes, found shape [5]")
        );
        let error = checkpoint.load::<bool, Ix1>("flag", &gpu).unwrap_err();
        assert!(matches!(&error, CheckpointError::NoSuchTensor { name } if &**name == "flag"), "{error}");
        let error = checkpoint.load_all(&gpu).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::UnsupportedDtype { name, dtype: Dtype::F8_E4M3 } if &**name == "eighth"),
            "{error}"
        );
        let error = checkpoint.load::<f32, Ix2>("wide", &gpu).unwrap_err();
        assert!(matches!(&error, CheckpointError::Array { name, .. } if &**name == "wide"), "{error}");
        assert!(!error.is_out_of_memory());
    }
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}

#[test]
fn memory_that_runs_out_names_the_tensor() {
    let (all, folder) = (gpu(), Folder::new("memory"));
    let arrays = [1 << 10, 4 << 20, 1 << 10].map(|len| GpuArray::from_elem(&all, len, 1.0_f32).unwrap());
    save(folder.file(), ["a", "b", "c"].into_iter().zip(&arrays)).unwrap();
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(8 << 20)).build().unwrap()).unwrap();
    for checkpoint in both(&folder.file()) {
        let error = checkpoint.unwrap().load_all(&gpu).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert!(error.to_string().starts_with("tensor \"b\": "), "{error}");
        assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    }
}

#[test]
fn a_save_that_fails_keeps_the_file() {
    let (gpu, folder) = (gpu(), Folder::new("kept"));
    let bytes = small_file(&gpu, &folder);
    let ones = GpuArray::from_elem(&gpu, 3, 1_u8).unwrap();
    for (names, reason) in [(["a", "a"], "another tensor"), (["a", "__metadata__"], "reserves")] {
        let error = save(folder.file(), names.map(|name| (name, &ones))).unwrap_err();
        assert!(matches!(error, CheckpointError::InvalidName { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = save(folder.0.join("missing/file"), [("a", &ones)]).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { operation: "create", .. }), "{error}");
    // A folder cannot be replaced by a file.
    fs::create_dir(folder.0.join("folder")).unwrap();
    let error = save(folder.0.join("folder"), [("a", &ones)]).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { operation: "replace", .. }), "{error}");
    // Bytes that are no `bool`.
    let twos = GpuArray::from_elem(&gpu, 3, 2_u8).unwrap();
    let bools = twos.reinterpret::<bool>().unwrap();
    let error = save(folder.file(), [("truth", &bools)]).unwrap_err();
    assert!(error.to_string().starts_with("tensor \"truth\": element 0"), "{error}");

    assert_eq!(fs::read(folder.file()).unwrap(), bytes);
    let mut names = folder.names();
    names.sort_unstable();
    assert_eq!(names, ["folder", "model.safetensors"]);
}

#[test]
fn unusual_paths() {
    let (gpu, folder) = (gpu(), Folder::new("paths"));
    let ones = GpuArray::from_elem(&gpu, 3, 1_u8).unwrap();
    // A folder is not a checkpoint, and neither are empty files.
    assert!(both(&folder.0).iter().all(Result::is_err));
    fs::write(folder.file(), []).unwrap();
    assert!(
        both(&folder.file()).iter().all(|opened| matches!(opened, Err(CheckpointError::Malformed { .. })))
    );
    // As long as a name can be.
    let long = folder.0.join("n".repeat(255));
    save(&long, [("a", &ones)]).unwrap();
    assert_eq!(
        Checkpoint::open(&long).unwrap().load::<u8, Ix1>("a", &gpu).unwrap().to_vec().unwrap(),
        [1; 3]
    );
    let longer = save(folder.0.join("n".repeat(256)), [("a", &ones)]).unwrap_err();
    assert!(matches!(&longer, CheckpointError::Io { .. }), "{longer}");
    for path in ["", ".", "..", "/"] {
        let error = save(path, [("a", &ones)]).unwrap_err();
        assert!(matches!(&error, CheckpointError::Io { .. }), "{path}: {error}");
        assert!(!error.is_out_of_memory());
    }
    assert_eq!(folder.names().len(), 2);
}

#[cfg(unix)]
#[test]
fn permissions_stay_and_devices_too() {
    use std::os::unix::fs::PermissionsExt;
    let (gpu, folder) = (gpu(), Folder::new("permissions"));
    let ones = GpuArray::from_elem(&gpu, 3, 1_u8).unwrap();
    save(folder.file(), [("a", &ones)]).unwrap();
    for mode in [0o600, 0o640, 0o444] {
        fs::set_permissions(folder.file(), fs::Permissions::from_mode(mode)).unwrap();
        save(folder.file(), [("b", &ones)]).unwrap();
        assert_eq!(fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777, mode);
    }
    // A socket stands for everything that is not a file.
    let socket = folder.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = save(&socket, [("a", &ones)]).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { operation: "replace", .. }), "{error}");
    assert!(!fs::metadata(&socket).unwrap().is_file());
    // To open a pipe would wait for a writer.
    for opened in both(Path::new("/dev/null")) {
        let error = opened.unwrap_err();
        assert!(matches!(error, CheckpointError::Io { operation: "open", .. }), "{error}");
    }
    assert_eq!(folder.names().len(), 2);
}

/// Every type of the format that arrays cannot have, in whole bytes and in parts of them.
#[test]
fn types_without_elements_are_named() {
    let (gpu, folder) = (gpu(), Folder::new("types"));
    for (dtype, len, size_bytes) in [
        ("F4", 4, 2),
        ("F6_E2M3", 4, 3),
        ("F6_E3M2", 4, 3),
        ("F8_E5M2", 2, 2),
        ("F8_E4M3", 2, 2),
        ("F8_E8M0", 2, 2),
    ] {
        let header = format!(
            "{{\"known\":{{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}},\
             \"odd\":{{\"dtype\":\"{dtype}\",\"shape\":[{len}],\"data_offsets\":[4,{}]}}}}",
            4 + size_bytes
        );
        for checkpoint in folder.opened(&file(&header, &vec![0; 4 + size_bytes])) {
            let checkpoint = checkpoint.unwrap();
            assert_eq!(checkpoint.load::<i32, Ix1>("known", &gpu).unwrap().to_vec().unwrap(), [0]);
            let error = checkpoint.load_all(&gpu).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::UnsupportedDtype { name, .. } if &**name == "odd"),
                "{dtype}: {error}"
            );
            let error = checkpoint.load::<u8, Ix1>("odd", &gpu).unwrap_err();
            assert!(matches!(error, CheckpointError::WrongDtype { .. }), "{dtype}: {error}");
        }
    }
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Headers of the right form with any numbers: a result, and no allocation of what they claim.
    #[test]
    fn headers_with_any_numbers(
        tensors in prop::collection::vec((0..13_usize, prop::collection::vec(length(), 0..4), length(), length()), 0..5),
        size_bytes in 0..64_usize,
    ) {
        let (gpu, folder) = (gpu(), Folder::new("numbers"));
        const TYPES: [&str; 13] =
            ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"];
        let entries = tensors.iter().enumerate().map(|(index, (dtype, shape, start, end))| {
            let dtype = TYPES[*dtype];
            format!("\"t{index}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        for opened in folder.opened(&file(&header, &vec![1; size_bytes])) {
            match opened.and_then(|opened| opened.load_all(&gpu)) {
                Ok(loaded) => prop_assert_eq!(loaded.len(), tensors.len()),
                Err(error) => prop_assert!(!error.is_out_of_memory(), "{}", error),
            }
        }
        prop_assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
    }
}

/// Small numbers, and those where sizes overflow.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..9_u64, 1 => Just(1 << 32), 1 => Just(u64::MAX >> 1), 1 => Just(u64::MAX), 1 => Just(1 << 61)]
}

#[test]
fn many_threads_read_one_file() {
    let folder = Folder::new("threads");
    let gpu = gpu();
    let arrays: Vec<_> = (0..8_u32).map(|index| GpuArray::from_elem(&gpu, 30_000, index).unwrap()).collect();
    let names: Vec<String> = (0..8).map(|index| format!("t{index}")).collect();
    save(folder.file(), names.iter().zip(&arrays)).unwrap();
    for checkpoint in both(&folder.file()) {
        let checkpoint = &checkpoint.unwrap();
        std::thread::scope(|scope| {
            for (index, name) in names.iter().enumerate() {
                let gpu = gpu.fork().unwrap();
                scope.spawn(move || {
                    for _ in 0..5 {
                        let loaded = checkpoint.load::<u32, Ix1>(name, &gpu).unwrap().to_vec().unwrap();
                        assert!(loaded.len() == 30_000 && loaded.iter().all(|value| *value == index as u32));
                    }
                });
            }
        });
    }
}

/// A checkpoint that is open keeps its bytes while its file is replaced.
#[cfg(unix)]
#[test]
fn a_file_is_replaced_while_it_is_open() {
    let (gpu, folder) = (gpu(), Folder::new("replaced"));
    let bytes = small_file(&gpu, &folder);
    let opened = both(&folder.file()).map(Result::unwrap);
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(folder.file(), &link).unwrap();
    save(&link, [("other", &GpuArray::from_elem(&gpu, 3, 1_u8).unwrap())]).unwrap();
    assert!(link.is_symlink());
    for checkpoint in opened {
        assert_eq!(checkpoint.load_all(&gpu).unwrap().len(), 3);
        save(folder.file(), &checkpoint.load_all(&gpu).unwrap()).unwrap();
        assert_eq!(fs::read(folder.file()).unwrap(), bytes);
    }
}

/// A link to a file that does not exist yet stays, and the file is created.
#[cfg(unix)]
#[test]
fn a_file_is_created_through_links() {
    use std::os::unix::fs::symlink;
    let (gpu, folder) = (gpu(), Folder::new("links"));
    let array = GpuArray::from_elem(&gpu, 3, 1_u8).unwrap();
    let at = |name: &str| folder.0.join(name);
    symlink("second", at("first")).unwrap(); // relative to the folder of the link
    symlink(folder.file(), at("second")).unwrap();
    save(at("first"), [("ones", &array)]).unwrap();
    assert!(at("first").is_symlink() && at("second").is_symlink() && !folder.file().is_symlink());
    let loaded = Checkpoint::open(at("first")).unwrap().load::<u8, Ix1>("ones", &gpu).unwrap();
    assert_eq!(loaded.to_vec().unwrap(), [1; 3]);
    // What cannot be created through a link is an error, and the link stays.
    symlink("circle", at("circle")).unwrap();
    symlink("no/such/folder", at("nowhere")).unwrap();
    for name in ["circle", "nowhere"] {
        let refused = save(at(name), [("ones", &array)]).unwrap_err();
        assert!(matches!(refused, CheckpointError::Io { .. }), "{refused}");
        assert!(at(name).is_symlink());
    }
    assert_eq!(folder.names().len(), 5);
}

/// Fails each driver call of the program once.
#[test]
fn a_failure_at_any_call_leaks_nothing_and_keeps_the_file() {
    let folder = Folder::new("failures");
    let bytes = small_file(&gpu(), &folder);
    let (mut failed_load_count, mut failed_save_count) = (0, 0);
    for nth in 1.. {
        let rule = |effect| Rule::new("*", effect).nth(nth);
        // The byte is taken in the call that fails, and shows that the call was made.
        let taken = rule(Effect::TakeMemory { device: 0, size_bytes: 1 });
        let fails = rule(Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let driver = gpumem_sim::driver(SimConfig::small().rule(taken).rule(fails)).unwrap();
        let sim = Sim::of(&driver).unwrap();
        let is_fired = || sim.others_bytes(0) > 0;
        let (mut is_poisoned, mut is_fired_before_the_end) = (false, false);
        if let Ok(gpu) = on(&driver) {
            for checkpoint in both(&folder.file()) {
                let checkpoint = checkpoint.unwrap();
                let one = checkpoint.load::<f32, Ix2>("floats", &gpu).map(|array| array.shape().to_vec());
                let saved = match checkpoint.load_all(&gpu) {
                    Ok(tensors) => {
                        let saved = save(folder.file(), &tensors);
                        failed_save_count += usize::from(saved.is_err());
                        saved
                    }
                    Err(error) => Err(error),
                };
                for error in [one.err(), saved.err()].into_iter().flatten() {
                    assert!(is_fired(), "call {nth}: {error}");
                    failed_load_count += 1;
                    assert!(error.to_string().starts_with("tensor \""), "call {nth}: {error}");
                }
                assert_eq!(fs::read(folder.file()).unwrap(), bytes, "call {nth}");
                assert_eq!(folder.names(), ["model.safetensors"], "call {nth}");
            }
            is_fired_before_the_end = is_fired();
            is_poisoned = matches!(gpu.pool().alloc(0, gpu.stream()), Err(PoolError::Poisoned { .. }));
            if !is_poisoned {
                let status = gpu.pool().status().unwrap_or_else(|_| gpu.pool().status().unwrap());
                assert_eq!(status.in_use_bytes, 0, "call {nth}");
            }
        }
        let report = sim.report();
        assert!(report.silent_findings().is_empty(), "call {nth}: {report}");
        if is_fired_before_the_end && !is_poisoned {
            assert!(report.allocations.is_empty(), "call {nth}: {report}");
            assert_eq!((report.handle_count, report.reservation_count), (0, 0), "call {nth}: {report}");
        }
        if !is_fired() {
            break;
        }
    }
    assert!(failed_load_count >= 6 && failed_save_count >= 3, "{failed_load_count}, {failed_save_count}");
}
