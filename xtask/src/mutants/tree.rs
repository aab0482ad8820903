//! A copy of the workspace with switches, and its test programs.

use super::points::Point;
use super::rooms::{self, TARGETS};
use super::switches::Switched;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;
use cargo_metadata::diagnostic::{Diagnostic, DiagnosticLevel, DiagnosticSpan};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The copy, and cargo's target folder for it.
pub(crate) struct Tree {
    root: PathBuf,
    build: PathBuf,
}

/// A change of a file of the workspace, with its number.
pub(crate) struct Numbered {
    pub(crate) number: usize,
    pub(crate) file: String,
    pub(crate) point: Point,
}

/// The crate that reads the switches: the number of the active mutant, if any.
const SWITCH: &str = r#"//! Which mutant is on: `MUTANT_NUMBER` has its number.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
static NUMBER: AtomicU32 = AtomicU32::new(UNREAD);

#[inline]
pub fn is(number: u32) -> bool {
    match NUMBER.load(Relaxed) {
        UNREAD => read() == number,
        on => on == number,
    }
}

#[cold]
fn read() -> u32 {
    let on = std::env::var("MUTANT_NUMBER").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    NUMBER.store(on, Relaxed);
    on
}
"#;

const SWITCH_MANIFEST: &str =
    "[package]\nname = \"gpumem-mutant\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n";

/// The files of the workspace, tracked or new, by path from its root.
pub(crate) fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().context("git cannot be started")?;
    ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout)?;
    // A removed file is still in the index.
    let files: BTreeSet<String> =
        names.split_terminator('\0').filter(|name| root.join(name).is_file()).map(str::to_string).collect();
    Ok(files.into_iter().collect())
}

impl Tree {
    pub(crate) fn below(folder: &Path) -> Self {
        Self { root: folder.join("tree"), build: folder.join("build") }
    }

    /// Builds the test programs with these mutants. Mutants that do not compile are omitted, and passed to `refuse` by number.
    pub(crate) fn build(
        &self,
        mutants: &[Numbered],
        mut refuse: impl FnMut(&BTreeSet<usize>) -> Result<()>,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut refused = BTreeSet::new();
        loop {
            eprintln!("building {} switches", mutants.len() - refused.len());
            let switched = self.write(mutants, &refused)?;
            let (errors, programs) = self.compile()?;
            if errors.is_empty() {
                return Ok(programs);
            }
            let found = blamed(&errors, &switched);
            if found.is_empty() {
                let texts: Vec<_> = errors.iter().filter_map(|error| error.rendered.clone()).collect();
                bail!("the copy does not compile, and no mutant is to blame:\n{}", texts.concat());
            }
            refused.extend(found);
            refuse(&refused)?;
        }
    }

    /// Updates the copy. A file is written only if it changes, so that cargo rebuilds only what is necessary.
    fn write(&self, mutants: &[Numbered], refused: &BTreeSet<usize>) -> Result<BTreeMap<String, Switched>> {
        let source = crate::workspace::root();
        let mut by_file: BTreeMap<&str, Vec<(usize, &Point)>> = BTreeMap::new();
        for mutant in mutants.iter().filter(|mutant| !refused.contains(&mutant.number)) {
            by_file.entry(&mutant.file).or_default().push((mutant.number, &mutant.point));
        }
        let (mut written, mut switched) = (BTreeSet::new(), BTreeMap::new());
        for file in files(&source)? {
            let mut bytes = std::fs::read(source.join(&file))?;
            if let Some(points) = by_file.get(file.as_str()) {
                let text = Switched::new(std::str::from_utf8(&bytes)?, points)?;
                bytes = text.text.clone().into_bytes();
                switched.insert(file.clone(), text);
            }
            for package in rooms::packages() {
                if file == format!("{}/Cargo.toml", rooms::folder(package)) {
                    bytes = with_switches(std::str::from_utf8(&bytes)?)?.into_bytes();
                }
            }
            self.put(&file, &bytes)?;
            written.insert(file);
        }
        self.put("crates/gpumem-mutant/Cargo.toml", SWITCH_MANIFEST.as_bytes())?;
        self.put("crates/gpumem-mutant/src/lib.rs", SWITCH.as_bytes())?;
        self.remove_others(&self.root, &written)?;
        Ok(switched)
    }

