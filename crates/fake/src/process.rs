//! Scripted commands and their event streams.

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

use crate::exchange::{CutConnection, FakeContent, FakeRequest, FakeResponse, Pieces, empty};

/// The behaviour of a command.
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

    /// Also prints this to standard error.
    #[must_use]
    pub fn stderr(mut self, text: impl Into<Bytes>) -> Self {
        self.stderr = text.into();
        self
    }

    /// Exits with this code.
    #[must_use]
    pub fn exit(mut self, code: i32) -> Self {
        self.exit = code;
        self
    }

    /// Prints, then runs until a signal or the end of its sandbox.
    #[must_use]
    pub fn runs_until_killed(mut self) -> Self {
        self.runs_on = true;
        self
    }

    pub(crate) fn exit_code(&self) -> i32 {
        self.exit
    }
}

impl From<&'static str> for Script {
    fn from(stdout: &'static str) -> Self {
        Self::stdout(stdout)
    }
}

/// The processes of one sandbox, ended ones included, whose exit can still be queried.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    by_pid: BTreeMap<u32, FakeProcess>,
}

#[derive(Debug)]
struct FakeProcess {
    config: ProcessConfig,
    tag: Option<String>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
enum State {
    Running,
    Ended(EndEvent),
    /// Its sandbox ended: streams break off.
    CutConnection,
}

/// The message encoding: binary or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Binary,
    Json,
}

impl Codec {
    pub(crate) fn for_request(request: &FakeRequest) -> Self {
        let json = request.header("content-type").is_some_and(|kind| kind.contains("json"));
        if json { Self::Json } else { Self::Binary }
    }

