//! Copying a sandbox's files while it lives: a running one is frozen for the moment it takes.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Owner, chain, within};
use crate::error::SandboxError;
use crate::id::FilesId;
use crate::lifecycle::State;
use crate::log::LogLevel;
use crate::ports::EngineError;
use crate::sandbox::Record;

impl Owner {
    /// Gives `to` a copy of the files and tells what the sandbox is. The memory is not part of it, which its log says.
    pub(super) async fn copy_files(&mut self, to: &FilesId, purpose: &'static str) -> Result<Record, SandboxError> {
        let began = Instant::now();
        let copied = match self.state {
            State::Running => self.copy_frozen(to).await,
            State::Paused(_) => self.copy_resting(to).await,
            state => return Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        };
        let elapsed = began.elapsed();
        copied.map_err(|error| self.name_missing(error))?;
        let message = format!("{purpose} made of the files; memory and processes are not part of it ({elapsed:.1?})");
        self.note(LogLevel::Info, &message);
        info!(sandbox = %self.record.id, ?elapsed, "{purpose} made");
        Ok(self.record.clone())
    }

    async fn copy_resting(&mut self, to: &FilesId) -> Result<(), EngineError> {
        let engine = Arc::clone(&self.world.engine);
        within("copying the sandbox's files", engine.copy_files(&FilesId::from(&self.record.id), to)).await
    }

    async fn copy_frozen(&mut self, to: &FilesId) -> Result<(), EngineError> {
        let Some(machine) = self.machine.clone() else { return self.copy_resting(to).await };
        let copied = match within("freezing the sandbox", machine.freeze()).await {
            Ok(()) => self.copy_resting(to).await,
            Err(error) => Err(error),
        };
        // Also after a freeze that failed: part of the processes may have been stopped.
        if let Err(error) = within("thawing the sandbox", machine.thaw()).await {
            warn!(sandbox = %self.record.id, error = %chain(&error), "a sandbox stays frozen after a copy of its files");
            self.lose_machine().await;
        }
        copied
    }
}
