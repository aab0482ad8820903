//! Hostile texts: real ones with words cut, swapped, repeated and replaced, which are parsed and run; and large ones, whose time must not grow
//! with the square of their size. `PROPTEST_CASES` is the number of texts, of which each core takes its part.

use crate::support::{Memory, launch};
use crate::text::repository;
use gpumem_ptx::{Launch, Module};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BEGINNING: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

/// Texts with all kinds of statements and instructions.
const TEXTS: [&str; 6] = [
    ".global .align 8 .u64 table[3] = {generic(data)+8, data, 7}; .const .b8 data[16] = {1, 2, {3, 4}}; .extern .shared .align 16 .b8 dynamic[];
     .visible .entry k(.param .u64 out, .param .align 8 .b8 pair[16]) .maxntid 64, 1, 1 {
     .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .shared .align 8 .b8 own[64]; .local .align 8 .b8 frame[32];
     ld.param.u64 %rd0, [out]; ld.param.v2.u64 {%rd1, %rd2}, [pair]; mov.u32 %r0, %tid.x; setp.lt.u32 %p0|%p1, %r0, 16;
     @%p0 bra LOW; st.shared.u32 [own+4], %r0; bra.uni MEET; LOW: st.local.u32 [frame+8], %r0; MEET: bar.sync 0;
     ld.shared.u32 %r1, [own+4]; mov.u32 %r2, dynamic; cvta.global.u64 %rd3, table; ld.u64 %rd4, [%rd3+8]; ld.global.u8 %r3, [%rd4+1];
     add.s32 %r4, %r1, %r3; @!%p1 st.global.u32 [%rd0], %r4; brx.idx %r3, LIST; LIST: .branchtargets LOW, OUT; OUT: ret; }",
    ".func (.reg .b32 r) leaf(.reg .b32 a, .param .b64 b) { .reg .b64 %x; ld.param.b64 %x, [b]; add.u32 r, a, 1; ret; }
     .func (.param .b32 r) deep(.param .b32 n) { .reg .pred %p; .reg .b32 %r<4>; ld.param.u32 %r0, [n]; setp.eq.u32 %p, %r0, 0; @%p bra END;
     sub.u32 %r1, %r0, 1; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), deep, (a); ld.param.b32 %r2, [b]; }
     add.u32 %r0, %r0, %r2; END: st.param.b32 [r], %r0; ret; } .func (.param .b32 r) other(.param .b32 n); .alias other, deep;
     .entry k(.param .u64 out) { .reg .b32 %r<5>; .reg .b64 %rd<5>; .param .b32 a; .param .b32 b; .param .b64 c; ld.param.u64 %rd0, [out];
     mov.u32 %r0, %laneid; st.param.b32 [a], %r0; st.param.b64 [c], %rd0; call (b), deep, (a); ld.param.b32 %r1, [b]; call (%r2), leaf, (%r1, c);
     mov.u64 %rd1, deep; P: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), %rd1, (a), P; add.u32 %r2, %r2, %r1;
     st.global.u32 [%rd0], %r2; ret; }",
    ".entry k(.param .u64 out) { .reg .pred %p<4>; .reg .b32 %r<20>; .reg .f32 %f<8>; .reg .b64 %rd<5>; .shared .align 16 .b8 s[1024]; .shared .b64 bar;
     ld.param.u64 %rd0, [out]; mov.u32 %r0, %laneid; shl.b32 %r1, %r0, 4; mov.u32 %r2, s; add.u32 %r2, %r2, %r1;
     st.shared.v4.u32 [%r2], {%r0, %r1, %r2, %r0}; bar.warp.sync -1; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 1.5; mov.f32 %f2, %f0; mov.f32 %f3, %f1;
     ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2]; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r9}, [%r2];
     mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f0, %f1, %f2, %f3};
     wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {%r10, %r11}, [s], 16; movmatrix.sync.aligned.m8n8.trans.b16 %r12, %r10;
     mbarrier.init.shared.b64 [bar], 2; mbarrier.arrive.shared.b64 %rd1, [bar]; W: mbarrier.try_wait.shared.b64 %p0, [bar], %rd1; @!%p0 bra W;
     cp.async.ca.shared.global [%r2], [%rd0], 16, 8; cp.async.wait_all; st.global.v2.f32 [%rd0], {%f0, %f1}; ret; }",
    ".entry k(.param .u64 out) { .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>; ld.param.u64 %rd0, [out]; mov.u32 %r0, %laneid; mov.u32 %r1, 7;
     LOOP: shfl.sync.bfly.b32 %r2|%p0, %r0, 1, 31, -1; vote.sync.ballot.b32 %r3, %p0, -1; match.any.sync.b32 %r4, %r2, -1; redux.sync.add.s32 %r5, %r4, -1;
     elect.sync %r6|%p1, -1; atom.global.add.u32 %r7, [%rd0], %r5; red.global.max.u32 [%rd0+4], %r7; atom.cas.b64 %rd1, [%rd0+8], %rd0, %rd1;
     bar.red.popc.u32 %r8, 1, %p1; sub.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra LOOP; barrier.sync 2, 64; activemask.b32 %r2; trap; }",
    ".entry k(.param .u64 out) { .reg .pred %p; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b64 %rd<4>;
     mov.u32 %r0, %clock; cvt.rn.f32.u32 %f0, %r0; cvt.rzi.s32.f32 %r1, %f0; cvt.f64.f32 %d0, %f0; fma.rn.f64 %d1, %d0, %d0, 0d3FF0000000000000;
     div.rn.f32 %f1, %f0, 0f40400000; sqrt.rp.f32 %f2, %f1; cvt.rn.f16x2.f32 %r2, %f1, %f2; fma.rn.relu.f16x2 %r3, %r2, %r2, %r2; mov.b32 {%h0, %h1}, %r3;
     bfe.s32 %r4, %r0, 3, 40; bfi.b32 %r5, %r0, %r4, 30, 9; lop3.b32 %r6, %r0, %r4, %r5, 0x96; prmt.b32 %r7, %r6, %r5, 0x7654; shf.l.wrap.b32 %r8, %r7, %r6, 99;
     mad.wide.s32 %rd1, %r7, %r8, %rd0; dp4a.s32.u32 %r1, %r2, %r3, %r4; add.cc.u32 %r1, %r2, %r3; addc.u32 %r2, %r3, %r4; vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r4;
     slct.f32.s32 %f3, %f1, %f2, %r7; set.lt.u32.f32 %r1, %f1, %f2; testp.finite.f32 %p, %f3; selp.b32 %r2, %r1, -5, %p; fns.b32 %r3, %r2, 40, -9; rem.s64 %rd1, %rd1, 0; exit; }",
    ".visible .func helper() { ret; } .weak .entry first() { call helper, (); ret; }
     .entry k(.param .u64 out) .reqntid 32 { .pragma \"nounroll\"; .loc 1 2 3 { .reg .b32 a; { .reg .b64 a; L: mov.b64 a, 1; bra M; M: } mov.b32 a, 2; } ret; }
     .file 1 \"name.cu\" .section .debug_info { .b8 1 }",
];

