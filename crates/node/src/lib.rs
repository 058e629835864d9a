//! One machine's sandboxes: life cycle, leases, metrics, logs and their records. Knows nothing of
//! HTTP beyond the few calls to its guests.
//!
//! [`Node`] is the entry point. Each sandbox has an owner, a task that alone changes it; the rules
//! of its life cycle are [`lifecycle::next`]; everything outside is behind [`ports`].

#![forbid(unsafe_code)]

mod build;
mod clock;
mod config;
mod create;
mod description;
mod egress;
mod egress_log;
mod error;
mod faults;
mod fork;
mod guest_call;
mod guest_config;
mod guest_files;
mod guest_process;
mod health;
mod id;
mod identity;
mod ingress;
pub mod lifecycle;
pub mod list;
pub mod log;
#[cfg(feature = "testing")]
pub mod memory;
pub mod metrics;
mod node;
mod owner;
pub mod ports;
pub mod records;
mod recover;
mod sandbox;
mod secret;
mod snapshot;
mod spares;
mod start_command;
mod state;
pub mod template;
mod templates;
mod volume;

pub use build::{
    ArchiveFormat, BuildError, BuildLine, BuildLog, BuildRequest, Layer, MOST_UPLOAD_BYTES, Origin, PlanError,
    StageRequest, Step, UploadError,
};
pub use clock::{Clock, RuntimeClock, SystemClock};
pub use config::SandboxesConfig;
pub use description::Description;
pub use egress::{
    EVERYTHING, Egress, InvalidEgress, Lists as EgressLists, ProxyLists as EgressProxy, ProxyTlsLists as EgressProxyTls,
};
pub use engine::{EngineCapabilities, EngineError, FilesId, Machine, Resources};
pub use error::{CreateError, FilesOwner, OpenError, SandboxError};
pub use faults::Point;
pub use health::{Fault, Health, Unwritable};
pub use id::{Token, new_files_id, new_sandbox_id};
pub use images::Credentials;
pub use ingress::Ingress;
pub use node::OnMissing;
pub use node::{Closing, Node, Reachability, Seen};
pub use owner::Resumed;
pub use protocol::{InvalidSandboxId, SandboxId};
pub use recover::{RecoverError, Recoverable, Recovered};
pub use sandbox::{Created, IdempotencyKey, NewSandbox, OnTimeout, PersistedState, Record, SandboxSpec};
pub use secret::{Secret, SecretError, SecretPage};
pub use snapshot::{Snapshot, SnapshotError, SnapshotPage, SnapshotQuery};
/// Contents of volumes.
pub mod volume_content {
    pub use engine::volume::{ContentError, Entry, InvalidPath, Kind, Owner, Staged, VolumeDirectory, VolumePath};
}

pub use state::RunningSandbox;
pub use volume::{Volume, VolumeError, VolumeMount};

/// The guest executable that the build embedded, process 1 of every sandbox.
pub fn guest_image() -> &'static [u8] {
    include_bytes!(env!("SANDBAR_GUEST_IMAGE"))
}
