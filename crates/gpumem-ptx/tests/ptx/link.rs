//! Several texts that are linked to one module.

use crate::support::{Memory, launch};
use gpumem_ptx::{Module, PtxProblem};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn link(texts: &[&str]) -> Result<Module, gpumem_ptx::LinkError> {
    let texts: Vec<String> = texts.iter().map(|text| format!("{HEAD}{text}")).collect();
    Module::link(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Calls `twice` and reads `bias`, which others define.
const CALLER: &str = "\
.extern .func (.param .b32 result) twice(.param .b32 value);
.extern .global .u32 bias;
.global .u32 hidden = 1;
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    .param .b32 value; .param .b32 result;
    ld.param.u64 %rd0, [out];
    ld.global.u32 %r0, [bias];
    st.param.b32 [value], %r0;
    call.uni (result), twice, (value);
    ld.param.b32 %r1, [result];
    ld.global.u32 %r2, [hidden];
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd0], %r1;
    ret;
}";

const CALLEE: &str = "\
.global .u32 hidden = 100;
.visible .func (.param .b32 result) twice(.param .b32 value) {
    .reg .b32 %r<2>;
    ld.param.b32 %r0, [value]; ld.global.u32 %r1, [hidden];
    add.u32 %r0, %r0, %r0; add.u32 %r0, %r0, %r1;
    st.param.b32 [result], %r0;
    ret;
}
.visible .global .u32 bias = 5;";

/// The result of `k` of a module, with its variables in memory.
fn result(module: &Module) -> u32 {
    let mut memory = Memory::default();
    let addresses: Vec<u64> = (1..=module.variables().len() as u64).map(|number| number * 0x1_0000).collect();
    for (variable, address) in module.variables().iter().zip(&addresses) {
        let bytes = variable.contents(&addresses);
        let words: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(memory.alloc(&words), *address);
    }
    let out = memory.alloc(&[0]);
    let parameters = out.to_le_bytes();
    let launch = gpumem_ptx::Launch { variables: &addresses, ..launch(&parameters, 1, 1) };
    assert_eq!(module.entry("k").unwrap().run(launch, &memory).unwrap().mistake, None);
    memory.words(out)[0]
}

#[test]
fn what_one_text_declares_another_defines() {
    for texts in [[CALLER, CALLEE], [CALLEE, CALLER]] {
        let module = link(&texts).unwrap();
        assert_eq!(module.entry("k").unwrap().unsupported(), None);
        // 2 * bias + the callee's `hidden` + the caller's.
        assert_eq!(result(&module), 10 + 100 + 1);
        let used = module.variables().iter().filter(|variable| variable.is_used);
        assert_eq!(used.map(|variable| variable.name.as_str()).filter(|name| *name == "bias").count(), 1);
    }
}

#[test]
fn what_no_text_defines_is_named() {
    let problem = |texts: &[&str]| {
        let module = link(texts).unwrap();
        module.entry("k").unwrap().unsupported().unwrap().clone()
    };
    let undefined = problem(&[CALLER]);
    assert_eq!(undefined.what, PtxProblem::Undefined("bias".into()));
    assert_eq!(
        undefined.to_string(),
        "line 5, column 22: `bias` is declared and not defined; link the text that defines it"
    );
    let half = problem(&[CALLER, ".visible .global .u32 bias;"]);
    assert_eq!(half.what, PtxProblem::Undefined("twice".into()));
    // The driver defines it, and the reason is another one.
    let allocating = ".extern .func (.param .b64 a) malloc(.param .b64 b);
        .visible .entry k() { .reg .b32 %r; .param .b64 a; .param .b64 b; call.uni (a), malloc, (b); ret; }";
    assert!(matches!(problem(&[allocating]).what, PtxProblem::Unsupported(_)));
}

#[test]
fn a_visible_name_has_one_definition_and_a_weak_one_any_number() {
    let twice = link(&[CALLEE, CALLEE, CALLER]).unwrap_err();
    assert_eq!(twice.to_string(), "input 2, line 5, column 10: `twice` is defined twice");
    let weak = CALLEE.replace(".visible .func", ".weak .func").replace(".visible .global", ".weak .global");
    let other = weak.replace("= 5", "= 7").replace("= 100", "= 1000");
    assert_eq!(result(&link(&[CALLER, &weak, &other]).unwrap()), 10 + 100 + 1);
    // A visible definition counts more than weak ones.
    assert_eq!(result(&link(&[&other, CALLER, CALLEE]).unwrap()), 10 + 100 + 1);
}

#[test]
fn errors_name_the_text() {
    let wrong = link(&[CALLER, ".visible .entry x() { bra NOWHERE; }"]).unwrap_err();
    assert_eq!((wrong.input, wrong.error.line), (1, 4));
    assert_eq!(link(&[]).unwrap().entries().len(), 0);
    let newest = Module::link(&[HEAD, ".version 8.3\n.target sm_90"]).unwrap();
    assert_eq!((newest.version(), newest.target()), ((8, 3), 90));
}
