//! A build: requested, provided with the files the server lacks, started, and polled until it is
//! done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use http::header::CONTENT_LENGTH;
use protocol::rest::template::{
    BuildLogEntry, BuildLogPage, BuildProgress, BuildStatus, FileUpload, NewBuild, RequestedBuild,
};
use tokio::time::Instant;
use tokio_util::io::ReaderStream;

use super::Templates;
use super::archive::pack;
use super::context::ContextError;
use super::definition::{CopyFiles, Template};
use super::wire::{CopySource, build_start, collect_files, staged_build_start};
use crate::control::logs::LogQuery;
use crate::control::query::{Path, encode};
use crate::control::request::{Request, lacks_path};
use crate::error::CallError;
use crate::transport::{Call, Failure, Idempotency};

/// Between two polls of a build; the official SDKs use the same.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Read size of an archive upload.
const CHUNK: usize = 256 * 1024;

/// A template to build under a name.
#[derive(Debug, Clone)]
pub struct Build {
    template: Template,
    body: NewBuild,
    force: bool,
}

impl Build {
    /// `name` may include a tag, as in `app:v1`.
    pub fn new(name: impl Into<String>, template: Template) -> Self {
        Self { template, body: NewBuild { name: name.into(), ..NewBuild::default() }, force: false }
    }

    /// Adds a tag for this build.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.body.tags.push(tag.into());
        self
    }

    /// CPU count of the sandboxes.
    #[must_use]
    pub fn cpu_count(mut self, count: u32) -> Self {
        self.body.cpu_count = Some(count);
        self
    }

    /// Memory of the sandboxes.
    #[must_use]
    pub fn memory_mb(mut self, size: u32) -> Self {
        self.body.memory_mb = Some(size);
        self
    }

    /// Disk space that must be free after the build.
    #[must_use]
    pub fn min_free_disk_mb(mut self, size: u32) -> Self {
        self.body.min_free_disk_mb = Some(size);
        self
    }

    /// Builds every step without the cache.
    #[must_use]
    pub fn skip_cache(mut self) -> Self {
        self.force = true;
        self
    }
}

