//! What a driver computes from a PTX text is what `gpumem-ptx` computes from it, to the bit.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_ptx::{Checks, DeviceMemory, Launch, Module, Region};
use gpumem_sim::{Sim, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::fixtures::gpu_results::GpuResults;
use gpumem_tests::fixtures::random_ptx::{
    WORDS_IN, WORDS_OUT, branching_module, forms, matrix_forms, module, module_of,
};
use gpumem_tests::sys::Driver;
use std::cell::Cell;
use std::ffi::CString;
use std::ptr::null_mut;

const THREADS: usize = 128;
const KERNELS: usize = 50;

/// Input and output of a kernel, at two addresses.
struct Buffers {
    input: Vec<Cell<u8>>,
    output: Vec<Cell<u8>>,
}

const INPUT: u64 = 0x1_0000;
const OUTPUT: u64 = 0x10_0000;

impl DeviceMemory for Buffers {
    fn region(&self, address: u64, _size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
        let (start, cells) = if address >= OUTPUT { (OUTPUT, &self.output) } else { (INPUT, &self.input) };
        Some(Region { start, cells, is_writable: true })
    }
}

/// Words of all kinds: random, small, and those at the limits of types.
fn inputs(seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    const LIMITS: [u64; 12] = [
        0,
        u64::MAX,
        1 << 63,
        0x7fff_ffff_8000_0000,
        0x7ff0_0000_7f80_0000,
        0xfff8_0000_ffc0_0000,
        0x0010_0000_0080_0000,
        0x000f_ffff_007f_ffff,
        0x3ff0_0000_3f80_0000,
        0x7c00_fc00_7e00_0001,
        0x0000_0001_ffff_ffff,
        0x41ef_ffff_4f00_0000,
    ];
    let mut word = || match next() % 4 {
        0 => LIMITS[(next() % 12) as usize],
        1 => (next() % 200).wrapping_sub(100),
        _ => next(),
    };
    (0..THREADS * WORDS_IN).map(|_| word()).collect()
}

/// Runs the kernels of a module on a driver, all on the same input.
fn on_driver(raw: &Raw, text: &str, kernels: usize, input: &[u64]) -> Vec<Vec<u64>> {
    let text = CString::new(text).unwrap();
    let (mut loaded, driver) = (null_mut(), &raw.driver);
    let (input_bytes, output_bytes) = (size_of_val(input), THREADS * WORDS_OUT * 8);
    let (mut from, mut to) = (raw.alloc(input_bytes).unwrap(), raw.alloc(output_bytes).unwrap());
    // The vendor's compiler does not optimise: when it does, it folds some instructions as if their operands were never the least integer,
    // or never NaN.
    let (mut option, mut level) = (CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, null_mut());
    // SAFETY: pointers are to locals that outlive the calls, as large as the calls say; kernels stay within the two allocations.
    unsafe {
        driver.cuModuleLoadDataEx(&mut loaded, text.as_ptr().cast(), 1, &mut option, &mut level).unwrap();
        driver.cuMemcpyHtoD_v2(from, input.as_ptr().cast(), input_bytes).unwrap();
        let outputs = (0..kernels).map(|number| {
            let mut function = null_mut();
            let name = CString::new(format!("k{number}")).unwrap();
            driver.cuModuleGetFunction(&mut function, loaded, name.as_ptr()).unwrap();
            let mut parameters = [(&raw mut from).cast(), (&raw mut to).cast()];
            let parameters = parameters.as_mut_ptr();
            let threads = THREADS as u32;
            driver
                .cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, null_mut(), parameters, null_mut())
                .unwrap();
            let mut output = vec![0_u64; THREADS * WORDS_OUT];
            driver.cuMemcpyDtoH_v2(output.as_mut_ptr().cast(), to, output_bytes).unwrap();
            output
        });
        let outputs = outputs.collect();
        driver.cuModuleUnload(loaded).unwrap();
        [from, to].into_iter().for_each(|address: CUdeviceptr| driver.cuMemFree_v2(address).unwrap());
        outputs
    }
}

fn on_host(module: &Module, number: usize, input: &[u64]) -> Vec<u64> {
    let cells = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).map(Cell::new).collect();
    let buffers = Buffers { input: cells(input), output: cells(&vec![0; THREADS * WORDS_OUT]) };
    let entry = module.entry(&format!("k{number}")).unwrap();
    assert_eq!(entry.unsupported(), None);
    let parameters: Vec<u8> = [INPUT, OUTPUT].iter().flat_map(|address| address.to_le_bytes()).collect();
    let launch = Launch {
        grid: [1; 3],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
        parameters: &parameters,
        variables: &[],
        seed: 1,
        steps_max: 1 << 20,
        multiprocessors: 132,
        checks: Checks { races: true, uninitialised: true },
        cores: 1,
    };
    let outcome = entry.run(launch, &buffers).unwrap();
    assert_eq!((outcome.mistake, outcome.hazards), (None, Vec::new()), "k{number}");
    let bytes: Vec<u8> = buffers.output.iter().map(Cell::get).collect();
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// A word of a kernel's output, with one NaN in place of all: the bits of those of 64 bits are not determined.
fn determined(at: usize, word: u64) -> u64 {
    let single =
        |bits: u64| if f32::from_bits(bits as u32).is_nan() { 0x7fff_ffff } else { bits & 0xffff_ffff };
    match at % WORDS_OUT {
        12..16 => single(word) | single(word >> 32) << 32,
        16..22 if f64::from_bits(word).is_nan() => u64::MAX >> 1,
        _ => word,
    }
}

