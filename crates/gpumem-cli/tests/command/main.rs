//! The command, as a program of its own, on records of programs that ran on the simulator.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod limits;
mod programs;
#[cfg(target_os = "linux")]
mod top;

use programs::{Program, Scratch, gpumem, record};
use serde_json::Value;
use std::process::{Command, Stdio};

/// The first line has the answer, with its exit status.
#[test]
fn the_first_line_answers() {
    let scratch = Scratch::new("answers");
    let file = scratch.path("run.trace");
    record(Program::Steady, 1, None, &file).unwrap();
    let said = gpumem(["replay", &file, "--limit", "1GiB"]);
    assert_eq!(said.code, 0, "{said:?}");
    let first = said.out.lines().next().unwrap();
    assert!(first.starts_with("run: fits in 1.000 GiB: peak ") && first.contains(", 0 of "), "{first}");
    assert!(!said.out.contains('\u{1b}'), "no colours in a pipe: {said:?}");
    assert!(said.out.contains("\n  pytorch   its own allocator would reserve "), "{said:?}");
    let said = gpumem(["replay", &file, "--limit", "4MiB"]);
    assert_eq!(said.code, 1, "{said:?}");
    let first = said.out.lines().next().unwrap();
    assert!(first.starts_with("run: does not fit in 4.000 MiB: request "), "{first}");
    assert!(first.contains(" for `") && first.ends_with("is refused"), "{first}");
    assert!(said.out.contains("held when it is refused, at "), "{said:?}");
    // The driver's calls are for those who ask.
    assert!(!said.out.contains("driver ms"));
    assert!(gpumem(["replay", &file, "--verbose"]).out.contains("driver ms"));
}

/// A record that ends at a refusal names who holds the memory and what was growing.
#[test]
fn a_report_says_who_and_what_grew() {
    let scratch = Scratch::new("report");
    let file = scratch.path("leak.trace");
    assert!(record(Program::Leak, 2, Some(64 << 20), &file).is_err());
    let said = gpumem(["report", &file]);
    assert_eq!(said.code, 0, "{said:?}");
    let first = said.out.lines().next().unwrap();
    assert!(first.starts_with("leak: refused ") && first.contains(" at "), "{first}");
    assert!(said.out.contains("  grew     `kept` by "), "{}", said.out);
    assert!(
        said.out.contains("`kept` grew until the refusal, a leak or a cache without a bound"),
        "{}",
        said.out
    );
    assert!(said.out.contains("the limit is 64.000 MiB"), "{}", said.out);
    assert!(said.out.contains(&format!("gpumem replay {file} --find-limit")), "{}", said.out);
    assert!(said.out.lines().count() <= 40, "one screen: {}", said.out);
    let value: Value = serde_json::from_str(&gpumem(["report", &file, "--json"]).out).unwrap();
    assert_eq!(value["growth"][0]["holder"], "kept");
    assert!(value["refused_bytes"].as_u64().unwrap() > 0);
}

/// A flight record has the last requests only, and its report counts the older blocks too.
#[test]
fn a_flight_record_is_reported_with_its_own_table() {
    use gpumem_trace::pool::{Device, FlightRecorder, Pool, Stream};
    let scratch = Scratch::new("flight");
    let file = scratch.path("flight.trace");
    let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
    let builder = Pool::builder(&device).name("server").hard_limit(64 << 20);
    let pool = builder.flight_recorder(FlightRecorder::File(file.clone().into())).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let _scope = pool.scope("weights");
    let weights = pool.alloc(40 << 20, &stream).unwrap();
    (0..5000).for_each(|_| drop(pool.alloc(4096, &stream).unwrap()));
    let error = pool.alloc(30 << 20, &stream).unwrap_err();
    assert!(error.to_string().ends_with(&format!("\n  next: gpumem report {file}")), "{error}");
    let said = gpumem(["report", &file]);
    assert!(said.out.starts_with("flight: refused 30.000 MiB for `weights` at "), "{}", said.out);
    assert!(said.out.contains("  reason   the limit of 64.000 MiB refused 30.000 MiB"), "{}", said.out);
    assert!(
        said.out.contains("\n    weights") && said.out.contains("40.000 MiB  in 1 block"),
        "{}",
        said.out
    );
    // The report comes first in the file, so that it survives most damage; a damaged event takes few others along.
    let bytes = std::fs::read(&file).unwrap();
    let damaged = scratch.path("damaged.trace");
    for part in [4, 16, 28] {
        let mut bytes = bytes.clone();
        let at = bytes.len() * part / 32;
        bytes[at] ^= 4;
        std::fs::write(&damaged, bytes).unwrap();
        let said = gpumem(["report", &damaged]);
        assert!(
            said.code == 0 && said.out.contains("  reason   the limit of 64.000 MiB"),
            "{part}: {said:?}"
        );
    }
    drop(weights);
}

