//! Copies from this machine to a sandbox.

use super::drafts::Drafts;
use super::path::{absolute, join, local_name, means_content};
use super::progress::Progress;
use super::{Copied, MAX_CONCURRENT};
use anyhow::{Context as _, anyhow, bail};
use futures::{StreamExt, TryStreamExt, stream};
use sdk::{CallError, Command, Entry, FileError, Files, Sandbox};
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::io::ReaderStream;

/// Size of one read and one sent chunk.
const PIECE: usize = 256 * 1024;
/// For each call that removes a draft after a failure.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Up<'a> {
    sandbox: &'a Sandbox,
    user: Option<&'a str>,
    progress: &'a Progress,
    drafts: Drafts,
}

/// What is to be copied, listed before the first byte is sent.
#[derive(Default)]
struct Plan {
    files: Vec<Source>,
    /// Empty directories, which no file's upload would create.
    empty: Vec<String>,
    links: Vec<(String, String)>,
    skipped: Vec<String>,
}

struct Source {
    path: PathBuf,
    /// Relative to the target; empty for the target itself.
    name: String,
    size: u64,
    executable: bool,
}

impl<'a> Up<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, user: Option<&'a str>, progress: &'a Progress) -> Self {
        Self { sandbox, user, progress, drafts: Drafts::default() }
    }

    pub(super) async fn copy(&self, from: &Path, to: &str) -> anyhow::Result<Copied> {
        let found = std::fs::metadata(from).with_context(|| format!("cannot copy {}", from.display()))?;
        let plan = {
            let (from, found) = (from.to_owned(), found.clone());
            tokio::task::spawn_blocking(move || Plan::for_path(&from, &found)).await.context("the search failed")??
        };
        let target = self.target(from, found.is_dir(), to).await?;
        let bytes = plan.files.iter().map(|file| file.size).sum();
        self.progress.begin(plan.files.len() as u64, bytes);
        let whole = |name: &str| if name.is_empty() { target.clone() } else { join(&target, name) };

        let empty = plan.empty.iter().map(|name| self.directory(whole(name)));
        stream::iter(empty).buffer_unordered(MAX_CONCURRENT).try_collect::<()>().await?;
        let files = plan.files.iter().map(|file| self.file(file, whole(&file.name)));
        stream::iter(files).buffer_unordered(MAX_CONCURRENT).try_collect::<()>().await?;
        let links = plan.links.iter().map(|(name, leads_to)| self.link(whole(name), leads_to));
        stream::iter(links).buffer_unordered(MAX_CONCURRENT).try_collect::<()>().await?;
        Ok(Copied {
            to: format!("{}:{target}", self.sandbox.id()),
            files: self.progress.files(),
            bytes: self.progress.bytes(),
            links: plan.links.len() as u64,
            skipped: plan.skipped,
        })
    }

    /// Removes the drafts of a failed or interrupted copy.
    pub(super) async fn remove_drafts(&self) {
        let sandbox = self.sandbox.within(CLEANUP_TIMEOUT);
        self.drafts.remove_all(&sandbox.files()).await;
    }

    fn files(&self) -> Files<'a> {
        let files = self.sandbox.files();
        match self.user {
            Some(user) => files.as_user(user),
            None => files,
        }
    }

    /// The final path: inside of an existing directory, or `to` itself.
    async fn target(&self, from: &Path, is_directory: bool, to: &str) -> anyhow::Result<String> {
        let files = self.files();
        let target = absolute(&files, to).await?;
        let there = match files.stat(&target).await {
            Ok(entry) => Some(entry),
            Err(FileError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let into = there.as_ref().map_or(to.ends_with('/'), Entry::is_directory);
        match there {
            _ if is_directory && means_content(from) => Ok(target),
            _ if into => {
                let name = local_name(from).with_context(|| format!("{} has no name to copy it to", from.display()))?;
                Ok(join(&target, name))
            }
            Some(_) if is_directory => bail!("{target:?} is a file; a directory cannot replace it"),
            // As cp does: a link stays, and the file that it leads to is replaced.
            Some(Entry { symlink_target: Some(leads_to), .. }) => Ok(leads_to),
            _ => Ok(target),
        }
    }

    async fn directory(&self, path: String) -> anyhow::Result<()> {
        self.files().make_dir(&path).await?;
        Ok(())
    }

    async fn file(&self, source: &Source, path: String) -> anyhow::Result<()> {
        let file = tokio::fs::File::open(&source.path).await;
        let file = file.with_context(|| format!("cannot read {}", source.path.display()))?;
        let progress = self.progress.clone();
        let content = ReaderStream::with_capacity(file, PIECE).inspect_ok(move |piece| progress.moved(piece.len()));
        let draft = self.drafts.begin(&path);
        let files = self.files();
        let sent = files.write_stream(&draft, content).await.inspect_err(|error| {
            if is_final(error) {
                self.drafts.refused(&draft);
            }
        });
        // The error shows the final path; the user does not know the draft's name.
        sent.map_err(|error| anyhow!(format!("{:#}", anyhow::Error::new(error)).replace(&draft, &path)))?;
        if source.executable {
            self.run(Command::exec("chmod", ["755", &draft]), &path).await?;
        }
        files.rename(&draft, &path).await.with_context(|| format!("cannot put {path:?} in its place"))?;
        self.drafts.done(&draft);
        self.progress.file_done();
        Ok(())
    }

    async fn link(&self, path: String, leads_to: &str) -> anyhow::Result<()> {
        let (directory, _) = super::path::split(&path);
        if !directory.is_empty() {
            self.files().make_dir(directory).await?;
        }
        self.run(Command::exec("ln", ["-sfT", "--", leads_to, &path]), &path).await
    }

    /// Runs a command in the sandbox, for operations that the protocol has no call for.
    async fn run(&self, command: Command, path: &str) -> anyhow::Result<()> {
        let command = match self.user {
            Some(user) => command.user(user),
            None => command,
        };
        let output = self.sandbox.commands().run(command).await?;
        if !output.success() {
            bail!("cannot finish {path:?}: {}", crate::show::printable(output.stderr_text().trim()));
        }
        Ok(())
    }
}

/// Whether an error is the sandbox's own answer, after which it creates no file.
fn is_final(error: &FileError) -> bool {
    match error {
        FileError::NotFound { .. } | FileError::Invalid { .. } | FileError::NoSpace { .. } => true,
        // A status above 500 comes from a proxy before the sandbox.
        FileError::Call(CallError::Service { status, .. }) => *status == 500,
        _ => false,
    }
}

impl Plan {
    fn for_path(from: &Path, found: &Metadata) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        if found.is_dir() {
            plan.add_directory(from, "")?;
        } else if found.is_file() {
            plan.add_file(from, found, String::new());
        } else {
            bail!("{} is neither a file nor a directory", from.display());
        }
        Ok(plan)
    }

    fn add_file(&mut self, path: &Path, found: &Metadata, name: String) {
        let executable = found.permissions().mode() & 0o100 != 0;
        self.files.push(Source { path: path.to_owned(), name, size: found.len(), executable });
    }

    fn add_directory(&mut self, directory: &Path, name: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot read {}", directory.display());
        let mut entries: Vec<_> =
            std::fs::read_dir(directory).with_context(cannot)?.collect::<Result<_, _>>().with_context(cannot)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        if entries.is_empty() {
            self.empty.push(name.to_owned());
        }
        for entry in entries {
            let path = entry.path();
            let own = entry.file_name();
            let Some(own) = own.to_str() else {
                bail!("the name of {} is not UTF-8, which sandboxes cannot take", path.display());
            };
            let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
            let found = entry.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
            if found.is_dir() {
                self.add_directory(&path, &name)?;
            } else if found.is_file() {
                self.add_file(&path, &found, name);
            } else if found.is_symlink() {
                let leads_to = std::fs::read_link(&path).with_context(|| format!("cannot read {}", path.display()))?;
                match leads_to.to_str() {
                    Some(leads_to) => self.links.push((name, leads_to.to_owned())),
                    None => self.skipped.push(format!("{}: it leads to a name that is not UTF-8", path.display())),
                }
            } else {
                self.skipped.push(format!("{}: neither a file, a directory nor a link", path.display()));
            }
        }
        Ok(())
    }
}
