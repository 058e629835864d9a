//! `sandbar workspace ls`, `read`, `write`, `cp` and `url`: file commands in the current sandbox of
//! a workspace.

use super::Session;
use anyhow::{Context as _, bail};
use clap::Args;
use cli::sandbox::cp::{self, Direction};
use cli::sandbox::files;
use cli::show::printable_lines;
use serde_json::json;
use std::io::{Read as _, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use workspace::setup::PROJECT_DIRECTORY;
use workspace::{SandboxGuard, WorkspaceName};

/// Opens the workspace, resumes its sandbox and prints its notices.
async fn enter(session: &Session, name: &WorkspaceName) -> anyhow::Result<SandboxGuard> {
    let guard = session.app.enter(name).await?.enter().await?;
    session.app.progress().hide();
    for notice in guard.notices() {
        eprintln!("sandbar: {}", printable_lines(&notice));
    }
    Ok(guard)
}

/// Resolves a path relative to the project directory, where commands start.
fn resolve(path: &str) -> String {
    match path {
        "" | "." => PROJECT_DIRECTORY.to_owned(),
        path if path.starts_with(['/', '~']) => path.to_owned(),
        path => format!("{PROJECT_DIRECTORY}/{path}"),
    }
}

/// List a directory of a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace ls shop                 the project
  sandbar workspace ls shop src --depth 3
  sandbar workspace ls shop --json | jq -r '.[].path'")]
pub(super) struct Ls {
    /// The workspace
    name: WorkspaceName,
    /// The directory; relative ones begin in the project
    #[arg(default_value = ".", hide_default_value = true)]
    path: String,
    /// How many levels
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
}

impl Ls {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let guard = enter(session, &self.name).await?;
        files::list(&guard.sandbox().files(), &resolve(&self.path), self.depth, session.show).await
    }
}

/// Print files of a workspace, as they are.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace read shop README.md
  sandbar workspace read shop notes.txt --json  [{path, content}]; for text only")]
pub(super) struct Read {
    /// The workspace
    name: WorkspaceName,
    /// The files; relative ones begin in the project
    #[arg(required = true)]
    paths: Vec<String>,
}

impl Read {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let guard = enter(session, &self.name).await?;
        let paths: Vec<String> = self.paths.iter().map(|path| resolve(path)).collect();
        files::print(&guard.sandbox().files(), &paths, session.show).await
    }
}

/// Write a file of a workspace, from standard input.
#[derive(Args)]
#[command(after_help = "\
Examples:
  echo hello | sandbar workspace write shop notes.txt
  sandbar workspace write shop data/in.csv < in.csv

Directories are made where they are missing. The file is replaced as a whole.")]
pub(super) struct Write {
    /// The workspace
    name: WorkspaceName,
    /// The file; a relative path begins in the project
    path: String,
}

impl Write {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut content = Vec::new();
        stdin().read_to_end(&mut content).context("cannot read what is to be written")?;
        let bytes = content.len();
        let guard = enter(session, &self.name).await?;
        let path = resolve(&self.path);
        guard.sandbox().files().write(&path, content).await?;
        if session.show.json {
            session.show.object(&json!({ "workspace": self.name, "path": path, "bytes": bytes }))?;
        }
        Ok(())
    }
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    Workspace { name: WorkspaceName, path: String },
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            _ if text.is_empty() => Err("a path must not be empty".to_owned()),
            // As with scp: a slash before the colon makes it a path of this machine.
            Some((name, path)) if !name.contains('/') => {
                let name = name.parse().map_err(|error| format!("{error}; for a file with a colon write ./{text}"))?;
                Ok(Self::Workspace { name, path: resolve(path) })
            }
            _ => Ok(Self::Here(PathBuf::from(text))),
        }
    }
}

/// Copy files and directories to a workspace, or from one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace cp data.csv shop:          into the project
  sandbar workspace cp ./assets/. shop:public  what is in it
  sandbar workspace cp shop:dist ./dist

As `sandbar sandbox cp`, but relative paths inside begin in the project.")]
pub(super) struct Cp {
    /// PATH, or NAME:PATH
    from: Side,
    /// NAME:PATH, or PATH
    to: Side,
}

impl Cp {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let (name, direction) = match (&self.from, &self.to) {
            (Side::Here(from), Side::Workspace { name, path }) => (name, Direction::Up { from, to: path }),
            (Side::Workspace { name, path }, Side::Here(to)) => (name, Direction::Down { from: path, to }),
            (Side::Here(_), Side::Here(_)) => {
                bail!("neither side is in a workspace; write NAME:PATH for the one that is")
            }
            _ => bail!("both sides are in a workspace; copy to this machine first, then from it"),
        };
        let guard = enter(session, name).await?;
        cp::copy(guard.sandbox(), direction, None, session.show).await
    }
}

/// Print the URL of a port of a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace url shop 3000   the service that listens on port 3000
  sandbar workspace url shop        the dev server's

It is the URL of the sandbox that the workspace is in now: another sandbox has another one.")]
pub(super) struct Url {
    /// The workspace
    name: WorkspaceName,
    /// The port [default: the dev server's]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

impl Url {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let view = session.app.inspect(&self.name).await?;
        let Some(port) = self.port.or(view.dev_server.map(|server| server.port)) else {
            bail!("workspace {} declares no dev server; name the port", self.name);
        };
        let guard = enter(session, &self.name).await?;
        let url = guard.sandbox().url(port);
        match session.show.json {
            true => session.show.object(&json!({ "workspace": self.name, "port": port, "url": url }))?,
            false => session.show.line(url)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_it_a_path_in_a_workspace() {
        let inside = |path: &str| Side::Workspace { name: "shop".parse().expect("a name"), path: path.to_owned() };
        assert_eq!("shop:src/a:b".parse(), Ok(inside("/home/user/project/src/a:b")));
        assert_eq!(("shop:".parse(), "shop:/etc".parse()), (Ok(inside(PROJECT_DIRECTORY)), Ok(inside("/etc"))));
        assert_eq!("./a:b".parse(), Ok(Side::Here("./a:b".into())));
        assert!("".parse::<Side>().is_err() && "a b:c".parse::<Side>().is_err());
    }
}
