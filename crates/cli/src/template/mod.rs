//! `sandbar template`: builds, lists and deletes templates from the command line.
//!
//! A build uses E2B's calls wherever possible, so that any E2B service can be the server; see
//! `templates` of the client.

mod base;
mod build;
mod manage;
mod progress;

use crate::Connect;
use crate::show::Show;
use clap::{Args, Subcommand};
use sdk::Client;
use std::process::ExitCode;

/// Build, list and delete templates, here or on any E2B service.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar template build --name app .     the Dockerfile of this directory
  sandbar template build --from python:3.12 --name python
  sandbar template list
  sandbar sandbox create app
  sandbar template delete app")]
pub struct Template<E: Args> {
    /// Print JSON for programs, in the protocol's own words
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    endpoint: E,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Build(Box<build::Build>),
    #[command(visible_alias = "ls")]
    List(manage::List),
    Show(manage::ShowOne),
    #[command(visible_alias = "rm")]
    Delete(manage::Delete),
}

/// What every subcommand uses.
struct Session {
    client: Client,
    show: Show,
}

impl<E: Args + Connect> Template<E> {
    /// Runs the command.
    /// # Errors
    /// When the service cannot be chosen or refuses the call, or a build fails.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let session = Session { client: self.endpoint.connect()?, show: Show::new(self.json) };
        match self.command {
            Command::Build(build) => build.run(&session).await,
            Command::List(list) => list.run(&session).await.map(|()| ExitCode::SUCCESS),
            Command::Show(show) => show.run(&session).await.map(|()| ExitCode::SUCCESS),
            Command::Delete(delete) => delete.run(&session).await,
        }
    }
}
