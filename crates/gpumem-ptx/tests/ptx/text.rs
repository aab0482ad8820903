//! Texts: every kernel of the repository, what is refused, and hostile ones.

use crate::support::{kernel, module, run};
use gpumem_ptx::{Module, PtxProblem};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// The PTX files of a folder and those in it.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            texts(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push(path);
        }
    }
}

/// A packaged crate is built without the other crates beside it.
pub(crate) fn repository() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    if crates.join("gpumem-array").is_dir() {
        texts(crates, &mut found);
        texts(&crates.join("../tests"), &mut found);
    }
    found.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_kernel_of_the_repository_can_run() {
    for text in repository() {
        let module = Module::parse(&text).unwrap();
        for entry in module.entries() {
            assert_eq!(entry.unsupported(), None, "{}", entry.name());
        }
    }
}

#[test]
fn errors_have_their_places() {
    let problem = |lines: &str| {
        let text = format!(".version 8.0\n.target sm_80\n{lines}");
        Module::parse(&text).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        problem(".visible .entry k() {\n  add.u32 %r1, 1, 2;\n}"),
        "line 4, column 3: the target is no register"
    );
    assert_eq!(problem(".entry k() { .reg .b32 %r<2>;\nbra L; }"), "line 4, column 1: there is no label `L`");
    assert_eq!(problem(".entry k() { ret;"), "line 3, column 18: an instruction is expected, not the end");
    for (lines, found) in [
        (".entry k() {\n.reg .b32 a; .reg .b32 a; }", "line 4, column 24: `a` is declared twice"),
        (".entry k() {\n.reg .b32 a<2>; .reg .b32 a<3>; }", "line 4, column 27: `a` is declared twice"),
        (".entry k() {\nL: ret; L: ret; }", "line 4, column 9: `L` is declared twice"),
        (".entry k() { ret; }\n.entry k() { ret; }", "line 4, column 1: `k` is defined twice"),
        (".global .u32 g;\n.global .u32 g;", "line 4, column 14: `g` is defined twice"),
        (".entry k() { .reg .b32 a;\nmov.u32 a, %b; }", "line 4, column 1: `%b` is not declared"),
        (
            ".entry k() { .reg .b32 a; .reg .pred b;\nmov.u32 a, b+1; }",
            "line 4, column 1: a register of this operand has another type",
        ),
        (".entry k() { .reg .b32 a;\nmov.u32 a, 1/0; }", "line 4, column 14: a constant is divided by zero"),
        (".global .u32 g[2][2] =\n{{1, 2, 3}, {4}};", "line 4, column 2: more initial values than elements"),
    ] {
        assert_eq!(problem(lines), found, "{lines}");
    }
    let newer = Module::parse(".version 99.1\n.target sm_80").unwrap_err();
    assert!(matches!(newer.what, PtxProblem::Version { stated: (99, 1), .. }));
}

/// The sum is that of NVIDIA's assembler.
#[test]
fn registers_plus_constants() {
    let lines = "mov.u32 %r0, 0xfffffff0; mov.u32 %r1, %r0+0x22; st.global.u32 [%rd0], %r1; add.u32 %r1, %r0+16, %r0+-1;\n\
                 st.global.u32 [%rd0+4], %r1; st.global.u32 [%rd0+8], %r1+1;";
    assert_eq!(run(lines, 1, 3).unwrap(), [0x12, 0xffff_ffef, 0xffff_fff0]);
}

/// As NVIDIA's assembler: a register has the size of the instruction's type, and none is a fraction where an integer is meant.
#[test]
fn registers_of_other_types_are_refused() {
    for line in [
        "add.u32 %rd1, %r1, %r2",
        "add.u32 %h1, %r1, %r2",
        "add.u32 %f1, %r1, %r2",
        "add.u32 %p1, %r1, %r2",
        "mov.u32 %r1, %rd1",
        "mov.u32 %rd1, %r1",
        "add.u32 %r1, %rd1, %r2",
        "add.f32 %f1, %d1, %f2",
        "mul.wide.u32 %r1, %r1, %r2",
        "mul.lo.u64 %rd1, %r1, %rd2",
        "popc.b64 %rd1, %rd2",
        "setp.lt.u32 %r1, %r2, %r3",
        "setp.lt.u32 %p1|%r1, %r2, %r3",
        "setp.lt.u32 %p1, %r2, %rd3",
        "selp.b32 %r1, %r2, %rd3, %p1",
        "shl.b32 %r1, %r2, %rd3",
        "cvt.u64.u32 %r1, %r2",
        "cvt.u8.u32 %p1, %r2",
        "mov.b32 {%r1, %r2}, %r3",
        "mov.b64 %rd1, {%h1, %r2}",
        "atom.global.add.u32 %rd1, [%rd0], %r2",
        "atom.global.add.u32 %r1, [%rd0], %rd2",
        "ld.global.u32 %h1, [%rd0]",
        "ld.global.u8 %p1, [%rd0]",
        "ld.global.u32 %r1, [%f1]",
        "ld.global.u32 %r1, [%p1]",
        "shfl.sync.idx.b32 %rd1, %r2, 0, 31, -1",
        "shfl.sync.idx.b32 %r1|%r2, %r2, 0, 31, -1",
        "vote.sync.ballot.b32 %p1, %p2, -1",
        "bar.red.popc.u32 %p1, 0, %p2",
        "fma.f32 %f1, %f2, %f3, %f4",
        "div.f32 %f1, %f2, %f3",
        "sqrt.f64 %d1, %d2",
        "mad.f32 %f1, %f2, %f3, %f4",
        "mov.u32 %r1, 1.5",
        "mov.f32 %f1, 3",
        "add.f64 %d1, %d2, 1",
    ] {
        let text = format!(".version 8.0\n.target sm_80\n{}", kernel(&format!("{line};")));
        let problem = Module::parse(&text).map(|_| ()).expect_err(line);
        assert!(matches!(problem.what, PtxProblem::Syntax(_)), "{line}: {problem}");
        assert_eq!(problem.line, 7, "{line}: {problem}");
    }
    for line in [
        "add.f32 %r1, %f1, %r2",
        "mov.b32 %r1, %f1",
        "mov.f32 %f1, %r1",
        "ld.global.u8 %rd1, [%rd0]",
        "st.global.u8 [%rd0], %r1",
        "cvt.u8.u32 %rd1, %rd2",
        "selp.f32 %f1, %r1, 0f00000000, %p1",
        "mov.b32 %r1, 0f3F800000",
        "atom.global.exch.b32 %f1, [%rd0], %f2",
        "shfl.sync.idx.b32 %f1|%p1, %f2, 0, 31, -1",
        "mov.u64 %rd1, out",
    ] {
        module(&kernel(&format!("{line};")));
    }
}

