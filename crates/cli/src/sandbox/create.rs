//! `sandbar sandbox create`: creates a sandbox and prints its id.

use super::Session;
use crate::show::span;
use crate::values::{self, Pair, Variable};
use clap::Args;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Create a sandbox and print its id.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox create                            from `base`, for five minutes
  sandbar sandbox create --timeout 2h --auto-pause  kept, with its memory, when the time is up
  sandbar sandbox create python --env TOKEN=x --metadata owner=me
  sandbar sandbox create --memory 4096 --cpu 4 --no-internet
  sandbar sandbox create --json                     the service's answer, access token included")]
pub(crate) struct Create {
    /// Template, by id, name or name:tag; a snapshot's id too
    #[arg(default_value = "base")]
    template: String,
    /// How long it lives unless extended: 90, 5m, 1h30m, 2d
    #[arg(long, value_name = "TIME", value_parser = values::wait, default_value = "5m")]
    timeout: Duration,
    /// A pair that `list` can filter by; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<Pair>,
    /// A variable that every command sees; NAME alone takes the value of this program's own; may be
    /// repeated
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// Pause at the end of its time instead of being killed
    #[arg(long)]
    auto_pause: bool,
    /// Wake it when one of its ports is asked for
    #[arg(long)]
    auto_resume: bool,
    /// Keep it off the internet
    #[arg(long)]
    no_internet: bool,
    /// Processors; Sandbar's servers only
    #[arg(long, value_name = "COUNT")]
    cpu: Option<u32>,
    /// Memory in MiB; Sandbar's servers only
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Disk in MiB; Sandbar's servers only
    #[arg(long, value_name = "MIB")]
    disk: Option<u32>,
    /// Mount a volume; may be repeated
    #[arg(long, value_name = "NAME:PATH", value_parser = volume)]
    volume: Vec<(String, String)>,
}

fn volume(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => Ok((name.to_owned(), path.to_owned())),
        _ => Err("it must be NAME:PATH with an absolute path".to_owned()),
    }
}

impl Create {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let asked = self.template.clone();
        let mut create = sdk::Create::template(self.template).timeout(self.timeout);
        for Pair { key, value } in self.metadata {
            create = create.metadata(key, value);
        }
        for variable in self.env {
            let Pair { key, value } = variable.read()?;
            create = create.env(key, value);
        }
        for (name, path) in self.volume {
            create = create.volume(name, path);
        }
        if self.auto_pause {
            create = create.pause_on_timeout();
        }
        if self.auto_resume {
            create = create.resume_on_traffic();
        }
        if self.no_internet {
            create = create.internet(false);
        }
        create = self.cpu.map_or(create.clone(), |count| create.cpu_count(count));
        create = self.memory.map_or(create.clone(), |size| create.memory_mb(size));
        create = self.disk.map_or(create.clone(), |size| create.disk_size_mb(size));
        let made = session.client.create(create).await?;
        if session.show.json {
            return Ok(session.show.object(&made.model())?);
        }
        session.show.line(made.id().as_str())?;
        if stderr().is_terminal() {
            let then = if self.auto_pause { "then it is paused" } else { "then it is killed" };
            eprintln!("from {}, for {}, {then}; try `sandbar sandbox shell {}`", asked, span(self.timeout), made.id());
        }
        Ok(())
    }
}
