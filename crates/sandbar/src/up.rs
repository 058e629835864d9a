//! `sandbar up`: one process, one listener. Prints the variables for SDKs, then `ready:`, then
//! serves until a signal stops it.

use crate::backup::Timers;
use crate::config::{Config, Overrides};
use crate::local_server::OwnEndpoint;
use crate::maintenance::{MaintenanceTask, RecordsState};
use crate::screenshot_host::{PATHS, ScreenshotHost};
use crate::studio::{StudioFlags, StudioOptions, StudioRuntime};
use crate::{doctor, env, hosts, logging, runtime};
use ::studio::rest;
use anyhow::{Context, bail};
use api::{ApiConfig, Fallback};
use ca::Authority;
use clap::Args;
use data_directory::{Busy, DataDirectory, Expected, ServerNote};
use engine::probe::Isolation;
use engine::{Engine as _, EngineConfig, Namespaces};
use hyper_util::service::TowerToHyperService;
use node::{Closing, Node, OnMissing, OpenError, PersistedState};
use rustix::process::{Pid, Signal, kill_process};
use sdk::Secret;
use std::io::{IsTerminal as _, Write, stderr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use workspace::config::OwnServer;
use workspace::provider::{LocalEndpoint, LocalServer};

/// Serve sandboxes on this machine to the official E2B SDKs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar up
  sandbar up --listen 127.0.0.1:0 --data /tmp/try --ephemeral  a throw-away server on a free port
  sandbar up --config sandbar.toml
  sandbar up --listen 0.0.0.0:443 --domain sandbox.example     https://PORT-SANDBOX.sandbox.example
  sandbar up --domain sandbox.example --dashboard-host dashboard.test

The API key and the first user's token are printed to terminals only, since other outputs are kept in journals; \
eval \"$(sandbar env)\" sets them in any shell.

With --domain, previews and the dashboard share that domain unless --dashboard-host names another one: a page of a preview \
can then set cookies that browsers send to the dashboard. Over https the dashboard's cookie is protected all the same; a host of \
another registrable domain, or a domain on the Public Suffix List, also keeps previews apart from each other.

The same port serves http and https. Certificates come from an authority of the data directory's own: `sandbar trust` prints \
it, or has this machine trust it.

A configuration file (default: $XDG_CONFIG_HOME/sandbar/config.toml). All keys are optional; these \
are the defaults unless a comment says otherwise:
  listen = \"127.0.0.1:4980\"
  data = \"/var/lib/sandbar\"       # absent: $XDG_DATA_HOME/sandbar
  api_key = \"e2b_0123\"            # absent: made once and kept in the data directory
  domain = \"sandbox.example\"      # absent: localhost; what SDKs append to PORT-SANDBOX.
  dashboard_host = \"dash.example\" # absent: every name that leads here
  extensions = true               # what Sandbar adds to E2B
  ephemeral = false               # true: end all sandboxes when the server stops
  [sandboxes]                     # what each gets unless its create says otherwise
  cpu_count = 2
  memory_mb = 1024
  disk_mb = 10240
  volume_mb = 10240               # of each volume
  pids = 4096                     # most processes and threads in one sandbox
  max_cpu_count = 64              # most that one create may ask for
  max_memory_mb = 65536
  max_disk_mb = 262144
  max_sandboxes = 1000            # most that run or are paused with their memory
  max_timeout_seconds = 2592000   # longest lease one call may ask for
  max_image_mb = 32768            # most that an image takes when it is unpacked
  spares = 6                      # files made ahead of creates; 0 makes none
  trash_days = 7                  # how long files that no record names can be recovered
  registry_mirrors = { \"docker.io\" = \"http://mirror.lan:5000\" } # default: none
  [egress]                        # private networks to be reached; none by default
  allow_ranges = [\"10.1.0.0/16\"]
  allow_names = [\"*.corp.example\"]
  nameservers = [\"10.1.0.53\"]     # absent: those of /etc/resolv.conf
  extra_roots = [\"/etc/corp.pem\"] # trusted besides the host's where rules set headers
  [limits]                        # of the server, so that it always answers
  descriptors = 1048576           # absent: as many as the system allows
  connections = 16384             # absent: by the descriptors; two of them each
  connections_per_address = 8192  # absent: half of them; loopback has no such limit
  flows_per_second = 500          # new connections of one sandbox; four times as many at once
  [screenshots]                   # pictures that take_screenshot keeps
  keep_days = 30                  # below the data directory; the oldest go first
  keep_count = 10000
  keep_mb = 1024
  cdn = \"cdn.example.com\"         # absent: this server, or S3, signs addresses
  place.s3.bucket = \"pictures\"    # absent: the data directory; keys: AWS_ACCESS_KEY_ID, …
  place.s3.region = \"us-east-1\"   # also place.s3.endpoint; instead of s3:
                                  # place.disk.directory, place.disk.served_at
  [backup]                        # see `sandbar backup --help`
  target = \"s3://BUCKET/PREFIX\"  # default: none; a directory, or a bucket
  interval_hours = 24
  [scrub]                         # see `sandbar scrub --help`
  interval_hours = 168            # default: never

Workspaces have [[providers]], [objects], [records], [[budgets]] and [models.NAME]: `sandbar config init` \
writes all of them, docs/configuration-reference.md explains each key.

Each key is also a variable: SANDBAR_LISTEN, SANDBAR_EGRESS__ALLOW_RANGES='[\"10.1.0.0/16\"]', …
SANDBAR_LOG sets what is logged (default `info`): `debug`, or `warn,sandbar_api=debug`.

While it runs, the server looks after the workspaces of the user who started it, here or with other providers: it \
extends or replaces their sandboxes in time, also when no command is run for days.

Stopping the server (Ctrl-C) leaves sandboxes alive until their leases end; the next `sandbar up` \
finds them again, and commands wait for it rather than start a server of their own. A server that a command had started \
makes room for this one. `sandbar down` ends the server and the sandboxes, and forgets the server.")]
pub(crate) struct Up {
    /// Address of the listener, for example 127.0.0.1:5000; port 0 takes a free one [default:
    /// 127.0.0.1:4980]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Where everything durable lives [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The key clients must send [default: made once and kept in the data directory]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// What SDKs append to PORT-SANDBOX. to name a port of a sandbox; all names below it must lead
    /// here [default: localhost and the listener's port]
    #[arg(long, value_name = "NAME[:PORT]")]
    domain: Option<String>,
    /// Serve the dashboard under this host name only, outside of the domain of previews
    #[arg(long, value_name = "NAME", conflicts_with = "no_studio")]
    dashboard_host: Option<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// End all sandboxes when the server stops
    #[arg(long)]
    ephemeral: bool,
    /// Start although the database or the pool of the data directory is missing. Files that no
    /// record names go to the trash (`sandbar recover`); sandboxes whose files are missing are
    /// listed and cannot be resumed
    #[arg(long)]
    accept_missing_files: bool,
    /// Serve plain E2B, without what Sandbar adds to it
    #[arg(long)]
    no_extensions: bool,
    /// Serve sandboxes only, without the studio and its dashboard
    #[arg(long, conflicts_with_all = ["database", "scripts"])]
    no_studio: bool,
    /// The studio's database: sqlite:///FILE or postgres://… [default: in the data directory]
    #[arg(long, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    database: Option<Secret>,
    /// A command starts it because none runs
    #[arg(long, hide = true)]
    on_demand: bool,
    #[command(flatten)]
    studio: StudioFlags,
}

/// A step of a stop that takes longer is logged.
const SLOW_STOP: Duration = Duration::from_secs(20);

/// Flags whose values are secrets.
const SECRET_FLAGS: [&str; 2] = ["--api-key", "--database"];

/// The command line of this server without secrets, for messages.
fn command() -> String {
    let mut words = vec!["sandbar".to_owned()];
    let mut secret = false;
    for word in std::env::args().skip(1) {
        let flag = SECRET_FLAGS.iter().find(|flag| word.strip_prefix(**flag).is_some_and(|rest| rest.starts_with('=')));
        words.push(match flag {
            _ if secret => "…".to_owned(),
            Some(flag) => format!("{flag}=…"),
            None => word.clone(),
        });
        secret = !secret && SECRET_FLAGS.contains(&word.as_str());
    }
    words.join(" ")
}

impl Up {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let overrides = Overrides {
            listen: self.listen,
            data: self.data,
            api_key: self.api_key,
            domain: self.domain,
            dashboard_host: self.dashboard_host,
            extensions: self.no_extensions.then_some(false),
            ephemeral: self.ephemeral.then_some(true),
        };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        logging::start()?;
        // Before any thread is started: a thread that exists already would stay outside of the
        // namespaces.
        let report = engine::probe::probe(&config.data);
        if report.isolation == Isolation::None {
            eprint!("{}", doctor::describe(&report, cli::show::colours_on(&stderr())));
            bail!(
                "sandboxes cannot run on this machine yet; after the fixes above, `sandbar doctor` shows whether they can"
            );
        }
        if !report.differences.is_empty() {
            eprint!("{}", doctor::describe_differences(&report, cli::show::colours_on(&stderr())));
        }
        engine::enter_private_mounts(&config.data).context("cannot make namespaces for the server")?;
        config.limits.raise(config.sandboxes.max_sandboxes);
        let studio = (!self.no_studio).then(|| self.studio.options(self.database));
        let on_missing = if self.accept_missing_files { OnMissing::Accept } else { OnMissing::Refuse };
        if self.on_demand {
            return runtime::block_on(serve(config, on_missing, studio, StartedBy::Command, self.config.as_deref()));
        }
        let expected_before = data_directory::expected_server(&config.data).is_some();
        data_directory::check_usable(&config.data)?;
        data_directory::expect_server(&config.data, &Expected { command: command() })?;
        let path = config.data.clone();
        let served = runtime::block_on(serve(config, on_missing, studio, StartedBy::Person, self.config.as_deref()));
        if served.is_err() && !expected_before {
            data_directory::expect_none(&path);
        }
        served
    }
}

/// What started a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartedBy {
    /// A user or a supervisor, by `sandbar up`.
    Person,
    /// A command that found no server.
    Command,
}

async fn serve(
    mut config: Config,
    on_missing: OnMissing,
    studio: Option<StudioOptions>,
    started_by: StartedBy,
    file: Option<&Path>,
) -> anyhow::Result<()> {
    let directory = take(&config, started_by).await?;
    directory.withdraw_note()?;
    let api_key = match &config.api_key {
        Some(key) => key.clone(),
        None => directory.api_key()?,
    };
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}; --listen names another address", config.listen))?;
    let address = listener.local_addr()?;
    let mut stopping = Signals::install()?;
    let url = format!("http://{}", reachable(address));
    let own_endpoint = LocalEndpoint { url: url.clone(), api_key: api_key.as_str().into() };
    let domain = hosts::domain(config.domain.as_deref(), address);
    let everywhere = address.ip().is_unspecified();
    config.own_server = Some(OwnServer { url: url.clone(), domain: Some(domain.clone()), everywhere });
    let (node, mut studio_runtime, names_resolve) = tokio::join!(
        open_warm(&config, &directory, on_missing),
        open_studio(&config, &own_endpoint, studio.as_ref()),
        hosts::names_resolve(&domain)
    );
    let node = node?;

    if !address.ip().is_loopback() {
        warn!(%address, "the server can be reached from other machines; any client with the key can run code here");
    }
    // Before `ready:` is printed: a `sandbar down` that follows must find the server.
    let note = ServerNote {
        pid: std::process::id(),
        url: url.clone(),
        api_key: api_key.clone(),
        ephemeral: config.ephemeral,
        domain: Some(domain.clone()),
        everywhere,
        on_demand: started_by == StartedBy::Command,
        database: studio.as_ref().and_then(|studio| studio.database.as_ref()).map(|url| url.expose().to_owned()),
        serving: true,
    };
    directory.write_note(&note)?;
    let mut out = std::io::stdout();
    let token = studio_runtime.as_ref().and_then(|studio_runtime| studio_runtime.token.as_ref());
    if out.is_terminal() {
        write!(out, "{}", env::lines(&note, token))?;
    } else {
        writeln!(out, "# Keys are printed to terminals only; eval \"$(sandbar env{})\" sets them", data_flag(&config))?;
    }
    let dashboard_host = config.dashboard_host.as_deref();
    if let (Some(domain), None, Some(_)) = (&config.domain, dashboard_host, &studio_runtime) {
        warn!(
            %domain,
            "previews and the dashboard share a domain: pages of previews can set cookies that browsers send to the \
             dashboard. --dashboard-host names another one for it"
        );
    }
    let authority = open_authority(&directory, &config);
    if authority.is_some() {
        let own = config.domain.as_deref().map(|domain| format!(" --domain {domain}")).unwrap_or_default();
        let dashboard = dashboard_host.map(|host| format!(" --dashboard-host {host}")).unwrap_or_default();
        let own = data_flag(&config) + &own + &dashboard;
        writeln!(
            out,
            "# The same over https, also https://PORT-SANDBOX.{domain}, to clients that trust it: `sandbar trust{own}`"
        )?;
    }
    if let Some(hint) = authority.as_deref().and_then(|authority| old_interpreter(authority, &domain, names_resolve)) {
        writeln!(out, "{hint}")?;
    }
    if studio_runtime.is_some() {
        let address = dashboard_host.map_or(url.clone(), |host| format!("http://{host}:{}", address.port()));
        writeln!(out, "# The dashboard: {address}/ (sign in with SANDBAR_TOKEN)")?;
    }
    writeln!(out, "ready: {url}")?;
    out.flush()?;

    let stop = CancellationToken::new();
    let studio = studio_runtime.as_mut().map(|studio_runtime| {
        studio_runtime.start_worker();
        rest::router(
            studio_runtime.studio.clone(),
            &studio_runtime.rest_options(&domain, config.dashboard_host.as_deref()),
            stop.clone(),
        )
    });
    let elsewhere = match (studio, open_screenshots(&config)) {
        (Some(studio), Some(screenshots)) => Fallback::new(TowerToHyperService::new(studio.merge(screenshots))),
        (Some(studio), None) => Fallback::new(TowerToHyperService::new(studio)),
        (None, Some(screenshots)) => Fallback::new(TowerToHyperService::new(screenshots)).below(PATHS),
        (None, None) => Fallback::default(),
    };
    let elsewhere = match &studio_runtime {
        Some(studio_runtime) => {
            let studio = studio_runtime.studio.clone();
            elsewhere.with_part("studio", Arc::new(move || studio.records().fault()))
        }
        None => elsewhere,
    };
    let records = RecordsState::default();
    let elsewhere = elsewhere.with_part("workspaces", {
        let records = records.clone();
        Arc::new(move || records.fault())
    });
    let (max_connections, max_connections_per_address) = config.limits.connections();
    let api_config = ApiConfig {
        api_key,
        domain,
        dashboard_host: config.dashboard_host.clone(),
        extensions: config.extensions,
        authority,
        max_connections,
        max_connections_per_address,
    };
    let serving = tokio::spawn(api::serve(listener, Arc::clone(&node), api_config, elsewhere, stop.clone()));
    let job_workspaces = studio_runtime.as_ref().map(|studio_runtime| studio_runtime.workspaces().clone());
    let maintenance = MaintenanceTask::start(config.clone(), own_endpoint, Arc::clone(&node), job_workspaces, records);
    let timers = Timers::start(&config, file);
    let wanted = stopping.next().await;
    drop(timers);
    eprintln!("stopping…");
    let finish = async {
        // Before the listener stops: maintenance of workspaces sends requests to it.
        if let Some(studio_runtime) = &mut studio_runtime {
            report_slow("the builds of the studio", studio_runtime.close()).await;
        }
        report_slow("the maintenance of workspaces", maintenance.stop()).await;
        stop.cancel();
        report_slow("connections of clients", serving).await
    };
    tokio::select! {
        served = finish => served.context("the listener failed")??,
        // The user sent a second signal: do not wait for streams to end.
        _ = stopping.next() => {}
    }
    let closing = if config.ephemeral { Closing::End } else { wanted };
    let (running, paused) = count(&node);
    let ended = report_slow("sandboxes", node.close(closing)).await.context("cannot close the sandboxes")?;
    match closing {
        Closing::End => {
            remove_shared_files(directory.path());
            directory.write_ended(ended)?;
            eprintln!("stopped; {} ended", sandboxes(ended));
        }
        Closing::Keep if running + paused == 0 => eprintln!("stopped; no sandbox was there"),
        Closing::Keep => eprintln!(
            "stopped; {} on until the lease ends, {} kept. \
             `sandbar up{data}` finds them again, `sandbar down{data}` ends them",
            if running == 1 { "1 sandbox lives".to_owned() } else { format!("{running} sandboxes live") },
            if paused == 1 { "1 paused one is".to_owned() } else { format!("{paused} paused ones are") },
            data = data_flag(&config),
        ),
    }
    Ok(())
}

/// Waits for one step of the server's end, and logs what it waits for while that takes long.
async fn report_slow<T>(what: &str, step: impl Future<Output = T>) -> T {
    let mut step = pin!(step);
    loop {
        match tokio::time::timeout(SLOW_STOP, step.as_mut()).await {
            Ok(done) => return done,
            Err(_) => warn!(what, "the server is stopping and still waits"),
        }
    }
}

/// Removes files that all sandboxes shared, after they are ended. If one stays, the next server
/// uses or removes it.
pub(crate) fn remove_shared_files(data: &Path) {
    if let Err(error) = engine::remove_shared_files(data) {
        eprintln!("sandbar: the templates' files stay in {}: {error}", data.display());
    }
}

/// Opens the studio of this server. If it cannot be opened, sandboxes are served without it.
async fn open_studio(
    config: &Config,
    own_endpoint: &LocalEndpoint,
    options: Option<&StudioOptions>,
) -> Option<StudioRuntime> {
    let local: Arc<dyn LocalServer> = Arc::new(OwnEndpoint(own_endpoint.clone()));
    match StudioRuntime::open(config, &local, options?).await {
        Ok(studio_runtime) => Some(studio_runtime),
        Err(error) => {
            eprintln!("sandbar: the studio is not served: {error:#}");
            None
        }
    }
}

/// A hint for users of old interpreter packages, which ignore `E2B_SANDBOX_URL` and always use
/// https.
fn old_interpreter(authority: &Authority, domain: &str, names_resolve: bool) -> Option<String> {
    let bundle = match hosts::write_bundle(authority) {
        Ok(bundle) => bundle?,
        Err(error) => {
            warn!(%error, "cannot write a bundle of roots for clients over https");
            return None;
        }
    };
    let bundle = bundle.display();
    Some(if names_resolve {
        format!("# e2b-code-interpreter before 2.9 speaks https only; for it: export SSL_CERT_FILE={bundle}")
    } else {
        let name = domain.split(':').next().unwrap_or(domain);
        format!(
            "# e2b-code-interpreter before 2.9 speaks https only to names below {name}, which do not resolve here: \
             install libnss-myhostname; then export SSL_CERT_FILE={bundle}"
        )
    })
}

/// The routes of screenshots that are stored on this machine. If they cannot be opened, sandboxes
/// are served without them.
fn open_screenshots(config: &Config) -> Option<axum::Router> {
    match ScreenshotHost::open(config) {
        Ok(host) => host.map(ScreenshotHost::router),
        Err(error) => {
            eprintln!("sandbar: screenshots are not served: {error}");
            None
        }
    }
}

/// Opens the authority of the server's hosts. If it cannot be opened, only http is served.
fn open_authority(directory: &DataDirectory, config: &Config) -> Option<Arc<Authority>> {
    match hosts::authority(directory.path(), config.domain.as_deref(), config.dashboard_host.as_deref()) {
        Ok(authority) => Some(Arc::new(authority)),
        Err(error) => {
            eprintln!("sandbar: https is not served: {error:#}");
            None
        }
    }
}

/// Counts running and paused sandboxes.
fn count(node: &Node) -> (usize, usize) {
    let all = node.all();
    let running = all.iter().filter(|seen| seen.standing == PersistedState::Running).count();
    (running, all.len() - running)
}

fn sandboxes(count: usize) -> String {
    format!("{count} sandbox{}", if count == 1 { "" } else { "es" })
}

/// The `--data` flag for hints; empty for the default data directory.
fn data_flag(config: &Config) -> String {
    match Config::load(None, &Overrides::default()) {
        Ok(default) if default.data == config.data => String::new(),
        _ => format!(" --data {}", config.data.display()),
    }
}

/// The address by which clients on this machine reach a listener.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

/// Locks the data directory, or names the server that has it. A server that a command started is
/// stopped for one that a user starts; its sandboxes keep running, as over any restart.
async fn take(config: &Config, started_by: StartedBy) -> anyhow::Result<DataDirectory> {
    /// For the lock of a client that queries the server, or of a stopping server.
    const TIMEOUT: Duration = Duration::from_secs(2);
    /// For a server that finishes maintenance of workspaces and saves its builds.
    const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    let path = config.data.display();
    let mut deadline = Instant::now() + TIMEOUT;
    let mut asked = None;
    loop {
        match DataDirectory::take(&config.data)? {
            Ok(directory) => return Ok(directory),
            Err(Busy(Some(note)))
                if started_by == StartedBy::Person && note.on_demand && !note.ephemeral && asked != Some(note.pid) =>
            {
                eprintln!("asking the server that a command had started (process {}) to make room…", note.pid);
                let pid = i32::try_from(note.pid).ok().and_then(Pid::from_raw).context("its note is damaged")?;
                kill_process(pid, Signal::TERM).with_context(|| format!("cannot reach process {}", note.pid))?;
                asked = Some(note.pid);
                deadline = Instant::now() + HANDOVER_TIMEOUT;
            }
            Err(Busy(Some(note))) if asked == Some(note.pid) && Instant::now() < deadline => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(Busy(Some(note))) => bail!(
                "{path} is in use by the server at {} (process {}); `sandbar down{}` ends it, \
                 --data names another directory",
                note.url,
                note.pid,
                data_flag(config)
            ),
            Err(Busy(None)) if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
            Err(Busy(None)) => bail!("{path} is in use by a server that is just starting or stopping"),
        }
    }
}

/// As [`open_node`], and builds the base template of a rootless server, which takes seconds, so
/// that the first create does not wait for it.
async fn open_warm(config: &Config, directory: &DataDirectory, on_missing: OnMissing) -> anyhow::Result<Arc<Node>> {
    let engine = open_engine(config, directory, on_missing).await?;
    backup::remove_leftovers(directory.path(), &engine).await;
    if !engine.rootless_limitations().is_empty() {
        engine.base_template().await.context("cannot make the base template")?;
    }
    node_on(engine, config, directory, on_missing).await
}

/// Opens the machine's sandboxes: adopts running ones, and cleans up after those that died.
pub(crate) async fn open_node(
    config: &Config,
    directory: &DataDirectory,
    on_missing: OnMissing,
) -> anyhow::Result<Arc<Node>> {
    let engine = open_engine(config, directory, on_missing).await?;
    node_on(engine, config, directory, on_missing).await
}

async fn open_engine(config: &Config, directory: &DataDirectory, on_missing: OnMissing) -> anyhow::Result<Namespaces> {
    let data = directory.path();
    // Opening the engine creates a missing pool, which is refused while records name files in it.
    if on_missing == OnMissing::Refuse && !engine::pool::exists(data) {
        let files = Node::count_recorded_files(data).await.context("cannot open the sandboxes' records")?;
        if files > 0 {
            bail!(
                "the pool in {data} is missing ({data}/pool.img, or {data}/volumes), but {data}/node.sqlite names the files of \
                 {files} sandboxes, templates and volumes in it. Put it back (is its disk mounted?), or start without those \
                 files: `sandbar up{flag} --accept-missing-files`",
                data = data.display(),
                flag = data_flag(config),
            );
        }
    }
    let engine = EngineConfig {
        data: data.to_owned(),
        runtime: directory.runtime()?,
        guest: node::guest_image(),
        pool_bytes: directory.pool_bytes()?,
        egress: config.egress.to_engine(data, config.limits.egress())?,
    };
    Namespaces::open(engine).await.context("cannot open the engine")
}

async fn node_on(
    engine: Namespaces,
    config: &Config,
    directory: &DataDirectory,
    on_missing: OnMissing,
) -> anyhow::Result<Arc<Node>> {
    let engine = Arc::new(engine);
    match Node::open(directory.path(), engine, config.sandboxes.clone(), on_missing).await {
        Err(missing @ OpenError::DatabaseMissing { .. }) => bail!(
            "{missing}. Put the database back, or start with a new one: `sandbar up{} --accept-missing-files` moves those files to \
             the trash, from where `sandbar recover` brings them back",
            data_flag(config),
        ),
        other => other.context("cannot open the sandboxes' records"),
    }
}

/// The signals that stop the server. Each says whether sandboxes are kept or ended.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    end: tokio::signal::unix::Signal,
}

impl Signals {
    fn install() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
            end: on(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Closing {
        tokio::select! {
            _ = self.interrupt.recv() => Closing::Keep,
            _ = self.terminate.recv() => Closing::Keep,
            // The terminal was closed.
            _ = self.hangup.recv() => Closing::Keep,
            // Sent by `sandbar down`.
            _ = self.end.recv() => Closing::End,
        }
    }
}
