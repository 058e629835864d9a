//! Builds the guest and hands its path to the crate, which embeds it, so that one `cargo build` gives a whole program.
//!
//! The guest is a program of its own: static, for an empty root, with a profile of its own. A nested cargo builds it into a
//! target directory of its own, since the outer cargo holds the lock of the shared one. `SANDBAR_GUEST` names a guest that
//! was built before and skips all this.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SANDBAR_GUEST");
    let image = match env::var_os("SANDBAR_GUEST") {
        Some(path) => prebuilt(&PathBuf::from(path)),
        None => build(),
    };
    println!("cargo::rustc-env=SANDBAR_GUEST_IMAGE={}", image.display());
}

fn prebuilt(path: &Path) -> PathBuf {
    println!("cargo::rerun-if-changed={}", path.display());
    path.canonicalize().unwrap_or_else(|error| panic!("SANDBAR_GUEST names {}: {error}", path.display()))
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there");
    for source in ["Cargo.toml", "Cargo.lock", "crates/guest", "crates/protocol"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let target = variable("TARGET");
    // Debug builds take the profile that builds in seconds.
    let profile = if variable("PROFILE") == "release" { "guest" } else { "guest-dev" };
    let own = PathBuf::from(variable("OUT_DIR"));
    // Beside the outer profile's directory, so that builds which differ only in their features share one guest.
    let output = own.ancestors().nth(4).unwrap_or(&own).join("guest-image");

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(&root)
        .args(["build", "--locked", "--package", "sandbar-guest", "--bin", "sandbar-guest"])
        .args(["--profile", profile, "--target", &target])
        .arg("--target-dir")
        .arg(&output);
    if env::var_os("CARGO_NET_OFFLINE").is_some_and(|offline| offline == "true") {
        cargo.arg("--offline");
    }
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if is_of_the_outer_build(name) {
            cargo.env_remove(name);
        }
    }
    // Static, since it must run where there is no loader. CARGO_MAKEFLAGS stays: the two share one set of jobs.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo for the guest: {error}"));
    assert!(status.success(), "the guest did not build: {status}");
    // A copy of our own: another build may replace the shared one while this one is being embedded.
    let (built, image) = (output.join(target).join(profile).join("sandbar-guest"), own.join("sandbar-guest"));
    std::fs::copy(&built, &image).unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
    image
}

/// Settings that cargo or a wrapper made for the outer build and that would change or break the guest's. What says where
/// cargo lives and how it reaches its registry stays.
fn is_of_the_outer_build(name: &str) -> bool {
    const STAYING: [&str; 4] = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_", "CARGO_HTTP_"];
    const STAYING_TOO: [&str; 2] = ["CARGO_REGISTRIES_", "CARGO_REGISTRY_"];
    let of_cargo = name.starts_with("CARGO") && !STAYING.iter().chain(&STAYING_TOO).any(|kept| name.starts_with(kept));
    let of_rustc = name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "RUSTDOCFLAGS" || name == "RUSTDOC";
    let of_script = ["TARGET", "HOST", "PROFILE", "OUT_DIR", "OPT_LEVEL", "DEBUG", "NUM_JOBS"].contains(&name);
    of_cargo || of_rustc || of_script || name.starts_with("DEP_") || name == "CLIPPY_ARGS"
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}
