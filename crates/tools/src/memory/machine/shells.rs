//! Commands of the in-memory machine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Background, HOME, MemoryMachine, OWN};
use crate::memory::parse::parse;
use crate::memory::shell::{self, Env, Exit, Io, Run, Sink};
use crate::paths::{self, BasePaths};
use crate::port::{
    FinishedTask, PortError, Shell, ShellCall, ShellEnd, ShellEvent, Shells, StartDirectory, Stream, Survivor,
};

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
                    directory: Some(machine.session.lock().cwd.clone()),
                    ..ShellEnd::default()
                };
                let _ = events.send(ShellEvent::Ended(end)).await;
            }
            machine.unregister(pid);
        });
        Ok(Box::new(shell))
    }
}

/// Runs one command.
async fn command(run: &Arc<Run>, call: &ShellCall, pid: u32, events: &mpsc::Sender<ShellEvent>) {
    let machine = &run.machine;
    // Events without a receiver are dropped.
    let tell = async |event| {
        let _ = events.send(event).await;
    };
    let task = call.background.then(|| {
        let mut session = machine.session.lock();
        let id = format!("b{}", session.background.len() + 1);
        let log = format!("{OWN}/bg/{id}.log");
        let killed = run.killed.clone();
        session.background.push(Background { id: id.clone(), log: log.clone(), killed, ended: None, reported: false });
        (id, log)
    });
    if let Some((id, log)) = &task {
        // A new private directory cannot conflict with a file.
        let _ = machine.files.lock().write(log, Bytes::new());
        tell(ShellEvent::Task { id: id.clone(), log: log.clone() }).await;
    }
    let (mut env, directory) = environment(machine, call, pid);
    tell(ShellEvent::Started { group: pid, directory: directory.clone() }).await;
    let code = if matches!(directory, StartDirectory::Missing { .. }) {
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
        let mut session = machine.session.lock();
        if call.directory.is_none() {
            session.cwd.clone_from(&env.cwd);
        }
        let exported = env.variables.iter().filter(|(_, (_, exported))| *exported);
        session.variables = exported.map(|(name, (value, _))| (name.clone(), value.clone())).collect();
    }
    let end = finish(run, task.as_ref().map(|(id, _)| id.as_str()), code);
    // The shell is unregistered before its end is reported.
    machine.unregister(pid);
    tell(ShellEvent::Ended(end)).await;
}

fn environment(machine: &MemoryMachine, call: &ShellCall, pid: u32) -> (Env, StartDirectory) {
    let session = machine.session.lock();
    let variables = session.variables.iter().map(|(name, value)| (name.clone(), (value.clone(), true))).collect();
    let mut env = Env { cwd: session.cwd.clone(), variables, status: 0, pid };
    drop(session);
    env.variables.entry("HOME".into()).or_insert_with(|| (HOME.to_owned(), true));
    let files = machine.files.lock();
    let mut directory = StartDirectory::AsAsked;
    if !files.is_directory(&env.cwd) {
        directory = StartDirectory::Fallback { gone: std::mem::replace(&mut env.cwd, HOME.to_owned()) };
    }
    if let Some(wanted) = &call.directory {
        let places = BasePaths { current: env.cwd.clone(), home: HOME.into() };
        let wanted = paths::resolve(&places, wanted).unwrap_or_else(|_| wanted.clone());
        if !files.is_directory(&wanted) {
            return (env, StartDirectory::Missing { directory: wanted });
        }
        env.cwd = wanted;
        directory = StartDirectory::AsAsked;
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
    let children = run.children.lock().clone();
    let processes = machine.processes.lock();
    let survivors = children
        .iter()
        .filter_map(|pid| processes.get(pid).map(|process| Survivor { pid: *pid, command: process.command.clone() }));
    let survivors = survivors.collect();
    drop(processes);
    let mut session = machine.session.lock();
    if let Some(task) = session.background.iter_mut().find(|known| Some(known.id.as_str()) == task) {
        task.ended = Some(exit_code);
    }
    let mut finished = Vec::new();
    if task.is_none() {
        for task in &mut session.background {
            if let (Some(exit_code), false) = (task.ended, task.reported) {
                task.reported = true;
                finished.push(FinishedTask {
                    task: task.id.clone(),
                    exit_code: Some(exit_code),
                    log: task.log.clone(),
                });
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
    /// Set once it is a background task.
    task: Option<String>,
}

#[async_trait]
impl Shell for MemoryShell {
    async fn next(&mut self) -> Result<ShellEvent, PortError> {
        let event = self.events.recv().await;
        match &event {
            Some(ShellEvent::Task { id, .. }) => self.task = Some(id.clone()),
            // Reading the end of a background task counts as its report.
            Some(ShellEvent::Ended(_)) => {
                let mut session = self.machine.session.lock();
                if let Some(task) = session.background.iter_mut().find(|task| Some(&task.id) == self.task.as_ref()) {
                    task.reported = true;
                }
            }
            _ => {}
        }
        event.ok_or_else(|| PortError::Unavailable("the command is gone".into()))
    }

    async fn kill(&mut self, _grace: Duration) -> Result<usize, PortError> {
        let count = self.machine.processes.lock().values().filter(|process| process.call == self.call).count();
        self.killed.cancel();
        // The tasks notice when they are scheduled.
        loop {
            let left = self.machine.processes.lock().values().filter(|process| process.call == self.call).count();
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
            let mut session = machine.session.lock();
            let id = format!("b{}", session.background.len() + 1);
            let log = format!("{OWN}/bg/{id}.log");
            session.background.push(Background {
                id: id.clone(),
                log: log.clone(),
                killed,
                ended: None,
                reported: false,
            });
            (id, log)
        };
        machine.files.lock().write(&log, so_far)?;
        let (owner, task, path) = (Arc::clone(&machine), id.clone(), log.clone());
        machine.spawn(async move {
            while let Some(event) = events.recv().await {
                match event {
                    ShellEvent::Output(_, bytes) => {
                        let mut files = owner.files.lock();
                        let old = files.get(&path).unwrap_or_default();
                        let _ = files.write(&path, [old, bytes].concat().into());
                    }
                    ShellEvent::Ended(end) => {
                        let mut session = owner.session.lock();
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
