//! What a sandbox may reach, from its boot on and while it lives.

use std::sync::Arc;

use engine::net::Policy;
use tracing::info;

use super::Owner;
use crate::egress::Egress;
use crate::error::SandboxError;
use crate::lifecycle::State;
use crate::log::LogLevel;

impl Owner {
    /// What the record says, with the sandbox's log for who hears of it.
    pub(crate) fn egress_policy(&self) -> Policy {
        let (notes, clock) = (Arc::clone(&self.notes), Arc::clone(&self.world.clock));
        let secrets = Arc::clone(&self.world.secrets);
        Policy {
            rules: self.record.egress_rules(),
            journal: Arc::new(move |decision| notes.decided(clock.now(), decision)),
            secrets: Arc::new(move |name| secrets.value(name).map(|value| value.reveal().to_owned())),
        }
    }

    /// Replaces what the sandbox may reach. A paused one is bound by it when it resumes.
    pub(super) async fn set_egress(
        &mut self,
        egress: Egress,
        allow_internet: Option<bool>,
    ) -> Result<(), SandboxError> {
        if !matches!(self.state, State::Running | State::Paused(_)) {
            return Err(SandboxError::NotRunning { id: self.record.id.clone(), state: self.state });
        }
        let before = self.record.clone();
        (self.record.egress, self.record.allow_internet) = (egress, allow_internet);
        if let Err(error) = self.world.records.update(&self.record).await {
            self.record = before;
            return Err(error.into());
        }
        self.describe().await;
        if let Some(machine) = self.machine.clone() {
            // Before the rules: what they set headers of fails without.
            if self.state == State::Running {
                self.certify(&machine).await;
            }
            machine.set_egress_rules(self.record.egress_rules());
        }
        self.note(LogLevel::Info, "what the sandbox may reach was changed");
        info!(sandbox = %self.record.id, "egress rules changed");
        self.publish();
        Ok(())
    }
}
