//! What the client says and leaves behind when the way to the server breaks: the right error in time, no task, no
//! connection, and nothing done twice.

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
/// Two keepalive intervals of a second, the question for health, and a busy machine.
const SILENCE: Duration = Duration::from_secs(8);

/// A sandbox, and the same one seen through a proxy by a client of its own.
struct Way {
    direct: Sandbox,
    proxy: Proxy,
    sandbox: Sandbox,
    tasks: usize,
}

impl Way {
    async fn to(server: &Server, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let tasks = tasks();
        let direct = server.sandbox().await;
        let (proxy, sandbox) = through(server, &direct, options).await;
        Self { direct, proxy, sandbox, tasks }
    }

    async fn starts(&self) -> usize {
        starts(&self.direct, "starts").await
    }

    /// The client is dropped, and nothing of it is left.
    async fn end(self) {
        let Self { direct, proxy, sandbox, tasks } = self;
        drop(sandbox);
        closed(&proxy).await;
        direct.kill().await.expect("it ends");
        drop(direct);
        ended(tasks).await;
    }
}

/// The same sandbox by another way.
async fn through(
    server: &Server,
    sandbox: &Sandbox,
    options: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (Proxy, Sandbox) {
    let proxy = Proxy::to(server.address());
    let client = options(server.builder(&proxy.address).keepalive(Duration::from_secs(1)));
    let client: Client = client.build().expect("valid options");
    let sandbox = client.connect(sandbox.id(), Connect::default()).await.expect("the way is whole");
    (proxy, sandbox)
}

/// How often a command was started: each writes a line.
async fn starts(sandbox: &Sandbox, file: &str) -> usize {
    sandbox.files().read_text(file).await.map_or(0, |text| text.lines().count())
}

async fn closed(proxy: &Proxy) {
    eventually_async("no connection is left", Duration::from_secs(10), async || (proxy.open() == 0).then_some(()))
        .await;
}

async fn ended(before: usize) {
    eventually_async("no task is left", Duration::from_secs(10), async || (tasks() <= before).then_some(())).await;
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn answer(status: &str, headers: &str, body: &str) -> Fault {
    Fault::Answer(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n{body}",
        body.len()
    ))
}

/// Writes a line at its start, and gives five envelopes: start, two outputs, end, end of stream.
fn command(file: &str) -> Command {
    Command::new(format!("echo run >> {file}; printf out; sleep 0.1; printf err >&2; exec sh -c 'exit 5'"))
}

const ENVELOPES: usize = 5;
/// With the end of the process, everything is known.
const END: usize = 4;

#[tokio::test]
async fn a_start_that_is_cut_anywhere_is_told_apart_and_never_repeated() {
    let breaks = [Break::Close, Break::Reset];
    let inside = |envelopes| if envelopes < ENVELOPES { &[0, 1, 4, 6][..] } else { &[0] };
    let cuts = (0..=ENVELOPES).flat_map(|envelopes| inside(envelopes).iter().map(move |&bytes| (envelopes, bytes)));
    let cuts = cuts.flat_map(|(envelopes, bytes)| breaks.map(|how| (envelopes, bytes, how)));
    cut_starts(cuts).await;
}

#[tokio::test]
async fn a_start_that_falls_silent_anywhere_is_told_apart_and_never_repeated() {
    let stalls = (0..=ENVELOPES).map(|envelopes| (envelopes, 0, Break::Stall));
    cut_starts(stalls.chain([(1, 3, Break::Stall)])).await;
}

/// All at once, each by a way of its own.
async fn cut_starts(cuts: impl Iterator<Item = (usize, usize, Break)>) {
    let server = Server::shared(&[]);
    let before = tasks();
    let sandbox = server.sandbox().await;
    let cuts = cuts.map(|(envelopes, bytes, how)| cut_start(&server, &sandbox, envelopes, bytes, how));
    stream::iter(cuts).buffer_unordered(8).collect::<()>().await;
    sandbox.kill().await.expect("it ends");
    drop(sandbox);
    ended(before).await;
}

async fn cut_start(server: &Server, direct: &Sandbox, envelopes: usize, bytes: usize, how: Break) {
    let case = format!("{how:?}-after-{envelopes}-envelopes-and-{bytes}-bytes");
    let (proxy, sandbox) = through(server, direct, |options| options).await;
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
            // The exit is not lost.
            let again = sandbox.commands().connect(pid).await.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(again.wait().await.expect("its end is known").exit.code, 5, "{case}");
        }
        (_, other) => panic!("{case}: {other:?}"),
    }
    let ran = async || Some(starts(direct, &case).await).filter(|&starts| starts > 0);
    let once = eventually_async("the command ran", Duration::from_secs(5), ran).await;
    assert_eq!((once, proxy.seen(START)), (1, 1), "{case}");
    drop(sandbox);
    closed(&proxy).await;
}

