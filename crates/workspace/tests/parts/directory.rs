//! A directory of this machine becomes the project of a workspace.

use std::path::Path;

use bytes::Bytes;
use sandbar_workspace::setup::{Prepare, PreparedFile, Repo, RepoSource, Setup};
use testing::Server;

use crate::support::{Kept, PROJECT, commit, error_chain, git, run};

fn of(directory: &Path) -> Setup {
    Setup { repo: Some(Repo::parse(directory.to_str().expect("a path of text"))), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_sent_and_uncommitted_changes_counted() {
    let (server, directory) = (Server::shared(&[]), tempfile::tempdir().expect("a directory"));
    let source = directory.path();
    git(source, &["init", "--quiet"]);
    commit(source, "größe \u{1f980}.txt", "früher\n");
    git(source, &["tag", "v1"]);
    git(source, &["switch", "--quiet", "--create", "feature/änderung"]);
    commit(source, "only here.txt", "branch\n");
    git(source, &["switch", "--quiet", "main"]);
    commit(source, "main.txt", "main\n");
    git(source, &["tag", "v2"]);
    git(source, &["remote", "add", "origin", "https://me:secretword@host.example/shop.git"]);
    std::fs::write(source.join("main.txt"), "changed\n").expect("a file");
    std::fs::write(source.join("new.txt"), "new\n").expect("a file");

    let (sandbox, other) = tokio::join!(server.sandbox(), server.sandbox());
    let progress = Kept::default().set_up(&sandbox, &of(source)).await.expect("it is set up");
    assert!(progress.is_finished());
    assert_eq!(progress.notes().len(), 1, "{:?}", progress.notes());
    assert!(progress.notes()[0].starts_with("2 changes in "), "{:?}", progress.notes());
    assert_eq!(run(&sandbox, "git status --short --branch; cat main.txt; cat größe*; ls -A").await, {
        "## main\nmain\nfrüher\n.git\ngröße \u{1f980}.txt\nmain.txt"
    });
    assert_eq!(run(&sandbox, "git rev-parse HEAD").await, git(source, &["rev-parse", "HEAD"]));
    assert_eq!(run(&sandbox, "git tag; git branch --all").await, "v1\nv2\n* main");
    // The remote URL, without credentials.
    assert_eq!(run(&sandbox, "git remote get-url origin").await, "https://host.example/shop.git");
    assert_eq!(run(&sandbox, "grep -rl secretword /home/user | wc -l; ls -A /home/user/.sandbar").await, "0");
    run(&sandbox, "git fsck --strict").await;

    let mut setup = of(source);
    setup.repo = setup.repo.map(|repo| repo.branch("feature/änderung"));
    Kept::default().set_up(&other, &setup).await.expect("it is set up");
    assert_eq!(run(&other, "git branch --show-current; cat 'only here.txt'; git tag").await, {
        "feature/änderung\nbranch\nv1"
    });
    tokio::join!(sandbox.kill(), other.kill()).0.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn shallow_and_detached_repositories_are_kept_as_they_are() {
    let (server, directory) = (Server::shared(&[]), tempfile::tempdir().expect("a directory"));
    let [whole, part, source] = ["whole", "part", "source"].map(|name| directory.path().join(name));
    for path in [&whole, &part] {
        std::fs::create_dir(path).expect("a directory");
        git(path, &["init", "--quiet"]);
    }
    commit(&part, "part.txt", "part\n");
    commit(&whole, "a.txt", "one\n");
    git(&whole, &["submodule", "--quiet", "add", part.to_str().expect("text"), "lib/part"]);
    commit(&whole, "a.txt", "two\n");
    commit(&whole, "a.txt", "three\n");
    let url = format!("file://{}", whole.display());
    git(directory.path(), &["clone", "--quiet", "--depth=2", &url, "source"]);
    git(&source, &["checkout", "--quiet", "--detach"]);

    let sandbox = server.sandbox().await;
    let progress = Kept::default().set_up(&sandbox, &of(&source)).await.expect("it is set up");
    let notes = progress.notes().join("\n");
    assert!(notes.contains("no branch is checked out") && notes.contains("1 submodule"), "{notes}");
    assert_eq!(run(&sandbox, "cat a.txt; git log --oneline | wc -l; git branch --show-current; git remote").await, {
        "three\n2"
    });
    assert_eq!(run(&sandbox, "ls -A lib/part; git status --short").await, "");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_commands_run_and_nothing_is_overwritten() {
    let (server, directory) = (Server::shared(&[]), tempfile::tempdir().expect("a directory"));
    git(directory.path(), &["init", "--quiet"]);
    let sandbox = server.sandbox().await;
    let file = |path: &str, content: &'static str, mode: Option<u32>| PreparedFile {
        path: path.to_owned(),
        content: Bytes::from_static(content.as_bytes()),
        mode,
    };
    let files = vec![
        file("bin/it's ü.sh", "#!/bin/sh\necho done > made\n", Some(0o755)),
        file("/home/user/.config/agent.toml", "[agent]\n", Some(0o600)),
        file("plain.txt", "plain", None),
    ];
    let commands = vec!["\"./bin/it's ü.sh\"".to_owned(), "test -f made && pwd > where".to_owned()];
    let setup = Setup { prepare: Prepare { files, commands }, ..Setup::default() };
    assert!(!format!("{setup:?}").contains("[agent]"), "contents are not shown");
    Kept::default().set_up(&sandbox, &setup).await.expect("it is set up");
    assert_eq!(run(&sandbox, "cat made where; stat -c %a bin/* ~/.config/agent.toml").await, {
        format!("done\n{PROJECT}\n755\n600")
    });

    // Files in the project directory are not removed, and errors name what is wrong with a
    // directory.
    let occupied = Kept::default().set_up(&sandbox, &of(directory.path())).await.expect_err("there is something");
    assert!(
        error_chain(&occupied).contains("set-up failed at step clone: /home/user/project is not empty"),
        "{occupied:?}"
    );
    let fresh = server.sandbox().await;
    for (path, branch, message) in [
        (directory.path(), None, "has no commit yet"),
        (directory.path(), Some("other"), "has no branch \"other\"; it has none"),
        (Path::new("/nowhere"), None, "/nowhere does not exist on this machine"),
        (Path::new("/proc"), None, "is not in a git repository: run `git init`"),
    ] {
        let repo = Repo { source: RepoSource::Directory(path.to_owned()), branch: None, credentials: None };
        let repo = branch.into_iter().fold(repo, Repo::branch);
        let setup = Setup { repo: Some(repo), ..Setup::default() };
        let failed = Kept::default().set_up(&fresh, &setup).await.expect_err("it cannot be sent");
        assert!(error_chain(&failed).contains(message), "{}", error_chain(&failed));
    }
    tokio::join!(sandbox.kill(), fresh.kill()).0.expect("it ends");
}
