//! Memory for kernels, and texts with less writing.

use core::cell::Cell;
use gpumem_ptx::{Checks, DeviceMemory, KernelMistake, Launch, Module, Outcome, Region, Touched};

/// Allocations, at addresses with gaps between them.
#[derive(Default)]
pub(crate) struct Memory {
    allocations: Vec<(u64, Vec<Cell<u8>>, bool)>,
}

impl Memory {
    /// Allocates words, and gives the address.
    pub(crate) fn alloc(&mut self, words: &[u32]) -> u64 {
        self.add(words, true)
    }

    pub(crate) fn alloc_read_only(&mut self, words: &[u32]) -> u64 {
        self.add(words, false)
    }

    fn add(&mut self, words: &[u32], is_writable: bool) -> u64 {
        let address = 0x1_0000 * (1 + self.allocations.len() as u64);
        let cells = words.iter().flat_map(|word| word.to_le_bytes()).map(Cell::new).collect();
        self.allocations.push((address, cells, is_writable));
        address
    }

    pub(crate) fn words(&self, address: u64) -> Vec<u32> {
        let (_, cells, _) = self.allocations.iter().find(|(start, ..)| *start == address).unwrap();
        let bytes: Vec<u8> = cells.iter().map(Cell::get).collect();
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

impl DeviceMemory for Memory {
    fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<Region<'_>> {
        let holds = |start: u64, len: usize| address >= start && address + size_bytes <= start + len as u64;
        let found = self.allocations.iter().find(|(start, cells, _)| holds(*start, cells.len()));
        let (start, cells, is_writable) = found.filter(|(_, _, is_writable)| *is_writable || !is_write)?;
        Some(Region { start: *start, cells, is_writable: *is_writable })
    }
}

/// A module with these lines behind its beginning.
pub(crate) fn module(lines: &str) -> Module {
    let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n{lines}");
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The text of a kernel `k` with registers of every kind, one pointer as its parameter in `%rd0`, and these lines.
pub(crate) fn kernel(lines: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 out) {{\n.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<16>;\n\
         .reg .b64 %rd<16>; .reg .f64 %d<16>;\nld.param.u64 %rd0, [out];\n{lines}\nret;\n}}"
    )
}

pub(crate) fn launch(parameters: &[u8], grid: u32, block: u32) -> Launch<'_> {
    Launch {
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        parameters,
        variables: &[],
        seed: 7,
        steps_max: 1 << 24,
        multiprocessors: 132,
        checks: Checks::default(),
        cores: 1,
    }
}

/// Runs a kernel with lines in its body on `len` zeros, and gives what it left there.
pub(crate) fn run(lines: &str, block: u32, len: usize) -> Result<Vec<u32>, Box<KernelMistake>> {
    let (memory, address, outcome) = run_touching(&kernel(lines), block, len);
    outcome.map(|_| memory.words(address))
}

pub(crate) fn run_touching(
    text: &str,
    block: u32,
    len: usize,
) -> (Memory, u64, Result<Touched, Box<KernelMistake>>) {
    let module = module(text);
    let entry = module.entry("k").unwrap();
    assert_eq!(entry.unsupported(), None, "{text}");
    let mut memory = Memory::default();
    let address = memory.alloc(&vec![0; len]);
    let Outcome { touched, mistake, .. } =
        entry.run(launch(&address.to_le_bytes(), 1, block), &memory).unwrap();
    (memory, address, mistake.map_or(Ok(touched), |mistake| Err(Box::new(mistake))))
}
