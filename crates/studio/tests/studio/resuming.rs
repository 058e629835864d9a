//! Resumes that fail, on a real server: the reported error, the recorded state and the time they
//! take. The application starts once a file is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agent::model::ChoiceError;
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use sandbar_studio::records::{Change, JobRecord, JobSpec, Precondition};
use sandbar_studio::token::{TokenDigest, new_token};
use sandbar_studio::{
    CapturedScreenshot, ChosenModel, JobId, ResumedPreview, ScreenshotFailed, Settings, Status, Studio, StudioError,
    StudioEvent, StudioHost, TimelineEventKind, User,
};
use sdk::model::SandboxState;
use sdk::{Sandbox, SandboxId, Secret};
use tempfile::TempDir;
use testing::{Server, eventually_async};
use tokio::task::JoinHandle;
use tools::ToolDispatcher;
use workspace::config::{BudgetConfig, BudgetPeriod, ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::devserver::DevServer;
use workspace::events::{Observer, WorkspaceEvent};
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};
use workspace::setup::Setup;
use workspace::{Workspace, Workspaces};

use super::programs::TIMEOUT;

const PORT: u16 = 3000;
const HELD_BACK: &str = "/home/user/held-back";
/// The application exits while this file exists.
const BROKEN: &str = "/home/user/broken";

fn application() -> DevServer {
    let command = format!(
        "if test -e {BROKEN}; then echo 'cannot find module nothing'; exit 3; fi; echo 'compiling the page'; \
         while test -e {HELD_BACK}; do sleep 0.1; done; exec python3 -m http.server {PORT}"
    );
    DevServer::new(command, PORT)
}

/// Forwards workspace events to the studio, once there is one.
#[derive(Default)]
struct Relay(OnceLock<Arc<dyn Observer>>);

#[async_trait]
impl Observer for Relay {
    async fn event(&self, event: &WorkspaceEvent) {
        if let Some(observer) = self.0.get() {
            observer.event(event).await;
        }
    }
}

/// The server of the test, which fails a given number of lookups.
struct Found {
    endpoint: LocalEndpoint,
    lost: AtomicUsize,
}

#[async_trait]
impl LocalServer for Found {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        let less = |lost: usize| lost.checked_sub(1);
        match self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(NoLocalServer("as the test wants it".to_owned())),
            Err(_) => Ok(self.endpoint.clone()),
        }
    }
}

/// A host whose previews can be resumed, without builds.
struct TestHost {
    workspaces: Workspaces,
    relay: Arc<Relay>,
}

#[async_trait]
impl StudioHost for TestHost {
    fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        assert!(self.relay.0.set(observer).is_ok(), "one studio per host");
    }

    fn tools(&self, _: &Workspace, _: u16) -> Arc<dyn ToolDispatcher> {
        panic!("nothing is built here")
    }

    fn model(&self, _: Option<&str>) -> Result<ChosenModel, ChoiceError> {
        panic!("nothing is built here")
    }

    fn models(&self) -> Vec<String> {
        Vec::new()
    }

    async fn take_screenshots(&self, _: &Workspace, _: u16) -> Result<Vec<CapturedScreenshot>, ScreenshotFailed> {
        Err(ScreenshotFailed("no screenshots in this test".to_owned()))
    }
}

/// A server, and the directory that its studios share.
struct TestServer {
    server: Server,
    directory: TempDir,
    budgets: Vec<BudgetConfig>,
}

/// One studio process.
struct Process {
    studio: Studio,
    host: Arc<TestHost>,
    server: Arc<Found>,
}

impl TestServer {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        Self { server: Server::start(&["--no-studio"]), directory, budgets: Vec::new() }
    }

    async fn process(&self, settings: Settings) -> Process {
        let endpoint = LocalEndpoint { url: self.server.url(), api_key: Secret::from(self.server.key()) };
        let server = Arc::new(Found { endpoint, lost: AtomicUsize::new(0) });
        let mut provider = ProviderConfig::new("here".parse().expect("a name"), ProviderKind::Local);
        // Expensive, so that a budget is soon exhausted.
        provider.price.usd_per_hour = Some(3600.0);
        let config =
            WorkspaceConfig { providers: vec![provider], budgets: self.budgets.clone(), ..WorkspaceConfig::default() };
        let config = config.resolve(self.directory.path(), &|_| None).expect("a configuration");
        let (relay, local) = (Arc::new(Relay::default()), Arc::clone(&server) as Arc<dyn LocalServer>);
        // A process that waits for a lease polls often.
        let timeout = workspace::Settings { lease_timeout: Duration::from_millis(200), ..Default::default() };
        let observer = Arc::clone(&relay) as Arc<dyn Observer>;
        let workspaces = Workspaces::from_config(&config, &|_| None, &local, observer, timeout).await;
        let host = Arc::new(TestHost { workspaces: workspaces.expect("workspaces"), relay });
        let url = config.records.location(&|_| None).expect("a database");
        let studio = Studio::open(&url, Arc::clone(&host) as Arc<dyn StudioHost>, settings).await;
        Process { studio: studio.expect("a studio"), host, server }
    }

    async fn sandbox(&self, job: &JobRecord) -> Sandbox {
        let client = self.server.client();
        let id: SandboxId = job.sandbox_id.as_deref().expect("a sandbox").parse().expect("an id");
        client.attach(&client.info(&id).await.expect("it is there")).expect("it runs")
    }

    async fn state(&self, job: &JobRecord) -> SandboxState {
        let id: SandboxId = job.sandbox_id.as_deref().expect("a sandbox").parse().expect("an id");
        self.server.client().info(&id).await.expect("it is there").listed.state
    }

    /// Lets the application start.
    async fn let_go(&self, job: &JobRecord) {
        self.sandbox(job).await.files().remove(HELD_BACK).await.expect("removed");
    }
}

