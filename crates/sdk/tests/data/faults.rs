//! Faults on the connection: the right error in time, no leaked task or connection, and no request
//! processed twice.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use sandbar_sdk::{
    CallError, Client, ClientBuilder, Command, CommandError, Connect, FileError, GoneReason, Sandbox, SandboxError,
    Watch,
};

use crate::proxy::{Break, Fault, Proxy};
use testing::{Server, eventually_async};

const START: &str = "/process.Process/Start";
/// Two keepalive intervals of one second, the health check, and slack for a busy machine.
const SILENCE: Duration = Duration::from_secs(8);

/// A sandbox, and a second client that reaches it through a faulty proxy.
struct FaultyRoute {
    direct: Sandbox,
    proxy: Proxy,
    sandbox: Sandbox,
    tasks: usize,
}

impl FaultyRoute {
    async fn to(server: &Server, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let tasks = count_tasks();
        let direct = server.sandbox().await;
        let (proxy, sandbox) = connect_through(server, &direct, options).await;
        Self { direct, proxy, sandbox, tasks }
    }

    async fn starts(&self) -> usize {
        starts(&self.direct, "starts").await
    }

    /// Drops the client and checks that no task or connection remains.
    async fn end(self) {
        let Self { direct, proxy, sandbox, tasks } = self;
        drop(sandbox);
        wait_for_close(&proxy).await;
        direct.kill().await.expect("it ends");
        drop(direct);
        wait_for_tasks(tasks).await;
    }
}

/// The same sandbox through another proxy.
async fn connect_through(
    server: &Server,
    sandbox: &Sandbox,
    options: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (Proxy, Sandbox) {
    let proxy = Proxy::to(server.address());
    let client = options(server.builder(&proxy.address).keepalive(Duration::from_secs(1)));
    let client: Client = client.build().expect("valid options");
    let sandbox = client.connect(sandbox.id(), Connect::default()).await.expect("the route is whole");
    (proxy, sandbox)
}

/// How often a command was started: each start appends a line.
async fn starts(sandbox: &Sandbox, file: &str) -> usize {
    sandbox.files().read_text(file).await.map_or(0, |text| text.lines().count())
}

async fn wait_for_close(proxy: &Proxy) {
    eventually_async("no connection is left", Duration::from_secs(10), async || (proxy.open() == 0).then_some(()))
        .await;
}

async fn wait_for_tasks(before: usize) {
    eventually_async("no task is left", Duration::from_secs(10), async || (count_tasks() <= before).then_some(()))
        .await;
}

fn count_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn answer(status: &str, headers: &str, body: &str) -> Fault {
    Fault::Answer(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n{body}",
        body.len()
    ))
}

/// Appends a line at its start, and produces five envelopes: start, two outputs, exit, end of
/// stream.
fn command(file: &str) -> Command {
    Command::new(format!("echo run >> {file}; printf out; sleep 0.1; printf err >&2; exec sh -c 'exit 5'"))
}

const ENVELOPES: usize = 5;
/// After the exit event nothing more is needed.
const END: usize = 4;

#[tokio::test]
async fn a_start_cut_anywhere_is_classified_and_not_retried() {
    let breaks = [Break::Close, Break::Reset];
    let inside = |envelopes| if envelopes < ENVELOPES { &[0, 1, 4, 6][..] } else { &[0] };
    let cuts = (0..=ENVELOPES).flat_map(|envelopes| inside(envelopes).iter().map(move |&bytes| (envelopes, bytes)));
    let cuts = cuts.flat_map(|(envelopes, bytes)| breaks.map(|how| (envelopes, bytes, how)));
    cut_starts(cuts).await;
}

#[tokio::test]
async fn a_start_stalled_anywhere_is_classified_and_not_retried() {
    let stalls = (0..=ENVELOPES).map(|envelopes| (envelopes, 0, Break::Stall));
    cut_starts(stalls.chain([(1, 3, Break::Stall)])).await;
}

