//! Handles the requests of MCP clients.

use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation,
    InitializeRequestParams, InitializeResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use serde_json::{Map, Value, json};

use crate::call::Call;
use crate::provider::ReadError;
use crate::resource;
use crate::response;
use crate::session::{NEW_SESSION, SESSION_IDLE_TIMEOUT, Session, SessionLookup};
use crate::state::{ConnectionGuard, ServerState};

const INSTRUCTIONS: &str = "These tools work in a Linux sandbox, not on the user's machine: files and processes there are its own. Relative \
                            paths begin at the shell's current directory, which is /home/user at first and carries over from one \
                            bash call to the next, like exported variables. Servers that listen in the sandbox can be looked at \
                            with take_screenshot.";
const SESSION_HEADER: &str = "mcp-session-id";
const SESSION_ARGUMENT: &str = "session_id";

/// Serves one connection, or one request of a client without connections.
pub(crate) struct Handler {
    state: Arc<ServerState>,
    transport: Transport,
}

/// How the client is connected.
enum Transport {
    /// Standard streams: exactly one client.
    Stdio,
    Http {
        own: Arc<Session>,
        connection: OnceLock<ConnectionGuard>,
    },
}

impl Handler {
    pub(crate) fn for_stdio(state: Arc<ServerState>) -> Self {
        Self { state, transport: Transport::Stdio }
    }

    pub(crate) fn for_http(state: Arc<ServerState>) -> Self {
        Self { state, transport: Transport::Http { own: Session::with_random_name(), connection: OnceLock::new() } }
    }

    /// Whether the request comes without a connection, so that the client has to name its session.
    fn is_stateless(&self, context: &RequestContext<RoleServer>) -> bool {
        let parts = context.extensions.get::<http::request::Parts>();
        matches!(self.transport, Transport::Http { .. })
            && parts.is_none_or(|parts| !parts.headers.contains_key(SESSION_HEADER))
    }

    /// The session of a call. The error text is for the model.
    fn session(&self, stateless: bool, input: &mut Map<String, Value>) -> Result<Arc<Session>, String> {
        let own = match &self.transport {
            Transport::Http { own, .. } if !stateless => return Ok(Arc::clone(own)),
            Transport::Http { .. } => {
                self.state.record_stateless_call();
                input.remove(SESSION_ARGUMENT)
            }
            Transport::Stdio => None,
        };
        let name = match own {
            None | Some(Value::Null) => return Ok(Arc::clone(&self.state.shared)),
            Some(Value::String(name)) if name.is_empty() || name == self.state.shared.name => {
                return Ok(Arc::clone(&self.state.shared));
            }
            Some(Value::String(name)) => name,
            Some(_) => {
                return Err(format!("`{SESSION_ARGUMENT}` must be a string. Leave it out, or send \"{NEW_SESSION}\"."));
            }
        };
        match self.state.resolve_session(&name) {
            SessionLookup::Known(session) => Ok(session),
            SessionLookup::Unknown => Err(format!(
                "Session {name:?} is not known, or it was unused for too long. Send {SESSION_ARGUMENT} \"{NEW_SESSION}\" to begin one, or leave it \
                 out for the shared one."
            )),
            SessionLookup::TooMany => {
                Err(format!("There are too many sessions. Leave {SESSION_ARGUMENT} out for the shared one."))
            }
        }
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.state.tools.iter().find(|tool| tool.name == name)
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let sandbar = Implementation::new("sandbar", env!("CARGO_PKG_VERSION")).with_title("Sandbar");
        let instructions = match &self.state.settings.notes {
            Some(notes) => format!("{INSTRUCTIONS} {notes}"),
            None => INSTRUCTIONS.to_owned(),
        };
        ServerConfig::new(capabilities).with_server_info(sandbar).with_instructions(instructions)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if let Transport::Http { own, connection } = &self.transport {
            connection.get_or_init(|| ConnectionGuard::new(&self.state, own));
        }
        let answer = self.negotiate_initialize(&request)?;
        context.peer.set_peer_info(request);
        Ok(answer)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools = self.state.tools.clone();
        if self.is_stateless(&context) {
            tools.iter_mut().for_each(add_session_argument);
        }
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tool(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tool(&request.name) else {
            let names: Vec<&str> = self.state.tools.iter().map(|tool| tool.name.as_ref()).collect();
            return Err(ErrorData::invalid_params(
                format!("[{}: unknown tool]", request.name),
                Some(json!({ "tools": names })),
            ));
        };
        let mut input = request.arguments.unwrap_or_default();
        let stateless = self.is_stateless(&context);
        let session = match self.session(stateless, &mut input) {
            Ok(session) => session,
            Err(text) => return Ok(response::from_error(tools::ErrorCode::InvalidInput.as_str(), &text).into()),
        };
        let reads = tool.annotations.as_ref().and_then(|hints| hints.read_only_hint).unwrap_or(false);
        let call = Call { tool: request.name.into_owned(), reads, input, session, named: stateless };
        Ok(call.run(&self.state, &context).await.into())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(self.state.links()))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resource::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let absent = |why: &str| ErrorData::resource_not_found(format!("{uri}: {why}"), Some(json!({ "uri": uri })));
        let Some((sandbox, path)) = resource::parse(&uri) else {
            return Err(absent("an address is sandbox://SANDBOX_ID/path"));
        };
        let _under_way = self.state.calls.token();
        if self.is_stateless(&context) {
            self.state.record_stateless_call();
        }
        let read = async {
            let handle =
                self.state.handle().await.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            if handle.sandbox_id() != sandbox {
                return Err(absent(&format!("this session works in sandbox {}", handle.sandbox_id())));
            }
            let file = handle.read(&path, resource::MAX_READ_BYTES).await.map_err(|error| match error {
                ReadError::NotFound => absent("no such file"),
                ReadError::Failed(why) => ErrorData::internal_error(format!("{uri}: {why}"), None),
            })?;
            let contents =
                resource::contents(&uri, &path, &file).map_err(|why| ErrorData::invalid_params(why, None))?;
            Ok(ReadResourceResult::new(vec![contents]).into())
        };
        match context.ct.run_until_cancelled(read).await {
            Some(answer) => answer,
            None => Err(ErrorData::internal_error("cancelled", None)),
        }
    }

    /// Requests that `rmcp` could not parse.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        const KNOWN: [&str; 3] = ["tools/call", "resources/read", "initialize"];
        let CustomRequest { method, .. } = request;
        if KNOWN.contains(&method.as_str()) {
            return Err(ErrorData::invalid_params(
                format!("the parameters of {method} do not have the form that it needs"),
                None,
            ));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None))
    }
}

/// Adds the argument that names a session to a tool's input schema.
fn add_session_argument(tool: &mut Tool) {
    let mut schema = (*tool.input_schema).clone();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        let hours = SESSION_IDLE_TIMEOUT.as_secs() / 3600;
        let description = format!(
            "Calls with the same session share directory, variables and background tasks. \"{NEW_SESSION}\" begins one, whose id the result has as \
             {SESSION_ARGUMENT}; it is forgotten {hours} hours after its last use. Without it: a session shared with all who send none."
        );
        properties.insert(SESSION_ARGUMENT.to_owned(), json!({ "type": "string", "description": description }));
    }
    tool.input_schema = Arc::new(schema);
}
