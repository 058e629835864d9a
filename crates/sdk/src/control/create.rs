//! Making a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use protocol::rest::{self, AutoResume, NewSandbox, VolumeMount};

use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::Failure;

/// What the official SDKs ask for when nothing is said.
const TEMPLATE: &str = "base";
const LIFETIME: Duration = Duration::from_secs(300);

/// A sandbox to be made. `"base".into()` is one from a template with everything else by default.
#[derive(Debug, Clone)]
pub struct Create {
    body: NewSandbox,
    key: Option<String>,
}

impl Default for Create {
    fn default() -> Self {
        Self::template(TEMPLATE)
    }
}

impl From<&str> for Create {
    fn from(template: &str) -> Self {
        Self::template(template)
    }
}

impl Create {
    /// From a template, by id, name or `name:tag`, or from a snapshot.
    pub fn template(template: impl Into<String>) -> Self {
        let body = NewSandbox {
            template_id: Some(template.into()),
            timeout: Some(seconds(LIFETIME)),
            // The first generation secures only when asked to.
            secure: Some(true),
            ..NewSandbox::default()
        };
        Self { body, key: None }
    }

    /// How long it lives from now, unless extended; five minutes unless set.
    #[must_use]
    pub fn timeout(mut self, lifetime: Duration) -> Self {
        self.body.timeout = Some(seconds(lifetime));
        self
    }

    /// A pair that lists can be filtered by.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.body.metadata.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// A variable that every command sees.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.body.env_vars.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Variables that every command sees.
    #[must_use]
    pub fn envs(mut self, variables: BTreeMap<String, String>) -> Self {
        self.body.env_vars.get_or_insert_default().extend(variables);
        self
    }

    /// Pauses at the end of its life instead of being killed, and keeps its memory.
    #[must_use]
    pub fn pause_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self
    }

    /// Pauses at the end of its life, keeping only its files.
    #[must_use]
    pub fn pause_files_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self.body.auto_pause_memory = Some(false);
        self
    }

    /// Wakes when one of its ports is asked for while it is paused.
    #[must_use]
    pub fn resume_on_traffic(mut self) -> Self {
        self.body.auto_resume = Some(AutoResume { enabled: true });
        self
    }

    /// Leaves its daemon and signed links open to whoever knows the id. Only for servers that know no tokens.
    #[must_use]
    pub fn unsecured(mut self) -> Self {
        self.body.secure = Some(false);
        self
    }

    /// Whether it reaches the internet; it does unless set.
    #[must_use]
    pub fn internet(mut self, allowed: bool) -> Self {
        self.body.allow_internet_access = Some(allowed);
        self
    }

    /// Who may reach it, and what it may reach.
    #[must_use]
    pub fn network(mut self, network: rest::Network) -> Self {
        self.body.network = Some(network);
        self
    }

    /// Mounts the volume `name` at `path`.
    #[must_use]
    pub fn volume(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.body.volume_mounts.get_or_insert_default().push(VolumeMount { name: name.into(), path: path.into() });
        self
    }

    /// Processors; Sandbar's servers take it, E2B's sizes come with the template.
    #[must_use]
    pub fn cpu_count(mut self, count: u32) -> Self {
        self.body.cpu_count = Some(count.into());
        self
    }

    /// Memory; Sandbar's servers take it, E2B's sizes come with the template.
    #[must_use]
    pub fn memory_mb(mut self, size: u32) -> Self {
        self.body.memory_mb = Some(size.into());
        self
    }

    /// Disk; Sandbar's servers take it, E2B's sizes come with the template.
    #[must_use]
    pub fn disk_size_mb(mut self, size: u32) -> Self {
        self.body.disk_size_mb = Some(size.into());
        self
    }

    /// Makes creates with this key one create, also from another process. Unless set, each call has a key of its own, so
    /// that a repeat after a lost answer makes no second sandbox on servers that honour it.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// A sandbox that was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("cannot create a sandbox from {template:?}: {message}")]
    TemplateNotFound { template: String, message: String },
    /// The idempotency key was used before, for another request or one that still runs.
    #[error("cannot create a sandbox: the idempotency key is taken: {message}")]
    KeyTaken { message: String },
    /// The service knows the template, snapshot or volume and does not have its files. Build it
    /// again.
    #[error("cannot create a sandbox from {template:?}: {message}")]
    FilesMissing { template: String, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Client {
    /// Makes a sandbox and waits until it runs.
    ///
    /// Dropping the future gives up waiting: a sandbox that was made nonetheless ends by its
    /// lifetime.
    ///
    /// # Errors
    /// [`CreateError::TemplateNotFound`], [`CreateError::FilesMissing`], or what may happen to any
    /// call.
    pub async fn create(&self, create: impl Into<Create> + Send) -> Result<Sandbox, CreateError> {
        let Create { body, key } = create.into();
        let template = body.template_id.clone().unwrap_or_default();
        let key = key.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        let what = format!("create a sandbox from {template:?}");
        let request = Request::new(self, Method::POST, "/v2/sandboxes", what).body(&body).keyed(key);
        match request.json_of_either::<rest::Sandbox>("/sandboxes").await {
            Ok(made) => Ok(Sandbox::new(self, made)?),
            Err(Failure::Refused(refusal)) => Err(match refusal.status {
                410 if refusal.is(rest::TEMPLATE_FILES_MISSING) || refusal.is(rest::VOLUME_FILES_MISSING) => {
                    CreateError::FilesMissing { template, message: refusal.message }
                }
                404 => CreateError::TemplateNotFound { template, message: refusal.message },
                409 | 422 if refusal.code.as_deref().is_some_and(|code| code.starts_with("idempotency")) => {
                    CreateError::KeyTaken { message: refusal.message }
                }
                _ => refusal.into_error(&request.call).into(),
            }),
            Err(Failure::Call(error)) => Err(error.into()),
        }
    }
}

/// What the protocol counts in; a part of a second counts whole, so that a lifetime is never cut short.
pub(super) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).unwrap_or(i64::MAX)
}
