//! Commands that a killed `sandbar workspace exec` leaves running.

use super::User;
use crate::support::program::text;
use crate::support::{Program, Server, eventually};
use std::time::Duration;

#[test]
fn the_next_exec_ends_the_command_of_a_killed_one() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
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
    let message = text(&next.stderr);
    assert!(
        message.contains("ended what an `exec` that was killed had left running") && message.contains("sleep 1000"),
        "{message}"
    );
    assert_eq!(user.exec("shop", "pgrep -x sleep || echo none"), "none\n", "with all that it had started");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
