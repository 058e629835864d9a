//! The tree of files: looking, making, moving, removing.

use buffa::Message;
use protocol::rpc::filesystem::{
    EntryInfo, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse,
    RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};

use super::Files;
use super::entry::Entry;
use super::error::FileError;
use crate::transport::{Call, Failure, Repeat};

impl Files<'_> {
    /// What is in a directory, by name.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] when it is no directory.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, FileError> {
        self.list_depth(path, 1).await
    }

    /// What is in a directory and down to `depth` levels below it, each directory before what is in it. Links are not
    /// followed.
    ///
    /// # Errors
    /// As [`Files::list`].
    pub async fn list_depth(&self, path: &str, depth: u32) -> Result<Vec<Entry>, FileError> {
        let message = ListDirRequest { path: path.to_owned(), depth: depth.max(1), ..ListDirRequest::default() };
        let answer: ListDirResponse = self.call("list", path, "ListDir", Repeat::Harmless, &message).await?;
        Ok(answer.entries.into_iter().map(Entry::from).collect())
    }

    /// What is known of a path. A link at its end is not followed.
    ///
    /// # Errors
    /// [`FileError::NotFound`].
    pub async fn stat(&self, path: &str) -> Result<Entry, FileError> {
        let message = StatRequest { path: path.to_owned(), ..StatRequest::default() };
        let answer: StatResponse = self.call("look at", path, "Stat", Repeat::Harmless, &message).await?;
        self.entry("look at", path, answer.entry.into())
    }

    /// Whether there is something at a path.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn exists(&self, path: &str) -> Result<bool, FileError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(FileError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory and those above it. False when it was there already.
    ///
    /// # Errors
    /// [`FileError::Invalid`] when a file is in the way.
    pub async fn make_dir(&self, path: &str) -> Result<bool, FileError> {
        let message = MakeDirRequest { path: path.to_owned(), ..MakeDirRequest::default() };
        let call = self.named("make the directory", path, Repeat::Never);
        match self.answer::<_, MakeDirResponse>(&call, "MakeDir", &message).await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(refusal)) if refusal.is("already_exists") => Ok(false),
            Err(failure) => Err(FileError::of(self.sandbox, &call, path, failure).await),
        }
    }

    /// Moves a file or directory, in place of what was there; missing directories above `to` are made.
    ///
    /// # Errors
    /// [`FileError::NotFound`] when `from` does not exist.
    pub async fn rename(&self, from: &str, to: &str) -> Result<Entry, FileError> {
        let message = MoveRequest { source: from.to_owned(), destination: to.to_owned(), ..MoveRequest::default() };
        let answer: MoveResponse = self.call("move", from, "Move", Repeat::Never, &message).await?;
        self.entry("move", to, answer.entry.into())
    }

    /// Removes a file, or a directory with everything in it. What does not exist is removed already.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn remove(&self, path: &str) -> Result<(), FileError> {
        let message = RemoveRequest { path: path.to_owned(), ..RemoveRequest::default() };
        self.call::<_, RemoveResponse>("remove", path, "Remove", Repeat::Harmless, &message).await?;
        Ok(())
    }

    fn entry(&self, verb: &str, path: &str, entry: Option<EntryInfo>) -> Result<Entry, FileError> {
        let call = self.named(verb, path, Repeat::Never);
        let entry = entry.ok_or_else(|| call.misunderstood("it names no entry".into()))?;
        Ok(entry.into())
    }

    async fn call<Q: Message, A: Message + Default>(
        &self,
        verb: &str,
        path: &str,
        method: &str,
        repeat: Repeat,
        message: &Q,
    ) -> Result<A, FileError> {
        let call = self.named(verb, path, repeat);
        match self.answer(&call, method, message).await {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(FileError::of(self.sandbox, &call, path, failure).await),
        }
    }

    async fn answer<Q: Message, A: Message + Default>(
        &self,
        call: &Call,
        method: &str,
        message: &Q,
    ) -> Result<A, Failure> {
        let path = format!("/filesystem.Filesystem/{method}");
        let user = self.sandbox.user_to_name(self.user.as_deref());
        self.sandbox.envd().unary(self.sandbox.client().shared(), call, &path, user, message).await
    }
}
