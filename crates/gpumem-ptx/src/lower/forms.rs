//! The forms of instructions, as far as one table says them: operands, modifiers, and types. What it leaves out, the lowering checks, or nobody.

use super::Result;
use crate::error::{PtxError, short};
use crate::number::float::Rounding;
use crate::syntax::{Instruction, Space, Target, Type};

/// Instructions, with the least and the largest number of their operands, all modifiers that they may have, and the types of which they have
/// one. The words of a list are divided by spaces. A `*` stands for any modifier; an empty list of types is not looked at.
type Form = (&'static str, [usize; 2], &'static str, &'static str);

const SIZES: &str = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64";
const NUMBERS: &str = "u16 u32 u64 s16 s32 s64 u16x2 s16x2 f16 f16x2 bf16 bf16x2 f32 f32x2 f64";
const INTEGERS: &str = "u16 u32 u64 s16 s32 s64";
const BITS: &str = "b16 b32 b64";
const FLOATS: &str = "f16 f16x2 bf16 bf16x2 f32 f32x2 f64";

/// Instructions with few forms.
const FORMS: &[Form] = &[
    ("bar", [1, 4], "cta sync arrive red popc and or warp", "u32 pred"),
    ("barrier", [1, 4], "cta sync arrive red popc and or aligned", "u32 pred"),
    ("fence", [0, 0], "*", ""),
    ("membar", [0, 0], "cta gl sys gpu proxy alias async global shared::cta", ""),
    ("bra", [1, 1], "uni", ""),
    ("brx", [2, 2], "idx uni", ""),
    ("ret", [0, 0], "uni", ""),
    ("trap brkpt exit", [0, 0], "", ""),
    ("shfl", [4, 4], "sync up down bfly idx", "b32"),
    ("vote", [2, 2], "sync all any uni ballot", "pred b32"),
    ("match", [3, 3], "sync any all", "b32 b64"),
    ("redux", [3, 3], "sync add min max and or xor abs NaN", "u32 s32 b32 f32"),
    ("activemask", [1, 1], "", "b32"),
    ("elect", [2, 2], "sync", ""),
    ("cvta", [2, 2], "to global shared shared::cta local const param param::entry", "u32 u64"),
    ("isspacep", [2, 2], "global shared shared::cta local param param::entry", ""),
    ("add sub", [3, 3], "rn rz rm rp ftz sat cc", NUMBERS),
    ("addc subc", [3, 3], "cc", INTEGERS),
    ("mul", [3, 3], "rn rz rm rp ftz sat hi lo wide", NUMBERS),
    ("mad", [4, 4], "rn rz rm rp ftz sat hi lo wide cc", NUMBERS),
    ("madc", [4, 4], "hi lo cc", INTEGERS),
    ("mul24", [3, 3], "hi lo", "u32 s32"),
    ("mad24", [4, 4], "hi lo sat", "u32 s32"),
    ("fma", [4, 4], "rn rz rm rp ftz sat relu oob", FLOATS),
    ("div", [3, 3], "rn rz rm rp ftz approx full", "u16 u32 u64 s16 s32 s64 f32 f64"),
    ("rem", [3, 3], "", INTEGERS),
    ("abs neg", [2, 2], "ftz", "s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64"),
    ("min max", [3, 4], "ftz NaN xorsign abs relu", NUMBERS),
    ("sad", [4, 4], "", INTEGERS),
    ("bfe", [4, 4], "", "u32 u64 s32 s64"),
    ("bfi", [5, 5], "", "b32 b64"),
    ("fns", [4, 4], "", "b32"),
    ("brev clz popc", [2, 2], "", "b32 b64"),
    ("and or xor", [3, 3], "", "pred b16 b32 b64"),
    ("not", [2, 2], "", "pred b16 b32 b64"),
    ("cnot", [2, 2], "", BITS),
    ("shl", [3, 3], "", BITS),
    ("shr", [3, 3], "", "b16 b32 b64 u16 u32 u64 s16 s32 s64"),
    ("prmt", [4, 4], "f4e b4e rc8 ecl ecr rc16", "b32"),
    ("lop3", [5, 5], "and or", "b32"),
    ("shf", [4, 4], "l r wrap clamp", "b32"),
    ("szext", [3, 3], "wrap clamp", "u32 s32"),
    ("bmsk", [3, 3], "wrap clamp", "b32"),
    ("dp4a", [4, 4], "", ""),
    ("dp2a", [4, 4], "hi lo", ""),
    ("vadd2 vadd4 vsub2 vsub4 vabsdiff2 vabsdiff4 vavrg2 vavrg4 vmin2 vmin4 vmax2 vmax4", [4, 4], "*", ""),
    ("setp set", [3, 3], "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz", ""),
    (
        "cvt",
        [2, 4],
        "rn rna rz rm rp rni rzi rmi rpi rs ftz sat satfinite relu pack scaled::n2::ue8m0 u4 s4 u2 s2 tf32 bf16x2 e4m3x2 e5m2x2 e2m1x2 e2m3x2 \
         e3m2x2 ue8m0x2 s2f6x2 e4m3x4 e5m2x4 e2m1x4 e2m3x4 e3m2x4",
        "",
    ),
    ("tanh", [2, 2], "approx", "f16 f16x2 bf16 bf16x2 f32"),
    ("testp", [2, 2], "finite infinite number notanumber normal subnormal", "f32 f64"),
    ("copysign", [3, 3], "", "f32 f64"),
    ("sin cos lg2", [2, 2], "approx ftz", "f32"),
    ("ex2", [2, 2], "approx ftz", "f16 f16x2 bf16 bf16x2 f32"),
    ("rsqrt", [2, 2], "approx ftz", "f32 f64"),
    ("bfind", [2, 2], "shiftamt", "u32 u64 s32 s64"),
    ("rcp sqrt", [2, 2], "rn rz rm rp ftz approx", "f32 f64"),
    ("selp", [4, 4], "", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"),
    ("slct", [4, 4], "ftz", ""),
    ("mov", [2, 2], "v2 v4", "pred b16 b32 b64 b128 u16 u32 u64 s16 s32 s64 f32 f64"),
    ("nanosleep", [1, 1], "", "u32"),
    ("pmevent", [1, 1], "mask", ""),
    (
        "ld ldu",
        [2, 2],
        "weak volatile relaxed acquire mmio cta cluster gpu sys global shared shared::cta const local param param::entry param::func \
         ca cg cs lu cv nc v2 v4 v8 L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::cache_hint \
         L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B",
        SIZES,
    ),
    (
        "st",
        [2, 2],
        "weak volatile relaxed release mmio cta cluster gpu sys global shared shared::cta local param param::func wb cg cs wt v2 v4 v8 \
         L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::cache_hint L2::evict_normal L2::evict_first \
         L2::evict_last",
        SIZES,
    ),
    (
        "atom red",
        [2, 3],
        "relaxed acquire release acq_rel cta cluster gpu sys global shared shared::cta add min max inc dec and or xor exch cas noftz v2 v4 v8 \
         L2::cache_hint",
        "u32 u64 s32 s64 b16 b32 b64 b128 f16 f16x2 bf16 bf16x2 f32 f64",
    ),
    ("prefetchu", [1, 1], "L1", ""),
    (
        "prefetch",
        [1, 1],
        "global local shared const param L1 L2 L2::evict_last L2::evict_normal tensormap",
        "",
    ),
    ("applypriority", [2, 2], "global L2::evict_normal", ""),
    ("discard", [2, 2], "global L2", ""),
    (
        "createpolicy",
        [1, 4],
        "fractional range cvt global L2 L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged",
        "b64",
    ),
    (
        "mbarrier",
        [1, 4],
        "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count parity noComplete shared shared::cta relaxed \
         acquire release cta cluster",
        "b64",
    ),
    ("ldmatrix stmatrix movmatrix", [2, 2], "*", ""),
    ("griddepcontrol", [0, 0], "wait launch_dependents", ""),
    ("setmaxnreg", [1, 1], "inc dec sync aligned", "u32"),
];

/// Modifiers of some instructions, and the numbers of operands that they have with one of them.
const OPERANDS: &[(&str, &str, [usize; 2])] = &[
    ("bar", "warp", [1, 1]),
    ("bar barrier", "arrive", [2, 2]),
    ("bar barrier", "sync", [1, 2]),
    ("bar barrier", "red", [3, 4]),
    ("shfl", "sync", [5, 5]),
    ("vote", "sync", [3, 3]),
    ("setp set", "and or xor", [4, 4]),
    ("lop3", "and or", [6, 6]),
    ("atom", "cas", [4, 4]),
    ("mbarrier", "inval", [1, 1]),
    ("mbarrier", "test_wait", [3, 3]),
    ("mbarrier", "arrive arrive_drop", [2, 3]),
    ("mbarrier", "try_wait", [3, 4]),
    ("mbarrier", "init expect_tx complete_tx pending_count", [2, 2]),
    ("red", "add min max inc dec and or xor", [2, 2]),
    ("atom", "add min max inc dec and or xor exch", [3, 3]),
    ("createpolicy", "range", [4, 4]),
    ("createpolicy", "cvt", [2, 2]),
    ("createpolicy", "fractional", [1, 2]),
];

/// Modifiers of some instructions, and the types that they have with one of them.
const TYPES: &[(&str, &str, &str)] = &[
    ("add sub mul mad", "rz rm rp", "f32 f32x2 f64"),
    ("fma", "rz rm rp", "bf16 bf16x2 f32 f32x2 f64"),
    ("add sub", "sat", "s32 f16 f16x2 f32"),
    ("mul fma", "sat", "f16 f16x2 f32"),
    ("mad mad24", "sat", "s32 f32"),
    ("add sub mul fma min max abs neg", "ftz", "f16 f16x2 f32 f32x2"),
    ("mad div sqrt", "ftz", "f32"),
    ("ex2", "ftz", "f32 bf16 bf16x2"),
    ("add addc sub subc mad madc", "cc", "u32 s32 u64 s64"),
    ("setp", "ftz", "f16 f16x2 f32"),
];

/// Modifiers or types of some instructions, and others of which each of them needs one.
const NEEDED: &[(&str, &str, &str)] = &[
    ("ld st", "relaxed acquire release", "cta cluster gpu sys"),
    ("ld st", "cta cluster gpu sys", "relaxed acquire release"),
    ("ld", "nc", "global"),
    ("atom red", "noftz", "f16 f16x2 bf16 bf16x2"),
    ("atom red", "f16 f16x2 bf16 bf16x2", "noftz"),
    ("ld st", "mmio", "relaxed"),
    ("mbarrier", "relaxed acquire release", "cta cluster"),
    ("mbarrier", "cta cluster", "relaxed acquire release"),
    ("cvt", "b32", "pack"),
    ("slct", "ftz", "f32"),
    ("ex2", "bf16 bf16x2", "ftz"),
    ("min max", "xorsign", "abs"),
    ("min max", "abs", "xorsign"),
    ("mul mad", "u16 u32 u64 s16 s32 s64", "hi lo wide"),
    (
        "createpolicy",
        "fractional range",
        "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged",
    ),
];

/// Modifiers of which some instructions always have one.
const REQUIRED: &[(&str, &str)] = &[
    ("match redux elect setmaxnreg", "sync"),
    ("setmaxnreg", "aligned"),
    ("match", "any all"),
    ("redux", "add min max and or xor"),
    ("shfl", "up down bfly idx"),
    ("bar barrier", "sync arrive red warp"),
    ("mul24 mad24 dp2a", "hi lo"),
    ("membar", "cta gl sys proxy"),
    ("shf", "l r"),
    ("shf szext bmsk", "wrap clamp"),
    ("setmaxnreg", "inc dec"),
    ("atom red", "add min max inc dec and or xor exch cas"),
    ("setp set", "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"),
    ("prefetch", "L1 L2 L2::evict_last L2::evict_normal tensormap"),
    ("prefetchu", "L1"),
    ("applypriority", "L2::evict_normal"),
    ("discard", "L2"),
    ("griddepcontrol", "wait launch_dependents"),
    ("cvta isspacep", "global shared shared::cta local const param param::entry"),
    ("createpolicy", "fractional range cvt"),
    ("ex2 tanh sin cos lg2 rsqrt", "approx"),
    ("brx", "idx"),
];

/// Modifiers of which an instruction has one at most.
const EXCLUSIVE: &[&str] = &[
    "weak volatile relaxed acquire release acq_rel sc",
    "cta cluster gpu sys gl",
    "ca cg cs lu cv wb wt",
    "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
    "L2::64B L2::128B L2::256B",
    "v2 v4 v8",
    "eq ne lt le gt ge lo ls hs equ neu ltu leu gtu geu num nan",
    "lo hi wide",
    "up down bfly idx",
    "all any uni ballot",
    "wrap clamp",
];

/// Modifiers or types that some instructions do not have together with others, or at all if there are none.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "trap brkpt exit ret bra griddepcontrol prefetch prefetchu applypriority discard",
        "pred b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 u16x2 s16x2 f16 f16x2 bf16 bf16x2 f32 f32x2 f64",
        "",
    ),
    ("cvt", "pred b8 b16 b64 u16x2 s16x2", ""),
    ("mbarrier", "init inval pending_count", "relaxed acquire release parity noComplete"),
    ("mbarrier", "arrive arrive_drop expect_tx complete_tx", "acquire parity"),
    ("mbarrier", "test_wait try_wait", "release noComplete"),
    ("mbarrier", "pending_count", "shared shared::cta"),
    ("div", "full approx", "rn rz rm rp"),
    ("setp set", "b16 b32 b64", "lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"),
    ("rcp sqrt", "approx", "rn rz rm rp"),
    ("rsqrt sin cos lg2 ex2 tanh", "rn rz rm rp rni rzi rmi rpi", ""),
    ("movmatrix", "shared shared::cta global local const param", ""),
    ("add sub mad", "cc", "sat"),
    ("slct", "f16 f16x2 bf16 bf16x2 u16x2 s16x2", ""),
    ("ld st", "acq_rel sc noftz", ""),
    ("ld", "release wb wt", ""),
    ("st", "acquire nc ca const", ""),
    ("ld st", "volatile", "relaxed acquire release weak local const param ca cg cs lu cv wb wt nc"),
    ("ld st", "relaxed acquire release", "ca cg cs lu cv wb wt nc local const param"),
    ("ldu", "weak relaxed acquire mmio cta cluster gpu sys local const param cg cs lu cv nc", ""),
    (
        "ldu",
        "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::64B L2::128B L2::256B",
        "",
    ),
    ("ld st", "weak", "relaxed acquire release"),
    ("ld st", "cta", "cluster gpu sys"),
    ("ld st", "gpu", "cluster sys"),
    ("ldu", "sc volatile shared ca", ""),
    ("atom red", "sc weak volatile local const", ""),
    ("red", "acquire acq_rel", ""),
];

