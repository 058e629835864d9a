//! Snapshots of older programs have the variables of their workspaces in plain text: `sandbar
//! doctor` finds them, and prints commands that delete them.

use super::server::start_hanging_store;
use super::{User, text_of};
use crate::support::program::text;
use crate::support::{Program, Server};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest manifest below `directory`: names begin with the time.
fn find_manifest(directory: &Path) -> PathBuf {
    let found = Command::new("find").arg(directory).args(["-name", "*.manifest.json"]).output().expect("find runs");
    let found = text(&found.stdout);
    found.lines().max().expect("a manifest").into()
}

/// Rewrites a manifest as an older program wrote it, with a session's file of variables.
fn expose(manifest: &Path) {
    let written = fs::read_to_string(manifest).expect("a manifest");
    let mut lines = written.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut head = lines.next().expect("a head");
    let mut entries: Vec<Value> = lines.collect();
    let mut exposed = entries.iter().find(|entry| entry["type"] == "file").expect("a file").clone();
    exposed["path"] = json!(".sandbar/s/env");
    entries.push(exposed);
    head["format"] = json!(1);
    let fields = head.as_object_mut().expect("an object");
    fields.remove("searched").expect("a new manifest");
    fields.remove("listing").expect("a new manifest");
    fields.insert("entries".to_owned(), Value::Array(entries));
    fs::write(manifest, head.to_string()).expect("written");
}

#[test]
fn doctor_names_snapshots_with_variables_in_every_store() {
    let server = Server::with(&["--no-studio"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    user.exec("shop", "echo work >file");
    user.workspace.must(&["destroy", "shop", "--yes"]);
    let manifest = find_manifest(user.home.path());
    let objects = manifest.ancestors().nth(4).expect("STORE/projects/PROJECT/snapshots/MANIFEST");
    let of_studio = server.file("studio/objects");
    fs::create_dir_all(server.file("studio")).expect("a directory");
    assert!(Command::new("cp").arg("-r").arg(objects).arg(&of_studio).status().expect("cp runs").success());
    let with_home = |word| {
        let program = Program::new(word).at(&server).variable("XDG_DATA_HOME", user.home.path().join("data"));
        program.variable("XDG_CONFIG_HOME", user.home.path().join("config"))
    };
    let doctor = with_home("doctor");
    let report = || serde_json::from_slice::<Value>(&doctor.run(&["--json"]).stdout).expect("JSON");
    assert_eq!(report()["exposed_snapshots"], json!([]));
    assert_eq!(report()["snapshots_not_searched"], json!([]));

    expose(&manifest);
    expose(&find_manifest(&of_studio));
    let exposed = report()["exposed_snapshots"].clone();
    let exposed = exposed.as_array().expect("a list");
    assert_eq!(exposed.len(), 2, "{exposed:?}");
    let readable = text(&doctor.run(&[]).stdout);
    let snapshot = text_of(&exposed[0], "snapshot");
    let store = of_studio.to_str().expect("a plain name");
    let of_user = ["snapshots", "shop"];
    let of_studio = ["snapshots", "shop", "--store", store];
    for (found, list) in exposed.iter().zip([&of_user[..], &of_studio]) {
        let fix = text_of(found, "fix");
        assert!(readable.contains(&fix) && fix.contains(&snapshot), "{fix}: {readable}");
        let count = || {
            let listed = user.workspace.json(list);
            let exposed = |listed: &&Value| listed["has_env_values"] == true;
            listed.as_array().expect("a list").iter().filter(exposed).count()
        };
        assert_eq!(count(), 1);
        assert!(user.workspace.must(list).contains("in plain text; delete it"));
        let arguments = fix.strip_prefix("sandbar workspace ").expect("a command").split(' ');
        user.workspace.must(&arguments.chain(["--yes"]).collect::<Vec<_>>());
        assert_eq!(count(), 0);
    }
    assert_eq!(report()["exposed_snapshots"], json!([]));

    // A store that does not answer may have more.
    let (_listener, endpoint) = start_hanging_store();
    user.configure(&format!("[objects]\nurl = \"s3://bucket\"\nendpoint = \"{endpoint}\"\n"));
    let doctor = doctor.variable("AWS_ACCESS_KEY_ID", "key").variable("AWS_SECRET_ACCESS_KEY", "secret");
    let done = doctor.run(&[]);
    let readable = text(&done.stdout);
    let (_, named) = readable.split_once("not searched whole").unwrap_or_else(|| panic!("{done:?}"));
    assert!(named.contains("s3://bucket"), "{readable}");
}
