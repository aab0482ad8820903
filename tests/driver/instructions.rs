//! The table of the instructions that `gpumem-ptx` runs, `crates/gpumem-ptx/INSTRUCTIONS.md`, has what the tests run. `UPDATE=1` writes it.

use crate::others::{OTHERS, SIMULATED, module_of, parts};
use gpumem_ptx::Module;
use gpumem_tests::fixtures::random_ptx::{forms, matrix_forms};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Families that do not run, with a statement of each.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("`wgmma`", "wgmma.fence.sync.aligned"),
    ("`tcgen05`", "tcgen05.wait::ld.sync.aligned"),
    (
        "`mma.sp`, `mma` with scales or of single bits, and `m8n8k4` of halves",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, {%f0, %f1, %f2, %f3}, %r0, 0",
    ),
    (
        "`ldmatrix` and `stmatrix` of 8 bits",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%s]",
    ),
    (
        "clusters: `barrier.cluster`, `mapa`, `getctarank`, `.shared::cluster`, `.reqnctapercluster`",
        "mapa.shared::cluster.u32 %r0, %r1, %r2",
    ),
    (
        "`cp.async.bulk`, `cp.reduce.async.bulk`, `st.async`, `st.bulk`, `red.async`, tensor maps",
        "cp.async.bulk.commit_group",
    ),
    ("`multimem`", "multimem.ld_reduce.global.add.u32 %r0, [%in]"),
    (
        "textures and surfaces: `tex`, `tld4`, `txq`, `suld`, `sust`, `sured`, `suq`",
        "tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%in, {%r0}]",
    ),
    ("values of 128 bits: `ld.b128`, `atom.exch.b128`, `mov.b128`", "atom.global.exch.b128 %y0, [%in], %y1"),
    ("`alloca`, `stacksave`, `stackrestore`", "stacksave.u64 %y0"),
    (
        "video instructions on one number, such as `vadd`, `vset2`, `vset4`, and parts of registers (`%r1.h10`)",
        "vadd.s32.s32.s32 %r0, %r1, %r2",
    ),
    ("`lop3` with a predicate", "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 128, %p1"),
    (
        "`fma.rn.oob`, `cvt.rs`, and what needs `sm_100`: pairs of `f32`, sums of mixed types, minima of three",
        "fma.rn.oob.f16 %h0, %h1, %h2, %h3",
    ),
    ("variables with attributes (`.managed`), global variables inside of functions, `array[%r]`", ""),
    ("machine code", ""),
];

/// The opcodes of statements; labels, guards and declarations have none.
fn opcodes(text: &str) -> impl Iterator<Item = &str> {
    let begins_one = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
    text.split(';').filter_map(move |statement| statement.split_whitespace().find(begins_one))
}

fn is_type(part: &str) -> bool {
    let digits = part.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    let names = ["pred", "tf32", "e4m3", "e5m2", "e4m3x2", "e5m2x2", "bf16", "bf16x2"];
    names.contains(&part)
        || part.len() > 1
            && part.starts_with(['b', 'u', 's', 'f'])
            && part.len() - digits.len() == 1
            && digits.starts_with(|digit: char| digit.is_ascii_digit())
}

