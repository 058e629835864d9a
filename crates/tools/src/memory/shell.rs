//! The small shell: runs parsed command lines as tasks. Its processes are entries of a table, so
//! that tests can count them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::machine::MemoryMachine;
use super::parse::{Command, Item, Piece, Redirection, Script, What, When, Word};
use super::programs;
use crate::paths;
use crate::port::{ShellEvent, Stream};

/// A step of a scripted command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes to standard output.
    Out(String),
    /// Writes to standard error.
    Err(String),
    Sleep(Duration),
    /// Starts a child of that name that holds the pipes for this time.
    Child(String, Duration),
    /// Creates a file.
    File(String, String),
    /// Exits with this code; a script without it exits with 0.
    Exit(i32),
    /// Runs until it is killed.
    Never,
}

/// The code of a shell that executed `exit`.
pub(super) struct Exit(pub(super) i32);

/// State of a shell; a subshell has a copy.
#[derive(Debug, Clone)]
pub(super) struct Env {
    pub(super) cwd: String,
    /// Value, and whether it is exported.
    pub(super) variables: BTreeMap<String, (String, bool)>,
    pub(super) status: i32,
    pub(super) pid: u32,
}

impl Env {
    pub(super) fn value(&self, name: &str) -> String {
        match name {
            "?" => self.status.to_string(),
            "$" => self.pid.to_string(),
            "PWD" => self.cwd.clone(),
            name => match name.split_once(":-") {
                Some((name, default)) => {
                    Some(self.value(name)).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
                }
                None => self.variables.get(name).map(|(value, _)| value.clone()).unwrap_or_default(),
            },
        }
    }

    pub(super) fn word(&self, word: &Word) -> String {
        word.iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Variable(name) => self.value(name),
            })
            .collect()
    }

    pub(super) fn path(&self, path: &str) -> String {
        if path.starts_with('/') { paths::normalize(path) } else { paths::normalize(&format!("{}/{path}", self.cwd)) }
    }
}

/// Where output goes.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    Events(mpsc::Sender<ShellEvent>, Stream),
    Pipe(mpsc::Sender<Bytes>),
    File(String),
    Null,
}

/// Where input comes from.
pub(super) type InputStream = Arc<tokio::sync::Mutex<Option<mpsc::Receiver<Bytes>>>>;

#[derive(Debug, Clone)]
pub(super) struct Io {
    pub(super) input: Option<InputStream>,
    pub(super) out: Sink,
    pub(super) err: Sink,
}

/// One call of the tool: what its processes share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) machine: Arc<MemoryMachine>,
    pub(super) call: String,
    pub(super) killed: CancellationToken,
    /// Children of the shell, to find survivors.
    pub(super) children: Mutex<Vec<u32>>,
}

/// The reader is gone.
#[derive(Debug)]
pub(super) struct BrokenPipe;

impl Run {
    pub(super) async fn write(&self, sink: &Sink, bytes: Bytes) -> Result<(), BrokenPipe> {
        match sink {
            // Events without a receiver are lost; the command does not notice.
            Sink::Events(events, stream) => {
                let _ = events.send(ShellEvent::Output(*stream, bytes)).await;
                Ok(())
            }
            Sink::Pipe(pipe) => pipe.send(bytes).await.map_err(|_| BrokenPipe),
            Sink::File(path) => {
                let mut files = self.machine.files();
                let old = files.get(path).unwrap_or_default();
                // The directory existed when the file was opened.
                let _ = files.write(path, [old, bytes].concat().into());
                Ok(())
            }
            Sink::Null => Ok(()),
        }
    }

    pub(super) async fn say(&self, sink: &Sink, text: &str) -> Result<(), BrokenPipe> {
        self.write(sink, Bytes::from(text.to_owned())).await
    }
}

/// Runs a list of commands. An error is an early `exit`.
pub(super) fn script<'a>(
    run: &'a Arc<Run>,
    script: &'a Script,
    env: &'a mut Env,
    io: &'a Io,
) -> BoxFuture<'a, Result<(), Exit>> {
    Box::pin(async move {
        for item in &script.items {
            let runs = match item.when {
                When::Always => true,
                When::Success => env.status == 0,
                When::Failure => env.status != 0,
            };
            if !runs {
                continue;
            }
            if item.background {
                background(run, item, env, io);
                env.status = 0;
            } else {
                env.status = pipeline(run, &item.pipeline, env, io).await?;
            }
        }
        Ok(())
    })
}

