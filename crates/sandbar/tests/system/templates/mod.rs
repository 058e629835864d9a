//! Templates as users build them: the real program, a real server, images that the tests create.

mod dockerfile;
pub(crate) mod image;
mod images;
mod kills;
mod registry;

use crate::support::program::text;
use crate::support::{Program, Sandbox, Server};
use serde_json::json;
use std::fs;
use std::path::Path;

/// `sandbar template` for a server.
fn cli(server: &Server) -> Program {
    Program::new("template").at(server)
}

/// Writes files below a directory, and creates their parents.
fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, content).expect("a file");
    }
}

/// Asserts that a build succeeds and returns stderr.
#[track_caller]
fn build(server: &Server, arguments: &[&str]) -> String {
    let done = cli(server).run(&[&["build"], arguments].concat());
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    text(&done.stderr)
}

#[track_caller]
fn create(server: &Server, template: &str) -> Sandbox {
    server.create_with(json!({ "templateID": template }))
}
