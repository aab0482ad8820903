//! The forms of instructions, as far as one table says them: operands, modifiers, and types. What it leaves out, the lowering checks, or nobody.

use super::Result;
use crate::error::{PtxError, short};
use crate::number::float::Rounding;
use crate::syntax::{Instruction, Space, Type};

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
    ("membar fence", [0, 0], "*", ""),
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
    ("cvta", [2, 2], "to *", "u32 u64"),
    ("isspacep", [2, 2], "*", ""),
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
    ("lop3", [5, 5], "", "b32"),
    ("shf", [4, 4], "l r wrap clamp", "b32"),
    ("szext", [3, 3], "wrap clamp", "u32 s32"),
    ("bmsk", [3, 3], "wrap clamp", "b32"),
    ("dp4a dp2a", [4, 4], "*", ""),
    ("vadd2 vadd4 vsub2 vsub4 vabsdiff2 vabsdiff4 vavrg2 vavrg4 vmin2 vmin4 vmax2 vmax4", [4, 4], "*", ""),
    ("setp set", [3, 3], "*", ""),
    ("cvt", [2, 4], "*", ""),
    ("tanh", [2, 2], "approx", "f16 f16x2 bf16 bf16x2 f32"),
    ("testp", [2, 2], "finite infinite number notanumber normal subnormal", "f32 f64"),
    ("copysign", [3, 3], "", "f32 f64"),
    ("sin cos lg2", [2, 2], "approx ftz", "f32"),
    ("rcp sqrt", [2, 2], "rn rz rm rp ftz approx", "f32 f64"),
    ("selp", [4, 4], "", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"),
    ("slct", [4, 4], "ftz", ""),
    ("mov", [2, 2], "v2 v4", "pred b16 b32 b64 b128 u16 u32 u64 s16 s32 s64 f32 f64"),
    ("nanosleep", [1, 1], "", "u32"),
    ("pmevent", [1, 1], "mask", ""),
    ("ld ldu st", [2, 2], "*", SIZES),
    ("atom", [3, 3], "*", ""),
    ("red", [2, 2], "*", ""),
    ("prefetchu", [1, 1], "L1", ""),
    ("prefetch", [1, 1], "*", ""),
    ("applypriority discard", [2, 2], "*", ""),
    ("createpolicy", [1, 4], "*", ""),
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
    ("atom", "cas", [4, 4]),
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
    ("cvt", "b32", "pack"),
    ("slct", "ftz", "f32"),
];

/// Modifiers or types that some instructions do not have together with others, or at all if there are none.
const REFUSED: &[(&str, &str, &str)] = &[
    ("cvt", "pred b8 b16 b64", ""),
    ("slct", "f16 f16x2 bf16 bf16x2 u16x2 s16x2", ""),
    ("ld st", "acq_rel sc noftz", ""),
    ("ld", "release wb wt", ""),
    ("st", "acquire nc ca const", ""),
    ("ld st", "volatile", "relaxed acquire release weak local const param"),
    ("ld st", "weak", "relaxed acquire release"),
    ("ld st", "cta", "cluster gpu sys"),
    ("ld st", "gpu", "cluster sys"),
    ("ldu", "sc volatile shared ca", ""),
    ("atom red", "sc weak volatile local const", ""),
    ("red", "acquire acq_rel", ""),
];

/// Modifiers that make another instruction, which has other operands and is not supported.
const OTHERS: &[(&str, &str)] =
    &[("st red", "async"), ("fence", "tensormap::generic"), ("lop3", "and or xor")];

/// Checks the form of an instruction. A modifier that is not known may be one of a later PTX: only the kernel is refused that has it.
pub(super) fn check(instruction: &Instruction<'_>) -> Result<()> {
    let (name, modifiers) = parts(instruction);
    let form = FORMS.iter().find(|(names, ..)| has(names, name));
    let known = form.map_or("*", |(_, _, known, _)| known);
    let is_unknown = |part: &&str| !has(known, "*") && Type::of(part).is_none() && !has(known, part);
    let is_other = |part: &&str| OTHERS.iter().any(|(names, parts)| has(names, name) && has(parts, part));
    if modifiers.iter().any(|part| is_unknown(part) || is_other(part)) {
        let what = format!("the instruction `{}`", short(instruction.opcode));
        return Err(PtxError::unsupported(instruction.place, what));
    }
    match fault(instruction, form) {
        Some(fault) => {
            let what = format!("`{}` {fault}", short(instruction.opcode));
            Err(PtxError::syntax(instruction.place, what))
        }
        None => Ok(()),
    }
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
    let roundings = modifiers.iter().filter(|part| Rounding::of(part).is_some()).count();
    let spaces = modifiers.iter().filter(|part| Space::of(part).is_some()).count();
    // A copy has the spaces of its source and of its target.
    let spaces_max = if has("cp multimem red mbarrier", name) { 2 } else { 1 };
    match () {
        () if roundings > 1 => Some("has several ways to round".into()),
        () if spaces > spaces_max => Some("has several kinds of memory".into()),
        () => None,
    }
}

fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}
