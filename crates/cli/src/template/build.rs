//! `sandbar template build`: builds a template and prints its log.

use super::progress::Progress;
use super::{Session, base};
use crate::show::printable;
use crate::values::Pair;
use anyhow::{Context, bail};
use clap::Args;
use dockerfile::Options;
use sdk::Secret;
use sdk::templates::{self, BuildError, Template};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The ready command of the official SDKs for a Dockerfile with a start command only.
const READY: &str = "sleep 20";

/// Build a template from a Dockerfile, an image, another template, a directory or a new Debian.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar template build                            the Dockerfile of this directory
  sandbar template build -f docker/Dockerfile --name app:v2 --build-arg VERSION=2 .
  sandbar template build --from node:22 --name node --start 'node server.js' --ready 'curl -fs localhost:3000'
  sandbar template build --from ./image.tar --name saved      what `docker save` wrote, or an OCI layout
  sandbar template build --from debootstrap:bookworm --name bookworm
  sandbar template build --json . | jq -r 'select(.templateID) | .templateID'

e2b/base and e2bdev/base, at any tag, are the server's own base and need no download. CMD and ENTRYPOINT become the start command; \
with EXPOSE, sandboxes are ready when that port is listened on.")]
pub(crate) struct Build {
    /// The directory that COPY is relative to; its .dockerignore counts
    #[arg(default_value = ".")]
    context: PathBuf,
    /// The Dockerfile [default: the context's]
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// What to begin with, in the place of the last FROM: an image, a template, a directory, an
    /// archive or debootstrap:SUITE
    #[arg(long, value_name = "BASE")]
    from: Option<String>,
    /// What the template is called, with a tag if it should have one [default: the context's
    /// directory]
    #[arg(long, short)]
    name: Option<String>,
    /// What runs in every sandbox from its start [default: ENTRYPOINT and CMD]
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// The command whose success says that it is up [default: the first EXPOSE is listened on, else
    /// 20 seconds]
    #[arg(long, value_name = "COMMAND")]
    ready: Option<String>,
    /// Do every step again
    #[arg(long)]
    no_cache: bool,
    /// A value for an ARG
    #[arg(long, value_name = "KEY=VALUE")]
    build_arg: Vec<Pair>,
    /// The stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,
    /// Processors of the sandboxes
    #[arg(long, value_name = "COUNT")]
    cpus: Option<u32>,
    /// Memory of the sandboxes, in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// The name that the images' registry knows; its password is read from
    /// $SANDBAR_REGISTRY_PASSWORD
    #[arg(long, value_name = "NAME")]
    registry_user: Option<String>,
}

impl Build {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let dockerfile = self.dockerfile()?;
        let base = match &self.from {
            Some(from) => Some(base::find(&session.client, from).await?),
            None => None,
        };
        let mut template = match (&dockerfile, &base) {
            (Some((path, text)), base) => {
                let read = self.read(path, text)?;
                base.as_ref().map_or(read.clone(), |base| read.on(base.template.clone()))
            }
            (None, Some(base)) => self.with_start(base.template.clone(), &[]),
            (None, None) => {
                bail!("there is no Dockerfile in {}; name one with -f, or a base with --from", self.context.display())
            }
        };
        template = template.context(&self.context);
        if let Some(user) = &self.registry_user {
            let password = std::env::var("SANDBAR_REGISTRY_PASSWORD");
            let password = password.context("--registry-user: SANDBAR_REGISTRY_PASSWORD is not set")?;
            template = template.registry(user, &Secret::from(password));
        }
        let mut build = templates::Build::new(self.name()?, template.clone());
        build = self.cpus.map_or(build.clone(), |count| build.cpu_count(count));
        build = self.memory.map_or(build.clone(), |size| build.memory_mb(size));
        if self.no_cache {
            build = build.skip_cache();
        }
        let mut progress = Progress::new(session.show);
        let built = session.client.templates().build_with(&build, |entry| progress.take(entry)).await;
        progress.finish(built.is_err());
        match built {
            Ok(built) if session.show.json => session.show.event(&built)?,
            Ok(built) => session.show.line(built.aliases.first().unwrap_or(&built.template_id))?,
            Err(error) => return self.report_failure(session, &template, dockerfile.as_ref(), error),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Path and text of the Dockerfile, if there is one.
    fn dockerfile(&self) -> anyhow::Result<Option<(PathBuf, String)>> {
        if !self.context.is_dir() {
            bail!("{} is no directory; the context of a build is one", self.context.display());
        }
        let path = self.file.clone().unwrap_or_else(|| self.context.join("Dockerfile"));
        if self.file.is_none() && !path.is_file() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some((path, text)))
    }

    fn read(&self, path: &Path, text: &str) -> anyhow::Result<Template> {
        let build_args = self.build_arg.iter().map(|Pair { key, value }| (key.clone(), value.clone())).collect();
        let options =
            Options { file: path.display().to_string(), build_args, target: self.target.clone(), ..Options::default() };
        let plan = dockerfile::plan(text, &options)?;
        Ok(self.with_start(Template::from_plan(&plan), &plan.ports))
    }

    /// Sets the start command and the ready command of a template.
    fn with_start(&self, template: Template, ports: &[u16]) -> Template {
        let start = self.start.clone().or_else(|| template.start_command().map(str::to_owned));
        let by_port = ports.first().map(|port| port_check(*port));
        let ready = self.ready.clone().or_else(|| start.is_some().then(|| by_port.unwrap_or_else(|| READY.to_owned())));
        match (start, ready) {
            (Some(start), Some(ready)) => template.start(start, ready),
            (None, Some(ready)) => template.ready(ready),
            (_, None) => template,
        }
    }

    fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let directory =
            self.context.canonicalize().with_context(|| format!("cannot find {}", self.context.display()))?;
        let name = directory.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = name.trim_matches('-').to_owned();
        if name.is_empty() {
            bail!("{} cannot name a template; choose a name with --name", directory.display());
        }
        Ok(name)
    }

    /// Prints where a build failed, with the line of the Dockerfile if the step has one.
    fn report_failure(
        &self,
        session: &Session,
        template: &Template,
        dockerfile: Option<&(PathBuf, String)>,
        error: BuildError,
    ) -> anyhow::Result<ExitCode> {
        let BuildError::Failed { step, message, .. } = &error else { return Err(error.into()) };
        let line = step.as_ref().and_then(|step| template.line_of_step(step.parse().ok()?));
        if session.show.json {
            session.show.event(&json!({ "error": { "message": message, "step": step, "line": line } }))?;
            return Ok(ExitCode::FAILURE);
        }
        match (line, dockerfile) {
            (Some(line), Some((path, text))) => {
                let shown = text.lines().nth(line - 1).unwrap_or_default();
                eprintln!(
                    "sandbar: {}:{line}: {}\n  {line} | {}",
                    path.display(),
                    printable(message),
                    printable(shown)
                );
            }
            _ => eprintln!("sandbar: {error}"),
        }
        Ok(ExitCode::FAILURE)
    }
}

/// A ready command that succeeds when a process listens on the port. It reads the kernel's table of
/// sockets with `grep`, since an image may lack other tools.
fn port_check(port: u16) -> String {
    format!("grep -qsE ':{port:04X} [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6")
}
