//! The table of the instructions that `gpumem-ptx` runs, `crates/gpumem-ptx/INSTRUCTIONS.md`, is what the tests run. `UPDATE=1` writes it.

use gpumem_ptx::Module;
use gpumem_tests::fixtures::random_ptx::{forms, matrix_forms, module_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Statements that have no result to compare, leave it open, or give one that depends on the order of threads. Tests of the crate run them.
const OTHERS: &str = "
ld.param.u64 %y0, [in]; ld.global.b8 %r0, [%in]; ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f0, %f1, %f2, %f3}, [%in]; ld.volatile.shared.u32 %r0, [%s];
ld.relaxed.gpu.global.u32 %r0, [%in]; ld.acquire.sys.global.u64 %y0, [%in]; ld.local.v2.b32 {%r0, %r1}, [%in]; ld.const.s16 %h0, [%in]; ld.u64 %y0, [%in]; ldu.global.u32 %r0, [%in];
st.global.v2.f64 [%out], {%d0, %d1}; st.shared.u8 [%s], %r0; st.local.b16 [%in], %h0; st.release.gpu.global.u32 [%out], %r0; st.relaxed.cta.shared.u32 [%s], %r0; st.volatile.u32 [%out], %r0;
red.global.add.u32 [%out], %r0; red.shared.max.s32 [%s], %r0; red.relaxed.gpu.global.add.f32 [%out], %f0; red.global.add.noftz.f16x2 [%out], %r0; red.global.add.v4.f32 [%out], {%f0, %f1, %f2, %f3};
atom.acq_rel.cta.shared.cas.b32 %r0, [%s], %r1, %r2; atom.global.cas.b16 %h0, [%out], %h1, %h2; atom.global.add.noftz.f16 %h0, [%out], %h1; atom.global.add.noftz.bf16 %h0, [%out], %h1;
cvta.global.u64 %y0, %in; cvta.to.global.u64 %y0, %in; cvta.shared.u64 %y0, %y1; cvta.local.u64 %y0, %y1; cvta.param.u64 %y0, %y1; cvta.const.u64 %y0, %y1; isspacep.shared %p0, %in; isspacep.global %p0, %in;
cp.async.ca.shared.global [%s], [%in], 8; cp.async.cg.shared.global.L2::128B [%s], [%in], 16, %r0; cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
cp.async.mbarrier.arrive.noinc.shared.b64 [%s]; mbarrier.pending_count.b64 %r0, %y0; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%s], 16;
prefetch.global.L1 [%in]; prefetchu.L1 [%in]; applypriority.global.L2::evict_normal [%in], 128; discard.global.L2 [%in], 128; createpolicy.fractional.L2::evict_last.b64 %y0, 1.0;
membar.gl; fence.acq_rel.gpu; fence.proxy.async; griddepcontrol.wait; nanosleep.u32 20; pmevent 1; setmaxnreg.inc.sync.aligned.u32 64;
bar.sync 0; bar.arrive 1, 128; bar.red.popc.u32 %r0, 1, %p0; bar.red.and.pred %p0, 1, %p1; barrier.sync.aligned 0; barrier.sync 2, 64; bar.warp.sync -1;
shfl.sync.up.b32 %r0, %r1, 1, 0, -1; shfl.sync.down.b32 %r0|%p0, %r1, 1, 31, -1; shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1; shfl.sync.idx.b32 %r0, %r1, 1, 31, -1;
vote.sync.all.pred %p0, %p1, -1; vote.sync.any.pred %p0, %p1, -1; vote.sync.uni.pred %p0, %p1, -1; vote.sync.ballot.b32 %r0, %p1, -1; activemask.b32 %r0;
match.any.sync.b32 %r0, %r1, -1; match.all.sync.b64 %r0|%p0, %y0, -1; redux.sync.add.s32 %r0, %r1, -1; redux.sync.min.u32 %r0, %r1, -1; redux.sync.xor.b32 %r0, %r1, -1; elect.sync %r0|%p0, -1;
mov.b32 %r0, %r1; mov.b64 {%r0, %r1}, %y0; mov.b32 %r0, {%h0, %h1}; mov.u32 %r0, %tid.x; mov.u64 %y0, %clock64; bra DONE; brx.idx %r0, LIST; call helper; call %y0, (), P; ret; exit; trap; brkpt;
div.approx.f32 %f0, %f1, %f2; div.full.ftz.f32 %f0, %f1, %f2; rcp.approx.ftz.f32 %f0, %f1; rcp.approx.ftz.f64 %d0, %d1; sqrt.approx.f32 %f0, %f1; rsqrt.approx.f32 %f0, %f1; rsqrt.approx.ftz.f64 %d0, %d1;
sin.approx.f32 %f0, %f1; cos.approx.f32 %f0, %f1; lg2.approx.f32 %f0, %f1; ex2.approx.f32 %f0, %f1; ex2.approx.f16x2 %r0, %r1; ex2.approx.ftz.bf16 %h0, %h1; tanh.approx.f32 %f0, %f1; tanh.approx.f16 %h0, %h1;
neg.f32 %f0, %f1; neg.f64 %d0, %d1; neg.f16x2 %r0, %r1; abs.f32 %f0, %f1; abs.ftz.f32 %f0, %f1; abs.f64 %d0, %d1; abs.bf16 %h0, %h1; neg.bf16x2 %r0, %r1; mad.rn.f32 %f0, %f1, %f2, %f3;
fns.b32 %r0, %r1, 3, 1; min.xorsign.abs.f32 %f0, %f1, %f2; max.NaN.xorsign.abs.f32 %f0, %f1, %f2; add.ftz.f16x2 %r0, %r1, %r2; fma.rn.ftz.f16 %h0, %h1, %h2, %h3; cvt.bf16.f16 %h0, %h1; cvt.f16.bf16 %h0, %h1";

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
        "video instructions on one number, such as `vadd`, and `vset2`, `vset4`",
        "vadd.s32.s32.s32 %r0, %r1, %r2",
    ),
    (
        "`fma.rn.oob`, `cvt.rs`, and what needs `sm_100`: pairs of `f32`, sums of mixed types, minima of three",
        "fma.rn.oob.f16 %h0, %h1, %h2, %h3",
    ),
    ("variables with attributes (`.managed`)", ""),
    ("machine code", ""),
];

