//! Previews that do not wake as they should, on a real server: what is told, what is true afterwards, how long it takes. The
//! application starts when a file is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agent::model::ChoiceError;
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use sandbar_studio::records::{Change, Held, JobRecord, NewJob, Spec};
use sandbar_studio::token::{Digest, new_token};
use sandbar_studio::{
    Chosen, JobId, NoPicture, Picture, Premises, Resumed, Settings, Status, Studio, StudioError, User,
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

use super::programs::PATIENCE;

const PORT: u16 = 3000;
const HELD_BACK: &str = "/home/user/held-back";
/// The application ends at once while this is there.
const BROKEN: &str = "/home/user/broken";

fn application() -> DevServer {
    let command = format!(
        "if test -e {BROKEN}; then echo 'cannot find module nothing'; exit 3; fi; echo 'compiling the page'; \
         while test -e {HELD_BACK}; do sleep 0.1; done; exec python3 -m http.server {PORT}"
    );
    DevServer::new(command, PORT)
}

/// Tells the studio, once there is one, what happens to workspaces.
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

/// The server of the test, which cannot be found as often as the test wants.
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

/// Previews wake here, and nothing is built.
struct Bedroom {
    workspaces: Workspaces,
    relay: Arc<Relay>,
}

#[async_trait]
impl Premises for Bedroom {
    fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        assert!(self.relay.0.set(observer).is_ok(), "one studio a bedroom");
    }

    fn tools(&self, _: &Workspace, _: u16) -> Arc<dyn ToolDispatcher> {
        panic!("nothing is built here")
    }

    fn model(&self, _: Option<&str>) -> Result<Chosen, ChoiceError> {
        panic!("nothing is built here")
    }

    fn models(&self) -> Vec<String> {
        Vec::new()
    }

    async fn photograph(&self, _: &Workspace, _: u16) -> Result<Vec<Picture>, NoPicture> {
        Err(NoPicture("nobody looks".to_owned()))
    }
}

/// A server, and a place for what studios on it share.
struct House {
    server: Server,
    directory: TempDir,
    budgets: Vec<BudgetConfig>,
}

/// One process.
struct Process {
    studio: Studio,
    premises: Arc<Bedroom>,
    server: Arc<Found>,
}

