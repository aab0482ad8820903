//! Launches one kernel with a planted mistake on the vendor's driver, for NVIDIA's compute-sanitizer to find: `mistake NAME wrong|right`.
//! Without arguments it lists the names.

#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use gpumem_tests::driver::raw::Raw;
use gpumem_tests::fixtures::mistakes::PLANTED;
use gpumem_tests::sys::Driver;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, which] = &arguments[..] else {
        PLANTED.iter().for_each(|planted| println!("{}", planted.name));
        return Ok(());
    };
    let planted = PLANTED.iter().find(|planted| planted.name == name);
    let planted = planted.ok_or_else(|| anyhow::anyhow!("there is no {name}"))?;
    let raw = Raw::new(&Driver::cuda()?)?;
    println!("{name} {which}: {}", planted.run(&raw, which == "wrong"));
    Ok(())
}
