//! The limits that the command names are tried with the programs themselves.

use crate::programs::{ALL, Program, Scratch, gpumem, record, run};
use gpumem_trace::pool::trace::Recording;
use serde_json::Value;

/// Of thirty programs: with the limit that `--find-limit` names nothing is refused, and where a replay says that it does not fit, the program is
/// refused.
#[test]
fn named_limits_are_true_of_the_programs() {
    let scratch = Scratch::new("truth");
    for program in ALL {
        for seed in 1..=5 {
            let file = scratch.path(&format!("{program:?}-{seed}.trace"));
            record(program, seed, None, &file).unwrap();
            let found = find_limit(&file);
            let limit_bytes = found["smallest_limit_bytes"].as_u64().unwrap();
            run(program, seed, Some(limit_bytes))
                .unwrap_or_else(|error| panic!("{program:?} {seed}: {error}"));
            for step in 1..4 {
                let smaller_bytes = limit_bytes - step * found["step_bytes"].as_u64().unwrap();
                let fits = gpumem(["replay", &file, "--limit", &smaller_bytes.to_string()]).code == 0;
                let ran = run(program, seed, Some(smaller_bytes));
                assert_eq!(fits, ran.is_ok(), "{program:?} {seed} in {smaller_bytes}: {ran:?}");
            }
        }
    }
}

/// The same from snapshots of PyTorch, which have no settings and no limits.
#[test]
fn limits_from_snapshots_are_true_of_the_programs() {
    let scratch = Scratch::new("snapshots");
    for program in ALL {
        let (file, snapshot) = (scratch.path("run.trace"), scratch.path("run.pickle"));
        record(program, 3, None, &file).unwrap();
        let mut bytes = Vec::new();
        gpumem_trace::snapshot(&Recording::read(&file).unwrap(), &mut bytes).unwrap();
        std::fs::write(&snapshot, bytes).unwrap();
        let limit_bytes = find_limit(&snapshot)["smallest_limit_bytes"].as_u64().unwrap();
        run(program, 3, Some(limit_bytes)).unwrap_or_else(|error| panic!("{program:?}: {error}"));
    }
}

/// A record that ends at a refusal, or while the program runs, has a lower bound only; and the program does not run below it.
#[test]
fn a_record_that_ends_early_has_no_upper_bound() {
    let scratch = Scratch::new("early");
    for (program, seed) in
        [(Program::Leak, 1), (Program::Leak, 4), (Program::Warming, 2), (Program::Doubling, 3)]
    {
        let whole = scratch.path("whole.trace");
        record(program, seed, None, &whole).unwrap();
        let needed_bytes = find_limit(&whole)["smallest_limit_bytes"].as_u64().unwrap();
        let file = scratch.path("refused.trace");
        record(program, seed, Some(needed_bytes / 2), &file).unwrap_err();
        let found = find_limit(&file);
        assert!(found["smallest_limit_bytes"].is_null(), "{program:?}: {found}");
        assert_eq!(found["open_end"], "the record ends at a refusal");
        let least_bytes = found["at_least_bytes"].as_u64().unwrap();
        assert!(needed_bytes / 2 < least_bytes && least_bytes <= needed_bytes, "{program:?}: {found}");
        let said = gpumem(["replay", &file, "--find-limit"]).out;
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("refused: at least ") && !first.contains("fits"), "{first}");
        if program == Program::Leak {
            assert!(
                first.contains("while `kept` was growing by ") && first.ends_with("; a limit only delays it"),
                "{first}"
            );
        }
    }
    // A pool that is never dropped.
    let file = scratch.path("running.trace");
    let recorder = gpumem_trace::pool::trace::Trace::create(&file).unwrap();
    let device =
        gpumem_trace::pool::Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0)
            .unwrap();
    let pool = gpumem_trace::pool::Pool::builder(&device).adaptor(recorder.clone()).build().unwrap();
    let kept = pool.alloc(8 << 20, &gpumem_trace::pool::Stream::new(&device).unwrap()).unwrap();
    assert!(recorder.flush(core::time::Duration::from_secs(10)));
    let found = find_limit(&file);
    assert_eq!(found["open_end"], "the record ends while the pool is in use", "{found}");
    drop(kept);
}

/// A process that exits with its pool in use, as those of C and Python do, has a whole record with the last events; one that is killed has not.
#[test]
fn a_process_that_exits_has_a_whole_record() {
    let scratch = Scratch::new("exits");
    let file = scratch.path("exits.trace");
    let own = std::env::current_exe().unwrap();
    let run = |end: &str| {
        let mut command = std::process::Command::new(&own);
        command.args(["limits::exits_with_its_pool_in_use", "--exact", "--ignored"]);
        command.env("GPUMEM_TRACE", &file).env("END", end).status().unwrap()
    };
    assert!(run("exit").success());
    let found = find_limit(&file);
    assert_eq!(
        (&found["open_end"], &found["smallest_limit_bytes"]),
        (&Value::Null, &(48 << 20).into()),
        "{found}"
    );
    assert!(!run("abort").success());
    assert_eq!(find_limit(&file)["open_end"], "the record ends while the pool is in use");
}

#[test]
#[ignore = "run by `a_process_that_exits_has_a_whole_record`, as a process of its own"]
fn exits_with_its_pool_in_use() {
    use gpumem_trace::pool::{Device, Pool, Stream};
    let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
    let pool = Pool::from_env(&device).unwrap();
    let stream = Stream::new(&device).unwrap();
    core::mem::forget(pool.alloc(16 << 20, &stream).unwrap());
    if std::env::var("END").unwrap() == "abort" {
        // Time for the writer, which writes every 50 ms.
        std::thread::sleep(core::time::Duration::from_millis(500));
        std::process::abort();
    }
    // An event that only the end of the process can write in time.
    core::mem::forget(pool.alloc(32 << 20, &stream).unwrap());
    std::process::exit(0);
}

/// A pool at its limit waits for the streams that use freed blocks, so a block may be free before the record has it free.
#[test]
fn blocks_that_other_streams_use_are_waited_for_within_a_limit() {
    let scratch = Scratch::new("late");
    let file = scratch.path("late.csv");
    let block = 64 << 20;
    let record =
        format!("#{{\"format\":1}}\na,1,{block},0\na,2,4096,1\nf,1,0\na,3,{block},0\nc,1\nf,3,0\nf,2,1\n");
    std::fs::write(&file, record).unwrap();
    let said = gpumem(["replay", &file, "--limit", "66MiB"]);
    assert!(said.code == 0 && said.out.contains("fits in 66.000 MiB"), "{said:?}");
    let said = gpumem(["replay", &file, "--limit", "62MiB"]);
    assert!(said.code == 1 && said.out.contains("does not fit in 62.000 MiB"), "{said:?}");
    assert_eq!(find_limit(&file)["smallest_limit_bytes"], 66 << 20);
}

fn find_limit(file: &str) -> Value {
    let said = gpumem(["replay", file, "--find-limit", "--profile", "balanced", "--json"]);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}
