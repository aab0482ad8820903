//! Launches on several cores: the same outcome as on one.

use crate::support::{Memory, kernel, launch, module};
use gpumem_ptx::{DeviceMemory, Launch, Outcome, Region};
use std::cell::Cell;

const BLOCK: u32 = 64;
/// `%r0` is the number of the thread in the grid, and `%rd1` the address of its word. `%r1` is the number of the block.
const AT_THREAD: &str = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r0, %r1, %r2, %r3;\n\
                         mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;\n";
/// Makes a block take some hundred steps.
const WORK: &str = "mov.u32 %r4, 0; WORK: add.u32 %r4, %r4, 1; setp.lt.u32 %p7, %r4, 60; @%p7 bra WORK;\n";
/// Makes a block take more steps than it has in one turn.
const LONG_WORK: &str =
    "mov.u32 %r4, 0; WORK: add.u32 %r4, %r4, 1; setp.lt.u32 %p7, %r4, 3600; @%p7 bra WORK;\n";

fn run_on(
    text: &str,
    grid: u32,
    seed: u64,
    cores: usize,
    memory: &dyn DeviceMemory,
    address: u64,
) -> Outcome {
    let module = module(text);
    let parameters = address.to_le_bytes();
    let launch = Launch { seed, cores, steps_max: 1 << 26, ..launch(&parameters, grid, BLOCK) };
    module.entry("k").unwrap().run(launch, memory).unwrap()
}

/// Runs a kernel on one core and on several. `len` words, each its number, are what it may access.
fn same_on_cores(text: &str, grid: u32, len: usize) {
    for seed in 0..2 {
        let run = |cores| {
            let mut memory = Memory::default();
            let words: Vec<u32> = (0..len as u32).collect();
            let address = memory.alloc(&words);
            let outcome = run_on(text, grid, seed, cores, &memory, address);
            (memory.words(address), outcome)
        };
        let (words, one) = run(1);
        let (found, several) = run(3);
        let place = format!("seed {seed}\n{text}");
        assert_eq!(several.mistake, one.mistake, "{place}");
        assert!(found == words, "{place}");
        assert_eq!(several.touched, one.touched, "{place}");
        assert_eq!((several.steps, &several.printed), (one.steps, &one.printed), "{place}");
    }
}

#[test]
fn blocks_of_one_launch_have_the_outcome_of_one_core() {
    for (work, grid) in [(WORK, 400), (LONG_WORK, 22)] {
        let len = (grid * BLOCK) as usize;
        for lines in [
            // Each its own word.
            "ld.global.u32 %r5, [%rd1]; add.u32 %r5, %r5, %r4; st.global.u32 [%rd1], %r5;",
            // All the same word: the last one stays.
            "st.global.u32 [%rd0], %r1;",
            // All bytes of a word, each block its own.
            "and.b32 %r5, %r1, 3; cvt.u64.u32 %rd2, %r5; add.u64 %rd2, %rd2, %rd0; st.global.u8 [%rd2], %r1;",
            // The word that the next block writes.
            "ld.global.u32 %r5, [%rd1]; st.global.u32 [%rd1], %r0; and.b32 %r6, %r1, 7; setp.ne.u32 %p0, %r6, 7;\n\
             @%p0 ld.global.u32 %r5, [%rd1 + 256]; @%p0 st.global.u32 [%rd1], %r5;",
            // What was read before, and then written, by the same block.
            "ld.global.u32 %r5, [%rd1]; st.global.u32 [%rd1], 5; ld.global.u32 %r6, [%rd1]; add.u32 %r5, %r5, %r6;\n\
             st.global.u32 [%rd1], %r5;",
            // The warps of a block race in its shared memory.
            ".shared .align 4 .b8 s[4]; st.shared.u32 [s], %r3; bar.sync 0; ld.shared.u32 %r5, [s]; st.global.u32 [%rd1], %r5;",
            // A block runs beyond the end, two of them, all of them.
            "setp.eq.u32 %p0, %r1, 17; @%p0 add.u64 %rd1, %rd1, 1000000; st.global.u32 [%rd1], %r0;",
            "and.b32 %r5, %r1, 15; setp.eq.u32 %p0, %r5, 9; @%p0 add.u64 %rd1, %rd1, 1000000; st.global.u32 [%rd1], %r0;",
            "st.global.u32 [%rd1 + 1000000], %r0;",
            // Sums in global memory.
            "atom.global.add.u32 %r5, [%rd0], 1; st.global.u32 [%rd1], %r5;",
            // One block takes much longer than the first ones.
            "setp.ne.u32 %p0, %r1, 19; mov.u32 %r5, 0; @%p0 bra END; L: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 30000; @%p1 bra L;\n\
             END: st.global.u32 [%rd1], %r5;",
        ] {
            same_on_cores(&kernel(&format!("{AT_THREAD}{work}{lines}")), grid, len);
        }
    }
}

