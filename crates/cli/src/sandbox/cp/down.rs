//! Copies from a sandbox to this machine.
//!
//! The sandbox's listing is not trusted. Nothing outside of the target is written: names are
//! checked, directories are never entered through a link, and links are created last.

use super::path::{absolute, below, from_to, split};
use super::progress::Progress;
use super::{Copied, MAX_CONCURRENT};
use anyhow::{Context as _, bail};
use futures::{StreamExt, TryStreamExt, stream};
use sdk::{Entry, EntryKind, Files, Sandbox};
use std::collections::HashSet;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;

/// Directory levels that one call lists.
const LEVELS: u32 = 32;

pub(super) struct Down<'a> {
    sandbox: &'a Sandbox,
    user: Option<&'a str>,
    progress: &'a Progress,
}

/// What is to be copied, listed before the first byte is read.
#[derive(Default)]
struct Plan {
    directories: Vec<String>,
    files: Vec<Source>,
    links: Vec<(String, String)>,
    skipped: Vec<String>,
}

struct Source {
    path: String,
    /// Relative to the target; empty for the target itself.
    name: String,
    size: u64,
    executable: bool,
}

impl Source {
    fn new(entry: &Entry, name: &str) -> Self {
        let executable = entry.mode & 0o100 != 0;
        Self { path: entry.path.clone(), name: name.to_owned(), size: entry.size, executable }
    }
}

impl<'a> Down<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, user: Option<&'a str>, progress: &'a Progress) -> Self {
        Self { sandbox, user, progress }
    }

    pub(super) async fn copy(&self, from: &str, to: &Path) -> anyhow::Result<Copied> {
        let files = self.files();
        let mut root = files.stat(&absolute(&files, from).await?).await?;
        if let Some(leads_to) = root.symlink_target.clone() {
            let mut behind = files.stat(&leads_to).await?;
            behind.name = root.name;
            root = behind;
        }
        let target = target(&root, from, to)?;
        let plan = match root.kind {
            EntryKind::File => Plan { files: vec![Source::new(&root, "")], ..Plan::default() },
            EntryKind::Directory => self.plan(&root.path).await?,
            EntryKind::Other => bail!("{:?} is neither a file nor a directory", root.path),
        };
        self.progress.begin(plan.files.len() as u64, plan.files.iter().map(|file| file.size).sum());
        let whole = |name: &str| if name.is_empty() { target.clone() } else { target.join(name) };

        if root.is_directory() {
            make_directory(&target, MayBeLink::Yes)?;
        }
        for name in &plan.directories {
            make_directory(&whole(name), MayBeLink::No)?;
        }
        let copies = plan.files.iter().map(|file| self.file(file, whole(&file.name)));
        stream::iter(copies).buffer_unordered(MAX_CONCURRENT).try_collect::<()>().await?;
        for (name, leads_to) in &plan.links {
            make_link(leads_to, &whole(name))?;
        }
        Ok(Copied {
            to: target.display().to_string(),
            files: self.progress.files(),
            bytes: self.progress.bytes(),
            links: plan.links.len() as u64,
            skipped: plan.skipped,
        })
    }

    fn files(&self) -> Files<'a> {
        let files = self.sandbox.files();
        match self.user {
            Some(user) => files.as_user(user),
            None => files,
        }
    }

    /// Lists everything below a directory.
    async fn plan(&self, root: &str) -> anyhow::Result<Plan> {
        let files = self.files();
        let mut plan = Plan::default();
        let mut known = HashSet::from([String::new()]);
        let mut unlisted = vec![root.to_owned()];
        while let Some(top) = unlisted.pop() {
            for entry in files.list_depth(&top, LEVELS).await? {
                let name = below(root, &entry.path)?;
                if !known.contains(split(name).0) {
                    bail!("the sandbox lists {:?} without its directory; nothing of it is copied", entry.path);
                }
                match (&entry.symlink_target, entry.kind) {
                    (Some(leads_to), kind) => match below(root, leads_to) {
                        Ok(inside) if kind != EntryKind::Other => {
                            plan.links.push((name.to_owned(), from_to(name, inside)));
                        }
                        _ if leads_to == root => plan.links.push((name.to_owned(), from_to(name, ""))),
                        _ => plan.skipped.push(format!("{}: it leads to {leads_to}, outside {root}", entry.path)),
                    },
                    (None, EntryKind::Directory) => {
                        if !known.insert(name.to_owned()) {
                            bail!("the sandbox lists {:?} twice; nothing of it is copied", entry.path);
                        }
                        let below_top = below(&top, &entry.path)?;
                        if below_top.split('/').count() == LEVELS as usize {
                            unlisted.push(entry.path.clone());
                        }
                        plan.directories.push(name.to_owned());
                    }
                    (None, EntryKind::File) => plan.files.push(Source::new(&entry, name)),
                    (None, EntryKind::Other) => {
                        plan.skipped.push(format!("{}: neither a file, a directory nor a link", entry.path));
                    }
                }
            }
        }
        Ok(plan)
    }

    async fn file(&self, source: &Source, target: PathBuf) -> anyhow::Result<()> {
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The umask of this process limits the permissions of others.
        let mode = if source.executable { 0o777 } else { 0o666 };
        let cannot = || format!("cannot write {}", target.display());
        // Dropping it removes the file, also when the copy is cancelled.
        let draft = tempfile::Builder::new()
            .prefix(".sandbar-")
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)
            .with_context(cannot)?;
        let mut file = tokio::fs::File::from_std(draft.as_file().try_clone().with_context(cannot)?);
        let mut content = self.files().read_stream(&source.path).await?;
        while let Some(piece) = content.try_next().await? {
            file.write_all(&piece).await.with_context(cannot)?;
            self.progress.moved(piece.len());
        }
        file.flush().await.with_context(cannot)?;
        drop(file);
        draft.persist(&target).map_err(|error| error.error).with_context(cannot)?;
        self.progress.file_done();
        Ok(())
    }
}