/// Words that a text may get in place of one of its own.
const WORDS: [&str; 30] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    ";",
    ",",
    "|",
    "-",
    "!",
    "@%p0",
    "0f7FC00000",
    "0dFFF8000000000000",
    "1e400",
    ".align 1048576",
    ".b8 x[4000000000];",
    ".local .b8 big[500000];",
    ".reg .b32 %r<1000000000>;",
    ".shared .align 1048576 .b8 y[200000];",
    ".global .b64 z[281474976710655];",
    ".param .b8 q[32000];",
    "%r4",
    "%rd1",
    "%p0",
    "%tid.x",
    "/*",
    "_",
];
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "2",
    "31",
    "32",
    "65535",
    "4294967295",
    "18446744073709551615",
    "0x8000000000000000",
    "9223372036854775807",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Register,
    Number,
    Opcode,
    Directive,
    Name,
    Mark,
}

fn kind(word: &str) -> Kind {
    match word.as_bytes() {
        [b'%', ..] => Kind::Register,
        [b'0'..=b'9', ..] => Kind::Number,
        [b'.', _, ..] => Kind::Directive,
        [b'a'..=b'z', ..] if word.contains('.') => Kind::Opcode,
        [b'a'..=b'z' | b'A'..=b'Z' | b'$' | b'_', ..] => Kind::Name,
        _ => Kind::Mark,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end.max(1)
    }
}

