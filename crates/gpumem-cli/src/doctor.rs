//! `gpumem doctor`: what this machine has for programs that use gpumem, what it lacks, and whether it is as fast as usual.

mod devices;
mod python;
mod rows;
mod speed;
mod variables;

use crate::output::{Verdict, print};
use anyhow::Result;
use rows::Rows;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The Python whose packages are looked at
    #[arg(long, value_name = "PROGRAM", default_value = python::DEFAULT)]
    python: String,
    /// Leave out the measurements
    #[arg(long)]
    quick: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Only build a pool from the variables
    #[arg(long, hide = true)]
    variables: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if args.variables {
        return variables::check();
    }
    let mut rows = Rows::default();
    let driver = devices::driver(&mut rows);
    variables::look(&mut rows);
    if let Some(driver) = &driver {
        devices::look(&mut rows, driver, args.quick);
    }
    python::look(&mut rows, &args.python);
    print(&if args.json { format!("{}\n", rows.json()) } else { rows.text() })?;
    Ok(Verdict::of(rows.is_good()))
}
