//! Signed file URLs. They name no sandbox: the one whose token made the signature is meant, and tokens are unique.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use node::{Node, SandboxId};
use protocol::envd::ErrorBody;
use protocol::guest::ENVD_PORT;
use protocol::signature::{Claim, Operation};

use crate::body::{self, Body};
use crate::content::Content;
use crate::query;
use crate::routing::Target;
use crate::server::App;

/// Answers `/files` of a request that carries a signature instead of routing headers.
pub(crate) async fn serve_signed_file(app: &Arc<App>, request: Request<Content>) -> Response<Body> {
    let operation = match *request.method() {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST => Operation::Write,
        _ => return refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST work on signed URLs"),
    };
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let Some(signature) = query::first(&pairs, "signature") else {
        return refuse(StatusCode::UNAUTHORIZED, "missing signature query parameter");
    };
    let expiration = match query::first(&pairs, "signature_expiration").map(str::parse) {
        None => None,
        Some(Ok(seconds)) => Some(seconds),
        Some(Err(_)) => return refuse(StatusCode::UNAUTHORIZED, "invalid signature"),
    };
    let claim = Claim {
        path: query::first(&pairs, "path").unwrap_or(""),
        operation,
        username: query::first(&pairs, "username").unwrap_or(""),
        expiration,
    };
    // The signature first: only who holds it may learn that it has expired.
    let Some(id) = signer(&app.node, &claim, signature) else {
        return refuse(StatusCode::UNAUTHORIZED, "invalid signature");
    };
    if expiration.is_some_and(|end| end < app.node.now().as_second()) {
        return refuse(StatusCode::UNAUTHORIZED, "signature is already expired");
    }
    super::serve(app, Target { id, port: ENVD_PORT }, request).await
}

fn signer(node: &Node, claim: &Claim<'_>, signature: &str) -> Option<SandboxId> {
    let sandboxes = node.all().into_iter().map(|seen| seen.record);
    sandboxes
        .filter(|record| {
            record.access_token.as_ref().is_some_and(|token| claim.is_signed_by(token.reveal(), signature))
        })
        .map(|record| record.id.clone())
        .next()
}

fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    body::json(status, &ErrorBody { code: status.as_u16(), message: message.to_owned() })
}
