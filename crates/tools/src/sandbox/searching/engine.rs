//! The search engine in a sandbox: ripgrep, our helper with its engine, or neither; and how its
//! output is read.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use sdk::label;
use sdk::{Chunk, Command, CommandError};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::parse::nanoseconds;
use crate::port::PortError;
use crate::sandbox::machine::{SHARED, SandboxMachine, command_error, file_error, with_resume};

/// More names or lines than this are a mistake in the pattern.
const MAX_OUTPUT: usize = 64 * 1024 * 1024;
/// Limit for all arguments of one program.
const MAX_ARGUMENTS: usize = 1_000_000;
/// Timeout for queries after a search.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

const RIPGREP: &str = "rg";
/// ripgrep's engine as a static executable.
const HELPER: &[u8] = include_bytes!(env!("SANDBAR_SANDBOX_HELPER_IMAGE"));

/// What searches in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sandbox) enum Engine {
    /// The sandbox's own ripgrep.
    Ripgrep,
    Helper,
    /// Neither: find and grep.
    None,
}

/// The name contains a hash of the content, so that another version is another file.
pub(in crate::sandbox) fn helper_path() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let name = hex::encode(&Sha256::digest(HELPER)[..8]);
        format!("{SHARED}/bin/search-{name}")
    })
}

/// Prints modification times, and which files are binary. Arguments: paths
const INSPECT_SCRIPT: &str =
    r#"stat -L --printf='%.9Y %n\000' -- "$@"; printf '\000\000'; rg -l -0 -a --no-config -e '\x00' -- "$@""#;
/// Prints modification times.
pub(super) const TIMES: &str = r#"stat -L --printf='%.9Y %n\000' -- "$@"; printf '\000\000'"#;

/// The output of a program that ended or timed out.
pub(super) struct Partial {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) code: Option<i32>,
}

impl SandboxMachine {
    /// Runs a program in a directory, and keeps its output even if it times out.
    pub(super) async fn run_bounded(&self, command: Command, limit: Duration) -> Result<Partial, CommandError> {
        let command = label::tag_internal(command).timeout(limit + Duration::from_secs(5));
        let mut running = with_resume!(self, |sandbox| sandbox.commands().start(&command))?;
        let deadline = Instant::now() + limit;
        let mut partial = Partial { stdout: Vec::new(), stderr: Vec::new(), code: None };
        loop {
            match timeout_at(deadline, running.next()).await {
                Ok(Ok(Some(Chunk::Stdout(bytes) | Chunk::Pty(bytes)))) => partial.stdout.extend_from_slice(&bytes),
                Ok(Ok(Some(Chunk::Stderr(bytes)))) => partial.stderr.extend_from_slice(&bytes),
                Ok(Ok(None)) => {
                    partial.code = running.exit().map(|exit| exit.code);
                    return Ok(partial);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    running.process().kill().await?;
                    return Ok(partial);
                }
            }
            if partial.stdout.len() + partial.stderr.len() > MAX_OUTPUT {
                running.process().kill().await?;
                return Ok(partial);
            }
        }
    }

    /// Runs ripgrep, or our helper with the same flags; [`None`] if the sandbox can run neither.
    pub(super) async fn ripgrep(
        &self,
        directory: &str,
        arguments: Vec<String>,
        limit: Duration,
    ) -> Result<Option<Partial>, PortError> {
        let candidates = match self.engine.get() {
            Some(known) => vec![known.clone()],
            None => vec![Engine::Ripgrep, Engine::Helper, Engine::None],
        };
        for engine in candidates {
            let program = match &engine {
                Engine::Ripgrep => RIPGREP.to_owned(),
                Engine::Helper => match self.helper().await? {
                    Some(program) => program,
                    None => continue,
                },
                Engine::None => {
                    let _ = self.engine.set(engine);
                    return Ok(None);
                }
            };
            match self.run_bounded(Command::exec(program, arguments.clone()).cwd(directory), limit).await {
                // Exit codes of a shell or loader for a missing program or one of another
                // architecture.
                Ok(Partial { code: Some(126 | 127), .. }) | Err(CommandError::NotStartable { .. }) => {}
                Ok(partial) => {
                    let _ = self.engine.set(engine);
                    return Ok(Some(partial));
                }
                Err(error) => return Err(command_error(error)),
            }
        }
        Ok(None)
    }

    /// The path of our helper in the sandbox, uploaded if missing; [`None`] if that fails.
    pub(in crate::sandbox) async fn helper(&self) -> Result<Option<String>, PortError> {
        let program = helper_path();
        let there = with_resume!(self, |sandbox| sandbox.files().exists(program));
        if there.map_err(file_error)? {
            return Ok(Some(program.to_owned()));
        }
        // Renamed when complete: concurrent processes may look for it.
        let draft = format!("{program}.{:016x}", rand::random::<u64>());
        let sent = with_resume!(self, |sandbox| sandbox.files().write(&draft, Bytes::from_static(HELPER)));
        match sent.map_err(file_error) {
            Ok(_) => {}
            Err(PortError::Unavailable(cause)) => return Err(PortError::Unavailable(cause)),
            Err(error) => {
                tracing::debug!(%error, "the search helper could not be sent");
                return Ok(None);
            }
        }
        let script = r#"chmod 755 "$1" && mv -f "$1" "$2""#;
        let place = Command::exec("/bin/sh", ["-c", script, "sh", &draft, program]).cwd("/").timeout(QUERY_TIMEOUT);
        Ok(self.run(place).await?.success().then(|| program.to_owned()))
    }

    /// Runs a script over paths, in as many batches as the argument limit requires.
    pub(super) async fn run_over(&self, script: &str, paths: &[String]) -> Result<Vec<Bytes>, PortError> {
        let mut outputs = Vec::new();
        let mut rest = paths;
        while !rest.is_empty() {
            let (mut size, mut count) = (0, 0);
            while count < rest.len() && (count == 0 || size + rest[count].len() < MAX_ARGUMENTS) && count < 20_000 {
                size += rest[count].len() + 1;
                count += 1;
            }
            let arguments = ["-c", script, "sh"].into_iter().map(str::to_owned).chain(rest[..count].iter().cloned());
            let command = Command::exec("/bin/sh", arguments).cwd("/").timeout(QUERY_TIMEOUT);
            outputs.push(self.run(command).await?.stdout);
            rest = &rest[count..];
        }
        Ok(outputs)
    }

    /// The script that inspects files, with the engine of this sandbox.
    pub(super) fn inspect_script(&self) -> String {
        match self.engine.get() {
            Some(Engine::Helper) => INSPECT_SCRIPT.replacen("; rg ", &format!("; {} ", helper_path()), 1),
            _ => INSPECT_SCRIPT.to_owned(),
        }
    }

    /// Modification times, and which files are binary.
    pub(super) async fn inspect_files(
        &self,
        script: &str,
        paths: &[String],
    ) -> Result<(HashMap<String, i128>, HashSet<String>), PortError> {
        let (mut times, mut binaries) = (HashMap::new(), HashSet::new());
        for output in self.run_over(script, paths).await? {
            let text = String::from_utf8_lossy(&output);
            let (first, second) = text.split_once("\0\0\0").or_else(|| text.split_once("\0\0")).unwrap_or((&text, ""));
            for line in first.split('\0') {
                if let Some((time, path)) = line.split_once(' ') {
                    times.insert(path.to_owned(), nanoseconds(time));
                }
            }
            binaries.extend(second.split('\0').filter(|path| !path.is_empty()).map(str::to_owned));
        }
        Ok((times, binaries))
    }
}
