//! Files of a sandbox. E2B uploads write in place, so a replacement is uploaded to a temporary file
//! and renamed over the target.

use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use sdk::{CallError, Command, EntryKind, FileError, FileStream, OnlyOver};
use tokio::time::{Instant, sleep, timeout};

use super::machine::{SHARED, SandboxMachine, file_error, with_resume};
use crate::file_cache::{Hasher, digest};
use crate::paths;
use crate::port::{Basis, Fetch, Fetched, Files, Kind, Listed, PortError, Stat, Window, Windowed};

/// The mode of an uploaded file.
const UPLOAD_MODE: u32 = 0o644;
/// More of a large file than any result shows.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Larger than any file that the tools change: a longer one has different content.
const MAX_COMPARED: usize = 64 * 1024 * 1024 + 1;
/// An older lock was left behind by a process that died.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(15);
/// Timeout for our own short programs.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Pseudo files may never end.
const PSEUDO_FILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Cuts lines out of a file in bounded memory. $1 path, $2 first, $3 count, $4 count all or not
const WINDOW: &str = r#"
if [ "$4" = 1 ]; then
    n=$(wc -l <"$1") && [ -n "$(tail -c 1 -- "$1" | tr -d '\n')" ] && n=$((n + 1))
    printf '%s\n' "$n"
else
    echo -
fi
case $2 in
    -*) tail -n "${2#-}" -- "$1" | head -n "$3" ;;
    *) tail -n "+$2" -- "$1" | head -n "$3" ;;
esac | head -c 4194304
"#;

/// Gives the new file the mode and owner of the old one and renames it over it. $1 new, $2 old
const REPLACE_SCRIPT: &str =
    r#"chmod --reference="$2" -- "$1" && chown --reference="$2" -- "$1" && mv -f -- "$1" "$2""#;

/// Finds files by name in the usual places. $1 directory, $2 name
const FIND_BY_NAME: &str = r#"
timeout 3 find "$1" -maxdepth 7 \( -name .git -o -name node_modules -o -name .cache \) -prune -o -iname "$2" -print0 2>/dev/null | head -c 8192
"#;

impl SandboxMachine {
    /// Locks a file, so that one change happens at a time across processes.
    async fn lock(&self, path: &str) -> Result<String, FileError> {
        let lock = format!("{SHARED}/locks/{}", &digest(path.as_bytes())[..32]);
        let begun = Instant::now();
        loop {
            if with_resume!(self, |sandbox| sandbox.files().make_dir(&lock))? {
                return Ok(lock);
            }
            if begun.elapsed() > LOCK_TIMEOUT {
                self.unlock(&lock).await;
            }
            sleep(LOCK_POLL_INTERVAL).await;
        }
    }

    async fn unlock(&self, lock: &str) {
        if let Err(error) = self.sandbox().files().remove(lock).await {
            tracing::debug!(%error, lock, "a lock could not be removed; it will be taken over");
        }
    }

    /// Whether a file still has the expected content.
    async fn is_unchanged(&self, path: &str, basis: Basis<'_>) -> Result<bool, PortError> {
        let now = match self.stat(path).await {
            Ok(stat) => Some(stat),
            Err(PortError::NotFound) => None,
            Err(error) => return Err(error),
        };
        match (now, basis) {
            (None, Basis::Absent) => Ok(true),
            (Some(_), Basis::Absent) | (None, Basis::Was { .. }) => Ok(false),
            (Some(now), Basis::Was { stat: Some(stat), .. })
                if now.modified == stat.modified && now.size == stat.size =>
            {
                Ok(true)
            }
            // A new modification time alone is no change.
            (Some(_), Basis::Was { sha256, .. }) => Ok(digest(&self.read(path, MAX_COMPARED).await?) == sha256),
        }
    }

    async fn install(&self, new: &str, path: &str, bytes: &Bytes, basis: Basis<'_>) -> Result<bool, PortError> {
        if !self.is_unchanged(path, basis).await? {
            return Err(PortError::Conflict);
        }
        let ordinary = match basis {
            Basis::Absent => true,
            Basis::Was { stat, .. } => stat.is_some_and(|stat| stat.ordinary),
        };
        let placed = if ordinary {
            with_resume!(self, |sandbox| sandbox.files().rename(new, path)).map(|_| ()).map_err(file_error)
        } else {
            let command =
                Command::exec("/bin/sh", ["-c", REPLACE_SCRIPT, "sh", new, path]).user("root").timeout(QUERY_TIMEOUT);
            let output = self.run(command).await?;
            if output.success() { Ok(()) } else { Err(PortError::Other(output.stderr_text().trim().to_owned())) }
        };
        if placed.is_ok() {
            return Ok(false);
        }
        // A mount point cannot be renamed over.
        let bytes = bytes.clone();
        with_resume!(self, |sandbox| sandbox.files().write(path, bytes.clone())).map_err(file_error)?;
        self.discard(new).await;
        Ok(true)
    }

