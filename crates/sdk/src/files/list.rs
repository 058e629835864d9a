//! The file tree: list, stat, create, rename, remove.

use buffa::Message;
use protocol::rpc::filesystem::{
    EntryInfo, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse,
    RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};

use super::Files;
use super::entry::Entry;
use super::error::FileError;
use crate::transport::{Call, Failure, Idempotency};

impl Files<'_> {
    /// Lists a directory, by name.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] when it is not a directory;
    /// [`FileError::Call`].
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, FileError> {
        self.list_depth(path, 1).await
    }

    /// Lists a directory recursively down to `depth` levels, each directory before its content.
    /// Symlinks are not followed.
    ///
    /// # Errors
    /// Those of [`Files::list`].
    pub async fn list_depth(&self, path: &str, depth: u32) -> Result<Vec<Entry>, FileError> {
        let message = ListDirRequest { path: path.to_owned(), depth: depth.max(1), ..ListDirRequest::default() };
        let answer: ListDirResponse = self.call("list", path, "ListDir", Idempotency::Idempotent, &message).await?;
        Ok(answer.entries.into_iter().map(Entry::from).collect())
    }

    /// Metadata of a path. A final symlink is not followed.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::Call`].
    pub async fn stat(&self, path: &str) -> Result<Entry, FileError> {
        let message = StatRequest { path: path.to_owned(), ..StatRequest::default() };
        let answer: StatResponse = self.call("stat", path, "Stat", Idempotency::Idempotent, &message).await?;
        self.entry("stat", path, answer.entry.into())
    }

    /// Whether a path exists.
    ///
    /// # Errors
    /// [`FileError::Call`].
    pub async fn exists(&self, path: &str) -> Result<bool, FileError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(FileError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory and its parents. Returns false when it already existed.
    ///
    /// # Errors
    /// [`FileError::Invalid`] when a file has this path, [`FileError::Call`].
    pub async fn make_dir(&self, path: &str) -> Result<bool, FileError> {
        let message = MakeDirRequest { path: path.to_owned(), ..MakeDirRequest::default() };
        let call = self.new_call("make the directory", path, Idempotency::NotIdempotent);
        match self.send::<_, MakeDirResponse>(&call, "MakeDir", &message).await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(refusal)) if refusal.is("already_exists") => Ok(false),
            Err(failure) => Err(FileError::from_failure(self.sandbox, &call, path, failure).await),
        }
    }

    /// Moves a file or directory, replacing the destination; creates missing parents of `to`.
    ///
    /// # Errors
    /// [`FileError::NotFound`] when `from` does not exist, [`FileError::Call`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<Entry, FileError> {
        let message = MoveRequest { source: from.to_owned(), destination: to.to_owned(), ..MoveRequest::default() };
        let answer: MoveResponse = self.call("move", from, "Move", Idempotency::NotIdempotent, &message).await?;
        self.entry("move", to, answer.entry.into())
    }

    /// Removes a file, or a directory recursively. Succeeds when the path does not exist.
    ///
    /// # Errors
    /// [`FileError::Call`].
    pub async fn remove(&self, path: &str) -> Result<(), FileError> {
        let message = RemoveRequest { path: path.to_owned(), ..RemoveRequest::default() };
        self.call::<_, RemoveResponse>("remove", path, "Remove", Idempotency::Idempotent, &message).await?;
        Ok(())
    }

    fn entry(&self, verb: &str, path: &str, entry: Option<EntryInfo>) -> Result<Entry, FileError> {
        let call = self.new_call(verb, path, Idempotency::NotIdempotent);
        let entry = entry.ok_or_else(|| call.protocol_error("it names no entry".into()))?;
        Ok(entry.into())
    }

    async fn call<Q: Message, A: Message + Default>(
        &self,
        verb: &str,
        path: &str,
        method: &str,
        idempotency: Idempotency,
        message: &Q,
    ) -> Result<A, FileError> {
        let call = self.new_call(verb, path, idempotency);
        match self.send(&call, method, message).await {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(FileError::from_failure(self.sandbox, &call, path, failure).await),
        }
    }

    async fn send<Q: Message, A: Message + Default>(
        &self,
        call: &Call,
        method: &str,
        message: &Q,
    ) -> Result<A, Failure> {
        let path = format!("/filesystem.Filesystem/{method}");
        let user = self.sandbox.user_for_daemon(self.user.as_deref());
        self.sandbox.envd().unary(self.sandbox.client().shared(), call, &path, user, message).await
    }
}