/// The values are those of NVIDIA's assembler.
#[test]
fn constants_are_expressions() {
    let words = |text: &str| {
        let lines = text
            .split(", ")
            .enumerate()
            .map(|(index, value)| format!("mov.u32 %r0, {value}; st.global.u32 [%rd0+{index}*4], %r0;\n"));
        let count = text.split(", ").count();
        run(&lines.collect::<String>(), 1, count).unwrap()
    };
    assert_eq!(words("1+2*3, (1+2)*3, 7/2, 10-3-2, 1<<4|1, 0xff&~15"), [7, 9, 3, 5, 17, 240]);
    assert_eq!(words("3>2, 3>=4, 1==1&&2!=2, 0||5, !0, !7"), [1, 0, 0, 1, 1, 0]);
    assert_eq!(words("5>3 ? 10 : 20, -(4)+1, WARP_SZ*2, (.s64)(5+1)"), [10, -3_i32 as u32, 64, 6]);
    assert_eq!(words("-4>>1, 1<<40, 1<<64, -9223372036854775808/-1"), [-2_i32 as u32, 0, 0, 0]);
    let lines = "mov.f32 %f0, .5+1; st.global.f32 [%rd0+(2*2)], %f0; mov.f32 %f0, -(1.0/4); st.global.f32 [%rd0], %f0;";
    assert_eq!(run(lines, 1, 2).unwrap(), [-0.25_f32, 1.5].map(f32::to_bits));
    for deep in ["(".repeat(1 << 20), "-".repeat(1 << 20), "1?1:".repeat(1 << 18), "!".repeat(1 << 20)] {
        let text = kernel(&format!("mov.u32 %r0, {deep}1;"));
        let problem = Module::parse(&format!(".version 8.0\n.target sm_80\n{text}")).unwrap_err();
        assert!(problem.to_string().ends_with("an expression is nested too deeply"), "{problem}");
    }
}

#[test]
fn registers_that_are_vectors() {
    let lines = ".reg .v2 .u32 v, w; .reg .v4 .u32 many<3>; mov.v2.u32 v, {4, 5}; mov.v2.u32 w, v; mov.v2.u32 {w.x, w.g}, {w.y, w.r};\n\
                 mov.v4.u32 many2, %ntid; st.global.v2.u32 [%rd0], w; st.global.v4.u32 [%rd0+16], many2; mov.b64 %rd1, v; st.global.b64 [%rd0+8], %rd1;";
    assert_eq!(run(lines, 1, 8).unwrap(), [5, 4, 4, 5, 1, 1, 1, 0]);
}

#[test]
fn a_kernel_that_cannot_run_does_not_stop_the_others() {
    let text = |line: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.entry good() {{ ret; }}\n\
             .entry bad() {{ .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b64 %t; .reg .pred %p, %q;\n{line} ret; }}"
        )
    };
    for (line, name) in [
        ("vadd.s32.s32.s32 %r0, %r1, %r2;", "vadd.s32.s32.s32"),
        ("tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%t, {%r0, %r1}];", "tex.2d.v4.f32.s32"),
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"),
        ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::ld.sync.aligned"),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r2, %r3}, {%r4, %r5}, {%r0, %r1}, %r6, 0;",
            "mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        ),
        ("barrier.cluster.arrive.aligned;", "barrier.cluster.arrive.aligned"),
        ("barrier.cluster.wait.acquire.aligned;", "barrier.cluster.wait.acquire.aligned"),
        ("cp.async.bulk.commit_group;", "cp.async.bulk.commit_group"),
        ("mbarrier.arrive.shared::cluster.b64 _, [%t];", "mbarrier.arrive.shared::cluster.b64"),
        ("st.async.shared::cluster.u32 [%r1], %r2, [%r3];", "st.async.shared::cluster.u32"),
        ("red.async.relaxed.cluster.inc.u32 [%r1], %r2, [%r3];", "red.async.relaxed.cluster.inc.u32"),
        (
            "fence.proxy.tensormap::generic.acquire.gpu [%t], 128;",
            "fence.proxy.tensormap::generic.acquire.gpu",
        ),
    ] {
        let module = Module::parse(&text(line)).unwrap();
        assert_eq!(module.entry("good").unwrap().unsupported(), None);
        let error = module.entry("bad").unwrap().unsupported().unwrap();
        assert_eq!(error.to_string(), format!("line 5, column 1: the instruction `{name}` is not supported"));
    }
}

