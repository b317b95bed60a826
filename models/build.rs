//! Gives the library loom's atomics and locks, by the cfg `iomill_models`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(iomill_models)");
    println!("cargo::rustc-cfg=iomill_models");
}
