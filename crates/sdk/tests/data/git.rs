//! Git against repositories in the sandbox itself: by path, by `git daemon`, and by HTTP with a
//! password.

use std::time::Duration;

use sandbar_sdk::{
    Author, ChangeKind, CloneOptions, Command, Credentials, GitError, GitScope, Pull, Push, Running, Sandbox,
};

use testing::{Server, eventually_async};

/// Serves the repositories of its directory over HTTP to user `me` with password `tokensecret`
/// only.
const HTTP_SERVER: &str = r#"
import base64, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EXPECTED = "Basic " + base64.b64encode(b"me:tokensecret").decode()

class Handler(BaseHTTPRequestHandler):
    def serve(self):
        if self.headers.get("Authorization") != EXPECTED:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        environment = dict(os.environ, GIT_PROJECT_ROOT=os.getcwd(), GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path,
            QUERY_STRING=query, REQUEST_METHOD=self.command, REMOTE_USER="me",
            CONTENT_TYPE=self.headers.get("Content-Type", ""), CONTENT_LENGTH=str(length))
        done = subprocess.run(["git", "http-backend"], input=self.rfile.read(length), env=environment, capture_output=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        self.send_response(status)
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = serve
    def log_message(self, *_): pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// Redirects every request to the server above.
const REDIRECT: &str = r#"
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:8418" + self.path)
        self.end_headers()
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", 8419), Handler).serve_forever()
"#;

/// Creates a bare repository with one commit on `main`.
async fn seed(sandbox: &Sandbox) {
    let script = "set -e; git init -q --bare --initial-branch=main /srv/repos/seed.git; \
                  git -C /srv/repos/seed.git config http.receivepack true; \
                  git clone -q /srv/repos/seed.git /tmp/first; cd /tmp/first; echo one > file.txt; git add .; \
                  git -c user.name=A -c user.email=a@b commit -qm first; git push -q origin HEAD:main";
    let prepared = sandbox.commands().run("sudo mkdir -p /srv/repos && sudo chown user /srv/repos").await;
    assert!(prepared.expect("it runs").success());
    let made = sandbox.commands().run(script).await.expect("it runs");
    assert!(made.success(), "{}", made.stderr_text());
}

async fn listening(sandbox: &Sandbox, port: u16) {
    eventually_async("the port is open", Duration::from_secs(20), async || {
        let probe = Command::exec("bash", ["-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")]);
        sandbox.commands().run(probe).await.expect("it runs").success().then_some(())
    })
    .await;
}

fn author() -> Author {
    Author::new("Some One", "some@one.example")
}

