//! For build scripts: builds a static program of this workspace and passes its path to the crate
//! that embeds it, so that one `cargo build` produces a self-contained program.
//!
//! The embedded program runs where no dynamic loader exists, and has its own profile. A nested
//! cargo builds it into a separate target directory, because the outer cargo holds the lock of the
//! shared one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A statically linked program that another program embeds.
pub struct StaticProgram<'a> {
    /// The package, which is also the name of its executable.
    pub package: &'a str,
    /// Its sources and those of its dependencies, relative to the workspace root.
    pub sources: &'a [&'a str],
    /// Environment variable that may name a prebuilt executable, which skips the build.
    pub prebuilt: &'a str,
    /// Environment variable that passes the executable's path to the crate, for `include_bytes!`.
    pub image: &'a str,
}

impl StaticProgram<'_> {
    /// Builds the program, or uses the prebuilt one. Called by a build script.
    ///
    /// # Panics
    /// When the program cannot be built: the outer build fails with that text.
    pub fn build(&self) {
        println!("cargo::rerun-if-env-changed={}", self.prebuilt);
        let image = match env::var_os(self.prebuilt) {
            Some(path) => self.use_prebuilt(&PathBuf::from(path)),
            None => self.compile(),
        };
        println!("cargo::rustc-env={}={}", self.image, image.display());
    }

    fn use_prebuilt(&self, path: &Path) -> PathBuf {
        println!("cargo::rerun-if-changed={}", path.display());
        path.canonicalize().unwrap_or_else(|error| panic!("{} names {}: {error}", self.prebuilt, path.display()))
    }

    fn compile(&self) -> PathBuf {
        // Relative to the crate being built: cargo treats checkouts that share a target directory
        // as one.
        let root = Path::new("../..");
        for source in ["Cargo.toml", "Cargo.lock"].iter().chain(self.sources) {
            println!("cargo::rerun-if-changed={}", root.join(source).display());
        }
        let target = variable("TARGET");
        // Debug builds use the profile that compiles in seconds.
        let profile = if variable("PROFILE") == "release" { "static" } else { "static-dev" };
        let own = PathBuf::from(variable("OUT_DIR"));
        // Next to the outer profile's directory, so that builds that differ only in features share
        // it.
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
            if belongs_to_outer_build(name) {
                cargo.env_remove(name);
            }
        }
        // CARGO_MAKEFLAGS stays: both cargos share one jobserver.
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
        let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo for {}: {error}", self.package));
        assert!(status.success(), "{} did not build: {status}", self.package);
        // Copied, because a concurrent build may replace the shared executable while it is
        // embedded.
        let (built, image) = (output.join(target).join(profile).join(self.package), own.join(self.package));
        std::fs::copy(&built, &image).unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
        image
    }
}

/// Whether `name` is set by cargo or a wrapper for the outer build, and would change or break the
/// nested one. Settings of cargo's home and registry are passed on.
fn belongs_to_outer_build(name: &str) -> bool {
    const PASSED_ON: [&str; 4] = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_", "CARGO_HTTP_"];
    const PASSED_ON_TOO: [&str; 2] = ["CARGO_REGISTRIES_", "CARGO_REGISTRY_"];
    let from_cargo =
        name.starts_with("CARGO") && !PASSED_ON.iter().chain(&PASSED_ON_TOO).any(|kept| name.starts_with(kept));
    let from_rustc = name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "RUSTDOCFLAGS" || name == "RUSTDOC";
    let from_build_script = ["TARGET", "HOST", "PROFILE", "OUT_DIR", "OPT_LEVEL", "DEBUG", "NUM_JOBS"].contains(&name);
    from_cargo || from_rustc || from_build_script || name.starts_with("DEP_") || name == "CLIPPY_ARGS"
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}