/// Instructions, or modifiers and types of them, alone or with others, and the least target that has them.
const TARGETS: &[(&str, &str, &str, u32)] = &[
    ("wmma", "s8 u8 s32", "", 72),
    ("cvt", "pack", "", 72),
    ("ldmatrix movmatrix tanh", "", "", 75),
    ("cvt", "u4 s4 u2 s2", "", 75),
    ("ex2", "f16 f16x2", "", 75),
    ("ld st", "L2::64B L2::128B", "", 75),
    ("cp createpolicy applypriority discard redux mbarrier", "", "", 80),
    ("abs neg fma min max cvt mma wmma", "bf16 bf16x2", "", 80),
    ("cvt mma wmma", "tf32", "", 80),
    ("cvt", "f16x2 relu", "", 80),
    ("fma", "relu", "", 80),
    ("min max", "f16 f16x2 NaN", "", 80),
    ("mma", "m16n8k16 m16n8k32 m16n8k64 f64", "", 80),
    ("wmma", "f64", "", 80),
    ("ld", "L2::256B", "", 80),
    ("ld st atom red prefetch", "L2::cache_hint L2::evict_last L2::evict_normal", "", 80),
    ("min max", "xorsign", "", 86),
    ("cvt", "e4m3x2 e5m2x2", "", 89),
    ("mma", "e4m3 e5m2", "", 89),
    ("stmatrix elect griddepcontrol", "", "", 90),
    ("add sub mul set setp ex2 tanh atom red", "bf16 bf16x2", "", 90),
    ("cvt", "bf16", "u8 s8 u16 s16 u32 s32 u64 s64 f16 f64", 90),
    ("cvt", "tf32", "rn rz", 90),
    ("add min max", "u16x2 s16x2", "", 90),
    ("min max", "relu", "", 90),
    ("ld st atom red fence", "cluster", "", 90),
    ("fence", "mbarrier_init async", "", 90),
    ("atom red", "v2 v4 v8", "", 90),
    ("mbarrier", "expect_tx complete_tx try_wait relaxed", "", 90),
];