/// All cuts concurrently, each through its own proxy.
async fn cut_starts(cuts: impl Iterator<Item = (usize, usize, Break)>) {
    let server = Server::shared(&[]);
    let before = count_tasks();
    let sandbox = server.sandbox().await;
    let cuts = cuts.map(|(envelopes, bytes, how)| cut_start(&server, &sandbox, envelopes, bytes, how));
    stream::iter(cuts).buffer_unordered(8).collect::<()>().await;
    sandbox.kill().await.expect("it ends");
    drop(sandbox);
    wait_for_tasks(before).await;
}

async fn cut_start(server: &Server, direct: &Sandbox, envelopes: usize, bytes: usize, how: Break) {
    let case = format!("{how:?}-after-{envelopes}-envelopes-and-{bytes}-bytes");
    let (proxy, sandbox) = connect_through(server, direct, |options| options).await;
    proxy.on(START, Fault::Cut { envelopes, bytes, how }, 1);
    let begun = Instant::now();
    let outcome = sandbox.commands().run(command(&case)).await;
    assert!(begun.elapsed() < SILENCE, "{case}: {:?}", begun.elapsed());
    match (envelopes, outcome) {
        (END.., Ok(output)) => {
            assert_eq!((&output.stdout[..], &output.stderr[..], output.exit.code), (&b"out"[..], &b"err"[..], 5));
        }
        (0, Err(CommandError::ConnectionLost { may_still_run: None, .. })) => {}
        (1..END, Err(CommandError::ConnectionLost { may_still_run: Some(pid), .. })) => {
            // The exit can still be read.
            let again = sandbox.commands().connect(pid).await.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(again.wait().await.expect("its end is known").exit.code, 5, "{case}");
        }
        (_, other) => panic!("{case}: {other:?}"),
    }
    let ran = async || Some(starts(direct, &case).await).filter(|&starts| starts > 0);
    let once = eventually_async("the command ran", Duration::from_secs(5), ran).await;
    assert_eq!((once, proxy.seen(START)), (1, 1), "{case}");
    drop(sandbox);
    wait_for_close(&proxy).await;
}

#[tokio::test]
async fn wait_exit_survives_a_broken_connection() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    route.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Reset }, 1);
    route.proxy.on("/process.Process/Connect", Fault::Cut { envelopes: 1, bytes: 0, how: Break::Close }, 1);
    let mut running = route.sandbox.commands().start("echo run >> starts; sleep 1; exit 6").await.expect("it starts");
    assert_eq!(running.wait_exit().await.expect("its end is known").code, 6);
    assert_eq!((route.starts().await, route.proxy.seen("/process.Process/Connect")), (1, 2));

    // A timeout is still reported as one.
    route.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Reset }, 1);
    let limit = Duration::from_millis(1500);
    running = route.sandbox.commands().start(Command::new("sleep 100").timeout(limit)).await.expect("it starts");
    let error = running.wait_exit().await.expect_err("too long");
    assert!(matches!(error, CommandError::DeadlineExceeded { may_still_run: None, .. }), "{error:?}");
    drop(running);
    route.end().await;
}

#[tokio::test]
async fn unanswered_requests_end_at_the_deadline() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    let limit = Duration::from_secs(1);
    let sandbox = route.sandbox.within(limit);
    let (commands, files, client) = (sandbox.commands(), sandbox.files(), sandbox.client());
    // Accepted and never answered, answered too late, or stalled after the first bytes.
    for fault in [Fault::HalfOpen, Fault::Delay(limit * 5), Fault::CutRaw { bytes: 20, how: Break::Stall }] {
        for path in [START, "/process.Process/List", "/files", "/filesystem.Filesystem/Stat", "/sandboxes/"] {
            route.proxy.on(path, fault.clone(), 1);
        }
        let begun = Instant::now();
        let (run, list, read, stat, info) = tokio::join!(
            commands.run("true"),
            commands.list(),
            files.read("/etc/passwd"),
            files.stat("/etc/passwd"),
            client.info(sandbox.id())
        );
        let taken = begun.elapsed();
        assert!(taken >= limit && taken < limit + Duration::from_secs(3), "{fault:?} {taken:?}");
        for error in [run.map(drop), list.map(drop)].map(|result| result.expect_err("no answer")) {
            assert!(matches!(error, CommandError::Call(CallError::DeadlineExceeded { .. })), "{fault:?} {error:?}");
        }
        for error in [read.map(drop), stat.map(drop)].map(|result| result.expect_err("no answer")) {
            assert!(matches!(error, FileError::Call(CallError::DeadlineExceeded { .. })), "{fault:?} {error:?}");
        }
        let error = info.expect_err("no answer");
        assert!(matches!(error, SandboxError::Call(CallError::DeadlineExceeded { .. })), "{fault:?} {error:?}");
    }
    drop(sandbox);
    route.end().await;
}

