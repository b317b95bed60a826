//! Lets the library have loom's atomics and locks.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(iomill_models)");
    println!("cargo::rustc-cfg=iomill_models");
}
