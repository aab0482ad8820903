//! `cargo xtask kernels`: compiles the CUDA sources (`*.cu`) to the checked-in PTX beside them.
//!
//! The compiler is NVRTC 11.8, a library that needs neither a GPU nor a toolkit. An old version is chosen, because every newer
//! driver accepts its PTX. The target is `compute_70`, the oldest GPU with all features that the kernels use; a source that names the option
//! for `compute_80` is compiled with that.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

const NVRTC: (&str, &str) = ("nvidia-cuda-nvrtc-cu11", "11.8.89");
const NVRTC_FOLDER: &str = "nvidia/cuda_nvrtc/lib";
/// The newest accepted PTX version: drivers refuse PTX newer than themselves. 8.0 is that of CUDA 12.0.
const PTX_VERSION_MAX: (u32, u32) = (8, 0);
/// A source that names one of these options is compiled with it.
const NAMED_OPTIONS: [&str; 2] = ["--generate-line-info", "--relocatable-device-code=true"];
const TARGET: &str = "--gpu-architecture=compute_70";
/// A source that names this option is compiled with it.
const NEWER_TARGET: &str = "--gpu-architecture=compute_80";
/// The folders with kernels, searched recursively.
const FOLDERS: [&str; 5] = [
    "crates/gpumem-array/kernels",
    "crates/gpumem-array/examples",
    "crates/gpumem-array/tests",
    "crates/gpumem-adapt/examples",
    "tests/kernels",
];
/// The element types that a source is compiled for, as Rust and as CUDA name them. Integers of their sizes take their text.
const ELEMENTS: [(&str, &str); 2] = [("f32", "float"), ("f64", "double")];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the checked-in files and fail on any difference
    #[arg(long)]
    check: bool,
    /// The NVRTC library to compile with [default: 11.8, fetched from the Python package index]
    #[arg(long, value_name = "LIBRARY")]
    nvrtc: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let library = match args.nvrtc {
        Some(library) => library,
        None => {
            crate::workspace::wheel::unpacked(NVRTC.0, NVRTC.1)?.join(NVRTC_FOLDER).join("libnvrtc.so.11.2")
        }
    };
    let compiler = Nvrtc::load(&library)?;
    let mut stale = Vec::new();
    for module in modules()? {
        let ptx = compile(&compiler, &module)?;
        let target = module.target();
        if std::fs::read_to_string(&target).unwrap_or_default() == ptx {
            continue;
        }
        if args.check {
            stale.push(target.display().to_string());
        } else {
            std::fs::write(&target, ptx)?;
            println!("wrote {}", target.display());
        }
    }
    ensure!(stale.is_empty(), "out of date: {}; run `cargo xtask kernels`", stale.join(", "));
    Ok(())
}

/// A PTX file to generate: a source, and the element type if the source has one as a parameter.
struct Module {
    source: PathBuf,
    text: String,
    element: Option<(&'static str, &'static str)>,
}

impl Module {
    /// `fill.cu` → `fill.ptx`; `matvec.cu` for f32 → `matvec.f32.ptx`.
    fn target(&self) -> PathBuf {
        match self.element {
            Some((suffix, _)) => self.source.with_extension(format!("{suffix}.ptx")),
            None => self.source.with_extension("ptx"),
        }
    }
}

fn modules() -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for source in sources()? {
        let text = std::fs::read_to_string(&source).with_context(|| source.display().to_string())?;
        let elements: Vec<_> = match text.contains("ELEMENT_SUFFIX") {
            true => ELEMENTS.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let module = |element| Module { source: source.clone(), text: text.clone(), element };
        modules.extend(elements.into_iter().map(module));
    }
    Ok(modules)
}

