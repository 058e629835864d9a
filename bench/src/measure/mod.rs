//! The measurements: each returns rows with a figure, its baseline, its target and whether it is
//! met.

mod clients;
mod commands;
mod density;
mod egress;
mod fairness;
mod pause;
mod rotation;
mod snapshots;
mod studio;
mod templates;
mod tools;
mod transfer;
mod turns;

use std::str::FromStr;

use serde::Serialize;

use crate::server::Server;
pub(crate) use fairness::Abuse;

/// How much is measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) creates: usize,
    pub(crate) runs: usize,
    pub(crate) transfer_rounds: usize,
    pub(crate) transfer_mib: usize,
    pub(crate) pauses: usize,
    pub(crate) sandboxes: usize,
    pub(crate) client_rounds: usize,
    pub(crate) client_commands: usize,
    pub(crate) client_files: usize,
    pub(crate) tool_rounds: usize,
    pub(crate) tree_files: usize,
    pub(crate) snapshot_rounds: usize,
    pub(crate) snapshot_files: usize,
    pub(crate) rotations: usize,
    pub(crate) rotation_files: usize,
    /// Reads per second.
    pub(crate) studio_rate: usize,
    pub(crate) studio_seconds: usize,
    pub(crate) studio_watchers: usize,
    /// The only hostile program beside which `fairness` measures.
    pub(crate) abuse: Option<Abuse>,
}

impl Plan {
    pub(crate) fn full() -> Self {
        Self {
            quick: false,
            creates: 60,
            runs: 200,
            transfer_rounds: 7,
            transfer_mib: 256,
            pauses: 60,
            sandboxes: 200,
            client_rounds: 5,
            client_commands: 200,
            client_files: 1000,
            tool_rounds: 10,
            tree_files: 50_000,
            snapshot_rounds: 3,
            snapshot_files: 10_000,
            rotations: 5,
            rotation_files: 1_000,
            studio_rate: 1_000,
            studio_seconds: 20,
            studio_watchers: 500,
            abuse: None,
        }
    }

    pub(crate) fn quick() -> Self {
        Self {
            quick: true,
            creates: 8,
            runs: 25,
            transfer_rounds: 3,
            transfer_mib: 64,
            pauses: 10,
            sandboxes: 20,
            client_rounds: 1,
            client_commands: 50,
            client_files: 200,
            tool_rounds: 3,
            tree_files: 5_000,
            snapshot_rounds: 1,
            snapshot_files: 400,
            rotations: 1,
            rotation_files: 100,
            studio_rate: 200,
            studio_seconds: 3,
            studio_watchers: 100,
            abuse: None,
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) figure: String,
    pub(crate) baseline: String,
    /// The value that is compared with the target: a ratio, milliseconds, MiB.
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) target: Option<Target>,
    /// How the figure was measured, for a reader who repeats it.
    pub(crate) method: String,
}

/// The limit of a value, and a bound that every working server meets even on a busy machine.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) enum Target {
    AtMost { limit: f64, sane: f64 },
    AtLeast { limit: f64, sane: f64 },
}

impl Row {
    pub(crate) fn met(&self) -> bool {
        match self.target {
            Some(Target::AtMost { limit, .. }) => self.value <= limit,
            Some(Target::AtLeast { limit, .. }) => self.value >= limit,
            None => true,
        }
    }

    pub(crate) fn sane(&self) -> bool {
        match self.target {
            Some(Target::AtMost { sane, .. }) => self.value <= sane,
            Some(Target::AtLeast { sane, .. }) => self.value >= sane,
            None => true,
        }
    }
}

type Step = fn(&Server, &Plan) -> anyhow::Result<Vec<Row>>;

/// All measurements, in an order that keeps the memory figure last.
const STEPS: &[(&str, Step)] = &[
    ("create", commands::create),
    ("run", commands::warm),
    ("transfer", transfer::transfer),
    ("egress", egress::egress),
    ("pause", pause::pause),
    ("fairness", fairness::fairness),
    ("clients", clients::clients),
    ("tools", tools::tools),
    ("snapshots", snapshots::snapshots),
    ("templates", templates::templates),
    ("rotation", rotation::rotation),
    ("loop", turns::turns),
    ("studio", studio::studio),
    ("density", density::density),
];

/// The measurements to take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection(String);

/// Selects the measurements whose name contains the text. A text that no name contains would
/// measure nothing and look like success.
impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        if names.iter().any(|name| name.contains(text)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("no measurement is called so; there are {}", names.join(", ")))
        }
    }
}

pub(crate) fn all(server: &Server, plan: &Plan, only: &Selection) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, step) in STEPS.iter().filter(|(name, _)| name.contains(&only.0)) {
        // Dirty pages of the measurement before would slow this one down.
        rustix::fs::sync();
        eprintln!("measuring: {name}");
        rows.extend(step(server, plan)?);
    }
    Ok(rows)
}
