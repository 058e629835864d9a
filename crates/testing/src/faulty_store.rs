//! A store that fails, stalls, ignores conditions and forgets on demand.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

/// The fault of the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    Fail,
    Stall,
    /// Acknowledges and does nothing.
    Forget,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRequest {
    PutArchive,
    PutManifest,
    BeginParts,
    Part,
    Complete,
    Get,
    List,
    Delete,
}

/// A store in memory with scripted faults.
#[derive(Debug, Clone, Default)]
pub struct FaultyStore {
    inner: Arc<InMemory>,
    script: Arc<Mutex<VecDeque<(ObjectRequest, StoreFault)>>>,
    ignores_conditions: bool,
}

impl FaultyStore {
    /// Accepts what a condition forbids.
    pub fn lying() -> Self {
        Self { ignores_conditions: true, ..Self::default() }
    }

    /// Queues a fault, which occurs once.
    pub fn expect(&self, request: ObjectRequest, fault: StoreFault) {
        self.script.lock().push_back((request, fault));
    }

    /// Whether all faults have occurred.
    pub fn is_done(&self) -> bool {
        self.script.lock().is_empty()
    }

    /// Applies the next fault; returns whether to forget the request.
    async fn apply_fault(&self, request: ObjectRequest) -> Result<bool> {
        let fault = {
            let mut script = self.script.lock();
            match script.front() {
                Some((expected, _)) if *expected == request => script.pop_front().map(|(_, fault)| fault),
                _ => None,
            }
        };
        match fault {
            None => Ok(false),
            Some(StoreFault::Forget) => Ok(true),
            Some(StoreFault::Fail) => Err(Error::Generic { store: "troubled", source: "scripted".into() }),
            Some(StoreFault::Stall) => std::future::pending().await,
        }
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("troubled")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        let manifest = location.as_ref().ends_with(".manifest.json");
        let request = if manifest { ObjectRequest::PutManifest } else { ObjectRequest::PutArchive };
        if !location.as_ref().starts_with("probe") && self.apply_fault(request).await? {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        if self.ignores_conditions {
            opts.mode = PutMode::Overwrite;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.apply_fault(ObjectRequest::BeginParts).await?;
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(Parts { inner, store: self.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.apply_fault(ObjectRequest::Get).await?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        first(self.clone(), ObjectRequest::Delete, self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        first(self.clone(), ObjectRequest::List, self.inner.list(prefix))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The fault, then the results.
fn first<T: Send + 'static>(
    store: FaultyStore,
    request: ObjectRequest,
    answers: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let fault = stream::once(async move { store.apply_fault(request).await.err() });
    fault.filter_map(|fault| async { fault.map(Err) }).chain(answers).boxed()
}

#[derive(Debug)]
struct Parts {
    inner: Box<dyn MultipartUpload>,
    store: FaultyStore,
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, part) = (self.store.clone(), self.inner.put_part(data));
        Box::pin(async move {
            store.apply_fault(ObjectRequest::Part).await?;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.store.apply_fault(ObjectRequest::Complete).await? {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