/// All CUDA sources of the repository, in a fixed order.
fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let folders = FOLDERS.iter().map(|folder| crate::workspace::root().join(folder));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.exists()).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "cu") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn compile(compiler: &Nvrtc, module: &Module) -> Result<String> {
    let Module { source, text, element } = module;
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = source.parent().unwrap_or(source);
    let mut options = vec![
        if text.contains(NEWER_TARGET) { NEWER_TARGET } else { TARGET }.to_string(),
        "--std=c++17".to_string(),
        format!("--include-path={}", folder.display()),
    ];
    options.extend(NAMED_OPTIONS.iter().filter(|option| text.contains(**option)).map(ToString::to_string));
    if let Some((suffix, kind)) = element {
        options.push(format!("--define-macro=ELEMENT_SUFFIX={suffix}"));
        options.push(format!("--define-macro=ELEMENT_TYPE={kind}"));
    }
    let ptx = compiler.ptx(&name, text, &options).with_context(|| source.display().to_string())?;
    // The text before the first directive names the compiler's build.
    let code = ptx.find(".version").context("NVRTC wrote no .version line")?;
    let code = ptx[code..].trim_end();
    check_version(code)?;
    let code = renumbered(&without_comments(code));
    // NVRTC writes the path of its own folder before the name.
    let lines = code.lines().map(|line| match line.split_once('"') {
        Some((start, _)) if line.trim_start().starts_with(".file") => format!("{start}\"{name}\"\n"),
        _ => format!("{line}\n"),
    });
    let code: String = lines.collect();
    Ok(format!("// Made by `cargo xtask kernels` from {name}; do not edit.\n\n{code}"))
}

/// Without empty lines and lines of comments, which NVRTC writes around each inline instruction.
fn without_comments(code: &str) -> String {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    code.lines().filter(is_code).map(|line| format!("{line}\n")).collect()
}

/// Without the numbers of calls, which NVRTC counts over all texts that it compiles: the comments go, and prototypes are counted for each text.
fn renumbered(code: &str) -> String {
    let mut known: Vec<&str> = Vec::new();
    let mut text = String::new();
    for line in code.lines() {
        let mut rest = line.split_once(CALL_COMMENT).map_or(line, |(code, _)| code);
        while let Some((before, behind)) = rest.split_once(PROTOTYPE) {
            let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            let (number, after) = behind.split_at(end);
            let index = known.iter().position(|known| *known == number).unwrap_or_else(|| {
                known.push(number);
                known.len() - 1
            });
            text.push_str(&format!("{before}{PROTOTYPE}{index}"));
            rest = after;
        }
        text.push_str(rest);
        text.push('\n');
    }
    text
}

const CALL_COMMENT: &str = " // callseq ";
const PROTOTYPE: &str = "prototype_";

fn check_version(ptx: &str) -> Result<()> {
    let version = ptx.split_whitespace().nth(1).and_then(|version| version.split_once('.'));
    let (major, minor) = version.context("the .version line holds no version")?;
    let version: (u32, u32) = (major.parse()?, minor.parse()?);
    let (major, minor) = PTX_VERSION_MAX;
    ensure!(
        version <= PTX_VERSION_MAX,
        "this NVRTC writes PTX {version:?}; {major}.{minor} at most, so take 11.8"
    );
    Ok(())
}

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// The compiler's library, and its functions in use.
struct Nvrtc {
    create: Create,
    compile: Compile,
    log_size: Size,
    log: Text,
    ptx_size: Size,
    ptx: Text,
    destroy: Destroy,
    // Loaded first and unloaded never while the functions above are callable.
    _libraries: Vec<libloading::Library>,
}

impl Nvrtc {
    fn load(library: &Path) -> Result<Self> {
        let mut libraries = Vec::new();
        // NVRTC opens its companion library by bare name; a library that is already loaded is found without a search path.
        if let Some(companion) = builtins_beside(library) {
            libraries.push(open(&companion)?);
        }
        let nvrtc = open(library)?;
        // SAFETY: the types are those of nvrtc.h, unchanged since CUDA 7, and the library stays loaded as long as the functions.
        let found = unsafe {
            Self {
                create: *nvrtc.get::<Create>(b"nvrtcCreateProgram")?,
                compile: *nvrtc.get::<Compile>(b"nvrtcCompileProgram")?,
                log_size: *nvrtc.get::<Size>(b"nvrtcGetProgramLogSize")?,
                log: *nvrtc.get::<Text>(b"nvrtcGetProgramLog")?,
                ptx_size: *nvrtc.get::<Size>(b"nvrtcGetPTXSize")?,
                ptx: *nvrtc.get::<Text>(b"nvrtcGetPTX")?,
                destroy: *nvrtc.get::<Destroy>(b"nvrtcDestroyProgram")?,
                _libraries: libraries,
            }
        };
        Ok(Self { _libraries: found._libraries.into_iter().chain([nvrtc]).collect(), ..found })
    }

