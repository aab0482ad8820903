//! The README and the pages of `docs/` show what the examples of this crate print with the default backend.

#![cfg(feature = "backend-caching")]

#[path = "../examples/missing_wait.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod missing_wait;
#[path = "../examples/out_of_memory.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod out_of_memory;
#[path = "../examples/pool.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod pool;

use gpumem::sim::SimConfig;

/// Runs on a thread called `main`, as the examples do: findings name their thread.
fn shown(page: &str, output: impl FnOnce() -> String + Send + 'static) {
    let thread = std::thread::Builder::new().name("main".into()).spawn(output).expect("a thread starts");
    let output = words(&thread.join().expect("the example fails"));
    let text = std::fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))).expect(page);
    assert!(words(&text).contains(&output), "{page} shows another output than\n{output}");
}

/// Without line breaks, and without times, addresses and the numbers of streams, which differ from run to run.
fn words(text: &str) -> String {
    let is_stream =
        |word: &str| word.trim_end_matches([',', ')']).parse().is_ok_and(|number: u64| number >= 1 << 16);
    let is_stable = |word: &&str| !word.contains("µs") && !word.contains("0x") && !is_stream(word);
    text.split_whitespace().filter(is_stable).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_status_is_that_of_the_example() {
    shown("README.md", || pool::status(&gpumem::sim::driver(SimConfig::new()).unwrap()).unwrap().to_string());
}

#[test]
fn the_report_is_that_of_the_example() {
    shown("docs/how-to/out-of-memory.md", || {
        let report =
            out_of_memory::refusal(&gpumem::sim::driver(SimConfig::new()).unwrap()).unwrap().to_string();
        // On a busy machine an attempt takes a millisecond or more, and is listed.
        report.split("\n  tried: ").next().unwrap_or_default().to_string()
    });
}

#[test]
fn the_race_is_that_of_the_example() {
    shown("docs/learn/ten-minutes.md", || missing_wait::race().unwrap().to_string());
}
