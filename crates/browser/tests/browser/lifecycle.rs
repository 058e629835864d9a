//! Lifecycle of the browser: privileges, crashes, and isolation between captures.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use sandbar_browser::{Browser, BrowserConfig, BrowserError, CaptureError, RunAs};
use testing::{SOON, eventually_async, without_namespaces};

use tokio::sync::Notify;

use crate::support::{BrowserProcess, Site, browser_processes, kill, passable_directory, rig, rig_with};

const TEXT: &str = "<title>page</title><p>text";

#[tokio::test(flavor = "multi_thread")]
async fn browser_runs_unprivileged_in_its_own_namespaces() {
    // The page waits for a script while the test inspects its processes.
    let (asked, looked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let wait = {
        let (asked, looked) = (Arc::clone(&asked), Arc::clone(&looked));
        move || {
            let (asked, looked) = (Arc::clone(&asked), Arc::clone(&looked));
            async move {
                asked.notify_one();
                looked.notified().await;
            }
        }
    };
    let page = || async { Html("<p>text<script src=/wait></script>") };
    let site = Site::serve("rights", Router::new().route("/", get(page)).route("/wait", get(wait))).await;
    let rig = rig();
    let inspect = async {
        asked.notified().await;
        check_processes(&browser_processes(rig.directory.path()));
        check_files(rig.directory.path());
        looked.notify_one();
    };
    let (capture, ()) = tokio::join!(rig.capture(&site, "/"), inspect);
    capture.expect("a capture");
}

/// A killed browser leaves nothing outside its profile.
fn check_files(directory: &Path) {
    let profile = directory.read_dir().expect("profiles").flatten().next().expect("one").path();
    let socket = std::fs::read_link(profile.join("SingletonSocket")).expect("the browser's socket");
    assert!(socket.starts_with(&profile), "{}", socket.display());
}

fn check_processes(processes: &[BrowserProcess]) {
    let ours = std::fs::read_link("/proc/self/ns/net").expect("proc is mounted");
    let main = processes.iter().find(|process| process.is_main()).expect("the browser runs");
    for process in processes {
        let ids = process.status("Uid");
        assert!(!ids.is_empty() && ids.split('\t').all(|id| id != "0"), "{ids} {}", process.command);
        // In its own user namespace the sandbox helper may be privileged; that gives it nothing
        // outside.
        let outside = process.namespace("user") == main.namespace("user");
        assert!(!outside || process.status("CapPrm") == "0000000000000000", "{}", process.command);
        assert!(!process.command.contains("--no-sandbox"), "{}", process.command);
        assert_ne!(process.namespace("net"), Some(ours.clone()), "{}", process.command);
    }
    let renderers: Vec<_> = processes.iter().filter(|process| process.command.contains("--type=renderer")).collect();
    assert!(!renderers.is_empty());
    for renderer in renderers {
        assert_eq!(renderer.status("Seccomp"), "2", "a filter is on");
        assert_ne!(renderer.namespace("user"), main.namespace("user"));
        assert_ne!(renderer.namespace("net"), main.namespace("net"));
    }
    check_root(main);
    let devices = std::fs::read_to_string(format!("/proc/{}/net/dev", main.pid)).expect("its devices");
    let devices: Vec<_> =
        devices.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    assert_eq!(devices, ["lo"]);
}

/// The browser sees programs, fonts, devices and its profile, and no process but its own.
fn check_root(main: &BrowserProcess) {
    for kind in ["mnt", "pid"] {
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("proc is mounted");
        assert_ne!(main.namespace(kind), Some(ours), "{kind}");
    }
    let root = Path::new("/proc").join(main.pid.to_string()).join("root");
    let mut seen: Vec<_> = root.read_dir().expect("its root").flatten().map(|entry| entry.file_name()).collect();
    seen.sort();
    let known = ["bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr", "var"];
    assert!(seen.iter().all(|name| known.iter().any(|known| name == known)), "{seen:?}");
    for hidden in ["etc/passwd", "etc/shadow", "etc/hostname", "root", "home", "var/log", "proc/2/root/etc/passwd"] {
        assert!(!root.join(hidden).exists(), "{hidden}");
    }
    // Control: the files it needs exist, and are read-only.
    assert!(root.join("usr/bin/env").exists() && root.join("dev/null").exists());
    let written = std::fs::write(root.join("usr/planted"), "").and_then(|()| std::fs::write(root.join("planted"), ""));
    assert_eq!(written.expect_err("it is read-only").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_browser_is_replaced() {
    let (rig, site) = (rig(), Site::page("killed", TEXT).await);
    let main = || browser_processes(rig.directory.path()).into_iter().find(|process| process.is_main());
    rig.capture(&site, "/").await.expect("a capture");
    let first = main().expect("the browser runs");
    kill(&first);
    rig.capture(&site, "/").await.expect("the next capture works at once");
    let second = main().expect("another browser runs");
    assert_ne!(first.pid, second.pid);

    // Killed repeatedly during one capture, the capture fails instead of retrying forever.
    let hang = || async { std::future::pending::<Html<String>>().await };
    let slow = Site::serve("slow", Router::new().route("/", get(hang))).await;
    let killing = async {
        let mut last = 0;
        for _ in 0..2 {
            let process = eventually_async("a browser with a page", SOON, async || {
                main().filter(|process| process.pid != last && process.pid != 0)
            });
            let process = process.await;
            last = process.pid;
            kill(&process);
        }
    };
    let (died, ()) = tokio::join!(rig.capture(&slow, "/"), killing);
    assert!(matches!(died, Err(CaptureError::BrowserDied | CaptureError::Browser(_))), "{died:?}");
    rig.capture(&site, "/").await.expect("the next capture works");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_crash_is_reported_as_page_crash() {
    let rig = rig();
    // The server kills the page's process while it waits for the response.
    let directory = rig.directory.path().to_owned();
    let crash = move || {
        let directory = directory.clone();
        async move {
            for process in
                browser_processes(&directory).iter().filter(|found| found.command.contains("--type=renderer"))
            {
                kill(process);
            }
            std::future::pending::<Html<String>>().await
        }
    };
    let page = "<p>text<script src=/crash></script>";
    let router = Router::new().route("/", get(move || async move { Html(page) })).route("/crash", get(crash));
    let site = Site::serve("crash", router).await;
    let crashed = rig.capture(&site, "/").await;
    assert!(matches!(crashed, Err(CaptureError::PageCrashed)), "{crashed:?}");
    rig.capture(&Site::page("whole", TEXT).await, "/").await.expect("the next capture works");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_captures_are_isolated() {
    let page = "<p>text<script>
        const before = document.cookie + '|' + (localStorage.seen || '');
        document.cookie = 'seen=' + location.search; localStorage.seen = location.search;
        document.title = before</script>";
    let (rig, one, two) = (rig(), Site::page("same", page).await, Site::page("other", page).await);
    // The same origin twice, another origin, and more than may run concurrently.
    let captures = [(&one, "/?a"), (&one, "/?b"), (&two, "/?c"), (&one, "/?d")];
    let captures = captures.map(|(site, path)| rig.capture(site, path));
    for capture in futures::future::join_all(captures).await {
        for screenshot in capture.expect("a capture").screenshots {
            assert_eq!(screenshot.title, "|", "nothing was there before: {screenshot:?}");
        }
    }
    // A page cannot reach a sandbox that a concurrent capture may reach.
    let spy = Site::page("spy", "<p>text<img src='http://3000-same.localhost/?stolen'>").await;
    let (spied, _) = tokio::join!(rig.capture(&spy, "/"), rig.capture(&one, "/?e"));
    let spied = spied.expect("a capture");
    assert!(spied.blocked.iter().any(|blocked| blocked.url == "http://3000-same.localhost/?stolen"), "{spied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_opens_only_its_own_circuit() {
    let (rig, up) = (rig(), Site::page("up", TEXT).await);
    let mut down = up.request("/");
    down.origin = "http://3000-down.localhost".parse().expect("an origin");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it was bound");
    down.upstream.address = unused.to_string();
    for _ in 0..3 {
        let refused = rig.browser.capture(down.clone()).await;
        assert!(matches!(&refused, Err(CaptureError::Unreachable { .. })), "{refused:?}");
    }
    let open = rig.browser.capture(down.clone()).await;
    let Err(CaptureError::CircuitOpen { failures: 3, retry_in, last, .. }) = &open else { panic!("{open:?}") };
    assert!(*retry_in > Duration::from_secs(50) && last.contains("3000-down.localhost"), "{open:?}");
    rig.capture(&up, "/").await.expect("another sandbox is not concerned");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_captures_clean_up_and_idle_browser_closes() {
    let rig = rig_with(|config| {
        config.idle_timeout = Duration::from_secs(2);
        config.max_concurrent = 1;
    });
    let hang = || async { std::future::pending::<Html<String>>().await };
    let slow = Site::serve("slow", Router::new().route("/", get(hang))).await;
    let given_up = tokio::time::timeout(Duration::from_secs(3), rig.capture(&slow, "/")).await;
    assert!(given_up.is_err());
    // There is one permit: this succeeds only if the cancelled capture has returned it.
    rig.capture(&Site::page("next", TEXT).await, "/").await.expect("a capture");
    let directory = rig.directory.path();
    eventually_async("the unused browser to end", SOON, async || browser_processes(directory).is_empty().then_some(()))
        .await;
    rig.capture(&Site::page("again", TEXT).await, "/").await.expect("it starts again");
}

#[tokio::test]
async fn invalid_configuration_is_refused_before_start() {
    let directory = passable_directory();
    let start = |change: &dyn Fn(&mut BrowserConfig)| {
        let mut config = BrowserConfig::new(directory.path());
        change(&mut config);
        Browser::start(config).err()
    };
    let missing = start(&|config| config.program = Some("/nowhere/chromium".into()));
    assert!(matches!(missing, Some(BrowserError::NotFound { .. })), "{missing:?}");
    let root = start(&|config| config.run_as = RunAs::Ids { uid: 0, gid: 0 });
    assert!(matches!(root, Some(BrowserError::Root)), "{root:?}");
    let root = start(&|config| config.run_as = RunAs::Itself);
    assert!(matches!(root, Some(BrowserError::Root)), "the tests run as root: {root:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_reports_the_end_of_stderr() {
    let script = passable_directory();
    let path = script.path().join("chromium");
    std::fs::write(&path, "#!/bin/sh\necho 'I am no browser' >&2\nexit 3\n").expect("our own directory");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own file");
    let rig = rig_with(|config| config.program = Some(path));
    let failed = rig.capture(&Site::page("none", TEXT).await, "/").await;
    let Err(CaptureError::Browser(BrowserError::Exited { last_words })) = &failed else { panic!("{failed:?}") };
    assert_eq!(last_words, "I am no browser");
}

/// Set for the child process of the two tests below: this program, running only the test itself.
const ROLE: &str = "SANDBAR_BROWSER_TEST_DIRECTORY";

/// Runs this program again with only the test `name`, and profiles in `directory`.
fn again(name: &str, directory: &Path) -> Command {
    // Users who cannot reach the program's path can execute it by this name.
    let mut command = Command::new("/proc/self/exe");
    command.args([&format!("lifecycle::{name}"), "--exact", "--nocapture"]).env(ROLE, directory).stdout(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_dies_with_a_killed_host_process() {
    if let Ok(directory) = std::env::var(ROLE) {
        let browser = Browser::start(BrowserConfig::new(directory)).expect("chromium is installed");
        browser.capture(Site::page("host", TEXT).await.request("/")).await.expect("a capture");
        println!("\nready");
        return std::future::pending().await;
    }
    let directory = passable_directory();
    let mut host = again("browser_dies_with_a_killed_host_process", directory.path()).spawn().expect("it starts");
    let output = BufReader::new(host.stdout.take().expect("it is piped"));
    assert!(output.lines().map_while(Result::ok).any(|line| line == "ready"), "the host ended early");
    assert!(!browser_processes(directory.path()).is_empty());
    host.kill().expect("it runs");
    host.wait().expect("it was killed");
    eventually_async("the browser to end", SOON, async || browser_processes(directory.path()).is_empty().then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unprivileged_user_can_capture() {
    if let Ok(directory) = std::env::var(ROLE) {
        let config = BrowserConfig::new(directory);
        assert_eq!(config.run_as, RunAs::Itself);
        let browser = Browser::start(config).expect("chromium is installed");
        let capture =
            browser.capture(Site::page("user", TEXT).await.request_all_viewports("/")).await.expect("a capture");
        assert!(
            capture.screenshots.iter().all(|screenshot| !screenshot.blank && screenshot.title == "page"),
            "{capture:?}"
        );
        return browser.close().await;
    }
    let directory = passable_directory();
    std::os::unix::fs::chown(directory.path(), Some(59_981), Some(59_981)).expect("the tests run as root");
    let mut command = again("unprivileged_user_can_capture", directory.path());
    let done = without_namespaces(&mut command).uid(59_981).gid(59_981).output();
    let done = done.expect("it starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}