/// What a module declares, and cannot have here, stops the kernels that name it.
#[test]
fn kernels_that_name_textures_and_managed_variables_are_named() {
    for (variable, line, what) in [
        (".global .texref x;", "mov.b64 %t, x;", "`x`, a texture, a surface or a sampler"),
        (".global .surfref x;", "mov.b64 %t, x;", "`x`, a texture, a surface or a sampler"),
        (
            ".global .samplerref x = {addr_mode_0 = wrap, filter_mode = nearest};",
            "mov.b64 %t, x;",
            "`x`, a texture, a surface or a sampler",
        ),
        (
            ".visible .global .attribute(.managed) .align 4 .u32 x = 5;",
            "ld.global.u32 %r, [x];",
            "`x`, a variable with an attribute",
        ),
        (".global .u32 y;", ".local .u32 x[4]; mov.u32 %r, x[%r];", "an index of `x` that is no constant"),
    ] {
        let text = format!(
            ".version 8.0\n.target sm_80\n{variable}\n.entry good() {{ ret; }}\n\
             .entry bad() {{ .reg .b32 %r; .reg .b64 %t;\n{line} ret; }}"
        );
        let module = Module::parse(&text).unwrap();
        assert_eq!(module.entry("good").unwrap().unsupported(), None);
        let error = module.entry("bad").unwrap().unsupported().unwrap().to_string();
        assert!(
            error.starts_with("line 6, ") && error.ends_with(&format!(": {what} is not supported")),
            "{error}"
        );
    }
}

/// Kernels that are refused for the size of the module count for it, too: each would be read up to the limit again.
#[test]
fn refused_kernels_count_for_the_size_of_a_module() {
    let body = "mov.u32 %r, 1;".repeat(1_000);
    let kernels: String = (0..3_000).map(|index| format!(".entry k{index}() {{ call f; ret; }}\n")).collect();
    let text = format!(".version 8.0\n.target sm_80\n.func f() {{ .reg .b32 %r; {body} ret; }}\n{kernels}");
    let module = Module::parse(&text).unwrap();
    let refused = module.entries().iter().filter(|entry| entry.unsupported().is_some()).count();
    assert!((1..3_000).contains(&refused), "{refused}");
}

/// A cluster needs its blocks to run together, and see each other's shared memory.
#[test]
fn kernels_of_clusters_are_named() {
    let text = ".version 8.0\n.target sm_90\n.entry k() .reqnctapercluster 2, 1, 1 { ret; }";
    let module = Module::parse(text).unwrap();
    let error = module.entries()[0].unsupported().unwrap();
    assert_eq!(error.to_string(), "line 3, column 1: the directive `.reqnctapercluster` is not supported");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Neither a panic nor a hang, whatever is removed, doubled or replaced in a real text.
    #[test]
    fn texts_with_mistakes(which in any::<prop::sample::Index>(), edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, 0..9_u8), 1..6)) {
        let texts = repository();
        prop_assume!(!texts.is_empty());
        let mut text = which.get(&texts).clone();
        text.truncate(text.char_indices().nth(20_000).map_or(text.len(), |(at, _)| at));
        for (place, len, kind) in edits {
            let start = place.index(text.len() + 1);
            let end = (start + len).min(text.len());
            let piece = match kind {
                0 => String::new(),
                1 => text[start..end].repeat(3),
                2 => "{".into(),
                3 => "%r99999999999999999999".into(),
                4 => ".reg .b32 %r<4294967295>;".into(),
                5 => "[".into(),
                6 => ".shared .align 4 .b8 s[99999999999];".into(),
                7 => "-0x8000000000000000".into(),
                _ => ";".into(),
            };
            text.replace_range(start..end, &piece);
        }
        let _ = Module::parse(&text);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Module::parse(&format!(".version 8.0\n.target sm_80\n{}", String::from_utf8_lossy(&bytes)));
    }
}

#[test]
fn modifiers_and_types_that_an_instruction_does_not_have_are_refused() {
    let error = |line: &str| match Module::parse(&format!(".version 8.0\n.target sm_90\n{}", kernel(line))) {
        Ok(module) => module.entry("k").unwrap().unsupported().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    };
    for line in [
        "membar.gl;",
        "membar.cta;",
        "membar.sys;",
        "fence.acq_rel.gpu;",
        "fence.sc.cta;",
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "fence.mbarrier_init.release.cluster;",
        "shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;",
        "vote.sync.ballot.b32 %r0, %p0, -1;",
        "vote.sync.all.pred %p0, %p1, -1;",
        "activemask.b32 %r0;",
        "bar.red.or.pred %p0, 0, %p1;",
    ] {
        assert_eq!(error(line), None, "{line}");
    }
    for line in [
        "membar.gpu;",
        "membar.acq_rel.gl;",
        "membar;",
        "fence.acq_rel.gpu.global;",
        "fence.acq_rel;",
        "fence.gl;",
        "fence.proxy.tensormap::generic.release.gpu;",
        "fence.proxy.other;",
        "fence.acq_rel.mbarrier_init.cluster;",
        "shfl.sync.idx.b64 %rd0, %rd1, 0, 31, -1;",
        "shfl.sync.idx %r0, %r1, 0, 31, -1;",
        "vote.sync.ballot.pred %p0, %p1, -1;",
        "vote.sync.all.b32 %r0, %p1, -1;",
        "activemask.b64 %rd0;",
        "bar.red.popc.pred %p0, 0, %p1;",
        "setp.lt.b32 %p0, %r0, %r1;",
        "setp.lo.s32 %p0, %r0, %r1;",
        "setp.lt.ftz.u32 %p0, %r0, %r1;",
        "atom.global.add.s64 %rd1, [%rd0], %rd2;",
        "red.global.exch.b32 [%rd0], %r0;",
        "red.global.cas.b32 [%rd0], %r0, %r1;",
        "cvt.rn.f64.f32 %d0, %f0;",
        "cvt.f32.f64 %f0, %d0;",
        "cvt.rn.s32.s64 %r0, %rd0;",
        "cvt.f32.s32 %f0, %r0;",
        "cvt.s32.f32 %r0, %f0;",
    ] {
        let found = error(line).unwrap_or_else(|| panic!("{line}"));
        assert!(found.contains(line.split([' ', ';']).next().unwrap()), "{line}: {found}");
    }
}

