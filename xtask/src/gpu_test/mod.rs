//! `cargo xtask gpu-test`: every test that can run on a GPU, on the GPU.
//!
//! GPU cases are the tests named `…cuda::…`, which exist only with feature `gpu` and take the vendor's driver whatever
//! the environment says. A missing device is a failure, and so is a suite that ran no case: silence must not look
//! like success. A bundle is the same programs with this one as their runner, so that both ways share all logic.

mod bundle;
mod device;
mod libtest;
mod runner;
mod suites;

use anyhow::Result;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the programs and a run.sh into DIR, for a machine with a GPU and no Rust, instead of running them
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "suite", "libtest"])]
    bundle: Option<PathBuf>,
    /// Run the programs of the bundle in DIR instead of building them
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Run only this suite; may be repeated
    #[arg(long, value_name = "NAME")]
    suite: Vec<String>,
    /// Passed on to each test program (--nocapture, --skip NAME, …)
    #[arg(last = true, value_name = "ARG")]
    libtest: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(folder) = args.bundle {
        return bundle::write(&suites::build()?, &folder);
    }
    // Before the build, which takes longer than finding out that there is no device.
    print!("{}", device::describe()?);
    let suites = match &args.from {
        Some(folder) => bundle::read(folder)?,
        None => suites::build()?,
    };
    runner::run(&suites::select(suites, &args.suite)?, &args.libtest)
}
