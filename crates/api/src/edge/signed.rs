//! Signed file URLs. They do not name a sandbox: it is the one whose token made the signature, and
//! tokens are unique.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use node::{Node, SandboxId, Token};
use protocol::envd::ErrorBody;
use protocol::guest::ENVD_PORT;
use protocol::signature::{Claim, Operation};

use crate::body::{self, Body};
use crate::content::Content;
use crate::query;
use crate::routing::Target;
use crate::server::App;

/// Serves `/files` for a request with a signature instead of routing headers.
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
    let Some(claim) = claim(&pairs, operation) else {
        return refuse(StatusCode::UNAUTHORIZED, "invalid signature");
    };
    // The signature first: only a client with a valid signature may learn that it has expired.
    let Some(id) = signer(&app.node, &claim, signature) else {
        return refuse(StatusCode::UNAUTHORIZED, "invalid signature");
    };
    if claim.expiration.is_some_and(|end| end < app.node.now().as_second()) {
        return refuse(StatusCode::UNAUTHORIZED, "signature is already expired");
    }
    let mut response = super::serve(app, Target { id, port: ENVD_PORT }, request).await;
    forbid_scripts(response.headers_mut());
    response
}

/// Prevents scripts: the URL has the server's host, perhaps the dashboard's, and a page of the
/// sandbox must not run in its origin.
fn forbid_scripts(headers: &mut HeaderMap) {
    const ACTIVE: [&str; 3] = ["html", "xml", "svg"];
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("html");
    if ACTIVE.iter().any(|active| kind.contains(active)) {
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    }
}

/// Parses what a signed URL grants; `None` if its expiration is no number.
fn claim(pairs: &[(String, String)], operation: Operation) -> Option<Claim<'_>> {
    let expiration = query::first(pairs, "signature_expiration").map(str::parse).transpose().ok()?;
    Some(Claim {
        path: query::first(pairs, "path").unwrap_or(""),
        operation,
        username: query::first(pairs, "username").unwrap_or(""),
        expiration,
    })
}

/// Whether a request for the guest has a signature of this token that has not expired at `now`, in
/// seconds.
pub(super) fn is_signed<B>(request: &Request<B>, token: &Token, now: i64) -> bool {
    let operation = match *request.method() {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST | Method::PUT => Operation::Write,
        _ => return false,
    };
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let (claim, signature) = (claim(&pairs, operation), query::first(&pairs, "signature"));
    request.uri().path() == "/files"
        && claim.zip(signature).is_some_and(|(claim, signature)| {
            claim.is_signed_by(token.reveal(), signature) && claim.expiration.is_none_or(|end| end >= now)
        })
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
