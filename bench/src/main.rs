//! Measures a Sandbar server against baselines of the same machine, in the same run.
//!
//! Every figure that has a baseline is taken alternately with it, round by round, so that a busy
//! machine slows both; the targets are ratios of medians. The client is blocking, over one kept
//! connection, so that it costs next to nothing.

mod baseline;
mod http;
mod measure;
mod remote;
mod report;
mod sandbox;
mod server;
mod stats;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Parser;

use crate::measure::{Abuse, Plan, Selection};
use crate::report::Report;
use crate::server::Server;

/// Measures a Sandbar server and compares it with its targets.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  sandbar-bench --server target/release/sandbar --write bench/RESULTS.md\n  \
                        sandbar-bench --server target/release/sandbar --quick --json")]
struct Args {
    /// The sandbar executable to start for this run; it needs root.
    #[arg(long)]
    server: PathBuf,
    /// Where the server keeps its data during the run; on the file system whose speed matters to
    /// you.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Few rounds, and only limits that no working server misses.
    #[arg(long)]
    quick: bool,
    /// Fail when a target is missed.
    #[arg(long)]
    check: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
    /// Keep the figures and the method in this file.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only the measurements whose name contains this.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    only: Selection,
    /// Have `fairness` measure beside one hostile program instead of all.
    #[arg(long, value_name = "NAME", hide = true)]
    abuse: Option<Abuse>,
}

/// Set once this program runs in its own mount namespace.
const OWN_MOUNTS: &str = "SANDBAR_BENCH_OWN_MOUNTS";

fn main() -> ExitCode {
    let args = Args::parse();
    let entered = if std::env::var_os(OWN_MOUNTS).is_some() { Ok(()) } else { enter_own_mounts() };
    match entered.and_then(|()| run(&args)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sandbar-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Starts this program again in a mount namespace in which the baselines see the sandbox's
/// `/etc/profile`, bound over the host's, and other processes do not. Returns only if that fails.
fn enter_own_mounts() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(OWN_MOUNTS, "1")
        .exec();
    Err(error).context("cannot start again in a mount namespace of its own (unshare)")
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan { abuse: args.abuse, ..if args.quick { Plan::quick() } else { Plan::full() } };
    let server = Server::start(&args.server, args.data.as_deref())?;
    let measured = measure::all(&server, &plan, &args.only);
    // The server and its sandboxes end first, also when a measurement failed.
    let closed = server.close();
    let rows = measured?;
    closed?;

    let report = Report::new(rows, &plan, &args.server);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.table());
    }
    if let Some(path) = &args.write {
        std::fs::write(path, report.document()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let missed = if args.check { !report.targets_met() } else { !report.sane() };
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
