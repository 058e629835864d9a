//! An interpreter that keeps its state between runs.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use super::language::Language;
use crate::http::HttpError;
use crate::paths;
use crate::process::{Controlled, Exit, KillHandle, LaunchError};
use crate::state::Guest;

pub(super) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    pub(super) cwd: String,
    /// Serializes runs in the order of their calls.
    state: AsyncMutex<State>,
    /// Kills the process without the lock of `state`.
    kill_handle: Mutex<Option<KillHandle>>,
}

#[derive(Default)]
pub(super) struct State {
    process: Option<Controlled>,
    pub(super) runs: u64,
}

impl Context {
    /// Creates the context; the first run starts its process.
    pub(super) fn new(guest: &Guest, language: Language, cwd: Option<String>) -> Result<Self, HttpError> {
        let user = guest.user(None).map_err(|unknown| HttpError::internal(format!("no user '{}'", unknown.0)))?;
        let cwd = cwd.unwrap_or_else(|| user.home.clone());
        let cwd = paths::resolve(&cwd, &user, None).map_err(LaunchError::InvalidPath)?.display().to_string();
        Ok(Self { id: random_id()?, language, cwd, state: AsyncMutex::default(), kill_handle: Mutex::default() })
    }

    pub(super) async fn start(guest: &Arc<Guest>, language: Language, cwd: Option<String>) -> Result<Self, HttpError> {
        let context = Self::new(guest, language, cwd)?;
        context.state.lock().await.process = Some(context.launch(guest)?);
        Ok(context)
    }

    pub(super) async fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    /// The running process, started if there is none. The caller returns it with [`State::keep`] if
    /// it is reusable.
    pub(super) fn take_process(&self, guest: &Arc<Guest>, state: &mut State) -> Result<ReadyInterpreter, LaunchError> {
        let (process, lost) = match state.process.take() {
            Some(process) => match process.exit() {
                None => return Ok(ReadyInterpreter { process, lost: None }),
                Some(exit) => (self.launch(guest)?, Some(exit)),
            },
            None => (self.launch(guest)?, None),
        };
        state.runs = 0;
        Ok(ReadyInterpreter { process, lost })
    }

    fn launch(&self, guest: &Arc<Guest>) -> Result<Controlled, LaunchError> {
        let user = guest.user(None).map_err(|unknown| LaunchError::NotFound(unknown.0))?;
        let process = guest.processes.start_controlled(guest, user, self.language.process(&self.cwd))?;
        *self.lock_kill_handle() = Some(process.kill_handle());
        Ok(process)
    }

    fn lock_kill_handle(&self) -> parking_lot::MutexGuard<'_, Option<KillHandle>> {
        self.kill_handle.lock()
    }

    /// Kills the process; a run in progress sees its exit.
    pub(super) fn kill(&self) {
        if let Some(kill_handle) = self.lock_kill_handle().take() {
            kill_handle.kill();
        }
    }

    pub(super) async fn restart(&self, guest: &Arc<Guest>) -> Result<(), HttpError> {
        self.kill();
        let mut state = self.state.lock().await;
        *state = State { process: Some(self.launch(guest)?), runs: 0 };
        Ok(())
    }
}

impl State {
    pub(super) fn keep(&mut self, process: Controlled) {
        self.process = Some(process);
    }
}

/// An interpreter that is ready for code.
pub(super) struct ReadyInterpreter {
    pub(super) process: Controlled,
    /// The exit of the previous process, whose state is lost.
    pub(super) lost: Option<Exit>,
}

/// A random id of 128 bits, like E2B's.
fn random_id() -> Result<String, HttpError> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| HttpError::internal(format!("no random numbers: {error}")))?;
    Ok([&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex::encode).join("-"))
}
