//! The in-memory machine: what the tools need, without a sandbox.

mod searches;
mod shells;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::files::{Node, Tree};
use super::shell::Step;
use crate::file_cache::digest;
use crate::paths::{self, BasePaths};
use crate::port::{Basis, Fetch, Fetched, Files, Kind, Listed, PortError, SessionStore, Stat, Window, Windowed};
use crate::search::{IGNORE_FILES, IgnoreFile, Tree as Rules};

pub(super) const HOME: &str = "/home/user";
const OWN: &str = "/tmp/.sandbar/default";

#[derive(Debug)]
pub(crate) struct MemoryMachine {
    files: Mutex<Tree>,
    session: Mutex<Session>,
    processes: Mutex<BTreeMap<u32, Process>>,
    scripts: Mutex<Vec<(String, Vec<Step>)>>,
    /// Running tasks; dropped with the machine.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Process {
    call: String,
    command: String,
}

#[derive(Debug)]
struct Session {
    cwd: String,
    variables: BTreeMap<String, String>,
    notes: HashMap<String, Bytes>,
    next_pid: u32,
    background: Vec<Background>,
}

#[derive(Debug)]
struct Background {
    id: String,
    log: String,
    killed: CancellationToken,
    /// Set once it has ended.
    ended: Option<i32>,
    reported: bool,
}

impl Session {
    fn new() -> Self {
        Self {
            cwd: HOME.into(),
            variables: BTreeMap::new(),
            notes: HashMap::new(),
            next_pid: 100,
            background: Vec::new(),
        }
    }
}

