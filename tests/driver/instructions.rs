//! The table of the instructions that `gpumem-ptx` runs, `crates/gpumem-ptx/INSTRUCTIONS.md`, has what the tests run. `UPDATE=1` writes it.

use crate::others::{OTHERS, SIMULATED, module_of, parts};
use gpumem_ptx::Module;
use gpumem_tests::fixtures::random_ptx::{forms, matrix_forms};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Families that do not run, with statements of each. A statement may have declarations before it, and then states what is named, divided by `|`.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    (
        "`wgmma`",
        &[
            "wgmma.fence.sync.aligned",
            "wgmma.commit_group.sync.aligned",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %y0, %y1, 1, 1, 1, 0, 0",
        ],
    ),
    ("`tcgen05`", &["tcgen05.wait::ld.sync.aligned"]),
    (
        "`mma.sp`, `mma` with scales, of 6 and 4 bits or of single bits, and `m8n8k4` of halves; `wmma` of less than 8 bits",
        &[
            "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%f0, %f1, %f2, %f3}, %r0, 0",
            "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1}",
            "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2, %r3}, {%r0, %r1, %r2, %r3}",
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m3.e2m3.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%f0, %f1, %f2, %f3}",
            "wmma.load.a.sync.aligned.row.m8n8k32.shared.s4 {%r0}, [%s], 32",
        ],
    ),
    (
        "`ldmatrix` and `stmatrix` of 8 bits",
        &[
            "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%s]",
            "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%s], {%r0}",
        ],
    ),
    (
        "clusters: `barrier.cluster`, `mapa`, `getctarank`, `.shared::cluster`, `.reqnctapercluster`, fences that are restricted to a cluster",
        &[
            "barrier.cluster.arrive.aligned",
            "mapa.shared::cluster.u32 %r0, %r1, %r2",
            "getctarank.shared::cluster.u32 %r0, %r1",
            "ld.shared::cluster.u32 %r0, [%s]",
            "atom.shared::cluster.add.u32 %r0, [%s], 1",
            "isspacep.shared::cluster %p0, %y0",
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%s]",
            "fence.acquire.sync_restrict::shared::cluster.cluster",
        ],
    ),
    (
        "`cp.async.bulk`, `cp.reduce.async.bulk`, `st.async`, `st.bulk`, `red.async`, tensor maps",
        &[
            "cp.async.bulk.commit_group",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%in], 16, [%s5]",
            "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%in, {%r0}], [%s]",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%in], [%s], 16",
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%s], %r1, [%s5]",
            "st.bulk.weak.shared::cta [%y0], 64, 0",
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%s], %r1, [%s5]",
            "tensormap.replace.tile.global_address.global.b1024.b64 [%in], %y0",
            "fence.proxy.tensormap::generic.acquire.gpu [%in], 128",
        ],
    ),
    ("`multimem`", &["multimem.ld_reduce.global.add.u32 %r0, [%in]"]),
    (
        "textures and surfaces: `tex`, `tld4`, `txq`, `suld`, `sust`, `sured`, `suq`",
        &[
            "tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%in, {%r0}]",
            "tld4.r.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%in, {%f0, %f1}]",
            "txq.width.b32 %r0, [%in]",
            "suld.b.1d.b32.trap %r0, [%in, {%r1}]",
            "sust.b.1d.b32.trap [%in, {%r1}], %r0",
            "sured.b.add.1d.u32.trap [%in, {%r1}], %r0",
            "suq.width.b32 %r0, [%in]",
            ".global .texref image; | mov.u64 %y0, image | `image`, a texture",
        ],
    ),
    (
        "values of 128 bits: `ld.b128`, `atom.exch.b128`, `mov.b128`",
        &["ld.global.b128 %y0, [%in]", "atom.global.exch.b128 %y0, [%in], %y1", "mov.b128 %y0, {%y0, %y1}"],
    ),
    (
        "`alloca`, `stacksave`, `stackrestore`",
        &["alloca.u64 %y0, 16", "stacksave.u64 %y0", "stackrestore.u64 %y0"],
    ),
    (
        "video instructions on one number: `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`, `vshl`, `vshr`, `vmad`, `vset`; `vset2`, `vset4`; sums \
         (`.add`) of numbers with different signs; parts of registers (`%r1.h10`)",
        &[
            "vadd.s32.s32.s32 %r0, %r1, %r2",
            "vsub.s32.s32.s32 %r0, %r1, %r2",
            "vabsdiff.s32.s32.s32 %r0, %r1, %r2",
            "vmin.s32.s32.s32 %r0, %r1, %r2",
            "vmax.s32.s32.s32 %r0, %r1, %r2",
            "vshl.u32.u32.u32.wrap %r0, %r1, %r2",
            "vshr.u32.u32.u32.wrap %r0, %r1, %r2",
            "vmad.s32.s32.s32 %r0, %r1, %r2, %r3",
            "vset.s32.s32.lt %r0, %r1, %r2",
            "vset2.u32.u32.eq %r0, %r1, %r2, %r3",
            "vset4.u32.u32.eq %r0, %r1, %r2, %r3",
            "vadd4.u32.s32.u32.add %r0, %r1, %r2, %r3",
            " | vadd2.u32.u32.u32 %r0, %r1.h10, %r2, %r3 | the part `%r1.h10`",
        ],
    ),
    ("`isspacep.const`", &["isspacep.const %p0, %y0"]),
    (
        "`fma.rn.oob`, `cvt.rs`, and what needs `sm_100`: pairs of `f32`, sums of mixed types, minima of three, `redux` of `f32`, vectors of eight",
        &[
            "fma.rn.oob.f16 %h0, %h1, %h2, %h3",
            "cvt.rs.f16x2.f32 %r0, %f1, %f2, %r3",
            "add.rn.f32x2 %y0, %y1, %y1",
            "redux.sync.min.f32 %f0, %f1, -1",
            "redux.sync.min.abs.NaN.f32 %f0, %f1, -1",
        ],
    ),
    (
        "the registers `%envreg…` and `%reserved_smem_offset_…`",
        &[
            " | mov.u32 %r0, %envreg1 | the register `%envreg1`",
            " | mov.u32 %r0, %reserved_smem_offset_begin | the register `%reserved_smem_offset_begin`",
        ],
    ),
    (
        "memory that kernels allocate (`malloc`, `free`, `new`, `delete`), and kernels that launch others (`cudaLaunchDevice` and its like)",
        &[
            ".extern .func (.param .b64 r) malloc(.param .b64 n); | { .param .b64 n; .param .b64 r; st.param.b64 [n], 16; call (r), malloc, (n); } | the function `malloc`",
            ".extern .func free(.param .b64 p); | { .param .b64 p; st.param.b64 [p], %y0; call free, (p); } | the function `free`",
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a, .param .b64 b); | { .param .b64 a; .param .b64 b; .param .b32 r; \
             st.param.b64 [a], %y0; st.param.b64 [b], %y0; call (r), cudaLaunchDeviceV2, (a, b); } | the function `cudaLaunchDeviceV2`",
            ".extern .func (.param .b32 r) cudaDeviceSynchronize(); | { .param .b32 r; call (r), cudaDeviceSynchronize; } | the function `cudaDeviceSynchronize`",
        ],
    ),
    (
        "variables with attributes (`.managed`), global variables inside of functions, `array[%r]`",
        &[
            ".visible .global .attribute(.managed) .align 4 .u32 shared_with_host; | ld.global.u32 %r0, [shared_with_host] | a variable with an attribute",
            " | .global .u32 inside; ld.global.u32 %r0, [inside] | a global variable inside of a function",
            " | .local .u32 many[4]; mov.u32 %r0, many[%r1] | an index of `many` that is no constant",
        ],
    ),
    (
        "what NVIDIA's assembler takes beyond the manual: addresses of functions outside of `mov`, a constant that is added to a register of another \
         type, generic addresses and pointers to functions of less than 64 bits",
        &[
            " | add.u64 %y0, %y1, after | the address of a function",
            " | add.u64 %y0, %y1, %r1+4 | a register of another type, plus a constant",
            " | ld.global.u32 %r0, [%h1] | an address of 16 bits",
            " | mbarrier.inval.b64 [%s] | a generic address of less than 64 bits",
            " | P: .callprototype _ (); call %r1, (), P | a pointer to a function of 32 bits",
        ],
    ),
    (
        "more than 512 KiB of local memory in a call, parameters that are aligned to more than 128 bytes, `.address_size 32`",
        &[" | .local .b8 huge[600000]; st.local.u8 [huge], %r0 | 600000 bytes of local memory"],
    ),
    ("machine code", &[]),
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
         The second column has what {} forms compare with a GPU, to the bit, each on 1,536 inputs, and 2,000 random programs of them\n\
         without matrices. Matrix products are compared where their sums are exact. The third column has what runs with operands of one\n\
         known result, on both but for `setmaxnreg`, `trap` and `brkpt`: memory, branches, barriers, lanes, and functions that approximate.\n\
         Modifiers come first, then types.\n\n\
         In the second column the vendor's compiler runs without optimisation (`CU_JIT_OPTIMIZATION_LEVEL` 0): with it, it folds some\n\
         instructions as if operands were never NaN or the least integer. A NaN of 32 or 64 bits equals every other. Kernels that compilers\n\
         made run with the default level: a hundred of the tests are equal to the bit as well, and so are those of `gpumem-array`, but for\n\
         products of `f16` and `bf16` (1 unit in the last place) and kernels with approximate functions (4 units).\n\n\
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
    for statement in UNSUPPORTED.iter().flat_map(|(_, statements)| *statements) {
        let parts: Vec<&str> = statement.split('|').map(str::trim).collect();
        let (declarations, statement, named) = match parts[..] {
            [declarations, statement, named] => (declarations, statement, named.to_string()),
            _ => {
                let opcode = statement.split(' ').next().unwrap();
                ("", *statement, format!("the instruction `{}", &opcode[..opcode.len().min(20)]))
            }
        };
        let text = module_of(statement, "%r0").replacen(
            ".func after",
            &format!("{declarations}\n.entry good() {{ ret; }}\n.func after"),
            1,
        );
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert_eq!(module.entry("good").unwrap().unsupported(), None, "{statement}");
        let entry = module.entry("k").unwrap();
        let error = entry.unsupported().unwrap_or_else(|| panic!("{statement} runs")).to_string();
        assert!(error.contains(&named) && error.ends_with("is not supported"), "{statement}: {error}");
    }
}
