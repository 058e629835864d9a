//! Attacks on the studio's users: cookies, sessions, revoked tokens.

use crate::support::server::PROGRAM;
use crate::support::{Server, eventually};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::http::{self, Reply, Streaming};

const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");
/// How long a revoked credential may still work, with a margin for a loaded machine.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(30);

fn token(server: &Server) -> String {
    testing::exported(Path::new(PROGRAM), server.data(), None, "SANDBAR_TOKEN").expect("the first user's token")
}

fn send(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let (method, path) = line.split_once(' ').expect("METHOD PATH");
    http::request(&server.address, method, path, headers, body.as_bytes()).expect("an answer")
}

/// Signs in and returns the cookie as a browser sends it back.
#[track_caller]
fn sign_in(server: &Server, token: &str, headers: &[(&str, &str)]) -> String {
    let reply = send(server, "POST /login", &[&[FORM], headers].concat(), &format!("token={token}"));
    assert_eq!(reply.status, 303, "{}", reply.text());
    let cookie = reply.header("set-cookie").expect("a cookie").to_owned();
    cookie.split(';').next().expect("a pair").to_owned()
}

fn user(server: &Server, arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(command.arg("user").args(arguments).arg("--data").arg(server.data()));
    command.env("XDG_CONFIG_HOME", server.file("none")).env("XDG_DATA_HOME", server.file("none"));
    let done = command.output().expect("the program runs");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn a_planted_cookie_takes_no_session_over() {
    let server = Server::with(&["--ephemeral", "--builds", "0"]);
    let victim = sign_in(&server, &token(&server), &[]);
    let added = user(&server, &["add", "eve", "--json"]);
    let eve: serde_json::Value = serde_json::from_str(&added).expect("JSON");
    let planted = sign_in(&server, eve["token"].as_str().expect("a token"), &[]);
    let me = |cookie: &str, headers: &[(&str, &str)]| {
        send(&server, "GET /api/me", &[&[("Cookie", cookie)], headers].concat(), "")
    };
    // The order in which Chromium sends both after a page of a preview set one with a longer path.
    let refused = me(&format!("{planted}; {victim}"), &[("Host", "sandbox.test:5990")]);
    assert_eq!(refused.status, 401, "{}", refused.text());
    assert!(refused.text().contains("two cookies"), "{}", refused.text());
    let removed: Vec<&str> = refused
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"))
        .map(|(_, it)| it.as_str())
        .collect();
    for place in ["Domain=sandbox.test; Path=/api;", "Domain=sandbox.test; Path=/;", "SameSite=Strict; Path=/;"] {
        assert!(removed.iter().any(|cookie| cookie.contains(place)), "{place} in {removed:#?}");
    }
    // Over https the server ignores cookies without the `__Host-` prefix, alone or beside its own.
    let https = ("X-Forwarded-Proto", "https");
    assert_eq!(me(&planted, &[https]).status, 401);
    let secure = sign_in(&server, &token(&server), &[https]);
    assert!(secure.starts_with("__Host-sandbar_session="), "{secure}");
    let mine = me(&format!("{planted}; {secure}; {planted}"), &[https]);
    assert_eq!((mine.status, mine.json()["name"].clone()), (200, "owner".into()));
    // The control. Then the cookie of older versions, whose value was the token.
    assert_eq!(me(&victim, &[]).json()["name"], "owner");
    let old = me(&format!("sandbar_session={}", token(&server)), &[]);
    assert_eq!(old.status, 401);
    assert!(old.text().contains("sign in again"), "{}", old.text());
}

/// Reads the stream to its end, which must come within [`REVOCATION_TIMEOUT`].
#[track_caller]
fn assert_ends(mut stream: Streaming, what: &str) {
    let begun = Instant::now();
    while let Ok(Some(_)) = stream.next_piece() {
        assert!(begun.elapsed() < REVOCATION_TIMEOUT, "{what} goes on");
    }
    eprintln!("{what}: ended after {:?}", begun.elapsed());
}

#[test]
fn signing_out_and_revoking_end_open_streams() {
    let mut server = Server::with(&["--ephemeral", "--builds", "0"]);
    let token = token(&server);
    let bearer = format!("Bearer {token}");
    let body = r#"{"name": "page", "goal": "Make a page."}"#;
    let json = ("Content-Type", "application/json");
    let started = send(&server, "POST /api/generation", &[("Authorization", &bearer), json], body);
    // The studio refuses a build without a model. Then the server starts again with a scripted one.
    if started.status != 202 {
        let scripts = server.file("scripts");
        std::fs::create_dir_all(&scripts).expect("a directory");
        std::fs::write(scripts.join("idle.json"), r#"{"turns": [{"text": "Done."}]}"#).expect("a script");
        server.down();
        let scripts = scripts.to_str().expect("a text path").to_owned();
        server.start_again_with(&["--ephemeral", "--builds", "0", "--scripts", &scripts]);
    }
    let started = send(&server, "POST /api/generation", &[("Authorization", &bearer), json], body);
    assert_eq!(started.status, 202, "{}", started.text());
    let path = format!("/api/jobs/{}/events", started.json()["job_id"].as_str().expect("an ID"));
    let watch = |header: (&str, &str)| {
        let stream = http::start(&server.address, "GET", &path, &[header], b"").expect("a stream");
        assert_eq!(stream.status, 200);
        stream
    };
    let (one, two) = (sign_in(&server, &token, &[]), sign_in(&server, &token, &[]));
    let (left, session, by_token) =
        (watch(("Cookie", &one)), watch(("Cookie", &two)), watch(("Authorization", &bearer)));
    assert_eq!(user(&server, &["sessions"]).lines().count(), 3, "a head and two sessions");
    assert_eq!(send(&server, "POST /logout", &[("Cookie", &one)], "").status, 303);
    assert_eq!(send(&server, "GET /api/me", &[("Cookie", &one)], "").status, 401);
    assert_ends(left, "the session that signed out");
    // The control: the other credentials still work.
    for header in [("Cookie", two.as_str()), ("Authorization", bearer.as_str())] {
        assert_eq!(send(&server, "GET /api/me", &[header], "").status, 200);
    }
    // Another process replaces the token.
    let fresh = user(&server, &["token"]);
    let fresh = fresh.trim().strip_prefix("export SANDBAR_TOKEN=").expect("a new token").to_owned();
    assert_ends(session, "the session of the old token");
    assert_ends(by_token, "the old token");
    for header in [("Cookie", two.as_str()), ("Authorization", bearer.as_str())] {
        eventually("the old credential is refused", REVOCATION_TIMEOUT, || {
            (send(&server, "GET /api/me", &[header], "").status == 401).then_some(())
        });
    }
    let cookie = sign_in(&server, &fresh, &[]);
    let open = watch(("Cookie", &cookie));
    assert!(user(&server, &["sign-out"]).contains("sessions ended: 1"));
    assert_ends(open, "a session that `sandbar user sign-out` ended");
}

#[test]
fn a_dashboard_host_is_the_only_host_of_the_dashboard() {
    let flags = ["--ephemeral", "--builds", "0", "--domain", "sandbox.test", "--dashboard-host", "dash.example"];
    let server = Server::with(&flags);
    let token = testing::exported(Path::new(PROGRAM), server.data(), None, "SANDBAR_TOKEN").expect("a token");
    let own = ("Host", "dash.example");
    assert_eq!(send(&server, "GET /login", &[own], "").status, 200);
    let cookie = sign_in(&server, &token, &[own]);
    assert_eq!(send(&server, "GET /api/me", &[own, ("Cookie", &cookie)], "").status, 200);
    for host in ["sandbox.test", "evil.dash.example", "127.0.0.1"] {
        let host = ("Host", host);
        assert_eq!(send(&server, "GET /", &[host], "").status, 404, "{host:?}");
        assert_eq!(send(&server, "GET /api/me", &[host, ("Cookie", &cookie)], "").status, 404, "{host:?}");
        let bearer = format!("Bearer {token}");
        assert_eq!(send(&server, "GET /api/me", &[host, ("Authorization", &bearer)], "").status, 200, "{host:?}");
    }
    let preview = send(&server, "GET /", &[("Host", "3000-iabc.dash.example")], "");
    assert_eq!((preview.status, preview.text().as_str()), (400, "Invalid host"));
    assert_eq!(send(&server, "GET /", &[("Host", "3000-iabc.sandbox.test")], "").status, 502, "looked for");
}

#[test]
fn a_domain_that_previews_and_dashboard_share_is_warned_of() {
    let warnings = |own: &[&str]| {
        let flags = ["--ephemeral", "--builds", "0", "--domain", "sandbox.test"];
        let server = Server::with(&[&flags, own].concat());
        let log = server.log();
        log.iter().filter(|line| line.contains("--dashboard-host names another one for it")).count()
    };
    assert_eq!(warnings(&[]), 1);
    assert_eq!(warnings(&["--dashboard-host", "dash.example"]), 0, "the control");
}

#[test]
fn keys_are_printed_to_terminals_only() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let none = data.path().join("none");
    let prepare = |command: &mut Command| {
        testing::without_settings(command).env("XDG_CONFIG_HOME", &none).env("XDG_DATA_HOME", &none);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    };
    let serve = |command: &mut Command| {
        prepare(command);
        let mut child = command.spawn().expect("the program runs");
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok) {
            lines.push(line.trim_end().to_owned());
            if lines.last().is_some_and(|line| line.starts_with("ready: ")) {
                break;
            }
        }
        (child, lines.join("\n"))
    };
    let directory = data.path().join("data");
    let directory = directory.to_str().expect("a text path");
    let up = ["up", "--listen", "127.0.0.1:0", "--builds", "0", "--data", directory];
    let env = || {
        let mut command = Command::new(PROGRAM);
        prepare(command.args(["env", "--data", directory]));
        command.output().expect("the program runs")
    };
    let end = |mut child: std::process::Child| {
        let mut down = Command::new(PROGRAM);
        prepare(down.args(["down", "--yes", "--data", directory]));
        assert!(down.status().expect("the program runs").success());
        child.wait().expect("it ends");
    };
    assert!(!env().status.success(), "no server, no keys");
    let (child, kept) = serve(Command::new(PROGRAM).args(up));
    let printed = String::from_utf8(env().stdout).expect("text");
    end(child);
    assert!(kept.contains("sandbar env") && !kept.contains("e2b_") && !kept.contains("sbt_"), "{kept}");
    for variable in ["E2B_API_KEY=e2b_", "E2B_API_URL=http://", "E2B_SANDBOX_URL=", "SANDBAR_TOKEN=sbt_"] {
        assert!(printed.contains(&format!("export {variable}")), "{variable} in {printed}");
    }
    let shell = format!("exec {PROGRAM} {}", up.join(" "));
    let (child, shown) = serve(Command::new("script").args(["--quiet", "--flush", "--command", &shell, "/dev/null"]));
    end(child);
    assert!(shown.contains("export E2B_API_KEY=e2b_") && shown.contains("export SANDBAR_TOKEN=sbt_"), "{shown}");
}
