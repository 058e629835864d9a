//! The `process.Process` service: requests, event streams, and the error codes that clients expect.

use std::sync::Arc;

use connectrpc::{ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::{Stream, StreamExt, stream};
use protocol::rpc::process::process_event::{DataEvent, KeepAlive, StartEvent, data_event};
use protocol::rpc::process::process_input::Input;
use protocol::rpc::process::stream_input_request::Event as InputEvent;
use protocol::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest, ListResponse, Process,
    ProcessEvent, ProcessInfo, ProcessInput, ProcessSelector, SendInputRequest, SendInputResponse, SendSignalRequest,
    SendSignalResponse, Signal, StartRequest, StartResponse, StreamInputRequest, StreamInputResponse, UpdateRequest,
    UpdateResponse,
};
use tokio::sync::mpsc;

use super::input::InputError;
use super::launch::LaunchError;
use super::output::Output;
use super::running::{Event, Running};
use super::{SelectedProcess, number};
use crate::http::caller;
use crate::state::Guest;
use crate::streams::{StreamEvent, StreamTiming, deadline};

pub(crate) struct ProcessService(pub(crate) Arc<Guest>);

impl Process for ProcessService {
    async fn list(
        &self,
        ctx: RequestContext,
        _request: ServiceRequest<'_, ListRequest>,
    ) -> ServiceResult<ListResponse> {
        caller::check(&self.0, &ctx)?;
        let running = self.0.processes.running();
        let processes = running.iter().map(|process| ProcessInfo {
            config: process.config.clone().into(),
            pid: number(process),
            tag: process.tag.clone(),
            ..ProcessInfo::default()
        });
        Response::ok(ListResponse { processes: processes.collect(), ..ListResponse::default() })
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, ConnectRequest>,
    ) -> ServiceResult<ServiceStream<ConnectResponse>> {
        caller::check(&self.0, &ctx)?;
        let request = request.to_owned_message();
        let timing = StreamTiming::from_context(&ctx);
        let (pid, events) = match self.find(&request.process)? {
            SelectedProcess::Running(process) => (number(&process), process.listen()),
            SelectedProcess::EndedProcess { pid, ending } => {
                let (sender, events) = mpsc::channel(1);
                sender.try_send(Event::End(ending)).expect("a new channel has capacity");
                (pid, events)
            }
        };
        let answer = |event: ProcessEvent| ConnectResponse { event: event.into(), ..ConnectResponse::default() };
        Response::stream_ok(stream_events(pid, events, timing, Audience::Joined).map(move |event| event.map(answer)))
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, StartRequest>,
    ) -> ServiceResult<ServiceStream<StartResponse>> {
        let user = caller::user(&self.0, &ctx)?;
        // The timeout of this call limits the process, not the stream: it applies after a
        // disconnect too.
        let started = self.0.processes.start(&self.0, user, request.to_owned_message(), deadline(&ctx));
        let (pid, events) = started.map_err(|error| match error {
            LaunchError::Guest(_) | LaunchError::AtLimit => ConnectError::internal(error.to_string()),
            _ => ConnectError::invalid_argument(error.to_string()),
        })?;
        let answer = |event: ProcessEvent| StartResponse { event: event.into(), ..StartResponse::default() };
        let timing = StreamTiming::without_deadline(&ctx);
        Response::stream_ok(stream_events(pid, events, timing, Audience::Starter).map(move |event| event.map(answer)))
    }

    async fn update(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, UpdateRequest>,
    ) -> ServiceResult<UpdateResponse> {
        caller::check(&self.0, &ctx)?;
        let request = request.to_owned_message();
        let process = self.running(&request.process)?;
        if let Some(pty) = request.pty.as_option() {
            let bounded = |size: u32| u16::try_from(size).unwrap_or(u16::MAX);
            process
                .input
                .resize(bounded(pty.size.cols), bounded(pty.size.rows))
                .map_err(|error| input_error(&error))?;
        }
        Response::ok(UpdateResponse::default())
    }

    async fn stream_input(
        &self,
        ctx: RequestContext,
        mut requests: InboundStream<StreamInputRequest>,
    ) -> ServiceResult<StreamInputResponse> {
        caller::check(&self.0, &ctx)?;
        let mut process = None;
        while let Some(request) = requests.next().await {
            match (request?.to_owned_message().event, &process) {
                (Some(InputEvent::Start(start)), _) => process = Some(self.running(&start.process)?),
                (Some(InputEvent::Data(data)), Some(process)) => write_input(process, &data.input).await?,
                (Some(InputEvent::Data(_)), None) => {
                    return Err(ConnectError::invalid_argument("the first message must select a process"));
                }
                (Some(InputEvent::Keepalive(_)) | None, _) => {}
            }
        }
        Response::ok(StreamInputResponse::default())
    }

    async fn send_input(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, SendInputRequest>,
    ) -> ServiceResult<SendInputResponse> {
        caller::check(&self.0, &ctx)?;
        let request = request.to_owned_message();
        write_input(&*self.running(&request.process)?, &request.input).await?;
        Response::ok(SendInputResponse::default())
    }