/// The text that a program has printed is a report too.
#[test]
fn a_saved_report_is_read() {
    let scratch = Scratch::new("saved");
    let error = record(Program::Leak, 3, Some(64 << 20), &scratch.path("x.trace")).unwrap_err();
    let file = scratch.path("server.log");
    std::fs::write(&file, format!("INFO start\nERROR {error}\nINFO end\n")).unwrap();
    let said = gpumem(["report", &file]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("  reason   the limit of 64.000 MiB refused "), "{}", said.out);
    assert!(said.out.contains("  advice   ") && said.out.contains("    kept"), "{}", said.out);
    assert!(!said.out.contains("INFO"), "{}", said.out);
}

/// A build fails if the peak has grown.
#[test]
fn a_peak_is_held_against_a_baseline() {
    let scratch = Scratch::new("baseline");
    let (small, large) = (scratch.path("small.trace"), scratch.path("large.trace"));
    record(Program::Steady, 1, None, &small).unwrap();
    record(Program::Steady, 4, None, &large).unwrap();
    assert_eq!(gpumem(["replay", &small, "--baseline", &small]).code, 0);
    let said = gpumem(["replay", &large, "--baseline", &small]);
    assert!(
        said.code == 1 && said.out.contains("  allowed   above ") && said.out.contains("5 % more than "),
        "{said:?}"
    );
    assert_eq!(gpumem(["replay", &large, "--baseline", &small, "--max-growth", "900"]).code, 0);
    assert_eq!(gpumem(["replay", &small, "--max-peak", "1GiB"]).code, 0);
    assert_eq!(gpumem(["replay", &small, "--max-peak", "2MiB"]).code, 1);
}

/// What cannot be read is an error with status 2, never an answer.
#[test]
fn files_that_are_no_records_are_errors() {
    let scratch = Scratch::new("errors");
    let empty = scratch.path("empty.trace");
    std::fs::write(&empty, "").unwrap();
    let garbage = scratch.path("garbage.trace");
    std::fs::write(&garbage, [7_u8; 900]).unwrap();
    let no_events = scratch.path("none.csv");
    std::fs::write(&no_events, "#{\"format\":1}\n").unwrap();
    let missing = scratch.path("missing.trace");
    for task in ["replay", "report"] {
        for file in [&empty, &garbage, &no_events, &missing] {
            let said = gpumem([task, file]);
            assert!(said.code == 2 && said.error.starts_with("error: "), "{task} {file}: {said:?}");
            assert!(!said.error.contains("panicked") && said.out.is_empty(), "{task} {file}: {said:?}");
        }
    }
    for wrong in [
        &["replay"][..],
        &["replay", &empty, "--limit", "many"],
        &["replay", &empty, "--compare", "--find-limit"],
    ] {
        assert_eq!(gpumem(wrong).code, 2, "{wrong:?}");
    }
}

/// A record that is cut anywhere is an error, or is said to have an open end.
#[test]
fn a_cut_record_is_never_whole() {
    let scratch = Scratch::new("cut");
    let (file, cut) = (scratch.path("run.trace"), scratch.path("cut.trace"));
    programs::record_in_pieces(&file);
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(gpumem(["replay", &file, "--find-limit"]).code, 0);
    let mut answer_count = 0;
    for part in 1..24 {
        std::fs::write(&cut, &bytes[..bytes.len() * part / 24]).unwrap();
        let said = gpumem(["replay", &cut, "--find-limit", "--json"]);
        match said.code {
            2 => assert!(said.error.contains("error: "), "{said:?}"),
            _ => {
                let value: Value = serde_json::from_str(said.out.lines().next().unwrap()).unwrap();
                assert!(value["smallest_limit_bytes"].is_null(), "cut at {part}/24: {value}");
                assert!(value["open_end"].is_string(), "cut at {part}/24: {value}");
                answer_count += 1;
            }
        }
    }
    assert!(answer_count > 12, "{answer_count} of 23 cut records have events");
}

