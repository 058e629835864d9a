//! Egress rules of a sandbox, at its boot and while it runs.

use std::sync::Arc;

use egress::Policy;
use tracing::info;

use super::Owner;
use crate::egress::Egress;
use crate::error::SandboxError;
use crate::lifecycle::State;
use crate::log::LogLevel;

impl Owner {
    /// The policy of the record, which writes its decisions to the sandbox's log.
    pub(crate) fn egress_policy(&self) -> Policy {
        let (notes, clock) = (Arc::clone(&self.notes), Arc::clone(&self.node_state.clock));
        let secrets = Arc::clone(&self.node_state.secrets);
        Policy {
            rules: self.record.egress_rules(),
            journal: Arc::new(move |decision| notes.record_decision(clock.now(), decision)),
            secrets: Arc::new(move |name| secrets.value(name).map(|value| value.reveal().to_owned())),
        }
    }

    /// Replaces the egress rules. They apply to a paused sandbox from its resume on.
    pub(super) async fn set_egress(
        &mut self,
        egress: Egress,
        allow_internet: Option<bool>,
    ) -> Result<(), SandboxError> {
        if !matches!(self.state, State::Running | State::Paused(_)) {
            return Err(SandboxError::NotRunning { id: self.record.id.clone(), state: self.state });
        }
        let before = self.record.clone();
        (self.record.spec.egress, self.record.spec.allow_internet) = (egress, allow_internet);
        if let Err(error) = self.node_state.records.put(&self.record).await {
            self.record = before;
            return Err(error.into());
        }
        self.describe().await;
        if let Some(machine) = self.machine.clone() {
            // Before the rules: requests whose headers they set fail without the certificate.
            if self.state == State::Running {
                self.install_certificate(&machine).await;
            }
            machine.set_egress_rules(self.record.egress_rules());
        }
        self.note(LogLevel::Info, "what the sandbox may reach was changed");
        info!(sandbox = %self.record.id, "egress rules changed");
        self.publish();
        Ok(())
    }
}