/// Instructions, or modifiers of them, that targets such as `sm_90a` alone have.
const SPECIFIC: &[&str] = &["setmaxnreg"];

/// Instructions of PTX that the table of forms does not have.
const NAMES: &str = "alloca call clusterlaunchcontrol cp getctarank istypep mapa mma wmma multimem stackrestore stacksave suld suq sured sust \
     tcgen05 tensormap tex tld4 txq vabsdiff vadd vmad vmax vmin vset vset2 vset4 vshl vshr vsub wgmma";

/// Modifiers and types that some instructions have in PTX, in forms that are not supported.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("barrier", "cluster wait acquire release relaxed"),
    // NVIDIA's assembler takes them without the kind that the manual asks for.
    ("vote testp", "pred f32 f64"),
    ("redux", "f32"),
    ("cvta isspacep ld st atom red mbarrier prefetch", "shared::cluster"),
    ("isspacep", "const"),
    ("cvta", "u32"),
    ("add sub mul fma", "f32x2"),
    ("fma", "oob"),
    ("membar", "proxy"),
    (
        "cvt",
        "pack rs scaled::n2::ue8m0 u4 s4 u2 s2 tf32 bf16x2 e4m3x2 e5m2x2 e2m1x2 e2m3x2 e3m2x2 ue8m0x2 s2f6x2 e4m3x4 e5m2x4 e2m1x4 \
         e2m3x4 e3m2x4",
    ),
    ("ld ldu st mov atom", "b128"),
    ("ld ldu st atom red", "unified"),
    ("st red", "async bulk mbarrier::complete_tx::bytes mmio"),
];

