//! The example `train`: its output, its errors, and its exit code.
//!
//! These tests run the program that `cargo test` builds with them, on the simulator, with few epochs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn the_default_data_is_learned_on_the_simulator() {
    let run = train(&["--epochs", "4"], SIM);
    let text = run.succeeded();
    for part in ["simulator (no GPU)", "442 rows", "before", "during", "after", "by ndarray on the host"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert!(!text.contains(['\r', '\u{1b}']), "progress was printed where nobody sees it: {text:?}");
    assert_eq!(run.stderr, "");
}

#[test]
fn random_data_is_learned_within_a_limit_and_on_either_backend() {
    let native = cfg!(feature = "backend-native").then_some("native");
    for backend in native.into_iter().chain(["none"]) {
        let arguments = ["--synthetic", "300x20", "--epochs", "2", "--batch", "128", "--hard-limit", "64MiB"];
        let run = train(&[&arguments[..], &["--backend", backend]].concat(), SIM);
        assert!(run.succeeded().contains("300 rows × 20 columns"), "{}", run.stdout);
    }
}

#[test]
fn it_runs_in_memory_of_any_kind_and_prints_the_kind() {
    for kind in ["unified", "host"] {
        let run = train(&["--epochs", "2"], &[SIM[0], ("GPUMEM_KIND", kind)]);
        assert!(run.succeeded().contains(&format!(" of {kind} memory\n")), "{}", run.stdout);
    }
}

#[test]
fn random_data_comes_in_batches_of_2048() {
    let run = train(&["--synthetic", "5000x3", "--epochs", "2"], SIM);
    assert!(run.succeeded().contains("2 epochs, 6 steps of 2,048 rows"), "{}", run.stdout);
}

#[test]
fn a_batch_larger_than_the_data_is_the_whole_data() {
    train(&["--epochs", "2", "--batch", "4000000000"], SIM).succeeded();
}

#[test]
fn the_losses_do_not_depend_on_the_order_of_completion() {
    let loss = |seed| {
        let run = train(&["--epochs", "3"], &[SIM[0], ("GPUMEM_SIM_SEED", seed)]);
        run.succeeded().lines().find(|line| line.starts_with("loss")).map(str::to_owned)
    };
    assert!(loss("1").is_some());
    assert_eq!(loss("1"), loss("2"));
}

#[test]
fn an_environment_that_cannot_work_is_refused() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("GPUMEM_DRIVER", "what", &["GPUMEM_DRIVER", "what", "sim"]),
        ("GPUMEM_SIM_DEVICES", "0", &["the simulator has no devices", "GPUMEM_SIM_DEVICES"]),
        ("GPUMEM_SIM_MEMORY", "1KiB", &["GPUMEM_SIM_MEMORY", "1KiB"]),
        ("GPUMEM_SIM_MEMORY", "lots", &["GPUMEM_SIM_MEMORY", "lots"]),
        ("GPUMEM_HARD_LIMIT", "lots", &["GPUMEM_HARD_LIMIT", "lots"]),
        ("GPUMEM_HARD_LIMIT", "1KiB", &["limit"]),
        ("GPUMEM_POOL", "what", &["GPUMEM_POOL", "what", "native"]),
        ("GPUMEM_HARDLIMIT", "1G", &["GPUMEM_HARDLIMIT", "GPUMEM_HARD_LIMIT"]),
    ];
    for (name, value, parts) in cases {
        let run = train(&["--epochs", "1"], &[SIM[0], (name, value)]);
        run.failed(&format!("{name}={value}"), parts);
    }
}

#[test]
fn data_that_fits_stays_on_the_device() {
    let arguments = ["--synthetic", "3000x1000", "--epochs", "1", "--hard-limit", "16MiB"];
    let run = train(&arguments, SIM);
    assert!(run.succeeded().contains("on the device during the training"), "{}", run.stdout);
}

