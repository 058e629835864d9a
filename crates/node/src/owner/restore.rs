//! Takes a sandbox over from an earlier server by comparing its record with its machine.

use std::sync::Arc;

use engine::Machine;
use tracing::{info, warn};

use super::{Owner, chain, with_timeout};
use crate::lifecycle::{PauseMode, State};
use crate::log::LogLevel;
use crate::sandbox::{OnTimeout, PersistedState};

impl Owner {
    /// Joins the record with its machine, if one was found, and handles a lease that ended
    /// meanwhile.
    pub(crate) async fn restore(&mut self, machine: Option<Arc<dyn Machine>>) {
        let id = self.record.id.clone();
        self.machine = machine;
        let late = self.record.end_at <= self.node_state.clock.now();
        match (self.record.standing, self.machine.clone()) {
            (PersistedState::Running, Some(machine)) => {
                // A server that died during a pause may have left the machine frozen.
                if let Err(error) = with_timeout("thawing the sandbox", machine.thaw()).await {
                    warn!(sandbox = %id, error = %chain(&error), "the machine cannot be used any more");
                    self.lose_machine().await;
                } else if late {
                    self.expire().await;
                } else {
                    self.push_lease();
                    info!(sandbox = %id, "sandbox adopted");
                }
            }
            (PersistedState::Running, None) => {
                let ended = late && matches!(self.record.spec.on_timeout, OnTimeout::Pause(_));
                let (level, message) = if ended {
                    (LogLevel::Info, "the lease ended while no server ran; the files are kept")
                } else {
                    (LogLevel::Error, "the sandbox's processes were gone when the server started; its files are kept")
                };
                self.note(level, message);
                self.record_files_only().await;
            }
            (PersistedState::Paused(PauseMode::Full), Some(machine)) => {
                // A server that died during a resume may have left the machine thawed.
                if let Err(error) = with_timeout("freezing the sandbox", machine.freeze()).await {
                    warn!(sandbox = %id, error = %chain(&error), "the machine cannot be used any more");
                    self.lose_machine().await;
                }
            }
            (PersistedState::Paused(PauseMode::Full), None) => {
                self.note(LogLevel::Warn, "the memory of the paused sandbox was lost; its files are kept");
                self.record_files_only().await;
            }
            (PersistedState::Paused(PauseMode::Filesystem), _) => {}
        }
        if self.state != State::Gone {
            self.publish();
        }
    }
}