#[test]
fn what_blocks_print_comes_in_their_order() {
    let text = kernel(&format!(
        "{AT_THREAD}{WORK} setp.ne.u32 %p0, %r3, 0; @%p0 bra END; .local .align 8 .b8 v[8]; .reg .b64 %a; .reg .b64 %b;\n\
         st.local.u32 [v], %r1; mov.b64 %a, f; cvta.global.u64 %a, %a; mov.b64 %b, v; cvta.local.u64 %b, %b;\n\
         {{ .param .b64 p; .param .b64 q; .param .b32 o; st.param.b64 [p], %a; st.param.b64 [q], %b; call.uni (o), vprintf, (p, q); }} END:"
    ));
    let text = format!(
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n.global .align 1 .b8 f[4] = {{37, 100, 10, 0}};\n{text}"
    );
    let module = module(&text);
    let printed = [1, 4].map(|cores| {
        let mut memory = Memory::default();
        let format = memory.alloc(&[u32::from_le_bytes(*b"%d\n\0")]);
        let address = memory.alloc(&[]);
        let (parameters, variables) = (address.to_le_bytes(), [format]);
        let launch = Launch { cores, variables: &variables, ..launch(&parameters, 400, BLOCK) };
        let outcome = module.entry("k").unwrap().run(launch, &memory).unwrap();
        assert_eq!(outcome.mistake, None);
        outcome.printed
    });
    assert_eq!(printed[0].lines().count(), 400);
    assert_eq!(printed[0], printed[1]);
}

/// A kernel that waits without `volatile` for what another block writes. On several cores it would wait for ever.
#[test]
fn a_block_that_waits_for_another_one_is_run_again() {
    let lines = "setp.ne.u32 %p0, %r1, 20; @%p0 bra WAIT; st.global.u32 [%rd0], 1;\n\
                 WAIT: ld.global.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0; @%p1 bra WAIT;";
    let text = kernel(&format!("{AT_THREAD}{WORK}{lines}"));
    let mut memory = Memory::default();
    let address = memory.alloc(&[0]);
    for cores in [1, 2] {
        let outcome = run_on(&text, 60, 1, cores, &memory, address);
        assert_eq!(outcome.mistake, None, "{cores} cores");
    }
}

/// Memory that counts how often it is asked, and may give no more than what an access needs.
struct Asked {
    cells: Vec<Cell<u8>>,
    is_exact: bool,
    asked: Cell<usize>,
}

impl DeviceMemory for Asked {
    fn region(&self, address: u64, size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
        self.asked.set(self.asked.get() + 1);
        let start = address.checked_sub(0x1_8000)?;
        let cells = self.cells.get(start as usize..(start + size_bytes) as usize)?;
        Some(match self.is_exact {
            true => Region { start: address, cells, is_writable: true },
            false => Region { start: 0x1_8000, cells: &self.cells, is_writable: true },
        })
    }
}

#[test]
fn memory_that_is_given_access_by_access_is_not_copied() {
    let lines = "ld.global.u32 %r5, [%rd1]; add.u32 %r5, %r5, %r4; st.global.u32 [%rd1], %r5;";
    let text = kernel(&format!("{AT_THREAD}{WORK}{lines}"));
    for is_exact in [true, false] {
        let [one, several] = [1, 3].map(|cores| {
            let cells = vec![Cell::new(1); 400 * BLOCK as usize * 4];
            let memory = Asked { cells, is_exact, asked: Cell::new(0) };
            let outcome = run_on(&text, 400, 5, cores, &memory, 0x1_8000);
            assert_eq!(outcome.mistake, None);
            (memory.cells, memory.asked.get(), outcome.steps)
        });
        assert!(one.0 == several.0 && one.2 == several.2);
        // Each core gives up at its first access.
        assert!(several.1 <= one.1 + 2 * 3, "{} {}", one.1, several.1);
    }
}