/// NVIDIA's assembler (13.0) refuses the first list and takes the second.
#[test]
fn forms_that_no_instruction_has() {
    let found = |line: &str| {
        let text = kernel(&format!(".reg .b16 %b; .shared .align 16 .b8 s[64]; {line}"));
        let module = Module::parse(&format!(".version 8.0\n.target sm_80\n{text}"));
        module.map(|module| assert_eq!(module.entry("k").unwrap().unsupported(), None, "{line}"))
    };
    for (line, why) in [
        ("shl.u32 %r0, %r1, 2;", "`shl.u32` has no type `.u32`"),
        ("and.s32 %r0, %r1, %r2;", "`and.s32` has no type `.s32`"),
        ("add.b32 %r0, %r1, %r2;", "`add.b32` has no type `.b32`"),
        ("bfi.u32 %r0, %r1, %r2, 1, 2;", "`bfi.u32` has no type `.u32`"),
        ("lop3.b32 %r0, %r1, %r2, %r3, 1, %r4;", "`lop3.b32` does not have 6 operands"),
        ("mov.u32 %r0, %r1, %r2;", "`mov.u32` does not have 3 operands"),
        ("cvt.u32.u64 %r0, %rd1, %r2;", "2 operands are expected"),
        ("ret 1;", "`ret` does not have 1 operand"),
        ("add.sat.u32 %r0, %r1, %r2;", "`add.sat.u32` has no modifier `.sat` for `.u32`"),
        ("add.rz.f16 %h0, %h1, %h2;", "`add.rz.f16` has no modifier `.rz` for `.f16`"),
        ("add.ftz.s32 %r0, %r1, %r2;", "`add.ftz.s32` has no modifier `.ftz` for `.s32`"),
        ("add.rn.rz.f32 %f0, %f1, %f2;", "`add.rn.rz.f32` has several ways to round"),
        ("add.u32.u32 %r0, %r1, %r2;", "`add.u32.u32` has several types"),
        ("bar.sync 16;", "a block has barriers from 0 to 15"),
        ("barrier.sync 99, 64;", "a block has barriers from 0 to 15"),
        ("bar.sync 0, 33;", "33 threads are no whole warps"),
        ("bar.arrive 0, 0;", "0 threads are no whole warps"),
        ("bar.arrive 0;", "`bar.arrive` does not have 1 operand"),
        ("bar.red.popc.u32 %r0, 0;", "`bar.red.popc.u32` does not have 2 operands"),
        ("shfl.sync.down.b32 0, %r1, 1, 31, -1;", "the target is no register"),
        ("shfl.sync.down.b32 _|%p0, %r1, 1, 31, -1;", "the target of this instruction cannot be left out"),
        ("shfl.sync.down.b32 %r0, %r1, 1, 31;", "`shfl.sync.down.b32` does not have 4 operands"),
        ("setp.eq.u32 %p0, %r0, %r1, %p1;", "`setp.eq.u32` does not have 4 operands"),
        (
            "ld.relaxed.global.u32 %r0, [%rd0];",
            "`ld.relaxed.global.u32` has `.relaxed` only with one of `.cta`, `.cluster`, `.gpu`, `.sys`",
        ),
        (
            "st.gpu.global.u32 [%rd0], %r0;",
            "`st.gpu.global.u32` has `.gpu` only with one of `.relaxed`, `.acquire`, `.release`",
        ),
        ("ld.release.gpu.global.u32 %r0, [%rd0];", "`ld.release.gpu.global.u32` has no `.release`"),
        (
            "ld.volatile.local.u32 %r0, [%rd0];",
            "`ld.volatile.local.u32` has no `.volatile` together with `.local`",
        ),
        ("ld.shared.global.u32 %r0, [%rd0];", "`ld.shared.global.u32` has several kinds of memory"),
        ("ld.global.f16 %h0, [%rd0];", "`ld.global.f16` has no type `.f16`"),
        ("atom.add.f16 %h0, [%rd0], %h1;", "`atom.add.f16` has `.f16` only with one of `.noftz`"),
        ("mov.u32 %r0, 0; brx.idx %r0, T; A: ret; T: .branchtargets A;", "there is no list `T` before it"),
        ("call %rd1, (), T; ret; T: .callprototype _ ();", "there is no list `T` before it"),
    ] {
        let refused = found(line).unwrap_err();
        assert!(matches!(refused.what, PtxProblem::Syntax(_)), "{line}");
        assert_eq!(refused.to_string().split_once(": ").unwrap().1, why, "{line}");
    }
    for line in [
        "shl.b32 %r0, %r1, 2;",
        "fma.rz.bf16 %h0, %h1, %h2, %h3;",
        "addc.u16 %h0, %h1, %h2;",
        "bar.sync 15, 64;",
        "bar.cta.sync 0;",
        "barrier.sync %r0, %r1;",
        "shfl.sync.down.b32 %r0|_, %r1, 1, 31, -1;",
        "atom.relaxed.global.add.u32 %r0, [%rd0], 1;",
        "ld.global.L2::cache_hint.u32 %r0, [%rd0], %rd1;",
        "st.weak.global.u32 [%rd0], %r0;",
        "mov.u32 %r0, 0; T: .branchtargets A; brx.idx %r0, T; A: ret;",
        "{ .reg .b32 %laneid; mov.u32 %laneid, 1; }",
        "// naïve\nret;",
    ] {
        assert_eq!(found(line).err(), None, "{line}");
    }
}

