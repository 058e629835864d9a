//! One call of the API. A call is added to the router and to the document together, so that the two
//! cannot differ.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::Shared;
use super::document::Document;

/// Adds a type to the document.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// The content of a response.
#[derive(Clone, Copy)]
pub(super) enum Content {
    Nothing,
    Json(Describe),
    /// Server-sent events, each with one such JSON object.
    Events(Describe),
    /// One of these media types.
    Other(&'static [&'static str]),
}

pub(super) struct ResponseSpec {
    pub(super) status: StatusCode,
    pub(super) text: &'static str,
    pub(super) content: Content,
}

/// The body of a request.
pub(super) struct RequestBody {
    pub(super) describe: Describe,
    pub(super) required: bool,
}

pub(super) struct Operation {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The operation's id, for generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) query: Option<Describe>,
    pub(super) body: Option<RequestBody>,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) answers: Vec<ResponseSpec>,
    /// Error statuses besides those that follow from the shape of the call.
    pub(super) refusals: Vec<StatusCode>,
    /// Whether the call needs no authentication.
    pub(super) open: bool,
}

fn describe<T: JsonSchema>() -> Describe {
    |generator| generator.subschema_for::<T>()
}

impl Operation {
    /// A call of a method and a path.
    pub(super) fn new(method: Method, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            query: None,
            body: None,
            headers: Vec::new(),
            answers: Vec::new(),
            refusals: Vec::new(),
            open: false,
        }
    }

    pub(super) fn get(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::GET, path, id, summary)
    }

    pub(super) fn post(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::POST, path, id, summary)
    }

    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(describe::<T>());
        self
    }

    pub(super) fn header(mut self, name: &'static str, text: &'static str) -> Self {
        self.headers.push((name, text));
        self
    }

    pub(super) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some(RequestBody { describe: describe::<T>(), required: true });
        self
    }

    pub(super) fn may_take<T: JsonSchema>(mut self) -> Self {
        self.body = Some(RequestBody { describe: describe::<T>(), required: false });
        self
    }

    pub(super) fn answers<T: JsonSchema>(self, status: StatusCode, text: &'static str) -> Self {
        self.gives(status, text, Content::Json(describe::<T>()))
    }

    pub(super) fn streams<T: JsonSchema>(self, status: StatusCode, text: &'static str) -> Self {
        self.gives(status, text, Content::Events(describe::<T>()))
    }

    pub(super) fn gives(mut self, status: StatusCode, text: &'static str, content: Content) -> Self {
        self.answers.push(ResponseSpec { status, text, content });
        self
    }

    pub(super) fn refuses(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.refusals.extend(statuses);
        self
    }

    pub(super) fn open(mut self) -> Self {
        self.open = true;
        self
    }
}

/// The routers and the document.
pub(super) struct Calls {
    /// Calls that need authentication.
    known: Router<Shared>,
    /// Calls that do not.
    open: Router<Shared>,
    document: Document,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { known: Router::new(), open: Router::new(), document: Document::new() }
    }

    pub(super) fn add<H, T>(mut self, operation: &Operation, handler: H) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        self.document.add(operation);
        let method = MethodFilter::try_from(operation.method.clone()).expect("a method of our own table");
        let router = if operation.open { &mut self.open } else { &mut self.known };
        *router = std::mem::take(router).route(operation.path, on(method, handler));
        self
    }

    /// The router of calls with authentication, the router of calls without, and the document.
    pub(super) fn finish(self) -> (Router<Shared>, Router<Shared>, Document) {
        (self.known, self.open, self.document)
    }
}
