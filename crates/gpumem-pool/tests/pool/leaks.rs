//! Programs that keep blocks that they should drop, programs that only build up memory that they need, and the report of each.

use crate::fixture::{Fixture, on_device_memory, small};
use gpumem_pool::{Advice, Block, OutOfMemory, Pool, PoolError, Stream};

const MIB: u64 = 1 << 20;

/// A pool below a limit, the program's blocks, and the refusal that ends it.
struct Program {
    pool: Pool,
    stream: Stream,
    held: Vec<Block>,
}

impl Program {
    fn new(fixture: &Fixture) -> Self {
        // The heap samples the use; in a small heap it should do so often.
        let options = fixture.builder().hard_limit(400 * MIB).conf("handle_bytes_max:32MiB").unwrap();
        Self { pool: options.build().unwrap(), stream: fixture.stream(), held: Vec::new() }
    }

    fn keep(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        self.held.push(self.pool.alloc(size_bytes, &self.stream)?);
        Ok(())
    }

    fn use_shortly(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool.alloc(size_bytes, &self.stream).map(drop)
    }

    /// Repeats the step until a request is refused. Returns the report.
    fn runs(mut self, mut step: impl FnMut(&mut Self, u64) -> Result<(), PoolError>) -> OutOfMemory {
        let error = (0..).find_map(|count| step(&mut self, count).err()).unwrap();
        error.out_of_memory().unwrap().clone()
    }
}

/// Keeps one block in a few, of any size, with a model beside it or without. One block in two or three may be a program that
/// builds up: the report has the growth, but no advice.
#[test]
fn a_loop_that_keeps_some_of_its_blocks_leaks() {
    on_device_memory(&small(), |fixture| {
        for (size_bytes, model_mib) in [(2 * MIB, 0), (MIB, 100), (200 << 10, 150)] {
            for others in [0, 1, 2, 3] {
                let mut program = Program::new(fixture);
                (0..model_mib / 50).for_each(|_| program.keep(50 * MIB).unwrap());
                let report = program.runs(|program, _| {
                    program.keep(size_bytes)?;
                    (0..others).try_for_each(|_| program.use_shortly(3 * MIB))
                });
                let is_leak = others == 3;
                let text = report.to_string();
                assert_eq!(report.advice() == Advice::FindTheLeak, is_leak, "1 of {}:\n{text}", others + 1);
                assert_eq!(
                    text.contains("blocks are still in use; if a loop allocates them"),
                    !is_leak,
                    "{text}"
                );
            }
        }
    });
}

/// Without steps the cause is unknown: the report has the growth only.
#[test]
fn blocks_that_are_made_at_once_are_no_leak() {
    on_device_memory(&small(), |fixture| {
        let report = Program::new(fixture).runs(|program, _| program.keep(2 * MIB));
        assert_eq!(report.advice(), Advice::RaiseTheLimit, "{report}");
        assert!(report.to_string().contains("blocks are still in use; if a loop allocates them"), "{report}");
    });
}

/// Tags whose blocks were dropped do not grow.
#[test]
fn growth_that_has_ended_is_not_reported() {
    on_device_memory(&small(), |fixture| {
        let mut program = Program::new(fixture);
        let step = |program: &mut Program| program.keep(2 * MIB).and_then(|()| program.use_shortly(2 * MIB));
        while step(&mut program).is_ok() {}
        program.held.truncate(program.held.len() / 4);
        let error = program.pool.alloc(500 * MIB, &program.stream).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().growth, None, "{error}");
    });
}

/// Layers with parts of many sizes, each converted from a temporary block, with a wait after each or without.
#[test]
fn a_model_that_is_loaded_is_no_leak() {
    const LAYER_KIB: [u64; 7] = [2048, 512, 512, 2048, 7168, 7168, 7168];
    on_device_memory(&small(), |fixture| {
        for (temporaries, waits) in [(0, false), (1, false), (1, true), (2, true)] {
            let report = Program::new(fixture).runs(|program, count| {
                let size_bytes = LAYER_KIB[count as usize % LAYER_KIB.len()] << 10;
                (0..temporaries).try_for_each(|_| program.use_shortly(2 * size_bytes))?;
                program.keep(size_bytes)?;
                if waits { program.stream.synchronize().map_err(Into::into) } else { Ok(()) }
            });
            assert_ne!(report.advice(), Advice::FindTheLeak, "{temporaries} temporaries:\n{report}");
            assert_eq!(report.growth, None, "{report}");
        }
    });
}

/// The first step of a program, whose layers keep memory for the backward pass.
#[test]
fn a_step_that_is_too_large_is_no_leak() {
    on_device_memory(&small(), |fixture| {
        let mut program = Program::new(fixture);
        program.keep(120 * MIB).unwrap();
        let report = program.runs(|program, count| {
            let size_bytes = [1, 1, 1, 4, 1, 1, 4, 2][count as usize % 8] * MIB;
            program.keep(size_bytes)?;
            program.use_shortly(size_bytes)
        });
        assert_ne!(report.advice(), Advice::FindTheLeak, "{report}");
    });
}
