//! Two real processes on one workspace: the second fails while the first works, has all
//! acknowledged writes of the first when that is killed, and keeps the workspace when the first was
//! only suspended.
//!
//! The test runs itself as the other process, which writes continuously and prints what was
//! acknowledged.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sandbar_workspace::{OpenError, Settings};
use testing::signal;

use crate::support::{Fixture, Recorder, World, name};

const NAME: &str = "contested";
const PLACE: &str = "WRITER_PLACE";
const TIMEOUT: Duration = Duration::from_secs(90);

/// A lease that even a process delayed by a busy machine renews in time.
fn settings() -> Settings {
    Settings { lease: Duration::from_secs(5), ..crate::support::settings() }
}

#[test]
fn the_lease_decides_between_two_processes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match std::env::var(PLACE) {
        Ok(place) => runtime.block_on(write(&serde_json::from_str(&place).expect("a place"))),
        Err(_) => runtime.block_on(decide()),
    }
}

/// The other process: writes until it is rejected.
async fn write(place: &Fixture) {
    let workspaces = place.workspaces(settings(), Arc::new(Recorder::default())).await;
    let workspace = workspaces.open(&name(NAME)).await.expect("it opens");
    for number in 0_u64.. {
        let line = format!("echo {} {number} >>written", std::process::id());
        let refused = match workspace.enter().await {
            Ok(pass) => pass.sandbox().commands().run(line.as_str()).await.err().map(|error| error.to_string()),
            Err(error) => Some(error.code().to_owned()),
        };
        match refused {
            None => println!("wrote {number}"),
            Some(reason) => {
                println!("refused {reason}");
                return;
            }
        }
    }
}

/// A handle to the other process.
struct Writer {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Writer {
    fn start(place: &Fixture) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "processes::the_lease_decides_between_two_processes", "--nocapture"]);
        command.env(PLACE, serde_json::to_string(place).expect("JSON")).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let stdout = process.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { process, lines }
    }

    /// The next line of output with this prefix.
    fn next(&self, kind: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("it never {kind}"));
            if let Some(rest) = line.strip_prefix(kind) {
                return rest.trim().to_owned();
            }
        }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn decide() {
    let world = World::new();
    let (_, workspace) = world.workspace(NAME).await;
    workspace.close().await;
    let place = world.fixture();
    let mut writer = Writer::start(&place);
    writer.next("wrote");
    let hasty = Settings { lease_timeout: Duration::from_millis(300), ..settings() };
    let second = place.workspaces(hasty, Arc::new(Recorder::default())).await;
    match second.open(&name(NAME)).await {
        Err(OpenError::Held { owner, .. }) => assert!(owner.contains(&writer.pid().to_string()), "{owner}"),
        other => panic!("it is in use: {other:?}"),
    }

    // Killed: its lease expires, and every acknowledged write is there.
    writer.next("wrote");
    let first = writer.pid();
    writer.process.kill().expect("SIGKILL");
    writer.process.wait().expect("it has ended");
    let acknowledged = writer.lines.try_iter().filter(|line| line.starts_with("wrote ")).last();
    let third = place.workspaces(settings(), Arc::new(Recorder::default())).await;
    let workspace = third.open(&name(NAME)).await.expect("the lease runs out");
    let written = workspace.read_file("written").await.expect("it is there");
    let written = String::from_utf8(written.to_vec()).expect("text");
    if let Some(last) = acknowledged {
        let last = last.replace("wrote ", &format!("{first} "));
        assert!(written.lines().any(|line| line == last), "{last:?} is lost: {written}");
    }
    workspace.close().await;

    // Suspended for longer than its lease: another process holds the workspace, and the first
    // notices before it writes again.
    let writer = Writer::start(&place);
    writer.next("wrote");
    signal(writer.pid(), "STOP");
    let workspace = third.open(&name(NAME)).await.expect("the lease runs out");
    let mine = "echo mine >>written; sed -n '/^mine/,$p' written";
    workspace.exec(mine).await.expect("it can work");
    signal(writer.pid(), "CONT");
    assert_eq!(writer.next("refused"), "lease_lost");
    let after = workspace.exec("sed -n '/^mine/,$p' written").await.expect("it can work");
    let after = after.stdout_text().lines().count();
    // One command may have been in flight when the process was suspended; the next one checks
    // first.
    assert!(after <= 2, "{after} lines");
    workspace.close().await;
}
