//! Failures of control-plane calls. The body repeats the status: some clients read one, some the
//! other.

use std::error::Error;

use http::{HeaderValue, Response, StatusCode};
use node::template::{ChangeError, TemplateError};
use node::{
    BuildError, CreateError, EngineError, FilesOwner, InvalidSandboxId, RecoverError, SandboxError, SecretError,
    SnapshotError, UploadError, VolumeError,
};
use protocol::headers::SHOULD_RETRY;
use protocol::rest::{ErrorBody, SANDBOX_FILES_MISSING, TEMPLATE_FILES_MISSING, VOLUME_FILES_MISSING};

use crate::body::{self, Body};

#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    /// For the operator's log, if the fault is the server's; the caller gets only the message.
    causes: Option<String>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None, causes: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    fn with_code(self, error_code: &'static str) -> Self {
        Self { error_code: Some(error_code), ..self }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn causes(&self) -> Option<&str> {
        self.causes.as_deref()
    }

    /// The failure as part of another response.
    pub(super) fn body(self) -> ErrorBody {
        let Self { status, message, error_code, causes: _ } = self;
        ErrorBody { code: status.as_u16(), message, error_code: error_code.map(str::to_owned) }
    }

    pub(super) fn answer(self) -> Response<Body> {
        let status = self.status;
        let mut response = body::json(status, &self.body());
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            // Newer SDKs retry such calls by themselves; these failures are deliberate, and a retry
            // changes nothing.
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<InvalidSandboxId> for Failure {
    fn from(_: InvalidSandboxId) -> Self {
        // E2B's text, which clients know.
        Self::bad_request("Invalid sandbox ID")
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        let status = match error {
            TemplateError::Malformed(_) => StatusCode::BAD_REQUEST,
            TemplateError::NotFound(_) | TemplateError::NoTag { .. } => StatusCode::NOT_FOUND,
        };
        Self::new(status, error.to_string())
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        match &error {
            // A paused sandbox has no timeout and no guest: callers that need them get "not found".
            SandboxError::NotFound(_) | SandboxError::NotRunning { .. } => {
                Self::new(StatusCode::NOT_FOUND, error.to_string())
            }
            SandboxError::AlreadyPaused(_) | SandboxError::AlreadyRunning(_) => {
                Self::new(StatusCode::CONFLICT, error.to_string())
            }
            SandboxError::GuestUnresponsive(_) => Self::new(StatusCode::CONFLICT, error.to_string())
                .with_code("sandbox_snapshot_guest_agent_unresponsive"),
            SandboxError::VolumeGone(_) => Self::bad_request(format!("volumeMounts: {error}")),
            SandboxError::FilesMissing { owner, .. } => {
                let code = match owner {
                    FilesOwner::Sandbox(_) => SANDBOX_FILES_MISSING,
                    FilesOwner::Template(_) => TEMPLATE_FILES_MISSING,
                    FilesOwner::Volume(_) => VOLUME_FILES_MISSING,
                };
                Self::new(StatusCode::GONE, error.to_string()).with_code(code)
            }
            // The files that a build starts from; sandboxes and volumes name the owner of theirs.
            SandboxError::Engine(EngineError::FilesMissing { .. }) => {
                Self::new(StatusCode::GONE, error.to_string()).with_code(TEMPLATE_FILES_MISSING)
            }
            SandboxError::Full { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()),
            SandboxError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            SandboxError::Engine(EngineError::NoSpace(_) | EngineError::ReadOnly(_)) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            SandboxError::Records(records) if let Some(refused) = records.unwritable() => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, format!("{error}: {refused}"))
            }
            SandboxError::Engine(EngineError::Failed { .. }) | SandboxError::Records(_) => {
                let failure = Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
                Self { causes: Some(with_causes(&error)), ..failure }
            }
        }
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Name(error) => Self::bad_request(error.to_string()),
            SnapshotError::Taken(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            SnapshotError::Sandbox(error) => error.into(),
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::InvalidName(_) | VolumeError::Taken(_) => Self::bad_request(error.to_string()),
            VolumeError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            VolumeError::InUse { .. } => Self::new(StatusCode::CONFLICT, error.to_string()),
            VolumeError::Node(error) => error.into(),
        }
    }
}

impl From<RecoverError> for Failure {
    fn from(error: RecoverError) -> Self {
        match error {
            RecoverError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            RecoverError::Node(error) => error.into(),
        }
    }
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::InvalidName(_) | SecretError::InvalidValue | SecretError::InvalidMetadata(_) => {
                Self::bad_request(error.to_string())
            }
            SecretError::Taken(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            SecretError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            SecretError::Node(error) => error.into(),
        }
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Template(error) => error.into(),
            ChangeError::Fixed(_) => Self::new(StatusCode::FORBIDDEN, error.to_string()),
            ChangeError::InUse { .. } | ChangeError::InvalidTag(_) | ChangeError::DefaultTag => {
                Self::bad_request(error.to_string())
            }
            ChangeError::Records(error) => SandboxError::from(error).into(),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Template(error) => error.into(),
            BuildError::Node(error) => error.into(),
            BuildError::Fixed(_) | BuildError::IsSnapshot(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            BuildError::InvalidTag(_)
            | BuildError::InvalidHash(_)
            | BuildError::Unknown { .. }
            | BuildError::NotWaiting(_)
            | BuildError::Plan(_) => Self::bad_request(error.to_string()),
        }
    }
}

impl From<UploadError> for Failure {
    fn from(error: UploadError) -> Self {
        let status = match &error {
            UploadError::Denied => StatusCode::FORBIDDEN,
            UploadError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            UploadError::NoSpace(_) => StatusCode::INSUFFICIENT_STORAGE,
            UploadError::Incomplete => StatusCode::BAD_REQUEST,
            UploadError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let causes = matches!(error, UploadError::Io(_)).then(|| with_causes(&error));
        Self { causes, ..Self::new(status, error.to_string()) }
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::KeyMismatch => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).with_code("idempotency_request_mismatch")
            }
            CreateError::KeyInProgress => {
                Self::new(StatusCode::CONFLICT, error.to_string()).with_code("idempotency_in_progress")
            }
            CreateError::Sandbox(error) => error.into(),
        }
    }
}

fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |cause| (**cause).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
