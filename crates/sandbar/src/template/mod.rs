//! `sandbar template`: what sandboxes are made from, built and looked at from the command line. One file a subcommand.
//!
//! A build speaks E2B's own calls wherever they can carry it, so any E2B service can be the server; see the client's `templates`.

mod base;
mod build;
mod look;
mod progress;

use crate::sandbox::endpoint::Endpoint;
use crate::sandbox::show::Show;
use crate::{logging, runtime};
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
pub(crate) struct Template {
    /// Print JSON for programs, in the protocol's own words
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    endpoint: Endpoint,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Build(Box<build::Build>),
    #[command(visible_alias = "ls")]
    List(look::List),
    Show(look::ShowOne),
    #[command(visible_alias = "rm")]
    Delete(look::Delete),
}

/// What every subcommand works with.
struct Session {
    client: Client,
    show: Show,
}

impl Template {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        let session = Session { client: self.endpoint.client()?, show: Show::new(self.json) };
        runtime::block_on(async {
            match self.command {
                Command::Build(build) => build.run(&session).await,
                Command::List(list) => list.run(&session).await.map(|()| ExitCode::SUCCESS),
                Command::Show(show) => show.run(&session).await.map(|()| ExitCode::SUCCESS),
                Command::Delete(delete) => delete.run(&session).await,
            }
        })
    }
}
