//! `sandbar workspace create`: creates and prepares a workspace.

use super::Session;
use super::app;
use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use cli::show::printable;
use cli::values::{self, Variable};
use sdk::Credentials;
use serde_json::json;
use std::io::{IsTerminal as _, stderr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;
use workspace::devserver::DevServer;
use workspace::provider::{Resources, SkippedProvider};
use workspace::setup::{Prepare, PreparedFile, Repo, Setup};
use workspace::{CreatedWorkspace, ProviderName, SetupError, WorkspaceName};

/// GitHub and most other hosts accept any user name with a token; this one is GitHub's.
const TOKEN_USER: &str = "x-access-token";

/// Create a workspace: a sandbox at the first provider that can, a repository in it, and what you
/// want prepared.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace create shop --repo ~/shop         what is committed there, with its history
  sandbar workspace create shop --repo https://github.com/acme/shop --branch next --prepare 'npm ci'
  sandbar workspace create shop --env API_TOKEN=…     masked in every tool result, event and log
  sandbar workspace create shop --env API_TOKEN       the same, with the value that this shell has
  sandbar workspace create shop --repo . --dev 'npm run dev' --port 5173 --install 'npm ci'
  sandbar workspace create shop --json                {workspace, project_id, sandboxID, provider, skipped, limits,
                                                       restored, notes, dev_server_error}

A workspace that was destroyed before comes back with the files of its newest snapshot and with its dev server, unless \
--dev declares another; repository and preparation are then left out. Everything else is as this command says: variables, \
for one, have to be given again. When a step fails, the same command goes on from it.

Values of --env are secrets: they are masked wherever they appear, also encoded or in parts. What can stand in any \
text is not one, and is masked only right after its name, as in PORT=***: fewer than four bytes, a number of up to five \
digits, and words like true, production or localhost.

A dev server that is not declared is found by the project's files, if it is one of the usual ones.")]
pub(super) struct Create {
    /// What it is called
    name: WorkspaceName,
    /// A URL, or a directory of this machine, of a git repository
    #[arg(long, value_name = "URL|DIR")]
    repo: Option<Repo>,
    /// What is checked out [default: what the repository has checked out]
    #[arg(long, value_name = "BRANCH", requires = "repo")]
    branch: Option<String>,
    /// The variable of this program's environment that has a token for the repository
    #[arg(long, value_name = "NAME", requires = "repo")]
    git_token_env: Option<String>,
    /// A variable that everything inside sees, and that is masked in what the tools show; NAME
    /// alone takes the value of this program's own; may be repeated
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// A file of this machine to be put inside; relative paths begin in the project; may be
    /// repeated
    #[arg(long, value_name = "FILE:PATH", value_parser = file)]
    file: Vec<(PathBuf, String)>,
    /// A line for the login shell to be run in the project before any work there; may be repeated
    #[arg(long, value_name = "LINE")]
    prepare: Vec<String>,
    /// What its sandboxes are made from [default: the provider's]
    #[arg(long, value_name = "TEMPLATE")]
    template: Option<String>,
    /// This provider and no other [default: the first that can]
    #[arg(long, value_name = "NAME")]
    provider: Option<ProviderName>,
    /// Processors
    #[arg(long, value_name = "COUNT")]
    cpu: Option<u32>,
    /// Memory in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Disk in MiB
    #[arg(long, value_name = "MIB")]
    disk: Option<u32>,
    /// How long the workspace lives, through any number of sandboxes: 12h, 30d [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = values::wait)]
    ttl: Option<Duration>,
    /// On whose account it is, besides the project's
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    #[command(flatten)]
    dev: Dev,
}

/// Flags of the dev server, which is started again in every new sandbox.
#[derive(Args)]
#[command(next_help_heading = "Dev server")]
struct Dev {
    /// What starts it: a line for the login shell, run in the project; it sees its port as PORT
    #[arg(long, value_name = "LINE")]
    dev: Option<String>,
    /// Where it listens
    #[arg(long, value_name = "PORT", default_value_t = 3000, value_parser = clap::value_parser!(u16).range(1..), requires = "dev")]
    port: u16,
    /// Asked for until it answers
    #[arg(long, value_name = "PATH", default_value = "/", requires = "dev")]
    ready_path: String,
    /// Makes the generated folders that snapshots leave out, after a restore
    #[arg(long, value_name = "LINE", requires = "dev")]
    install: Option<String>,
}

impl Dev {
    fn server(self) -> Option<DevServer> {
        let Self { dev, port, ready_path, install } = self;
        dev.map(|command| DevServer { command, port, ready_path, install_command: install })
    }
}

fn file(text: &str) -> Result<(PathBuf, String), String> {
    match text.rsplit_once(':') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok((from.into(), to.to_owned())),
        _ => Err("it must be FILE:PATH".to_owned()),
    }
}