#[tokio::test]
async fn a_slow_response_is_awaited() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    route.proxy.on("", Fault::Delay(Duration::from_millis(300)), 2);
    assert!(route.sandbox.commands().run(command("starts")).await.is_ok());
    assert!(route.sandbox.files().exists("starts").await.expect("known"));
    assert_eq!(route.starts().await, 1);
    route.end().await;
}

#[tokio::test]
async fn error_bursts_are_retried_only_where_safe() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    let json = |code: u16| format!(r#"{{"code":{code},"message":"busy"}}"#);
    let header = "content-type: application/json\r\n";

    // Rejected before processing: any request is retried.
    route.proxy.on(START, answer("429 Too Many Requests", &format!("{header}retry-after: 0\r\n"), &json(429)), 2);
    assert_eq!(route.sandbox.commands().run(command("starts")).await.expect("it runs").exit.code, 5);
    assert_eq!((route.starts().await, route.proxy.seen(START)), (1, 3));

    for (status, code) in [("502 Bad Gateway", 502), ("503 Service Unavailable", 503)] {
        // Reads are retried; a start may have been processed.
        route.proxy.on("/files", answer(status, header, &json(code)), 2);
        assert_eq!(route.sandbox.files().read_text("starts").await.expect("it is there"), "run\n");
        route.proxy.on("/process.Process/List", answer(status, header, &json(code)), 2);
        route.sandbox.commands().list().await.expect("a list");
        route.proxy.on("/sandboxes/", answer(status, header, &json(code)), 2);
        route.sandbox.client().info(route.sandbox.id()).await.expect("it is there");

        let before = route.proxy.seen(START);
        route.proxy.on(START, answer(status, header, &json(code)), 1);
        let error = route.sandbox.commands().run(command("starts")).await.expect_err("refused");
        let CommandError::Call(error) = error else { panic!("{error:?}") };
        assert!(error.is_service_trouble() && error.to_string().contains("busy"), "{error:?}");
        assert_eq!((route.starts().await, route.proxy.seen(START)), (1, before + 1));

        // Retries are limited.
        route.proxy.on("/files", answer(status, header, &json(code)), 4);
        let before = route.proxy.seen("/files");
        let error = route.sandbox.files().read("starts").await.expect_err("refused");
        let FileError::Call(error) = error else { panic!("{error:?}") };
        assert!(error.is_service_trouble(), "{error:?}");
        assert_eq!(route.proxy.seen("/files"), before + 4);
    }
    // `should-retry` overrides the status.
    route.proxy.on(
        "/files",
        answer("503 Service Unavailable", &format!("{header}should-retry: false\r\n"), &json(503)),
        1,
    );
    let error = route.sandbox.files().read("starts").await.expect_err("refused");
    assert!(matches!(error, FileError::Call(CallError::Limited { .. })), "{error:?}");
    route.end().await;
}

