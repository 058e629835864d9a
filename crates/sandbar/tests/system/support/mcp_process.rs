//! `sandbar mcp` over stdio, line by line: its end can be awaited and its stderr read.

use super::Program;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

pub(crate) struct McpProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: u32,
}

impl McpProcess {
    /// Starts the program (`sandbar mcp`) and initializes the session.
    pub(crate) fn start(program: &Program, arguments: &[&str]) -> Self {
        let mut command = program.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = Self { child, input, output, calls: 0 };
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        process.request("initialize", &params);
        process.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        process
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("it reads");
    }

    /// Sends a request and returns the response; skips notifications.
    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("readable");
            assert!(read > 0, "the program ended");
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["id"] == self.calls {
                return message["result"].clone();
            }
        }
    }

    /// Calls a tool and returns its result.
    pub(crate) fn call(&mut self, tool: &str, input: &Value) -> Value {
        self.request("tools/call", &json!({ "name": tool, "arguments": input }))
    }

    /// Closes the program's input, waits for its end and returns what it wrote to stderr.
    pub(crate) fn end(self) -> String {
        drop(self.input);
        let done = self.child.wait_with_output().expect("it ends");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}
