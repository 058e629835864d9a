//! Stores that fail, stall, lie and forget.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use sandbar_workspace::snapshot::{
    Condition, ConditionalPuts, Objects, RestoreError, SaveError, SnapshotOptions, StoreError, Which,
};
use testing::Server;

use crate::support::{assert_same, project, run, snapshots, tree};

/// What happens to the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Fail,
    Stall,
    /// Says yes and does nothing.
    Forget,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
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
struct Troubled {
    inner: Arc<InMemory>,
    script: Arc<Mutex<VecDeque<(Request, Trouble)>>>,
    ignores_conditions: bool,
}

impl Troubled {
    /// Makes this trouble next, once.
    fn expect(&self, request: Request, trouble: Trouble) {
        self.script.lock().expect("nobody panics with it").push_back((request, trouble));
    }

    /// All trouble was met.
    fn is_done(&self) -> bool {
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

const PATIENCE: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_trouble_is_tried_again_and_nothing_half_is_left() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    // More than one part.
    run(&old, "head -c 9000000 /dev/urandom >big; echo hi >small").await;
    let wanted = tree(&old).await;
    let store = Troubled::default();
    let snapshots = snapshots(Objects::new(Arc::new(store.clone())).within(PATIENCE));
    let id = project("trouble");
    use Request::*;
    use Trouble::*;
    let troubles = [
        (List, Fail),
        (BeginParts, Stall),
        (Part, Fail),
        (Part, Stall),
        (Complete, Fail),
        (Complete, Forget),
        (PutManifest, Fail),
        (PutManifest, Stall),
        (PutManifest, Forget),
    ];
    for trouble in troubles {
        store.expect(trouble.0, trouble.1);
        let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await;
        let saved = saved.unwrap_or_else(|error| panic!("{trouble:?}: {error:?}"));
        assert!(store.is_done(), "{trouble:?} was not met");
        let listed = snapshots.list(&id).await.expect("a list");
        assert_eq!(listed.last().map(|listed| listed.stamp), Some(saved.stamp), "{trouble:?}");
        let archives = snapshots.objects().list(&Path::from("projects")).await.expect("a list").len();
        assert_eq!(archives, 2 * listed.len(), "{trouble:?} left something behind");
    }
    // Old ones that cannot be removed are no reason to fail; the next save removes them.
    store.expect(Delete, Fail);
    let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    assert_eq!((saved.pruned.snapshots.len(), store.is_done()), (0, true));
    let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    assert_eq!(saved.pruned.snapshots.len(), 2);

    for trouble in [(List, Fail), (Get, Fail), (Get, Stall)] {
        store.expect(trouble.0, trouble.1);
        let restored = snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
        assert!(store.is_done() && restored.skipped_generations.is_empty(), "{trouble:?} {restored:?}");
        assert_same(&tree(&new).await, &wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stays_in_trouble_gives_up_after_three_attempts() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let store = Troubled::default();
    let snapshots = snapshots(Objects::new(Arc::new(store.clone())).within(PATIENCE));
    let id = project("giving-up");
    snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    let before = snapshots.list(&id).await.expect("a list");
    run(&sandbox, "echo new >file").await;

    for _ in 0..3 {
        store.expect(Request::PutArchive, Trouble::Fail);
    }
    let failed = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await;
    assert!(matches!(failed, Err(SaveError::Store { source: StoreError::Failed { .. }, .. })), "{failed:?}");
    assert!(store.is_done());
    assert_eq!(snapshots.list(&id).await.expect("a list"), before, "earlier snapshots are as they were");

    // A store that cannot be read says nothing about its snapshots: no older one is taken instead.
    for _ in 0..3 {
        store.expect(Request::Get, Trouble::Stall);
    }
    let failed = snapshots.restore(&sandbox, &id, Which::Newest).await;
    assert!(matches!(failed, Err(RestoreError::Store { source: StoreError::TimedOut { .. }, .. })), "{failed:?}");
    assert_eq!(run(&sandbox, "cat file; ls -A | grep -c sandbar || true").await, "new\n0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lies_about_conditions_is_found_out_and_still_used() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let store = Troubled { ignores_conditions: true, ..Troubled::default() };
    let objects = Objects::new(Arc::new(store));
    let facts = objects.conditional_puts().await.expect("a probe");
    assert_eq!(facts, ConditionalPuts { create: Condition::Ignored, update: Condition::Ignored });
    let snapshots = snapshots(objects);
    let id = project("liar");
    // Those of one process wait for each other, so that nothing rests on the condition.
    let options = SnapshotOptions::default();
    let saves = (0..3).map(|_| snapshots.save(&sandbox, &id, &options));
    let saved = futures::future::join_all(saves).await;
    let mut stamps: Vec<_> = saved.into_iter().map(|saved| saved.expect("a snapshot").stamp).collect();
    stamps.sort();
    let listed: Vec<_> = snapshots.list(&id).await.expect("a list").iter().map(|listed| listed.stamp).collect();
    assert_eq!(listed, stamps);
}
