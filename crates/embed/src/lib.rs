//! For build scripts: builds a static program of this workspace and hands its path to the crate that embeds it, so that one
//! `cargo build` gives a whole program.
//!
//! Such a program runs where there is no loader, with a profile of its own. A nested cargo builds it into a target directory
//! of its own, since the outer cargo holds the lock of the shared one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program to be carried inside another.
pub struct Static<'a> {
    /// The package, which is also the name of its executable.
    pub package: &'a str,
    /// Its sources and those of what it depends on, from the workspace's root.
    pub sources: &'a [&'a str],
    /// The variable that may name an executable built before, which skips all this.
    pub prebuilt: &'a str,
    /// The variable that tells the crate where the executable is, for `include_bytes!`.
    pub image: &'a str,
}

impl Static<'_> {
    /// To be called in a build script.
    ///
    /// # Panics
    /// When the program cannot be built: the outer build fails with that text.
    pub fn build(&self) {
        println!("cargo::rerun-if-env-changed={}", self.prebuilt);
        let image = match env::var_os(self.prebuilt) {
            Some(path) => self.take(&PathBuf::from(path)),
            None => self.make(),
        };
        println!("cargo::rustc-env={}={}", self.image, image.display());
    }

    fn take(&self, path: &Path) -> PathBuf {
        println!("cargo::rerun-if-changed={}", path.display());
        path.canonicalize().unwrap_or_else(|error| panic!("{} names {}: {error}", self.prebuilt, path.display()))
    }

    fn make(&self) -> PathBuf {
        // Of the crate that is being built, and said relative to it: checkouts that share a target directory are one to cargo.
        let root = Path::new("../..");
        for source in ["Cargo.toml", "Cargo.lock"].iter().chain(self.sources) {
            println!("cargo::rerun-if-changed={}", root.join(source).display());
        }
        let target = variable("TARGET");
        // Debug builds take the profile that builds in seconds.
        let profile = if variable("PROFILE") == "release" { "static" } else { "static-dev" };
        let own = PathBuf::from(variable("OUT_DIR"));
        // Beside the outer profile's directory, so that builds which differ only in their features share one.
        let output = own.ancestors().nth(4).unwrap_or(&own).join("static");

        let mut cargo = Command::new(variable("CARGO"));
        cargo
            .current_dir(root)
            .args(["build", "--locked", "--package", self.package, "--bin", self.package])
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
        // CARGO_MAKEFLAGS stays: the two share one set of jobs.
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
        let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo for {}: {error}", self.package));
        assert!(status.success(), "{} did not build: {status}", self.package);
        // A copy of our own: another build may replace the shared one while this one is being embedded.
        let (built, image) = (output.join(target).join(profile).join(self.package), own.join(self.package));
        std::fs::copy(&built, &image).unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
        image
    }
}

/// Settings that cargo or a wrapper made for the outer build and that would change or break the inner one's. What says where
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