fn background(run: &Arc<Run>, item: &Item, env: &Env, io: &Io) {
    let pid = run.machine.register(&run.call, &item.source);
    run.children.lock().push(pid);
    let (run, pipeline_, mut env, io) = (Arc::clone(run), item.pipeline.clone(), env.clone(), io.clone());
    let machine = Arc::clone(&run.machine);
    machine.spawn(async move {
        let killed = run.killed.clone();
        let io = Io { input: None, ..io };
        let _ = killed.run_until_cancelled(pipeline(&run, &pipeline_, &mut env, &io)).await;
        run.machine.unregister(pid);
    });
}

async fn pipeline(run: &Arc<Run>, commands: &[Command], env: &mut Env, io: &Io) -> Result<i32, Exit> {
    if let [command] = commands {
        return execute(run, command, env, io).await;
    }
    let mut input = io.input.clone();
    let mut stages: Vec<BoxFuture<'_, Result<i32, Exit>>> = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        let (out, next) = if at + 1 < commands.len() {
            let (sender, receiver) = mpsc::channel(4);
            (Sink::Pipe(sender), Some(Arc::new(tokio::sync::Mutex::new(Some(receiver)))))
        } else {
            (io.out.clone(), None)
        };
        let stage = Io { input: std::mem::replace(&mut input, next), out, err: io.err.clone() };
        let mut env = env.clone();
        stages.push(Box::pin(async move {
            let code = execute(run, command, &mut env, &stage).await;
            // A reader that ends closes its pipe for the writers.
            if let Some(input) = &stage.input {
                input.lock().await.take();
            }
            code
        }));
    }
    let codes = futures::future::join_all(stages).await;
    Ok(match codes.into_iter().next_back() {
        Some(Ok(code) | Err(Exit(code))) => code,
        None => 0,
    })
}

fn execute<'a>(
    run: &'a Arc<Run>,
    command: &'a Command,
    env: &'a mut Env,
    io: &'a Io,
) -> BoxFuture<'a, Result<i32, Exit>> {
    Box::pin(async move {
        let mut io = io.clone();
        for redirection in &command.redirections {
            if let Err(message) = redirect(run, redirection, env, &mut io).await {
                let _ = run.say(&io.err, &message).await;
                return Ok(1);
            }
        }
        match &command.what {
            What::Group(inner) => {
                let mut inside = env.clone();
                match script(run, inner, &mut inside, &io).await {
                    Ok(()) => Ok(inside.status),
                    Err(Exit(code)) => Ok(code),
                }
            }
            What::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| env.word(word)).collect();
                match programs::run(run, &words, env, &io).await {
                    Ok(code) => code,
                    // SIGPIPE.
                    Err(BrokenPipe) => Ok(141),
                }
            }
        }
    })
}

async fn redirect(run: &Run, redirection: &Redirection, env: &Env, io: &mut Io) -> Result<(), String> {
    let open = |word: &Word, append: bool| {
        let path = env.path(&env.word(word));
        if path == "/dev/null" {
            return Ok(Sink::Null);
        }
        let mut files = run.machine.files();
        if !files.is_directory(paths::parent(&path)) {
            return Err(format!("bash: line 1: {}: No such file or directory\n", env.word(word)));
        }
        if !append || files.get(&path).is_none() {
            files.write(&path, Bytes::new()).map_err(|error| format!("bash: line 1: {path}: {error}\n"))?;
        }
        Ok(Sink::File(path))
    };
    match redirection {
        Redirection::Out(2, word, append) => io.err = open(word, *append)?,
        Redirection::Out(_, word, append) => io.out = open(word, *append)?,
        Redirection::ErrToOut => io.err = io.out.clone(),
        Redirection::OutToErr => io.out = io.err.clone(),
        Redirection::Both(word) => {
            io.out = open(word, false)?;
            io.err = io.out.clone();
        }
        Redirection::In(word) => {
            let path = env.path(&env.word(word));
            let bytes = if path == "/dev/null" {
                Bytes::new()
            } else {
                let found = run.machine.files().get(&path);
                found.ok_or_else(|| format!("bash: line 1: {}: No such file or directory\n", env.word(word)))?
            };
            io.input = Some(stream_of_bytes(bytes).await);
        }
        Redirection::Here(body) => io.input = Some(stream_of_bytes(Bytes::from(body.clone())).await),
    }
    Ok(())
}

async fn stream_of_bytes(bytes: Bytes) -> InputStream {
    let (sender, receiver) = mpsc::channel(1);
    // The channel has capacity for one, so this does not wait.
    let _ = sender.send(bytes).await;
    Arc::new(tokio::sync::Mutex::new(Some(receiver)))
}