#[tokio::test]
async fn malformed_responses_are_errors() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    let (commands, files) = (route.sandbox.commands(), route.sandbox.files());
    let (html, json) = ("content-type: text/html\r\n", "content-type: application/json\r\n");
    let (proto, stream) = ("content-type: application/proto\r\n", "content-type: application/connect+proto\r\n");
    let page = "<html>Welcome to our hotel's network</html>";

    for fault in [answer("200 OK", html, page), answer("200 OK", json, "{}"), answer("200 OK", stream, page)] {
        route.proxy.on(START, fault.clone(), 1);
        let error = commands.run(command("starts")).await.expect_err("no stream");
        assert!(matches!(error, CommandError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
    }
    for fault in [answer("200 OK", html, page), answer("200 OK", proto, page)] {
        route.proxy.on("/process.Process/List", fault.clone(), 1);
        let error = commands.list().await.expect_err("no list");
        assert!(matches!(error, CommandError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
        route.proxy.on("/filesystem.Filesystem/Stat", fault.clone(), 1);
        let error = files.stat("x").await.expect_err("no entry");
        assert!(matches!(error, FileError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
    }
    for body in [r#"{"sandboxID":"i1","#, r#"[{"path":"/x""#, "", page] {
        route.proxy.on("/sandboxes/", answer("200 OK", json, body), 1);
        let error = route.sandbox.client().info(route.sandbox.id()).await.expect_err("no sandbox");
        assert!(matches!(error, SandboxError::Call(CallError::Protocol { .. })), "{body:?} {error:?}");
        route.proxy.on("/files", answer("200 OK", json, body), 1);
        let error = files.write("x", "content").await.expect_err("no file");
        assert!(matches!(error, FileError::Call(CallError::Protocol { .. })), "{body:?} {error:?}");
    }
    assert_eq!(route.starts().await, 0);
    route.end().await;
}

#[tokio::test]
async fn an_incomplete_download_is_an_error() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options.deadline(Duration::from_secs(2))).await;
    route.direct.files().write("big", vec![1; 2_000_000]).await.expect("it is written");
    for how in [Break::Close, Break::Reset] {
        for bytes in [500, 100_000, 1_999_999] {
            route.proxy.on("/files", Fault::CutRaw { bytes, how }, 1);
            let error = route.sandbox.files().read("big").await.expect_err("not whole");
            assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {bytes} {error:?}");
        }
        route.proxy.on("/files", Fault::CutRaw { bytes: 1_000_000, how }, 1);
        let stream = route.sandbox.files().read_stream("big").await.expect("it begins");
        let error = stream.try_for_each(|_| async { Ok(()) }).await.expect_err("not whole");
        assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {error:?}");
    }
    route.proxy.on("/files", Fault::CutRaw { bytes: 1_000_000, how: Break::Stall }, 1);
    let begun = Instant::now();
    let error = route.sandbox.files().read("big").await.expect_err("not whole");
    assert!(matches!(error, FileError::Call(CallError::DeadlineExceeded { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    route.end().await;
}

#[tokio::test]
async fn broken_uploads_are_retried_where_possible() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options.deadline(Duration::from_secs(2))).await;
    let files = route.sandbox.files();
    let content = Bytes::from(vec![3; 3_000_000]);

    route.proxy.on("/files", Fault::Refuse { bytes: 1_000_000 }, 2);
    files.write("kept", content.clone()).await.expect("the third try");
    assert_eq!(route.direct.files().read("kept").await.expect("it is there"), content);

    // A stream cannot be replayed.
    route.proxy.on("/files", Fault::Refuse { bytes: 1_000_000 }, 1);
    let before = route.proxy.seen("/files");
    let source = stream::iter([(); 3]).map({
        let content = content.clone();
        move |()| Ok::<_, std::io::Error>(content.clone())
    });
    let error = files.write_stream("once", source).await.expect_err("it broke");
    assert!(matches!(error, FileError::Call(CallError::ConnectionLost { .. })), "{error:?}");
    assert_eq!(route.proxy.seen("/files"), before + 1);

    // The deadline limits silence: an upload with progress may take longer.
    let slow = stream::unfold(0, |number| async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (number < 6).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"slow ")), number + 1))
    });
    files.write_stream("slow", slow).await.expect("it goes on");
    assert_eq!(route.direct.files().read_text("slow").await.expect("it is there"), "slow ".repeat(6));
    route.proxy.on("/files", Fault::HalfOpen, 1);
    let begun = Instant::now();
    let error = files.write("never", content).await.expect_err("no reader");
    assert!(matches!(error, FileError::Call(CallError::DeadlineExceeded { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    route.end().await;
}

#[tokio::test]
async fn a_broken_or_silent_watch_ends_with_an_error() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    for how in [Break::Close, Break::Reset, Break::Stall] {
        route.proxy.on("/filesystem.Filesystem/WatchDir", Fault::Cut { envelopes: 1, bytes: 0, how }, 1);
        let begun = Instant::now();
        let mut events = route.sandbox.files().watch("/tmp", Watch::default()).await.expect("it begins");
        let error = events.try_next().await.expect_err("it broke");
        assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {error:?}");
        assert!(begun.elapsed() < SILENCE, "{how:?} {:?}", begun.elapsed());
    }
    // Keepalives keep a silent watch alive for more than two intervals.
    let mut events = route.sandbox.files().watch("/tmp", Watch::default()).await.expect("it begins");
    let mut sleeper = route.sandbox.commands().start("sleep 3.5").await.expect("it starts");
    assert!(sleeper.next().await.expect("it is watched").is_none());
    route.direct.files().write("/tmp/new", "x").await.expect("it is written");
    assert_eq!(events.try_next().await.expect("it goes on").expect("an event").name, "new");
    drop((events, sleeper));
    route.end().await;
}

#[tokio::test]
async fn a_sandbox_gone_behind_a_silent_connection_is_detected() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    route.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Stall }, 1);
    let running = route.sandbox.commands().start("sleep 100").await.expect("it starts");
    route.direct.kill().await.expect("it ends");
    let begun = Instant::now();
    let error = running.wait().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    assert!(begun.elapsed() < SILENCE, "{:?}", begun.elapsed());
    route.end().await;
}

