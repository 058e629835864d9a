//! An interpreter that keeps its state between runs.

use std::fs::File;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Turn, MutexGuard};

use super::language::Language;
use crate::http::HttpError;
use crate::paths;
use crate::process::{Controlled, Ender, Exit, LaunchError};
use crate::state::Guest;

pub(super) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    pub(super) cwd: String,
    /// One run at a time, in the order of their calls.
    turn: Turn<State>,
    /// For who ends it without having the turn.
    ender: Mutex<Option<Ender>>,
}

#[derive(Default)]
pub(super) struct State {
    process: Option<Controlled>,
    pub(super) runs: u64,
}

impl Context {
    /// Without its process, which the first run starts.
    pub(super) fn new(guest: &Guest, language: Language, cwd: Option<String>) -> Result<Self, HttpError> {
        let user = guest.user(None).map_err(|unknown| HttpError::internal(format!("no user '{}'", unknown.0)))?;
        let cwd = cwd.unwrap_or_else(|| user.home.clone());
        let cwd = paths::resolve(&cwd, &user, None).map_err(LaunchError::BadPath)?.display().to_string();
        Ok(Self { id: id()?, language, cwd, turn: Turn::default(), ender: Mutex::default() })
    }

    pub(super) async fn start(guest: &Arc<Guest>, language: Language, cwd: Option<String>) -> Result<Self, HttpError> {
        let context = Self::new(guest, language, cwd)?;
        context.turn.lock().await.process = Some(context.launch(guest)?);
        Ok(context)
    }

    pub(super) async fn turn(&self) -> MutexGuard<'_, State> {
        self.turn.lock().await
    }

    /// The process, started if there is none. The caller gives it back with [`State::keep`] if it can be used again.
    pub(super) fn ready(&self, guest: &Arc<Guest>, state: &mut State) -> Result<Ready, LaunchError> {
        let (process, lost) = match state.process.take() {
            Some(process) => match process.exit() {
                None => return Ok(Ready { process, lost: None }),
                Some(exit) => (self.launch(guest)?, Some(exit)),
            },
            None => (self.launch(guest)?, None),
        };
        state.runs = 0;
        Ok(Ready { process, lost })
    }

    fn launch(&self, guest: &Arc<Guest>) -> Result<Controlled, LaunchError> {
        let user = guest.user(None).map_err(|unknown| LaunchError::NotFound(unknown.0))?;
        let process = guest.processes.start_controlled(guest, user, self.language.process(&self.cwd))?;
        *self.ender() = Some(process.ender());
        Ok(process)
    }

    fn ender(&self) -> std::sync::MutexGuard<'_, Option<Ender>> {
        self.ender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process; a run that is under way hears of it.
    pub(super) fn end(&self) {
        if let Some(ender) = self.ender().take() {
            ender.end();
        }
    }

    pub(super) async fn restart(&self, guest: &Arc<Guest>) -> Result<(), HttpError> {
        self.end();
        let mut state = self.turn.lock().await;
        *state = State { process: Some(self.launch(guest)?), runs: 0 };
        Ok(())
    }
}

impl State {
    pub(super) fn keep(&mut self, process: Controlled) {
        self.process = Some(process);
    }
}

/// An interpreter that can be given code.
pub(super) struct Ready {
    pub(super) process: Controlled,
    /// How the one before it was lost.
    pub(super) lost: Option<Exit>,
}

/// A random one of 128 bits, as E2B's are.
fn id() -> Result<String, HttpError> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| HttpError::internal(format!("no random numbers: {error}")))?;
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok([&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex).join("-"))
}
