//! Terminals against the real server.

use std::time::Duration;

use sandbar_sdk::{Chunk, CommandError, Running, Shell, Size};

use testing::Server;

/// Reads until `text` appears.
async fn read_until(shell: &mut Running, text: &str) -> String {
    let mut shown = String::new();
    let reading = async {
        while !shown.contains(text) {
            match shell.next().await.expect("it streams") {
                Some(Chunk::Pty(bytes)) => shown.push_str(&String::from_utf8_lossy(&bytes)),
                Some(other) => panic!("{other:?}"),
                None => panic!("it ended: {shown:?}"),
            }
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert!(read.is_ok(), "no {text:?} in {shown:?}");
    shown
}

#[tokio::test]
async fn a_terminal_resizes_takes_input_and_is_reattached() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let pty = sandbox.pty();

    let size = Size { cols: 93, rows: 31 };
    let shell = Shell::default().cwd("/tmp").env("GREETING", "hello").no_timeout();
    let mut shell = pty.create(size, shell).await.expect("it opens");
    shell.send_stdin("echo \"$GREETING-$(pwd)-$(tput cols)x$(tput lines)-$TERM\"\n").await.expect("it is typed");
    read_until(&mut shell, "hello-/tmp-93x31-xterm-256color").await;

    shell.resize(Size { cols: 71, rows: 17 }).await.expect("it is resized");
    shell.send_stdin("echo \"size $(stty size)\"\n").await.expect("it is typed");
    read_until(&mut shell, "size 17 71").await;

    let pid = shell.pid();
    drop(shell);
    let mut again = pty.connect(pid).await.expect("it is still open");
    pty.send(pid, "echo still-$((40 + 2))\n").await.expect("it is typed");
    read_until(&mut again, "still-42").await;
    pty.resize(pid, Size { cols: 72, rows: 18 }).await.expect("it is resized");
    again.send_stdin("exit 7\n").await.expect("it is typed");
    assert_eq!(again.wait().await.expect("it ends").exit.code, 7);

    let error = pty.resize(9_999, size).await.expect_err("no such process");
    assert!(matches!(error, CommandError::NotFound { .. }), "{error:?}");
    let pipes = sandbox.commands().start("sleep 100").await.expect("it starts");
    let error = pipes.resize(size).await.expect_err("it has no terminal");
    assert!(matches!(error, CommandError::InputRefused { .. }), "{error:?}");

    let short = pty.create(size, Shell::default().timeout(Duration::from_millis(500))).await.expect("it opens");
    let error = short.wait().await.expect_err("its time is short");
    assert!(matches!(error, CommandError::DeadlineExceeded { may_still_run: None, .. }), "{error:?}");
    let other = pty.create(size, Shell::exec("sh", ["-c", "tty; whoami"]).user("root")).await.expect("it opens");
    let output = other.wait().await.expect("it ends");
    assert!(output.success() && output.stdout_text().contains("/dev/pts/") && output.stdout_text().contains("root"));
    sandbox.kill().await.expect("it ends");
}
