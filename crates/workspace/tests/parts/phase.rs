//! Phase commits in repositories of every state.

use sandbar_workspace::phase::{self, Commit, Phase};
use sdk::Sandbox;
use testing::Server;

use crate::support::{PROJECT, run};

async fn commit(sandbox: &Sandbox, message: &str) -> Commit {
    match phase::commit(sandbox, PROJECT, message).await.expect("it is committed") {
        Phase::Committed(commit) => commit,
        nothing @ Phase::NothingToCommit { .. } => panic!("{nothing:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_commits_everything_with_any_message() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    run(&sandbox, &format!("mkdir -p {PROJECT}/node_modules/x {PROJECT}/lib/node_modules/y")).await;
    assert_eq!(phase::head(&sandbox, PROJECT).await.expect("it answers"), None);
    let nothing = phase::commit(&sandbox, PROJECT, "Nothing").await.expect("it is no error");
    assert_eq!(nothing, Phase::NothingToCommit { head: None });

    run(&sandbox, "echo a >a; echo ü >'ü b'; echo .env >.gitignore; echo secret >.env; echo x >node_modules/x/x").await;
    run(
        &sandbox,
        "echo y >lib/node_modules/y/y; echo '#!/bin/sh\nexit 1' >.git/hooks/pre-commit; chmod +x .git/hooks/*",
    )
    .await;
    let message = "Phase 1: it's \"$HOME\" `id` ü\n\n# kept\n-m evil";
    let first = commit(&sandbox, message).await;
    assert_eq!(first.files, 3);
    assert_eq!(phase::head(&sandbox, PROJECT).await.expect("it answers").as_ref(), Some(&first.id));
    assert_eq!(run(&sandbox, "git log -1 --format=%B").await, message);
    assert_eq!(
        run(
            &sandbox,
            "git log -1 --format='%an %ae %cn'; git branch --show-current; git config --local user.name || true"
        )
        .await,
        { "Sandbar sandbar@localhost Sandbar\nmain" }
    );
    assert_eq!(run(&sandbox, "git ls-files -z | tr '\\0' '\\n'").await, ".gitignore\na\nü b");
    let nothing = phase::commit(&sandbox, PROJECT, "Again").await.expect("it is no error");
    assert_eq!(nothing, Phase::NothingToCommit { head: Some(first.id.clone()) });

    // The configured user is the author; deletions count; tracked files count in generated folders
    // too; a stale lock is removed.
    run(&sandbox, "git config user.name Ada; git config user.email ada@example.com; git add -f node_modules/x/x").await;
    let second = commit(&sandbox, "").await;
    assert_eq!((second.files, second.initialised), (1, false));
    run(&sandbox, "rm a; echo changed >>node_modules/x/x; touch .git/index.lock").await;
    let third = commit(&sandbox, "Third").await;
    assert_eq!(third.files, 2);
    assert_eq!(
        run(&sandbox, "git log --format='%an %s'").await,
        "Ada Third\nAda Phase\nSandbar Phase 1: it's \"$HOME\" `id` ü"
    );

    let failed = phase::commit(&sandbox, "/nowhere", "x").await.expect_err("no directory").to_string();
    assert!(failed.contains("/nowhere: No such file or directory"), "{failed}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_repository_is_created() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    run(&sandbox, &format!("mkdir -p {PROJECT}; echo a >{PROJECT}/a")).await;
    let made = commit(&sandbox, "First").await;
    assert!(made.initialised);
    assert_eq!(run(&sandbox, "git log --format=%s; git status --short").await, "First");
    sandbox.kill().await.expect("it ends");
}