/// The opcodes of statements.
fn opcodes(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').filter_map(|statement| statement.split_whitespace().next())
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
    fn add(&mut self, opcode: &str) {
        let mut parts = opcode.split('.');
        let name = parts.next().unwrap().to_string();
        let (types, modifiers): (Vec<&str>, Vec<&str>) = parts.partition(|part| is_type(part));
        let modifiers = self.0.entry(name).or_default().entry(modifiers.join(".")).or_default();
        modifiers.insert(types.join("."));
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
    opcodes(OTHERS).for_each(|opcode| others.add(opcode));
    let names: BTreeSet<&String> = compared.0.keys().chain(others.0.keys()).collect();
    let mut table = format!(
        "# Instructions\n\n\
         `cargo test -p gpumem-tests --test driver instructions` checks this page against the tests; with `UPDATE=1` it writes it.\n\n\
         The second column has what {} forms compare with a GPU, to the bit, each on 1,536 inputs, and 2,000 random programs of them. Matrix\n\
         products are compared where their sums are exact. The third column has what tests of the crate run beside them: memory,\n\
         branches, barriers, and results that the manual leaves open. Modifiers come first, then types.\n\n\
         | instruction | compared with a GPU | run by tests |\n| --- | --- | --- |\n",
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

/// A module with a kernel that has this statement.
fn parsed(statement: &str) -> Module {
    let text = module_of(&["mov.b32 %r0, %r0".into()]);
    let end = text.find("st.global").unwrap();
    let text = format!(
        "{}LIST: .branchtargets DONE; P: .callprototype _ ();\n{statement};\nDONE:\n{}",
        &text[..end],
        &text[end..]
    );
    let text = text.replacen(".visible .entry", ".func helper() { ret; }\n.visible .entry", 1);
    Module::parse(&text).unwrap_or_else(|error| panic!("{statement}: {error}"))
}

#[test]
fn other_instructions_run() {
    for statement in OTHERS.split(';') {
        assert_eq!(parsed(statement.trim()).entries()[0].unsupported(), None, "{statement}");
    }
}

#[test]
fn unsupported_instructions_are_named() {
    for (_, statement) in UNSUPPORTED.iter().filter(|(_, statement)| !statement.is_empty()) {
        let module = parsed(statement);
        let error =
            module.entries()[0].unsupported().unwrap_or_else(|| panic!("{statement} runs")).to_string();
        let opcode = statement.split(' ').next().unwrap();
        let named = format!("the instruction `{}", &opcode[..opcode.len().min(20)]);
        assert!(error.contains(&named) && error.ends_with("is not supported"), "{error}");
    }
}
