//! One workspace in this process: whoever has a handle works through its fence.

mod adopt;
mod commits;
mod core;
mod create;
mod details;
mod error;
mod fence;
mod handover;
mod keeper;
mod lease;
mod mark;
mod news;
mod notice;
mod pass;
mod pause;
mod remaining;
mod remembered;
mod restore;
mod settle;
mod wake;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sdk::{Command, CommandError, Entry, FileError, Output, SandboxId};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::commits::PhaseCommit;
pub use self::core::METADATA;
pub(crate) use self::core::{Core, dev_server};
pub(crate) use self::create::{SetUp, read_details};
pub use self::details::LastFiles;
pub(crate) use self::details::{Details, Place};
#[cfg(test)]
pub(crate) use self::details::{Handover, Stopped};
pub use self::error::{OpenError, SetupError, Unavailable, WorkspaceError};
pub use self::handover::{HandedOver, LeftBehind, MoveOptions};
pub(crate) use self::keeper::needs_attention;
pub(crate) use self::lease::Holding;
pub use self::pass::Pass;
pub use self::pause::Unsaved;
pub use self::wake::BroughtBack;
use crate::chain::chain;
use crate::devserver::{DevServer, Ready};
use crate::house::House;
use crate::mask::Mask;
use crate::name::{ProviderName, WorkspaceName};
use crate::snapshot::{FilePath, Listed, ProjectId, Pruned, Restored, Saved, Stamp, Which};

/// For what the keeper is doing when a workspace is closed: a rotation, a snapshot.
const LAST_WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// A workspace that this process has. Cheap to clone; clones are the same workspace.
///
/// It is kept as long as a handle exists: its lease is renewed, its sandbox extended or replaced before it ends.
/// [`Workspace::close`] gives the lease back at once; dropping the last handle lets it run out.
#[derive(Clone)]
pub struct Workspace {
    held: Arc<Held>,
}

pub(crate) struct Held {
    pub(crate) core: Arc<Core>,
    tasks: Mutex<Option<Tasks>>,
}

struct Tasks {
    stop: CancellationToken,
    keeper: JoinHandle<()>,
    lease: JoinHandle<()>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.keeper.abort();
        self.lease.abort();
    }
}

