//! `sandbar` as users and scripts start it, without the settings of this machine.

use super::server::{Server, command_for};
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use testing::User;

pub(crate) struct Program {
    word: &'static str,
    user: Option<User>,
    variables: Vec<(String, OsString)>,
}

impl Program {
    /// `sandbar WORD`.
    pub(crate) fn new(word: &'static str) -> Self {
        Self { word, user: None, variables: Vec::new() }
    }

    /// Runs the program as this user. `None` is the user who runs the tests.
    pub(crate) fn by(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Sets `SANDBAR_DATA`, by which the program finds the server.
    pub(crate) fn at(self, server: &Server) -> Self {
        self.variable("SANDBAR_DATA", server.data())
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_for(self.user);
        testing::without_settings(&mut command).arg(self.word).args(arguments).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program runs")
    }

    pub(crate) fn run_with(&self, input: &[u8], arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut pipe = child.stdin.take().expect("it is piped");
        let input = input.to_owned();
        let writer = std::thread::spawn(move || pipe.write_all(&input));
        let output = child.wait_with_output().expect("the program ends");
        writer.join().expect("no panic").expect("all input is taken");
        output
    }

    /// Asserts success and returns stdout.
    #[track_caller]
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        text(&done.stdout)
    }

    /// Asserts success and parses stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.must(&[&["--json"], arguments].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"))
    }

    /// Asserts failure with this exit code and returns stderr.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {done:?}");
        text(&done.stderr)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
