//! A process by pid or tag: input, signals, terminal size; all unary calls.

use bytes::Bytes;
use protocol::rpc::process::process_input::Input;
use protocol::rpc::process::process_selector::Selector;
use protocol::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, PTY, ProcessInput, ProcessSelector, SendInputRequest, SendInputResponse,
    SendSignalRequest, SendSignalResponse, UpdateRequest, UpdateResponse, pty,
};

use super::error::{CommandError, ProcessName};
use crate::pty::Size;
use crate::sandbox::Sandbox;
use crate::transport::{Call, Failure, Idempotency};
use crate::version::Feature;

/// Input is sent in chunks of this size, which every server accepts.
const PIECE: usize = 1024 * 1024;

/// A signal to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: requests termination.
    Terminate,
    /// SIGKILL: terminates unconditionally.
    Kill,
}

/// The input channel of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdin,
    Terminal,
}

/// A cloneable handle to a process, usable while another task reads its output.
#[derive(Debug, Clone)]
pub struct Process {
    pub(crate) sandbox: Sandbox,
    pub(crate) name: ProcessName,
    pub(crate) source: Source,
}

impl Process {
    /// Sends input, in order. Dropping the future may leave any prefix sent; nothing is sent twice.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when its input
    /// is closed, [`CommandError::Call`].
    pub async fn send_stdin(&self, input: impl Into<Bytes>) -> Result<(), CommandError> {
        let mut rest: Bytes = input.into();
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE)).to_vec();
            let input = match self.source {
                Source::Stdin => Input::Stdin(piece),
                Source::Terminal => Input::Pty(piece),
            };
            let input = ProcessInput { input: Some(input), ..ProcessInput::default() };
            let message = SendInputRequest {
                process: self.selector().into(),
                input: input.into(),
                ..SendInputRequest::default()
            };
            self.call::<_, SendInputResponse>("send input to", "SendInput", Idempotency::NotIdempotent, &message)
                .await?;
        }
        Ok(())
    }

    /// Closes its standard input, so that it reads EOF.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when it has a
    /// terminal instead, [`CommandError::Call`].
    pub async fn close_stdin(&self) -> Result<(), CommandError> {
        self.sandbox.require(Feature::CloseStdin, &self.what("close the input of"))?;
        let message = CloseStdinRequest { process: self.selector().into(), ..CloseStdinRequest::default() };
        self.call::<_, CloseStdinResponse>("close the input of", "CloseStdin", Idempotency::Idempotent, &message)
            .await?;
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::Call`].
    pub async fn signal(&self, signal: Signal) -> Result<(), CommandError> {
        use protocol::rpc::process::Signal as Wire;
        let (signal, idempotency) = match signal {
            Signal::Terminate => (Wire::SIGNAL_SIGTERM, Idempotency::NotIdempotent),
            // A second SIGKILL finds no process.
            Signal::Kill => (Wire::SIGNAL_SIGKILL, Idempotency::Idempotent),
        };
        let message = SendSignalRequest {
            process: self.selector().into(),
            signal: signal.into(),
            ..SendSignalRequest::default()
        };
        self.call::<_, SendSignalResponse>("send a signal to", "SendSignal", idempotency, &message).await?;
        Ok(())
    }

    /// Kills it. Returns false when it had already ended.
    ///
    /// # Errors
    /// [`CommandError::SandboxGone`], [`CommandError::Call`].
    pub async fn kill(&self) -> Result<bool, CommandError> {
        match self.signal(Signal::Kill).await {
            Ok(()) => Ok(true),
            Err(CommandError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Resizes its terminal.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when it has no
    /// terminal, [`CommandError::Call`].
    pub async fn resize(&self, size: Size) -> Result<(), CommandError> {
        let message =
            UpdateRequest { process: self.selector().into(), pty: terminal(size).into(), ..UpdateRequest::default() };
        self.call::<_, UpdateResponse>("resize the terminal of", "Update", Idempotency::Idempotent, &message).await?;
        Ok(())
    }

    pub(super) fn selector(&self) -> ProcessSelector {
        let selector = match &self.name {
            ProcessName::Pid(pid) => Selector::Pid(*pid),
            ProcessName::Tag(tag) => Selector::Tag(tag.clone()),
        };
        ProcessSelector { selector: Some(selector), ..ProcessSelector::default() }
    }

    pub(super) fn what(&self, verb: &str) -> String {
        format!("{verb} the process with {} in sandbox {}", self.name, self.sandbox.id())
    }

    async fn call<Q: buffa::Message, A: buffa::Message + Default>(
        &self,
        verb: &str,
        method: &str,
        idempotency: Idempotency,
        message: &Q,
    ) -> Result<A, CommandError> {
        let client = self.sandbox.client();
        let call = Call::new(self.what(verb), idempotency, client.deadline());
        let path = format!("/process.Process/{method}");
        let answer = self.sandbox.envd().unary(client.shared(), &call, &path, None, message).await;
        match answer {
            Ok(answer) => Ok(answer),
            // Codes that servers return for a missing input or terminal.
            Err(Failure::Refused(refusal)) if refusal.is("internal") || refusal.is("unknown") => {
                Err(CommandError::InputRefused {
                    id: self.sandbox.id().clone(),
                    process: self.name.clone(),
                    message: refusal.message,
                })
            }
            Err(failure) => Err(CommandError::from_call(&self.sandbox, &call, self.name.clone(), failure).await),
        }
    }
}

pub(crate) fn terminal(size: Size) -> PTY {
    let size = pty::Size { cols: size.cols.into(), rows: size.rows.into(), ..pty::Size::default() };
    PTY { size: size.into(), ..PTY::default() }
}
