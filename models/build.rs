//! Sets `cfg(loom)` for this crate alone: with it everywhere, tokio would be another one.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
