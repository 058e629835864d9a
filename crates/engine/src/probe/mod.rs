//! What sandboxes need of this machine, what was found, and the exact fix for what is missing.
//!
//! Wherever possible a feature is tried, not looked up: a helper process creates the namespaces,
//! joins id-mapped layers, opens a TUN device and installs the system-call filter with the code
//! that a launch uses (see [`launcher::trial`]). Nothing outlives the probe.
//!
//! ```text
//! Facts::gather (reads, tries) ──▶ Facts (plain values) ──▶ checks (pure rules) ──▶ Report
//! ```

mod checks;
mod facts;
mod layers;
mod programs;
mod trial;

use std::fmt;
use std::path::Path;

use serde::Serialize;

use self::facts::Facts;
pub use self::layers::Layer;
use crate::privilege::rootless_limitations;

/// How well sandboxes are isolated from the host and from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    Full,
    /// Sandboxes are safe, but one could use more than its share, of the disk for example.
    Reduced,
    /// Something without which untrusted code must not run is missing.
    None,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Reduced => "reduced",
            Self::None => "none",
        })
    }
}

/// One requirement and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Short and stable, for programs.
    pub name: &'static str,
    pub ok: bool,
    /// No sandbox can run without it.
    pub required: bool,
    pub found: String,
    /// The command or setting that provides what is missing; absent if nothing is.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Sandboxes can run.
    pub ok: bool,
    pub isolation: Isolation,
    pub checks: Vec<Check>,
    pub layers: Vec<Layer>,
    /// How sandboxes differ from those of a root server; empty for a root server.
    pub differences: Vec<&'static str>,
}

/// Examines this machine for a server whose data directory is `data`, which need not exist.
pub fn probe(data: &Path) -> Report {
    report(&Facts::gather(data))
}

fn report(facts: &Facts) -> Report {
    let checks = checks::all(facts);
    let failed = |check: &&Check| !check.ok;
    let isolation = if checks.iter().filter(failed).any(|check| check.required) {
        Isolation::None
    } else if checks.iter().filter(failed).any(|check| checks::WEAKENING.contains(&check.name)) {
        Isolation::Reduced
    } else {
        Isolation::Full
    };
    let differences =
        facts.rootless.map(|privilege| rootless_limitations(privilege, facts.cgroups.is_ok())).unwrap_or_default();
    Report { ok: isolation != Isolation::None, isolation, checks, layers: layers::all(facts), differences }
}
