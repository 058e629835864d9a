//! The program: parses arguments, runs a subcommand and maps errors to exit codes. One file per
//! subcommand.
#![forbid(unsafe_code)]

mod agent;
mod backup;
mod completions;
mod config;
mod config_file;
mod config_schema;
mod doctor;
mod down;
mod endpoint;
mod env;
mod hosts;
mod limits;
mod local_server;
mod logging;
mod maintenance;
mod mcp;
mod recover;
mod runtime;
mod screenshot_host;
mod screenshots;
mod studio;
mod tool;
mod tools;
mod trust;
mod up;
mod usage;
mod workspace;

use clap::{Parser, Subcommand};
use endpoint::Endpoint;
use std::net::IpAddr;
use std::process::ExitCode;

/// Sandboxes for AI agents on this machine, spoken to with the official E2B SDKs.
///
/// No cloud account, no KVM, no Docker: `sandbar up` starts a server that the unmodified Python and
/// JavaScript `e2b` packages accept.
#[derive(Parser)]
#[command(
    name = "sandbar",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  sandbar doctor            what this machine offers, and how to get what is missing
  sandbar up                serve on http://127.0.0.1:4980; prints the variables for the SDKs to a terminal
  eval \"$(sandbar env)\"     set these variables in any shell
  sandbar sandbox create    a sandbox of that server, or of any E2B service
  sandbar template build .  a template from a Dockerfile
  sandbar workspace create  files that outlive any sandbox, here or with a provider
  sandbar run --goal …      let a model work towards a goal in a workspace
  sandbar mcp               the tools of a coding agent, for any MCP client
  sandbar user add ada      a user of the studio, which `sandbar up` serves with its dashboard
  sandbar usage             what workspaces used and what it costs
  sandbar recover           what no record names any more, and how to get it back
  sandbar trust --install   have this machine trust https://PORT-SANDBOX.localhost:4980
  sandbar config init       a configuration file to begin with
  sandbar down              end the server and every sandbox
  sandbar completions bash  what your shell needs to complete all this

Configuration is read from a file, then SANDBAR_* variables, then flags; see `sandbar up --help`
and `sandbar config show`."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    Env(env::Env),
    Doctor(doctor::Doctor),
    Backup(backup::Backup),
    Restore(backup::Restore),
    Scrub(backup::Scrub),
    #[command(visible_alias = "sbx")]
    Sandbox(Box<cli::sandbox::Sandbox<Endpoint>>),
    Template(Box<cli::template::Template<Endpoint>>),
    Mcp(Box<mcp::Mcp>),
    Tool(Box<tool::Tool>),
    Tools(tools::Tools),
    #[command(visible_alias = "ws")]
    Workspace(Box<workspace::Workspace>),
    Run(Box<agent::Start>),
    Runs(Box<agent::Runs>),
    Recover(Box<recover::Recover>),
    Usage(usage::Usage),
    Studio(Box<studio::Serve>),
    User(studio::Users),
    Trust(trust::Trust),
    Config(config_file::ConfigFile),
    Completions(completions::Completions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Up(up) => up.run().map(|()| ExitCode::SUCCESS),
        Command::Down(down) => down.run().map(|()| ExitCode::SUCCESS),
        Command::Env(env) => env.run().map(|()| ExitCode::SUCCESS),
        Command::Doctor(doctor) => Ok(doctor.run()),
        Command::Backup(backup) => backup.run().map(|()| ExitCode::SUCCESS),
        Command::Restore(restore) => restore.run().map(|()| ExitCode::SUCCESS),
        Command::Scrub(scrub) => scrub.run(),
        Command::Sandbox(sandbox) => run_client(sandbox.run()),
        Command::Template(template) => run_client(template.run()),
        Command::Mcp(mcp) => mcp.run().map(|()| ExitCode::SUCCESS),
        Command::Tool(tool) => tool.run(),
        Command::Tools(tools) => tools.run().map(|()| ExitCode::SUCCESS),
        Command::Workspace(workspace) => workspace.run(),
        Command::Run(run) => run.run(),
        Command::Runs(runs) => runs.run(),
        Command::Studio(studio) => studio.run().map(|()| ExitCode::SUCCESS),
        Command::User(users) => users.run().map(|()| ExitCode::SUCCESS),
        Command::Recover(recover) => recover.run(),
        Command::Usage(usage) => usage.run().map(|()| ExitCode::SUCCESS),
        Command::Trust(trust) => trust.run().map(|()| ExitCode::SUCCESS),
        Command::Config(config) => config.run().map(|()| ExitCode::SUCCESS),
        Command::Completions(completions) => completions.run::<Arguments>().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::from(BROKEN_PIPE);
        }
        if let Some(usage_error) = error.downcast_ref::<clap::Error>() {
            // If stderr cannot be written, there is no other place for the message.
            let _ = usage_error.print();
            return ExitCode::from(USAGE_ERROR);
        }
        eprintln!("sandbar: {error:#}");
        if let Some(host) = missing_local_server(&error) {
            eprintln!(
                "sandbar: no server listens on {host}; `sandbar up` starts one, and E2B_API_URL may name an old one"
            );
        }
        ExitCode::FAILURE
    })
}

/// Runs a command that is a client of an E2B service.
fn run_client(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    logging::start_if_wanted()?;
    runtime::block_on(command)
}

/// The loopback host that a call could not reach. Parsed from the error's text, since every
/// operation of the SDK wraps the cause in an error type of its own.
fn missing_local_server(error: &anyhow::Error) -> Option<String> {
    let text = error.root_cause().to_string();
    let (host, _) = text.split_once(": cannot reach ")?.1.split_once(": ")?;
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    let is_local = name == "localhost" || name.trim_matches(['[', ']']).parse().is_ok_and(is_loopback);
    is_local.then(|| host.to_owned())
}

/// Exit code of clap for wrong arguments.
const USAGE_ERROR: u8 = 2;

/// Exit code of a program that SIGPIPE ended. `sandbar sandbox list | head -1` prints no error.
const BROKEN_PIPE: u8 = 128 + 13;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    error.root_cause().downcast_ref().is_some_and(of_pipe)
}