/// A reader that goes is no panic, and the status stays that of the answer.
#[test]
fn a_closed_pipe_is_no_error() {
    let scratch = Scratch::new("pipe");
    let file = scratch.path("run.trace");
    record(Program::Fragmented, 1, None, &file).unwrap();
    for task in
        [&["replay", &file, "--compare"][..], &["report", &file], &["replay", &file, "--limit", "2MiB"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = Command::new(env!("CARGO_BIN_EXE_gpumem"))
            .args(task)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked") && !error.contains("error"), "{task:?}: {error}");
        assert_eq!(output.status.code(), Some(i32::from(task.contains(&"2MiB"))), "{task:?}: {error}");
    }
}

/// Help comes at once: no subcommand reads or starts anything for it.
#[test]
fn every_subcommand_has_help() {
    let help = gpumem(["--help"]);
    assert!(help.code == 0 && help.out.contains("Exit status"), "{help:?}");
    let tasks = help
        .out
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    let tasks: Vec<&str> = tasks.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(tasks.contains(&"report") && tasks.contains(&"replay"), "{tasks:?}");
    for task in tasks.iter().filter(|task| **task != "help") {
        let said = gpumem([task, "--help"]);
        assert!(said.code == 0 && said.out.contains("Usage: gpumem "), "{task}: {said:?}");
    }
}

/// A record becomes a page and files for other programs, and is never overwritten.
#[test]
fn a_record_becomes_files_for_other_programs() {
    let scratch = Scratch::new("view");
    let file = scratch.path("run.trace");
    record(Program::Phases, 1, None, &file).unwrap();
    let before = std::fs::read(&file).unwrap();
    let pickle = scratch.path("run.pickle");
    assert_eq!(gpumem(["view", &file, "--memory-viz", &pickle]).code, 0);
    let [ours, theirs] = [&file, &pickle].map(|file| gpumem_trace::Trace::read(file).unwrap());
    assert_eq!(ours.events(), theirs.events());
    for option in ["--memory-viz", "--svg", "--perfetto", "--output"] {
        let said = gpumem(["view", &file, option, &file]);
        assert!(said.code == 2 && said.error.contains("is the record itself"), "{option}: {said:?}");
    }
    let said = gpumem(["view", &pickle, "--memory-viz", &scratch.path("again.pickle")]);
    assert!(said.code == 2 && said.error.contains("not a gpumem trace"), "{said:?}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(gpumem(["view", &file]).code, 0);
    let page = std::fs::read_to_string(scratch.path("run.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("</html>"), "{}", &page[..200]);
}

/// The first line names what refuses, and a record that ends early never passes a check.
#[test]
fn answers_name_what_refuses_and_do_not_trust_half_a_record() {
    let scratch = Scratch::new("refuses");
    let (whole, half) = (scratch.path("whole.trace"), scratch.path("half.trace"));
    programs::record_in_pieces(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&half, &bytes[..bytes.len() * 3 / 4]).unwrap();
    let said = gpumem(["replay", &whole, "--device", "12MiB", "--limit", "1GiB"]);
    assert!(said.out.starts_with("whole: does not fit on a device of 12.000 MiB: request "), "{said:?}");
    for option in ["--find-limit", "--compare", "--limit=1GiB"] {
        let said = gpumem(["replay", &whole, option, "--conf", "hard_limit:10MiB"]);
        assert!(said.code == 2 && said.error.contains("name the limit with --limit"), "{said:?}");
    }
    assert_eq!(gpumem(["replay", &whole, "--max-peak", "1GiB"]).code, 0);
    let said = gpumem(["replay", &half, "--max-peak", "1GiB"]);
    assert!(said.code == 1 && said.out.contains("does not show the whole program"), "{said:?}");
    assert_eq!(gpumem(["replay", &half, "--max-peak", "1GiB", "--accept-open-end"]).code, 0);
    let said = gpumem(["report", &half]);
    assert!(said.out.starts_with("half: no refusal is recorded in "), "{said:?}");
    let compared = gpumem(["replay", &half, "--compare"]);
    assert!(compared.out.starts_with("half: what is recorded fits best with "), "{compared:?}");
}

/// A pipe can be read once only.
#[test]
#[cfg(unix)]
fn a_record_may_come_through_a_pipe() {
    let scratch = Scratch::new("piped");
    let file = scratch.path("run.trace");
    record(Program::Steady, 1, None, &file).unwrap();
    for task in ["report -", "replay - --limit 1GiB", "report /dev/stdin", "replay /dev/stdin"] {
        let command = format!("cat '{file}' | '{}' {task}", env!("CARGO_BIN_EXE_gpumem"));
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A program runs with its arguments and status, and its memory is summed up on the standard error.
#[test]
#[cfg(unix)]
fn a_program_is_run_and_summed_up() {
    let said = gpumem(["run", "--", "sh", "-c", "echo out; exit 7"]);
    assert!(said.code == 7 && said.out == "out\n", "{said:?}");
    assert!(said.error.contains("ended with status 7") && said.error.contains("built no pool"), "{said:?}");
    assert_eq!(gpumem(["run", "--", "sh", "-c", "kill -9 $$"]).code, 128 + 9);
    let said = gpumem([
        "run",
        "--limit",
        "1GiB",
        "--profile",
        "tight",
        "--no-record",
        "--",
        "sh",
        "-c",
        "echo $GPUMEM_HARD_LIMIT $GPUMEM_PROFILE",
    ]);
    assert!(said.out == "1GiB tight\n" && said.error.is_empty(), "{said:?}");
    let said = gpumem(["run", "--", "no-such-program"]);
    assert!(said.code == 127 && said.error.contains("cannot start"), "{said:?}");
    for wrong in [
        ["--limit", "abc"],
        ["--profile", "foo"],
        ["--conf", "foo"],
        ["--spill", "foo"],
        ["--record", "/nope/x"],
        ["--record", "/tmp"],
        ["--simulate", "1KiB"],
    ] {
        let said = gpumem(["run"].iter().chain(&wrong).chain(&["--", "echo", "started"]));
        assert!(said.code == 2 && said.out.is_empty(), "{wrong:?}: {said:?}");
    }
    // As under nohup: what is ignored stays so in the program.
    let ignoring = "trap '' HUP; exec \"$0\" run -- sh -c 'kill -HUP $$; echo alive'";
    let output = Command::new("sh").args(["-c", ignoring, env!("CARGO_BIN_EXE_gpumem")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n");
    // The test itself is a program with a pool.
    let scratch = Scratch::new("run");
    let kept = scratch.path("kept-%p.trace");
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let child = ["--ignored", "--exact", "as_a_program"];
    let said = gpumem(["run", "--record", &kept, "--", own].iter().chain(&child));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.error.contains("requests  41,") || said.error.contains("requests  41 "), "{said:?}");
    assert!(
        said.error.contains("held at the peak") && said.error.contains("next: gpumem report "),
        "{said:?}"
    );
    let said = gpumem(["run", "--json", "--", own].iter().chain(&child));
    let summary: Value = serde_json::from_str(said.error.lines().last().unwrap()).unwrap();
    let record = &summary["records"][0];
    assert_eq!(
        (&summary["status"], &record["requests"], &record["refused"]),
        (&0.into(), &41.into(), &0.into())
    );
    assert_eq!(record["peak_live_bytes"], 44 << 20, "{summary}");
    let said = gpumem(["run", "--limit", "8MiB", "--", own].iter().chain(&child));
    assert!(said.code != 0 && said.error.contains("refused"), "{said:?}");
    // The same on devices that this machine lacks.
    let said = gpumem(["run", "--simulate", "80GiB", "--", own].iter().chain(&child));
    assert!(said.code == 0 && said.error.contains("a simulated device of 80.000 GiB"), "{said:?}");
    let said = gpumem(["run", "--simulate", "32MiB", "--json", "--", own].iter().chain(&child));
    let summary: Value = serde_json::from_str(said.error.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&summary["simulated_bytes"], &summary["records"][0]["refused"]),
        (&(32 << 20).into(), &1.into())
    );
    assert!(said.code != 0, "{said:?}");
}

#[test]
#[ignore = "run by `a_program_is_run_and_summed_up`, as a program of its own"]
fn as_a_program() {
    use gpumem_trace::pool::{Device, Pool, Stream};
    let config = gpumem_sim::SimConfig::from_env().unwrap();
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    let pool = Pool::from_env(&device).unwrap();
    let stream = Stream::new(&device).unwrap();
    let _weights = pool.alloc(4 << 20, &stream).unwrap();
    let kept: Vec<_> = (0..40).map(|_| pool.alloc(1 << 20, &stream).unwrap()).collect();
    drop(kept);
}

/// The machine of the tests has no GPU, or has one: the rows say which, and set variables are checked.
#[test]
fn the_doctor_looks_at_the_machine() {
    let said = gpumem(["doctor", "--quick", "--json"]);
    let value: Value = serde_json::from_str(&said.out).unwrap();
    let rows = value["rows"].as_array().unwrap();
    let row =
        |section: &str, name: &str| rows.iter().find(|row| row["section"] == section && row["name"] == name);
    let is_good = row("driver", "library").unwrap()["grade"] == "ok";
    assert_eq!(said.code == 0, value["is_good"] == true, "{value}");
    assert!(
        is_good || row("driver", "library").unwrap()["advice"].as_str().unwrap().contains("driver"),
        "{value}"
    );
    let with = |name: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
        let output = command.args(["doctor"]).env("GPUMEM_DRIVER", "sim").env(name, value).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = with("GPUMEM_PROFILE", "tight");
    assert!(
        code == 0 && out.contains("an allocation and its free") && out.contains("nothing is wrong"),
        "{out}"
    );
    let (code, out) = with("GPUMEM_PROFLE", "tight");
    assert!(code == 1 && out.contains("unset it, or correct the name"), "{out}");
    let (code, out) = with("GPUMEM_HARD_LIMIT", "many");
    assert!(code == 1 && out.contains("correct the value"), "{out}");
}

#[test]
fn completions_name_the_subcommands() {
    let said = gpumem(["completions", "bash"]);
    assert!(said.code == 0 && said.out.contains("find-limit") && said.out.contains("doctor"), "{said:?}");
}