/// The newest version of PTX whose forms the tables have been compared with.
const COMPARED: (u32, u32) = (8, 8);

/// Modifiers that make another instruction, which has other operands and is not supported.
const OTHERS: &[(&str, &str)] = &[("st red", "async"), ("fence", "tensormap::generic")];

/// Checks the form of an instruction. A modifier that is not known may be one of a later PTX: only the kernel is refused that has it.
pub(super) fn check(instruction: &Instruction<'_>, target: &Target, version: (u32, u32)) -> Result<()> {
    let (name, modifiers) = parts(instruction);
    let form = FORMS.iter().find(|(names, ..)| has(names, name));
    let known = form.map_or("*", |(_, _, known, _)| known);
    let is_refused =
        |part: &str| REFUSED.iter().any(|(names, words, _)| has(names, name) && has(words, part));
    let is_unknown =
        |part: &&str| !has(known, "*") && Type::of(part).is_none() && !has(known, part) && !is_refused(part);
    let is_other = |part: &&str| OTHERS.iter().any(|(names, parts)| has(names, name) && has(parts, part));
    if modifiers.iter().any(|part| is_unknown(part) || is_other(part)) {
        return Err(unknown(instruction, version));
    }
    let older = if has("shfl vote", name)
        && !modifiers.contains(&"sync")
        && target.capability >= 70
        && version >= (6, 4)
    {
        Some("without `.sync` is for targets below `sm_70`, or PTX below 6.4".to_string())
    } else {
        None
    };
    let has_any = |words: &str| words.is_empty() || modifiers.iter().any(|part| has(words, part));
    let least = TARGETS
        .iter()
        .filter(|(names, words, others, _)| has(names, name) && has_any(words) && has_any(others))
        .map(|(.., least)| *least)
        .max();
    let capability = target.capability;
    let newer = least
        .filter(|least| capability < *least)
        .map(|least| format!("is for targets from `sm_{least}` on, and this one is `sm_{capability}`"));
    let is_specific = SPECIFIC.contains(&name) && !target.is_specific;
    let specific = is_specific
        .then(|| format!("is for targets such as `sm_{capability}a`, and this one is `sm_{capability}`"));
    let newer = newer.or(specific).or_else(|| wide_access(name, &modifiers, capability, version));
    match fault(instruction, form).or(older).or(newer) {
        Some(fault) => {
            let what = format!("`{}` {fault}", short(instruction.opcode));
            Err(PtxError::syntax(instruction.place, what))
        }
        None => Ok(()),
    }
}

