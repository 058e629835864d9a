//! Commands that do what a test says, and the streams that tell of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use buffa::Message;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use protocol::rpc::process::process_event::{self, DataEvent, EndEvent, StartEvent, data_event};
use protocol::rpc::process::process_selector::Selector;
use protocol::rpc::process::{
    CloseStdinResponse, ConnectRequest, ListResponse, ProcessConfig, ProcessEvent, ProcessInfo, ProcessSelector,
    SendInputResponse, SendSignalRequest, SendSignalResponse, Signal, StartRequest, StartResponse, UpdateResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use super::exchange::{Answer, Asked, Content, Cut, Pieces, empty};
use crate::transport::connect;

/// What a command does.
#[derive(Debug, Clone, Default)]
pub struct Script {
    stdout: Bytes,
    stderr: Bytes,
    exit: i32,
    runs_on: bool,
}

impl Script {
    /// Prints this and succeeds.
    pub fn stdout(text: impl Into<Bytes>) -> Self {
        Self { stdout: text.into(), ..Self::default() }
    }

    /// Prints this as errors too.
    #[must_use]
    pub fn stderr(mut self, text: impl Into<Bytes>) -> Self {
        self.stderr = text.into();
        self
    }

    /// Ends with this code.
    #[must_use]
    pub fn exit(mut self, code: i32) -> Self {
        self.exit = code;
        self
    }

    /// Prints, and then runs until it gets a signal or its sandbox ends.
    #[must_use]
    pub fn runs_until_killed(mut self) -> Self {
        self.runs_on = true;
        self
    }

    pub(super) fn exit_code(&self) -> i32 {
        self.exit
    }
}

impl From<&'static str> for Script {
    fn from(stdout: &'static str) -> Self {
        Self::stdout(stdout)
    }
}

/// The processes of one sandbox, ended ones included: their exit can still be asked for.
#[derive(Debug, Default)]
pub(super) struct Processes {
    held: BTreeMap<u32, HeldProcess>,
}

#[derive(Debug)]
struct HeldProcess {
    config: ProcessConfig,
    tag: Option<String>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
enum State {
    Running,
    Ended(EndEvent),
    /// Its sandbox is gone: streams break off.
    Cut,
}

/// How messages are written: binary, or as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Binary,
    Json,
}

impl Codec {
    pub(super) fn of(asked: &Asked) -> Self {
        let json = asked.header("content-type").is_some_and(|kind| kind.contains("json"));
        if json { Self::Json } else { Self::Binary }
    }

    pub(super) fn decode<M: Message + Default + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, Answer> {
        let decoded = match self {
            Self::Binary => M::decode_from_slice(bytes).map_err(|error| error.to_string()),
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        };
        decoded.map_err(|error| rpc_error("invalid_argument", &error))
    }

    fn encode<M: Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            Self::Binary => message.encode_to_vec(),
            Self::Json => serde_json::to_vec(message).expect("messages have a form in JSON"),
        }
    }

    pub(super) fn unary<M: Message + Serialize>(self, message: &M) -> Answer {
        let kind = match self {
            Self::Binary => connect::UNARY,
            Self::Json => "application/json",
        };
        Answer::new(200, kind, self.encode(message))
    }

    fn stream(self, pieces: Pieces) -> Answer {
        let kind = match self {
            Self::Binary => connect::STREAM,
            Self::Json => "application/connect+json",
        };
        Answer { content: Content::Stream(pieces), ..empty(200).with("content-type", kind) }
    }

    /// An event in an envelope; start and connect answer in the same form.
    fn event(self, event: process_event::Event) -> Bytes {
        let event = ProcessEvent { event: Some(event), ..ProcessEvent::default() };
        envelope(0, &self.encode(&StartResponse { event: event.into(), ..StartResponse::default() }))
    }
}

fn envelope(flag: u8, payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).expect("the fake's messages are small").to_be_bytes();
    [&[flag], &length[..], payload].concat().into()
}

/// The last envelope of a stream.
fn last(error: Option<(&str, &str)>) -> Bytes {
    let text = match error {
        Some((code, message)) => serde_json::json!({ "error": { "code": code, "message": message } }).to_string(),
        None => "{}".to_owned(),
    };
    envelope(2, text.as_bytes())
}