/// The final path: inside of an existing directory, or `to` itself.
fn target(root: &Entry, from: &str, to: &Path) -> anyhow::Result<PathBuf> {
    let found = std::fs::metadata(to).ok();
    let is_directory = found.as_ref().is_some_and(std::fs::Metadata::is_dir);
    let ends_as_one = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let content = root.is_directory() && (matches!(from, "." | "" | "~") || from.ends_with("/."));
    if (is_directory || ends_as_one) && !content {
        let name = root.name.as_str();
        // A root directory has no name, and a sandbox may send any name.
        if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
            bail!("{from:?} has no name to copy it to; write ID:{}/. for what is in it", from.trim_end_matches('/'));
        }
        if !is_directory {
            std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
        }
        return Ok(to.join(name));
    }
    if root.is_directory() && found.is_some() && !is_directory {
        bail!("{} is a file; a directory cannot replace it", to.display());
    }
    // As cp does: a link stays, and the file that it leads to is replaced.
    Ok(std::fs::canonicalize(to).ok().filter(|_| !root.is_directory()).unwrap_or_else(|| to.to_owned()))
}

/// Whether a directory may be a link. The caller's own target may be one; below it, a link could
/// lead to a path of the sandbox's choice.
#[derive(Clone, Copy, PartialEq)]
enum MayBeLink {
    Yes,
    No,
}

fn make_directory(path: &Path, link: MayBeLink) -> anyhow::Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let found = match link {
                MayBeLink::Yes => std::fs::metadata(path),
                MayBeLink::No => std::fs::symlink_metadata(path),
            };
            if found.is_ok_and(|found| found.is_dir()) {
                return Ok(());
            }
            bail!("{} is there and is not a directory; move it out of the way", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot make the directory {}", path.display())),
    }
}

/// Creates a link, and replaces an existing link or file by an atomic rename.
fn make_link(leads_to: &str, path: &Path) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let draft = directory.join(format!(".sandbar-{:016x}.part", rand::random::<u64>()));
    std::os::unix::fs::symlink(leads_to, &draft)
        .and_then(|()| std::fs::rename(&draft, path))
        .inspect_err(|_| drop(std::fs::remove_file(&draft)))
        .with_context(|| format!("cannot make the link {}", path.display()))
}
