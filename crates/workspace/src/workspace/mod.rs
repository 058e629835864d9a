//! One workspace in this process. All handles use it through its sandbox gate.

mod adopt;
mod commits;
mod core;
mod create;
mod details;
mod error;
mod gate;
mod guard;
mod handover;
mod lease;
mod mark;
mod notice_text;
mod notices;
mod pause;
mod remaining;
mod restore;
mod resume;
mod settle;
mod supervisor;
mod tombstone;
mod transitions;
mod upkeep;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sdk::{Command, CommandError, Entry, FileError, Output, SandboxId};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::commits::PhaseCommit;
pub use self::core::METADATA;
pub(crate) use self::core::{WORKSPACE_ID, WorkspaceCore, dev_server};
pub(crate) use self::create::{SetUp, read_details};
pub use self::details::LastFiles;
pub(crate) use self::details::{Details, SandboxRef};
pub use self::error::{OpenError, SetupError, Unavailable, WorkspaceError};
pub use self::guard::SandboxGuard;
pub use self::handover::{HandedOver, LeftBehind, MoveOptions};
pub(crate) use self::lease::HeldLease;
#[cfg(test)]
pub(crate) use self::mark::Mark;
pub use self::pause::Unsaved;
pub use self::resume::AutoRestore;
pub(crate) use self::supervisor::maintenance_due;
pub(crate) use self::upkeep::{SandboxUpkeep, UpkeepCommands};
use crate::checkpoint_sandbox::ClientSandbox;
use crate::context::WorkspaceContext;
use crate::devserver::{DevServer, Ready};
use crate::name::{ProviderName, WorkspaceName};
use checkpoint::{FilePath, ListedCheckpoint, ProjectId, Pruned, Restored, SavedCheckpoint, Stamp, Which};
use secret::Mask;
use text::error_chain;

/// How long closing waits for work of the supervisor: a rotation, a checkpoint.
const LAST_WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// A workspace that this process holds. Cheap to clone; clones are the same workspace.
///
/// It is supervised as long as a handle exists: its lease is renewed, its sandbox extended or
/// replaced before it ends. [`Workspace::close`] releases the lease at once; dropping the last
/// handle lets it expire.
#[derive(Clone)]
pub struct Workspace {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<WorkspaceCore>,
    tasks: Mutex<Option<Tasks>>,
}

struct Tasks {
    stop: CancellationToken,
    supervisor: JoinHandle<()>,
    lease: JoinHandle<()>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.lease.abort();
    }
}