#[tokio::test]
async fn waiting_for_an_exit_survives_a_broken_connection() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    way.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Reset }, 1);
    way.proxy.on("/process.Process/Connect", Fault::Cut { envelopes: 1, bytes: 0, how: Break::Close }, 1);
    let mut running = way.sandbox.commands().start("echo run >> starts; sleep 1; exit 6").await.expect("it starts");
    assert_eq!(running.wait_exit().await.expect("its end is known").code, 6);
    assert_eq!((way.starts().await, way.proxy.seen("/process.Process/Connect")), (1, 2));

    // And a timeout stays one.
    way.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Reset }, 1);
    let limit = Duration::from_millis(1500);
    running = way.sandbox.commands().start(Command::new("sleep 100").timeout(limit)).await.expect("it starts");
    let error = running.wait_exit().await.expect_err("too long");
    assert!(matches!(error, CommandError::DeadlineExceeded { may_still_run: None, .. }), "{error:?}");
    drop(running);
    way.end().await;
}

#[tokio::test]
async fn nothing_answered_ends_at_the_deadline() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    let limit = Duration::from_secs(1);
    let sandbox = way.sandbox.within(limit);
    let (commands, files, client) = (sandbox.commands(), sandbox.files(), sandbox.client());
    // Taken and never answered, answered too slowly, or begun and not gone on with.
    for fault in [Fault::HalfOpen, Fault::Delay(limit * 5), Fault::CutRaw { bytes: 20, how: Break::Stall }] {
        for path in [START, "/process.Process/List", "/files", "/filesystem.Filesystem/Stat", "/sandboxes/"] {
            way.proxy.on(path, fault.clone(), 1);
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
    way.end().await;
}

#[tokio::test]
async fn a_slow_answer_is_waited_for() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    way.proxy.on("", Fault::Delay(Duration::from_millis(300)), 2);
    assert!(way.sandbox.commands().run(command("starts")).await.is_ok());
    assert!(way.sandbox.files().exists("starts").await.expect("known"));
    assert_eq!(way.starts().await, 1);
    way.end().await;
}

#[tokio::test]
async fn bursts_of_refusals_are_outlasted_only_where_that_is_safe() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    let json = |code: u16| format!(r#"{{"code":{code},"message":"busy"}}"#);
    let header = "content-type: application/json\r\n";

    // Turned away at the door: anything may try again.
    way.proxy.on(START, answer("429 Too Many Requests", &format!("{header}retry-after: 0\r\n"), &json(429)), 2);
    assert_eq!(way.sandbox.commands().run(command("starts")).await.expect("it runs").exit.code, 5);
    assert_eq!((way.starts().await, way.proxy.seen(START)), (1, 3));

    for (status, code) in [("502 Bad Gateway", 502), ("503 Service Unavailable", 503)] {
        // What only reads is asked again; a start may have been acted upon.
        way.proxy.on("/files", answer(status, header, &json(code)), 2);
        assert_eq!(way.sandbox.files().read_text("starts").await.expect("it is there"), "run\n");
        way.proxy.on("/process.Process/List", answer(status, header, &json(code)), 2);
        way.sandbox.commands().list().await.expect("a list");
        way.proxy.on("/sandboxes/", answer(status, header, &json(code)), 2);
        way.sandbox.client().info(way.sandbox.id()).await.expect("it is there");

        let before = way.proxy.seen(START);
        way.proxy.on(START, answer(status, header, &json(code)), 1);
        let error = way.sandbox.commands().run(command("starts")).await.expect_err("refused");
        let CommandError::Call(error) = error else { panic!("{error:?}") };
        assert!(error.is_service_trouble() && error.to_string().contains("busy"), "{error:?}");
        assert_eq!((way.starts().await, way.proxy.seen(START)), (1, before + 1));

        // And not for ever.
        way.proxy.on("/files", answer(status, header, &json(code)), 4);
        let before = way.proxy.seen("/files");
        let error = way.sandbox.files().read("starts").await.expect_err("refused");
        let FileError::Call(error) = error else { panic!("{error:?}") };
        assert!(error.is_service_trouble(), "{error:?}");
        assert_eq!(way.proxy.seen("/files"), before + 4);
    }
    // The server's word counts more than the status.
    way.proxy.on(
        "/files",
        answer("503 Service Unavailable", &format!("{header}should-retry: false\r\n"), &json(503)),
        1,
    );
    let error = way.sandbox.files().read("starts").await.expect_err("refused");
    assert!(matches!(error, FileError::Call(CallError::Limited { .. })), "{error:?}");
    way.end().await;
}

