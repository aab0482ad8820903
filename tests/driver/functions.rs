//! Calls through addresses of functions that variables of a module hold: tables of functions, and C++ virtual functions. Structures that
//! functions take and give.

use gpumem_sim::{Finding, Sim, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

const PTX: &str = include_str!("../kernels/functions.ptx");
const LEN: usize = 96;

/// The module on a driver, with two arrays: 64 bytes of room for each number.
struct Loaded<'r> {
    raw: &'r Raw,
    module: CUmodule,
    a: CUdeviceptr,
    b: CUdeviceptr,
}

impl<'r> Loaded<'r> {
    fn new(raw: &'r Raw) -> Self {
        let text = CString::new(PTX).unwrap();
        let (a, b) = (raw.alloc(64 * LEN).unwrap(), raw.alloc(64 * LEN).unwrap());
        let (numbers, mut module) = (numbers(), null_mut());
        // SAFETY: pointers are to locals that outlive the calls, as large as the calls say.
        unsafe {
            raw.driver.cuModuleLoadData(&mut module, text.as_ptr().cast()).unwrap();
            raw.driver.cuMemcpyHtoD_v2(a, numbers.as_ptr().cast(), 4 * LEN).unwrap();
        }
        Self { raw, module, a, b }
    }

    /// Runs a kernel on two addresses, the number of numbers, and a pointer, and gives what its context says.
    fn run(&self, name: &str, [mut from, mut to]: [CUdeviceptr; 2], mut function: u64) -> CUresult {
        let (name, mut kernel, mut len) = (CString::new(name).unwrap(), null_mut(), LEN as i32);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut len).cast(), (&raw mut function).cast()];
        let parameters = parameters.as_mut_ptr();
        let driver = &self.raw.driver;
        // SAFETY: pointers are to locals that outlive the calls; kernels stay within the allocations.
        unsafe {
            driver.cuModuleGetFunction(&mut kernel, self.module, name.as_ptr()).unwrap();
            driver.cuLaunchKernel(kernel, 3, 1, 1, 32, 1, 1, 0, null_mut(), parameters, null_mut()).unwrap();
            gpumem_tests::driver::raw::code(driver.cuCtxSynchronize())
        }
    }

    fn found(&self) -> Vec<i32> {
        let bytes = self.raw.read(self.b, 4 * LEN).unwrap();
        bytes.chunks(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

fn numbers() -> Vec<i32> {
    (0..LEN as i32).map(|i| (i * 7) % 31 - 9).collect()
}

fn expected(of: impl Fn(i32, i32) -> i32) -> Vec<i32> {
    numbers().into_iter().enumerate().map(|(i, a)| of(i as i32, a)).collect()
}

const FUNCTIONS: [fn(i32) -> i32; 3] = [|a| 2 * a, |a| a * a, |a| -a];

fn described(i: i32, a: i32) -> i32 {
    if a & 1 == 1 { 10 * (a * i / 2) + 3 } else { 10 * a * a + 4 }
}

cases! {
    fn tables_of_functions(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let loaded = Loaded::new(&raw);
        assert_eq!(loaded.run("by_table", [loaded.a, loaded.b], 0), CUresult::CUDA_SUCCESS);
        let [twice, square, negated] = FUNCTIONS;
        let of_table = expected(|i, a| {
            FUNCTIONS[i as usize % 3](a) + [square, twice][i as usize % 2](1) + [5 * negated(a), 7 * square(a)][i as usize % 2]
        });
        assert_eq!(loaded.found(), of_table);
    }

    /// The host reads the value of a variable, which a kernel then gets.
    fn a_pointer_that_the_host_passes(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let loaded = Loaded::new(&raw);
        let (mut variable, mut size_bytes, mut pointer) = (0, 0, 0_u64);
        // SAFETY: pointers are to locals that outlive the calls, and the variable has the size of a pointer.
        unsafe {
            driver.cuModuleGetGlobal_v2(&mut variable, &mut size_bytes, loaded.module, c"chosen".as_ptr()).unwrap();
            assert_eq!(size_bytes, 8);
            driver.cuMemcpyDtoH_v2((&raw mut pointer).cast(), variable, size_bytes).unwrap();
        }
        assert_eq!(loaded.run("given", [loaded.a, loaded.b], pointer), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.found(), expected(|_, a| -a));
    }

    fn virtual_functions(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let loaded = Loaded::new(&raw);
        assert_eq!(loaded.run("by_virtual", [loaded.a, loaded.b], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.found(), expected(described));
        let objects = raw.alloc(64 * LEN).unwrap();
        assert_eq!(loaded.run("make", [loaded.a, objects], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.run("use", [objects, loaded.b], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.found(), expected(described));
    }

    fn structures_with_gaps(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let loaded = Loaded::new(&raw);
        assert_eq!(loaded.run("by_value", [loaded.a, loaded.b], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.found(), expected(|i, a| (i + a + 1) + 2 * (3 * a + 3)));
        let pairs = raw.alloc(64 * LEN).unwrap();
        assert_eq!(loaded.run("make_pairs", [loaded.a, pairs], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.run("use_pairs", [pairs, loaded.b], 0), CUresult::CUDA_SUCCESS);
        assert_eq!(loaded.found(), expected(|_, a| 2 * a));
    }
}

#[test]
fn a_call_behind_the_table_is_found_and_the_others_are_clean() {
    let config = SimConfig::new().kernel_races(true).uninitialised(true);
    let driver = gpumem_sim::driver(config).unwrap();
    let (raw, sim) = (Raw::new(&driver).unwrap(), Sim::of(&driver).unwrap());
    let loaded = Loaded::new(&raw);
    let (objects, pairs) = (raw.alloc(64 * LEN).unwrap(), raw.alloc(64 * LEN).unwrap());
    for (name, places) in [
        ("by_table", [loaded.a, loaded.b]),
        ("by_virtual", [loaded.a, loaded.b]),
        ("make", [loaded.a, objects]),
        ("use", [objects, loaded.b]),
        ("by_value", [loaded.a, loaded.b]),
        ("make_pairs", [loaded.a, pairs]),
        ("use_pairs", [pairs, loaded.b]),
    ] {
        assert_eq!(loaded.run(name, places, 0), CUresult::CUDA_SUCCESS);
        assert_eq!(sim.take_findings(), [], "{name}");
    }
    assert_eq!(loaded.run("wild", [loaded.a, loaded.b], 0), CUresult::CUDA_ERROR_INVALID_PC);
    let found: Vec<String> = sim.take_findings().iter().map(Finding::to_string).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("kernel `wild` failed at line"), "{found:?}");
    assert!(found[0].contains("calls 0x0, which is no function of the kernel"), "{found:?}");
}
