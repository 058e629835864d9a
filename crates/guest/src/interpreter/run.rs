//! One piece of code from its order to its last line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::context::{Context, Ready};
use super::language::Language;
use super::lines::{self, Stream, Text};
use crate::process::{Controlled, Exit, Interrupt, Output, Said};
use crate::state::Guest;

/// Code that was interrupted has so long to end; then its interpreter is ended.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(3);
/// An interruption that meets a shell while it starts a command can be lost on both.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(250);
/// After so many that a language has its own way for, what is left is the usual one.
const OWN_WAY: u32 = 4;
/// A silent stream says so often that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How much of what was printed before an answer is read before it: what the kernel can hold, not what others go on writing.
const LAST_WORDS: usize = 64;

/// How a run ended.
enum End {
    Done {
        status: Option<i64>,
    },
    /// The interpreter is gone.
    Died(Exit),
    /// It did not hear the interruption, or answered nonsense.
    Unusable(&'static str),
    /// Nobody reads any more, and the code has ended.
    Left,
}

pub(super) async fn run(
    guest: &Arc<Guest>,
    context: &Context,
    code: &str,
    env: &BTreeMap<String, String>,
    client: mpsc::Sender<Bytes>,
) {
    let mut state = tokio::select! {
        state = context.turn() => state,
        () = client.closed() => return,
    };
    let mut told = Told { client, stdout: Text::default(), stderr: Text::default() };
    let Ready { mut process, lost } = match context.ready(guest, &mut state) {
        Ok(ready) => ready,
        Err(error) => {
            let text = format!("the interpreter cannot be started: {error}");
            told.tell(&lines::error("InterpreterError", &error.to_string(), &text)).await;
            return told.end().await;
        }
    };
    state.runs += 1;
    told.tell(&json!({"type": "number_of_executions", "execution_count": state.runs})).await;
    if let Some(exit) = lost {
        let text = format!("The interpreter had ended ({exit}) and was started again; its variables are lost.\n");
        told.print(Stream::Stderr, text).await;
    }
    // What is left of code that went on after its run belongs to nobody.
    for _ in 0..LAST_WORDS {
        if process.printed().is_none() {
            break;
        }
    }
    match told.follow(&mut process, context.language, &context.language.order(code, env)).await {
        End::Left => state.keep(process),
        End::Done { status } => {
            state.keep(process);
            if let Some(status) = status.filter(|status| *status != 0) {
                let text = format!("the last command ended with exit code {status}");
                told.tell(&lines::error("ExitCode", &status.to_string(), &text)).await;
            }
        }
        End::Died(exit) => told.lost(&format!("it ended ({exit})")).await,
        End::Unusable(why) => told.lost(why).await,
    }
    told.end().await;
}

/// What the client has been told.
struct Told {
    client: mpsc::Sender<Bytes>,
    stdout: Text,
    stderr: Text,
}

impl Told {
    async fn tell(&self, value: &Value) {
        // A client that left needs no answer.
        let _left = self.client.send(lines::line(value)).await;
    }

    async fn end(&self) {
        self.tell(&json!({"type": "end_of_execution"})).await;
    }

    async fn lost(&self, why: &str) {
        let text = format!("The interpreter is gone: {why}. Its variables are lost; the next run starts a new one.");
        self.tell(&lines::error("InterpreterEnded", why, &text)).await;
    }

    async fn print(&self, stream: Stream, text: String) {
        if !text.is_empty() {
            self.tell(&lines::printed(stream, &text)).await;
        }
    }

    async fn output(&mut self, output: Output) {
        let (stream, text) = match output {
            Output::Stdout(bytes) | Output::Terminal(bytes) => (Stream::Stdout, self.stdout.push(&bytes)),
            Output::Stderr(bytes) => (Stream::Stderr, self.stderr.push(&bytes)),
        };
        self.print(stream, text).await;
    }

    /// Everything that was printed before this moment.
    async fn printed(&mut self, process: &mut Controlled) {
        for _ in 0..LAST_WORDS {
            let Some(output) = process.printed() else { return };
            self.output(output).await;
        }
    }

    async fn last_words(&mut self) {
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        self.print(Stream::Stdout, stdout).await;
        self.print(Stream::Stderr, stderr).await;
    }

    async fn follow(&mut self, process: &mut Controlled, language: Language, order: &[u8]) -> End {
        let client = self.client.clone();
        let ordered = tokio::select! {
            ordered = process.order(order) => ordered,
            // Half an order is none, and what follows it would be taken for its other half.
            () = client.closed() => return End::Unusable("its client left before it had taken the code"),
        };
        if ordered.is_err() {
            // Most likely it is ending; one that only closed its ears is ended.
            let ended = tokio::time::timeout(INTERRUPT_PATIENCE, process.ended()).await;
            return ended.map_or(End::Unusable("it takes no more code"), End::Died);
        }
        let mut give_up: Option<Instant> = None;
        let mut interrupted = 0;
        let mut interrupt = |process: &Controlled| {
            process.interrupt(if interrupted < OWN_WAY { language.interrupt() } else { Interrupt::Group });
            interrupted += 1;
        };
        let mut wake = Instant::now() + HEARTBEAT;
        loop {
            let said = tokio::select! {
                biased;
                () = client.closed(), if give_up.is_none() => {
                    give_up = Some(Instant::now() + INTERRUPT_PATIENCE);
                    interrupt(process);
                    wake = Instant::now() + INTERRUPT_AGAIN;
                    continue;
                }
                () = sleep_until(wake) => {
                    match give_up {
                        Some(end) if Instant::now() >= end => {
                            return End::Unusable("it did not stop when it was interrupted");
                        }
                        Some(_) => {
                            interrupt(process);
                            wake = Instant::now() + INTERRUPT_AGAIN;
                        }
                        None => {
                            self.tell(&json!({"type": "keepalive"})).await;
                            wake = Instant::now() + HEARTBEAT;
                        }
                    }
                    continue;
                }
                said = process.next() => said,
            };
            if give_up.is_none() {
                wake = Instant::now() + HEARTBEAT;
            }
            match said {
                Said::Output(output) => self.output(output).await,
                Said::TooMuch => return End::Unusable("its answer has no end"),
                Said::Exit(exit) => {
                    self.printed(process).await;
                    self.last_words().await;
                    return End::Died(exit);
                }
                Said::Answer(answer) => {
                    self.printed(process).await;
                    let Ok(answer) = serde_json::from_slice::<Value>(&answer) else {
                        return End::Unusable("its answer was not understood");
                    };
                    if answer["type"] == "done" {
                        self.last_words().await;
                        return if give_up.is_some() {
                            End::Left
                        } else {
                            End::Done { status: answer["status"].as_i64() }
                        };
                    }
                    self.tell(&answer).await;
                }
            }
        }
    }
}
