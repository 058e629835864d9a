//! Creating a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use protocol::rest::{self, AutoResume, NewSandbox, VolumeMount};

use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::Failure;

/// Defaults of the official SDKs.
const TEMPLATE: &str = "base";
const LIFETIME: Duration = Duration::from_secs(300);

/// A sandbox to create. `"base".into()` uses a template and defaults for everything else.
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
            // API version 1 secures a sandbox only on request.
            secure: Some(true),
            ..NewSandbox::default()
        };
        Self { body, key: None }
    }

    /// Its lifetime from now, unless extended; five minutes by default.
    #[must_use]
    pub fn timeout(mut self, lifetime: Duration) -> Self {
        self.body.timeout = Some(seconds(lifetime));
        self
    }

    /// Adds a metadata pair, which lists can filter by.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.body.metadata.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// Adds an environment variable for every command.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.body.env_vars.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Sets the environment variables of every command.
    #[must_use]
    pub fn envs(mut self, variables: BTreeMap<String, String>) -> Self {
        self.body.env_vars.get_or_insert_default().extend(variables);
        self
    }

    /// Pauses it with its memory at the end of its lifetime, instead of killing it.
    #[must_use]
    pub fn pause_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self
    }

    /// Pauses it without its memory at the end of its lifetime, instead of killing it.
    #[must_use]
    pub fn pause_files_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self.body.auto_pause_memory = Some(false);
        self
    }

    /// Resumes it when a request for one of its ports arrives while it is paused.
    #[must_use]
    pub fn resume_on_traffic(mut self) -> Self {
        self.body.auto_resume = Some(AutoResume { enabled: true });
        self
    }

    /// Creates it without an access token: its daemon and files are open to anyone who knows the
    /// id. Only for servers without token support.
    #[must_use]
    pub fn unsecured(mut self) -> Self {
        self.body.secure = Some(false);
        self
    }

    /// Whether it reaches the internet; true by default.
    #[must_use]
    pub fn internet(mut self, allowed: bool) -> Self {
        self.body.allow_internet_access = Some(allowed);
        self
    }

    /// Ingress and egress rules.
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

    /// CPU count; Sandbar only: on E2B the template defines the size.
    #[must_use]
    pub fn cpu_count(mut self, count: u32) -> Self {
        self.body.cpu_count = Some(count.into());
        self
    }

    /// Memory; Sandbar only: on E2B the template defines the size.
    #[must_use]
    pub fn memory_mb(mut self, size: u32) -> Self {
        self.body.memory_mb = Some(size.into());
        self
    }

    /// Disk; Sandbar only: on E2B the template defines the size.
    #[must_use]
    pub fn disk_size_mb(mut self, size: u32) -> Self {
        self.body.disk_size_mb = Some(size.into());
        self
    }

    /// Deduplicates creates with this key, also across processes. By default each call has its own
    /// key, so that a retry after a lost response creates no second sandbox on servers that support
    /// keys.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// A sandbox that was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("cannot create a sandbox from {template:?}: {message}")]
    TemplateNotFound { template: String, message: String },
    /// The idempotency key was used for another request, or its request is still running.
    #[error("cannot create a sandbox: the idempotency key is taken: {message}")]
    KeyTaken { message: String },
    /// The service has a record of the template, snapshot or volume but not its files. Rebuild it.
    #[error("cannot create a sandbox from {template:?}: {message}")]
    FilesMissing { template: String, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Client {
    /// Creates a sandbox and waits until it runs.
    ///
    /// Dropping the future stops waiting; a sandbox created meanwhile ends with its lifetime.
    ///
    /// # Errors
    /// [`CreateError::TemplateNotFound`], [`CreateError::KeyTaken`], [`CreateError::FilesMissing`],
    /// [`CreateError::Call`].
    pub async fn create(&self, create: impl Into<Create> + Send) -> Result<Sandbox, CreateError> {
        let Create { body, key } = create.into();
        let template = body.template_id.clone().unwrap_or_default();
        let key = key.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        let what = format!("create a sandbox from {template:?}");
        let request = Request::new(self, Method::POST, "/v2/sandboxes", what).body(&body).with_idempotency_key(key);
        match request.json_with_v1_fallback::<rest::Sandbox>("/sandboxes").await {
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

/// Rounds up to whole seconds, the protocol's unit, so that a lifetime is never shortened.
pub(super) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).unwrap_or(i64::MAX)
}
