//! `sandbar doctor`: checks what sandboxes need of this machine and prints a fix for what is
//! missing; then checks the providers, records and objects of workspaces.

mod dependencies;

use self::dependencies::{Dependency, ExposedSearch, ExposedSnapshot, NotSearched};
use crate::config::{Config, Overrides};
use crate::runtime;
use browser::BrowserConfig;
use clap::Args;
use engine::probe::{Isolation, Layer, Report};
use serde::Serialize;
use std::io::stdout;
use std::path::PathBuf;
use std::process::ExitCode;

/// A limit of snapshots and forks that users should know before they depend on them.
const KEPT: &str = "snapshots and forks have a sandbox's files, not its memory: its processes are not in them";

/// Check this machine: what sandboxes need, what was found, and how to get what is missing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar doctor                     a readable list; exit code 0 when sandboxes can run
  sandbar doctor --json | jq .ok     {ok, isolation, checks: [{name, ok, required, found, fix}],
                                      layers: [{name, on, found}], differences, limits,
                                      workspaces: [{what, name, ok, found}],
                                      exposed_snapshots: [{workspace, snapshot, fix}],
                                      snapshots_not_searched: [{store, why}]}

Providers that do not answer within 10 seconds count as absent. They, the records and the objects matter for workspaces \
only: the exit code is about this machine's sandboxes.")]
pub(crate) struct Doctor {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// The data directory whose disk is checked [default: by XDG rules]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(self) -> ExitCode {
        let overrides = Overrides { data: self.data, ..Overrides::default() };
        let config = match Config::load(self.config.as_deref(), &overrides) {
            Ok(config) => config,
            Err(error) => {
                eprintln!("sandbar: {error:#}");
                return ExitCode::FAILURE;
            }
        };
        let mut report = engine::probe::probe(&config.data);
        report.layers.push(try_unpacker());
        report.layers.push(try_browser());
        let checked = runtime::block_on(async {
            Ok(tokio::join!(
                dependencies::check_all(&config, self.config.as_deref()),
                dependencies::find_exposed(&config)
            ))
        });
        let (dependencies, ExposedSearch { found: exposed, not_searched }) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                eprintln!("sandbar: {error:#}");
                return ExitCode::FAILURE;
            }
        };
        if self.json {
            let findings = Findings {
                report: &report,
                limits: [KEPT],
                workspaces: &dependencies,
                exposed_snapshots: &exposed,
                snapshots_not_searched: &not_searched,
            };
            println!("{}", serde_json::to_string_pretty(&findings).expect("a report is plain data"));
        } else {
            let colours = cli::show::colours_on(&stdout());
            print!("{}{}", describe(&report, colours), describe_differences(&report, colours));
            println!("note: {KEPT}\n\nworkspaces:");
            print!("{}{}", describe_dependencies(&dependencies, colours), describe_exposed(&exposed, colours));
            print!("{}", describe_not_searched(&not_searched, colours));
        }
        if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Whether images are unpacked by a process without privileges: starts one that reads an archive.
fn try_unpacker() -> Layer {
    let tried = images::try_unpacker().map_err(anyhow::Error::from);
    let found = match &tried {
        Ok(()) => {
            "images are read and unpacked by a process of its own, with no right but to write that tree".to_owned()
        }
        Err(error) => format!("templates of images cannot be built: {error:#}"),
    };
    Layer { name: "image unpacker", on: tried.is_ok(), found }
}

/// Whether the browser of screenshots runs without access to the host's files: starts one.
fn try_browser() -> Layer {
    // Not below the data directory: the browser's user has to enter it.
    let directory = std::env::temp_dir().join(format!("sandbar-doctor-{}", std::process::id()));
    let tried = browser::check_own_root(&BrowserConfig::new(&directory));
    // A directory that stays is empty; the system cleans its temporary directory.
    let _ = std::fs::remove_dir_all(&directory);
    let found = match &tried {
        Ok(()) => "screenshots: a root with programs, fonts and its profile only, and no other process".to_owned(),
        Err(error) => format!("screenshots: the browser sees the host's files as an unprivileged user does: {error}"),
    };
    Layer { name: "browser root", on: tried.is_ok(), found }
}