/// Five times the limit: the result is that of the host, and two batches with the model are all that the pool reserves.
#[test]
fn data_that_does_not_fit_is_fed_with_two_batches_on_the_device() {
    let arguments = ["--synthetic", "120000x256", "--epochs", "1", "--hard-limit", "24MiB"];
    // A batch needs just under 10 MiB, in pages of 2 MiB; the model needs one more. With a higher limit, the pool may reserve memory for a
    // third batch while the device still uses the two before.
    let backend = if cfg!(feature = "backend-caching") { "caching" } else { "none" };
    let run = train(&[&arguments[..], &["--batch", "10160", "--backend", backend]].concat(), SIM);
    let text = run.succeeded();
    assert!(text.contains("does not fit: fed in batches of 9.96 MiB, 1 ahead"), "{text}");
    let figures = |label: &str| {
        let line = text.lines().find(|line| line.starts_with(label));
        line.unwrap_or_else(|| panic!("{label} is missing in:\n{text}"))
    };
    assert!(figures("moved").contains("117.65 MiB at"), "{text}");
    assert!(figures("overlap").contains("× the larger"), "{text}");
    let peak: f64 = number_before(figures("peak"), " ×");
    assert!((0.9..1.12).contains(&peak), "{text}");
}

/// Three times the limit without batches: the whole table is uploaded, and the pool moves what is not in use. The result is that of the host.
#[test]
fn a_table_that_does_not_fit_moves_to_the_host_and_back() {
    let table = ["--synthetic", "30000x100", "--batch", "2000", "--epochs", "3", "--hard-limit", "4MiB"];
    let run = train(&[&table[..], &["--spill", "host:64MiB"]].concat(), SIM);
    let text = run.succeeded();
    assert!(text.contains("does not fit: on the device as 15 arrays, which move to the host"), "{text}");
    let line = text.lines().find(|line| line.starts_with("spilled")).unwrap_or_else(|| panic!("{text}"));
    assert!(number_before(line.split(" to the host").next().unwrap_or(""), " moves") >= 12.0, "{text}");
    let loss = |text: &str| text.lines().find(|line| line.starts_with("loss")).map(str::to_owned);
    let fitting = train(&table[..table.len() - 2], SIM);
    assert_eq!(loss(text), loss(fitting.succeeded()));
}

/// The number that ends a part of a line.
fn number_before(line: &str, end: &str) -> f64 {
    let number = line.strip_suffix(end).and_then(|line| line.rsplit(' ').next());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("a number before {end:?} in {line:?}"))
}

/// The reference makes its steps with whole batches, so equal results show that the sum of the parts is the batch's gradient.
#[test]
fn gradients_of_parts_are_accumulated_to_that_of_the_batch() {
    let whole = train(&["--epochs", "4"], SIM);
    let parts = train(&["--epochs", "4", "--accumulate", "8"], SIM);
    assert!(parts.succeeded().contains("each step with the sum over 8 parts of 8 rows"), "{}", parts.stdout);
    let loss = |run: &Run| {
        let line = run.succeeded().lines().find(|line| line.starts_with("loss")).map(str::to_owned);
        line.expect("the loss is printed")
    };
    assert_eq!(loss(&whole), loss(&parts));
    // The last batch of an epoch has fewer parts, and the last part fewer rows.
    let fed = ["--synthetic", "10100x100", "--batch", "1000", "--epochs", "3", "--hard-limit", "2MiB"];
    let run = train(&[&fed[..], &["--accumulate", "4", "--backend", "none"]].concat(), SIM);
    assert!(run.succeeded().contains("does not fit: fed in batches of 98.63 KiB"), "{}", run.stdout);
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let memory = [SIM[0], ("GPUMEM_SIM_MEMORY", "2MiB")];
    train(&["--synthetic", "1000x1000"], &memory).failed("more than the device", &["3.815 MiB requested"]);
    let arguments = ["--synthetic", "1000x1000", "--epochs", "1", "--hard-limit", "1MiB"];
    train(&arguments, SIM).failed("--hard-limit 1MiB", &["limit"]);
}

/// A machine with a GPU has a driver: there, training succeeds.
#[test]
fn no_driver_is_an_error_that_names_the_simulator() {
    let run = train(&["--epochs", "1"], &[("GPUMEM_DRIVER", "cuda")]);
    if run.code != Some(0) {
        run.failed("GPUMEM_DRIVER=cuda", &["GPUMEM_DRIVER=sim"]);
    }
}