impl Create {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let Self {
            name, repo, branch, git_token_env, env, file, prepare, template, provider, cpu, memory, disk, ..
        } = self;
        let leaves_out = repo.is_some() || !file.is_empty() || !prepare.is_empty();
        let setup = Setup {
            repo: repo.map(|repo| complete(repo, branch, git_token_env.as_deref())).transpose()?,
            prepare: Prepare { files: read(file)?, commands: prepare },
            env: values::secrets(&env)?,
            template,
            resources: Resources { cpu_count: cpu, memory_mb: memory, disk_mb: disk },
            provider,
            dev_server: self.dev.server(),
            ttl: self.ttl,
            job: self.job,
            from: None,
        };
        session.app.progress().show_step(format!("setting up workspace {name}"));
        let created = session.app.workspaces().create(&name, setup).await.map_err(|error| explain(error, &name))?;
        let CreatedWorkspace { workspace, project, provider, sandbox, skipped, limits, restored } = created;
        let dev_server_error = session.app.timeline().dev_server_error();
        let mut notes = workspace.enter().await.map(|guard| guard.notices()).unwrap_or_default();
        notes.retain(|note| !dev_server_error.as_ref().is_some_and(|error| note.contains(error)));
        if restored.is_some() && leaves_out {
            notes.push("Repository, files and preparation were left out.".to_owned());
        }
        session.app.take(workspace).await;
        session.app.progress().done();
        let show = session.show;
        if show.json {
            return Ok(show.object(&json!({
                "workspace": name,
                "project_id": project,
                "sandboxID": sandbox.map(|id| id.to_string()),
                "provider": provider,
                "skipped": skipped,
                "limits": limits,
                "restored": restored.as_ref().map(|restored| restored.stamp),
                "notes": notes,
                "dev_server_error": dev_server_error,
            }))?);
        }
        for SkippedProvider { provider, reason } in &skipped {
            eprintln!("sandbar: provider {provider} was passed over: {}", printable(reason));
        }
        for note in &notes {
            eprintln!("sandbar: {}", printable(note));
        }
        show.line(name.as_str())?;
        if stderr().is_terminal() {
            eprintln!("at {provider}; try `sandbar workspace exec {name} -- ls`");
        }
        Ok(())
    }
}

fn complete(repo: Repo, branch: Option<String>, token: Option<&str>) -> anyhow::Result<Repo> {
    let repo = match branch {
        Some(branch) => repo.branch(branch),
        None => repo,
    };
    let Some(variable) = token else { return Ok(repo) };
    match crate::config::variable(variable) {
        Some(token) => Ok(repo.credentials(Credentials::new(TOKEN_USER, token))),
        None => bail!("the variable {variable}, which should have a token for the repository, is not set"),
    }
}

fn read(files: Vec<(PathBuf, String)>) -> anyhow::Result<Vec<PreparedFile>> {
    let one = |(from, path): (PathBuf, String)| {
        let unread = || format!("cannot read {}", from.display());
        let content = std::fs::read(&from).with_context(unread)?;
        let mode = std::fs::metadata(&from).with_context(unread)?.permissions().mode() & 0o777;
        Ok(PreparedFile { path, content: Bytes::from(content), mode: Some(mode) })
    };
    files.into_iter().map(one).collect()
}

/// Adds what to do to an error.
fn explain(error: SetupError, name: &WorkspaceName) -> anyhow::Error {
    match error {
        SetupError::Exists(name) => {
            anyhow!("there is a workspace {name} already; `sandbar workspace show {name}` tells about it")
        }
        SetupError::Open(error) => app::explain(error),
        error @ (SetupError::Step(_) | SetupError::Failed { .. }) => anyhow::Error::new(error)
            .context(format!("workspace {name} is not set up; the same command goes on from there")),
        other => other.into(),
    }
}
