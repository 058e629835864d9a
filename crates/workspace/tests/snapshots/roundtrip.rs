//! Save, new sandbox, restore: the same tree, compared by a program that shares nothing with the code under test.

use sandbar_workspace::snapshot::{
    FilePath, LeftOut, Objects, RestoreError, SaveError, Settings, SnapshotCondition, SnapshotOptions, Which,
};
use testing::{S3Server, Server};

use crate::support::{assert_same, make_hostile_tree, project, run, s3_objects, snapshots, tree};

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_hard_to_keep_is_kept() {
    // From a server of ours to one that is plain E2B, where the sandbox has to inflate by itself, and to its like.
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
        let snapshots = snapshots(objects);
        let project = project("hostile");
        let saved = snapshots.save(&old, &project, &SnapshotOptions::default()).await.expect("a snapshot");
        assert_eq!((saved.changed.len(), saved.left_out.len()), (0, 0), "{saved:?}");
        assert_same(&tree(&old).await, &wanted);

        let restored = snapshots.restore(new, &project, Which::Newest).await.expect("a restore");
        assert_eq!((restored.stamp, restored.files), (saved.stamp, saved.files));
        assert!(restored.skipped_generations.is_empty(), "{restored:?}");
        assert_same(&tree(new).await, &wanted);

        let listed = snapshots.list(&project).await.expect("a list");
        let [only] = &listed[..] else { panic!("{listed:?}") };
        let (files, bytes, sha256) = (saved.files, saved.bytes, saved.sha256);
        assert_eq!(only.condition, SnapshotCondition::Whole { files, bytes, sha256, verified: true });
        assert_eq!((only.stamp, &only.key), (saved.stamp, &saved.key));
        assert_eq!(saved.key, format!("projects/hostile/snapshots/{}.tar.gz", saved.stamp));
        run(new, "rm -rf project; mkdir -p other; touch other/file").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_folders_are_left_out_unless_they_are_work() {
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
    let snapshots = snapshots(Objects::memory());
    let id = project("folders");
    let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    let wanted = [
        "app/.next",
        "app/build/node_modules",
        "app/dist",
        "app/node_modules",
        "app/src/__pycache__",
        "app/target",
        "broken/node_modules",
    ];
    let mut left_out = saved.left_out.clone();
    left_out.sort();
    assert_eq!(left_out, wanted.map(FilePath::from));

    let restored = snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
    assert_eq!(restored.left_out, saved.left_out);
    let look =
        "find . -name .git -prune -o -type f -print | sort; git -C app branch --list --format='%(refname:short)'";
    let found = run(&new, &format!("cd app && git -c safe.directory='*' fsck && cd .. && {look}")).await;
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

    // All of it, when nothing is to be left out.
    let options = SnapshotOptions { left_out: LeftOut::nothing(), ..SnapshotOptions::default() };
    let before = tree(&old).await;
    snapshots.save(&old, &id, &options).await.expect("a snapshot");
    snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
    assert_same(&tree(&new).await, &before);
}

/// Agents write `dist/index.html` by hand all the time: a name alone proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn folders_are_left_out_only_where_something_names_what_generates_them() {
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
    let snapshots = snapshots(Objects::memory());
    let options = SnapshotOptions::default();
    let listed = snapshots.list_excluded(&old, &options).await.expect("a list, before anything is saved");
    let id = project("hand-written");
    let saved = snapshots.save(&old, &id, &options).await.expect("a snapshot");
    assert_eq!(listed, saved.left_out);
    let mut left_out = saved.left_out.clone();
    left_out.sort();
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
    assert_eq!(left_out, wanted.map(FilePath::from));

    // The configuration may name more.
    let named = LeftOut { named: vec!["lib".parse().expect("a folder")], ..LeftOut::nothing() };
    let options = SnapshotOptions { left_out: named, ..options };
    assert_eq!(
        snapshots.list_excluded(&old, &options).await.expect("a list"),
        ["repo/lib", "repo/vendored/lib"].map(FilePath::from)
    );

    snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
    let without = wanted.map(|path| format!("-path ./{path} -prune -o")).join(" ");
    let look = format!("find . -name .git -prune -o {without} -print | sort");
    assert_eq!(run(&new, &look).await, run(&old, &look).await, "everything else is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_are_kept_and_stamps_increase() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let directory = tempfile::tempdir().expect("a directory");
    let snapshots = snapshots(Objects::disk(directory.path()).expect("a store"));
    let id = project("many");
    let mut stamps = Vec::new();
    for round in 0..7 {
        run(&sandbox, &format!("echo {round} >round")).await;
        let saved = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await.expect("a snapshot");
        stamps.push(saved.stamp);
        assert_eq!(saved.pruned.snapshots, stamps.iter().rev().skip(5).take(1).copied().collect::<Vec<_>>());
    }
    assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    let kept: Vec<_> = snapshots.list(&id).await.expect("a list").iter().map(|listed| listed.stamp).collect();
    assert_eq!(kept, stamps[2..]);
    let files = std::fs::read_dir(directory.path().join("projects/many/snapshots")).expect("a directory").count();
    assert_eq!(files, 10, "an archive and a manifest each");

    let restored = snapshots.restore(&sandbox, &id, Which::Exactly(stamps[3])).await.expect("a restore");
    assert_eq!((restored.stamp, run(&sandbox, "cat round").await.trim()), (stamps[3], "3"));
    let gone = snapshots.restore(&sandbox, &id, Which::Exactly(stamps[0])).await;
    let Err(RestoreError::NotThere { there, .. }) = &gone else { panic!("{gone:?}") };
    assert_eq!(there[..], stamps[2..], "it says which there are");
    assert_eq!(run(&sandbox, "cat round").await.trim(), "3", "a restore that fails changes nothing");

    let pruned = snapshots.prune(&id, 1).await.expect("a prune");
    assert_eq!(pruned.snapshots, stamps[2..6]);
    let none = snapshots.restore(&sandbox, &project("unknown"), Which::Newest).await;
    assert!(matches!(&none, Err(RestoreError::NoSnapshot { skipped, .. }) if skipped.is_empty()), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_change_under_tar_are_named_and_the_manifest_tells_what_was_archived() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    // Long enough for tar to meet a writer in it, and a name that must be unescaped.
    run(&old, r"mkdir w; head -c 40000000 /dev/urandom >$'w/a\nlog\\x'").await;
    let writer = sdk::Command::exec("/bin/bash", ["-c", r"cd w; while echo line >>$'a\nlog\\x'; do sleep 0.01; done"]);
    let writer = old.commands().start(writer.user("root").cwd("/home/user").no_timeout()).await.expect("a writer");

    let snapshots = snapshots(Objects::memory());
    let id = project("changing");
    let options = SnapshotOptions { anew_when_changed: 1, ..SnapshotOptions::default() };
    let saved = snapshots.save(&old, &id, &options).await.expect("a snapshot");
    assert_eq!(saved.changed, [FilePath::from("w/a\nlog\\x")], "{saved:?}");
    let restored = snapshots.restore(&new, &id, Which::Newest).await.expect("a restore with every digest right");
    assert_eq!(restored.files, saved.files);

    writer.kill().await.expect("it can be ended");
    let saved = snapshots.save(&old, &id, &options).await.expect("a snapshot");
    assert_eq!(saved.changed, []);
    let before = tree(&old).await;
    snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
    assert_same(&tree(&new).await, &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_saved_is_said_so() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let snapshots = snapshots(Objects::memory()).with(Settings { attempts: 1, ..Settings::default() });
    let id = project("none");
    let options = SnapshotOptions { root: "/home/user/nowhere".to_owned(), ..SnapshotOptions::default() };
    let refused = snapshots.save(&sandbox, &id, &options).await;
    assert!(matches!(refused, Err(SaveError::NoRoot { .. })), "{refused:?}");

    run(&sandbox, "mkdir -p .sandbar-restore.0123456789abcdef/old").await;
    let refused = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await;
    assert!(matches!(refused, Err(SaveError::HalfRestored { .. })), "{refused:?}");

    sandbox.kill().await.expect("it can be ended");
    let refused = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await;
    assert!(matches!(refused, Err(SaveError::Sandbox { .. })), "{refused:?}");
    assert_eq!(snapshots.list(&id).await.expect("a list"), []);
}

/// What is mounted is durable by itself: it is not moved, since it would be removed with the old files. Sandboxes do not let
/// us mount, so the script runs here, in a mount namespace of its own.
#[test]
fn a_swap_leaves_mounts_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/snapshot/scripts/swap.sh");
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
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.replace(&*directory.path().to_string_lossy(), "");
        assert_eq!(said, after, "{}", String::from_utf8_lossy(&output.stderr));
    };
    check("data", "0\n./a/new\n./data/kept\n");
    check("a/data", "/root/a/data\n12\n./a/data/kept\n./a/old\n./s/new/a/new\n");
}
