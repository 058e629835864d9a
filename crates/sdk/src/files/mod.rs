//! The files of a sandbox.

mod body;
mod entry;
mod error;
mod list;
mod read;
mod replace;
mod url;
mod watch;
mod write;

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

pub use entry::{Entry, EntryKind};
pub use error::FileError;
pub use read::FileStream;
pub use replace::OnlyOver;
pub use url::Expiry;
pub use watch::{FileEvent, FileEventKind, FileEvents, Watch};

use crate::sandbox::Sandbox;
use crate::transport::{Call, Idempotency};

/// Leaves unreserved characters and `/` as they are in a query.
const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

impl Sandbox {
    /// The files of this sandbox.
    pub fn files(&self) -> Files<'_> {
        Files { sandbox: self, user: None, metadata: BTreeMap::new() }
    }
}

/// The files of a sandbox. Relative paths start at the user's home.
///
/// ```no_run
/// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), sandbar_sdk::FileError> {
/// let files = sandbox.files();
/// files.write("notes/today.txt", "buy bread").await?;
/// assert_eq!(files.read_text("notes/today.txt").await?, "buy bread");
/// for entry in files.list("notes").await? {
///     println!("{} {}", entry.permissions, entry.name);
/// }
/// files.as_user("root").write("/etc/motd", "welcome").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Files<'a> {
    sandbox: &'a Sandbox,
    user: Option<String>,
    metadata: BTreeMap<String, String>,
}

impl Files<'_> {
    /// Acts as another user: relative paths start at its home, and it owns new files.
    #[must_use]
    pub fn as_user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// Adds a metadata pair to every file written by this handle; [`Entry::metadata`] returns it.
    /// Each write replaces all earlier metadata. Keys are lower case, values printable ASCII.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    fn new_call(&self, verb: &str, path: &str, idempotency: Idempotency) -> Call {
        let what = format!("{verb} {path:?} in sandbox {}", self.sandbox.id());
        Call::new(what, idempotency, self.sandbox.client().deadline())
    }

    /// The daemon's URL path for a file, with its query.
    fn target(&self, path: Option<&str>) -> String {
        let mut target = String::from("/files");
        let user = self.sandbox.user_for_daemon(self.user.as_deref());
        for (name, value) in [("path", path), ("username", user)] {
            if let Some(value) = value {
                target.push(if target.contains('?') { '&' } else { '?' });
                target.push_str(name);
                target.push('=');
                target.extend(encoded(value));
            }
        }
        target
    }
}

fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, IN_QUERY)
}
