//! Planted mistakes of kernels are found at their lines, and kernels without mistakes are not reported.

use gpumem_adapt::array::pool::sys::types::CUresult;
use gpumem_sim::{Finding, Sim, SimConfig};
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::fixtures::mistakes::{PLANTED, Planted};

/// The findings of one launch, under a seed.
fn findings(planted: &Planted, is_wrong: bool, seed: u64) -> Vec<Finding> {
    let config = SimConfig::new().seed(seed).kernel_races(true).uninitialised(true);
    let driver = gpumem_sim::driver(config).unwrap();
    planted.run(&Raw::new(&driver).unwrap(), is_wrong);
    Sim::of(&driver).unwrap().take_findings()
}

#[test]
fn each_planted_mistake_is_found_at_its_line() {
    let mut missed = Vec::new();
    for planted in PLANTED {
        // The compiler inlines the function with the mistake.
        let ends = [")", ", inlined at mistakes.cu:"];
        let lines = planted.lines();
        let places: Vec<String> =
            lines.iter().flat_map(|line| ends.map(|end| format!("(mistakes.cu:{line}{end}"))).collect();
        assert!(!places.is_empty(), "{}", planted.name);
        for seed in 0..5 {
            let found = findings(&planted, true, seed);
            let is_found = found.iter().any(|finding| {
                let text = finding.to_string();
                planted.findings.contains(&finding.name()) && places.iter().any(|place| text.contains(place))
            });
            if !is_found {
                let found: Vec<String> = found.iter().map(Finding::to_string).collect();
                missed.push(format!("{} under seed {seed}, lines {places:?}: {found:#?}", planted.name));
                break;
            }
        }
    }
    assert!(missed.is_empty(), "{} of {} missed\n{}", missed.len(), PLANTED.len(), missed.join("\n"));
}

/// As on a GPU: see the guide.
#[test]
fn a_mistake_has_the_code_of_a_gpu() {
    for (name, code) in [
        ("assertion", CUresult::CUDA_ERROR_ASSERT),
        ("trapped", CUresult::CUDA_ERROR_LAUNCH_FAILED),
        ("wild_call", CUresult::CUDA_ERROR_INVALID_PC),
        ("scalar", CUresult::CUDA_ERROR_MISALIGNED_ADDRESS),
        ("wild_pointer", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
    ] {
        let planted = PLANTED.iter().find(|planted| planted.name == name).unwrap();
        let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
        assert_eq!(planted.run(&Raw::new(&driver).unwrap(), true), code, "{name}");
    }
}

/// The table of the guide has each kernel.
#[test]
fn the_guide_lists_each_kernel() {
    let guide = include_str!("../../docs/how-to/check-kernels.md");
    let listed = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert!(listed.eq(PLANTED.iter().map(|planted| planted.name)));
}

#[test]
fn kernels_without_mistakes_are_clean_under_every_seed() {
    for planted in PLANTED {
        for seed in 0..SEEDS {
            let found = findings(&planted, false, seed);
            assert!(found.is_empty(), "{} under seed {seed}: {found:#?}", planted.name);
        }
    }
}

const SEEDS: u64 = 200;
