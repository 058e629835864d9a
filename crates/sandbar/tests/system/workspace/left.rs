//! What a program that was killed leaves in a workspace.

use super::User;
use crate::support::program::text;
use crate::support::{Program, Server, eventually};
use std::time::Duration;

#[test]
fn the_command_of_a_killed_exec_is_ended_by_the_next() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::of(&server);
    user.workspace.must(&["create", "shop"]);
    let mut killed = user
        .workspace
        .command(&["exec", "shop", "-c", "echo $$ >/tmp/pid.new; mv /tmp/pid.new /tmp/pid; sleep 1000; true"])
        .spawn()
        .expect("the program starts");
    let id = user.sandbox("shop");
    let sandbox = Program::new("sandbox").at(&server);
    eventually("the command runs", Duration::from_secs(30), || {
        sandbox.run(&["exec", &id, "--", "test", "-e", "/tmp/pid"]).status.success().then_some(())
    });
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");

    let next = user.workspace.run(&["exec", "shop", "--wait", "60", "--", "true"]);
    assert!(next.status.success(), "{next:?}");
    let said = text(&next.stderr);
    assert!(
        said.contains("ended what an `exec` that was killed had left running") && said.contains("sleep 1000"),
        "{said}"
    );
    assert_eq!(user.says("shop", "pgrep -x sleep || echo none"), "none\n", "with all that it had started");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
