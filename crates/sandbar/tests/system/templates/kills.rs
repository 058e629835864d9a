//! Kills the server at every fault point of a build, a snapshot and a fork. No partial result is
//! left: the same work, done again, ends with as many volumes as on a server that was never killed.

use super::image::Image;
use super::{cli, create, write};
use crate::support::{Server, eventually};
use node::Point;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const DOCKERFILE: &str = "FROM e2bdev/base AS one\nRUN echo one > /one\nFROM e2bdev/base\nCOPY --from=one /one /two\nRUN cat /two > /three\n";

/// Counts the volumes in the server's pool, without its trash, where partial results go.
fn count_volumes(server: &Server) -> usize {
    let text = std::fs::read_to_string(server.file("server.json")).expect("the server says who it is");
    let about: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let root = format!("/proc/{}/root{}", about["pid"], server.data().canonicalize().expect("a path").display());
    let listed = ["pool", "volumes"].map(|name| std::fs::read_dir(Path::new(&root).join(name)));
    let is_volume =
        |entry: &std::fs::DirEntry| entry.path().is_dir() && !entry.file_name().to_string_lossy().starts_with('.');
    listed.into_iter().flatten().map(|entries| entries.flatten().filter(is_volume).count()).sum()
}

/// Waits until the pool has this number of volumes.
#[track_caller]
fn wait_for_volumes(server: &Server, expected: usize) {
    let what = format!("{expected} volumes are left");
    eventually(what, Duration::from_secs(60), || (count_volumes(server) == expected).then_some(()));
}

/// Sets a fault point at which the server dies, does `work`, which must reach it, and starts the
/// server again.
fn die_at(server: &mut Server, point: Point, work: impl FnOnce(&Server)) {
    std::fs::write(server.file("kill-at"), point.name()).expect("written");
    work(server);
    server.wait(Duration::from_secs(60));
    std::fs::remove_file(server.file("kill-at")).expect("it is there");
    server.start_again();
}

#[test]
fn a_build_that_is_killed_leaves_no_partial_result() {
    let place = tempfile::tempdir().expect("a directory");
    let (context, saved) = (place.path().join("context"), place.path().join("saved.tar"));
    write(&context, &[("Dockerfile", DOCKERFILE)]);
    Image::new("killed").save(&saved);
    let (context, saved) = (context.display().to_string(), saved.display().to_string());
    let arguments = ["build", "--from", &saved, "--name", "killed", &context];
    let done = |server: &Server| {
        let built = cli(server).run(&arguments);
        assert!(built.status.success(), "{built:?}");
        let sandbox = create(server, "killed");
        assert_eq!(sandbox.must("user", "cat /three"), "one\n");
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    };
    let undisturbed = Server::start();
    done(&undisturbed);
    let expected = count_volumes(&undisturbed);
    drop(undisturbed);
    let mut server = Server::start();
    for point in Point::BUILD {
        die_at(&mut server, point, |server| {
            let died = cli(server).run(&arguments);
            // Cached steps are not built again, so each death is at the next fault point. The
            // client can see success only if the result was recorded.
            assert!(!died.status.success() || point == Point::BuildRecorded, "{point:?}: {died:?}");
        });
        let create = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "killed" })));
        let expected = if point == Point::BuildRecorded { 201 } else { 404 };
        assert_eq!(create.status, expected, "{point:?}: {}", create.text());
        if expected == 201 {
            let id = create.json()["sandboxID"].as_str().expect("an id").to_owned();
            assert_eq!(server.call("DELETE", &format!("/sandboxes/{id}"), None).status, 204);
        }
    }
    done(&server);
    wait_for_volumes(&server, expected);
}

#[test]
fn a_snapshot_or_fork_that_is_killed_leaves_no_partial_result() {
    let mut server = Server::start();
    let sandbox = server.create();
    sandbox.must("user", "echo kept > file");
    let before = count_volumes(&server);
    for point in Point::SNAPSHOT {
        die_at(&mut server, point, |server| {
            let path = format!("/sandboxes/{}/snapshots", sandbox.id);
            let _ = server.try_call("POST", &path, Some(json!({ "name": "state" })));
        });
        let is_there = point == Point::SnapshotRecorded;
        wait_for_volumes(&server, before + usize::from(is_there));
        let listed = server.call("GET", "/snapshots", None).json();
        assert_eq!(listed.as_array().expect("a list").len(), usize::from(is_there), "{point:?}: {listed}");
        assert_eq!(sandbox.at(&server.address).must("user", "cat file"), "kept\n", "{point:?}");
    }
    assert_eq!(server.call("DELETE", "/templates/local%2Fstate%3Adefault", None).status, 204);
    for point in Point::FORK {
        die_at(&mut server, point, |server| {
            let path = format!("/sandboxes/{}/fork", sandbox.id);
            let _ = server.try_call("POST", &path, Some(json!({ "count": 2 })));
        });
        let listed = server.call("GET", "/v2/sandboxes", None).json();
        let listed = listed.as_array().expect("a list").clone();
        // A recorded fork is complete, and an unrecorded one is removed.
        wait_for_volumes(&server, before - 1 + listed.len());
        for child in &listed {
            let id = child["sandboxID"].as_str().expect("an id");
            if id != sandbox.id {
                assert_eq!(server.call("DELETE", &format!("/sandboxes/{id}"), None).status, 204, "{point:?}");
            }
        }
        assert_eq!(sandbox.at(&server.address).must("user", "cat file"), "kept\n", "{point:?}");
    }
}