/// A refusal of a unary call.
pub(super) fn rpc_error(code: &str, message: &str) -> Answer {
    let status = match code {
        "invalid_argument" | "failed_precondition" => 400,
        "unauthenticated" => 401,
        "not_found" => 404,
        "already_exists" => 409,
        "unimplemented" => 501,
        _ => 500,
    };
    let body = serde_json::json!({ "code": code, "message": message }).to_string();
    Answer::new(status, "application/json", body)
}

pub(super) fn answer(
    processes: &mut Processes,
    scripts: &HashMap<String, Script>,
    asked: &Asked,
    method: &str,
) -> Result<Answer, Answer> {
    let codec = Codec::of(asked);
    match method {
        "Start" => {
            let request: StartRequest = codec.decode(asked.body.get(5..).unwrap_or_default())?;
            Ok(processes.start(request, scripts, asked, codec))
        }
        "Connect" => {
            let request: ConnectRequest = codec.decode(asked.body.get(5..).unwrap_or_default())?;
            Ok(processes.connect(request.process.as_option(), asked, codec))
        }
        "List" => Ok(codec.unary(&processes.list())),
        "SendSignal" => {
            let request: SendSignalRequest = codec.decode(&asked.body)?;
            let held = processes.find(request.process.as_option())?;
            let name = match request.signal.as_known() {
                Some(Signal::SIGNAL_SIGKILL) => "signal: killed",
                Some(Signal::SIGNAL_SIGTERM) => "signal: terminated",
                _ => return Err(rpc_error("unimplemented", "no such signal")),
            };
            let end = EndEvent { exit_code: -1, status: name.into(), error: Some(name.into()), ..EndEvent::default() };
            held.state.send_replace(State::Ended(end));
            Ok(codec.unary(&SendSignalResponse::default()))
        }
        // Taken, and looked at by nobody.
        "SendInput" => Ok(codec.unary(&SendInputResponse::default())),
        "CloseStdin" => Ok(codec.unary(&CloseStdinResponse::default())),
        "Update" => Ok(codec.unary(&UpdateResponse::default())),
        _ => Err(rpc_error("unimplemented", "the fake does not have this call")),
    }
}

impl Processes {
    /// Breaks off every stream, as the end of a sandbox does.
    pub(super) fn cut(&mut self) {
        for (_, held) in std::mem::take(&mut self.held) {
            held.state.send_replace(State::Cut);
        }
    }

    fn start(
        &mut self,
        request: StartRequest,
        scripts: &HashMap<String, Script>,
        asked: &Asked,
        codec: Codec,
    ) -> Answer {
        let StartRequest { process, tag, pty, .. } = request;
        let config = process.as_option().cloned().unwrap_or_default();
        let line = line(&config);
        let unknown = || Script::default().stderr(format!("bash: line 1: {line}: command not found\n")).exit(127);
        let script = scripts.get(&line).cloned().unwrap_or_else(unknown);
        let pid = 100 + u32::try_from(self.held.len()).unwrap_or(0);
        let status = format!("exit status {}", script.exit);
        let end = EndEvent {
            exit_code: script.exit,
            exited: true,
            error: (script.exit != 0).then(|| status.clone()),
            status,
            ..EndEvent::default()
        };
        let state = if script.runs_on { State::Running } else { State::Ended(end) };
        let (state, watching) = watch::channel(state);
        self.held.insert(pid, HeldProcess { config, tag, state });
        let on_terminal = pty.as_option().is_some();
        let mut first = vec![codec.event(started(pid))];
        for (content, is_error) in [(script.stdout, false), (script.stderr, true)] {
            let output = match (on_terminal, is_error) {
                (true, _) => data_event::Output::Pty(content.to_vec()),
                (false, true) => data_event::Output::Stderr(content.to_vec()),
                (false, false) => data_event::Output::Stdout(content.to_vec()),
            };
            if !content.is_empty() {
                let data = DataEvent { output: Some(output), ..DataEvent::default() };
                first.push(codec.event(process_event::Event::Data(Box::new(data))));
            }
        }
        codec.stream(told(first, watching, asked, codec))
    }