/// Names with their dots, and everything else byte by byte.
fn words(text: &str) -> Vec<&str> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'%' | b'$' | b':');
    let bytes = text.as_bytes();
    let ends = |pair: &[u8]| !(is_name(pair[0]) && is_name(pair[1]));
    let cuts = bytes.windows(2).enumerate().filter(|(_, pair)| ends(pair)).map(|(at, _)| at + 1);
    let mut found = Vec::new();
    let mut start = 0;
    for end in cuts.chain([text.len()]).filter(|end| text.is_char_boundary(*end)) {
        found.push(&text[start..end]);
        start = end;
    }
    found
}

/// The text of this number.
fn mutated(number: u64, seeds: &[Vec<&str>]) -> String {
    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        random.below(2);
    }
    let mut text = seeds[random.below(seeds.len())].clone();
    // Most texts remain ones that can be parsed: a word becomes another one of its kind.
    for _ in 0..1 + random.below(8) {
        let at = random.below(text.len());
        let other = if random.below(2) == 0 { &text } else { &seeds[random.below(seeds.len())] };
        let start = random.below(other.len());
        let similar = (start..other.len()).find(|place| kind(other[*place]) == kind(text[at]));
        if let Some(place) = similar.filter(|_| kind(text[at]) != Kind::Mark) {
            text[at] = other[place];
        }
    }
    for _ in 0..random.below(3) {
        let at = random.below(text.len());
        let other = &seeds[random.below(seeds.len())];
        match random.below(7) {
            0 => drop(text.drain(at..(at + 1 + random.below(4)).min(text.len()))),
            1 => text[at] = other[random.below(other.len())],
            2 => text[at] = WORDS[random.below(WORDS.len())],
            3 => text.insert(at, WORDS[random.below(WORDS.len())]),
            4 => {
                let piece = text[at..(at + random.below(40)).min(text.len())].to_vec();
                let place = random.below(text.len());
                text.splice(place..place, piece);
            }
            5 => {
                // The rest comes from another text.
                text.truncate(at);
                text.extend(&other[random.below(other.len())..]);
            }
            _ => {
                let from = random.below(text.len());
                if let Some(at) = (from..text.len()).find(|at| kind(text[*at]) == Kind::Number) {
                    text[at] = NUMBERS[random.below(NUMBERS.len())];
                }
            }
        }
        if text.is_empty() {
            break;
        }
    }
    BEGINNING.to_string() + &text.concat()
}

/// Parses a text, and runs all its kernels for a few steps. Returns how many kernels could run.
fn parse_and_run(text: &str, memory: &Memory, address: u64) -> u64 {
    let Ok(module) = Module::parse(text) else { return 0 };
    let variables = vec![address; module.variables().len()];
    for entry in module.entries() {
        let parameters: Vec<u8> = address.to_le_bytes().repeat(entry.parameter_bytes().min(4096).div_ceil(8));
        let launch = Launch { variables: &variables, steps_max: 2000, ..launch(&parameters, 2, 40) };
        let _ = entry.run(launch, memory);
    }
    module.entries().iter().filter(|entry| entry.unsupported().is_none()).count() as u64
}

/// The kernels of the repository, alone, and the texts above.
fn seeds(files: &[String]) -> Vec<Vec<&str>> {
    let mut seeds: Vec<&str> = TEXTS.to_vec();
    for file in files {
        let starts: Vec<usize> = file.match_indices(".visible .entry").map(|(at, _)| at).collect();
        for (start, end) in starts.iter().zip(starts.iter().skip(1).chain([&file.len()])) {
            seeds.push(&file[*start..*end]);
        }
    }
    seeds.retain(|seed| seed.len() < 6000 && seed.is_ascii());
    // The large files have the same kernels for many types.
    let (own, theirs) = seeds.split_at(TEXTS.len());
    let step = theirs.len() / 60 + 1;
    own.iter().chain(theirs.iter().step_by(step)).map(|seed| words(seed)).collect()
}