impl Workspace {
    /// Starts its tasks: the supervisor and the renewal of the lease.
    pub(crate) fn start(core: WorkspaceCore) -> Self {
        let core = Arc::new(core);
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervisor::supervise(Arc::clone(&core), stop.clone()));
        let renewed = Arc::clone(&core);
        let lease = tokio::spawn(async move { renewed.held_lease.renew_periodically().await });
        let tasks = Mutex::new(Some(Tasks { stop, supervisor, lease }));
        Self { inner: Arc::new(Inner { core, tasks }) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    pub fn name(&self) -> &WorkspaceName {
        &self.inner.core.name
    }

    /// The project that owns its checkpoints.
    pub fn project(&self) -> &ProjectId {
        &self.inner.core.project
    }

    /// The current or last provider.
    pub fn provider(&self) -> ProviderName {
        self.inner.core.state().record.provider.clone()
    }

    /// The current sandbox.
    pub fn sandbox_id(&self) -> Option<SandboxId> {
        self.inner.core.state().record.sandbox.clone()
    }

    /// Returns a guard that keeps the sandbox usable while it is held. Waits while the sandbox is
    /// being replaced, resumes a paused one, and restores a lost one from the newest checkpoint. If
    /// the sandbox is known to run, this sends no request.
    ///
    /// # Errors
    /// [`Unavailable`] says what can be done.
    pub async fn enter(&self) -> Result<SandboxGuard, Unavailable> {
        self.inner.core.enter().await
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::Command`] when the command could not
    /// be run. An exit status other than 0 is not an error.
    pub async fn exec(&self, command: impl Into<Command>) -> Result<Output, WorkspaceError> {
        let pass = self.enter().await?;
        let done = pass.sandbox().commands().run(command).await;
        done.inspect_err(|error| suspect_on_command_error(&pass, error)).map_err(Into::into)
    }

    /// # Errors
    /// [`WorkspaceError::Unavailable`] or [`WorkspaceError::File`].
    pub async fn read_file(&self, path: &str) -> Result<Bytes, WorkspaceError> {
        let pass = self.enter().await?;
        let read = pass.sandbox().files().read(path).await;
        read.inspect_err(|error| suspect_on_file_error(&pass, error)).map_err(Into::into)
    }

    /// # Errors
    /// [`WorkspaceError::Unavailable`] or [`WorkspaceError::File`].
    pub async fn write_file(&self, path: &str, content: impl Into<Bytes>) -> Result<(), WorkspaceError> {
        let pass = self.enter().await?;
        let written = pass.sandbox().files().write(path, content).await;
        written.inspect_err(|error| suspect_on_file_error(&pass, error)).map(drop).map_err(Into::into)
    }

    /// # Errors
    /// [`WorkspaceError::Unavailable`] or [`WorkspaceError::File`].
    pub async fn list_files(&self, path: &str) -> Result<Vec<Entry>, WorkspaceError> {
        let pass = self.enter().await?;
        let listed = pass.sandbox().files().list(path).await;
        listed.inspect_err(|error| suspect_on_file_error(&pass, error)).map_err(Into::into)
    }

    /// Saves the files as a checkpoint while the sandbox keeps running.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::Save`] of the last attempt.
    pub async fn save_checkpoint(&self) -> Result<SavedCheckpoint, WorkspaceError> {
        self.inner.core.save_checkpoint().await
    }

    /// The generated folders that a checkpoint would exclude now: a change of sandbox does not keep
    /// them.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::Save`] when the sandbox does not
    /// answer.
    pub async fn excluded_folders(&self) -> Result<Vec<FilePath>, WorkspaceError> {
        let pass = self.enter().await?;
        let WorkspaceContext { checkpoints, settings, .. } = &*self.inner.core.context;
        Ok(checkpoints.list_excluded(&ClientSandbox(pass.sandbox().clone()), &settings.checkpoint).await?)
    }

    /// The checkpoints of its project, oldest first.
    ///
    /// # Errors
    /// [`WorkspaceError::Store`].
    pub async fn checkpoints(&self) -> Result<Vec<ListedCheckpoint>, WorkspaceError> {
        Ok(self.inner.core.context.checkpoints.list(&self.inner.core.project).await?)
    }

    /// Removes a checkpoint permanently. Returns false when it does not exist.
    ///
    /// # Errors
    /// [`WorkspaceError::Change`], [`WorkspaceError::Unavailable`] or [`WorkspaceError::Store`]; a
    /// retry continues.
    pub async fn delete_checkpoint(&self, stamp: Stamp) -> Result<bool, WorkspaceError> {
        self.inner.core.delete_checkpoint(stamp).await
    }

    /// Removes the checkpoints that are retained only because the tree was far larger when they
    /// were saved.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`] when this process does not hold the lease, or
    /// [`WorkspaceError::Store`]; a retry continues.
    pub async fn confirm_shrink(&self) -> Result<Pruned, WorkspaceError> {
        let core = &self.inner.core;
        let _op = core.begin_op().await;
        core.check().await?;
        let pruned = core.context.checkpoints.confirm_shrink(&core.project).await?;
        core.context.record_stored(&core.project, core.now()).await;
        Ok(pruned)
    }

    /// Restores the files of a checkpoint: in the sandbox if it runs, else in a new one, where
    /// another provider may replace one that cannot be reached. Before a checkpoint that the caller
    /// names replaces the current files, these are saved.
    ///
    /// # Errors
    /// [`WorkspaceError`]; the files are then unchanged.
    pub async fn restore(&self, which: Which) -> Result<Restored, WorkspaceError> {
        self.restore_with(which, Unsaved::Keep).await
    }

    /// Like [`Workspace::restore`]; with [`Unsaved::Discard`], unsaved changes are lost.
    ///
    /// # Errors
    /// [`WorkspaceError`]; the files are then unchanged.
    pub async fn restore_with(&self, which: Which, unsaved: Unsaved) -> Result<Restored, WorkspaceError> {
        self.inner.core.restore(which, unsaved).await
    }

    /// Saves the files and pauses the sandbox. Pausing a paused one succeeds.
    ///
    /// # Errors
    /// [`WorkspaceError`] when the provider cannot pause it. A failed checkpoint is reported by an
    /// event only.
    pub async fn pause(&self) -> Result<(), WorkspaceError> {
        self.inner.core.pause().await
    }

    /// Makes sure that a checkpoint has the files, before the caller kills the sandbox outside of
    /// the workspace, for example with its whole server. A sandbox that was saved when it was
    /// paused is not resumed. [`None`] when there is nothing to save.
    ///
    /// # Errors
    /// [`WorkspaceError`]; then only the sandbox has the files.
    pub async fn keep_files(&self) -> Result<Option<Stamp>, WorkspaceError> {
        self.inner.core.keep_files().await
    }

    /// Records that the caller killed the sandbox outside of the workspace: its usage ends, and the
    /// next use creates another one. Ignores a sandbox that is not the workspace's own.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`] or [`WorkspaceError::Change`].
    pub async fn record_killed(&self, sandbox: &str, files: LastFiles) -> Result<(), WorkspaceError> {
        self.inner.core.record_killed(sandbox, files).await
    }

    /// Resumes the sandbox and its dev server. Returns why the files are a checkpoint's instead of
    /// its own, if they are.
    ///
    /// # Errors
    /// Those of [`Workspace::enter`].
    pub async fn resume(&self) -> Result<Option<Arc<AutoRestore>>, Unavailable> {
        Ok(self.enter().await?.auto_restore().cloned())
    }

    /// Sets whether checkpoints may contain values of the workspace's variables.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`] or [`WorkspaceError::Change`].
    pub async fn allow_env_values(&self, allow: bool) -> Result<(), WorkspaceError> {
        let core = &self.inner.core;
        let op = core.begin_op().await;
        core.check().await?;
        Ok(core.update(&op, |_, details| details.allow_env_values = allow).await?)
    }

    /// Replaces the sandbox by a new one with the same files.
    ///
    /// # Errors
    /// [`WorkspaceError`]; the old sandbox is then still in use, if the plan allows two.
    pub async fn rotate(&self) -> Result<HandedOver, WorkspaceError> {
        self.inner.core.rotate().await
    }

    /// Moves the workspace to another provider.
    ///
    /// # Errors
    /// [`WorkspaceError::AlreadyThere`]; [`WorkspaceError::Unsaved`] when the sandbox cannot be
    /// reached and has changes that exist nowhere else, unless the options allow to leave them. The
    /// old sandbox is then still in use.
    pub async fn move_to(&self, provider: &ProviderName, options: MoveOptions) -> Result<HandedOver, WorkspaceError> {
        if self.provider() == *provider {
            return Err(WorkspaceError::AlreadyThere(self.name().clone(), provider.clone()));
        }
        self.inner.core.move_to(provider, options).await
    }

    /// Commits the project's files, saves a checkpoint and emits an event.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::Phase`] when git fails.
    pub async fn commit_phase(&self, message: &str) -> Result<PhaseCommit, WorkspaceError> {
        self.inner.core.commit_phase(message).await
    }

    /// Makes a running sandbox of any provider the workspace's own; one that was left behind also
    /// when it is paused. The files of the previous one are saved.
    ///
    /// # Errors
    /// [`WorkspaceError::Sandbox`] when no provider has it, [`WorkspaceError::NotRunning`] when it
    /// does not run.
    pub async fn attach(&self, sandbox: &SandboxId) -> Result<(), WorkspaceError> {
        self.inner.core.adopt(sandbox).await
    }

    /// Starts the declared dev server, or the one detected in the project's files unless another
    /// process already serves it ([`devserver::choose`](crate::devserver::choose)). It is declared
    /// from then on, and restarted after every resume and in every new sandbox. A server that
    /// answers but is not in the files is used without being declared. [`None`] when there is no
    /// server at all.
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::DevServer`] when it does not answer.
    pub async fn serve(&self, server: Option<DevServer>) -> Result<Option<Ready>, WorkspaceError> {
        self.inner.core.serve(server).await
    }

    /// Starts the declared dev server if it does not run, and returns when it answers. A starting
    /// one is waited for. If none is declared, like [`Workspace::serve`].
    ///
    /// # Errors
    /// [`WorkspaceError::Unavailable`], or [`WorkspaceError::DevServer`] when it does not answer.
    pub async fn ensure_served(&self) -> Result<Option<Ready>, WorkspaceError> {
        self.inner.core.ensure_served().await
    }

    /// Saves the files, kills the sandbox and removes the workspace. Its checkpoints stay, and
    /// creating a workspace of the same name restores the newest. Returns the checkpoint that was
    /// saved.
    ///
    /// # Errors
    /// [`WorkspaceError`]. Except with [`Unsaved::Discard`], a workspace whose sandbox cannot be
    /// killed is kept; with [`Unsaved::Keep`] also one whose files cannot be saved.
    pub async fn destroy(&self, unsaved: Unsaved) -> Result<Option<Stamp>, WorkspaceError> {
        let done = self.inner.core.destroy(unsaved).await?;
        self.stop().await;
        self.inner.core.held_lease.release().await;
        Ok(done)
    }

    /// Masks the values of the workspace's variables.
    pub fn mask(&self, text: &str) -> String {
        self.inner.core.mask_text(text)
    }

    /// The mask, for output that arrives in chunks.
    pub fn masking(&self) -> &Mask {
        self.inner.core.mask()
    }

    /// Releases the workspace. The sandbox keeps running until the end that the provider knows.
    pub async fn close(&self) {
        if self.inner.core.closed.load(Ordering::Acquire) {
            return;
        }
        self.stop().await;
        let core = &self.inner.core;
        if core.held_lease.ensure_valid().await {
            let last_work = async {
                let op = core.begin_op().await;
                // One probe is enough: the next process looks for commits again.
                if core.save_first_checkpoint(&op).await
                    && let Err(error) = core.detect_commit(&op).await
                {
                    warn!(workspace = %core.name, error = %error_chain(&error), "closed without a check for commits");
                }
                if let Err(error) = core.store_unsaved(&op).await {
                    warn!(workspace = %core.name, error = %error_chain(&error), "closed without recording unsaved changes");
                }
                if let Err(error) = core.store_notices(&op).await {
                    warn!(workspace = %core.name, error = %error_chain(&error), "delivered notices could not be recorded and may be repeated");
                }
            };
            // A checkpoint may take longer than a lease lasts.
            tokio::select! {
                biased;
                () = last_work => {}
                () = core.held_lease.renew_until_lost() => {}
            }
        }
        core.held_lease.release().await;
    }

    /// Stops the tasks, and waits for their current work.
    async fn stop(&self) {
        self.inner.core.closed.store(true, Ordering::Release);
        let tasks = self.inner.tasks.lock().take();
        if let Some(mut tasks) = tasks {
            tasks.stop.cancel();
            // The next process repairs what this interrupts.
            let _ = tokio::time::timeout(LAST_WORK_TIMEOUT, &mut tasks.supervisor).await;
        }
    }
}

fn suspect_on_command_error(pass: &SandboxGuard, error: &CommandError) {
    match error {
        CommandError::SandboxGone { .. } => pass.mark_suspect(),
        CommandError::Call(error) if error.is_service_trouble() => pass.mark_suspect(),
        _ => {}
    }
}

fn suspect_on_file_error(pass: &SandboxGuard, error: &FileError) {
    match error {
        FileError::SandboxGone { .. } => pass.mark_suspect(),
        FileError::Call(error) if error.is_service_trouble() => pass.mark_suspect(),
        _ => {}
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").field("name", self.name()).finish_non_exhaustive()
    }
}
