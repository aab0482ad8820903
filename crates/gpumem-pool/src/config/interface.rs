//! [`Interface`]: the languages and libraries through which programs reach a pool. Texts tell a program which functions to call and which
//! options to set; this file has their names in each interface. Pure.

/// The interface through which a program has built a pool. The pool's reports name functions and options of that interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interface {
    /// This crate.
    #[default]
    Rust,
    /// `gpumem.h`, for C and C++.
    C,
    /// The Python package, for programs that allocate directly.
    Python,
    /// The Python package, as PyTorch's allocator.
    PyTorch,
    /// The Python package, as CuPy's allocator.
    CuPy,
    /// The Python package, as RMM's resource.
    Rmm,
}

impl Interface {
    /// True for libraries that copy the pool's memory between devices by address only.
    pub(crate) fn copies_by_address(self) -> bool {
        matches!(self, Self::PyTorch | Self::CuPy | Self::Rmm)
    }

    /// Replaces the names of this crate in an error's text by those of the interface.
    ///
    /// ```
    /// use gpumem_pool::Interface;
    ///
    /// let text = "raise it (PoolBuilder::hard_limit, or Pool::set_hard_limit)";
    /// assert_eq!(
    ///     Interface::C.translate(text),
    ///     "raise it (gpumem_pool_options.hard_limit_bytes, or gpumem_pool_set_hard_limit)"
    /// );
    /// assert_eq!(
    ///     Interface::PyTorch.translate(text),
    ///     "raise it (hard_limit= of gpumem.torch.install, or gpumem.torch.memory_pool().set_hard_limit)"
    /// );
    /// ```
    #[must_use]
    pub fn translate(self, text: &str) -> String {
        let mut translated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let is_word_start = !translated.ends_with(is_of_a_name);
            let found = NAMES.iter().filter(|_| is_word_start && self != Self::Rust).find_map(|names| {
                let after = rest.strip_prefix(names[0])?;
                (!after.starts_with(is_of_a_name)).then_some((names, after))
            });
            match found {
                Some((names, after)) => {
                    translated += &self.name(names);
                    rest = after;
                }
                None => {
                    translated.push(letter);
                    rest = &rest[letter.len_utf8()..];
                }
            }
        }
        translated
    }

    fn name(self, [rust, c, python]: &[&str; 3]) -> String {
        let (create, pool) = match self {
            Self::Rust => return (*rust).into(),
            Self::C => return (*c).into(),
            Self::Python => ("gpumem.Pool", "Pool"),
            Self::PyTorch => ("gpumem.torch.install", "gpumem.torch.memory_pool()"),
            Self::CuPy => ("gpumem.cupy.install", "gpumem.cupy.memory_pool()"),
            Self::Rmm => ("gpumem.rmm.install", "gpumem.rmm.memory_pool()"),
        };
        python.replace("{create}", create).replace("{pool}", pool)
    }
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | ':')
}

/// In Rust, as in the texts of this workspace, in C and in Python, where `{create}` is what creates the pool, and `{pool}` the pool. Phrases
/// before the names that they contain.
#[rustfmt::skip]
const NAMES: &[[&str; 3]] = &[
    ["PoolBuilder::hard_limit, Pool::private or Pool::set_hard_limit",
        "gpumem_pool_options.hard_limit_bytes or gpumem_pool_set_hard_limit", "hard_limit= of {create} or {pool}.set_hard_limit"],
    ["PoolBuilder::hard_limit", "gpumem_pool_options.hard_limit_bytes", "hard_limit= of {create}"],
    ["PoolBuilder::spill(Spill::to_host(..)) or GPUMEM_SPILL=host:64GiB", "`spill` in gpumem_pool_options.conf or GPUMEM_SPILL=host:64GiB",
        "`spill` in conf= of {create} or GPUMEM_SPILL=host:64GiB"],
    ["PoolBuilder::conf", "gpumem_pool_options.conf", "conf= of {create}"],
    ["PoolBuilder::backend", "`backend` in gpumem_pool_options.conf", "`backend` in conf= of {create}"],
    ["PoolBuilder::profile", "`profile` in gpumem_pool_options.conf", "`profile` in conf= of {create}"],
    ["call Pool::set_default before anything calls Pool::for_device, or use Pool::for_device",
        "call gpumem_pool_set_default before anything calls gpumem_pool_for_device, or use gpumem_pool_for_device",
        "pass the options to the first of gpumem's allocators in this process, or change the pool with {pool}"],
    ["Pool::set_hard_limit", "gpumem_pool_set_hard_limit", "{pool}.set_hard_limit"],
    ["Pool::private", "gpumem_pool_part", "{pool}.part"],
    ["Pool::part", "gpumem_pool_part", "{pool}.part"],
    ["Pool::scope", "gpumem_scope_begin", "{pool}.scope"],
    ["Pool::sleep with Keep::OnHost", "gpumem_pool_sleep with GPUMEM_KEEP_ON_HOST", "{pool}.sleep(keep=\"host\")"],
    ["Pool::wake", "gpumem_pool_wake", "{pool}.wake"],
    ["Keep::OnHost or Keep::Nothing", "GPUMEM_KEEP_ON_HOST or GPUMEM_KEEP_NOTHING", "\"host\" or \"nothing\""],
    ["Device::synchronize", "gpumem_pool_reclaim", "{pool}.reclaim"],
    ["drop graphs that are no longer launched (Graph, GraphExec)",
        "destroy graphs that are no longer launched (gpumem_captures_destroy)", "drop graphs that are no longer launched"],
    ["call ForeignCaptures::expect before the capture begins, or name the stream after the capture ends",
        "allocate before the capture begins, or announce it with gpumem_captures_expect before it begins and gpumem_captures_add before \
         each allocation in it",
        "allocate before the capture begins, or after it ends"],
    ["Stream::new", "gpumem_stream_create", "Pool.stream"],
    ["Stream::from_raw_long_lived", "gpumem_stream_long_lived", "Pool.long_lived"],
    ["set GPUMEM_DRIVER=sim in a program that calls `gpumem_sim::from_env`, which reads it", SIMULATOR, SIMULATOR],
    // C and Python always read the variable.
    ["set GPUMEM_DRIVER=drop-in and call Driver::from_env, which reads it", "set GPUMEM_DRIVER=drop-in", "set GPUMEM_DRIVER=drop-in"],
    ["which `gpumem_sys::Driver::from_env` does not include; call `gpumem_sim::from_env` (crate gpumem-sim) instead",
        NO_SIMULATOR, NO_SIMULATOR],
    // The wheel has the command.
    ["next: gpumem report", "next: gpumem report", "next: python -m gpumem report"],
    // Of the C interface, which the Python package calls.
    ["set trace_path when you create it", "set trace_path when you create it", "set trace= of {create}"],
];