    fn put(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(file);
        // Cargo adds the switches to the copy's lock file, which is not a reason to write it again.
        let is_kept = file == "Cargo.lock" && path.exists();
        if is_kept || std::fs::read(&path).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())
    }

    /// Removes files that the workspace no longer has.
    fn remove_others(&self, folder: &Path, written: &BTreeSet<String>) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(&self.root)?.to_string_lossy().into_owned();
            if name == "crates/gpumem-mutant" {
                continue;
            }
            if path.is_dir() {
                self.remove_others(&path, written)?;
            } else if !written.contains(&name) {
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Runs cargo once for each cfg. Returns the errors, and the test programs if there are none.
    fn compile(&self) -> Result<(Vec<Diagnostic>, BTreeMap<String, PathBuf>)> {
        let mut programs = BTreeMap::new();
        for cfg in BTreeSet::from_iter(TARGETS.iter().map(|target| target.cfg)) {
            let (errors, built) = self.compile_with(cfg)?;
            if !errors.is_empty() {
                return Ok((errors, built));
            }
            programs.extend(built);
        }
        Ok((Vec::new(), programs))
    }

    fn compile_with(&self, cfg: Option<&str>) -> Result<(Vec<Diagnostic>, BTreeMap<String, PathBuf>)> {
        let targets = || TARGETS.iter().filter(|target| target.cfg == cfg);
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(&self.root).args(["test", "--no-run", "--message-format=json", "--quiet"]);
        for package in BTreeSet::from_iter(targets().map(|target| target.package)) {
            command.args(["--package", package]);
        }
        for name in
            BTreeSet::from_iter(targets().filter(|target| !target.is_library).map(|target| target.target))
        {
            command.args(["--test", name]);
        }
        if targets().any(|target| target.is_library) {
            command.arg("--lib");
        }
        if let Some(cfg) = cfg {
            command.env("RUSTFLAGS", format!("--cfg {cfg}"));
        }
        // Neither changes the behaviour of the tests, and the programs are copied elsewhere.
        command
            .env("CARGO_TARGET_DIR", self.build.join(cfg.unwrap_or_default()))
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        command.env("CARGO_PROFILE_DEV_STRIP", "debuginfo").env("CARGO_INCREMENTAL", "0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let complaints = child.stderr.take().context("cargo has no error output")?;
        let complaints = std::thread::spawn(move || std::io::read_to_string(complaints).unwrap_or_default());
        let output = child.stdout.take().context("cargo has no output")?;
        let (mut errors, mut programs) = (Vec::new(), BTreeMap::new());
        for message in Message::parse_stream(BufReader::new(output)) {
            match message? {
                Message::CompilerMessage(said) if said.message.level == DiagnosticLevel::Error => {
                    errors.push(said.message);
                }
                Message::CompilerArtifact(artifact) if artifact.profile.test => {
                    let manifest = artifact.manifest_path.as_std_path().parent().map(Path::to_path_buf);
                    let folder =
                        manifest.and_then(|path| Some(path.strip_prefix(&self.root).ok()?.to_path_buf()));
                    let is_library = !artifact.target.is_test();
                    // Several targets, if they run different tests of the program.
                    let of_program = targets().filter(|target| {
                        target.target == artifact.target.name
                            && target.is_library == is_library
                            && folder.as_deref() == Some(Path::new(&rooms::folder(target.package)))
                    });
                    if let Some(program) = artifact.executable {
                        let program = PathBuf::from(program);
                        programs.extend(of_program.map(|target| (target.name.to_string(), program.clone())));
                    }
                }
                _ => {}
            }
        }
        let is_built = child.wait()?.success();
        let complaints = complaints.join().unwrap_or_default();
        ensure!(is_built || !errors.is_empty(), "cargo failed: {complaints}");
        if is_built {
            for target in targets() {
                ensure!(programs.contains_key(target.name), "cargo has built no {}", target.name);
            }
        }
        Ok((errors, programs))
    }
}

/// The mutants that cause errors. If none is at the position of an error, all mutants near it are suspected.
fn blamed(errors: &[Diagnostic], switched: &BTreeMap<String, Switched>) -> BTreeSet<usize> {
    let pick = |find: fn(&Switched, &Range<usize>) -> Vec<usize>, primary_only: bool| {
        let spans = errors.iter().flat_map(|error| spans(error, primary_only));
        let places = spans.filter_map(|(file, range)| Some(find(switched.get(&file)?, &range)));
        places.flatten().collect::<BTreeSet<usize>>()
    };
    let mut found = pick(Switched::at, true);
    for (find, primary_only) in [(Switched::at as fn(&_, &_) -> _, false), (Switched::near, false)] {
        if found.is_empty() {
            found = pick(find, primary_only);
        }
    }
    found
}

/// The positions that an error names, with macros expanded.
fn spans(error: &Diagnostic, primary_only: bool) -> Vec<(String, Range<usize>)> {
    fn unfolded(span: &DiagnosticSpan) -> Vec<(String, Range<usize>)> {
        let range = span.byte_start as usize..span.byte_end as usize;
        let mut places = vec![(normal(&span.file_name), range)];
        places.extend(span.expansion.iter().flat_map(|expansion| unfolded(&expansion.span)));
        places
    }
    let own = error.spans.iter().filter(|span| span.is_primary || !primary_only).flat_map(unfolded);
    let children = error.children.iter().filter(|_| !primary_only).flat_map(|child| spans(child, false));
    own.chain(children).collect()
}

/// A path without `..`: sources included by another crate have such paths.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn with_switches(manifest: &str) -> Result<String> {
    let heading = "[dependencies]\n";
    ensure!(manifest.contains(heading), "a mutated package has no dependencies");
    Ok(manifest.replacen(
        heading,
        &format!("{heading}gpumem-mutant = {{ path = \"../gpumem-mutant\" }}\n"),
        1,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_are_taken_out_of_paths() {
        assert_eq!(normal("crates/a/tests/loom/../../src/b.rs"), "crates/a/src/b.rs");
        assert_eq!(normal("./crates/a.rs"), "crates/a.rs");
    }

    #[test]
    fn manifests_get_the_switches() {
        let text = with_switches("[package]\n\n[dependencies]\na = \"1\"\n").unwrap();
        assert!(text.contains("[dependencies]\ngpumem-mutant = "));
        assert!(with_switches("[package]\n").is_err());
    }
}