/// What is wrong with an access of 256 bits.
fn wide_access(name: &str, modifiers: &[&str], capability: u32, version: (u32, u32)) -> Option<String> {
    let count = modifiers.iter().find_map(|part| part.strip_prefix('v')?.parse::<u32>().ok())?;
    let of = modifiers.iter().find_map(|part| Type::of(part))?;
    match () {
        () if !has("ld st", name) || count * of.bytes() <= 16 => None,
        () if capability < 100 || version < (8, 8) => {
            Some("is for targets from `sm_100` on, with PTX from 8.8 on".into())
        }
        () if modifiers.iter().any(|part| has("shared shared::cta local const param", part)) => {
            Some("accesses more than 128 bits of another memory than the global one".into())
        }
        () => None,
    }
}

/// What is to be said of an instruction that no table and no lowering knows: it is not supported, or PTX does not have it.
pub(super) fn unknown(instruction: &Instruction<'_>, version: (u32, u32)) -> PtxError {
    let (name, modifiers) = parts(instruction);
    let form = FORMS.iter().find(|(names, ..)| has(names, name));
    let is_foreign = |part: &str| {
        UNSUPPORTED.iter().chain(OTHERS).any(|(names, words)| has(names, name) && has(words, part))
    };
    let opcode = short(instruction.opcode);
    let is_none = |known: &str, part: &str| {
        !has(known, "*") && !has(known, part) && Type::of(part).is_none() && !is_foreign(part)
    };
    match form {
        _ if version > COMPARED => {}
        None if has(NAMES, name) => {}
        Some((_, _, known, _)) if modifiers.iter().any(|part| is_none(known, part)) => {
            let part = modifiers.iter().find(|part| is_none(known, part)).copied().unwrap_or_default();
            let what = format!("`{opcode}` has no modifier `.{}`", short(part));
            return PtxError::syntax(instruction.place, what);
        }
        None => return PtxError::syntax(instruction.place, format!("`{}` is no instruction", short(name))),
        Some((_, _, known, _)) if has(known, "*") || modifiers.iter().any(|part| is_foreign(part)) => {}
        Some(_) => {
            let what = format!("`{opcode}` is no form of the instruction `{name}`");
            return PtxError::syntax(instruction.place, what);
        }
    }
    PtxError::unsupported(instruction.place, format!("the instruction `{opcode}`"))
}