/// A failed build.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A step failed on the server. `step` is its number from 1, `base` or `finalize`.
    #[error("the build of template {template} failed{}: {message}", at(.step.as_ref()))]
    Failed { template: String, step: Option<String>, message: String },
    #[error(transparent)]
    Context(#[from] ContextError),
    /// E2B's protocol supports neither several stages, nor archives as a base, nor unpacking of
    /// archives.
    #[error("this server builds neither several stages nor local archives; only a Sandbar server does")]
    NeedsSandbar,
    /// The build continues on the server; [`Templates::follow`] resumes watching.
    #[error("the build of template {template} took longer than {after:?}")]
    DeadlineExceeded { template: String, after: Duration },
    #[error(transparent)]
    Call(#[from] CallError),
}

fn at(step: Option<&String>) -> String {
    step.map(|step| format!(" at step {step}")).unwrap_or_default()
}

impl Templates<'_> {
    /// Builds a template and waits until sandboxes can be created from it.
    ///
    /// Dropping the future stops waiting; a started build continues.
    ///
    /// # Errors
    /// [`BuildError::Failed`] with the failed step, [`BuildError::Context`] when files are missing,
    /// [`BuildError::NeedsSandbar`], [`BuildError::DeadlineExceeded`], [`BuildError::Call`].
    pub async fn build(&self, build: &Build) -> Result<RequestedBuild, BuildError> {
        self.build_with(build, |_| {}).await
    }

    /// Builds a template and passes the server's log entries to `show`.
    ///
    /// # Errors
    /// Those of [`Templates::build`].
    pub async fn build_with(
        &self,
        build: &Build,
        mut show: impl FnMut(&BuildLogEntry) + Send,
    ) -> Result<RequestedBuild, BuildError> {
        let requested = self.start(build).await?;
        let mut entries = std::pin::pin!(self.follow(&requested.template_id, &requested.build_id));
        while let Some(entry) = entries.try_next().await? {
            show(&entry);
        }
        Ok(requested)
    }

    /// Requests a build, uploads the files the server lacks, starts it, and does not wait.
    ///
    /// # Errors
    /// Those of [`Templates::build`] except [`BuildError::Failed`] and
    /// [`BuildError::DeadlineExceeded`].
    pub async fn start(&self, build: &Build) -> Result<RequestedBuild, BuildError> {
        // Finds missing files before the first request.
        let template = build.template.clone();
        let files = blocking(move || collect_files(&template)).await?;
        let what = format!("request a build of template {:?}", build.body.name);
        let request = Request::new(self.client, Method::POST, "/v3/templates", what).body(&build.body);
        let requested = request.json::<RequestedBuild>().await.map_err(|failure| failure.into_error(&request.call))?;
        for copied in files.copies.values() {
            self.upload_copy(&requested.template_id, copied).await?;
        }
        for (hash, archive) in files.archives.values() {
            self.upload_archive(&requested.template_id, hash, &archive.path).await?;
        }
        let RequestedBuild { template_id, build_id, .. } = &requested;
        let path = format!("templates/{}/builds/{}", encode(template_id), encode(build_id));
        let what = format!("start build {build_id} of template {template_id}");
        let start = |prefix: &str| Request::new(self.client, Method::POST, format!("/{prefix}/{path}"), what.clone());
        let (template, force) = (&build.template, build.force);
        if files.needs_stages(template) {
            let request = start("sandbar").body(&staged_build_start(template, force, &files));
            match request.send().await {
                Ok(_) => {}
                Err(Failure::Refused(refusal)) if lacks_path(&refusal) => return Err(BuildError::NeedsSandbar),
                Err(failure) => return Err(failure.into_error(&request.call).into()),
            }
        } else {
            let request = start("v2").body(&build_start(template, force, &files));
            request.send().await.map_err(|failure| failure.into_error(&request.call))?;
        }
        Ok(requested)
    }

    /// The upload target of the files with this hash; [`None`] when the server has them and `force`
    /// is false.
    async fn upload_target(
        &self,
        template: &str,
        hash: &str,
        what: String,
        force: bool,
    ) -> Result<Option<(String, BTreeMap<String, String>)>, BuildError> {
        let path = format!("/templates/{}/files/{hash}", encode(template));
        let request = Request::new(self.client, Method::GET, path, what);
        let FileUpload { present, url, headers } =
            request.json().await.map_err(|failure| failure.into_error(&request.call))?;
        match url {
            Some(url) if !present || force => Ok(Some((url, headers.unwrap_or_default()))),
            None if !present => Err(request.call.protocol_error("it has no files and no place for them".into()).into()),
            _ => Ok(None),
        }
    }

    /// Uploads the archive of a base, unless the server has it.
    async fn upload_archive(&self, template: &str, hash: &str, path: &std::path::Path) -> Result<(), BuildError> {
        let name = path.display().to_string();
        match self.upload_target(template, hash, format!("request an upload URL for {name:?}"), false).await? {
            Some((url, headers)) => self.upload(&name, &url, &headers, path).await,
            None => Ok(()),
        }
    }

    /// Uploads the archive of a copy, unless the server has it.
    async fn upload_copy(&self, template: &str, copied: &Arc<CopySource>) -> Result<(), BuildError> {
        let what = format!("request an upload URL for the files of {:?}", copied.files.source);
        let target = self.upload_target(template, &copied.hash, what, copied.files.force_upload).await?;
        let Some((url, headers)) = target else { return Ok(()) };
        let packing = Arc::clone(copied);
        let archive = blocking(move || {
            let CopyFiles { follow_links, gzip, .. } = packing.files;
            pack(&packing.entries, follow_links, gzip)
        });
        self.upload(&copied.files.source, &url, &headers, archive.await?.path()).await
    }

    /// Streams an archive from disk. The signed URL needs no API key.
    async fn upload(
        &self,
        source: &str,
        url: &str,
        headers: &BTreeMap<String, String>,
        archive: &std::path::Path,
    ) -> Result<(), BuildError> {
        let failed = |source| ContextError::Io { path: archive.to_owned(), source };
        let length = archive.metadata().map_err(failed)?.len();
        // The deadline limits silence, not the whole upload.
        let call = Call::new(format!("upload {source:?}"), Idempotency::Idempotent, self.client.deadline());
        let (call, progress) = call.with_progress();
        let make = |http: &reqwest::Client| {
            let mut request = http.put(url).header(CONTENT_LENGTH, length);
            for (name, value) in headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length")) {
                request = request.header(name, value);
            }
            // Reopened for each attempt.
            let opened = stream::once(tokio::fs::File::open(archive.to_owned()));
            let pieces = opened.map_ok(|file| ReaderStream::with_capacity(file, CHUNK)).try_flatten();
            let progress = progress.clone();
            request.body(reqwest::Body::wrap_stream(pieces.inspect(move |_| progress.note())))
        };
        let sent = self.client.shared().http.send(&call, make).await;
        sent.map(drop).map_err(|failure| failure.into_error(&call).into())
    }

    /// The status of a build, with the log entries after the first `seen`.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn status(&self, template: &str, build: &str, seen: usize) -> Result<BuildProgress, CallError> {
        status(self.client, template, build, seen).await
    }

    /// Streams the log of a build from its beginning until it is done. The last item of a failed
    /// build is [`BuildError::Failed`].
    pub fn follow(
        &self,
        template: &str,
        build: &str,
    ) -> impl Stream<Item = Result<BuildLogEntry, BuildError>> + Send + use<> {
        struct FollowState {
            template: String,
            build: String,
            client: crate::Client,
            seen: usize,
            began: Instant,
            build_timeout: Duration,
            wait: bool,
        }
        let following = FollowState {
            template: template.to_owned(),
            build: build.to_owned(),
            client: self.client.clone(),
            seen: 0,
            began: Instant::now(),
            build_timeout: self.build_timeout,
            wait: false,
        };
        let batches = stream::try_unfold(following, |mut at| async move {
            loop {
                if at.wait {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                let BuildProgress { status, log_entries, reason, .. } =
                    status(&at.client, &at.template, &at.build, at.seen).await?;
                at.seen += log_entries.len();
                let done = matches!(status, BuildStatus::Ready | BuildStatus::Error);
                at.wait = !done;
                if !log_entries.is_empty() {
                    return Ok::<_, BuildError>(Some((stream::iter(log_entries.into_iter().map(Ok)), at)));
                }
                match (status, reason) {
                    (BuildStatus::Ready, _) => return Ok(None),
                    (BuildStatus::Error, reason) => {
                        let (message, step) = match reason {
                            Some(reason) => (reason.message, reason.step),
                            None => ("the server gives no reason".to_owned(), None),
                        };
                        return Err(BuildError::Failed { template: at.template, step, message });
                    }
                    _ if at.began.elapsed() >= at.build_timeout => {
                        return Err(BuildError::DeadlineExceeded { template: at.template, after: at.build_timeout });
                    }
                    _ => {}
                }
            }
        });
        batches.try_flatten()
    }

    /// Log entries of a build, old ones too. The protocol has no search here; `query.search` is
    /// ignored.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn logs(&self, template: &str, build: &str, query: &LogQuery) -> Result<Vec<BuildLogEntry>, CallError> {
        let path = query.on(format!("/templates/{}/builds/{}/logs", encode(template), encode(build)));
        let what = format!("read the log of build {build} of template {template}");
        let request = Request::new(self.client, Method::GET, path, what);
        let page = request.json::<BuildLogPage>().await.map_err(|failure| failure.into_error(&request.call))?;
        Ok(page.logs)
    }
}

async fn status(client: &crate::Client, template: &str, build: &str, seen: usize) -> Result<BuildProgress, CallError> {
    let path = Path::new(format!("/templates/{}/builds/{}/status", encode(template), encode(build)));
    let what = format!("get the status of build {build} of template {template}");
    let request = Request::new(client, Method::GET, path.with("logsOffset", Some(seen)), what);
    request.json().await.map_err(|failure| failure.into_error(&request.call))
}

/// Runs file I/O on the blocking thread pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ContextError> + Send + 'static,
) -> Result<T, BuildError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
