//! E2B's code interpreter, which its packages expect on a separate port. The edge forwards requests
//! for that port here unless a service of the sandbox listens on it.
//!
//! A context is one interpreter process that keeps its state between runs, driven by a small
//! script. Processes start on the first request.

mod context;
mod language;
mod lines;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use parking_lot::Mutex;
use protocol::headers::{ACCESS_TOKEN, KNOWN_PEER};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::context::Context;
use self::language::Language;
use crate::http::{HttpError, Reply, check_token, empty, json, read_json};
use crate::process::LaunchError;
use crate::state::Guest;

/// Each context is a process with its own memory.
const MAX_CONTEXTS: usize = 64;
/// Lines that a slow client may lag behind; then backpressure blocks the code.
const MAX_LAG_LINES: usize = 16;

#[derive(Default)]
pub(crate) struct Interpreter {
    contexts: Mutex<Contexts>,
}

#[derive(Default)]
struct Contexts {
    by_id: BTreeMap<String, Arc<Context>>,
    /// Contexts of requests that name none.
    defaults: BTreeMap<Language, Arc<Context>>,
}

/// The body of `POST /execute`.
#[derive(Deserialize)]
struct Execute {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct NewContext {
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
}

#[derive(Serialize)]
struct View<'a> {
    id: &'a str,
    language: Language,
    cwd: &'a str,
}

/// Handles a request; `path` is without the route prefix.
pub(crate) async fn handle(guest: &Arc<Guest>, path: &str, request: Request<Incoming>) -> Reply {
    dispatch(guest, path, request).await.unwrap_or_else(|refusal| {
        // The packages show the text verbatim.
        let mut reply = crate::http::bytes(refusal.message);
        *reply.status_mut() = refusal.status;
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        reply
    })
}

async fn dispatch(guest: &Arc<Guest>, path: &str, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let interpreter = &guest.interpreter;
    if let ["contexts", ..] = parts.as_slice() {
        check_known(guest, request.headers())?;
    }
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["health"]) => Ok(crate::http::bytes("OK")),
        (&Method::POST, ["execute"]) => {
            check_token(guest, request.headers())?;
            let wanted = read_json(request).await?.ok_or_else(|| HttpError::bad_request("code is required"))?;
            execute(guest, wanted)
        }
        (&Method::POST, ["contexts"]) => {
            let NewContext { language, cwd } = read_json(request).await?.unwrap_or_default();
            let context = Context::start(guest, language.as_deref().unwrap_or_default().parse()?, cwd).await?;
            let context = interpreter.add(context)?;
            Ok(json(StatusCode::OK, &view(&context)))
        }
        (&Method::GET, ["contexts"]) => {
            let all = interpreter.contexts(|contexts| contexts.by_id.values().cloned().collect::<Vec<_>>());
            Ok(json(StatusCode::OK, &all.iter().map(|context| view(context)).collect::<Vec<_>>()))
        }
        (&Method::DELETE, ["contexts", id]) => {
            interpreter.remove(id)?.kill();
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["contexts", id, "restart"]) => {
            interpreter.find(id)?.restart(guest).await?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        _ => Err(HttpError::not_found(format!("no route for {} {path}", request.method()))),
    }
}

/// Authorizes context calls. Packages from 2.9 on send the token with `/execute` only, so a call
/// without a token is allowed to a client whose address has presented the token or the API key to
/// the edge before.
fn check_known(guest: &Guest, headers: &HeaderMap) -> Result<(), HttpError> {
    if headers.contains_key(KNOWN_PEER) && !headers.contains_key(ACCESS_TOKEN) {
        return Ok(());
    }
    check_token(guest, headers)
}

fn view(context: &Context) -> View<'_> {
    View { id: &context.id, language: context.language, cwd: &context.cwd }
}

fn execute(guest: &Arc<Guest>, wanted: Execute) -> Result<Reply, HttpError> {
    let Execute { code, context_id, language, env_vars } = wanted;
    let env = env_vars.unwrap_or_default();
    if let Some(name) = env.keys().find(|name| !is_name(name)) {
        return Err(HttpError::bad_request(format!("'{name}' cannot be the name of a variable")));
    }
    let context = match (context_id, language) {
        (Some(_), Some(_)) => return Err(HttpError::bad_request("give a context or a language, not both")),
        (Some(id), None) => guest.interpreter.find(&id)?,
        (None, language) => {
            let language = language.as_deref().unwrap_or_default().parse()?;
            guest.interpreter.default_context(guest, language)?
        }
    };
    let (sender, receiver) = mpsc::channel::<Bytes>(MAX_LAG_LINES);
    let guest = Arc::clone(guest);
    // Ends with the code, or soon after the client disconnects.
    tokio::spawn(async move { run::run(&guest, &context, &code, &env, sender).await });
    let lines = futures::stream::unfold(receiver, |mut lines| async { Some((lines.recv().await?, lines)) });
    let body = StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync();
    let mut reply = Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(reply)
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    let fits = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    bytes.next().is_some_and(|first| fits(first) && !first.is_ascii_digit()) && bytes.all(fits)
}

impl Interpreter {
    fn contexts<T>(&self, with: impl FnOnce(&mut Contexts) -> T) -> T {
        with(&mut self.contexts.lock())
    }

    fn find(&self, id: &str) -> Result<Arc<Context>, HttpError> {
        self.contexts(|contexts| contexts.by_id.get(id).cloned()).ok_or_else(|| unknown(id))
    }

    fn remove(&self, id: &str) -> Result<Arc<Context>, HttpError> {
        self.contexts(|contexts| {
            contexts.defaults.retain(|_, context| context.id != id);
            contexts.by_id.remove(id).ok_or_else(|| unknown(id))
        })
    }

    fn add(&self, context: Context) -> Result<Arc<Context>, HttpError> {
        self.contexts(|contexts| contexts.add(context))
    }

    /// Its first run starts the process.
    fn default_context(&self, guest: &Guest, language: Language) -> Result<Arc<Context>, HttpError> {
        self.contexts(|contexts| {
            if let Some(context) = contexts.defaults.get(&language) {
                return Ok(Arc::clone(context));
            }
            let context = contexts.add(Context::new(guest, language, None)?)?;
            contexts.defaults.insert(language, Arc::clone(&context));
            Ok(context)
        })
    }
}

impl Contexts {
    fn add(&mut self, context: Context) -> Result<Arc<Context>, HttpError> {
        if self.by_id.len() >= MAX_CONTEXTS {
            let message = format!("there are {MAX_CONTEXTS} contexts already; remove one first");
            return Err(HttpError::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        let context = Arc::new(context);
        self.by_id.insert(context.id.clone(), Arc::clone(&context));
        Ok(context)
    }
}

fn unknown(id: &str) -> HttpError {
    HttpError::not_found(format!("Context {id} not found"))
}

impl From<LaunchError> for HttpError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::InvalidPath(_) | LaunchError::NoDirectory(_) | LaunchError::Nul => {
                Self::bad_request(error.to_string())
            }
            _ => Self::internal(error.to_string()),
        }
    }
}
