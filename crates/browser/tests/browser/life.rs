//! The browser's life: what it runs as, how it dies, and that captures do not meet.

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

use tokio::sync::Notify;

use crate::support::{Found, Site, browser_processes, eventually, kill, passable_directory, rig, rig_with};

const TEXT: &str = "<title>page</title><p>text";

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_without_rights_in_its_own_sandbox_and_namespace() {
    // The page waits for a script while its processes are looked at.
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
    let look = async {
        asked.notified().await;
        check_processes(&browser_processes(rig.directory.path()));
        check_files(rig.directory.path());
        looked.notify_one();
    };
    let (capture, ()) = tokio::join!(rig.capture(&site, "/"), look);
    capture.expect("a capture");
}

/// A browser that is killed leaves nothing outside its profile.
fn check_files(directory: &Path) {
    let profile = directory.read_dir().expect("profiles").flatten().next().expect("one").path();
    let socket = std::fs::read_link(profile.join("SingletonSocket")).expect("the browser's socket");
    assert!(socket.starts_with(&profile), "{}", socket.display());
}

fn check_processes(processes: &[Found]) {
    let ours = std::fs::read_link("/proc/self/ns/net").expect("proc is mounted");
    let main = processes.iter().find(|process| process.is_main()).expect("the browser runs");
    for process in processes {
        let ids = process.status("Uid");
        assert!(!ids.is_empty() && ids.split('\t').all(|id| id != "0"), "{ids} {}", process.command);
        // In the sandbox's own user namespace its helper may be privileged; that gives it nothing outside.
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

/// It sees programs, fonts, devices and its profile, and no process but its own.
fn check_root(main: &Found) {
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
    // The control: what it needs is there, and cannot be changed.
    assert!(root.join("usr/bin/env").exists() && root.join("dev/null").exists());
    let written = std::fs::write(root.join("usr/planted"), "").and_then(|()| std::fs::write(root.join("planted"), ""));
    assert_eq!(written.expect_err("it is read-only").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_browser_or_page_is_replaced() {
    let (rig, site) = (rig(), Site::page("killed", TEXT).await);
    let main = || browser_processes(rig.directory.path()).into_iter().find(|process| process.is_main());
    rig.capture(&site, "/").await.expect("a capture");
    let first = main().expect("the browser runs");
    kill(&first);
    rig.capture(&site, "/").await.expect("the next capture works at once");
    let second = main().expect("another browser runs");
    assert_ne!(first.pid, second.pid);

    // Killed again and again during a capture there is an error, and then no more.
    let hang = || async { std::future::pending::<Html<String>>().await };
    let slow = Site::serve("slow", Router::new().route("/", get(hang))).await;
    let killing = async {
        let mut last = 0;
        for _ in 0..2 {
            let process = eventually("a browser with a page", || {
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
async fn a_page_whose_process_dies_is_told_from_a_dead_browser() {
    let rig = rig();
    // The server kills the page's process while that waits for it.
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
async fn captures_at_once_share_nothing() {
    let page = "<p>text<script>
        const before = document.cookie + '|' + (localStorage.seen || '');
        document.cookie = 'seen=' + location.search; localStorage.seen = location.search;
        document.title = before</script>";
    let (rig, one, two) = (rig(), Site::page("same", page).await, Site::page("other", page).await);
    // The same origin twice, another origin, and more than may run at once.
    let captures = [(&one, "/?a"), (&one, "/?b"), (&two, "/?c"), (&one, "/?d")];
    let captures = captures.map(|(site, path)| rig.capture(site, path));
    for capture in futures::future::join_all(captures).await {
        for shot in capture.expect("a capture").shots {
            assert_eq!(shot.title, "|", "nothing was there before: {shot:?}");
        }
    }
    // A page cannot reach a sandbox that another capture is allowed to reach.
    let spy = Site::page("spy", "<p>text<img src='http://3000-same.localhost/?stolen'>").await;
    let (spied, _) = tokio::join!(rig.capture(&spy, "/"), rig.capture(&one, "/?e"));
    let spied = spied.expect("a capture");
    assert!(spied.blocked.iter().any(|blocked| blocked.url == "http://3000-same.localhost/?stolen"), "{spied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_opens_its_circuit_and_no_other() {
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
async fn given_up_captures_leave_nothing_and_an_unused_browser_ends() {
    let rig = rig_with(|config| {
        config.keep_warm = Duration::from_secs(2);
        config.most_at_once = 1;
    });
    let hang = || async { std::future::pending::<Html<String>>().await };
    let slow = Site::serve("slow", Router::new().route("/", get(hang))).await;
    let given_up = tokio::time::timeout(Duration::from_secs(3), rig.capture(&slow, "/")).await;
    assert!(given_up.is_err());
    // There is one turn: this works only if the given-up capture has returned it.
    rig.capture(&Site::page("next", TEXT).await, "/").await.expect("a capture");
    let directory = rig.directory.path();
    eventually("the unused browser to end", || browser_processes(directory).is_empty().then_some(())).await;
    rig.capture(&Site::page("again", TEXT).await, "/").await.expect("it starts again");
}

#[tokio::test]
async fn what_cannot_work_is_said_before_anything_starts() {
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
async fn a_program_that_is_no_browser_gives_its_last_words() {
    let script = passable_directory();
    let path = script.path().join("chromium");
    std::fs::write(&path, "#!/bin/sh\necho 'I am no browser' >&2\nexit 3\n").expect("our own directory");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own file");
    let rig = rig_with(|config| config.program = Some(path));
    let failed = rig.capture(&Site::page("none", TEXT).await, "/").await;
    let Err(CaptureError::Browser(BrowserError::Exited { last_words })) = &failed else { panic!("{failed:?}") };
    assert_eq!(last_words, "I am no browser");
}

/// Set for the process that the two tests below start: this very program, in which only the test itself runs.
const ROLE: &str = "SANDBAR_BROWSER_TEST_DIRECTORY";

/// This program again, running only the test `name`, with profiles in `directory`.
fn again(name: &str, directory: &Path) -> Command {
    // By this name it can be executed by users who cannot reach its path.
    let mut command = Command::new("/proc/self/exe");
    command.args([&format!("life::{name}"), "--exact", "--nocapture"]).env(ROLE, directory).stdout(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_takes_its_browser_along() {
    if let Ok(directory) = std::env::var(ROLE) {
        let browser = Browser::start(BrowserConfig::new(directory)).expect("chromium is installed");
        browser.capture(Site::page("host", TEXT).await.request("/")).await.expect("a capture");
        println!("\nready");
        return std::future::pending().await;
    }
    let directory = passable_directory();
    let mut host = again("a_killed_host_takes_its_browser_along", directory.path()).spawn().expect("it starts");
    let output = BufReader::new(host.stdout.take().expect("it is piped"));
    assert!(output.lines().map_while(Result::ok).any(|line| line == "ready"), "the host ended early");
    assert!(!browser_processes(directory.path()).is_empty());
    host.kill().expect("it runs");
    host.wait().expect("it was killed");
    eventually("the browser to end", || browser_processes(directory.path()).is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_can_do_it_too() {
    if let Ok(directory) = std::env::var(ROLE) {
        let config = BrowserConfig::new(directory);
        assert_eq!(config.run_as, RunAs::Itself);
        let browser = Browser::start(config).expect("chromium is installed");
        let capture = browser.capture(Site::page("user", TEXT).await.both("/")).await.expect("a capture");
        assert!(capture.shots.iter().all(|shot| !shot.blank && shot.title == "page"), "{capture:?}");
        return browser.close().await;
    }
    let directory = passable_directory();
    std::os::unix::fs::chown(directory.path(), Some(59_981), Some(59_981)).expect("the tests run as root");
    let done = again("a_user_without_rights_can_do_it_too", directory.path()).uid(59_981).gid(59_981).output();
    let done = done.expect("it starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}