impl MemoryMachine {
    pub(super) fn new() -> Self {
        Self {
            files: Mutex::new(Tree::new()),
            session: Mutex::new(Session::new()),
            processes: Mutex::default(),
            scripts: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Tree> {
        self.files.lock()
    }

    pub(super) fn script(&self, words: &str, steps: Vec<Step>) {
        self.scripts.lock().push((words.to_owned(), steps));
    }

    /// The script of a command; the latest wins.
    pub(super) fn find_script(&self, words: &str) -> Option<Vec<Step>> {
        let scripts = self.scripts.lock();
        let found = scripts.iter().rev().find(|(start, _)| {
            words.strip_prefix(start.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        found.map(|(_, steps)| steps.clone())
    }

    /// Records a command that neither exists nor was scripted: most likely a mistake of the test.
    pub(super) fn record_unknown_command(&self, words: &str) {
        tracing::warn!(words, "the in-memory sandbox has no such command; script it with on()");
    }

    pub(super) fn register(&self, call: &str, command: &str) -> u32 {
        let pid = {
            let mut session = self.session.lock();
            session.next_pid += 1;
            session.next_pid
        };
        self.processes.lock().insert(pid, Process { call: call.to_owned(), command: command.to_owned() });
        pid
    }

    pub(super) fn unregister(&self, pid: u32) {
        self.processes.lock().remove(&pid);
    }

    pub(super) fn processes(&self) -> usize {
        self.processes.lock().len()
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    fn listing(&self, root: &str) -> (Vec<(String, i128, Bytes)>, Vec<String>, Rules) {
        let all = self.files.lock().below(root);
        let mut files = Vec::new();
        let mut directories = Vec::new();
        let mut rules = Vec::new();
        for (path, entry) in all {
            match entry.node {
                Node::File { bytes, .. } => {
                    let name = paths::name(&path);
                    if IGNORE_FILES.contains(&name) {
                        let directory = path.rfind('/').map_or("", |at| &path[..at]).to_owned();
                        rules.push(IgnoreFile { directory, rules: String::from_utf8_lossy(&bytes).into_owned() });
                    }
                    files.push((path, entry.modified, bytes));
                }
                Node::Directory => directories.push(path),
                Node::Link { .. } => {
                    // A link to a file is a file; directories behind links are not entered.
                    let real = paths::join(root, &path);
                    let files_ = self.files.lock();
                    if let Ok(bytes) = files_.read(&real) {
                        files.push((path, entry.modified, bytes));
                    }
                }
                Node::Special => {}
            }
        }
        (files, directories, Rules::new(&rules))
    }
}

#[async_trait]
impl Files for Arc<MemoryMachine> {
    async fn stat(&self, path: &str) -> Result<Stat, PortError> {
        let files = self.files.lock();
        let (path, entry) = files.entry(path)?;
        let (kind, size, mode) = match &entry.node {
            Node::File { bytes, mode } => (Kind::File, bytes.len() as u64, *mode),
            Node::Directory => (Kind::Directory, 4096, 0o755),
            Node::Link { .. } | Node::Special => (Kind::Other, 0, 0o666),
        };
        Ok(Stat { path, kind, size, modified: entry.modified, mode, ordinary: true })
    }

    async fn fetch(&self, path: &str, most: u64) -> Result<Fetched, PortError> {
        let stat = self.stat(path).await?;
        Ok(match stat.kind {
            Kind::Directory => Fetched::Directory,
            Kind::Other => Fetched::Special,
            Kind::File if stat.size > most => Fetched::Large { size: stat.size },
            Kind::File => {
                let bytes = self.files.lock().read(path)?;
                Fetched::File(Fetch { sha256: digest(&bytes), bytes, stat: Some(stat) })
            }
        })
    }

    async fn read(&self, path: &str, most: usize) -> Result<Bytes, PortError> {
        let bytes = self.files.lock().read(path)?;
        Ok(bytes.slice(..bytes.len().min(most)))
    }

    async fn window(&self, path: &str, window: Window) -> Result<Windowed, PortError> {
        let bytes = self.files.lock().read(path)?;
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let first = match usize::try_from(window.first) {
            Ok(first) => first.saturating_sub(1),
            Err(_) => lines.len().saturating_sub(usize::try_from(window.first.unsigned_abs()).unwrap_or(usize::MAX)),
        };
        let part = lines.iter().skip(first).take(window.count).flat_map(|line| line.iter().copied()).collect();
        Ok(Windowed { bytes: part, total_lines: window.count_all.then_some(lines.len() as u64) })
    }

    async fn list(&self, path: &str) -> Result<Vec<Listed>, PortError> {
        let listed = self.files.lock().list(path)?;
        Ok(listed.into_iter().map(|(name, is_directory)| Listed { name, is_directory }).collect())
    }

    async fn find_by_name(&self, directory: &str, name: &str) -> Result<Vec<String>, PortError> {
        let below = self.files.lock().below(directory);
        let same = below.into_iter().filter(|(path, _)| paths::name(path).eq_ignore_ascii_case(name));
        Ok(same.map(|(path, _)| paths::join(directory, &path)).take(5).collect())
    }

    async fn replace(&self, path: &str, bytes: Bytes, basis: Basis<'_>) -> Result<bool, PortError> {
        // Yields, so that a concurrent task can interfere, as on a real sandbox.
        tokio::task::yield_now().await;
        let mut files = self.files.lock();
        match basis {
            Basis::Absent if files.get(path).is_some() => return Err(PortError::Conflict),
            Basis::Was { sha256, .. } if files.get(path).is_none_or(|now| digest(&now) != sha256) => {
                return Err(PortError::Conflict);
            }
            Basis::Absent | Basis::Was { .. } => {}
        }
        files.write(path, bytes)?;
        Ok(false)
    }
}

#[async_trait]
impl SessionStore for Arc<MemoryMachine> {
    async fn base_paths(&self) -> Result<BasePaths, PortError> {
        let current = self.session.lock().cwd.clone();
        let current = if self.files.lock().is_directory(&current) { current } else { HOME.to_owned() };
        Ok(BasePaths { current, home: HOME.into() })
    }

    async fn load(&self, key: &str) -> Result<Option<Bytes>, PortError> {
        Ok(self.session.lock().notes.get(key).cloned())
    }

    async fn store(&self, key: &str, note: Bytes) -> Result<(), PortError> {
        self.session.lock().notes.insert(key.to_owned(), note);
        Ok(())
    }

    async fn remove(&self, key: &str) -> Result<(), PortError> {
        self.session.lock().notes.remove(key);
        Ok(())
    }

    async fn reset_shell(&self) -> Result<(), PortError> {
        let mut session = self.session.lock();
        session.cwd = HOME.into();
        session.variables.clear();
        Ok(())
    }

    async fn spill_output(&self, call: &str, output: Bytes) -> Result<String, PortError> {
        let path = format!("{OWN}/out/{call}.log");
        self.files.lock().write(&path, output)?;
        Ok(path)
    }

    async fn close(&self) -> Result<(), PortError> {
        for task in &self.session.lock().background {
            task.killed.cancel();
        }
        self.files.lock().remove(&format!("{OWN}/out"));
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.processes.lock().clear();
        Ok(())
    }
}
