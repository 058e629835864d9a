//! Sends a repository of this machine as a git bundle: one branch with its history and the tags in
//! it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout, Command};

use super::repo::reachable_remote;

/// The timeout of a git query, also in a large repository on a busy machine.
const ANSWER: Duration = Duration::from_secs(60);
const PIECE: usize = 256 * 1024;

/// Why a directory of this machine cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    #[error("{} does not exist on this machine, or is not a directory", path.display())]
    NoDirectory { path: PathBuf },
    #[error("{} is not in a git repository: run `git init` and commit what shall be sent", path.display())]
    NotARepository { path: PathBuf },
    #[error("the repository in {} has no commit yet, so there is nothing to send", path.display())]
    NothingCommitted { path: PathBuf },
    #[error("the repository in {} has no branch {branch:?}; it has {}", path.display(), list(branches))]
    NoBranch { path: PathBuf, branch: String, branches: Vec<String> },
    #[error("git failed in {}: {message}", path.display())]
    Git { path: PathBuf, message: String },
    #[error("git could not be run on this machine")]
    NoGit(#[source] io::Error),
    #[error("git did not answer within {ANSWER:?} in {}", path.display())]
    Silent { path: PathBuf },
}

fn list(branches: &[String]) -> String {
    if branches.is_empty() { "none".into() } else { branches.join(", ") }
}

/// What is sent of a repository.
#[derive(Debug)]
pub(super) struct Bundle {
    path: PathBuf,
    /// [`None`] on a detached HEAD.
    pub(super) branch: Option<String>,
    /// The commits at which the history of a shallow clone ends.
    pub(super) shallow: Option<Bytes>,
    /// The remote of the repository, if the sandbox can reach it too.
    pub(super) origin: Option<String>,
    /// The number of uncommitted files, including new ones.
    pub(super) uncommitted: usize,
}

impl Bundle {
    /// Inspects the repository.
    pub(super) async fn inspect(path: &Path, branch: Option<&str>) -> Result<Self, BundleError> {
        if !path.is_dir() {
            return Err(BundleError::NoDirectory { path: path.to_owned() });
        }
        let top = git(path, &["rev-parse", "--git-dir"]).await?;
        if !top.status.success() {
            return Err(match text(&top.stderr) {
                message if message.contains("not a git repository") => {
                    BundleError::NotARepository { path: path.to_owned() }
                }
                message => BundleError::Git { path: path.to_owned(), message },
            });
        }
        let branch = match branch {
            Some(branch) => {
                if !resolves(path, &format!("refs/heads/{branch}")).await? {
                    let branches = lines(path, &["for-each-ref", "--format=%(refname:short)", "refs/heads"]).await?;
                    return Err(BundleError::NoBranch { path: path.to_owned(), branch: branch.to_owned(), branches });
                }
                Some(branch.to_owned())
            }
            None => {
                if !resolves(path, "HEAD").await? {
                    return Err(BundleError::NothingCommitted { path: path.to_owned() });
                }
                lines(path, &["symbolic-ref", "--quiet", "--short", "HEAD"]).await?.into_iter().next()
            }
        };
        let shallow = lines(path, &["rev-parse", "--git-path", "shallow"]).await?.into_iter().next();
        let shallow = match shallow {
            Some(file) => tokio::fs::read(path.join(file)).await.ok().filter(|commits| !commits.is_empty()),
            None => None,
        };
        let origin = lines(path, &["remote", "get-url", "origin"]).await?.into_iter().next();
        let status = git(path, &["status", "--porcelain", "-z", "--no-renames"]).await?;
        Ok(Self {
            path: path.to_owned(),
            branch,
            shallow: shallow.map(Bytes::from),
            origin: origin.as_deref().and_then(reachable_remote),
            uncommitted: status.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).count(),
        })
    }

    /// The reference that is checked out in the sandbox.
    pub(super) fn reference(&self) -> String {
        self.branch.as_ref().map_or_else(|| "HEAD".to_owned(), |branch| format!("refs/heads/{branch}"))
    }

    /// Streams the bundle from git without a temporary file. Dropping the stream kills git.
    pub(super) async fn stream(
        &self,
    ) -> Result<impl Stream<Item = Result<Bytes, BundleError>> + Send + 'static, BundleError> {
        let reference = self.reference();
        let tags = ["for-each-ref", "--format=%(refname)", "--merged", &reference, "refs/tags"];
        let names = lines(&self.path, &tags).await?.into_iter().chain([reference]);
        let names: String = names.map(|name| name + "\n").collect();
        // Names go through stdin, since there may be more tags than fit on a command line.
        let mut command = command(&self.path, &["bundle", "create", "--quiet", "-", "--stdin"]);
        let mut git = command.stdin(Stdio::piped()).spawn().map_err(BundleError::NoGit)?;
        let (input, output) = (git.stdin.take(), git.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(BundleError::NoGit(io::Error::other("git has no pipes")));
        };
        // Fails only if git exits, whose error is read below.
        let _ = input.write_all(names.as_bytes()).await;
        drop(input);
        let writing = Writing { git, output, path: self.path.clone() };
        Ok(stream::try_unfold(Some(writing), |writing| async move {
            match writing {
                Some(writing) => writing.next().await,
                None => Ok(None),
            }
        }))
    }
}

/// A git process that writes a bundle.
struct Writing {
    git: Child,
    output: ChildStdout,
    path: PathBuf,
}

impl Writing {
    async fn next(mut self) -> Result<Option<(Bytes, Option<Self>)>, BundleError> {
        let mut piece = BytesMut::with_capacity(PIECE);
        let read = self.output.read_buf(&mut piece).await.map_err(BundleError::NoGit)?;
        if read > 0 {
            return Ok(Some((piece.freeze(), Some(self))));
        }
        let ended = self.git.wait_with_output().await.map_err(BundleError::NoGit)?;
        if ended.status.success() {
            return Ok(None);
        }
        Err(BundleError::Git { path: self.path, message: text(&ended.stderr) })
    }
}

fn command(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(path).args(arguments).envs([("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0")]);
    // These variables, set by a hook of another repository, would redirect git to that one.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn git(path: &Path, arguments: &[&str]) -> Result<Output, BundleError> {
    let output = tokio::time::timeout(ANSWER, command(path, arguments).output()).await;
    output.map_err(|_| BundleError::Silent { path: path.to_owned() })?.map_err(BundleError::NoGit)
}

/// Whether a name resolves to a commit.
async fn resolves(path: &Path, name: &str) -> Result<bool, BundleError> {
    Ok(git(path, &["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).await?.status.success())
}

/// The output lines of git; empty when it fails.
async fn lines(path: &Path, arguments: &[&str]) -> Result<Vec<String>, BundleError> {
    let output = git(path, arguments).await?;
    let stdout = if output.status.success() { text(&output.stdout) } else { String::new() };
    Ok(stdout.lines().map(str::to_owned).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