#[tokio::test]
async fn answers_that_are_not_the_protocol_are_errors() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    let (commands, files) = (way.sandbox.commands(), way.sandbox.files());
    let (html, json) = ("content-type: text/html\r\n", "content-type: application/json\r\n");
    let (proto, stream) = ("content-type: application/proto\r\n", "content-type: application/connect+proto\r\n");
    let page = "<html>Welcome to our hotel's network</html>";

    for fault in [answer("200 OK", html, page), answer("200 OK", json, "{}"), answer("200 OK", stream, page)] {
        way.proxy.on(START, fault.clone(), 1);
        let error = commands.run(command("starts")).await.expect_err("no stream");
        assert!(matches!(error, CommandError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
    }
    for fault in [answer("200 OK", html, page), answer("200 OK", proto, page)] {
        way.proxy.on("/process.Process/List", fault.clone(), 1);
        let error = commands.list().await.expect_err("no list");
        assert!(matches!(error, CommandError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
        way.proxy.on("/filesystem.Filesystem/Stat", fault.clone(), 1);
        let error = files.stat("x").await.expect_err("no entry");
        assert!(matches!(error, FileError::Call(CallError::Protocol { .. })), "{fault:?} {error:?}");
    }
    for body in [r#"{"sandboxID":"i1","#, r#"[{"path":"/x""#, "", page] {
        way.proxy.on("/sandboxes/", answer("200 OK", json, body), 1);
        let error = way.sandbox.client().info(way.sandbox.id()).await.expect_err("no sandbox");
        assert!(matches!(error, SandboxError::Call(CallError::Protocol { .. })), "{body:?} {error:?}");
        way.proxy.on("/files", answer("200 OK", json, body), 1);
        let error = files.write("x", "content").await.expect_err("no file");
        assert!(matches!(error, FileError::Call(CallError::Protocol { .. })), "{body:?} {error:?}");
    }
    assert_eq!(way.starts().await, 0);
    way.end().await;
}

#[tokio::test]
async fn a_file_that_does_not_arrive_whole_is_an_error() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options.deadline(Duration::from_secs(2))).await;
    way.direct.files().write("big", vec![1; 2_000_000]).await.expect("it is written");
    for how in [Break::Close, Break::Reset] {
        for bytes in [500, 100_000, 1_999_999] {
            way.proxy.on("/files", Fault::CutRaw { bytes, how }, 1);
            let error = way.sandbox.files().read("big").await.expect_err("not whole");
            assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {bytes} {error:?}");
        }
        way.proxy.on("/files", Fault::CutRaw { bytes: 1_000_000, how }, 1);
        let stream = way.sandbox.files().read_stream("big").await.expect("it begins");
        let error = stream.try_for_each(|_| async { Ok(()) }).await.expect_err("not whole");
        assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {error:?}");
    }
    way.proxy.on("/files", Fault::CutRaw { bytes: 1_000_000, how: Break::Stall }, 1);
    let begun = Instant::now();
    let error = way.sandbox.files().read("big").await.expect_err("not whole");
    assert!(matches!(error, FileError::Call(CallError::DeadlineExceeded { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    way.end().await;
}

#[tokio::test]
async fn an_upload_that_breaks_is_made_again_where_it_can_be() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options.deadline(Duration::from_secs(2))).await;
    let files = way.sandbox.files();
    let content = Bytes::from(vec![3; 3_000_000]);

    way.proxy.on("/files", Fault::Refuse { bytes: 1_000_000 }, 2);
    files.write("kept", content.clone()).await.expect("the third try");
    assert_eq!(way.direct.files().read("kept").await.expect("it is there"), content);

    // A stream exists once.
    way.proxy.on("/files", Fault::Refuse { bytes: 1_000_000 }, 1);
    let before = way.proxy.seen("/files");
    let source = stream::iter([(); 3]).map({
        let content = content.clone();
        move |()| Ok::<_, std::io::Error>(content.clone())
    });
    let error = files.write_stream("once", source).await.expect_err("it broke");
    assert!(matches!(error, FileError::Call(CallError::ConnectionLost { .. })), "{error:?}");
    assert_eq!(way.proxy.seen("/files"), before + 1);

    // The deadline is for silence: an upload that goes on may take longer.
    let slow = stream::unfold(0, |number| async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (number < 6).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"slow ")), number + 1))
    });
    files.write_stream("slow", slow).await.expect("it goes on");
    assert_eq!(way.direct.files().read_text("slow").await.expect("it is there"), "slow ".repeat(6));
    way.proxy.on("/files", Fault::HalfOpen, 1);
    let begun = Instant::now();
    let error = files.write("never", content).await.expect_err("nobody reads it");
    assert!(matches!(error, FileError::Call(CallError::DeadlineExceeded { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    way.end().await;
}

#[tokio::test]
async fn a_watch_that_breaks_or_falls_silent_ends() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    for how in [Break::Close, Break::Reset, Break::Stall] {
        way.proxy.on("/filesystem.Filesystem/WatchDir", Fault::Cut { envelopes: 1, bytes: 0, how }, 1);
        let begun = Instant::now();
        let mut events = way.sandbox.files().watch("/tmp", Watch::default()).await.expect("it begins");
        let error = events.try_next().await.expect_err("it broke");
        assert!(matches!(error, FileError::ConnectionLost { .. }), "{how:?} {error:?}");
        assert!(begun.elapsed() < SILENCE, "{how:?} {:?}", begun.elapsed());
    }
    // A healthy one may be silent for longer than two intervals: signs of life come.
    let mut events = way.sandbox.files().watch("/tmp", Watch::default()).await.expect("it begins");
    let mut sleeper = way.sandbox.commands().start("sleep 3.5").await.expect("it starts");
    assert!(sleeper.next().await.expect("it is watched").is_none());
    way.direct.files().write("/tmp/new", "x").await.expect("it is written");
    assert_eq!(events.try_next().await.expect("it goes on").expect("an event").name, "new");
    drop((events, sleeper));
    way.end().await;
}

#[tokio::test]
async fn a_sandbox_that_ended_behind_a_silent_connection_is_found_out() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    way.proxy.on(START, Fault::Cut { envelopes: 1, bytes: 0, how: Break::Stall }, 1);
    let running = way.sandbox.commands().start("sleep 100").await.expect("it starts");
    way.direct.kill().await.expect("it ends");
    let begun = Instant::now();
    let error = running.wait().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    assert!(begun.elapsed() < SILENCE, "{:?}", begun.elapsed());
    way.end().await;
}

#[tokio::test]
async fn a_server_that_forgets_a_timeout_is_helped() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options.keepalive(Duration::from_secs(30))).await;
    way.proxy.on(START, Fault::ForgetTimeout { envelopes: 1 }, 1);
    let limit = Duration::from_secs(1);
    let begun = Instant::now();
    let running =
        way.sandbox.commands().start(Command::exec("sleep", ["100"]).timeout(limit)).await.expect("it starts");
    let pid = running.pid();
    let error = running.wait().await.expect_err("too long");
    assert!(matches!(error, CommandError::DeadlineExceeded { may_still_run: None, .. }), "{error:?}");
    assert!(begun.elapsed() < limit + Duration::from_secs(5), "{:?}", begun.elapsed());
    eventually_async("the process ends", Duration::from_secs(5), async || {
        way.direct.commands().list().await.expect("a list").iter().all(|info| info.pid != pid).then_some(())
    })
    .await;

    // And when it cannot be helped, that is said.
    way.proxy.on(START, Fault::ForgetTimeout { envelopes: 1 }, 1);
    way.proxy.on("/process.Process/SendSignal", answer("500 Internal Server Error", "", "no"), 1);
    let running =
        way.sandbox.commands().start(Command::exec("sleep", ["100"]).timeout(limit)).await.expect("it starts");
    let pid = running.pid();
    let error = running.wait().await.expect_err("too long");
    assert!(
        matches!(error, CommandError::DeadlineExceeded { may_still_run: Some(left), .. } if left == pid),
        "{error:?}"
    );
    way.end().await;
}

#[tokio::test]
async fn nobody_there_is_said_soon_and_by_name() {
    let server = Server::shared(&[]);
    let way = Way::to(&server, |options| options).await;
    let Way { direct, proxy, sandbox, .. } = way;
    let address = proxy.address.clone();
    drop(proxy);
    let begun = Instant::now();
    let error = sandbox.commands().run("true").await.expect_err("nobody is there");
    let CommandError::Call(CallError::Unreachable { host, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(*host, address);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    direct.kill().await.expect("it ends");
}
