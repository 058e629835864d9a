//! Runs one piece of code and streams its events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::context::{Context, ReadyInterpreter};
use super::language::Language;
use super::lines::{self, Stream, Text};
use crate::process::{Controlled, ControlledEvent, Exit, Interrupt, Output};
use crate::state::Guest;

/// How long interrupted code may take to end; then its interpreter is killed.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between interrupts: a shell that is starting a command can miss one.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(250);
/// After this many language-specific interrupts, the usual one is sent.
const MAX_LANGUAGE_INTERRUPTS: u32 = 4;
/// Interval of keepalives on a silent stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Chunks of output read after the result: what the kernel can buffer, not what other processes
/// continue to write.
const MAX_TRAILING_CHUNKS: usize = 64;

/// How a run ended.
enum RunEnd {
    Done {
        status: Option<i64>,
    },
    /// The interpreter process exited.
    Died(Exit),
    /// It ignored the interrupt, or sent an invalid result.
    Unusable(&'static str),
    /// The client disconnected, and the code has ended.
    Disconnected,
}

pub(super) async fn run(
    guest: &Arc<Guest>,
    context: &Context,
    code: &str,
    env: &BTreeMap<String, String>,
    client: mpsc::Sender<Bytes>,
) {
    let mut state = tokio::select! {
        state = context.lock() => state,
        () = client.closed() => return,
    };
    let mut stream = ResponseStream { client, stdout: Text::default(), stderr: Text::default() };
    let ReadyInterpreter { mut process, lost } = match context.take_process(guest, &mut state) {
        Ok(ready) => ready,
        Err(error) => {
            let text = format!("the interpreter cannot be started: {error}");
            stream.send(&lines::error("InterpreterError", &error.to_string(), &text)).await;
            return stream.finish().await;
        }
    };
    state.runs += 1;
    stream.send(&json!({"type": "number_of_executions", "execution_count": state.runs})).await;
    if let Some(exit) = lost {
        let text = format!("The interpreter had ended ({exit}) and was started again; its variables are lost.\n");
        stream.print(Stream::Stderr, text).await;
    }
    // Discards output of code that continued after its run.
    for _ in 0..MAX_TRAILING_CHUNKS {
        if process.take_output().is_none() {
            break;
        }
    }
    match stream.follow(&mut process, context.language, &context.language.encode_request(code, env)).await {
        RunEnd::Disconnected => state.keep(process),
        RunEnd::Done { status } => {
            state.keep(process);
            if let Some(status) = status.filter(|status| *status != 0) {
                let text = format!("the last command ended with exit code {status}");
                stream.send(&lines::error("ExitCode", &status.to_string(), &text)).await;
            }
        }
        RunEnd::Died(exit) => stream.report_lost(&format!("it ended ({exit})")).await,
        RunEnd::Unusable(why) => stream.report_lost(why).await,
    }
    stream.finish().await;
}

/// The stream of response lines to the client.
struct ResponseStream {
    client: mpsc::Sender<Bytes>,
    stdout: Text,
    stderr: Text,
}

impl ResponseStream {
    async fn send(&self, value: &Value) {
        // The client may have disconnected.
        let _left = self.client.send(lines::line(value)).await;
    }

    async fn finish(&self) {
        self.send(&json!({"type": "end_of_execution"})).await;
    }

    async fn report_lost(&self, why: &str) {
        let text = format!("The interpreter is gone: {why}. Its variables are lost; the next run starts a new one.");
        self.send(&lines::error("InterpreterEnded", why, &text)).await;
    }

    async fn print(&self, stream: Stream, text: String) {
        if !text.is_empty() {
            self.send(&lines::printed(stream, &text)).await;
        }
    }

    async fn send_output(&mut self, output: Output) {
        let (stream, text) = match output {
            Output::Stdout(bytes) | Output::Terminal(bytes) => (Stream::Stdout, self.stdout.push(&bytes)),
            Output::Stderr(bytes) => (Stream::Stderr, self.stderr.push(&bytes)),
        };
        self.print(stream, text).await;
    }

    /// Sends everything that was printed before this moment.
    async fn send_pending_output(&mut self, process: &mut Controlled) {
        for _ in 0..MAX_TRAILING_CHUNKS {
            let Some(output) = process.take_output() else { return };
            self.send_output(output).await;
        }
    }

    async fn flush_text(&mut self) {
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        self.print(Stream::Stdout, stdout).await;
        self.print(Stream::Stderr, stderr).await;
    }

    async fn follow(&mut self, process: &mut Controlled, language: Language, request: &[u8]) -> RunEnd {
        let client = self.client.clone();
        let sent = tokio::select! {
            sent = process.send_request(request) => sent,
            // A partial request is unusable: the next one would be read as its rest.
            () = client.closed() => return RunEnd::Unusable("its client left before it had taken the code"),
        };
        if sent.is_err() {
            // Most likely it is exiting; one that only closed its descriptor is killed.
            let ended = tokio::time::timeout(INTERRUPT_TIMEOUT, process.wait_exit()).await;
            return ended.map_or(RunEnd::Unusable("it takes no more code"), RunEnd::Died);
        }
        let mut kill_at: Option<Instant> = None;
        let mut interrupted = 0;
        let mut interrupt = |process: &Controlled| {
            process.interrupt(if interrupted < MAX_LANGUAGE_INTERRUPTS {
                language.interrupt()
            } else {
                Interrupt::Group
            });
            interrupted += 1;
        };
        let mut next_tick = Instant::now() + KEEPALIVE_INTERVAL;
        loop {
            let event = tokio::select! {
                biased;
                () = client.closed(), if kill_at.is_none() => {
                    kill_at = Some(Instant::now() + INTERRUPT_TIMEOUT);
                    interrupt(process);
                    next_tick = Instant::now() + INTERRUPT_INTERVAL;
                    continue;
                }
                () = sleep_until(next_tick) => {
                    match kill_at {
                        Some(end) if Instant::now() >= end => {
                            return RunEnd::Unusable("it did not stop when it was interrupted");
                        }
                        Some(_) => {
                            interrupt(process);
                            next_tick = Instant::now() + INTERRUPT_INTERVAL;
                        }
                        None => {
                            self.send(&json!({"type": "keepalive"})).await;
                            next_tick = Instant::now() + KEEPALIVE_INTERVAL;
                        }
                    }
                    continue;
                }
                event = process.next() => event,
            };
            if kill_at.is_none() {
                next_tick = Instant::now() + KEEPALIVE_INTERVAL;
            }
            match event {
                ControlledEvent::Output(output) => self.send_output(output).await,
                ControlledEvent::TooLarge => return RunEnd::Unusable("its answer has no end"),
                ControlledEvent::Exit(exit) => {
                    self.send_pending_output(process).await;
                    self.flush_text().await;
                    return RunEnd::Died(exit);
                }
                ControlledEvent::Response(response) => {
                    self.send_pending_output(process).await;
                    let Ok(response) = serde_json::from_slice::<Value>(&response) else {
                        return RunEnd::Unusable("its answer was not understood");
                    };
                    if response["type"] == "done" {
                        self.flush_text().await;
                        return if kill_at.is_some() {
                            RunEnd::Disconnected
                        } else {
                            RunEnd::Done { status: response["status"].as_i64() }
                        };
                    }
                    self.send(&response).await;
                }
            }
        }
    }
}