#[tokio::test]
async fn the_client_enforces_a_forgotten_timeout() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options.keepalive(Duration::from_secs(30))).await;
    route.proxy.on(START, Fault::ForgetTimeout { envelopes: 1 }, 1);
    let limit = Duration::from_secs(1);
    let begun = Instant::now();
    let running =
        route.sandbox.commands().start(Command::exec("sleep", ["100"]).timeout(limit)).await.expect("it starts");
    let pid = running.pid();
    let error = running.wait().await.expect_err("too long");
    assert!(matches!(error, CommandError::DeadlineExceeded { may_still_run: None, .. }), "{error:?}");
    assert!(begun.elapsed() < limit + Duration::from_secs(5), "{:?}", begun.elapsed());
    eventually_async("the process ends", Duration::from_secs(5), async || {
        route.direct.commands().list().await.expect("a list").iter().all(|info| info.pid != pid).then_some(())
    })
    .await;

    // An unsuccessful kill is reported.
    route.proxy.on(START, Fault::ForgetTimeout { envelopes: 1 }, 1);
    route.proxy.on("/process.Process/SendSignal", answer("500 Internal Server Error", "", "no"), 1);
    let running =
        route.sandbox.commands().start(Command::exec("sleep", ["100"]).timeout(limit)).await.expect("it starts");
    let pid = running.pid();
    let error = running.wait().await.expect_err("too long");
    assert!(
        matches!(error, CommandError::DeadlineExceeded { may_still_run: Some(left), .. } if left == pid),
        "{error:?}"
    );
    route.end().await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported_soon_and_by_name() {
    let server = Server::shared(&[]);
    let route = FaultyRoute::to(&server, |options| options).await;
    let FaultyRoute { direct, proxy, sandbox, .. } = route;
    let address = proxy.address.clone();
    drop(proxy);
    let begun = Instant::now();
    let error = sandbox.commands().run("true").await.expect_err("no server listens");
    let CommandError::Call(CallError::Unreachable { host, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(*host, address);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    direct.kill().await.expect("it ends");
}
