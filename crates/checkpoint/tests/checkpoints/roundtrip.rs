//! Save, new sandbox, restore: the same tree, compared by a program that shares nothing with the
//! code under test.

use sandbar_checkpoint::{
    CheckpointCondition, CheckpointOptions, CheckpointSettings, Excludes, FilePath, Objects, RestoreError, SaveError,
    Which,
};
use testing::{S3Server, Server};

use crate::support::{assert_same, checkpoints, make_hostile_tree, port, project, run, s3_objects, tree};

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_tree_survives_a_round_trip() {
    // From our own server to another of ours, and to plain E2B, where the sandbox inflates by
    // itself.
    let (server, plain) = (Server::shared(&[]), Server::shared(&["--no-extensions"]));
    let (old, like, new) = tokio::join!(server.sandbox(), server.sandbox(), plain.sandbox());
    make_hostile_tree(&old).await;
    let wanted = tree(&old).await;
    let stray = "mkdir -p project/src/stray && echo stray >project/src/stray/file && echo changed >.bashrc";
    run(&new, stray).await;
    run(&like, stray).await;

    let s3 = S3Server::shared();
    let directory = tempfile::tempdir().expect("a directory");
    let stores = [
        Objects::memory(),
        Objects::disk(directory.path()).expect("a store"),
        s3_objects(&s3, "roundtrip", S3Server::SECRET),
    ];
    for (objects, new) in stores.into_iter().zip([&like, &new, &like]) {
        let checkpoints = checkpoints(objects);
        let project = project("hostile");
        let saved = checkpoints.save(&port(&old), &project, &CheckpointOptions::default()).await.expect("a snapshot");
        assert_eq!((saved.changed.len(), saved.excluded.len()), (0, 0), "{saved:?}");
        assert_same(&tree(&old).await, &wanted);

        let restored = checkpoints.restore(&port(new), &project, Which::Newest).await.expect("a restore");
        assert_eq!((restored.stamp, restored.files), (saved.stamp, saved.files));
        assert!(restored.skipped_generations.is_empty(), "{restored:?}");
        assert_same(&tree(new).await, &wanted);

        let listed = checkpoints.list(&project).await.expect("a list");
        let [only] = &listed[..] else { panic!("{listed:?}") };
        let (files, bytes, sha256) = (saved.files, saved.bytes, saved.sha256);
        assert_eq!(only.condition, CheckpointCondition::Whole { files, bytes, sha256, verified: true });
        assert_eq!((only.stamp, &only.key), (saved.stamp, &saved.key));
        assert_eq!(saved.key, format!("projects/hostile/snapshots/{}.tar.gz", saved.stamp));
        run(new, "rm -rf project; mkdir -p other; touch other/file").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_folders_are_excluded_unless_tracked() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    let make = r#"
        set -e
        mkdir -p app/node_modules/x app/.next app/dist app/src/__pycache__ app/target/debug app/build app/nested/build
        cd app; git init -q .; git config user.email a@b; git config user.name a
        for d in node_modules/x .next dist src/__pycache__ target/debug build nested/build; do echo $d >$d/file; done
        printf 'build\nSECRET\ndist\n.next\ntarget\n' >.gitignore; echo key >SECRET; echo '{}' >package.json
        git add -f .gitignore build/file nested/build/file; git commit -qm first
        mkdir -p build/node_modules/y; echo y >build/node_modules/y/file; touch build/package.json
        mv src/__pycache__/file src/__pycache__/a.pyc
        git branch build/feature; git branch dist
        cd ..
        ln -s app/dist dist; echo file >target
        git init -q build; echo mine >build/work
        mkdir -p dist2/target/theirs; git init -q dist2/target/theirs; echo mine >dist2/target/theirs/work
        git init -q --bare bare.git; mkdir -p bare.git/refs/heads/build; cp app/.git/refs/heads/dist bare.git/refs/heads/build/x
        mkdir broken; echo garbage >broken/.git; mkdir -p broken/build broken/node_modules
        echo kept >broken/build/file; echo gone >broken/node_modules/file; touch broken/package.json
    "#;
    run(&old, make).await;
    let checkpoints = checkpoints(Objects::memory());
    let id = project("folders");
    let saved = checkpoints.save(&port(&old), &id, &CheckpointOptions::default()).await.expect("a snapshot");
    let wanted = [
        "app/.next",
        "app/build/node_modules",
        "app/dist",
        "app/node_modules",
        "app/src/__pycache__",
        "app/target",
        "broken/node_modules",
    ];
    let mut excluded = saved.excluded.clone();
    excluded.sort();
    assert_eq!(excluded, wanted.map(FilePath::from));

    let restored = checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore");
    assert_eq!(restored.excluded, saved.excluded);
    let list =
        "find . -name .git -prune -o -type f -print | sort; git -C app branch --list --format='%(refname:short)'";
    let found = run(&new, &format!("cd app && git -c safe.directory='*' fsck && cd .. && {list}")).await;
    for kept in ["./app/build/file", "./app/nested/build/file", "./app/SECRET", "./build/work", "./target"] {
        assert!(found.lines().any(|line| line == kept), "{kept} in\n{found}");
    }
    for kept in ["./dist2/target/theirs/work", "./broken/build/file", "./bare.git/refs/heads/build/x"] {
        assert!(found.lines().any(|line| line == kept), "{kept} in\n{found}");
    }
    for branch in ["build/feature", "dist"] {
        assert!(found.lines().any(|line| line == branch), "{branch} in\n{found}");
    }
    for gone in wanted {
        assert!(!found.contains(&format!("./{gone}/")), "{gone} in\n{found}");
    }

    // With nothing to exclude, all of it is kept.
    let options = CheckpointOptions { excluded: Excludes::nothing(), ..CheckpointOptions::default() };
    let before = tree(&old).await;
    checkpoints.save(&port(&old), &id, &options).await.expect("a snapshot");
    checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore");
    assert_same(&tree(&new).await, &before);
}

/// Agents often write `dist/index.html` by hand: a name alone proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn folders_are_excluded_only_with_a_known_generator() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    let make = r#"
        set -e
        write() { mkdir -p "${1%/*}"; echo mine >"$1"; }
        write plain/dist/index.html; write plain/build/a/b; write plain/target/x; write plain/node_modules/mine.js
        write plain/.venv/notes; write plain/__pycache__/notes
        write web/dist/out; write web/node_modules/x/y; echo '{"scripts":{"dev":"x","build":"vite build"}}' >web/package.json
        write static/dist/index.html; echo '{"scripts":{"dev":"serve dist"},"build":{"x":1}}' >static/package.json
        write rust/target/debug/x; touch rust/Cargo.toml; write cached/target/x
        printf 'Signature: 8a477f597d28d172789f06886806bc55\n' >cached/target/CACHEDIR.TAG
        write python/.venv/pyvenv.cfg; write python/__pycache__/m.cpython-313.pyc; touch python/requirements.txt
        write python/dist/report.html; write sdist/dist/pkg.whl; printf '[project]\n[build-system]\n' >sdist/pyproject.toml
        write venv/.venv/pyvenv.cfg
        mkdir repo; cd repo; git init -q .
        write dist/index.html; write build/tracked; git add build; write build/ignored.o; write target/debug/x
        write lib/dist/mixed.js; write lib/dist/app.map; write vendored/lib/dist/lib.js; mkdir docs docs/dist
        printf 'target\n*.o\n*.map\n/vendored\n.venv\n' >.gitignore; write .venv/x
    "#;
    run(&old, make).await;
    let checkpoints = checkpoints(Objects::memory());
    let options = CheckpointOptions::default();
    let listed = checkpoints.list_excluded(&port(&old), &options).await.expect("a list, before anything is saved");
    let id = project("hand-written");
    let saved = checkpoints.save(&port(&old), &id, &options).await.expect("a snapshot");
    assert_eq!(listed, saved.excluded);
    let mut excluded = saved.excluded.clone();
    excluded.sort();
    let wanted = [
        "cached/target",
        "python/.venv",
        "python/__pycache__",
        "repo/.venv",
        "repo/target",
        "rust/target",
        "sdist/dist",
        "web/dist",
        "web/node_modules",
    ];
    assert_eq!(excluded, wanted.map(FilePath::from));

    // The configuration may name more.
    let named = Excludes { named: vec!["lib".parse().expect("a folder")], ..Excludes::nothing() };
    let options = CheckpointOptions { excluded: named, ..options };
    assert_eq!(
        checkpoints.list_excluded(&port(&old), &options).await.expect("a list"),
        ["repo/lib", "repo/vendored/lib"].map(FilePath::from)
    );

    checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore");
    let without = wanted.map(|path| format!("-path ./{path} -prune -o")).join(" ");
    let list = format!("find . -name .git -prune -o {without} -print | sort");
    assert_eq!(run(&new, &list).await, run(&old, &list).await, "everything else is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_checkpoints_are_retained_and_stamps_increase() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints(Objects::disk(directory.path()).expect("a store"));
    let id = project("many");
    let mut stamps = Vec::new();
    for round in 0..7 {
        run(&sandbox, &format!("echo {round} >round")).await;
        let saved = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot");
        stamps.push(saved.stamp);
        assert_eq!(saved.pruned.checkpoints, stamps.iter().rev().skip(5).take(1).copied().collect::<Vec<_>>());
    }
    assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    let kept: Vec<_> = checkpoints.list(&id).await.expect("a list").iter().map(|listed| listed.stamp).collect();
    assert_eq!(kept, stamps[2..]);
    let files = std::fs::read_dir(directory.path().join("projects/many/snapshots")).expect("a directory").count();
    assert_eq!(files, 10, "an archive and a manifest each");

    let restored = checkpoints.restore(&port(&sandbox), &id, Which::Exactly(stamps[3])).await.expect("a restore");
    assert_eq!((restored.stamp, run(&sandbox, "cat round").await.trim()), (stamps[3], "3"));
    let gone = checkpoints.restore(&port(&sandbox), &id, Which::Exactly(stamps[0])).await;
    let Err(RestoreError::NotThere { there, .. }) = &gone else { panic!("{gone:?}") };
    assert_eq!(there[..], stamps[2..], "it says which there are");
    assert_eq!(run(&sandbox, "cat round").await.trim(), "3", "a restore that fails changes nothing");

    let pruned = checkpoints.prune(&id, 1).await.expect("a prune");
    assert_eq!(pruned.checkpoints, stamps[2..6]);
    let none = checkpoints.restore(&port(&sandbox), &project("unknown"), Which::Newest).await;
    assert!(matches!(&none, Err(RestoreError::NoCheckpoint { skipped, .. }) if skipped.is_empty()), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_change_during_a_save_are_named() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    // Long enough for a writer to interfere with tar, with a name that must be unescaped.
    run(&old, r"mkdir w; head -c 40000000 /dev/urandom >$'w/a\nlog\\x'").await;
    let writer = sdk::Command::exec("/bin/bash", ["-c", r"cd w; while echo line >>$'a\nlog\\x'; do sleep 0.01; done"]);
    let writer = old.commands().start(writer.user("root").cwd("/home/user").no_timeout()).await.expect("a writer");

    let checkpoints = checkpoints(Objects::memory());
    let id = project("changing");
    let options = CheckpointOptions { retries_when_changed: 1, ..CheckpointOptions::default() };
    let saved = checkpoints.save(&port(&old), &id, &options).await.expect("a snapshot");
    assert_eq!(saved.changed, [FilePath::from("w/a\nlog\\x")], "{saved:?}");
    let restored =
        checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore with every digest right");
    assert_eq!(restored.files, saved.files);

    writer.kill().await.expect("it can be ended");
    let saved = checkpoints.save(&port(&old), &id, &options).await.expect("a snapshot");
    assert_eq!(saved.changed, []);
    let before = tree(&old).await;
    checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore");
    assert_same(&tree(&new).await, &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_save_names_its_reason() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let checkpoints =
        checkpoints(Objects::memory()).with(CheckpointSettings { attempts: 1, ..CheckpointSettings::default() });
    let id = project("none");
    let options = CheckpointOptions { root: "/home/user/nowhere".to_owned(), ..CheckpointOptions::default() };
    let refused = checkpoints.save(&port(&sandbox), &id, &options).await;
    assert!(matches!(refused, Err(SaveError::NoRoot { .. })), "{refused:?}");

    run(&sandbox, "mkdir -p .sandbar-restore.0123456789abcdef/old").await;
    let refused = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await;
    assert!(matches!(refused, Err(SaveError::HalfRestored { .. })), "{refused:?}");

    sandbox.kill().await.expect("it can be ended");
    let refused = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await;
    assert!(matches!(refused, Err(SaveError::Sandbox { .. })), "{refused:?}");
    assert_eq!(checkpoints.list(&id).await.expect("a list"), []);
}

/// Mounted directories are durable by themselves: they are not moved, since they would be removed
/// with the old files. Sandboxes do not allow mounts, so the script runs here, in a mount namespace
/// of its own.
#[test]
fn a_swap_keeps_mounts() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/swap.sh");
    let check = |mounted: &str, after: &str| {
        let line = r#"
            set -e
            cd "$1"; rm -rf root; mkdir -p root/a/data root/data root/s/new/a/data root/s/new/data; cd root
            mount -t tmpfs none "$3"; echo mounted >"$3/kept"; echo old >a/old; echo new >s/new/a/new
            code=0; bash "$2" "$PWD" s 2>&1 || code=$?
            echo "$code"; find . -type f | sort
        "#;
        let place = directory.path().to_str().expect("text");
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--map-root-user", "bash", "-c", line, "-", place, script, mounted]);
        let output = command.output().expect("unshare is installed");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stdout = stdout.replace(&*directory.path().to_string_lossy(), "");
        assert_eq!(stdout, after, "{}", String::from_utf8_lossy(&output.stderr));
    };
    check("data", "0\n./a/new\n./data/kept\n");
    check("a/data", "/root/a/data\n12\n./a/data/kept\n./a/old\n./s/new/a/new\n");
}
