//! The service itself: what a user can ask for. Somebody else's job is as good as none.

use std::sync::Arc;

use futures::stream::BoxStream;
use sdk::Secret;
use tokio_util::sync::CancellationToken;

use crate::error::StudioError;
use crate::id::{JobId, ProjectId, ScreenshotId};
use crate::job::{Job, NewBuild};
use crate::premises::Premises;
use crate::settings::Settings;
use crate::terminal::Terminal;
use crate::view::{
    Dashboard, FileContent, Listing, PictureFile, PreviewCheck, Project, Resumed, Screenshot, SnapshotView,
    TimelineEvent, UsageReport, User,
};

/// The studio. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Studio {
    _inner: Arc<()>,
}

fn later<T>() -> Result<T, StudioError> {
    Err(StudioError::unavailable("not built yet"))
}

#[expect(unused_variables, reason = "bodies follow")]
impl Studio {
    pub async fn open(url: &Secret, premises: Arc<dyn Premises>, settings: Settings) -> Result<Self, StudioError> {
        later()
    }

    /// Whose token it is. Tokens look like `sbt_` and 40 hexadecimal digits; nothing but their digests is kept.
    pub async fn authenticate(&self, token: &str) -> Result<Option<User>, StudioError> {
        later()
    }

    /// Build credits that are left.
    pub async fn credits(&self, user: &User) -> Result<i64, StudioError> {
        later()
    }

    /// Takes a build in, for one credit.
    pub async fn start(&self, user: &User, build: NewBuild) -> Result<Job, StudioError> {
        later()
    }

    pub async fn job(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        later()
    }

    /// The newest first; of one project, or of all.
    pub async fn jobs(&self, user: &User, project: Option<&ProjectId>) -> Result<Vec<Job>, StudioError> {
        later()
    }

    pub async fn projects(&self, user: &User) -> Result<Vec<Project>, StudioError> {
        later()
    }

    pub async fn dashboard(&self, user: &User) -> Result<Dashboard, StudioError> {
        later()
    }

    /// Lets the sandbox of a ready job sleep. True when it sleeps now, also when it slept already.
    pub async fn pause(&self, user: &User, id: &JobId) -> Result<bool, StudioError> {
        later()
    }

    /// Wakes the preview and returns when it answers. Whoever asks meanwhile waits for the same.
    pub async fn resume(&self, user: &User, id: &JobId) -> Result<Resumed, StudioError> {
        later()
    }

    /// The same goal again, from the newest files, for one credit.
    pub async fn rebuild(&self, user: &User, id: &JobId, confirm: bool) -> Result<Job, StudioError> {
        later()
    }

    /// Ends a build that has not ended; one that has stays as it is.
    pub async fn cancel(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        later()
    }

    /// Forgets a job, its sandbox and its pictures.
    pub async fn delete(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        later()
    }

    /// The newest first.
    pub async fn screenshots(&self, user: &User, id: &JobId) -> Result<Vec<Screenshot>, StudioError> {
        later()
    }

    /// The picture itself.
    pub async fn screenshot(
        &self,
        user: &User,
        id: &JobId,
        picture: &ScreenshotId,
    ) -> Result<PictureFile, StudioError> {
        later()
    }

    /// The newest first.
    pub async fn snapshots(&self, user: &User, id: &JobId) -> Result<Vec<SnapshotView>, StudioError> {
        later()
    }

    /// Sets a ready job's files back to a snapshot. That goes on when this has returned; the timeline tells of the end.
    pub async fn restore(&self, user: &User, id: &JobId, key: &str) -> Result<Job, StudioError> {
        later()
    }

    /// What is in a directory of the project: in its running sandbox, else in the newest snapshot, or in the one that is named by
    /// its key. Wakes nothing.
    pub async fn files(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<Listing, StudioError> {
        later()
    }

    /// The same for one file.
    pub async fn file(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<FileContent, StudioError> {
        later()
    }

    pub async fn usage(&self, user: &User, id: &JobId) -> Result<UsageReport, StudioError> {
        later()
    }

    pub async fn project_usage(&self, user: &User, id: &ProjectId) -> Result<UsageReport, StudioError> {
        later()
    }

    /// Answers a question of the timeline (`approval_asked`) by its id.
    pub async fn answer(
        &self,
        user: &User,
        id: &JobId,
        question: &str,
        allow: bool,
        reason: Option<String>,
    ) -> Result<(), StudioError> {
        later()
    }

    /// How the preview is. Never wakes it.
    pub async fn check(&self, user: &User, id: &JobId) -> Result<PreviewCheck, StudioError> {
        later()
    }

    /// What happened after event `after`, then what happens, without end. Dropping it ends that.
    pub async fn events(
        &self,
        user: &User,
        id: &JobId,
        after: Option<u64>,
    ) -> Result<BoxStream<'static, Arc<TimelineEvent>>, StudioError> {
        later()
    }

    /// A shell in the sandbox, which must run.
    pub async fn terminal(&self, user: &User, id: &JobId, cols: u16, rows: u16) -> Result<Terminal, StudioError> {
        later()
    }
}

/// Builds what is waiting, several at once, until told to stop.
pub async fn work(_studio: Studio, stop: CancellationToken) {
    stop.cancelled().await;
}
