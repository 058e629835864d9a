//! A store that fails, stalls, lies and forgets as it is told to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// What happens to the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Fail,
    Stall,
    /// Says yes and does nothing.
    Forget,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    PutArchive,
    PutManifest,
    BeginParts,
    Part,
    Complete,
    Get,
    List,
    Delete,
}

/// A store in memory that makes trouble as told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Troubled {
    inner: Arc<InMemory>,
    script: Arc<Mutex<VecDeque<(Request, Trouble)>>>,
    ignores_conditions: bool,
}

impl Troubled {
    /// Says yes to what a condition forbids.
    pub(crate) fn lying() -> Self {
        Self { ignores_conditions: true, ..Self::default() }
    }

    /// Makes this trouble next, once.
    pub(crate) fn expect(&self, request: Request, trouble: Trouble) {
        self.script.lock().expect("nobody panics with it").push_back((request, trouble));
    }

    /// All trouble was met.
    pub(crate) fn is_done(&self) -> bool {
        self.script.lock().expect("nobody panics with it").is_empty()
    }

    /// Whether the request is to be forgotten.
    async fn meet(&self, request: Request) -> Result<bool> {
        let trouble = {
            let mut script = self.script.lock().expect("nobody panics with it");
            match script.front() {
                Some((expected, _)) if *expected == request => script.pop_front().map(|(_, trouble)| trouble),
                _ => None,
            }
        };
        match trouble {
            None => Ok(false),
            Some(Trouble::Forget) => Ok(true),
            Some(Trouble::Fail) => Err(Error::Generic { store: "troubled", source: "as told".into() }),
            Some(Trouble::Stall) => std::future::pending().await,
        }
    }
}

impl fmt::Display for Troubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("troubled")
    }
}

#[async_trait]
impl ObjectStore for Troubled {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        let manifest = location.as_ref().ends_with(".manifest.json");
        let request = if manifest { Request::PutManifest } else { Request::PutArchive };
        if !location.as_ref().starts_with("probe") && self.meet(request).await? {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        if self.ignores_conditions {
            opts.mode = PutMode::Overwrite;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.meet(Request::BeginParts).await?;
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(Parts { inner, store: self.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.meet(Request::Get).await?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        first(self.clone(), Request::Delete, self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        first(self.clone(), Request::List, self.inner.list(prefix))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The trouble, then the answers.
fn first<T: Send + 'static>(
    store: Troubled,
    request: Request,
    answers: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let trouble = stream::once(async move { store.meet(request).await.err() });
    trouble.filter_map(|trouble| async { trouble.map(Err) }).chain(answers).boxed()
}

#[derive(Debug)]
struct Parts {
    inner: Box<dyn MultipartUpload>,
    store: Troubled,
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, part) = (self.store.clone(), self.inner.put_part(data));
        Box::pin(async move {
            store.meet(Request::Part).await?;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.store.meet(Request::Complete).await? {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