#[test]
fn data_that_cannot_be_read_is_refused() {
    let cases: &[(&str, &[u8], &[&str])] = &[
        ("empty", b"", &["input"]),
        ("names alone", b"a,b\n", &["0 rows"]),
        ("one row", b"a,b\n1,2\n", &["1 rows"]),
        ("no input", b"a\n1\n2\n", &["input"]),
        ("a word", b"a,b\n1,2\n3,four\n", &["line 3", "four", "\"b\""]),
        ("not finite", b"a,b\n1,2\nNaN,4\n", &["line 3", "NaN"]),
        ("cut off", b"a,b,c\n1,2,3\n4,5", &["line: 3"]),
        ("no text", b"a,b\n1,\xff\xfe\n", &["UTF-8"]),
        ("all the same", b"a,b\n1,2\n2,2\n", &["same"]),
    ];
    for (what, bytes, parts) in cases {
        let file = TemporaryFile::new(what, bytes);
        train(&["--data", file.path()], SIM).failed(what, parts);
    }
    train(&["--data", "no/such/file.csv"], SIM).failed("no file", &["no/such/file.csv"]);
}

#[test]
fn a_file_of_ones_own_is_learned() {
    let file = TemporaryFile::new("own", b"# y = 2x\nx, y\n1, 2\n2, 4\n3, 6\n4, 8\n");
    let run = train(&["--data", file.path(), "--epochs", "50", "--learning-rate", "0.1"], SIM);
    assert!(run.succeeded().contains("4 rows × 1 column,"), "{}", run.stdout);
}

