//! What the guest of a sandbox reads at its start.

use engine::{Engine, EngineError};
use protocol::SandboxId;
use protocol::guest::GuestConfig;

/// Writes `guest` for a boot of the sandbox `id`, with the variables that its root file system
/// needs, unless `guest` has them.
pub(crate) async fn encode(
    engine: &dyn Engine,
    id: &SandboxId,
    mut guest: GuestConfig,
) -> Result<Vec<u8>, EngineError> {
    for (name, value) in engine.environment(id).await? {
        guest.env_vars.entry(name).or_insert(value);
    }
    serde_json::to_vec(&guest).map_err(|error| EngineError::failed("cannot write the guest's config", error))
}
