//! The body of error responses.

use serde::{Deserialize, Serialize};

/// The body of every error response. `code` repeats the status: JS clients read `code`, Python
/// clients the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The HTTP status.
    pub code: u16,
    /// What failed, and what to do next.
    pub message: String,
    /// For programs, where the status alone is ambiguous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

/// `error_code` of a 410: the sandbox has a record, but its files are missing from the server's
/// pool. The server neither boots it empty nor removes the record. A client restores its own copy;
/// an operator runs `sandbar recover`.
pub const SANDBOX_FILES_MISSING: &str = "sandbox_files_missing";

/// `error_code` of a 410: the files of the template or snapshot are missing. Rebuild it.
pub const TEMPLATE_FILES_MISSING: &str = "template_files_missing";

/// `error_code` of a 410: the files of a volume are missing.
pub const VOLUME_FILES_MISSING: &str = "volume_files_missing";