#[test]
fn training_that_diverges_is_no_success() {
    let run = train(&["--epochs", "3", "--learning-rate", "1e38"], SIM);
    run.failed("--learning-rate 1e38", &["lower --learning-rate"]);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let cases: &[&[&str]] = &[
        &["--batch", "0"],
        &["--epochs", "0"],
        &["--accumulate", "0"],
        &["--accumulate", "3"],
        &["--prefetch", "0"],
        &["--learning-rate", "0"],
        &["--learning-rate", "NaN"],
        &["--synthetic", "0x10"],
        &["--synthetic", "10"],
        &["--synthetic", "18446744073709551615x18446744073709551615"],
        &["--synthetic", "4000000000x4000000"],
        &["--hard-limit", "lots"],
        &["--spill", "lots"],
        &["--backend", "what"],
        &["--data", "a.csv", "--synthetic", "2x2"],
        &["--devices", "0"],
        &["--devices", "3", "--exchange", "blocks"],
        &["--devices", "2", "--exchange", "what"],
        &["--exchange", "blocks"],
        &["--oversubscribe"],
        &["--devices", "2", "--rank", "0"],
        &["--devices", "2", "--rendezvous", "socket"],
        &["--devices", "2", "--rank", "2", "--rendezvous", "socket"],
    ];
    for arguments in cases {
        let Run { code, stderr, .. } = train(arguments, SIM);
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(stderr.starts_with("error: ") && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

/// `train` itself fails if the loss of any epoch is further from one device's than 1e-5 of it.
#[test]
fn several_devices_have_the_losses_of_one() {
    let devices = |count| [SIM[0], ("GPUMEM_SIM_DEVICES", count)];
    let run = train(&["--epochs", "8", "--devices", "2", "--exchange", "blocks"], &devices("2"));
    let text = run.succeeded();
    for part in [
        "ranks      2 devices, one process; exchange: blocks, copied between the devices",
        "epoch",
        "devices    losses",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("device ")).count(), 2, "{text}");
    // The last batch of an epoch has one row, so two of the three devices have none of it; a batch has several parts.
    let shape = ["--synthetic", "301x20", "--batch", "60", "--accumulate", "2", "--epochs", "3"];
    let blocks = ["--devices", "3", "--exchange", "blocks"];
    let run = train(&[&shape[..], &blocks].concat(), &devices("3"));
    assert!(run.succeeded().contains("3 devices, one process"), "{}", run.stdout);
    // Fed: each device has its share of each batch.
    let fed = [
        "--synthetic",
        "60000x100",
        "--batch",
        "4000",
        "--epochs",
        "2",
        "--hard-limit",
        "6MiB",
        "--backend",
        "none",
    ];
    let run = train(&[&fed[..], &["--devices", "2", "--exchange", "blocks"]].concat(), &devices("2"));
    assert!(run.succeeded().contains("does not fit: fed in batches of 789.06 KiB"), "{}", run.stdout);
    // Ranks that share a device.
    let shared = ["--epochs", "3", "--devices", "4", "--exchange", "blocks", "--oversubscribe"];
    train(&shared, SIM).succeeded();
}

/// Each process has a simulator of its own, and the memory that rank 0 exports is the same in all.
#[test]
#[cfg(all(target_os = "linux", feature = "backend-caching"))]
fn a_process_for_each_device_has_the_losses_of_one() {
    for ranks in ["1", "2", "3"] {
        let environment = [SIM[0], ("GPUMEM_SIM_DEVICES", ranks)];
        let runs =
            in_processes(ranks, &["--epochs", "5", "--batch", "48", "--exchange", "blocks"], &environment);
        let text = runs[0].succeeded();
        for part in ["a process each; exchange: blocks, which rank 0 exports", "epoch", "devices    losses"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        for run in &runs[1..] {
            assert_eq!(run.succeeded(), "", "only rank 0 prints");
        }
    }
}

/// A rank that has ended, or that was started with other options, ends the others with an error.
#[test]
#[cfg(all(target_os = "linux", feature = "backend-caching"))]
fn ranks_that_do_not_fit_together_fail_together() {
    let socket = socket("unequal");
    let of_rank = |rank: &str, epochs: &str| {
        let arguments = ["--epochs", epochs, "--exchange", "blocks", "--devices", "2", "--oversubscribe"];
        let mut command =
            command(&[&arguments[..], &["--rank", rank, "--rendezvous", &socket]].concat(), SIM);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("the example starts")
    };
    let [first, second] = [of_rank("0", "3"), of_rank("1", "4")].map(finished);
    first.failed("rank 0", &["rank 1 has other options"]);
    second.failed("rank 1", &["rank 0 has ended, or has other options"]);
}

/// A machine with GPUs and NCCL has it.
#[test]
fn nccl_is_never_replaced_by_something_else() {
    let run = train(&["--epochs", "2", "--devices", "1"], SIM);
    run.failed("--devices 1", &["NCCL needs GPUs", "simulator", "--exchange blocks"]);
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let run = train(&["--epochs", "2", "--devices", "2", "--exchange", "blocks"], SIM);
    run.failed("--devices 2", &["the driver has 1", "GPUMEM_SIM_DEVICES", "--oversubscribe"]);
}

const SIM: &[(&str, &str)] = &[("GPUMEM_DRIVER", "sim")];

struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn new(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("it prints text");
        Self { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        &self.stdout
    }

    /// Exit code 1, no panic, and a message on standard error with all of `parts` in it.
    fn failed(&self, what: &str, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{what}: {}\n{}", self.stdout, self.stderr);
        assert!(self.stderr.starts_with("error: "), "{what}: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{what}: {}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{what}: {part:?} is missing in: {}", self.stderr);
        }
    }
}

/// Runs the example with no `GPUMEM_` variables but those in `environment`.
fn train(arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    Run::new(command(arguments, environment).output().expect("the example starts"))
}

fn command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(environment.iter().copied());
    command
}

/// Runs the example in a process for each rank.
#[cfg(all(target_os = "linux", feature = "backend-caching"))]
fn in_processes(ranks: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Vec<Run> {
    let socket = socket(ranks);
    let start = |rank: usize| {
        let rank = rank.to_string();
        let own = ["--devices", ranks, "--rank", &rank, "--rendezvous", &socket];
        let mut command = command(&[arguments, &own].concat(), environment);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("the example starts")
    };
    let count: usize = ranks.parse().expect("it is a number");
    let children: Vec<_> = (0..count).map(start).collect();
    children.into_iter().map(finished).collect()
}

#[cfg(all(target_os = "linux", feature = "backend-caching"))]
fn finished(child: std::process::Child) -> Run {
    Run::new(child.wait_with_output().expect("the example ends"))
}

/// The path of a socket that does not exist.
#[cfg(all(target_os = "linux", feature = "backend-caching"))]
fn socket(what: &str) -> String {
    let path = std::env::temp_dir().join(format!("gpumem-train-{}-{what}.socket", std::process::id()));
    path.to_str().expect("the temporary folder's name is text").to_owned()
}

/// `target/PROFILE/examples/train`: this test is `target/PROFILE/deps/train-…`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let profile = test.parent().and_then(Path::parent).expect("tests are built two folders down");
    let program = profile.join("examples").join(format!("train{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is missing: cargo build -p gpumem-adapt --examples", program.display());
    program
}

/// A file that is removed on drop.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(what: &str, bytes: &[u8]) -> Self {
        let name = format!("gpumem-train-{}-{}.csv", std::process::id(), what.replace(' ', "-"));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("the temporary folder can be written to");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the temporary folder's name is text")
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // At worst the file stays in the temporary folder.
        let _ = std::fs::remove_file(&self.0);
    }
}