const SIMULATOR: &str =
    "set GPUMEM_DRIVER=drop-in, with the folder of `cargo xtask drop-in` first on the library path";
const NO_SIMULATOR: &str = "which only programs in Rust can contain; set GPUMEM_DRIVER=drop-in instead, with the folder of `cargo \
                            xtask drop-in` first on the library path";

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_sys::LoadError;
    use std::path::Path;

    const OTHERS: [Interface; 5] =
        [Interface::C, Interface::Python, Interface::PyTorch, Interface::CuPy, Interface::Rmm];

    /// The sources of this crate, whose literals are the texts of errors and reports.
    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, found),
                // This table, and texts of the documentation.
                false if path.ends_with("interface.rs") || path.ends_with("options.rs") => {}
                false => found.push(std::fs::read_to_string(path).unwrap()),
            }
        }
    }

    /// Names that exist only in Rust: budgets, guards, growable blocks, host memory, events. No error text contains the last two.
    const ONLY_IN_RUST: [&str; 10] = [
        "Budget::set_limit",
        "Block::from_raw",
        "Block::send",
        "Device::with_host_memory",
        "Event::with_timing",
        "Guard::settle",
        "HostMemory::register",
        "Pool::growable",
        "Clocks::saw",
        "OutOfMemory::serialize",
    ];

    /// The literals of a source, except its tests, with their continuation lines joined.
    fn literals(source: &str) -> Vec<String> {
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        let code = lines.collect::<Vec<_>>().join("\n").replace("\\\n", "").replace("\\\"", "'");
        code.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// `Type::function` in a text.
    fn paths(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|letter: char| !is_of_a_name(letter));
        words
            .map(|word| word.trim_matches(':'))
            .filter(|word| word.contains("::") && word.starts_with(|letter: char| letter.is_uppercase()))
    }

    /// A text with a name that the table lacks would tell a program in C to call a function in Rust.
    #[test]
    fn every_name_in_a_text_is_known_to_all_interfaces() {
        let (mut found, mut files) = (0, Vec::new());
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        for text in files.iter().flat_map(|source| literals(source)) {
            for interface in OTHERS {
                let translated = interface.translate(&text);
                let left: Vec<_> = paths(&translated).filter(|path| !ONLY_IN_RUST.contains(path)).collect();
                assert!(left.is_empty(), "{interface:?}: {left:?} in {translated:?}; add a row to NAMES");
                assert!(
                    !translated.contains("(Graph, GraphExec)") && !translated.contains("{create}"),
                    "{translated}"
                );
            }
            found += paths(&text).count();
        }
        assert!(found > 20, "{found} names found");
    }

    #[test]
    fn only_whole_names_are_replaced() {
        for text in
            ["MyPool::wake", "Pool::wakes", "a::Pool::wake", "Pool::wake::b", "pool::wake", "", "ß → …"]
        {
            assert_eq!(Interface::C.translate(text), text);
        }
        assert_eq!(Interface::Python.translate("(Pool::wake, Pool::part)"), "(Pool.wake, Pool.part)");
        assert_eq!(Interface::Rust.translate("Pool::wake"), "Pool::wake");
    }

    /// A report that names the pool's interface passes through another one.
    #[test]
    fn a_translated_text_is_final() {
        for [rust, ..] in NAMES.iter().filter(|[rust, c, _]| rust != c) {
            for (first, second) in OTHERS.into_iter().flat_map(|first| OTHERS.map(|second| (first, second))) {
                let once = first.translate(rust);
                assert_ne!(once, *rust);
                assert_eq!(second.translate(&once), once);
            }
        }
    }

    #[test]
    fn a_missing_driver_is_explained_without_crates() {
        let missing = LoadError::NoLibrary { reason: "libcuda.so.1: not found".into() };
        for error in [missing, LoadError::SimulatorRequested, LoadError::Impostor] {
            for interface in OTHERS {
                let text = interface.translate(&error.to_string());
                assert!(text.contains("GPUMEM_DRIVER=drop-in") && !text.contains("from_env"), "{text}");
            }
        }
    }
}