    async fn send_signal(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, SendSignalRequest>,
    ) -> ServiceResult<SendSignalResponse> {
        caller::check(&self.0, &ctx)?;
        let request = request.to_owned_message();
        let process = self.running(&request.process)?;
        let signal = match request.signal.as_known() {
            Some(Signal::SIGNAL_SIGKILL) => rustix::process::Signal::KILL,
            Some(Signal::SIGNAL_SIGTERM) => rustix::process::Signal::TERM,
            Some(Signal::SIGNAL_UNSPECIFIED) | None => {
                return Err(ConnectError::unimplemented(format!("signal {} cannot be sent", request.signal)));
            }
        };
        process.signal(signal).map_err(|errno| ConnectError::internal(format!("cannot send the signal: {errno}")))?;
        Response::ok(SendSignalResponse::default())
    }

    async fn close_stdin(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, CloseStdinRequest>,
    ) -> ServiceResult<CloseStdinResponse> {
        caller::check(&self.0, &ctx)?;
        let request = request.to_owned_message();
        let process = self.running(&request.process)?;
        process.input.close().await.map_err(|error| ConnectError::unknown(error.to_string()))?;
        Response::ok(CloseStdinResponse::default())
    }
}

impl ProcessService {
    fn find(&self, selector: &ProcessSelector) -> Result<SelectedProcess, ConnectError> {
        use protocol::rpc::process::process_selector::Selector;
        let Some(selector) = &selector.selector else {
            return Err(ConnectError::unimplemented("a process is selected by pid or by tag"));
        };
        self.0.processes.find(selector).ok_or_else(|| {
            ConnectError::not_found(match selector {
                Selector::Pid(pid) => format!("process with pid {pid} not found"),
                Selector::Tag(tag) => format!("process with tag {tag} not found"),
            })
        })
    }

    /// Input and signals require a running process.
    fn running(&self, selector: &ProcessSelector) -> Result<Arc<Running>, ConnectError> {
        match self.find(selector)? {
            SelectedProcess::Running(process) => Ok(process),
            SelectedProcess::EndedProcess { pid, .. } => {
                Err(ConnectError::not_found(format!("process with pid {pid} has ended")))
            }
        }
    }
}

async fn write_input(process: &Running, input: &ProcessInput) -> Result<(), ConnectError> {
    let written = match &input.input {
        Some(Input::Stdin(bytes)) => process.input.write_stdin(bytes).await,
        Some(Input::Pty(bytes)) => process.input.write_terminal(bytes).await,
        None => return Err(ConnectError::unimplemented("input is either stdin or pty")),
    };
    written.map_err(|error| input_error(&error))
}

fn input_error(error: &InputError) -> ConnectError {
    ConnectError::internal(error.to_string())
}

/// The receiver of events: the deadline of `Start` is an error for its caller and an ordinary end
/// for the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    Starter,
    Joined,
}

enum Stage {
    Begin,
    Middle,
    Done,
}

/// Streams the start, all events and the end.
fn stream_events(
    pid: u32,
    events: mpsc::Receiver<Event>,
    timing: StreamTiming,
    audience: Audience,
) -> impl Stream<Item = Result<ProcessEvent, ConnectError>> + Send + 'static {
    stream::unfold((events, Stage::Begin), move |(mut events, stage)| async move {
        match stage {
            Stage::Begin => {
                let start = StartEvent { pid, ..StartEvent::default() };
                Some((Ok(event(start)), (events, Stage::Middle)))
            }
            Stage::Middle => {
                let (message, next) = match timing.next(&mut events).await {
                    StreamEvent::Item(Event::Output(output)) => (Ok(event(data(output))), Stage::Middle),
                    StreamEvent::Item(Event::End(ending)) if ending.expired && audience == Audience::Starter => {
                        (Err(ConnectError::deadline_exceeded("the process was killed at its timeout")), Stage::Done)
                    }
                    StreamEvent::Item(Event::End(ending)) => (Ok(event(ending.exit.event())), Stage::Done),
                    StreamEvent::Silence => (Ok(event(KeepAlive::default())), Stage::Middle),
                    StreamEvent::Expired => {
                        (Err(ConnectError::deadline_exceeded("the stream reached its timeout")), Stage::Done)
                    }
                    StreamEvent::Over => (Err(ConnectError::internal("the process was lost")), Stage::Done),
                };
                Some((message, (events, next)))
            }
            Stage::Done => None,
        }
    })
}

fn event(event: impl Into<protocol::rpc::process::process_event::Event>) -> ProcessEvent {
    ProcessEvent { event: Some(event.into()), ..ProcessEvent::default() }
}

fn data(output: Output) -> DataEvent {
    let output = match output {
        Output::Stdout(bytes) => data_event::Output::Stdout(bytes.into()),
        Output::Stderr(bytes) => data_event::Output::Stderr(bytes.into()),
        Output::Terminal(bytes) => data_event::Output::Pty(bytes.into()),
    };
    DataEvent { output: Some(output), ..DataEvent::default() }
}
