//! The server as programs start it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::Tool;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::stdio_pipes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::desk::{Departures, Desk};
use crate::handler::Handler;
use crate::http;
use crate::workplace::Workplaces;

/// Most bytes of a request: a file of 10 MiB, however much of it has to be escaped.
pub(crate) const MOST_INPUT: usize = 32 * 1024 * 1024;

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The session of calls that name none. Without a name it is a new one, which ends with the server.
    pub session: Option<String>,
    /// A command that takes longer goes on in the background, unless its client asked to be told how it goes: clients lose
    /// patience after 60 s.
    pub detach_after: Duration,
    /// How long a sandbox is kept awake for clients that hold no connection.
    pub idle: Duration,
    /// What clients are told about the place besides how the tools work.
    pub notes: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { session: None, detach_after: Duration::from_secs(50), idle: Duration::from_secs(600), notes: None }
    }
}

/// Why a server ended too early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the client did not speak the protocol")]
    Handshake(#[source] Box<ServerInitializeError>),
    #[error("the HTTP server failed")]
    Http(#[source] io::Error),
}

/// Offers the tools to MCP clients. It serves once, in one way.
pub struct Server {
    desk: Arc<Desk>,
    departures: Departures,
}

impl Server {
    /// Where HTTP clients find it, after host and port.
    pub const PATH: &str = http::PATH;

    pub fn new(workplaces: Arc<dyn Workplaces>, settings: Settings) -> Self {
        let tools = tools::definitions().iter().map(|definition| listed(definition.mcp())).collect();
        let (desk, departures) = Desk::new(workplaces, settings, tools);
        Self { desk, departures }
    }

    /// Serves this process's standard streams until the client leaves or `stop`. Then calls are ended and the sandbox is left.
    pub async fn stdio(self, stop: CancellationToken) -> Result<(), ServeError> {
        let (reader, writer) = stdio_pipes();
        self.streams(reader, writer, stop).await
    }

    /// As [`stdio`](Self::stdio), with other streams.
    pub async fn streams(
        self,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let Self { desk, departures: _ } = self;
        let transport = AsyncRwTransport::new_server(reader, writer).with_max_line_length(MOST_INPUT);
        // Cancelled after the calls have ended, so that they can say so.
        let ended = CancellationToken::new();
        let handler = Handler::stdio(Arc::clone(&desk));
        let serving = async {
            match serve_server_with_ct(handler, transport, ended.clone()).await {
                Ok(running) => {
                    // Whatever the reason, nobody is there any more.
                    let _ = running.waiting().await;
                    Ok(())
                }
                // A client that only looks whether the program starts.
                Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
                Err(error) => Err(ServeError::Handshake(Box::new(error))),
            }
        };
        let mut serving = std::pin::pin!(serving);
        let done = tokio::select! {
            done = &mut serving => Some(done),
            () = stop.cancelled() => None,
        };
        match done {
            Some(done) => {
                desk.end().await;
                done
            }
            None => {
                let ending = async {
                    desk.end().await;
                    ended.cancel();
                };
                tokio::join!(serving, ending).0
            }
        }
    }

    /// Serves HTTP until `stop`. Then calls are ended and the sandbox is left.
    pub async fn http(self, listener: TcpListener, access: Access, stop: CancellationToken) -> Result<(), ServeError> {
        http::serve(self.desk, self.departures, listener, access, stop).await.map_err(ServeError::Http)
    }
}

/// A tool as it is listed: with what this crate adds to results.
fn listed(mut tool: Value) -> Tool {
    if let Value::Object(properties) = &mut tool["outputSchema"]["properties"] {
        properties.insert("sandbox_id".to_owned(), json!({ "type": "string" }));
        properties.insert("session_id".to_owned(), json!({ "type": "string" }));
    }
    serde_json::from_value(tool).expect("the tools' definitions have MCP's form, which a test sees to")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_the_protocols_form() {
        let tools: Vec<Tool> = tools::definitions().iter().map(|definition| listed(definition.mcp())).collect();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, tools::NAMES);
        for tool in tools {
            let schema = tool.output_schema.expect("an output schema");
            assert!(schema["properties"]["sandbox_id"].is_object(), "{}", tool.name);
            assert!(
                tool.annotations.is_some_and(|hints| hints.read_only_hint.is_some() && hints.open_world_hint.is_some())
            );
        }
    }
}
