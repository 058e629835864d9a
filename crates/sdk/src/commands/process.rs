//! A process by its name: input, signals, terminal size. What needs no stream.

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
use crate::transport::{Call, Failure, Repeat};
use crate::version::Feature;

/// Input is sent in pieces of this size, which every server takes.
const PIECE: usize = 1024 * 1024;

/// A signal to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Asks it to end: SIGTERM.
    Terminate,
    /// Ends it: SIGKILL.
    Kill,
}

/// Where a process takes its input from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdin,
    Terminal,
}

/// A handle to a process that may be cloned and given away, while somebody else reads its output.
#[derive(Debug, Clone)]
pub struct Process {
    pub(crate) sandbox: Sandbox,
    pub(crate) name: ProcessName,
    pub(crate) source: Source,
}

impl Process {
    /// Sends input to it, in order. Dropping the future may leave any part of it sent; it is never sent twice.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when its input is closed.
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
            self.call::<_, SendInputResponse>("send input to", "SendInput", Repeat::Never, &message).await?;
        }
        Ok(())
    }

    /// Ends its standard input, so that what reads it to the end goes on.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when it has a terminal instead.
    pub async fn close_stdin(&self) -> Result<(), CommandError> {
        self.sandbox.require(Feature::CloseStdin, &self.what("close the input of"))?;
        let message = CloseStdinRequest { process: self.selector().into(), ..CloseStdinRequest::default() };
        self.call::<_, CloseStdinResponse>("close the input of", "CloseStdin", Repeat::Harmless, &message).await?;
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended.
    pub async fn signal(&self, signal: Signal) -> Result<(), CommandError> {
        use protocol::rpc::process::Signal as Wire;
        let (signal, repeat) = match signal {
            Signal::Terminate => (Wire::SIGNAL_SIGTERM, Repeat::Never),
            // The second of two kills finds nobody.
            Signal::Kill => (Wire::SIGNAL_SIGKILL, Repeat::Harmless),
        };
        let message = SendSignalRequest {
            process: self.selector().into(),
            signal: signal.into(),
            ..SendSignalRequest::default()
        };
        self.call::<_, SendSignalResponse>("send a signal to", "SendSignal", repeat, &message).await?;
        Ok(())
    }

    /// Kills it. False when it had ended already.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn kill(&self) -> Result<bool, CommandError> {
        match self.signal(Signal::Kill).await {
            Ok(()) => Ok(true),
            Err(CommandError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it has ended, [`CommandError::InputRefused`] when it has no terminal.
    pub async fn resize(&self, size: Size) -> Result<(), CommandError> {
        let message =
            UpdateRequest { process: self.selector().into(), pty: terminal(size).into(), ..UpdateRequest::default() };
        self.call::<_, UpdateResponse>("resize the terminal of", "Update", Repeat::Harmless, &message).await?;
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
        repeat: Repeat,
        message: &Q,
    ) -> Result<A, CommandError> {
        let client = self.sandbox.client();
        let call = Call::new(self.what(verb), repeat, client.deadline());
        let path = format!("/process.Process/{method}");
        let answer = self.sandbox.envd().unary(client.shared(), &call, &path, None, message).await;
        match answer {
            Ok(answer) => Ok(answer),
            // How servers say that there is no such input, a terminal's size included.
            Err(Failure::Refused(refusal)) if refusal.is("internal") || refusal.is("unknown") => {
                Err(CommandError::InputRefused {
                    id: self.sandbox.id().clone(),
                    process: self.name.clone(),
                    message: refusal.message,
                })
            }
            Err(failure) => Err(CommandError::of_call(&self.sandbox, &call, self.name.clone(), failure).await),
        }
    }
}

pub(crate) fn terminal(size: Size) -> PTY {
    let size = pty::Size { cols: size.cols.into(), rows: size.rows.into(), ..pty::Size::default() };
    PTY { size: size.into(), ..PTY::default() }
}