#[derive(Serialize)]
struct Findings<'a> {
    #[serde(flatten)]
    report: &'a Report,
    limits: [&'static str; 1],
    workspaces: &'a [Dependency],
    /// Snapshots that have the variables of their workspaces in plain text.
    exposed_snapshots: &'a [ExposedSnapshot],
    /// Stores that may have more of them.
    snapshots_not_searched: &'a [NotSearched],
}

fn colour_text(colours: bool, code: &str, text: &str) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

fn describe_dependencies(dependencies: &[Dependency], colours: bool) -> String {
    let width = dependencies.iter().map(|dependency| dependency.name.len()).max().unwrap_or(0);
    let line = |Dependency { what, name, ok, found }: &Dependency| {
        let mark = if *ok { colour_text(colours, "32", "ok     ") } else { colour_text(colours, "33", "absent ") };
        format!("{mark} {what:8}  {name:width$}  {found}\n")
    };
    dependencies.iter().map(line).collect()
}

/// Lists snapshots of older versions that have secrets in them, with commands that delete them.
fn describe_exposed(exposed: &[ExposedSnapshot], colours: bool) -> String {
    if exposed.is_empty() {
        return String::new();
    }
    let head = colour_text(colours, "33", "snapshots that have the --env variables of their workspaces in plain text:");
    let lines: String = exposed.iter().map(|ExposedSnapshot { fix, .. }| format!("  {fix}\n")).collect();
    format!("\n{head}\n{lines}")
}

/// Lists the stores in which there may be more of them.
fn describe_not_searched(not_searched: &[NotSearched], colours: bool) -> String {
    let head = colour_text(colours, "33", "snapshots that were not searched whole for --env variables:");
    let line = |NotSearched { store, why }: &NotSearched| format!("\n{head}\n  {store}: {why}\n");
    not_searched.iter().map(line).collect()
}

/// Lists the limitations of a rootless server; empty for root.
pub(crate) fn describe_differences(report: &Report, colours: bool) -> String {
    if report.differences.is_empty() {
        return String::new();
    }
    let head = colour_text(colours, "33", "not root; for its sandboxes that means:");
    let lines: String = report.differences.iter().map(|difference| format!("  - {difference}\n")).collect();
    format!("{head}\n{lines}")
}

/// The report for people; `colours` only on a terminal.
pub(crate) fn describe(report: &Report, colours: bool) -> String {
    let paint = |code: &str, text: &str| colour_text(colours, code, text);
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &report.checks {
        let mark = if check.ok { paint("32", "ok     ") } else { paint("31", "missing") };
        text.push_str(&format!("{mark} {:width$}  {}\n", check.name, check.found));
        if let Some(fix) = check.fix.as_deref().filter(|_| !check.ok) {
            text.push_str(&format!("        {:width$}  {} {fix}\n", "", paint("33", "fix:")));
        }
    }
    let verdict = match report.isolation {
        Isolation::Full => paint("32", "isolation: full"),
        Isolation::Reduced => paint("33", "isolation: reduced; what is missing is named above"),
        Isolation::None => paint("31", "isolation: none; sandboxes will not run until the fixes above are made"),
    };
    text.push_str(&verdict);
    text.push('\n');
    text.push_str(&describe_layers(report, colours));
    text
}

fn describe_layers(report: &Report, colours: bool) -> String {
    let width = report.layers.iter().map(|layer| layer.name.len()).max().unwrap_or(0);
    let line = |Layer { name, on, found }: &Layer| {
        let mark = if *on { colour_text(colours, "32", "on     ") } else { colour_text(colours, "33", "off    ") };
        format!("{mark} {name:width$}  {found}\n")
    };
    report.layers.iter().map(line).collect()
}