/// The first word that is not the same.
fn difference(found: &[u64], expected: &[u64]) -> Option<usize> {
    (0..found.len()).find(|at| determined(*at, found[*at]) != determined(*at, expected[*at]))
}

/// The part of a kernel's text that begins at its name.
fn text_of(text: &str, number: usize) -> &str {
    let start = text.find(&format!(".entry k{number}(")).unwrap();
    let len = text[start..].find("\n}").unwrap_or(text.len() - start);
    &text[start..start + len]
}

cases! {
    /// Each form of an instruction, several times on the same registers.
    fn each_form(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let forms = [forms(), matrix_forms()].concat();
        let (mut different, mut results, input) = (Vec::new(), GpuResults::new(driver), inputs(1));
        for forms in forms.chunks(KERNELS) {
            let text = module_of(forms);
            let parsed = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            let found = on_driver(&raw, &text, forms.len(), &input);
            for (number, (form, found)) in forms.iter().zip(found).enumerate() {
                results.add(form, found.iter().enumerate().flat_map(|(at, word)| determined(at, *word).to_le_bytes()));
                let expected = on_host(&parsed, number, &input);
                if let Some(at) = difference(&found, &expected) {
                    let (found, expected) = (found[at], expected[at]);
                    let (thread, word) = (at / WORDS_OUT, at % WORDS_OUT);
                    different.push(format!(
                        "{form}: the driver has {found:#x}, the host {expected:#x} in word {word} of a thread with {:x?}:\n{}",
                        &input[thread * WORDS_IN..][..WORDS_IN],
                        text_of(&text, number).split_once("%r7, 3;").map_or("", |(_, lines)| lines.split("st.global").next().unwrap_or(""))
                    ));
                }
            }
        }
        assert!(different.is_empty(), "{} forms differ:\n{}", different.len(), different.join("\n"));
        results.check();
    }

    /// 2,000 random programs on a GPU, 100 on the simulator.
    fn random_programs(driver: &Driver) {
        all_are_equal(driver, module);
    }

    /// As many with branches, loops, barriers, and what lanes do together.
    fn random_programs_with_branches(driver: &Driver) {
        all_are_equal(driver, branching_module);
    }
}

fn all_are_equal(driver: &Driver, program: fn(u64, usize) -> String) {
    let raw = Raw::new(driver).unwrap();
    let modules = if Sim::of(driver).is_some() { 2 } else { 40 };
    let mut differences = Vec::new();
    for seed in 1..=modules {
        let (text, input) = (program(seed, KERNELS), inputs(seed));
        let parsed = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        for (number, found) in on_driver(&raw, &text, KERNELS, &input).into_iter().enumerate() {
            let expected = on_host(&parsed, number, &input);
            if let Some(at) = difference(&found, &expected) {
                differences.push((seed, number, at, found[at], expected[at]));
            }
        }
    }
    let texts = differences.iter().take(8).map(|(seed, number, at, found, expected)| {
        format!(
            "module {seed}, kernel {number}, word {} of a thread with {:x?}: the driver has {found:#x}, the host {expected:#x}\n{}",
            at % WORDS_OUT,
            &inputs(*seed)[at / WORDS_OUT * WORDS_IN..][..WORDS_IN],
            text_of(&program(*seed, KERNELS), *number)
        )
    });
    let texts: Vec<String> = texts.collect();
    let all = modules as usize * KERNELS;
    assert!(differences.is_empty(), "{} of {all} programs differ\n{}", differences.len(), texts.join("\n"));
}

/// Programs with branches compute the same, whichever warp runs first, and nothing is found in them.
#[test]
fn programs_with_branches_depend_on_no_order() {
    for seed in 1..=4 {
        let config = SimConfig::new().seed(seed).kernel_races(true).uninitialised(true);
        let driver = gpumem_sim::driver(config).unwrap();
        let (text, input) = (branching_module(seed, KERNELS), inputs(seed));
        let parsed = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        let found = on_driver(&Raw::new(&driver).unwrap(), &text, KERNELS, &input);
        let findings = Sim::of(&driver).unwrap().take_findings();
        assert!(findings.is_empty(), "{findings:#?}");
        for (number, found) in found.into_iter().enumerate() {
            assert!(found == on_host(&parsed, number, &input), "{}", text_of(&text, number));
        }
    }
}

/// They have what they are for: each kind of statement is in many of them, and lanes take different ways.
#[test]
fn programs_with_branches_have_every_kind_of_statement() {
    let text = branching_module(1, KERNELS);
    for part in [
        "\nbra L",
        "@%q bra",
        "bar.red.or.pred %q",
        "vote.sync.any.pred %q",
        "mov.pred %q",
        "setp.eq.u32 %q, %c",
        "shfl.sync.up",
        "shfl.sync.down",
        "shfl.sync.bfly",
        "shfl.sync.idx",
        "vote.sync.ballot",
        "match.any",
        "match.all",
        "redux.sync",
        "bar.sync 0",
        "ld.shared.b64",
        "bar.red.popc",
    ] {
        assert!(text.matches(part).count() >= 5, "{part}");
    }
}