impl House {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        Self { server: Server::start(&["--no-studio"]), directory, budgets: Vec::new() }
    }

    async fn process(&self, settings: Settings) -> Process {
        let endpoint = LocalEndpoint { url: self.server.url(), api_key: Secret::from(self.server.key()) };
        let server = Arc::new(Found { endpoint, lost: AtomicUsize::new(0) });
        let mut provider = ProviderConfig::new("here".parse().expect("a name"), ProviderKind::Local);
        // Dear, so that a budget is soon used up.
        provider.price.usd_per_hour = Some(3600.0);
        let config =
            WorkspaceConfig { providers: vec![provider], budgets: self.budgets.clone(), ..WorkspaceConfig::default() };
        let config = config.resolve(self.directory.path(), &|_| None).expect("a configuration");
        let (relay, local) = (Arc::new(Relay::default()), Arc::clone(&server) as Arc<dyn LocalServer>);
        // Who waits for another process asks often.
        let patience = workspace::Settings { lease_wait: Duration::from_millis(200), ..Default::default() };
        let observer = Arc::clone(&relay) as Arc<dyn Observer>;
        let workspaces = Workspaces::from_config(&config, &|_| None, &local, observer, patience).await;
        let premises = Arc::new(Bedroom { workspaces: workspaces.expect("workspaces"), relay });
        let url = config.records.location(&|_| None).expect("a database");
        let studio = Studio::open(&url, Arc::clone(&premises) as Arc<dyn Premises>, settings).await;
        Process { studio: studio.expect("a studio"), premises, server }
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

    /// Somebody wakes it.
    fn resuming(&self, user: &User, job: &JobRecord) -> JoinHandle<Result<Resumed, StudioError>> {
        let (studio, user, id) = (self.studio.clone(), user.clone(), job.id.clone());
        tokio::spawn(async move { studio.resume(&user, &id).await })
    }

    /// A ready build that sleeps, and whose application is held back when it wakes.
    async fn asleep(&self) -> (User, JobRecord) {
        self.asleep_with(HELD_BACK).await
    }

    /// The same with another file in the way of the application.
    async fn asleep_with(&self, obstacle: &str) -> (User, JobRecord) {
        let records = self.studio.records();
        let digest = Digest::of(new_token().expose()).expect("a token");
        let user = records.add_user("ada", &digest, 1).await.expect("a user");
        let project = records.project_named(&user.id, "page").await.expect("a project");
        let new = NewJob {
            id: JobId::new(),
            project: project.id,
            user: user.id.clone(),
            goal: "Make a page.".to_owned(),
            spec: Spec::default(),
            model: "scripted:here".to_owned(),
            begins_from: None,
            rebuilt_from: None,
        };
        let job = records.take_in(&new).await.expect("taken in").expect("a job");
        let made = self.premises.workspaces.create(&job.workspace, Setup::default()).await.expect("a workspace");
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
            job = records.change(&job.id, Held::Anybody, change, Vec::new()).await.expect("changed").expect("a job");
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
async fn one_whose_application_does_not_come_up_is_known_to_be_awake() {
    let house = House::new();
    let settings = Settings {
        resume: seconds(4),
        resume_again: Duration::from_millis(100),
        resume_more: seconds(2),
        resume_all: seconds(60),
        ..Settings::default()
    };
    let process = house.process(settings).await;
    let (user, job) = process.asleep().await;
    let begun = Instant::now();
    let refused = process.studio.resume(&user, &job.id).await;
    let Err(StudioError::ApplicationFailed { reason, output }) = refused else { panic!("{refused:?}") };
    assert_eq!((reason.as_str(), output.as_str()), ("nothing answered on port 3000 in time", "compiling the page"));
    assert!((seconds(6)..seconds(40)).contains(&begun.elapsed()), "two attempts: {:?}", begun.elapsed());

    // It runs and costs, so that is what is said; and it is put to sleep at its time.
    assert_eq!(house.state(&job).await, SandboxState::Running);
    let awake = process.job(&job.id).await;
    let bedtime = awake.sandbox_expires_at.expect("a bedtime");
    assert!(!awake.sandbox_paused);
    assert!(bedtime <= Timestamp::now() + SignedDuration::from_hours(1), "{bedtime}");

    // What is starting is not begun anew, however often somebody wants it awake, and comes up at last.
    let sandbox = house.sandbox(&job).await;
    let server = async || {
        let oldest = "grep -lsz '^SANDBAR_TASK=devserver:' /proc/[0-9]*/environ | sort -V | head -n 1";
        let found = sandbox.commands().run(oldest).await.expect("a command").stdout_text().into_owned();
        assert!(found.starts_with("/proc/"), "it runs: {found:?}");
        found
    };
    let begun = server().await;
    let refused = process.studio.resume(&user, &job.id).await;
    assert!(matches!(refused, Err(StudioError::ApplicationFailed { .. })), "{refused:?}");
    house.let_go(&job).await;
    let resumed = process.studio.resume(&user, &job.id).await.expect("it answers");
    assert_eq!(server().await, begun);
    assert_eq!(Some(&resumed.sandbox_id), job.sandbox_id.as_ref());
    assert!(process.studio.pause(&user, &job.id).await.expect("paused"));
    assert_eq!((house.state(&job).await, process.job(&job.id).await.sandbox_paused), (SandboxState::Paused, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_cannot_start_is_told_as_that_with_its_last_output() {
    let house = House::new();
    let settings = Settings { resume_again: Duration::from_millis(100), ..Settings::default() };
    let process = house.process(settings).await;
    let (user, job) = process.asleep_with(BROKEN).await;
    let refused = process.studio.resume(&user, &job.id).await;
    let Err(StudioError::ApplicationFailed { reason, output }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("ended with exit status 3 before it answered on port 3000"), "{reason}");
    assert!(output.contains("cannot find module nothing"), "{output}");
    assert_eq!(house.state(&job).await, SandboxState::Running, "it can be mended there");
    let told = process.studio.records().events(&job.id, 0).await.expect("read");
    let texts = told.iter().filter_map(|event| event.body.get("text")?.as_str());
    assert!(texts.into_iter().any(|text| text.starts_with("The application does not start: ")), "{told:#?}");

    house.sandbox(&job).await.files().remove(BROKEN).await.expect("removed");
    process.studio.resume(&user, &job.id).await.expect("it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_wakes_it_in_another_process_waits_for_the_first() {
    let house = House::new();
    let settings = || Settings { resume_again: Duration::from_millis(100), ..Settings::default() };
    let (one, two) = (house.process(settings()).await, house.process(settings()).await);
    let (user, job) = one.asleep().await;
    let mut first = one.resuming(&user, &job);
    eventually_async("the first one wakes it", PATIENCE, || async {
        (house.state(&job).await == SandboxState::Running).then_some(())
    })
    .await;
    let mut second = two.resuming(&user, &job);
    // Longer than anybody waits for a lease at once, and than both attempts would take.
    let ended = tokio::time::timeout(seconds(2), futures::future::select(&mut first, &mut second)).await;
    assert!(ended.is_err(), "the application does not answer yet");
    house.let_go(&job).await;
    let first = first.await.expect("no panic").expect("it answers");
    let second = second.await.expect("no panic").expect("it answers");
    assert_eq!((first.sandbox_id, first.preview_url), (second.sandbox_id, second.preview_url));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_has_what_is_left_of_the_time() {
    let house = House::new();
    let settings = Settings {
        resume: seconds(100),
        resume_again: Duration::from_millis(100),
        resume_more: Duration::from_millis(100),
        ..Settings::default()
    };
    let process = house.process(settings).await;
    let (user, job) = process.asleep().await;
    process.server.lost.store(1, Ordering::Relaxed);
    let mut resuming = process.resuming(&user, &job);
    eventually_async("the retry wakes it", PATIENCE, || async {
        (house.state(&job).await == SandboxState::Running).then_some(())
    })
    .await;
    assert_eq!(process.server.lost.load(Ordering::Relaxed), 0, "the first attempt found no server");
    let ended = tokio::time::timeout(seconds(2), &mut resuming).await;
    assert!(ended.is_err(), "the application does not answer yet: {ended:?}");
    house.let_go(&job).await;
    resuming.await.expect("no panic").expect("it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_money_it_sleeps_on_and_says_so() {
    let mut house = House::new();
    // Of a dollar a second.
    house.budgets = vec![BudgetConfig { project: None, usd: 0.01, period: BudgetPeriod::Month }];
    let process = house.process(Settings { resume_again: seconds(60), ..Settings::default() }).await;
    let (user, job) = process.asleep().await;
    let begun = Instant::now();
    let refused = process.studio.resume(&user, &job.id).await;
    assert!(matches!(refused, Err(StudioError::OverBudget { .. })), "{refused:?}");
    assert!(begun.elapsed() < seconds(60), "there is nothing to try again: {:?}", begun.elapsed());
    assert_eq!((house.state(&job).await, process.job(&job.id).await.sandbox_paused), (SandboxState::Paused, true));
}