    /// Collects a file of at most `most` bytes, and hashes it while it arrives.
    async fn collect(&self, mut stream: FileStream, most: u64, stat: Option<Stat>) -> Result<Fetched, PortError> {
        let announced = stream.size();
        if let Some(size) = announced.filter(|size| *size > most) {
            return Ok(Fetched::Large { size });
        }
        let mut bytes = BytesMut::with_capacity(announced.and_then(|size| usize::try_from(size).ok()).unwrap_or(0));
        let mut hasher = Hasher::default();
        let arrive = async {
            while let Some(chunk) = stream.next().await {
                let chunk = chunk.map_err(file_error)?;
                hasher.push(&chunk);
                bytes.extend_from_slice(&chunk);
                if bytes.len() as u64 > most {
                    return Err(PortError::Slow(PSEUDO_FILE_TIMEOUT));
                }
            }
            Ok(())
        };
        // A stream of announced length ends; the transport checks its progress.
        match announced {
            Some(_) => arrive.await?,
            None => timeout(PSEUDO_FILE_TIMEOUT, arrive).await.unwrap_or(Err(PortError::Slow(PSEUDO_FILE_TIMEOUT)))?,
        }
        let sha256 = hasher.finish();
        Ok(Fetched::File(Fetch { bytes: bytes.freeze(), sha256, stat }))
    }

    /// Replaces the file in one request, which Sandbar's server offers. [`None`] if this server
    /// does not.
    async fn replace_atomically(&self, path: &str, bytes: &Bytes, basis: Basis<'_>) -> Result<Option<bool>, PortError> {
        let only_over = match basis {
            Basis::Absent => OnlyOver::Absent,
            Basis::Was { sha256, .. } => OnlyOver::Content(sha256),
        };
        match with_resume!(self, |sandbox| sandbox.files().replace(path, bytes.clone(), only_over)) {
            Ok(_) => Ok(Some(false)),
            // The sandbox is older than its server.
            Err(FileError::Call(CallError::Unsupported { .. })) => Ok(None),
            Err(FileError::Changed { .. }) => Err(PortError::Conflict),
            Err(error) => Err(file_error(error)),
        }
    }

    async fn discard(&self, path: &str) {
        if let Err(error) = self.sandbox().files().remove(path).await {
            tracing::debug!(%error, path, "a temporary file could not be removed");
        }
    }
}

#[async_trait]
impl Files for SandboxMachine {
    async fn stat(&self, path: &str) -> Result<Stat, PortError> {
        let mut entry = with_resume!(self, |sandbox| sandbox.files().stat(path)).map_err(file_error)?;
        match entry.symlink_target.clone() {
            // A dangling link.
            Some(target) if target == path && entry.kind == EntryKind::Other => return Err(PortError::NotFound),
            Some(target) if target != path => {
                entry = with_resume!(self, |sandbox| sandbox.files().stat(&target)).map_err(file_error)?;
            }
            _ => {}
        }
        let home = self.home().await?;
        let mode = entry.mode & 0o7777;
        Ok(Stat {
            kind: match entry.kind {
                EntryKind::File => Kind::File,
                EntryKind::Directory => Kind::Directory,
                EntryKind::Other => Kind::Other,
            },
            size: entry.size,
            modified: entry.modified.map_or(0, |time| time.as_nanosecond()),
            mode,
            ordinary: mode == UPLOAD_MODE && entry.owner == home.owner && entry.group == home.owner,
            path: entry.path,
        })
    }

    async fn fetch(&self, path: &str, most: u64) -> Result<Fetched, PortError> {
        if self.server().await.replaces_files {
            // Sandbar's guest checks the type before it reads; other daemons may block on a pipe
            // without a writer.
            return match with_resume!(self, |sandbox| sandbox.files().read_stream(path)) {
                Ok(stream) => self.collect(stream, most, None).await,
                Err(FileError::Invalid { message, .. }) if message.contains("is a directory") => Ok(Fetched::Directory),
                Err(FileError::Invalid { message, .. }) if message.contains("not a regular") => Ok(Fetched::Special),
                Err(error) => Err(file_error(error)),
            };
        }
        let stat = self.stat(path).await?;
        match stat.kind {
            Kind::Directory => Ok(Fetched::Directory),
            Kind::Other => Ok(Fetched::Special),
            Kind::File if stat.size > most => Ok(Fetched::Large { size: stat.size }),
            Kind::File => {
                let open = with_resume!(self, |sandbox| sandbox.files().read_stream(path));
                self.collect(open.map_err(file_error)?, most, Some(stat)).await
            }
        }
    }

