//! Programs that the compiler refuses: lifetimes of views and of host memory that devices use, and types that arrays cannot hold.
//!
//! The expected messages are those of the stable compiler. `TRYBUILD=overwrite` rewrites them after an update.

#[test]
fn programs_that_break_a_borrow_are_refused() {
    trybuild::TestCases::new().compile_fail("tests/must_not_compile/*.rs");
}
