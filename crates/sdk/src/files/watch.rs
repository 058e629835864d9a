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
use crate::transport::{Call, Failure, Repeat};
use crate::version::Feature;
use crate::watched::{Ended, Watched};

/// What to watch, and how much to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watch {
    recursive: bool,
    include_entry: bool,
    network_mounts: bool,
}

impl Watch {
    /// Everything below the directory too, also what is made later.
    #[must_use]
    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }

    /// Events carry what is known of their file, when it still exists.
    #[must_use]
    pub fn include_entry(mut self) -> Self {
        self.include_entry = true;
        self
    }

    /// Directories on network mounts too, where only changes of this sandbox are seen.
    #[must_use]
    pub fn network_mounts(mut self) -> Self {
        self.network_mounts = true;
        self
    }
}

/// Something that happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEvent {
    /// Relative to the directory.
    pub name: String,
    pub kind: FileEventKind,
    /// When [`Watch::include_entry`] asked for it and it still exists.
    pub entry: Option<Entry>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileEventKind {
    /// Made, or moved to here.
    Create,
    Write,
    Remove,
    /// Moved away from here.
    Rename,
    /// Permissions, owner or another attribute changed.
    Chmod,
}

/// What happens in a directory, from the moment [`Files::watch`] returned. Dropping it ends the watch.
///
/// It ends with an error and never silently: events behind a lost connection are missed.
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
    /// Watches a directory. Whatever happens after this has returned is told.
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
    /// [`FileError::NotFound`]; [`FileError::Invalid`] when it is no directory.
    pub async fn watch(&self, path: &str, watch: Watch) -> Result<FileEvents, FileError> {
        let Watch { recursive, include_entry, network_mounts } = watch;
        let call = self.named("watch", path, Repeat::Harmless);
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
        let user = self.sandbox.user_to_name(self.user.as_deref());
        let frames = match self.sandbox.envd().stream(client.shared(), &call, method, user, None, &message).await {
            Ok(frames) => frames,
            Err(failure) => return Err(FileError::of(self.sandbox, &call, path, failure).await),
        };
        let stream = Watched::new(frames, self.sandbox);
        let mut watching = Watching { stream, sandbox: self.sandbox.clone(), call, path: path.to_owned() };
        let first = tokio::time::timeout_at(watching.call.deadline(), watching.next()).await;
        match first.map_err(|_| watching.call.out_of_time())?? {
            Seen::Begun => {}
            Seen::Event(_) => return Err(watching.call.misunderstood("events before the watch began".into()).into()),
        }
        let events = stream::try_unfold(watching, |mut watching| async move {
            loop {
                if let Seen::Event(event) = watching.next().await? {
                    return Ok(Some((*event, watching)));
                }
            }
        });
        // After an error there is nothing more.
        Ok(FileEvents { events: events.boxed() })
    }
}

struct Watching {
    stream: Watched,
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
                    Err(detail) => Ended::Garbled(detail),
                },
                Ok(Frame::End(Some(refusal))) => {
                    let failure = Failure::Refused(refusal);
                    return Err(FileError::of(&self.sandbox, &self.call, &self.path, failure).await);
                }
                Ok(Frame::End(None)) => self.sandbox.fate("the watch ended".into()).await,
                Err(ended) => ended,
            };
            return Err(FileError::of_end(&self.sandbox, &self.call, &self.path, ended));
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
                // Of a newer server; this client has no word for it.
                Some(EventType::EVENT_TYPE_UNSPECIFIED) | None => return Ok(None),
            };
            let entry: Option<EntryInfo> = entry.into();
            Some(Seen::Event(Box::new(FileEvent { name, kind, entry: entry.map(Entry::from) })))
        }
        Some(Event::Keepalive(_)) | None => None,
    })
}