#[tokio::test]
async fn a_repository_is_cloned_changed_committed_and_pushed() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    seed(&sandbox).await;
    let daemon = "git daemon --reuseaddr --listen=127.0.0.1 --port=9418 --base-path=/srv/repos --export-all \
                  --enable=receive-pack";
    let _daemon: Running = sandbox.commands().start(Command::new(daemon).no_timeout()).await.expect("it starts");
    listening(&sandbox, 9418).await;

    let url = "git://127.0.0.1/seed.git";
    let path = sandbox.git().clone(url, CloneOptions::default()).await.expect("it is cloned");
    assert_eq!(path, "seed");
    let git = sandbox.git().at(path);
    let status = git.status().await.expect("a status");
    assert!(status.is_clean(), "{status:?}");
    assert_eq!((status.branch.as_deref(), status.upstream.as_deref()), (Some("main"), Some("origin/main")));
    assert_eq!(git.remote_url("origin").await.expect("known").as_deref(), Some(url));

    git.create_branch("feature/ü x".replace(' ', "-").as_str()).await.expect("it is made");
    sandbox.files().write("seed/new file.txt", "new").await.expect("it is written");
    sandbox.files().write("seed/file.txt", "two").await.expect("it is written");
    let changes = git.status().await.expect("a status").changes;
    let found: Vec<_> = changes.iter().map(|change| (change.path.as_str(), change.staged, change.unstaged)).collect();
    let expected =
        [("file.txt", None, Some(ChangeKind::Modified)), ("new file.txt", None, Some(ChangeKind::Untracked))];
    assert_eq!(found, expected);
    let error = git.commit("nothing yet", Some(&author())).await.expect_err("nothing was added");
    assert!(matches!(error, GitError::NothingToCommit), "{error:?}");
    git.add(["new file.txt"]).await.expect("it is added");
    assert_eq!(git.status().await.expect("a status").changes[1].staged, Some(ChangeKind::Added));
    git.add_all().await.expect("all is added");
    let error = git.commit("no author", None).await.expect_err("no author is set");
    assert!(matches!(error, GitError::NoAuthor { .. }), "{error:?}");
    let message = "It's \"quoted\" $(touch /tmp/pwned)\n\nSecond paragraph";
    let commit = git.commit(message, Some(&author())).await.expect("it is committed");
    let shown = git.run(["log", "-1", "--format=%H|%an|%ae|%B"]).await.expect("a log");
    assert_eq!(shown.stdout_text().trim_end(), format!("{commit}|Some One|some@one.example|{message}"));
    assert!(!sandbox.files().exists("/tmp/pwned").await.expect("known"));

    let branches = git.branches().await.expect("branches");
    assert_eq!((branches.current.as_deref(), branches.all.len()), (Some("feature/ü-x"), 2));
    git.push(Push::default().set_upstream()).await.expect("it is pushed");
    let status = git.status().await.expect("a status");
    assert_eq!((status.upstream.as_deref(), status.ahead), (Some("origin/feature/ü-x"), 0));

    // Another clone pushes to main first.
    git.checkout("main").await.expect("it is there");
    let quicker = "cd /tmp/first && echo quick > quick && git add . && git -c user.name=A -c user.email=a@b commit -qm q \
                   && git push -q origin HEAD:main";
    assert!(sandbox.commands().run(quicker).await.expect("it runs").success());
    sandbox.files().write("seed/mine", "mine").await.expect("it is written");
    git.add_all().await.expect("all is added");
    git.set_config("user.name", "Conf", GitScope::Local).await.expect("it is set");
    git.set_config("user.email", "conf@example", GitScope::Global).await.expect("it is set");
    assert_eq!(git.config("user.name").await.expect("known").as_deref(), Some("Conf"));
    assert_eq!(git.config("user.nothing").await.expect("known"), None);
    git.commit("mine", None).await.expect("it is committed");
    let error = git.push(Push::default()).await.expect_err("it is behind");
    assert!(matches!(error, GitError::Rejected { .. }), "{error:?}");
    let error = git.pull(Pull::default()).await.expect_err("both have commits");
    assert!(matches!(error, GitError::Conflict { .. }), "{error:?}");
    git.pull(Pull::default().rebase()).await.expect("they fit together");
    git.push(Push::default().branch("main")).await.expect("it is pushed");
    git.delete_branch("feature/ü-x").await.expect("it is elsewhere");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn git_errors_are_classified() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    seed(&sandbox).await;
    let home = sandbox.git();
    let error = home.status().await.expect_err("no repository");
    assert!(matches!(error, GitError::NotARepository { .. }), "{error:?}");
    let error = home.clone("/srv/repos/none.git", CloneOptions::default()).await.expect_err("it is not there");
    assert!(matches!(error, GitError::RepositoryNotFound { .. }), "{error:?}");
    let lacking = CloneOptions::default().branch("no-such-branch").path("lacking");
    let error = home.clone("/srv/repos/seed.git", lacking).await.expect_err("it is not there");
    assert!(matches!(error, GitError::UnknownName { .. }), "{error:?}");
    let into = CloneOptions::default().branch("main").depth(1).path("work/tree");
    assert_eq!(home.clone("file:///srv/repos/seed.git", into.clone()).await.expect("it is cloned"), "work/tree");
    let error = home.clone("/srv/repos/seed.git", into).await.expect_err("it is there");
    assert!(matches!(error, GitError::AlreadyExists { .. }), "{error:?}");

    let git = sandbox.git().at("work/tree");
    let error = git.checkout("nowhere").await.expect_err("it is not there");
    assert!(matches!(error, GitError::UnknownName { .. }), "{error:?}");
    let error = git.create_branch("main").await.expect_err("it is there");
    assert!(matches!(error, GitError::AlreadyExists { .. }), "{error:?}");
    let error = git.add(["nothing"]).await.expect_err("it is not there");
    assert!(matches!(error, GitError::UnknownName { .. }), "{error:?}");
    git.remote_add("other", "https://host.example/x.git").await.expect("it is added");
    let error = git.remote_add("other", "https://host.example/x.git").await.expect_err("it is there");
    assert!(matches!(error, GitError::AlreadyExists { .. }), "{error:?}");
    for result in [
        git.checkout("--force").await,
        git.create_branch("").await,
        git.remote_add("x", "https://me:secretword@host.example/x").await,
        home.clone("--upload-pack=evil", CloneOptions::default()).await.map(drop),
    ] {
        let error = result.expect_err("not as an option");
        assert!(matches!(error, GitError::Invalid { .. }) && !error.to_string().contains("secretword"), "{error:?}");
    }

    let fresh = sandbox.git().at("fresh");
    fresh.init("trunk").await.expect("it is made");
    let status = fresh.status().await.expect("a status");
    assert_eq!((status.branch.as_deref(), status.commit), (Some("trunk"), None));
    let error = fresh.pull(Pull::default()).await.expect_err("it follows nothing");
    assert!(matches!(error, GitError::NoUpstream { .. } | GitError::UnknownName { .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn credentials_authenticate_and_are_not_stored() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    seed(&sandbox).await;
    sandbox.files().write("/srv/repos/serve.py", HTTP_SERVER).await.expect("it is written");
    let serve = Command::exec("python3", ["/srv/repos/serve.py", "8418"]).cwd("/srv/repos").no_timeout();
    let _http = sandbox.commands().start(serve).await.expect("it starts");
    listening(&sandbox, 8418).await;
    let url = "http://127.0.0.1:8418/seed.git";

    let error = sandbox.git().clone(url, CloneOptions::default()).await.expect_err("no credentials");
    assert!(matches!(error, GitError::AuthFailed { .. }), "{error:?}");
    let wrong = sandbox.git().credentials(Credentials::new("me", "wrongsecret"));
    let error = wrong.clone(url, CloneOptions::default()).await.expect_err("not with this");
    assert!(matches!(error, GitError::AuthFailed { .. }), "{error:?}");
    assert!(!format!("{error} {error:?} {wrong:?}").contains("wrongsecret"));

    let me = || sandbox.git().credentials(Credentials::new("me", "tokensecret"));
    me().clone(url, CloneOptions::default()).await.expect("it is cloned");
    let git = me().at("seed");
    sandbox.files().write("seed/more", "more").await.expect("it is written");
    git.add_all().await.expect("all is added");
    git.commit("more", Some(&author())).await.expect("it is committed");
    git.push(Push::default()).await.expect("it is pushed");
    git.pull(Pull::default()).await.expect("it is pulled");
    assert_eq!(git.remote_url("origin").await.expect("known").as_deref(), Some(url));

    // Only the server's own script contains the password; git left it in no file.
    let search = "grep -rIl tokensecret /home/user /tmp /srv /etc 2>/dev/null";
    let found = sandbox.commands().run(Command::new(search).user("root")).await.expect("it runs");
    assert_eq!(found.stdout_text().trim(), "/srv/repos/serve.py");
    let bare = sandbox.git().at("seed").push(Push::default()).await.expect_err("they were not kept");
    assert!(matches!(bare, GitError::AuthFailed { .. }), "{bare:?}");

    // The target of a redirect gets no password: it is bound to the named remote.
    let redirect = Command::exec("python3", ["-c", REDIRECT]).no_timeout();
    let _redirect = sandbox.commands().start(redirect).await.expect("it starts");
    listening(&sandbox, 8419).await;
    let error = me().clone("http://127.0.0.1:8419/seed.git", CloneOptions::default().path("redirected")).await;
    let error = error.expect_err("the password is for another");
    assert!(matches!(error, GitError::AuthFailed { .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
}
