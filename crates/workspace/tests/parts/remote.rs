//! Repositories behind a URL: a git daemon and a web server with a password, both in the sandbox
//! itself.

use sandbar_workspace::setup::{Repo, Setup, StepError};
use sdk::{Credentials, GitError, Sandbox};
use testing::Server;

use crate::support::{Kept, PROJECT, error_chain, listens, run};

const PASSWORD: &str = "p@ss/wörd-4711";

/// Makes a bare repository with two branches in `/home/user/served/shop.git`.
async fn serve_repository(sandbox: &Sandbox) {
    run(
        sandbox,
        r#"set -e; mkdir -p ~/served; cd ~/served; git init -q work; cd work
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git symbolic-ref HEAD refs/heads/main; echo main >file; git add file; git commit -qm main
        git checkout -qb next; echo next >file; git commit -qam next; git checkout -q main
        git clone -q --bare . ../shop.git; cd ../shop.git; git update-server-info; touch git-daemon-export-ok"#,
    )
    .await;
}

/// Starts a server in the sandbox and returns when it accepts connections.
async fn start(sandbox: &Sandbox, line: &str, port: u16) {
    sandbox.commands().start(sdk::Command::new(line).no_timeout()).await.expect("it starts");
    listens(sandbox, port).await;
}

fn at(url: &str) -> Setup {
    Setup { repo: Some(Repo::parse(url)), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_cloned_from_a_git_daemon() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    serve_repository(&sandbox).await;
    let daemon = "git daemon --listen=127.0.0.1 --port=9418 --base-path=/home/user/served --reuseaddr";
    start(&sandbox, daemon, 9418).await;

    let missing = Kept::default().set_up(&sandbox, &at("git://127.0.0.1/other.git")).await.expect_err("no repository");
    assert!(error_chain(&missing).starts_with("set-up failed at step clone: git"), "{}", error_chain(&missing));
    let mut setup = at("git://127.0.0.1/shop.git");
    setup.repo = setup.repo.map(|repo| repo.branch("never"));
    let missing = Kept::default().set_up(&sandbox, &setup).await.expect_err("no branch");
    assert!(matches!(missing.source, StepError::Git(GitError::UnknownName { .. })), "{missing:?}");

    setup.repo = setup.repo.map(|repo| repo.branch("next"));
    let kept = Kept::default();
    kept.set_up(&sandbox, &setup).await.expect("it is cloned");
    let state = "git branch --show-current; cat file; git remote get-url origin; git status --short; ls -A ~/.sandbar";
    assert_eq!(run(&sandbox, state).await, "next\nnext\ngit://127.0.0.1/shop.git");
    run(&sandbox, "echo work >>file").await;
    kept.set_up(&sandbox, &setup).await.expect("there is nothing to do");
    // The progress was not stored: the clone itself identifies its setup, and changes in it are
    // kept.
    Kept::default().set_up(&sandbox, &setup).await.expect("it is found");
    assert_eq!(run(&sandbox, "cat file").await, "next\nwork");
    sandbox.kill().await.expect("it ends");
}

/// Serves files to clients with the password, and records every process whose command line contains
/// it. It only knows the password's digest.
const WEB_SERVER: &str = r#"
import base64, glob, hashlib, http.server, sys
wanted = sys.argv[1]
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        kind, _, text = self.headers.get('Authorization', '').partition(' ')
        sent = base64.b64decode(text)
        if hashlib.sha256(sent).hexdigest() != wanted:
            self.send_response(401)
            self.send_header('WWW-Authenticate', 'Basic realm="shop"')
            self.end_headers()
            return
        password = sent.split(b':', 1)[1]
        for path in glob.glob('/proc/[0-9]*/cmdline'):
            try:
                if password in open(path, 'rb').read():
                    open('/tmp/leaks', 'a').write(path + '\n')
            except OSError:
                pass
        super().do_GET()
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', 8099), Handler).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_used_and_not_stored() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    serve_repository(&sandbox).await;
    sandbox.files().write("web.py", WEB_SERVER).await.expect("it is written");
    let digest = {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(format!("me:{PASSWORD}"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    start(&sandbox, &format!("cd ~/served && exec python3 ~/web.py {digest}"), 8099).await;

    let url = "http://127.0.0.1:8099/shop.git";
    let refused = Kept::default().set_up(&sandbox, &at(url)).await.expect_err("it asks for a password");
    assert!(matches!(refused.source, StepError::Git(GitError::AuthFailed { .. })), "{refused:?}");
    let mut setup = at(url);
    setup.repo = setup.repo.map(|repo| repo.credentials(Credentials::new("me", "wrong-word")));
    let refused = Kept::default().set_up(&sandbox, &setup).await.expect_err("it asks for another");
    assert!(!format!("{} {refused:?} {setup:?}", error_chain(&refused)).contains("wrong-word"));

    let given = Credentials::new("me", PASSWORD);
    setup.repo = setup.repo.map(|repo| repo.credentials(given));
    Kept::default().set_up(&sandbox, &setup).await.expect("it is cloned");
    assert_eq!(run(&sandbox, "cat file; git remote get-url origin; cat /tmp/leaks 2>/dev/null || true").await, {
        format!("main\n{url}")
    });
    // No file, no remaining process and no environment contains it.
    let search = format!("grep -rlF '{PASSWORD}' ~ /tmp 2>/dev/null | wc -l");
    assert_eq!(run(&sandbox, &search).await, "0");
    assert_eq!(run(&sandbox, "grep -lsz '^SANDBAR_GIT_' /proc/[0-9]*/environ | wc -l").await, "0");

    // git would store credentials of a URL, so they are removed from it.
    run(&sandbox, &format!("rm -rf {PROJECT}")).await;
    let inside = "http://me:p%40ss%2Fw%C3%B6rd-4711@127.0.0.1:8099/shop.git";
    Kept::default().set_up(&sandbox, &at(inside)).await.expect("it is cloned");
    assert_eq!(run(&sandbox, "git remote get-url origin").await, url);
    assert_eq!(run(&sandbox, "grep -rlF 4711 ~ /tmp 2>/dev/null | wc -l").await, "0");
    sandbox.kill().await.expect("it ends");
}