#[test]
#[allow(clippy::print_stdout, reason = "a long run says how long it was")]
fn texts_with_other_words() {
    let count = std::env::var("PROPTEST_CASES").map_or(3000, |count| count.parse().unwrap());
    let files = repository();
    let seeds = seeds(&files);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (start, runs) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for first in 0..cores {
            let (seeds, runs) = (&seeds, &runs);
            scope.spawn(move || {
                let mut memory = Memory::default();
                let address = memory.alloc(&[0x0001_0203; 1024]);
                for number in (first..count).step_by(cores as usize) {
                    let text = mutated(number, seeds);
                    let started = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| parse_and_run(&text, &memory, address)));
                    let Ok(ran) = outcome else { panic!("a panic at text {number}:\n{text}") };
                    runs.fetch_add(ran, Ordering::Relaxed);
                    let taken = started.elapsed();
                    assert!(taken < Duration::from_secs(20), "{taken:?} for text {number}:\n{text}");
                }
            });
        }
    });
    let runs = runs.into_inner();
    println!("{count} texts, {runs} kernels that ran, in {:.1?} on {cores} cores", start.elapsed());
    assert!(runs > count / 10, "{runs} kernels of {count} texts could run");
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = peak
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(peak.unwrap_or(0) < 4 << 20, "{peak:?} KiB of memory");
}

/// A text of about this many bytes, of lines that are made from their numbers.
fn lines(bytes: usize, line: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    let mut number = 0;
    while text.len() < bytes {
        let _ = writeln!(text, "{}", line(number));
        number += 1;
    }
    text
}

#[test]
fn large_texts_take_as_long_as_they_are() {
    const BYTES: usize = 200_000;
    let body = |lines: String| {
        format!(".entry k() {{ .reg .pred %p; .reg .b32 %r<99>; .reg .b64 %rd<9>;\n{lines} ret; }}")
    };
    let chain = |number: usize| format!(".func f{number}() {{ call f{}; ret; }}", number + 1);
    let texts = [
        ("kernels", lines(BYTES, |number| format!(".entry k{number}() {{ ret; }}"))),
        ("kernels of one name", lines(BYTES, |_| ".entry k() { ret; }".into())),
        (
            "functions and kernels",
            format!(
                "{}.func f{}() {{ ret; }}\n{}",
                lines(BYTES / 8, chain),
                lines(BYTES / 8, chain).lines().count(),
                lines(BYTES / 8, |number| format!(".entry k{number}() {{ call f0; ret; }}"))
            ),
        ),
        (
            "ranges of registers",
            body(
                lines(BYTES / 2, |number| format!(".reg .b32 a{number}x<9>;"))
                    + &lines(BYTES / 2, |_| "mov.u32 %r1, %tid.x;".into()),
            ),
        ),
        ("scopes", body(lines(BYTES, |_| "{".into()))),
        ("closed scopes", body(lines(BYTES, |number| format!("{{ .reg .b32 x; mov.u32 x, {number}; }}")))),
        (
            "tables of branches",
            body(format!(
                "T: .branchtargets A{}; A:\n{}",
                ", A".repeat(BYTES / 6),
                lines(BYTES / 2, |_| "brx.idx %r1, T;".into())
            )),
        ),
        ("labels", body(lines(BYTES, |number| format!("L{number}: @%p bra L{};", number / 2)))),
        (
            "addresses",
            format!(
                "{}.global .u64 t[] = {{v0{}}};\n.entry k() {{ .reg .b64 %rd; mov.u64 %rd, t; ret; }}",
                lines(BYTES / 2, |number| format!(".global .u32 v{number};")),
                ", v5000".repeat(BYTES / 16)
            ),
        ),
        ("digits", body(lines(BYTES, |_| format!("mov.u32 %r1, %r{};", "1".repeat(1000))))),
        ("operands", body(format!("mov.b64 %rd1, {{%r1{}}};", ", %r2".repeat(BYTES / 5)))),
        ("comments", body(lines(BYTES, |_| "/* a\n */ // b\n mov.u32 /**/ %r1 /**/, %r2 /**/;".into()))),
    ];
    for (name, text) in texts {
        let start = Instant::now();
        let module = Module::parse(&(BEGINNING.to_string() + &text));
        drop(module);
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(20), "{name}: {taken:?} for {} bytes", text.len());
    }
}