impl Workspace {
    /// Starts what keeps it.
    pub(crate) fn start(core: Core) -> Self {
        let core = Arc::new(core);
        let stop = CancellationToken::new();
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&core), stop.clone()));
        let renewed = Arc::clone(&core);
        let lease = tokio::spawn(async move { renewed.holding.keep().await });
        let tasks = Mutex::new(Some(Tasks { stop, keeper, lease }));
        Self { held: Arc::new(Held { core, tasks }) }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    pub(crate) fn from_held(held: Arc<Held>) -> Self {
        Self { held }
    }

    pub fn name(&self) -> &WorkspaceName {
        &self.held.core.name
    }

    /// Whose snapshots are its own.
    pub fn project(&self) -> &ProjectId {
        &self.held.core.project
    }

    /// Where it runs, or ran last.
    pub fn provider(&self) -> ProviderName {
        self.held.core.seat().record.provider.clone()
    }

    /// The sandbox it is in now.
    pub fn sandbox_id(&self) -> Option<SandboxId> {
        self.held.core.seat().record.sandbox.clone()
    }

    /// Lets the caller work in the sandbox as long as the pass is held. Waits while the sandbox is being replaced, resumes
    /// a paused one, and brings a lost one back from the newest snapshot. Where all is well, nobody is asked.
    ///
    /// # Errors
    /// [`Unavailable`] says what can be done.
    pub async fn enter(&self) -> Result<Pass, Unavailable> {
        self.held.core.enter().await
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When nobody can work now, or the command could not be run; one that fails is no error.
    pub async fn exec(&self, command: impl Into<Command>) -> Result<Output, WorkspaceError> {
        let pass = self.enter().await?;
        let done = pass.sandbox().commands().run(command).await;
        done.inspect_err(|error| doubt_command(&pass, error)).map_err(Into::into)
    }

    /// # Errors
    /// When nobody can work now, or the file cannot be read.
    pub async fn read_file(&self, path: &str) -> Result<Bytes, WorkspaceError> {
        let pass = self.enter().await?;
        let read = pass.sandbox().files().read(path).await;
        read.inspect_err(|error| doubt_file(&pass, error)).map_err(Into::into)
    }

    /// # Errors
    /// When nobody can work now, or the file cannot be written.
    pub async fn write_file(&self, path: &str, content: impl Into<Bytes>) -> Result<(), WorkspaceError> {
        let pass = self.enter().await?;
        let written = pass.sandbox().files().write(path, content).await;
        written.inspect_err(|error| doubt_file(&pass, error)).map(drop).map_err(Into::into)
    }

    /// # Errors
    /// When nobody can work now, or the directory cannot be read.
    pub async fn list_files(&self, path: &str) -> Result<Vec<Entry>, WorkspaceError> {
        let pass = self.enter().await?;
        let listed = pass.sandbox().files().list(path).await;
        listed.inspect_err(|error| doubt_file(&pass, error)).map_err(Into::into)
    }

    /// Saves the files. Work goes on meanwhile.
    ///
    /// # Errors
    /// When nobody can work now, or after all attempts.
    pub async fn snapshot(&self) -> Result<Saved, WorkspaceError> {
        self.held.core.snapshot().await
    }

    /// The generated folders that a snapshot would leave out now: a change of sandbox does not keep them.
    ///
    /// # Errors
    /// When the workspace cannot be entered now, or the sandbox does not answer.
    pub async fn excluded_folders(&self) -> Result<Vec<FilePath>, WorkspaceError> {
        let pass = self.enter().await?;
        let House { snapshots, settings, .. } = &*self.held.core.house;
        Ok(snapshots.list_excluded(pass.sandbox(), &settings.snapshot).await?)
    }

    /// The snapshots there are, oldest first.
    ///
    /// # Errors
    /// When the store is in trouble.
    pub async fn snapshots(&self) -> Result<Vec<Listed>, WorkspaceError> {
        Ok(self.held.core.house.snapshots.list(&self.held.core.project).await?)
    }

    /// Removes a snapshot for good. False when there is none of that name.
    ///
    /// # Errors
    /// When the records or the store are in trouble; calling again goes on.
    pub async fn delete_snapshot(&self, stamp: Stamp) -> Result<bool, WorkspaceError> {
        self.held.core.delete_snapshot(stamp).await
    }

    /// Removes the snapshots that are kept only because the tree was far larger when they were taken.
    ///
    /// # Errors
    /// When this process does not have the lease, or the store fails; a retry goes on.
    pub async fn confirm_shrink(&self) -> Result<Pruned, WorkspaceError> {
        let core = &self.held.core;
        let _turn = core.turn().await;
        core.check().await?;
        let pruned = core.house.snapshots.confirm_shrink(&core.project).await?;
        core.house.note_stored(&core.project, core.now()).await;
        Ok(pruned)
    }

    /// Sets the files back to a snapshot: in the sandbox if it runs, else in a new one, where another provider may take the
    /// place of one that cannot be reached. Before they give way to a snapshot that somebody names, they are saved.
    ///
    /// # Errors
    /// The files are then as they were.
    pub async fn restore(&self, which: Which) -> Result<Restored, WorkspaceError> {
        self.restore_with(which, Unsaved::Keep).await
    }

    /// The same, and with [`Unsaved::Discard`] what is not in a snapshot is lost.
    ///
    /// # Errors
    /// The files are then as they were.
    pub async fn restore_with(&self, which: Which, unsaved: Unsaved) -> Result<Restored, WorkspaceError> {
        self.held.core.restore(which, unsaved).await
    }

    /// Saves the files and stops the sandbox. Pausing what is paused is a success.
    ///
    /// # Errors
    /// When the provider cannot pause it. That no snapshot could be stored is told by an event.
    pub async fn pause(&self) -> Result<(), WorkspaceError> {
        self.held.core.pause().await
    }

    /// Sees to it that a snapshot has the files, for somebody who is about to end the sandbox behind the workspace's back,
    /// its whole server for example. One that was saved when it was paused is not woken. None when there is nothing to save.
    ///
    /// # Errors
    /// Nobody but the sandbox has the files then.
    pub async fn keep_files(&self) -> Result<Option<Stamp>, WorkspaceError> {
        self.held.core.keep_files().await
    }

    /// Notes that somebody ended the sandbox behind the workspace's back: it costs nothing any more, and whoever works here
    /// next gets another one. Nothing is noted of a sandbox that is not the workspace's own.
    ///
    /// # Errors
    /// The records cannot be written.
    pub async fn note_ended(&self, sandbox: &str, files: LastFiles) -> Result<(), WorkspaceError> {
        self.held.core.ended(sandbox, files).await
    }

    /// Wakes the sandbox and what is declared to run in it. Says whether the files are a snapshot's instead of its own, and why.
    ///
    /// # Errors
    /// As [`Workspace::enter`].
    pub async fn resume(&self) -> Result<Option<Arc<BroughtBack>>, Unavailable> {
        Ok(self.enter().await?.brought_back().cloned())
    }

    /// Lets snapshots contain values of the workspace's variables from now on, or not.
    ///
    /// # Errors
    /// The records cannot be written.
    pub async fn allow_env_values(&self, allow: bool) -> Result<(), WorkspaceError> {
        let core = &self.held.core;
        let turn = core.turn().await;
        core.check().await?;
        Ok(core.update(&turn, |_, details| details.allow_env_values = allow).await?)
    }

    /// Replaces the sandbox by a new one with the same files.
    ///
    /// # Errors
    /// The old sandbox is then still in use, if the plan has room for two.
    pub async fn rotate(&self) -> Result<HandedOver, WorkspaceError> {
        self.held.core.rotate().await
    }

    /// Lets another provider take the workspace over.
    ///
    /// # Errors
    /// The old sandbox is then still in use. [`WorkspaceError::Unsaved`] when it cannot be reached and has changes that are
    /// nowhere else, unless the options allow to leave them.
    pub async fn move_to(&self, provider: &ProviderName, options: MoveOptions) -> Result<HandedOver, WorkspaceError> {
        if self.provider() == *provider {
            return Err(WorkspaceError::AlreadyThere(self.name().clone(), provider.clone()));
        }
        self.held.core.move_to(provider, options).await
    }

    /// Commits the project's files, saves everything and tells of it.
    ///
    /// # Errors
    /// When nobody can work now, or git refuses.
    pub async fn commit_phase(&self, message: &str) -> Result<PhaseCommit, WorkspaceError> {
        self.held.core.commit_phase(message).await
    }

    /// Makes a sandbox that runs already, with any of the providers, the workspace's own; one that was left behind also when it
    /// is paused. The files of the one before are saved.
    ///
    /// # Errors
    /// When no provider has it, or it does not run.
    pub async fn attach(&self, sandbox: &SandboxId) -> Result<(), WorkspaceError> {
        self.held.core.adopt(sandbox).await
    }

    /// Starts the declared dev server, or the one that the project's files speak of, where somebody has not started it already
    /// ([`devserver::choose`](crate::devserver::choose)); from then on it is declared, and runs again after every resume and in every
    /// new sandbox. One that answers and that no file speaks of is found, and not declared. None when there is nothing at all.
    ///
    /// # Errors
    /// When nobody can work now, or it does not answer.
    pub async fn serve(&self, server: Option<DevServer>) -> Result<Option<Ready>, WorkspaceError> {
        self.held.core.serve(server).await
    }

    /// Starts the declared dev server where it does not run, and returns when it answers. One that is starting is waited for. Where
    /// none is declared, as [`Workspace::serve`].
    ///
    /// # Errors
    /// When nobody can work now, or it does not answer.
    pub async fn serve_again(&self) -> Result<Option<Ready>, WorkspaceError> {
        self.held.core.serve_again().await
    }

    /// Saves the files, ends the sandbox and forgets the workspace. Its snapshots stay, and creating a workspace of the same
    /// name brings the newest back. The snapshot that was taken is returned.
    ///
    /// # Errors
    /// Unless with [`Unsaved::Discard`], a workspace whose sandbox cannot be ended is kept; with [`Unsaved::Keep`] also one whose
    /// files cannot be saved.
    pub async fn destroy(&self, unsaved: Unsaved) -> Result<Option<Stamp>, WorkspaceError> {
        let done = self.held.core.destroy(unsaved).await?;
        self.stop().await;
        self.held.core.holding.release().await;
        Ok(done)
    }

    /// Hides the values that the workspace was given with its environment.
    pub fn mask(&self, text: &str) -> String {
        self.held.core.hidden(text)
    }

    /// The same for output that comes in pieces.
    pub fn masking(&self) -> &Mask {
        self.held.core.mask()
    }

    /// Lets others have the workspace. The sandbox goes on, until the end the provider knows of.
    pub async fn close(&self) {
        if self.held.core.closed.load(Ordering::Acquire) {
            return;
        }
        self.stop().await;
        let core = &self.held.core;
        if core.holding.holds().await {
            let last_work = async {
                let turn = core.turn().await;
                core.first_snapshot(&turn).await;
                if let Err(error) = core.look_for_commit(&turn).await {
                    warn!(workspace = %core.name, error = %chain(&error), "closed without a look for commits");
                }
                if let Err(error) = core.store_unsaved(&turn).await {
                    warn!(workspace = %core.name, error = %chain(&error), "closed without a word of unsaved work");
                }
                if let Err(error) = core.store_notices(&turn).await {
                    warn!(workspace = %core.name, error = %chain(&error), "what was told may be told again");
                }
            };
            // A snapshot may take longer than a lease lasts.
            tokio::select! {
                () = last_work => {}
                () = core.holding.keep_until_lost() => {}
            }
        }
        core.holding.release().await;
    }

    /// Ends the tasks, and waits for what they are doing.
    async fn stop(&self) {
        self.held.core.closed.store(true, Ordering::Release);
        let tasks = self.held.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut tasks) = tasks {
            tasks.stop.cancel();
            // What is broken off then, the next process puts right.
            let _ = tokio::time::timeout(LAST_WORK_TIMEOUT, &mut tasks.keeper).await;
        }
    }
}

fn doubt_command(pass: &Pass, error: &CommandError) {
    match error {
        CommandError::SandboxGone { .. } => pass.doubt(),
        CommandError::Call(error) if error.is_service_trouble() => pass.doubt(),
        _ => {}
    }
}

fn doubt_file(pass: &Pass, error: &FileError) {
    match error {
        FileError::SandboxGone { .. } => pass.doubt(),
        FileError::Call(error) if error.is_service_trouble() => pass.doubt(),
        _ => {}
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").field("name", self.name()).finish_non_exhaustive()
    }
}