/// NVIDIA's assembler (12.9, for `sm_90`) refuses the first lists and takes the last one. Of 6,000 forms that were made by
/// chance from valid ones, ten are taken by one alone.
#[test]
fn operands_that_an_instruction_does_not_have_are_refused() {
    let found = |line: &str| {
        let lines = format!(
            ".shared .align 16 .b8 s[64]; .local .align 16 .b8 l[64]; .param .b32 pa; .param .b32 pb; {line}"
        );
        let text = format!(
            ".version 8.7\n.target sm_90\n.global .align 16 .b8 g[64]; .const .align 16 .b8 c[64]; .func f() {{ ret; }}\n{}",
            kernel(&lines)
        );
        Module::parse(&text).map(|module| module.entry("k").unwrap().unsupported().cloned())
    };
    let lists = [
        (
            "is read by `mov` and `cvt",
            "add.u32 %r0, %tid.x, 1;\nshl.b32 %r0, %tid.x, 2;\nst.global.u32 [%rd0], %laneid;\nbar.sync %tid.x;\nadd.u32 %r0, %r1, s;\n\
             st.global.u64 [%rd0], g;\ncvta.to.global.u64 %rd1, g;\nmov.b64 %rd1, {s, %r0};\ncvt.u64.u32 %rd1, s;",
        ),
        (
            "is no value of this type",
            "add.u32 %r0, %r1, 0f3F800000;\nmul.rn.f16 %h0, %h1, 1.5;\nmax.f16 %h0, %h1, 3;\nand.b32 %r0, %r1, 1.5;\nmov.b64 %rd1, 0f3F800000;\n\
             mov.u64 %rd1, %tid.x;\nmov.u32 %r0, %clock64;\nmov.f32 %f0, %tid.x;\nmov.f32 %f0, s;\ncvt.rzi.s32.f32 %r0, 5;\nst.global.f32 [%rd0], 5;\n\
             add.u16x2 %r0, %r1, 5;\nslct.f32.f32 %f0, %f1, %f2, 5;\nadd.u32 %r0, %r1, !%p1;",
        ),
        (
            "has another type",
            "ld.global.u32 %f0, [%rd0];\nld.global.f32 %d0, [%rd0];\nst.global.u32 [%rd0], %f0;\ncvt.rn.f32.u32 %f0, %f1;\n\
             cvt.rzi.u32.f32 %f0, %f1;\ncvt.u64.u32 %d0, %r1;\nmatch.any.sync.b32 %f0, %r1, -1;\nshfl.sync.idx.b32 %r0, %r1, 5, 31, %f1;\n\
             slct.f32.s32 %f0, %f1, %f2, %f3;\nadd.rn.f16x2 %f0, %f1, %f2;\nld.global.L2::cache_hint.u32 %r0, [%rd0], %r1;",
        ),
        (
            "does not access this kind of memory",
            "ld.global.u32 %r0, [s];\nld.shared.u32 %r0, [g];\nld.u32 %r0, [c];\nst.u32 [c], %r0;\nld.u32 %r0, [out];\nld.param.u32 %r0, [l];\n\
             ld.global.u32 %r0, [f];\natom.global.add.u32 %r0, [s], 1;\nred.add.u32 [c], 1;\nprefetch.local.L1 [g];\n\
             cp.async.cg.shared.global [g], [%rd0], 16;\nprefetch.shared.L1 [s];",
        ),
        (
            "cannot be left out",
            "add.u32 _, %r0, %r1;\nmov.u32 _, %r0;\nvote.sync.ballot.b32 _, %p0, -1;\nredux.sync.add.u32 _, %r0, -1;\nactivemask.b32 _;",
        ),
        ("left out", "ld.global.u32 _, [%rd0];\nld.global.v2.u32 {_, _}, [%rd0];\nmov.b64 {_, _}, %rd0;"),
        (
            "second target",
            "atom.global.add.u32 %r0|%p0, [%rd0], 1;\ncvt.u32.u16 %r0|%p0, %h1;\nmatch.any.sync.b32 %r1|%p0, %r0, -1;\nelect.sync %r0, -1;\n\
             lop3.or.b32 %r0, %r1, %r2, %r3, 1, %p0;",
        ),
        (
            "global memory has 64 bits",
            "ld.global.u32 %r0, [%r1];\nst.u32 [%r1], %r0;\natom.global.add.u32 %r0, [%r1], 1;\nmov.u32 %r0, g;\nprefetchu.L1 [%r0];",
        ),
        (
            "local memory alone",
            "ld.global.u32 %r0, [8];\nst.shared.u32 [8], %r0;\nld.u32 %r0, [8];\nld.param.u32 %r0, [8];",
        ),
        (
            "`cp.async.cg` copies 16 bytes",
            "cp.async.cg.shared.global [s], [%rd0], 8;\ncp.async.cg.shared.global [s], [%rd0], 4;",
        ),
        ("one of `.ca` and `.cg`", "cp.async.shared.global [s], [%rd0], 4;"),
        ("more than the 16", "cp.async.ca.shared.global [s], [%rd0], 16, 20;"),
        ("parameter is written", "st.param.b64 [out], %rd0;"),
        ("without an address", "mov.u64 %rd1, pa;"),
        ("another kind of memory", "cvta.global.u64 %rd1, s;\ncvta.shared.u64 %rd1, g;"),
        (
            "one of",
            "match.any.b32 %r0, %r1, -1;\nredux.add.s32 %r0, %r1, -1;\nelect %r0|%p0, -1;\nprefetch.global [%rd0];\nprefetchu [%rd0];\n\
             discard.global [%rd0], 128;\napplypriority.global [%rd0], 128;\ngriddepcontrol;\ncvt.u32.f32 %r0, %f0;\ncvt.f64.s32 %d0, %r1;\n\
             mbarrier.arrive.release.shared.b64 %rd1, [s];\nmbarrier.arrive.cta.shared.b64 %rd1, [s];\nst.mmio.global.u32 [%rd0], %r0;",
        ),
        ("`.sync`", "shfl.idx.b32 %r0, %r1, 0, 31;\nvote.all.pred %p0, %p1;\nvote.ballot.b32 %r0, %p1;"),
        (
            "round by",
            "cvt.rn.u32.f32 %r0, %f0;\ncvt.rni.f32.u32 %f0, %r0;\ncvt.rn.f32.f32 %f0, %f1;\ncvt.rn.f64.f32 %d0, %f0;\ncvt.rzi.f32.f64 %f0, %d0;\n\
             cvt.rn.f16.f16 %h0, %h1;\ncvt.rni.u32.u64 %r0, %rd0;",
        ),
        (
            "has no modifier",
            "cvt.sat.u32.u32 %r0, %r1;\ncvt.sat.u64.u32 %rd0, %r1;\ncvt.ftz.u32.u64 %r0, %rd1;\ncvt.rzi.ftz.s32.f64 %r0, %d1;\ncvt.rm.relu.f16.f32 %h0, %f0;",
        ),
        (
            "has no type",
            "mbarrier.init.shared [s], 1;\nmbarrier.arrive.shared %rd1, [s];\nnanosleep 5;\nsetmaxnreg.inc.sync.aligned 64;",
        ),
        (
            " and `.",
            "ld.global.ca.cg.u32 %r0, [%rd0];\nred.relaxed.gpu.sys.global.or.b32 [%rd0], %r1;\nmul.lo.hi.u32 %r0, %r1, %r2;\nsetp.lt.gt.s32 %p0, %r0, %r1;",
        ),
        ("together with", "add.cc.sat.s32 %r0, %r1, %r2;\nld.volatile.global.ca.u32 %r0, [%rd0];"),
        ("twice", "add.ftz.ftz.f32 %f0, %f1, %f2;"),
        (
            "operand",
            "mbarrier.arrive.shared.b64 [s];\nmbarrier.arrive.expect_tx.shared.b64 %rd1, [s];\nmbarrier.arrive.noComplete.shared.b64 %rd1, [s];\n\
             mbarrier.test_wait.shared.b64 %p0, [s], %rd1, 5;\nmbarrier.inval.shared.b64 [s], 1;\ncp.async.wait_all 0;\ncp.async.commit_group 1;\n\
             createpolicy.range.global.L2::evict_last.b64 %rd1, [%rd0], 128;",
        ),
        ("a parity is", "mbarrier.test_wait.parity.shared.b64 %p0, [s], 2;"),
        ("a number below", "pmevent 16;\npmevent %r0;\npmevent.mask 65536;"),
        (
            "a register is expected",
            "vadd2.u32.u32.u32 %r0, 5, %r2, %r3;\nvadd2.u32.u32.u32 %r0, %r1, %r2, 5;",
        ),
        ("bits", "mov.u64 %rd1, {%r0, %r1};\nmov.u32 {%h0, %h1}, %r0;"),
        ("is no register", "setp.eq.u32 %p0|5, %r0, 1;"),
        ("only with one of `.hi`, `.lo`, `.wide`", "mul.u32 %r0, %r1, %r2;\nmad.s64 %rd1, %rd2, %rd3, %rd4;"),
        ("has one of `.up`, `.down`, `.bfly`, `.idx`", "shfl.sync.b32 %r0, %r1, %r2, %r3, -1;"),
        ("has one of `.hi`, `.lo`", "mul24.u32 %r0, %r1, %r2;\ndp2a.u32.u32 %r0, %r1, %r2, %r3;"),
        ("has one of `.add`", "redux.sync.s32 %r0, %r1, -1;"),
        ("together with `.lt`", "setp.lt.b32 %p0, %r0, %r1;\nset.lt.u32.b32 %r0, %r1, %r2;"),
        ("only with `.ftz`", "rcp.approx.f64 %d0, %d1;"),
        ("only with one of `.ftz`", "ex2.approx.bf16 %h0, %h1;\nex2.approx.bf16x2 %r0, %r1;"),
        (
            "has no `.u32`",
            "exit.u32;\ntrap.u32;\ndiscard.global.L2.u32 [%rd0], 128;\ngriddepcontrol.wait.u32;",
        ),
        (
            "is for targets from `sm_100` on",
            "ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd0];\nst.global.v8.b32 [%rd0], {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7};",
        ),
        (
            "is no form of",
            "vote.sync.b32 %r0, %p0, -1;\ncvt.u32 %r0, %r1;\nsetp.lo.s32 %p0, %r0, %r1;\nmul.wide.u64 %rd1, %rd2, %rd3;\natom.global.add.b32 %r0, [%rd0], %r1;\nvote.sync.all.b32 %r0, %p0, -1;",
        ),
        (
            "has no modifier `.",
            "add.frob.s32 %r0, %r1, %r2;\nadd.hi.u32 %r0, %r1, %r2;\nmov.sat.u32 %r0, %r1;\nld.global.rn.u32 %r0, [%rd0];\nbarrier.frob.cluster.arrive;",
        ),
        (
            "elements, and the instruction states 2",
            "ld.global.v2.u32 {%r0, %r1, %r2}, [%rd0];\nst.global.v2.u32 [%rd0], %r0;",
        ),
        ("a register has no 3 parts", "mov.b64 %rd1, {%r0, %r1, %r2};"),
        ("is no instruction", "sqr.u32 %r0, %r1;\nldg.u32 %r0, [%rd0];"),
        (
            "for 64 bits",
            "mov.f64 %d0, 1e400;\nmov.f32 %f0, 1e-400;\nmov.f64 %d0, 1.8e308;\nmov.f64 %d0, 1e-320;",
        ),
        ("in quotes", ".pragma nounroll;\n.pragma 5;\n.pragma \"nounroll\", x;"),
        ("prototype", "mov.u64 %rd1, f; call %rd1;"),
        (
            "another number of parameters",
            "mov.u64 %rd1, f; P: .callprototype (.param .b32 _) _ (); call %rd1, P;\nmov.u64 %rd1, f; P: .calltargets f; call (pa), %rd1, P;",
        ),
        (
            "no value of its parameter",
            "mov.u64 %rd1, f; P: .callprototype (.param .b64 _) _ (); call (pa), %rd1, P;\nmov.u64 %rd1, f; P: .callprototype _ (.reg .b64 _); call %rd1, (%r0), P;",
        ),
    ];
    for (why, lines) in lists {
        for line in lines.lines() {
            let refused = found(line).map(|_| ()).expect_err(line);
            assert!(matches!(refused.what, PtxProblem::Syntax(_)), "{line}: {refused}");
            assert!(refused.to_string().contains(why), "{line}: {refused}");
        }
    }
    for line in "cvt.u64.u32 %rd1, %tid.x;\nmov.u16 %h0, %tid.x;\nmov.u64 %rd1, s;\nmov.u64 %rd1, %gridid;\nmov.b64 %rd1, {%tid.x, %r0};\n\
        cvta.shared.u64 %rd1, s;\ncvta.param.u64 %rd1, out;\nst.global.f64 [%rd0], 0f3F800000;\nand.b32 %r0, %r1, 0f3F800000;\n\
        mov.b64 %rd1, 1.5;\nld.const.u32 %r0, [%r1];\nld.local.u32 %r0, [8];\nld.shared.u32 %r0, [%h1];\nld.u32 %r0, [g];\n\
        ld.global.v2.u32 {_, %r0}, [%rd0];\natom.global.add.u32 _, [%rd0], 1;\nmatch.all.sync.b32 _|%p0, %r0, -1;\nelect.sync _|%p0, -1;\n\
        mbarrier.arrive.shared.b64 _, [s];\nmbarrier.try_wait.shared.b64 %p0, [s], %rd1, 5;\ncvt.rn.f32.u32 %rd1, %r0;\ncvt.f64.f32 %d0, %r1;\n\
        cvt.rn.sat.f32.u32 %f0, %r1;\ncvt.sat.u32.s64 %r0, %rd1;\ncvt.rp.f16.bf16 %h0, %h1;\ncvt.rz.f64.bf16 %d0, %h1;\n\
        isspacep.global %p0, %r0;\nmov.pred %p0, %is_explicit_cluster;\ncreatepolicy.fractional.L2::evict_last.b64 %rd1;\n\
        mov.u64 %rd1, f; P: .callprototype (.param .b32 _) _ (.param .b32 _); call (_), %rd1, (pa), P;\n\
        rcp.approx.ftz.f64 %d0, %d1;\nrsqrt.approx.f64 %d0, %d1;\n.pragma \"nounroll\";\nmov.f64 %d0, 0.0e400;\nmov.f32 %f0, 1e40;"
        .lines()
    {
        assert_eq!(found(line), Ok(None), "{line}");
    }
}