/// Modifiers of each instruction, and the types that each of them has.
#[derive(Default)]
struct Forms(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Forms {
    /// The name, modifiers and types of an opcode.
    fn split(opcode: &str) -> (&str, String, String) {
        let mut parts = opcode.split('.');
        let name = parts.next().unwrap_or_default();
        let (types, modifiers): (Vec<&str>, Vec<&str>) = parts.partition(|part| is_type(part));
        (name, modifiers.join("."), types.join("."))
    }

    fn has(&self, opcode: &str) -> bool {
        let (name, modifiers, types) = Self::split(opcode);
        self.0.get(name).and_then(|of| of.get(&modifiers)).is_some_and(|all| all.contains(&types))
    }

    fn add(&mut self, opcode: &str) {
        let (name, modifiers, types) = Self::split(opcode);
        self.0.entry(name.into()).or_default().entry(modifiers).or_default().insert(types);
    }

    /// A cell of the table: types of each list of modifiers, of those that have equal types together.
    fn cell(&self, name: &str) -> String {
        let Some(forms) = self.0.get(name) else { return String::new() };
        let mut by_types: BTreeMap<&BTreeSet<String>, Vec<&str>> = BTreeMap::new();
        forms.iter().for_each(|(modifiers, types)| by_types.entry(types).or_default().push(modifiers));
        let mut lines: Vec<String> = by_types
            .iter()
            .map(|(types, modifiers)| {
                let named = modifiers.iter().filter(|name| !name.is_empty()).map(|name| format!("`.{name}`"));
                let named: Vec<String> = named.collect();
                let types: Vec<&str> =
                    types.iter().map(String::as_str).filter(|types| !types.is_empty()).collect();
                let types = if types.is_empty() { "–".to_string() } else { types.join(" ") };
                match (modifiers.contains(&""), named.is_empty()) {
                    (_, true) => types,
                    (true, false) => format!("plain {}: {types}", named.join(" ")),
                    (false, false) => format!("{}: {types}", named.join(" ")),
                }
            })
            .collect();
        lines.sort();
        lines.join("<br>")
    }
}

fn table() -> String {
    let (mut compared, mut others) = (Forms::default(), Forms::default());
    let all = [forms(), matrix_forms()].concat();
    all.iter().flat_map(|form| opcodes(form)).for_each(|opcode| compared.add(opcode));
    let lines = OTHERS.trim().lines().map(|line| parts(line).0).chain(SIMULATED.map(|(text, _)| text));
    lines.flat_map(opcodes).filter(|opcode| !compared.has(opcode)).for_each(|opcode| others.add(opcode));
    let names: BTreeSet<&String> = compared.0.keys().chain(others.0.keys()).collect();
    let mut table = format!(
        "# Instructions\n\n\
         `cargo test -p gpumem-tests --test driver instructions` checks this page against the tests; with `UPDATE=1` it writes it.\n\n\
         The second column has what {} forms compare with a GPU, to the bit, each on 1,536 inputs, and 2,000 random programs of them. Matrix\n\
         products are compared where their sums are exact. The third column has what runs on both with operands of one known result:\n\
         memory, branches, barriers, lanes, and functions that approximate. Modifiers come first, then types.\n\n\
         In the second column the vendor's compiler runs without optimisation (`CU_JIT_OPTIMIZATION_LEVEL` 0): with it, it folds some\n\
         instructions as if operands were never NaN or the least integer. A NaN of 32 or 64 bits equals every other. Kernels that compilers\n\
         made run with the default level, and are equal to the bit as well: a hundred of the tests, and those of `gpumem-array`.\n\n\
         | instruction | compared with a GPU | run with a known result |\n| --- | --- | --- |\n",
        all.len()
    );
    for name in names {
        let _ = writeln!(table, "| `{name}` | {} | {} |", compared.cell(name), others.cell(name));
    }
    table += "\n## Not supported\n\nA kernel with one of these is named when its module is parsed (`Entry::unsupported`), and the others run.\n\n";
    for (family, _) in UNSUPPORTED {
        let _ = writeln!(table, "- {family}");
    }
    table
}

#[test]
fn the_table_is_what_is_tested() {
    let path = gpumem_tests::folder().join("../crates/gpumem-ptx/INSTRUCTIONS.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, table()).unwrap();
    }
    // A test program may have been copied to another machine without the crates.
    let Ok(found) = std::fs::read_to_string(&path) else { return };
    assert!(found == table(), "{} is not what the tests run; UPDATE=1 writes it", path.display());
}

#[test]
fn unsupported_instructions_are_named() {
    for (_, statement) in UNSUPPORTED.iter().filter(|(_, statement)| !statement.is_empty()) {
        let module = Module::parse(&module_of(statement, "%r0"))
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
        let error =
            module.entries()[0].unsupported().unwrap_or_else(|| panic!("{statement} runs")).to_string();
        let opcode = statement.split(' ').next().unwrap();
        let named = format!("the instruction `{}", &opcode[..opcode.len().min(20)]);
        assert!(error.contains(&named) && error.ends_with("is not supported"), "{error}");
    }
}