fn parts<'t>(instruction: &Instruction<'t>) -> (&'t str, Vec<&'t str>) {
    let mut parts = instruction.opcode.split('.');
    (parts.next().unwrap_or_default(), parts.collect())
}

/// What is wrong, in words behind the instruction.
fn fault(instruction: &Instruction<'_>, form: Option<&Form>) -> Option<String> {
    let (name, modifiers) = parts(instruction);
    let types: Vec<&str> = modifiers.iter().copied().filter(|part| Type::of(part).is_some()).collect();
    let first_of = |words: &str| modifiers.iter().find(|part| has(words, part));
    // A hint for caches is an operand behind the others.
    let hints = usize::from(modifiers.contains(&"L2::cache_hint"));
    let operands = instruction.operands.len().saturating_sub(hints);
    let special = OPERANDS.iter().find(|(names, words, _)| has(names, name) && first_of(words).is_some());
    let usual = form.map(|(_, counts, ..)| counts);
    if let Some([least, most]) = special.map(|(.., counts)| counts).or(usual)
        && (operands < *least || operands > *most)
    {
        return Some(match operands {
            1 => "does not have 1 operand".into(),
            count => format!("does not have {count} operands"),
        });
    }
    if let Some((.., of)) = form.filter(|(.., of)| !of.is_empty()) {
        if let Some(part) = types.iter().find(|part| !has(of, part)) {
            return Some(format!("has no type `.{part}`"));
        }
        if types.len() > 1 {
            return Some("has several types".into());
        }
        // Of barriers, those with a result have one.
        if types.is_empty() && !has("bar barrier", name) {
            return Some("has no type".into());
        }
    }
    if let Some((_, needed)) =
        REQUIRED.iter().find(|(names, needed)| has(names, name) && first_of(needed).is_none())
    {
        return Some(format!("has one of `.{}`", needed.replace(' ', "`, `.")));
    }
    for words in EXCLUSIVE {
        let mut found = modifiers.iter().filter(|part| has(words, part));
        if let (Some(first), Some(second)) = (found.next(), found.next()) {
            return Some(format!("has `.{first}` and `.{second}`"));
        }
    }
    // A matrix instruction has layouts and types of several operands.
    let is_repeated = |(index, part): &(usize, &&str)| {
        Type::of(part).is_none()
            && **part != "approx"
            && modifiers[..*index].contains(part)
            && !has("mma wmma", name)
    };
    if let Some((_, part)) = modifiers.iter().enumerate().find(is_repeated) {
        return Some(format!("has `.{part}` twice"));
    }
    for (_, words, of) in TYPES.iter().filter(|(names, ..)| has(names, name)) {
        let other = types.first().filter(|part| !has(of, part));
        if let (Some(modifier), Some(of)) = (first_of(words), other) {
            return Some(format!("has no modifier `.{modifier}` for `.{of}`"));
        }
    }
    for (_, words, needed) in NEEDED.iter().filter(|(names, ..)| has(names, name)) {
        if let (Some(modifier), None) = (first_of(words), first_of(needed)) {
            let needed = needed.replace(' ', "`, `.");
            return Some(format!("has `.{modifier}` only with one of `.{needed}`"));
        }
    }
    for (_, words, others) in REFUSED.iter().filter(|(names, ..)| has(names, name)) {
        match (first_of(words), first_of(others)) {
            (Some(part), _) if others.is_empty() => return Some(format!("has no `.{part}`")),
            (Some(part), Some(other)) => return Some(format!("has no `.{part}` together with `.{other}`")),
            _ => {}
        }
    }
    if name == "cvt"
        && first_of("pack rs e4m3x2 e5m2x2 tf32 e4m3 e5m2").is_none()
        && let [to, from] = types[..]
        && let Some(fault) = conversion(to, from, &modifiers)
    {
        return Some(fault);
    }
    if name == "rcp" && types[..] == ["f64"] && first_of("approx").is_some() && first_of("ftz").is_none() {
        return Some("has `.approx` only with `.ftz`".into());
    }
    let roundings = modifiers.iter().filter(|part| Rounding::of(part).is_some()).count();
    let spaces = modifiers.iter().filter(|part| Space::of(part).is_some()).count();
    // A copy has the spaces of its source and of its target.
    let spaces_max = if has("cp multimem", name) { 2 } else { 1 };
    match () {
        () if roundings > 1 => Some("has several ways to round".into()),
        () if spaces > spaces_max => Some("has several kinds of memory".into()),
        () => None,
    }
}