/// What NVIDIA's assembler refuses for a target, it takes for the next one.
#[test]
fn instructions_of_newer_targets_are_refused() {
    let found = |target: u32, line: &str| {
        let text = format!(
            ".version 8.7\n.target sm_{target}\n{}",
            kernel(&format!(".shared .align 16 .b8 s[64]; {line}"))
        );
        Module::parse(&text)
            .map(|module| assert_eq!(module.entry("k").unwrap().unsupported(), None, "{line}"))
    };
    for (before, after, line) in [
        (70, 75, "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [s];"),
        (70, 75, "tanh.approx.f32 %f0, %f1;"),
        (75, 80, "redux.sync.add.s32 %r0, %r1, -1;"),
        (75, 80, "cp.async.ca.shared.global [s], [%rd0], 4;"),
        (75, 80, "fma.rn.bf16 %h0, %h1, %h2, %h3;"),
        (80, 86, "min.xorsign.abs.f32 %f0, %f1, %f2;"),
        (86, 89, "cvt.rn.f16x2.e4m3x2 %r0, %h1;"),
        (89, 90, "elect.sync %r0|%p0, -1;"),
        (89, 90, "add.rn.bf16 %h0, %h1, %h2;"),
        (89, 90, "mbarrier.try_wait.shared.b64 %p0, [s], %rd1;"),
    ] {
        let refused = found(before, line).expect_err(line).to_string();
        assert!(
            refused.ends_with(&format!("is for targets from `sm_{after}` on, and this one is `sm_{before}`")),
            "{refused}"
        );
        assert_eq!(found(after, line), Ok(()), "{line}");
    }
    let text = |target: &str| {
        format!(".version 8.0\n.target {target}\n.entry k() {{ setmaxnreg.dec.sync.aligned.u32 40; ret; }}")
    };
    let refused = Module::parse(&text("sm_90")).err().unwrap().to_string();
    assert!(refused.ends_with("is for targets such as `sm_90a`, and this one is `sm_90`"), "{refused}");
    assert_eq!(Module::parse(&text("sm_90a")).unwrap().entries()[0].unsupported(), None);
    let older = ".entry k() { .reg .b32 %r<4>; shfl.idx.b32 %r0, %r1, 0, 31; ret; }";
    for (version, target, is_taken) in [("6.4", 60, true), ("6.0", 70, true), ("6.4", 70, false)] {
        let text = format!(".version {version}\n.target sm_{target}\n{older}");
        assert_eq!(Module::parse(&text).is_ok(), is_taken, "{text}");
    }
}