    fn connect(&mut self, selector: Option<&ProcessSelector>, asked: &Asked, codec: Codec) -> Answer {
        match self.named(selector) {
            Some((pid, held)) => {
                let first = vec![codec.event(started(pid))];
                codec.stream(told(first, held.state.subscribe(), asked, codec))
            }
            None => codec.stream(Box::pin(stream::iter([Ok(last(Some(("not_found", "process not found"))))]))),
        }
    }

    fn named(&self, selector: Option<&ProcessSelector>) -> Option<(u32, &HeldProcess)> {
        let mut held = self.held.iter().map(|(pid, held)| (*pid, held));
        match selector?.selector.as_ref()? {
            Selector::Pid(wanted) => held.find(|(pid, _)| pid == wanted),
            Selector::Tag(wanted) => held.find(|(_, held)| held.tag.as_ref() == Some(wanted)),
        }
    }

    /// One that runs.
    fn find(&self, selector: Option<&ProcessSelector>) -> Result<&HeldProcess, Answer> {
        let found = self.named(selector).filter(|(_, held)| matches!(*held.state.borrow(), State::Running));
        found.map(|(_, held)| held).ok_or_else(|| rpc_error("not_found", "process not found"))
    }

    fn list(&self) -> ListResponse {
        let running = self.held.iter().filter(|(_, held)| matches!(*held.state.borrow(), State::Running));
        let info = |(pid, held): (&u32, &HeldProcess)| ProcessInfo {
            config: held.config.clone().into(),
            pid: *pid,
            tag: held.tag.clone(),
            ..ProcessInfo::default()
        };
        ListResponse { processes: running.map(info).collect(), ..ListResponse::default() }
    }
}

/// What a test calls the command: the shell's line, or the words.
fn line(config: &ProcessConfig) -> String {
    match (config.cmd.as_str(), config.args.as_slice()) {
        ("/bin/bash", [login, run, line]) if login == "-l" && run == "-c" => line.clone(),
        (program, arguments) => [&[program.to_owned()], arguments].concat().join(" "),
    }
}

fn started(pid: u32) -> process_event::Event {
    process_event::Event::Start(Box::new(StartEvent { pid, ..StartEvent::default() }))
}

/// The first events, then signs of life until the process ends, then how it ended.
fn told(first: Vec<Bytes>, watching: watch::Receiver<State>, asked: &Asked, codec: Codec) -> Pieces {
    let seconds = asked.header(protocol::headers::KEEPALIVE_PING_INTERVAL).and_then(|text| text.parse().ok());
    let interval = Duration::from_secs(seconds.unwrap_or(90).max(1));
    let limit = asked.header(protocol::headers::CONNECT_TIMEOUT_MS).and_then(|text| text.parse().ok());
    let deadline = limit.filter(|limit| *limit > 0).map(|limit| Instant::now() + Duration::from_millis(limit));
    let rest = stream::unfold(Some(watching), move |watching| async move {
        let mut watching = watching?;
        let state = watching.borrow_and_update().clone();
        match state {
            State::Ended(end) => {
                let end = codec.event(process_event::Event::End(Box::new(end)));
                return Some((Ok([end, last(None)].concat().into()), None));
            }
            State::Cut => return Some((Err(Cut), None)),
            State::Running => {}
        }
        let silence = tokio::time::sleep(interval);
        let over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = watching.changed() => {
                // Whoever held it is gone with the sandbox.
                let piece = if changed.is_ok() { Ok(Bytes::new()) } else { Err(Cut) };
                Some((piece, changed.is_ok().then_some(watching)))
            }
            () = over => Some((Ok(last(Some(("deadline_exceeded", "the process ran out of time")))), None)),
            () = silence => {
                let alive = process_event::Event::Keepalive(Box::default());
                Some((Ok(codec.event(alive)), Some(watching)))
            }
        }
    });
    // An empty piece is a step without news.
    let rest = rest.filter(|piece| std::future::ready(!matches!(piece, Ok(piece) if piece.is_empty())));
    Box::pin(stream::iter(first.into_iter().map(Ok)).chain(rest))
}
