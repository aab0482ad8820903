//! Texts: every kernel of the repository, what is refused, and hostile ones.

use crate::support::{kernel, module};
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
    let newer = Module::parse(".version 99.1\n.target sm_80").unwrap_err();
    assert!(matches!(newer.what, PtxProblem::Version { stated: (99, 1), .. }));
}

#[test]
fn a_kernel_that_cannot_run_does_not_stop_the_others() {
    let text = |line: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.entry good() {{ ret; }}\n\
             .entry bad() {{ .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b64 %t;\n{line} ret; }}"
        )
    };
    for (line, name) in [
        ("vadd.s32.s32.s32 %r0, %r1, %r2;", "vadd.s32.s32.s32"),
        ("tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%t, {%r0, %r1}];", "tex.2d.v4.f32.s32"),
        ("add.frob.s32 %r0, %r1, %r2;", "add.frob.s32"),
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"),
        ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::ld.sync.aligned"),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r2, %r3}, {%r4, %r5}, {%r0, %r1}, %r6, 0;",
            "mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        ),
        ("barrier.cluster.arrive.aligned;", "barrier.cluster.arrive.aligned"),
        ("cp.async.bulk.commit_group;", "cp.async.bulk.commit_group"),
        ("mbarrier.arrive.shared::cluster.b64 _, [%t];", "mbarrier.arrive.shared::cluster.b64"),
    ] {
        let module = Module::parse(&text(line)).unwrap();
        assert_eq!(module.entry("good").unwrap().unsupported(), None);
        let error = module.entry("bad").unwrap().unsupported().unwrap();
        assert_eq!(error.to_string(), format!("line 5, column 1: the instruction `{name}` is not supported"));
    }
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
    let error = |line: &str| module(&kernel(line)).entry("k").unwrap().unsupported().map(ToString::to_string);
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
    ] {
        let found = error(line).unwrap_or_else(|| panic!("{line}"));
        assert!(found.contains(line.split([' ', ';']).next().unwrap()), "{line}: {found}");
    }
}
