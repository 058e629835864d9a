//! Watching a directory.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use buffa::Message;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use protocol::rpc::filesystem::watch_dir_response::Event;
use protocol::rpc::filesystem::{EntryInfo, EventType, FilesystemEvent, WatchDirRequest, WatchDirResponse};

use super::Files;
use super::entry::Entry;
use super::error::FileError;
use crate::sandbox::Sandbox;
use crate::transport::connect::Frame;
use crate::transport::{Call, Failure, Idempotency};
use crate::version::Feature;
use crate::watched::{StreamEnd, WatchedStream};

/// Options of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watch {
    recursive: bool,
    include_entry: bool,
    network_mounts: bool,
}

impl Watch {
    /// Includes everything below the directory, also directories created later.
    #[must_use]
    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }

    /// Adds the metadata of the file to each event, if it still exists.
    #[must_use]
    pub fn include_entry(mut self) -> Self {
        self.include_entry = true;
        self
    }

    /// Permits network mounts, where only changes by this sandbox are seen.
    #[must_use]
    pub fn network_mounts(mut self) -> Self {
        self.network_mounts = true;
        self
    }
}

/// A change in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEvent {
    /// Path relative to the directory.
    pub name: String,
    pub kind: FileEventKind,
    /// Present if [`Watch::include_entry`] is set and the file still exists.
    pub entry: Option<Entry>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileEventKind {
    /// Created, or moved here.
    Create,
    Write,
    Remove,
    /// Moved away.
    Rename,
    /// Permissions, owner or another attribute changed.
    Chmod,
}

/// The events of a directory since [`Files::watch`] returned. Dropping it ends the watch.
///
/// It ends only with an error, because events after a lost connection are missed.
pub struct FileEvents {
    events: BoxStream<'static, Result<FileEvent, FileError>>,
}

impl Stream for FileEvents {
    type Item = Result<FileEvent, FileError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context)
    }
}

impl fmt::Debug for FileEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileEvents").finish_non_exhaustive()
    }
}

impl Files<'_> {
    /// Watches a directory. Reports every event after this call has returned.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), sandbar_sdk::FileError> {
    /// use futures::TryStreamExt;
    /// use sandbar_sdk::Watch;
    ///
    /// let mut events = sandbox.files().watch("/home/user", Watch::default().recursive()).await?;
    /// while let Some(event) = events.try_next().await? {
    ///     println!("{:?} {}", event.kind, event.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] when it is not a directory;
    /// [`FileError::Call`].
    pub async fn watch(&self, path: &str, watch: Watch) -> Result<FileEvents, FileError> {
        let Watch { recursive, include_entry, network_mounts } = watch;
        let call = self.new_call("watch", path, Idempotency::Idempotent);
        for (wanted, feature) in [
            (recursive, Feature::RecursiveWatch),
            (include_entry, Feature::WatchedEntry),
            (network_mounts, Feature::NetworkMounts),
        ] {
            if wanted {
                self.sandbox.require(feature, &call.what)?;
            }
        }
        let message = WatchDirRequest {
            path: path.to_owned(),
            recursive,
            include_entry,
            allow_network_mounts: network_mounts,
            ..WatchDirRequest::default()
        };
        let (client, method) = (self.sandbox.client(), "/filesystem.Filesystem/WatchDir");
        let user = self.sandbox.user_for_daemon(self.user.as_deref());
        let frames = match self.sandbox.envd().stream(client.shared(), &call, method, user, None, &message).await {
            Ok(frames) => frames,
            Err(failure) => return Err(FileError::from_failure(self.sandbox, &call, path, failure).await),
        };
        let stream = WatchedStream::new(frames, self.sandbox);
        let mut watching = Watching { stream, sandbox: self.sandbox.clone(), call, path: path.to_owned() };
        let first = tokio::time::timeout_at(watching.call.deadline(), watching.next()).await;
        match first.map_err(|_| watching.call.deadline_exceeded())?? {
            Seen::Begun => {}
            Seen::Event(_) => return Err(watching.call.protocol_error("events before the watch began".into()).into()),
        }
        let events = stream::try_unfold(watching, |mut watching| async move {
            loop {
                if let Seen::Event(event) = watching.next().await? {
                    return Ok(Some((*event, watching)));
                }
            }
        });
        // The stream ends after an error.
        Ok(FileEvents { events: events.boxed() })
    }
}

struct Watching {
    stream: WatchedStream,
    sandbox: Sandbox,
    call: Call,
    path: String,
}

enum Seen {
    Begun,
    Event(Box<FileEvent>),
}

impl Watching {
    async fn next(&mut self) -> Result<Seen, FileError> {
        loop {
            let ended = match self.stream.next(&self.sandbox).await {
                Ok(Frame::Message(message)) => match decode(&message) {
                    Ok(Some(seen)) => return Ok(seen),
                    Ok(None) => continue,
                    Err(detail) => StreamEnd::Garbled(detail),
                },
                Ok(Frame::End(Some(refusal))) => {
                    let failure = Failure::Refused(refusal);
                    return Err(FileError::from_failure(&self.sandbox, &self.call, &self.path, failure).await);
                }
                Ok(Frame::End(None)) => self.sandbox.diagnose("the watch ended".into()).await,
                Err(ended) => ended,
            };
            return Err(FileError::from_stream_end(&self.sandbox, &self.call, &self.path, ended));
        }
    }
}

fn decode(message: &Bytes) -> Result<Option<Seen>, String> {
    let answer = WatchDirResponse::decode_from_slice(message).map_err(|error| error.to_string())?;
    Ok(match answer.event {
        Some(Event::Start(_)) => Some(Seen::Begun),
        Some(Event::Filesystem(event)) => {
            let FilesystemEvent { name, r#type, entry, .. } = *event;
            let kind = match r#type.as_known() {
                Some(EventType::EVENT_TYPE_CREATE) => FileEventKind::Create,
                Some(EventType::EVENT_TYPE_WRITE) => FileEventKind::Write,
                Some(EventType::EVENT_TYPE_REMOVE) => FileEventKind::Remove,
                Some(EventType::EVENT_TYPE_RENAME) => FileEventKind::Rename,
                Some(EventType::EVENT_TYPE_CHMOD) => FileEventKind::Chmod,
                // An event kind of a newer server; skipped.
                Some(EventType::EVENT_TYPE_UNSPECIFIED) | None => return Ok(None),
            };
            let entry: Option<EntryInfo> = entry.into();
            Some(Seen::Event(Box::new(FileEvent { name, kind, entry: entry.map(Entry::from) })))
        }
        Some(Event::Keepalive(_)) | None => None,
    })
}
