//! Uploaded archives of build contexts, by template and by the hash that the client chose, which
//! proves nothing. The server never unpacks them outside of a sandbox.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use super::plan::is_hash;
use crate::id::Token;

/// Largest archive.
pub const MOST_BYTES: u64 = 8 << 30;
/// How long a link is valid.
const LINK_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Longest time without a byte from a client that uploads.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Prefix of files that are still being written.
const UNFINISHED: &str = ".part-";

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("the link is unknown or no longer good")]
    Denied,
    #[error("an archive of {0} bytes is too large; {MOST_BYTES} are allowed")]
    TooLarge(u64),
    #[error("there is no room for an archive of {0} bytes")]
    NoSpace(u64),
    #[error("the archive did not arrive whole")]
    Incomplete,
    #[error("cannot keep the archive")]
    Io(#[from] io::Error),
}

pub(crate) struct Uploads {
    root: PathBuf,
    /// By a digest of the token, so that the time of a lookup reveals nothing about it.
    links: Mutex<HashMap<[u8; 32], Link>>,
}

struct Link {
    template: String,
    hash: String,
    ends: Instant,
}

async fn remove_unfinished(template: &Path) -> io::Result<()> {
    let mut files = fs::read_dir(template).await?;
    while let Some(file) = files.next_entry().await? {
        if file.file_name().to_string_lossy().starts_with(UNFINISHED) {
            drop(Draft(file.path()));
        }
    }
    Ok(())
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

impl Uploads {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), links: Mutex::default() }
    }

    /// Removes unfinished uploads and archives of templates that are not `is_known`. Logs what
    /// cannot be removed.
    pub(crate) async fn sweep(&self, is_known: impl Fn(&str) -> bool) -> io::Result<()> {
        fs::create_dir_all(&self.root).await?;
        let mut templates = fs::read_dir(&self.root).await?;
        while let Some(template) = templates.next_entry().await? {
            let path = template.path();
            let swept = if template.file_name().to_str().is_some_and(&is_known) {
                remove_unfinished(&path).await
            } else if template.file_type().await?.is_dir() {
                fs::remove_dir_all(&path).await
            } else {
                fs::remove_file(&path).await
            };
            if let Err(error) = swept {
                warn!(path = %path.display(), %error, "archives of builds are left");
            }
        }
        Ok(())
    }

    /// Removes all archives of a template; succeeds if there are none.
    pub(crate) async fn remove(&self, template: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.root.join(template)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The path of the archive, whether it exists or not. `template` is an ID that this server
    /// made.
    pub(crate) fn path(&self, template: &str, hash: &str) -> Option<PathBuf> {
        is_hash(hash).then(|| self.root.join(template).join(hash))
    }

    /// Returns the path of a new file of `template`, which is removed when the draft is dropped, or
    /// at the next start if the server dies.
    pub(crate) async fn draft(&self, template: &str) -> io::Result<Draft> {
        let directory = self.root.join(template);
        fs::create_dir_all(&directory).await?;
        Ok(Draft(directory.join(format!("{UNFINISHED}{}", Uuid::new_v4()))))
    }

    /// Returns a token with which the archive can be uploaded once.
    pub(crate) fn link(&self, template: &str, hash: &str) -> Token {
        let (token, now) = (Token::random(), Instant::now());
        let mut links = self.links();
        links.retain(|_, link| link.ends > now);
        let link = Link { template: template.to_owned(), hash: hash.to_owned(), ends: now + LINK_TIMEOUT };
        links.insert(digest(token.reveal()), link);
        token
    }

    fn links(&self) -> MutexGuard<'_, HashMap<[u8; 32], Link>> {
        self.links.lock()
    }

    /// Refuses `length` bytes if the disk of `directory` would then have less free than the
    /// reserve.
    pub(crate) fn check_free_space(directory: &Path, length: u64) -> Result<(), UploadError> {
        if durable::writable_bytes(directory)? < length { Err(UploadError::NoSpace(length)) } else { Ok(()) }
    }

    /// Keeps the bytes of `body`, complete or not at all.
    pub(crate) async fn store<E>(
        &self,
        (template, hash, token): (&str, &str, &str),
        length: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<(), UploadError> {
        let link = digest(token);
        let good = |link: &Link| link.template == template && link.hash == hash && link.ends > Instant::now();
        let allowed = self.links().get(&link).is_some_and(good);
        let path = self.path(template, hash).filter(|_| allowed).ok_or(UploadError::Denied)?;
        if length > MOST_BYTES {
            return Err(UploadError::TooLarge(length));
        }
        let directory = self.root.join(template);
        fs::create_dir_all(&directory).await?;
        Self::check_free_space(&directory, length)?;
        let draft = self.draft(template).await?;
        receive(draft.path(), length, body).await?;
        let from = draft.path().to_owned();
        let renamed = tokio::task::spawn_blocking(move || durable::rename(&from, &path)).await;
        renamed.map_err(io::Error::other)??;
        // Only after the rename: a client whose connection broke can send again.
        self.links().remove(&link);
        Ok(())
    }
}