/// NVIDIA's assembler (12.9) refuses the first list and takes the second.
#[test]
fn declarations_that_no_module_has() {
    let found =
        |lines: &str| Module::parse(&format!(".version 8.7\n.target sm_90\n.address_size 64\n{lines}"));
    for (lines, why) in [
        (".entry k() { .reg .b32 %r<4>; .reg .b32 %r1; ret; }", "column 41: `%r1` is declared twice"),
        (".entry k() { .reg .b32 %r1; .reg .b32 %r<4>; ret; }", "column 39: `%r` is declared twice"),
        (".entry k() { .reg .b32 x<4>; .shared .b32 x1; ret; }", "`x1` is declared twice"),
        (".entry k(.param .b32 x) { .reg .b32 x; ret; }", "`x` is declared twice"),
        (".entry k() { .reg .b32 x; x: ret; }", "`x` is declared twice"),
        (".entry k() { .shared .b8 s[60000]; ret; }", "more than 49152 bytes of static shared memory"),
        (
            ".shared .b8 s[60000]; .func f() { .reg .b32 %r; st.shared.b32 [s], %r; ret; } .entry k() { call f; ret; }",
            "column 13: the kernel has more than 49152 bytes of static shared memory",
        ),
        (".const .b8 c[70000]; .entry k() { ret; }", "with `c`, constant memory has more than 65536 bytes"),
        (".const .b8 c[40000]; .const .b8 d[40000];", "with `d`, constant memory has more than 65536 bytes"),
        (".alias a, b; .entry k() { ret; }", "column 8: `a` is not declared"),
        (".func f();", "column 1: `f` is declared and not defined"),
        (
            ".visible .func (.reg .u32 r) f(.reg .u32 a); .entry k() { ret; }",
            "`f` is declared and not defined",
        ),
        (".entry k();", "`k` is declared and not defined"),
        (".pragma nounroll;", "column 9: a text in quotes is expected, not `nounroll`"),
        (".global .u32 x = 1.0;", "a fraction is no value of this type"),
        (".global .u64 x[2] = {1, 0f3F800000};", "a fraction is no value of this type"),
        (".global .f16 x = 1.0;", "a variable of this type has no initial contents"),
        (".global .f64 x = 1e400;", "`1e400` is too large or too small for 64 bits"),
        (".func a(); .alias a, b;", "column 22: `b` is not declared"),
        (".func b() { ret; } .func a() { ret; } .alias a, b;", "`a` is defined twice"),
        (".func b(.param .b32 x) { ret; } .func a(); .alias a, b;", "`a` and `b` have other parameters"),
        (".entry b() { ret; } .func a(); .alias a, b;", "`b` is a kernel"),
        (
            ".func f(.param .b32 x) { .reg .b32 r; st.param.b32 [x], r; ret; } .entry k() { .param .b32 p; call f, (p); ret; }",
            "a parameter is written",
        ),
        (
            ".func (.param .b32 y) f() { .reg .b32 r; ld.param.b32 r, [y]; ret; } .entry k() { .param .b32 p; call (p), f; ret; }",
            "a result is read",
        ),
        (
            ".func f(.param .b32 a) { ret; } .entry k() { .param .b64 x; call f, (x); ret; }",
            "no value of its parameter",
        ),
        (
            ".func f(.param .u32 a) { ret; } .entry k() { .reg .f32 x; call f, (x); ret; }",
            "no value of its parameter",
        ),
        (
            ".func f(.param .align 8 .b8 a[16]) { ret; } .entry k() { .param .align 4 .b8 x[16]; call f, (x); ret; }",
            "no value of its parameter",
        ),
        (
            ".func f(.param .align 8 .b8 a[8]) { ret; } .entry k() { .param .b64 x; call f, (x); ret; }",
            "no value of its parameter",
        ),
        (".func f(.param .b32 a) { ret; } .entry k(.param .b32 x) { call f, (x); ret; }", "is passed on"),
        (".func f(.param .b32 a); .func f() { ret; }", "`f` is declared with other parameters"),
        (".func (.param .b32 r, .param .b32 s) f() { ret; }", "each is a register"),
        (".entry k(.reg .b32 a) { ret; }", "a parameter is expected"),
        (".entry (.param .b32 r) k() { ret; }", "a name is expected"),
        (".entry k(.param .pred a) { ret; }", "a predicate is in no memory"),
        (".entry k(.param .b8 a[20000], .param .b8 b[20000]) { ret; }", "the parameters are too large"),
        (".entry k() .maxntid 0 { ret; }", "another number of threads"),
        (".entry k() .reqntid 32 .maxntid 64 { ret; }", "are stated"),
        (".extern .func f() { ret; }", "`.extern` has a body"),
        (".global .b32 a[];", "`a` has no size"),
        (".shared .b32 a = 5;", "`a` has no initial contents here"),
        (".global .f32 a = 1;", "an integer is no value of this type"),
        (".global .b32 a[2] = 1;", "in braces"),
        (".global .b32 b; .global .b64 a = b;", "an address is no value of this type"),
        (".global .v4 .b64 a;", "128 bits"),
        (".entry k() { .reg .bf16 a; ret; }", "a type of instructions alone"),
        (".common .const .b8 d[4];", "global memory"),
        (".address_size 64", "stated twice"),
    ] {
        let refused = found(lines).map(|_| ()).expect_err(lines);
        assert!(matches!(refused.what, PtxProblem::Syntax(_)), "{lines}: {refused}");
        assert!(refused.to_string().contains(why), "{lines}: {refused}");
    }
    for lines in [
        ".entry k() { .reg .b32 %r<4>; .reg .b32 %r4; { .reg .b32 %r1; } ret; }",
        ".entry k() { .reg .b32 %r<20>; .reg .b32 %r1<3>; x1: ret; }",
        ".entry k() { .shared .b8 s[49152]; ret; }",
        ".shared .b8 s[60000]; .entry k() { ret; }",
        ".const .b8 c[65536]; .entry k() { ret; }",
        ".func b() { ret; } .func a(); .alias a, b; .entry k() { ret; }",
        ".func (.param .b32 r) f(.param .b32 a) { ret; } .entry k() { .param .f32 x; .param .f32 y; call (x), f, (y); call (_), f, (5); ret; }",
        ".extern .shared .b8 d[]; .global .u64 t[] = {d2, 7}; .global .b8 d2;",
    ] {
        assert_eq!(found(lines).err(), None, "{lines}");
    }
}
