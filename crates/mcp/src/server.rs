//! The public entry point: builds and runs a server.

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
use crate::handler::Handler;
use crate::http;
use crate::provider::SandboxProvider;
use crate::state::{ClosedSessions, ServerState};

/// Largest request: a file of 10 MiB with JSON escapes.
pub(crate) const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The session of calls that name none. `None` creates one that ends with the server.
    pub session: Option<String>,
    /// A command that takes longer continues in the background, unless the client asked for
    /// progress: clients time out after 60 s.
    pub detach_after: Duration,
    /// How long the sandbox is kept running after the last call of a client without a connection.
    pub idle_timeout: Duration,
    /// Text about the sandbox that is appended to the server's instructions.
    pub notes: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session: None,
            detach_after: Duration::from_secs(50),
            idle_timeout: Duration::from_secs(600),
            notes: None,
        }
    }
}

/// Why a server ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the client did not speak the protocol")]
    Handshake(#[source] Box<ServerInitializeError>),
    #[error("the HTTP server failed")]
    Http(#[source] io::Error),
}

/// Serves the tools to MCP clients, once, over one transport.
pub struct Server {
    state: Arc<ServerState>,
    closed_sessions: ClosedSessions,
}

impl Server {
    /// Path of the HTTP endpoint.
    pub const PATH: &str = http::PATH;

    pub fn new(provider: Arc<dyn SandboxProvider>, settings: Settings) -> Self {
        let tools = tools::definitions().iter().map(|definition| to_mcp_tool(definition.mcp())).collect();
        let (state, closed_sessions) = ServerState::new(provider, settings, tools);
        Self { state, closed_sessions }
    }

    /// Serves this process's standard streams until the client disconnects or `stop` is cancelled.
    /// Then it cancels the running calls and releases the sandbox.
    ///
    /// # Errors
    /// [`ServeError::Handshake`] if the client does not speak MCP.
    pub async fn serve_stdio(self, stop: CancellationToken) -> Result<(), ServeError> {
        let (reader, writer) = stdio_pipes();
        self.serve_streams(reader, writer, stop).await
    }

    /// As [`serve_stdio`](Self::serve_stdio), on other streams.
    ///
    /// # Errors
    /// [`ServeError::Handshake`] if the client does not speak MCP.
    pub async fn serve_streams(
        self,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let Self { state, closed_sessions: _ } = self;
        let transport = AsyncRwTransport::new_server(reader, writer).with_max_line_length(MAX_REQUEST_BYTES);
        // Cancelled after the calls, so that their responses can be sent.
        let ended = CancellationToken::new();
        let handler = Handler::for_stdio(Arc::clone(&state));
        let serving = async {
            match serve_server_with_ct(handler, transport, ended.clone()).await {
                Ok(running) => {
                    // The client is gone, whatever the reason.
                    let _ = running.waiting().await;
                    Ok(())
                }
                // The client only probed whether the program starts.
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
                state.shut_down().await;
                done
            }
            None => {
                let ending = async {
                    state.shut_down().await;
                    ended.cancel();
                };
                tokio::join!(serving, ending).0
            }
        }
    }

    /// Serves HTTP until `stop` is cancelled. Then it cancels the running calls and releases the
    /// sandbox.
    ///
    /// # Errors
    /// [`ServeError::Http`] if the listener fails.
    pub async fn serve_http(
        self,
        listener: TcpListener,
        access: Access,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        http::serve(self.state, self.closed_sessions, listener, access, stop).await.map_err(ServeError::Http)
    }
}

/// The MCP definition of a tool, extended by the fields that this crate adds to results.
fn to_mcp_tool(mut tool: Value) -> Tool {
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
    fn every_tool_definition_is_valid_mcp() {
        let tools: Vec<Tool> = tools::definitions().iter().map(|definition| to_mcp_tool(definition.mcp())).collect();
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
