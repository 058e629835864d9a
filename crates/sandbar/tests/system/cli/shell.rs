//! `sandbar sandbox shell`, and commands whose behaviour depends on a terminal.

use super::{cli, create};
use crate::support::Server;
use crate::support::program::Program;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// The program in a pseudo terminal, and the user's end of the terminal.
struct Session {
    child: Child,
    screen: File,
    terminal: OwnedFd,
    shown: String,
}

impl Session {
    fn start(cli: &Program, arguments: &[&str]) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&screen).expect("it is ours");
        unlockpt(&screen).expect("it is ours");
        let name = ptsname(&screen, Vec::new()).expect("it has a name");
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
        resize(&terminal, 100, 30);
        let end = || terminal.try_clone().expect("a descriptor");
        let child = cli
            .command(arguments)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the program starts");
        Self { child, screen: screen.into(), terminal, shown: String::new() }
    }

    /// Waits until the program has printed `text` after the text of the previous call.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        let mut piece = [0; 4096];
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !self.shown.contains(text) {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            assert!(!left.is_zero(), "{text:?} is not shown: {:?}", self.shown);
            let timeout = left.try_into().expect("some seconds");
            let mut descriptors = [rustix::event::PollFd::new(&self.screen, rustix::event::PollFlags::IN)];
            if rustix::event::poll(&mut descriptors, Some(&timeout)).expect("it can be asked") > 0 {
                let count = self.screen.read(&mut piece).expect("the screen is open");
                self.shown.push_str(&String::from_utf8_lossy(&piece[..count]));
            }
        }
        let end = self.shown.find(text).expect("it is there") + text.len();
        self.shown.drain(..end);
    }

    fn write(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).expect("settings").local_modes.contains(LocalModes::ICANON)
    }

    fn wait(&mut self) -> ExitStatus {
        crate::support::eventually("the program ends", Duration::from_secs(20), || {
            self.child.try_wait().expect("it is ours")
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &OwnedFd, cols: u16, rows: u16) {
    let size = Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("it is a terminal");
}

#[test]
fn a_shell_has_the_terminal_its_size_and_its_exit_code() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let mut shell = Session::start(&cli, &["shell", &id, "--env", "GREETING=hello"]);
    shell.expect("$ ");
    assert!(shell.is_raw());
    shell.write("stty size; echo $GREETING $TERM $((6*7))\r");
    shell.expect("30 100\r\nhello xterm 42");
    resize(&shell.terminal, 132, 50);
    // The terminal is not the controlling one of any process, so the kernel sends no SIGWINCH.
    testing::signal(shell.child.id(), "WINCH");
    shell.write("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.05; done; echo resi''zed\r");
    shell.expect("resized");
    // The shell gets Ctrl-C, not the program. The command prints a word once it has the terminal.
    shell.write("bash -c 'echo slee\"\"ps; exec sleep 600'\r");
    shell.expect("sleeps");
    shell.write("\x03");
    shell.expect("^C");
    shell.expect("$ ");
    shell.write("exit 3\r");
    assert_eq!(shell.wait().code(), Some(3));
    assert!(!shell.is_raw(), "the terminal is as it was before");
}

#[test]
fn a_shell_ends_when_its_terminal_hangs_up() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let mut shell = Session::start(&cli, &["shell", &id, "--", "cat"]);
    shell.write("echo\r");
    shell.expect("echo\r\necho");
    testing::signal(shell.child.id(), "HUP");
    assert_eq!(shell.wait().code(), Some(129));
    assert!(!shell.is_raw());
    assert_eq!(cli.run(&["exec", &id, "--", "pgrep", "-x", "cat"]).status.code(), Some(1), "it still runs");
    assert!(cli.fails(1, &["shell", &id]).contains("a shell needs a terminal"));
    let mut killed = Session::start(&cli, &["shell", &id]);
    killed.expect("$ ");
    cli.must(&["kill", &id]);
    killed.expect("was killed or reached the end of its lifetime");
    assert_eq!(killed.wait().code(), Some(1));
}

#[test]
fn a_terminal_is_asked_before_all_sandboxes_are_killed() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    for (answer, code, left) in [("\r", 1, id.as_str()), ("no\r", 1, &id), ("y\r", 0, "")] {
        let mut asked = Session::start(&cli, &["kill", "--all"]);
        asked.expect("[y/N]");
        asked.write(answer);
        assert_eq!(asked.wait().code(), Some(code), "{answer:?}");
        assert_eq!(cli.must(&["list", "--quiet"]).trim(), left);
    }
    // Output to a terminal has colours.
    create(&cli);
    Session::start(&cli, &["list"]).expect("\x1b[32mrunning");
}
