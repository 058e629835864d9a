//! The machine in memory: what the tools need, without a sandbox.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::files::{Node, Tree};
use super::parse::parse;
use super::shell::{self, Env, Exit, Io, Run, Sink, Step};
use crate::ledger::digest;
use crate::paths::{self, Places};
use crate::port::{
    Basis, Fetch, Fetched, Files, Finished, Kind, Listed, Memory, PortError, Searches, Shell, ShellCall, ShellEnd,
    ShellEvent, Shells, Started, Stat, Stream, Survivor, Window, Windowed,
};
use crate::search::{
    Counted, CountedFile, Find, Found, FoundFile, IGNORE_FILES, IgnoreFile, MatchedFile, Matcher, Row, Search,
    Selector, Skipped, Tree as Rules,
};

pub(super) const HOME: &str = "/home/user";
const OWN: &str = "/tmp/.sandbar/default";

#[derive(Debug)]
pub(crate) struct MemoryMachine {
    files: Mutex<Tree>,
    session: Mutex<Session>,
    processes: Mutex<BTreeMap<u32, Process>>,
    scripts: Mutex<Vec<(String, Vec<Step>)>>,
    /// Whatever runs; dropped with the machine.
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
    /// Once it has ended, until somebody was told.
    ended: Option<i32>,
    told: bool,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.files)
    }

    pub(super) fn script(&self, words: &str, steps: Vec<Step>) {
        lock(&self.scripts).push((words.to_owned(), steps));
    }

    /// What was scripted for a command; the last word on it counts.
    pub(super) fn scripted(&self, words: &str) -> Option<Vec<Step>> {
        let scripts = lock(&self.scripts);
        let found = scripts.iter().rev().find(|(start, _)| {
            words.strip_prefix(start.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        found.map(|(_, steps)| steps.clone())
    }

    /// A command that neither exists nor was scripted: a mistake of the test, most likely.
    pub(super) fn missed(&self, words: &str) {
        tracing::warn!(words, "the in-memory sandbox has no such command; script it with on()");
    }

    pub(super) fn register(&self, call: &str, command: &str) -> u32 {
        let pid = {
            let mut session = lock(&self.session);
            session.next_pid += 1;
            session.next_pid
        };
        lock(&self.processes).insert(pid, Process { call: call.to_owned(), command: command.to_owned() });
        pid
    }

    pub(super) fn unregister(&self, pid: u32) {
        lock(&self.processes).remove(&pid);
    }

    pub(super) fn processes(&self) -> usize {
        lock(&self.processes).len()
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    fn listing(&self, root: &str) -> (Vec<(String, i128, Bytes)>, Vec<String>, Rules) {
        let all = lock(&self.files).below(root);
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
                    let files_ = lock(&self.files);
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
        let files = lock(&self.files);
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
                let bytes = lock(&self.files).read(path)?;
                Fetched::File(Fetch { sha256: digest(&bytes), bytes, stat: Some(stat) })
            }
        })
    }

    async fn read(&self, path: &str, most: usize) -> Result<Bytes, PortError> {
        let bytes = lock(&self.files).read(path)?;
        Ok(bytes.slice(..bytes.len().min(most)))
    }

    async fn window(&self, path: &str, window: Window) -> Result<Windowed, PortError> {
        let bytes = lock(&self.files).read(path)?;
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let first = match usize::try_from(window.first) {
            Ok(first) => first.saturating_sub(1),
            Err(_) => lines.len().saturating_sub(usize::try_from(window.first.unsigned_abs()).unwrap_or(usize::MAX)),
        };
        let part = lines.iter().skip(first).take(window.count).flat_map(|line| line.iter().copied()).collect();
        Ok(Windowed { bytes: part, total_lines: window.count_all.then_some(lines.len() as u64) })
    }

    async fn list(&self, path: &str) -> Result<Vec<Listed>, PortError> {
        let listed = lock(&self.files).list(path)?;
        Ok(listed.into_iter().map(|(name, is_directory)| Listed { name, is_directory }).collect())
    }

    async fn named(&self, directory: &str, name: &str) -> Result<Vec<String>, PortError> {
        let below = lock(&self.files).below(directory);
        let same = below.into_iter().filter(|(path, _)| paths::name(path).eq_ignore_ascii_case(name));
        Ok(same.map(|(path, _)| paths::join(directory, &path)).take(5).collect())
    }

    async fn replace(&self, path: &str, bytes: Bytes, basis: Basis<'_>) -> Result<bool, PortError> {
        // Whoever shares the runtime gets a chance to be in between, as on a real sandbox.
        tokio::task::yield_now().await;
        let mut files = lock(&self.files);
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
impl Memory for Arc<MemoryMachine> {
    async fn places(&self) -> Result<Places, PortError> {
        let current = lock(&self.session).cwd.clone();
        let current = if lock(&self.files).is_directory(&current) { current } else { HOME.to_owned() };
        Ok(Places { current, home: HOME.into() })
    }

    async fn recall(&self, key: &str) -> Result<Option<Bytes>, PortError> {
        Ok(lock(&self.session).notes.get(key).cloned())
    }

    async fn remember(&self, key: &str, note: Bytes) -> Result<(), PortError> {
        lock(&self.session).notes.insert(key.to_owned(), note);
        Ok(())
    }

    async fn forget(&self, key: &str) -> Result<(), PortError> {
        lock(&self.session).notes.remove(key);
        Ok(())
    }

    async fn forget_shell(&self) -> Result<(), PortError> {
        let mut session = lock(&self.session);
        session.cwd = HOME.into();
        session.variables.clear();
        Ok(())
    }

    async fn keep_output(&self, call: &str, output: Bytes) -> Result<String, PortError> {
        let path = format!("{OWN}/out/{call}.log");
        lock(&self.files).write(&path, output)?;
        Ok(path)
    }

    async fn close(&self) -> Result<(), PortError> {
        for task in &lock(&self.session).background {
            task.killed.cancel();
        }
        lock(&self.files).remove(&format!("{OWN}/out"));
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
        lock(&self.processes).clear();
        Ok(())
    }
}

#[async_trait]
impl Shells for Arc<MemoryMachine> {
    async fn start(&self, call: ShellCall) -> Result<Box<dyn Shell>, PortError> {
        let (events, received) = mpsc::channel(16);
        let killed = CancellationToken::new();
        let run = Arc::new(Run {
            machine: Arc::clone(self),
            call: call.id.clone(),
            killed: killed.clone(),
            children: Mutex::default(),
        });
        let pid = self.register(&call.id, &call.command);
        let shell = MemoryShell {
            machine: Arc::clone(self),
            call: call.id.clone(),
            events: received,
            killed: killed.clone(),
            task: None,
        };
        let machine = Arc::clone(self);
        self.spawn(async move {
            if killed.run_until_cancelled(command(&run, &call, pid, &events)).await.is_none() {
                let end = ShellEnd {
                    exit_code: 143,
                    directory: Some(lock(&machine.session).cwd.clone()),
                    ..ShellEnd::default()
                };
                let _ = events.send(ShellEvent::Ended(end)).await;
            }
            machine.unregister(pid);
        });
        Ok(Box::new(shell))
    }
}

/// The life of one command.
async fn command(run: &Arc<Run>, call: &ShellCall, pid: u32, events: &mpsc::Sender<ShellEvent>) {
    let machine = &run.machine;
    // Who does not listen is not told.
    let tell = async |event| {
        let _ = events.send(event).await;
    };
    let task = call.background.then(|| {
        let mut session = lock(&machine.session);
        let id = format!("b{}", session.background.len() + 1);
        let log = format!("{OWN}/bg/{id}.log");
        let killed = run.killed.clone();
        session.background.push(Background { id: id.clone(), log: log.clone(), killed, ended: None, told: false });
        (id, log)
    });
    if let Some((id, log)) = &task {
        // A new directory of our own cannot be in anybody's way.
        let _ = lock(&machine.files).write(log, Bytes::new());
        tell(ShellEvent::Task { id: id.clone(), log: log.clone() }).await;
    }
    let (mut env, directory) = environment(machine, call, pid);
    tell(ShellEvent::Started { group: pid, directory: directory.clone() }).await;
    let code = if matches!(directory, Started::Missing { .. }) {
        1
    } else {
        let io = match &task {
            Some((_, log)) => Io { input: None, out: Sink::File(log.clone()), err: Sink::File(log.clone()) },
            None => Io {
                input: None,
                out: Sink::Events(events.clone(), Stream::Stdout),
                err: Sink::Events(events.clone(), Stream::Stderr),
            },
        };
        evaluate(run, &call.command, &mut env, &io).await
    };
    if task.is_none() && code < 128 {
        let mut session = lock(&machine.session);
        if call.directory.is_none() {
            session.cwd.clone_from(&env.cwd);
        }
        let exported = env.variables.iter().filter(|(_, (_, exported))| *exported);
        session.variables = exported.map(|(name, (value, _))| (name.clone(), value.clone())).collect();
    }
    let end = finish(run, task.as_ref().map(|(id, _)| id.as_str()), code);
    // The shell itself is gone before its end is told.
    machine.unregister(pid);
    tell(ShellEvent::Ended(end)).await;
}

fn environment(machine: &MemoryMachine, call: &ShellCall, pid: u32) -> (Env, Started) {
    let session = lock(&machine.session);
    let variables = session.variables.iter().map(|(name, value)| (name.clone(), (value.clone(), true))).collect();
    let mut env = Env { cwd: session.cwd.clone(), variables, status: 0, pid };
    drop(session);
    env.variables.entry("HOME".into()).or_insert_with(|| (HOME.to_owned(), true));
    let files = lock(&machine.files);
    let mut directory = Started::AsAsked;
    if !files.is_directory(&env.cwd) {
        directory = Started::Fallback { gone: std::mem::replace(&mut env.cwd, HOME.to_owned()) };
    }
    if let Some(wanted) = &call.directory {
        let places = Places { current: env.cwd.clone(), home: HOME.into() };
        let wanted = paths::resolve(&places, wanted).unwrap_or_else(|_| wanted.clone());
        if !files.is_directory(&wanted) {
            return (env, Started::Missing { directory: wanted });
        }
        env.cwd = wanted;
        directory = Started::AsAsked;
    }
    (env, directory)
}

async fn evaluate(run: &Arc<Run>, command: &str, env: &mut Env, io: &Io) -> i32 {
    match parse(command) {
        Err(error) => {
            let _ = run.say(&io.err, &format!("{}\n", error.0)).await;
            2
        }
        Ok(script) => match shell::script(run, &script, env, io).await {
            Ok(()) => env.status,
            Err(Exit(code)) => code,
        },
    }
}

fn finish(run: &Run, task: Option<&str>, exit_code: i32) -> ShellEnd {
    let machine = &run.machine;
    let children = lock(&run.children).clone();
    let processes = lock(&machine.processes);
    let survivors = children
        .iter()
        .filter_map(|pid| processes.get(pid).map(|process| Survivor { pid: *pid, command: process.command.clone() }));
    let survivors = survivors.collect();
    drop(processes);
    let mut session = lock(&machine.session);
    if let Some(task) = session.background.iter_mut().find(|known| Some(known.id.as_str()) == task) {
        task.ended = Some(exit_code);
    }
    let mut finished = Vec::new();
    if task.is_none() {
        for task in &mut session.background {
            if let (Some(exit_code), false) = (task.ended, task.told) {
                task.told = true;
                finished.push(Finished { task: task.id.clone(), exit_code: Some(exit_code), log: task.log.clone() });
            }
        }
    }
    ShellEnd { exit_code, directory: Some(session.cwd.clone()), survivors, finished }
}

#[derive(Debug)]
struct MemoryShell {
    machine: Arc<MemoryMachine>,
    call: String,
    events: mpsc::Receiver<ShellEvent>,
    killed: CancellationToken,
    /// Once it is known to be one.
    task: Option<String>,
}

#[async_trait]
impl Shell for MemoryShell {
    async fn next(&mut self) -> Result<ShellEvent, PortError> {
        let event = self.events.recv().await;
        match &event {
            Some(ShellEvent::Task { id, .. }) => self.task = Some(id.clone()),
            // Whoever reads the end of a background task was told of it.
            Some(ShellEvent::Ended(_)) => {
                let mut session = lock(&self.machine.session);
                if let Some(task) = session.background.iter_mut().find(|task| Some(&task.id) == self.task.as_ref()) {
                    task.told = true;
                }
            }
            _ => {}
        }
        event.ok_or_else(|| PortError::Unavailable("the command is gone".into()))
    }

    async fn kill(&mut self, _grace: Duration) -> Result<usize, PortError> {
        let count = lock(&self.machine.processes).values().filter(|process| process.call == self.call).count();
        self.killed.cancel();
        // The tasks notice when they get their turn.
        loop {
            let left = lock(&self.machine.processes).values().filter(|process| process.call == self.call).count();
            if left == 0 {
                return Ok(count);
            }
            tokio::select! {
                biased;
                Some(_) = self.events.recv() => {}
                () = tokio::task::yield_now() => {}
            }
        }
    }

    async fn detach(self: Box<Self>, so_far: Bytes) -> Result<(String, String), PortError> {
        let Self { machine, mut events, killed, .. } = *self;
        let (id, log) = {
            let mut session = lock(&machine.session);
            let id = format!("b{}", session.background.len() + 1);
            let log = format!("{OWN}/bg/{id}.log");
            session.background.push(Background { id: id.clone(), log: log.clone(), killed, ended: None, told: false });
            (id, log)
        };
        lock(&machine.files).write(&log, so_far)?;
        let (owner, task, path) = (Arc::clone(&machine), id.clone(), log.clone());
        machine.spawn(async move {
            while let Some(event) = events.recv().await {
                match event {
                    ShellEvent::Output(_, bytes) => {
                        let mut files = lock(&owner.files);
                        let old = files.get(&path).unwrap_or_default();
                        let _ = files.write(&path, [old, bytes].concat().into());
                    }
                    ShellEvent::Ended(end) => {
                        let mut session = lock(&owner.session);
                        if let Some(known) = session.background.iter_mut().find(|known| known.id == task) {
                            known.ended = Some(end.exit_code);
                        }
                    }
                    _ => {}
                }
            }
        });
        Ok((id, log))
    }
}

#[async_trait]
impl Searches for Arc<MemoryMachine> {
    async fn count(&self, search: &Search) -> Result<Counted, PortError> {
        let matcher = matcher(search)?;
        let mut counted = Counted::default();
        if search.root_is_file {
            let bytes = lock(&self.files).read(&search.root)?;
            let lines = matching(&matcher, search, &bytes).len() as u64;
            counted.searched = 1;
            if lines > 0 {
                counted.files.push(CountedFile { path: search.root.clone(), lines, modified: 0 });
            }
            return Ok(counted);
        }
        let selector = Selector::new(search, OWN).map_err(|error| PortError::Other(error.0))?;
        let (files, _, mut rules) = self.listing(&search.root);
        let mut skipped = Skipped::default();
        for (path, modified, bytes) in files {
            if !selector.takes(&path) {
                continue;
            }
            if !search.include_ignored && rules.ignores(&path) {
                skipped.ignored += 1;
                continue;
            }
            counted.searched += 1;
            let lines = matching(&matcher, search, &bytes).len() as u64;
            if lines == 0 {
                continue;
            }
            if bytes.contains(&0) {
                skipped.binary += 1;
                continue;
            }
            counted.files.push(CountedFile { path: paths::join(&search.root, &path), lines, modified });
        }
        counted.skipped = skipped;
        Ok(counted)
    }

    async fn lines(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError> {
        let matcher = matcher(search)?;
        let mut all = Vec::new();
        for path in files {
            let bytes = lock(&self.files).read(path)?;
            all.push(MatchedFile { path: path.clone(), rows: rows(&matcher, search, &bytes) });
        }
        Ok(all)
    }

    async fn find(&self, find: &Find) -> Result<Found, PortError> {
        let selector = Selector::plain(&find.root, OWN);
        let (files, directories, mut rules) = self.listing(&find.root);
        let mut found = Found::default();
        let listed: Vec<(String, i128)> = if find.pattern.directories() {
            directories.into_iter().map(|path| (path, 0)).collect()
        } else {
            files.into_iter().map(|(path, modified, _)| (path, modified)).collect()
        };
        for (path, modified) in listed {
            if !selector.takes(&path) {
                continue;
            }
            let ignored = rules.ignores(&path);
            if find.pattern.matches(&path) {
                found.files.push(FoundFile { path: paths::join(&find.root, &path), modified, ignored });
            } else if !ignored && find.pattern.matches_deeper(&path) {
                found.deeper += 1;
            }
        }
        Ok(found)
    }
}

fn matcher(search: &Search) -> Result<Matcher, PortError> {
    Matcher::new(&search.pattern, search.literal, search.ignore_case, search.multiline)
        .map_err(|error| PortError::Other(error.0))
}

/// Lines with a match: number from 0, and where in the line.
fn matching(matcher: &Matcher, search: &Search, bytes: &[u8]) -> Vec<(usize, (usize, usize))> {
    let lines: Vec<&[u8]> = lines(bytes);
    if !search.multiline {
        let found = |(at, line): (usize, &&[u8])| Some((at, matcher.find(line)?));
        return lines.iter().enumerate().filter_map(found).collect();
    }
    let mut starts = vec![0];
    starts.extend(memchr::memchr_iter(b'\n', bytes).map(|at| at + 1));
    let line_of = |at: usize| starts.partition_point(|start| *start <= at) - 1;
    let mut found: Vec<(usize, (usize, usize))> = Vec::new();
    for (start, end) in matcher.find_all(bytes) {
        for line in line_of(start)..=line_of(end.saturating_sub(1).max(start)) {
            if found.last().is_none_or(|(last, _)| *last < line) && line < lines.len() {
                let from = start.saturating_sub(starts[line]).min(lines[line].len());
                let to = (end - starts[line]).min(lines[line].len());
                found.push((line, (from, to)));
            }
        }
    }
    found
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() { Vec::new() } else { body.split(|byte| *byte == b'\n').collect() }
}

fn rows(matcher: &Matcher, search: &Search, bytes: &[u8]) -> Vec<Row> {
    let lines = lines(bytes);
    let found: BTreeMap<usize, (usize, usize)> = matching(matcher, search, bytes).into_iter().collect();
    let near = |at: usize| found.keys().any(|line| at + search.before >= *line && at <= line + search.after);
    let row = |(at, line): (usize, &&[u8])| {
        let matched = found.get(&at).copied();
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        (matched.is_some() || near(at)).then_some(Row { line: at as u64 + 1, text, matched })
    };
    lines.iter().enumerate().filter_map(row).collect()
}
