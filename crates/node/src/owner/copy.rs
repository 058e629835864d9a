//! Copies a sandbox's files; a running sandbox is frozen meanwhile.

use std::sync::Arc;

use engine::{EngineError, FilesId};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Owner, chain, with_timeout};
use crate::error::SandboxError;
use crate::lifecycle::State;
use crate::log::LogLevel;
use crate::sandbox::Record;

impl Owner {
    /// Copies the files to `to` and returns the sandbox's record. The log notes that the memory is
    /// not part of the copy.
    pub(super) async fn copy_files(&mut self, to: &FilesId, purpose: &'static str) -> Result<Record, SandboxError> {
        let began = Instant::now();
        let copied = match self.state {
            State::Running => self.copy_frozen(to).await,
            State::Paused(_) => self.copy_stopped(to).await,
            state => return Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        };
        let elapsed = began.elapsed();
        copied.map_err(|error| self.name_missing(error))?;
        let message = format!("{purpose} made of the files; memory and processes are not part of it ({elapsed:.1?})");
        self.note(LogLevel::Info, &message);
        info!(sandbox = %self.record.id, ?elapsed, "{purpose} made");
        Ok(self.record.clone())
    }

    async fn copy_stopped(&mut self, to: &FilesId) -> Result<(), EngineError> {
        let engine = Arc::clone(&self.node_state.engine);
        with_timeout("copying the sandbox's files", engine.copy_files(&FilesId::from(&self.record.id), to)).await
    }

    async fn copy_frozen(&mut self, to: &FilesId) -> Result<(), EngineError> {
        let Some(machine) = self.machine.clone() else { return self.copy_stopped(to).await };
        let copied = match with_timeout("freezing the sandbox", machine.freeze()).await {
            Ok(()) => self.copy_stopped(to).await,
            Err(error) => Err(error),
        };
        // Also after a failed freeze, which may have stopped part of the processes.
        if let Err(error) = with_timeout("thawing the sandbox", machine.thaw()).await {
            warn!(sandbox = %self.record.id, error = %chain(&error), "a sandbox stays frozen after a copy of its files");
            self.lose_machine().await;
        }
        copied
    }
}