    fn ptx(&self, name: &str, source: &str, options: &[String]) -> Result<String> {
        let name = CString::new(name)?;
        let source = CString::new(source)?;
        let options: Vec<CString> =
            options.iter().map(|option| CString::new(option.as_str())).collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        let nothing = std::ptr::null();
        // SAFETY: the strings are NUL-terminated and outlive the call; the list of headers is empty.
        let code =
            unsafe { (self.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, nothing, nothing) };
        ensure!(code == 0, "nvrtcCreateProgram returned {code}");
        // SAFETY: `program` was created above and is alive; the options outlive the call.
        let code = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let result = match code {
            0 => read(program, self.ptx_size, self.ptx),
            _ => read(program, self.log_size, self.log).and_then(|log| bail!("NVRTC says:\n{log}")),
        };
        // SAFETY: `program` was created above, and is not used again.
        unsafe { (self.destroy)(&mut program) };
        result
    }
}

/// Reads a text from the compiler: its size, then the bytes.
fn read(program: Program, size: Size, text: Text) -> Result<String> {
    let mut size_bytes = 0;
    // SAFETY: callers pass a live program and two functions that match.
    let code = unsafe { size(program, &mut size_bytes) };
    ensure!(code == 0, "NVRTC returned {code} for the size of its text");
    let mut bytes = vec![0u8; size_bytes.max(1)];
    // SAFETY: the caller's program is live, `text` writes as many bytes as `size` returned, and the buffer has that size.
    let code = unsafe { text(program, bytes.as_mut_ptr().cast()) };
    ensure!(code == 0, "NVRTC returned {code} for its text");
    Ok(CStr::from_bytes_until_nul(&bytes)?.to_str()?.to_string())
}

fn open(library: &Path) -> Result<libloading::Library> {
    // SAFETY: loading runs the library's initialisers, and those of NVRTC have no requirements.
    unsafe { libloading::Library::new(library) }.with_context(|| library.display().to_string())
}

fn builtins_beside(library: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(library.parent()?).ok()?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    names.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("nvrtc-builtins")))
}

#[cfg(test)]
mod tests {
    use super::{renumbered, without_comments};

    #[test]
    fn comments_go_and_code_stays() {
        let text =
            "\t.reg .b32 \t%r<2>;\n\n\t// begin inline asm\n\tmov.u32 %r1, 0; // zero\n\t// end inline asm\n";
        assert_eq!(without_comments(text), "\t.reg .b32 \t%r<2>;\n\tmov.u32 %r1, 0; // zero\n");
    }

    #[test]
    fn numbers_of_calls_do_not_depend_on_other_texts() {
        let text = |first: u32| {
            let second = first + 3;
            format!(
                "\t{{ // callseq {first}, 0\n\tprototype_{first} : .callprototype ();\n\tcall %rd1, (), prototype_{first};\n\t}} // callseq {first}\n\
                 \tprototype_{second} : .callprototype ();\n\tcall %rd1, (), prototype_{second};\n"
            )
        };
        assert_eq!(renumbered(&text(0)), renumbered(&text(98)));
        let expected = "\t{\n\tprototype_0 : .callprototype ();\n\tcall %rd1, (), prototype_0;\n\t}\n\tprototype_1 : .callprototype ();\n\tcall %rd1, (), prototype_1;\n";
        assert_eq!(renumbered(&text(7)), expected);
    }
}