/// A file or directory that is removed on drop unless it was renamed, also when a client stops
/// sending and its call is dropped.
pub(crate) struct Draft(PathBuf);

impl Draft {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Ignored: the file is absent if it could not be created or was renamed.
        let _ = if self.0.is_dir() { std::fs::remove_dir_all(&self.0) } else { std::fs::remove_file(&self.0) };
    }
}

async fn receive<E>(
    path: &Path,
    length: u64,
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<(), UploadError> {
    let mut file = File::create_new(path).await?;
    let mut received = 0;
    while let Some(piece) =
        tokio::time::timeout(IDLE_TIMEOUT, body.next()).await.map_err(|_| UploadError::Incomplete)?
    {
        let piece = piece.map_err(|_| UploadError::Incomplete)?;
        received += piece.len() as u64;
        if received > length {
            return Err(UploadError::Incomplete);
        }
        file.write_all(&piece).await?;
    }
    if received != length {
        return Err(UploadError::Incomplete);
    }
    Ok(file.sync_all().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &'static [&'static str]) -> impl Stream<Item = io::Result<Bytes>> + Unpin {
        futures::stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
    }

    fn left(root: &Path) -> usize {
        std::fs::read_dir(root.join("t1")).map_or(0, Iterator::count)
    }

    #[tokio::test]
    async fn an_archive_is_kept_whole_or_not_at_all() {
        let root = tempfile::tempdir().expect("a directory");
        let uploads = Uploads::new(root.path());
        let hash = "a".repeat(64);
        let send = async |hash: &str, token: &str, length, pieces| {
            uploads.store(("t1", hash, token), length, body(pieces)).await
        };
        let token = uploads.link("t1", &hash);
        for (length, pieces) in [(5, &["1234"][..]), (3, &["12", "34"]), (0, &["1"])] {
            let refused = send(&hash, token.reveal(), length, pieces).await;
            assert!(matches!(refused, Err(UploadError::Incomplete)), "{refused:?}");
            assert_eq!(left(root.path()), 0);
        }
        assert!(matches!(send(&hash, token.reveal(), u64::MAX, &[]).await, Err(UploadError::TooLarge(_))));
        assert!(matches!(
            send(&hash, token.reveal(), MOST_BYTES, &[]).await,
            Err(UploadError::Incomplete | UploadError::NoSpace(_))
        ));
        send(&hash, token.reveal(), 4, &["12", "34"]).await.expect("the link is still good");
        let path = uploads.path("t1", &hash).expect("a hash");
        assert_eq!(std::fs::read_to_string(path).expect("it is there"), "1234");
        let again = send(&hash, token.reveal(), 4, &["12", "34"]).await;
        assert!(matches!(again, Err(UploadError::Denied)), "a link is good once: {again:?}");
    }

    #[tokio::test]
    async fn links_are_for_one_archive_and_names_stay_inside() {
        let root = tempfile::tempdir().expect("a directory");
        let uploads = Uploads::new(root.path());
        let (hash, other) = ("a".repeat(64), "b".repeat(64));
        for (template, wanted) in [("t1", other.as_str()), ("t2", &hash), ("t1", "../../x"), ("t1", "")] {
            let token = uploads.link("t1", &hash);
            let refused = uploads.store((template, wanted, token.reveal()), 1, body(&["x"])).await;
            assert!(matches!(refused, Err(UploadError::Denied)), "{template} {wanted}");
        }
        for bad in ["", "../x", &"A".repeat(64), &"a".repeat(63), &format!("{}/", "a".repeat(63))] {
            assert_eq!(uploads.path("t1", bad), None, "{bad}");
        }
        assert_eq!(left(root.path()), 0);
    }

    #[tokio::test]
    async fn the_next_start_removes_unfinished_and_unknown_uploads() {
        let root = tempfile::tempdir().expect("a directory");
        let make = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(path, "x").expect("a file");
        };
        make("t1/whole");
        make("t1/.part-1");
        make("t2/whole");
        std::fs::write(root.path().join("stray"), "").expect("written");
        Uploads::new(root.path()).sweep(|id| id == "t1").await.expect("it sweeps");
        assert_eq!(left(root.path()), 1);
        assert!(!root.path().join("t2").exists() && !root.path().join("stray").exists());
    }
}
