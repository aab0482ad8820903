//! Gives the library the name under which programs look for it. The number changes when a program must be compiled again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumem.so.0");
        // Threads of the pool may run in it when a program closes it.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