impl Process {
    async fn job(&self, id: &JobId) -> JobRecord {
        self.studio.records().job(id).await.expect("read").expect("a job")
    }

    /// Resumes the preview in a task.
    fn resuming(&self, user: &User, job: &JobRecord) -> JoinHandle<Result<ResumedPreview, StudioError>> {
        let (studio, user, id) = (self.studio.clone(), user.clone(), job.id.clone());
        tokio::spawn(async move { studio.resume(&user, &id).await })
    }

    /// A ready build with a paused sandbox, whose application does not start when it is resumed.
    async fn paused(&self) -> (User, JobRecord) {
        self.paused_with(HELD_BACK).await
    }

    /// The same with another file that blocks the application.
    async fn paused_with(&self, obstacle: &str) -> (User, JobRecord) {
        let records = self.studio.records();
        let digest = TokenDigest::from_token(new_token().expose()).expect("a token");
        let user = records.add_user("ada", &digest, 1).await.expect("a user");
        let project = records.ensure_project(&user.id, "page").await.expect("a project");
        let spec = JobSpec { goal: "Make a page.".to_owned(), model: "scripted:here".to_owned(), ..JobSpec::default() };
        let job = records.enqueue(&user.id, &project.id, &spec).await.expect("taken in").expect("a job");
        let made = self.host.workspaces.create(&job.workspace, Setup::default()).await.expect("a workspace");
        let workspace = made.workspace;
        workspace.serve(Some(application())).await.expect("it answers");
        let pass = workspace.enter().await.expect("it runs");
        pass.sandbox().files().write(obstacle, "").await.expect("written");
        let sandbox = pass.sandbox().id().to_string();
        drop(pass);
        let mut job = job;
        for to in [Status::Provisioning, Status::Building, Status::Ready] {
            let change = Change {
                status: Some((job.status, to)),
                sandbox_id: Some(Some(sandbox.clone())),
                preview: Some(Some(("http://before".to_owned(), PORT))),
                settled: Some(true),
                ..Change::default()
            };
            job =
                records.change(&job.id, Precondition::None, change, Vec::new()).await.expect("changed").expect("a job");
        }
        workspace.pause().await.expect("paused");
        workspace.close().await;
        let job = self.job(&job.id).await;
        assert!(job.sandbox_paused, "the studio has heard of it");
        (user, job)
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_resume_records_the_running_sandbox() {
    let server = TestServer::new();
    let settings = Settings {
        resume_timeout: seconds(4),
        resume_retry_delay: Duration::from_millis(100),
        resume_retry_time: seconds(2),
        resume_deadline: seconds(60),
        ..Settings::default()
    };
    let process = server.process(settings).await;
    let (user, job) = process.paused().await;
    let begun = Instant::now();
    let refused = process.studio.resume(&user, &job.id).await;
    let Err(StudioError::ApplicationFailed { reason, output }) = refused else { panic!("{refused:?}") };
    assert_eq!((reason.as_str(), output.as_str()), ("nothing answered on port 3000 in time", "compiling the page"));
    assert!((seconds(6)..seconds(40)).contains(&begun.elapsed()), "two attempts: {:?}", begun.elapsed());

    // The sandbox runs and costs, so the record says so, and it is paused again in time.
    assert_eq!(server.state(&job).await, SandboxState::Running);
    let running = process.job(&job.id).await;
    let auto_pause_at = running.sandbox_expires_at.expect("an automatic pause");
    assert!(!running.sandbox_paused);
    assert!(auto_pause_at <= Timestamp::now() + SignedDuration::from_hours(1), "{auto_pause_at}");

    // An application that is starting is not started twice, and responds at last.
    let sandbox = server.sandbox(&job).await;
    let dev_server = async || {
        let oldest = "grep -lsz '^SANDBAR_TASK=devserver:' /proc/[0-9]*/environ | sort -V | head -n 1";
        let found = sandbox.commands().run(oldest).await.expect("a command").stdout_text().into_owned();
        assert!(found.starts_with("/proc/"), "it runs: {found:?}");
        found
    };
    let begun = dev_server().await;
    let refused = process.studio.resume(&user, &job.id).await;
    assert!(matches!(refused, Err(StudioError::ApplicationFailed { .. })), "{refused:?}");
    server.let_go(&job).await;
    let resumed = process.studio.resume(&user, &job.id).await.expect("it answers");
    assert_eq!(dev_server().await, begun);
    assert_eq!(Some(&resumed.sandbox_id), job.sandbox_id.as_ref());
    assert!(process.studio.pause(&user, &job.id).await.expect("paused"));
    assert_eq!((server.state(&job).await, process.job(&job.id).await.sandbox_paused), (SandboxState::Paused, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_application_is_reported_with_its_log() {
    let server = TestServer::new();
    let settings = Settings { resume_retry_delay: Duration::from_millis(100), ..Settings::default() };
    let process = server.process(settings).await;
    let (user, job) = process.paused_with(BROKEN).await;
    let refused = process.studio.resume(&user, &job.id).await;
    let Err(StudioError::ApplicationFailed { reason, output }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("ended with exit status 3 before it answered on port 3000"), "{reason}");
    assert!(output.contains("cannot find module nothing"), "{output}");
    assert_eq!(server.state(&job).await, SandboxState::Running, "it can be mended there");
    let events = process.studio.records().events(&job.id, 0).await.expect("read");
    let reported = events.iter().any(|event| match &event.body.event {
        TimelineEventKind::Studio(StudioEvent::Notice { text }) => text.starts_with("The application does not start: "),
        _ => false,
    });
    assert!(reported, "{events:#?}");

    server.sandbox(&job).await.files().remove(BROKEN).await.expect("removed");
    process.studio.resume(&user, &job.id).await.expect("it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_waits_for_another_process() {
    let server = TestServer::new();
    let settings = || Settings { resume_retry_delay: Duration::from_millis(100), ..Settings::default() };
    let (one, two) = (server.process(settings()).await, server.process(settings()).await);
    let (user, job) = one.paused().await;
    let mut first = one.resuming(&user, &job);
    eventually_async("the first one wakes it", TIMEOUT, || async {
        (server.state(&job).await == SandboxState::Running).then_some(())
    })
    .await;
    let mut second = two.resuming(&user, &job);
    // Longer than one wait for a lease, and than both attempts take.
    let ended = tokio::time::timeout(seconds(2), futures::future::select(&mut first, &mut second)).await;
    assert!(ended.is_err(), "the application does not answer yet");
    server.let_go(&job).await;
    let first = first.await.expect("no panic").expect("it answers");
    let second = second.await.expect("no panic").expect("it answers");
    assert_eq!((first.sandbox_id, first.preview_url), (second.sandbox_id, second.preview_url));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_keeps_the_deadline() {
    let server = TestServer::new();
    let settings = Settings {
        resume_timeout: seconds(100),
        resume_retry_delay: Duration::from_millis(100),
        resume_retry_time: Duration::from_millis(100),
        ..Settings::default()
    };
    let process = server.process(settings).await;
    let (user, job) = process.paused().await;
    process.server.lost.store(1, Ordering::Relaxed);
    let mut resuming = process.resuming(&user, &job);
    eventually_async("the retry wakes it", TIMEOUT, || async {
        (server.state(&job).await == SandboxState::Running).then_some(())
    })
    .await;
    assert_eq!(process.server.lost.load(Ordering::Relaxed), 0, "the first attempt found no server");
    let ended = tokio::time::timeout(seconds(2), &mut resuming).await;
    assert!(ended.is_err(), "the application does not answer yet: {ended:?}");
    server.let_go(&job).await;
    resuming.await.expect("no panic").expect("it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_budget_the_preview_stays_paused() {
    let mut server = TestServer::new();
    // At one dollar per second.
    server.budgets = vec![BudgetConfig { project: None, usd: 0.01, period: BudgetPeriod::Month }];
    let process = server.process(Settings { resume_retry_delay: seconds(60), ..Settings::default() }).await;
    let (user, job) = process.paused().await;
    let begun = Instant::now();
    let refused = process.studio.resume(&user, &job.id).await;
    assert!(matches!(refused, Err(StudioError::OverBudget { .. })), "{refused:?}");
    assert!(begun.elapsed() < seconds(60), "there is nothing to try again: {:?}", begun.elapsed());
    assert_eq!((server.state(&job).await, process.job(&job.id).await.sandbox_paused), (SandboxState::Paused, true));
}
