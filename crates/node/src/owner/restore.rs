//! Taking a sandbox over from an earlier server: what its record says, against what is found of its machine.

use std::sync::Arc;

use tracing::{info, warn};

use super::{Owner, chain, within};
use crate::lifecycle::{Kept, State};
use crate::log::LogLevel;
use crate::ports::Machine;
use crate::sandbox::{OnTimeout, Standing};

impl Owner {
    /// Joins the record with the machine found for it, if any, and catches up with a lease that has ended meanwhile.
    pub(crate) async fn restore(&mut self, machine: Option<Arc<dyn Machine>>) {
        let id = self.record.id.clone();
        self.machine = machine;
        let late = self.record.end_at <= self.world.clock.now();
        match (self.record.standing, self.machine.clone()) {
            (Standing::Running, Some(machine)) => {
                // A server that died while it paused the sandbox may have left it frozen.
                if let Err(error) = within("thawing the sandbox", machine.thaw()).await {
                    warn!(sandbox = %id, error = %chain(&error), "the machine cannot be used any more");
                    self.lose_machine().await;
                } else if late {
                    self.expire().await;
                } else {
                    self.push_lease();
                    info!(sandbox = %id, "sandbox adopted");
                }
            }
            (Standing::Running, None) => {
                let ended = late && matches!(self.record.on_timeout, OnTimeout::Pause(_));
                let (level, message) = if ended {
                    (LogLevel::Info, "the lease ended while no server ran; the files are kept")
                } else {
                    (LogLevel::Error, "the sandbox's processes were gone when the server started; its files are kept")
                };
                self.note(level, message);
                self.settle_on_files().await;
            }
            (Standing::Paused(Kept::Memory), Some(machine)) => {
                // A server that died while it resumed the sandbox may have left it thawed.
                if let Err(error) = within("freezing the sandbox", machine.freeze()).await {
                    warn!(sandbox = %id, error = %chain(&error), "the machine cannot be used any more");
                    self.lose_machine().await;
                }
            }
            (Standing::Paused(Kept::Memory), None) => {
                self.note(LogLevel::Warn, "the memory of the paused sandbox was lost; its files are kept");
                self.settle_on_files().await;
            }
            (Standing::Paused(Kept::Files), _) => {}
        }
        if self.state != State::Gone {
            self.publish();
        }
    }
}