/// What is wrong with a conversion between numbers that are no pairs.
fn conversion(to: &str, from: &str, modifiers: &[&str]) -> Option<String> {
    let (of, other) = (Type::of(to)?, Type::of(from)?);
    if of.is_pair() || other.is_pair() || of.is_bits() || other.is_bits() {
        return None;
    }
    let (bits, other_bits) = (8 * of.bytes(), 8 * other.bytes());
    let is_brain = of == Type::Bf16 || other == Type::Bf16;
    let rounding = modifiers.iter().find(|part| Rounding::of(part).is_some());
    const PLAIN: &str = "rn rz rm rp";
    const INTEGRAL: &str = "rni rzi rmi rpi";
    // The ways to round, whether it must have one, and whether it may saturate.
    let (roundings, is_needed, saturates) = match (of.is_float(), other.is_float()) {
        (false, false) => {
            let is_within = if other.is_signed() { of.is_signed() } else { true }
                && if of.is_signed() && !other.is_signed() { bits > other_bits } else { bits >= other_bits };
            ("", false, !is_within)
        }
        (false, true) | (true, false) if is_brain && bits.min(other_bits) == 8 => {
            return Some(format!("does not convert `.{from}` to `.{to}`"));
        }
        (false, true) => (INTEGRAL, true, !is_brain),
        (true, false) => (PLAIN, true, !is_brain),
        (true, true) if of == other => (INTEGRAL, false, !is_brain),
        (true, true) if is_brain && other != Type::F32 && other != Type::F64 => (PLAIN, false, false),
        (true, true) if bits > other_bits => ("", false, true),
        (true, true) => (PLAIN, true, !is_brain),
    };
    let has_any = |word: &str| modifiers.contains(&word);
    let is_single = of == Type::F32 || other == Type::F32;
    let narrows = other == Type::F32 && bits == 16;
    let clamps = narrows && rounding.is_some_and(|part| has("rn rz", part));
    match rounding {
        Some(part) if !has(roundings, part) => Some(format!("does not round by `.{part}`")),
        None if is_needed => Some(format!("has one of `.{}`", roundings.replace(' ', "`, `."))),
        _ if has_any("sat") && !saturates => Some("has no modifier `.sat`".into()),
        _ if has_any("ftz") && !is_single => Some("has no modifier `.ftz`".into()),
        _ if (has_any("relu") || has_any("satfinite")) && !clamps => {
            Some("has no modifier `.relu` or `.satfinite`".into())
        }
        _ => None,
    }
}

fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}
