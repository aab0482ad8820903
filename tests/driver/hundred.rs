//! What a driver makes of a hundred kernels that a compiler wrote is what `gpumem-ptx` makes of them, to the bit.

use gpumem_adapt::array::pool::sys::types::CUdeviceptr;
use gpumem_ptx::{Checks, DeviceMemory, Launch, Module, Region};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::fixtures::gpu_results::GpuResults;
use std::cell::Cell;
use std::ffi::CString;
use std::ptr::null_mut;

const PTX: &str = include_str!("../kernels/hundred.ptx");
const BLOCKS: u32 = 4;
const BLOCK_THREADS: u32 = 128;
const THREADS: usize = (BLOCKS * BLOCK_THREADS) as usize;
const WORDS_IN: usize = 3 * THREADS;

fn input() -> Vec<u32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut word = || match next() % 8 {
        0 => (next() % 200) as u32,
        1 => 0_u32.wrapping_sub((next() % 200) as u32),
        _ => next() as u32,
    };
    (0..WORDS_IN).map(|_| word()).collect()
}

fn on_driver(raw: &Raw, names: &[&str], input: &[u32]) -> Vec<Vec<u32>> {
    let (text, driver, mut module) = (CString::new(PTX).unwrap(), &raw.driver, null_mut());
    let (mut from, mut to) = (raw.alloc(4 * WORDS_IN).unwrap(), raw.alloc(4 * THREADS).unwrap());
    let mut threads = THREADS as i32;
    // SAFETY: pointers are to locals that outlive the calls, as large as the calls say; kernels stay within the two allocations.
    unsafe {
        driver.cuModuleLoadData(&mut module, text.as_ptr().cast()).unwrap();
        driver.cuMemcpyHtoD_v2(from, input.as_ptr().cast(), 4 * WORDS_IN).unwrap();
        let outputs = names.iter().map(|name| {
            let (name, mut function) = (CString::new(*name).unwrap(), null_mut());
            driver.cuModuleGetFunction(&mut function, module, name.as_ptr()).unwrap();
            let mut parameters = [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut threads).cast()];
            let parameters = parameters.as_mut_ptr();
            driver
                .cuLaunchKernel(
                    function,
                    BLOCKS,
                    1,
                    1,
                    BLOCK_THREADS,
                    1,
                    1,
                    0,
                    null_mut(),
                    parameters,
                    null_mut(),
                )
                .unwrap();
            let mut output = vec![0_u32; THREADS];
            driver.cuMemcpyDtoH_v2(output.as_mut_ptr().cast(), to, 4 * THREADS).unwrap();
            output
        });
        let outputs = outputs.collect();
        driver.cuModuleUnload(module).unwrap();
        [from, to].into_iter().for_each(|address: CUdeviceptr| driver.cuMemFree_v2(address).unwrap());
        outputs
    }
}

/// Memory at three addresses: input, output, the module's variables.
struct Memory([Vec<Cell<u8>>; 3]);

const PLACES: [u64; 3] = [0x1_0000, 0x10_0000, 0x20_0000];

impl DeviceMemory for Memory {
    fn region(&self, address: u64, size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
        let mut places = PLACES.into_iter().zip(&self.0);
        let (start, cells) = places
            .find(|(start, cells)| address >= *start && address + size_bytes <= start + cells.len() as u64)?;
        Some(Region { start, cells, is_writable: true })
    }
}

fn on_host(module: &Module, name: &str, input: &[u32]) -> Vec<u32> {
    let (mut variables, mut contents) = (Vec::new(), Vec::new());
    for variable in module.variables() {
        contents.resize(contents.len().next_multiple_of(16), 0);
        variables.push(PLACES[2] + contents.len() as u64);
        contents.extend(variable.contents(&[]));
    }
    let cells = |bytes: Vec<u8>| bytes.into_iter().map(Cell::new).collect();
    let words = |words: &[u32]| cells(words.iter().flat_map(|word| word.to_le_bytes()).collect());
    let memory = Memory([words(input), words(&[0; THREADS]), cells(contents)]);
    let mut parameters: Vec<u8> = PLACES[..2].iter().flat_map(|place| place.to_le_bytes()).collect();
    parameters.extend((THREADS as i32).to_le_bytes());
    let launch = Launch {
        grid: [BLOCKS, 1, 1],
        block: [BLOCK_THREADS, 1, 1],
        shared_bytes: 0,
        parameters: &parameters,
        variables: &variables,
        seed: 3,
        steps_max: 1 << 30,
        multiprocessors: 132,
        checks: Checks { races: true, uninitialised: true },
        cores: 1,
    };
    let outcome = module.entry(name).unwrap().run(launch, &memory).unwrap();
    assert_eq!((outcome.mistake, outcome.hazards), (None, Vec::new()), "{name}");
    let bytes: Vec<u8> = memory.0[1].iter().map(Cell::get).collect();
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Nothing in them is wrong, constants of their module included.
#[test]
fn the_simulator_finds_nothing_in_them() {
    let config = gpumem_sim::SimConfig::new().kernel_races(true).uninitialised(true);
    let driver = gpumem_sim::driver(config).unwrap();
    let module = Module::parse(PTX).unwrap();
    let names: Vec<&str> = module.entries().iter().map(|entry| entry.name()).collect();
    on_driver(&Raw::new(&driver).unwrap(), &names, &input());
    let found = gpumem_sim::Sim::of(&driver).unwrap().take_findings();
    assert!(found.is_empty(), "{found:#?}");
}

cases! {
    fn a_hundred_kernels(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (module, input) = (Module::parse(PTX).unwrap(), input());
        let names: Vec<&str> = module.entries().iter().map(|entry| entry.name()).collect();
        assert_eq!(names.len(), 100);
        let unsupported: Vec<_> = module.entries().iter().filter_map(|entry| entry.unsupported()).collect();
        assert!(unsupported.is_empty(), "{unsupported:?}");
        let (mut different, mut results) = (Vec::new(), GpuResults::new(driver));
        for (name, found) in names.iter().zip(on_driver(&raw, &names, &input)) {
            results.add(&format!("kernel {name}"), found.iter().flat_map(|word| word.to_le_bytes()));
            let expected = on_host(&module, name, &input);
            let differing = (0..THREADS).filter(|at| found[*at] != expected[*at]).collect::<Vec<_>>();
            if let Some(at) = differing.first() {
                different.push(format!(
                    "{name}: {} of {THREADS} threads, first {at}: the driver has {:#x}, the host {:#x}",
                    differing.len(), found[*at], expected[*at]
                ));
            }
        }
        assert!(different.is_empty(), "{} kernels differ:\n{}", different.len(), different.join("\n"));
        results.check();
    }
}