    async fn read(&self, path: &str, most: usize) -> Result<Bytes, PortError> {
        let open = with_resume!(self, |sandbox| sandbox.files().read_stream(path));
        let mut stream = open.map_err(file_error)?;
        let expected = stream.size().and_then(|size| usize::try_from(size).ok()).unwrap_or(0).min(most);
        let mut bytes = BytesMut::with_capacity(expected);
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(file_error)?);
            if bytes.len() > most {
                bytes.truncate(most);
                break;
            }
        }
        Ok(bytes.freeze())
    }

    async fn window(&self, path: &str, window: Window) -> Result<Windowed, PortError> {
        let Window { first, count, count_all } = window;
        let arguments =
            ["-c", WINDOW, "sh", path, &first.to_string(), &count.to_string(), if count_all { "1" } else { "0" }];
        let command = Command::exec("/bin/sh", arguments).timeout(QUERY_TIMEOUT).output_limit(2 * WINDOW_BYTES);
        let output = self.run(command).await?;
        let end = memchr::memchr(b'\n', &output.stdout).unwrap_or(output.stdout.len());
        let total_lines = String::from_utf8_lossy(&output.stdout[..end]).trim().parse().ok();
        if total_lines.is_none() && count_all {
            return Err(PortError::Other(output.stderr_text().trim().to_owned()));
        }
        let bytes = output.stdout.slice((end + 1).min(output.stdout.len())..);
        Ok(Windowed { bytes, total_lines })
    }

    async fn list(&self, path: &str) -> Result<Vec<Listed>, PortError> {
        let entries = with_resume!(self, |sandbox| sandbox.files().list(path)).map_err(file_error)?;
        Ok(entries.into_iter().map(|entry| Listed { is_directory: entry.is_directory(), name: entry.name }).collect())
    }

    async fn find_by_name(&self, directory: &str, name: &str) -> Result<Vec<String>, PortError> {
        let escaped: String = name
            .chars()
            .flat_map(|letter| "*?[\\".contains(letter).then_some('\\').into_iter().chain([letter]))
            .collect();
        let command =
            Command::exec("/bin/sh", ["-c", FIND_BY_NAME, "sh", directory, &escaped]).timeout(Duration::from_secs(5));
        let output = self.run(command).await?;
        let found = output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok(found.filter_map(|path| String::from_utf8(path.to_vec()).ok()).take(5).collect())
    }

    async fn replace(&self, path: &str, bytes: Bytes, basis: Basis<'_>) -> Result<bool, PortError> {
        if self.server().await.replaces_files
            && let Some(in_place) = self.replace_atomically(path, &bytes, basis).await?
        {
            return Ok(in_place);
        }
        let path = match basis {
            // The target of a link is replaced, and the link stays.
            Basis::Was { stat: Some(stat), .. } => &stat.path,
            Basis::Absent | Basis::Was { stat: None, .. } => path,
        };
        let name: String = paths::name(path).chars().take(60).collect();
        let new = paths::join(paths::parent(path), &format!(".{name}.agtmp-{:08x}", rand::random::<u32>()));
        let upload = async {
            let written = with_resume!(self, |sandbox| sandbox.files().write(&new, bytes.clone()));
            written.map(|_| ()).map_err(file_error)
        };
        let (uploaded, lock) = tokio::join!(upload, self.lock(path));
        let lock = match lock {
            Ok(lock) => lock,
            Err(error) => {
                self.discard(&new).await;
                return Err(file_error(error));
            }
        };
        let placed = match uploaded {
            Ok(()) => self.install(&new, path, &bytes, basis).await,
            Err(error) => Err(error),
        };
        if placed.is_err() {
            self.discard(&new).await;
        }
        // Runs in the background; the end of the call waits for it.
        let sandbox = self.sandbox();
        self.spawn(async move {
            if let Err(error) = sandbox.files().remove(&lock).await {
                tracing::debug!(%error, lock, "a lock could not be removed; it will be taken over");
            }
        });
        placed
    }
}