#[test]
fn sizes_that_no_device_has() {
    let mut memory = Memory::default();
    let address = memory.alloc(&[0; 16]);
    for (text, problem) in [
        (
            ".entry k() { .shared .b8 x[4000000000]; .reg .b32 %r; mov.u32 %r, x; ret; }",
            "line 4, column 26: the kernel has more than 49152 bytes of static shared memory",
        ),
        (
            ".entry k() { .local .b8 x[4000000000]; .reg .b64 %r; mov.u64 %r, x; ret; }",
            "line 4, column 25: 4000000000 bytes of local memory a call is not supported",
        ),
        (".entry k(.param .b8 x[40000]) { ret; }", "line 4, column 21: a parameter is too large"),
        (
            ".shared .b8 .align 9223372036854775808 x[4];",
            "line 4, column 9: 9223372036854775808 is no alignment",
        ),
        (
            ".func f() { ret; } .entry k() { call k; ret; }",
            "line 4, column 33: `k` is a kernel, which cannot be called",
        ),
    ] {
        let found = Module::parse(&(BEGINNING.to_string() + text));
        let found = found.map(|module| module.entry("k").and_then(|entry| entry.unsupported().cloned()));
        let found = match found {
            Err(error) | Ok(Some(error)) => error.to_string(),
            Ok(None) => "no problem".into(),
        };
        assert_eq!(found, problem, "{text}");
    }
    for text in [
        ".entry k() { .reg .b32 %r<1000000000>; mov.u32 %r999999999, 1; ret; }".to_string(),
        // A function that a register names takes less than it is given, and gives less than is taken.
        ".func (.param .b8 r[4]) f(.param .b8 a[4]) { ret; } .entry k() { .reg .b64 %f; .param .b8 big[20000]; .param .b8 small[4]; .param .b8 large[20000];
         mov.u64 %f, f; call (large), %f, (big); call (large), f, (big); ret; }".into(),
        // Calls of a function with many registers.
        format!(".func f() {{ .reg .b32 %r<9999>; {} call f; ret; }} .entry k() {{ call f; ret; }}", lines(100_000, |number| format!("mov.u32 %r{}, 1;", number % 9999))),
        ".func f() { .local .b8 x[400000]; .reg .b64 %r; mov.u64 %r, x; call f; ret; } .entry k() { call f; ret; }".into(),
    ] {
        parse_and_run(&(BEGINNING.to_string() + &text), &memory, address);
    }
}

#[test]
fn a_launch_with_more_shared_memory_than_a_block_has() {
    let module = Module::parse(&(BEGINNING.to_string() + ".entry k() { ret; }")).unwrap();
    let launch = Launch { shared_bytes: u32::MAX, ..launch(&[], 1, 1) };
    let problem = module.entry("k").unwrap().run(launch, &Memory::default()).unwrap_err();
    assert!(
        problem.to_string().ends_with("4294967295 bytes of dynamic shared memory is not supported"),
        "{problem}"
    );
}

/// Output beyond the limit is formatted before it is dropped, so it counts as well.
#[test]
fn a_loop_that_prints_ends_in_time() {
    let text = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
         .global .b8 format[8] = {37, 52, 48, 57, 54, 120, 10, 0};
         .entry k() { .reg .b64 %a; .local .align 8 .b8 l[8]; mov.u64 %a, l; cvta.local.u64 %a, %a; st.u64 [%a], 0;
         L: { .param .b64 f; .param .b64 v; .param .b32 r; .reg .b64 %f; mov.u64 %f, format; st.param.b64 [f], %f; st.param.b64 [v], %a;
         call (r), vprintf, (f, v); } bra L; }";
    let module = Module::parse(&(BEGINNING.to_string() + text)).unwrap();
    let mut memory = Memory::default();
    let format = [0x3930_3425, 0x000a_7836];
    let variables = [memory.alloc(&format)];
    let launch = Launch { variables: &variables, ..launch(&[], 1, 1) };
    let started = Instant::now();
    let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
    assert!(matches!(outcome.mistake.unwrap().mistake, gpumem_ptx::Mistake::TooLong(_)));
    assert_eq!(outcome.printed.len(), (1 << 20) / 4097 * 4097);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