    pub(crate) fn decode<M: Message + Default + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, FakeResponse> {
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

    pub(crate) fn unary<M: Message + Serialize>(self, message: &M) -> FakeResponse {
        let kind = match self {
            Self::Binary => "application/proto",
            Self::Json => "application/json",
        };
        FakeResponse::new(200, kind, self.encode(message))
    }

    fn stream(self, pieces: Pieces) -> FakeResponse {
        let kind = match self {
            Self::Binary => "application/connect+proto",
            Self::Json => "application/connect+json",
        };
        FakeResponse { content: FakeContent::Stream(pieces), ..empty(200).with("content-type", kind) }
    }

    /// An event in an envelope; start and connect respond in the same form.
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

/// An error response of a unary call.
pub(crate) fn rpc_error(code: &str, message: &str) -> FakeResponse {
    let status = match code {
        "invalid_argument" | "failed_precondition" => 400,
        "unauthenticated" => 401,
        "not_found" => 404,
        "already_exists" => 409,
        "unimplemented" => 501,
        _ => 500,
    };
    let body = serde_json::json!({ "code": code, "message": message }).to_string();
    FakeResponse::new(status, "application/json", body)
}

pub(crate) fn handle(
    processes: &mut Processes,
    scripts: &HashMap<String, Script>,
    http: &FakeRequest,
    method: &str,
) -> Result<FakeResponse, FakeResponse> {
    let codec = Codec::for_request(http);
    match method {
        "Start" => {
            let request: StartRequest = codec.decode(http.body.get(5..).unwrap_or_default())?;
            Ok(processes.start(request, scripts, http, codec))
        }
        "Connect" => {
            let request: ConnectRequest = codec.decode(http.body.get(5..).unwrap_or_default())?;
            Ok(processes.connect(request.process.as_option(), http, codec))
        }
        "List" => Ok(codec.unary(&processes.list())),
        "SendSignal" => {
            let request: SendSignalRequest = codec.decode(&http.body)?;
            let process = processes.find_running(request.process.as_option())?;
            let name = match request.signal.as_known() {
                Some(Signal::SIGNAL_SIGKILL) => "signal: killed",
                Some(Signal::SIGNAL_SIGTERM) => "signal: terminated",
                _ => return Err(rpc_error("unimplemented", "no such signal")),
            };
            let end = EndEvent { exit_code: -1, status: name.into(), error: Some(name.into()), ..EndEvent::default() };
            process.state.send_replace(State::Ended(end));
            Ok(codec.unary(&SendSignalResponse::default()))
        }
        // Accepted and ignored.
        "SendInput" => Ok(codec.unary(&SendInputResponse::default())),
        "CloseStdin" => Ok(codec.unary(&CloseStdinResponse::default())),
        "Update" => Ok(codec.unary(&UpdateResponse::default())),
        _ => Err(rpc_error("unimplemented", "the fake does not have this call")),
    }
}

impl Processes {
    /// Breaks off every stream, as the end of a sandbox does.
    pub(crate) fn cut(&mut self) {
        for (_, process) in std::mem::take(&mut self.by_pid) {
            process.state.send_replace(State::CutConnection);
        }
    }

    fn start(
        &mut self,
        request: StartRequest,
        scripts: &HashMap<String, Script>,
        http: &FakeRequest,
        codec: Codec,
    ) -> FakeResponse {
        let StartRequest { process, tag, pty, .. } = request;
        let config = process.as_option().cloned().unwrap_or_default();
        let line = line(&config);
        let unknown = || Script::default().stderr(format!("bash: line 1: {line}: command not found\n")).exit(127);
        let script = scripts.get(&line).cloned().unwrap_or_else(unknown);
        let pid = 100 + u32::try_from(self.by_pid.len()).unwrap_or(0);
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
        self.by_pid.insert(pid, FakeProcess { config, tag, state });
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
        codec.stream(stream_events(first, watching, http, codec))
    }

    fn connect(&mut self, selector: Option<&ProcessSelector>, request: &FakeRequest, codec: Codec) -> FakeResponse {
        match self.find_any(selector) {
            Some((pid, process)) => {
                let first = vec![codec.event(started(pid))];
                codec.stream(stream_events(first, process.state.subscribe(), request, codec))
            }
            None => codec.stream(Box::pin(stream::iter([Ok(last(Some(("not_found", "process not found"))))]))),
        }
    }

    fn find_any(&self, selector: Option<&ProcessSelector>) -> Option<(u32, &FakeProcess)> {
        let mut process = self.by_pid.iter().map(|(pid, process)| (*pid, process));
        match selector?.selector.as_ref()? {
            Selector::Pid(wanted) => process.find(|(pid, _)| pid == wanted),
            Selector::Tag(wanted) => process.find(|(_, process)| process.tag.as_ref() == Some(wanted)),
        }
    }

    /// Finds a running process.
    fn find_running(&self, selector: Option<&ProcessSelector>) -> Result<&FakeProcess, FakeResponse> {
        let found = self.find_any(selector).filter(|(_, process)| matches!(*process.state.borrow(), State::Running));
        found.map(|(_, process)| process).ok_or_else(|| rpc_error("not_found", "process not found"))
    }

    fn list(&self) -> ListResponse {
        let running = self.by_pid.iter().filter(|(_, process)| matches!(*process.state.borrow(), State::Running));
        let info = |(pid, process): (&u32, &FakeProcess)| ProcessInfo {
            config: process.config.clone().into(),
            pid: *pid,
            tag: process.tag.clone(),
            ..ProcessInfo::default()
        };
        ListResponse { processes: running.map(info).collect(), ..ListResponse::default() }
    }
}

/// The key of a scripted command: the shell line, or the joined words.
fn line(config: &ProcessConfig) -> String {
    match (config.cmd.as_str(), config.args.as_slice()) {
        ("/bin/bash", [login, run, line]) if login == "-l" && run == "-c" => line.clone(),
        (program, arguments) => [&[program.to_owned()], arguments].concat().join(" "),
    }
}

fn started(pid: u32) -> process_event::Event {
    process_event::Event::Start(Box::new(StartEvent { pid, ..StartEvent::default() }))
}

/// Streams the first events, then keepalives until the process ends, then its exit.
fn stream_events(first: Vec<Bytes>, watching: watch::Receiver<State>, request: &FakeRequest, codec: Codec) -> Pieces {
    let seconds = request.header(protocol::headers::KEEPALIVE_PING_INTERVAL).and_then(|text| text.parse().ok());
    let interval = Duration::from_secs(seconds.unwrap_or(90).max(1));
    let limit = request.header(protocol::headers::CONNECT_TIMEOUT_MS).and_then(|text| text.parse().ok());
    let deadline = limit.filter(|limit| *limit > 0).map(|limit| Instant::now() + Duration::from_millis(limit));
    let rest = stream::unfold(Some(watching), move |watching| async move {
        let mut watching = watching?;
        let state = watching.borrow_and_update().clone();
        match state {
            State::Ended(end) => {
                let end = codec.event(process_event::Event::End(Box::new(end)));
                return Some((Ok([end, last(None)].concat().into()), None));
            }
            State::CutConnection => return Some((Err(CutConnection), None)),
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
                // The sandbox was dropped with the sender.
                let piece = if changed.is_ok() { Ok(Bytes::new()) } else { Err(CutConnection) };
                Some((piece, changed.is_ok().then_some(watching)))
            }
            () = over => Some((Ok(last(Some(("deadline_exceeded", "the process ran out of time")))), None)),
            () = silence => {
                let alive = process_event::Event::Keepalive(Box::default());
                Some((Ok(codec.event(alive)), Some(watching)))
            }
        }
    });
    // An empty piece carries no event.
    let rest = rest.filter(|piece| std::future::ready(!matches!(piece, Ok(piece) if piece.is_empty())));
    Box::pin(stream::iter(first.into_iter().map(Ok)).chain(rest))
}
