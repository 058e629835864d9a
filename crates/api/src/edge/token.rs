//! Requests with a guest's token and nothing that names a sandbox: the sandbox is the one with this
//! token. SDK 2.13 reaches sandboxes so after the class-level `connect`.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use node::SandboxId;
use protocol::guest::ENVD_PORT;
use protocol::headers::ACCESS_TOKEN;
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::refusal::NOT_FOUND;
use crate::body::{self, Body};
use crate::content::Content;
use crate::routing::Target;
use crate::server::App;

/// Forwards a request to the guest whose token it has.
pub(crate) async fn serve_by_token(app: &Arc<App>, request: Request<Content>) -> Response<Body> {
    let token = request.headers().get(ACCESS_TOKEN).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    match holder(app, &token) {
        Some(id) => super::serve(app, Target { id, port: ENVD_PORT }, request).await,
        None => not_found(),
    }
}

fn holder(app: &App, token: &[u8]) -> Option<SandboxId> {
    let mut records = app.node.all().into_iter().map(|seen| seen.record);
    let holds = |own: &node::Token| bool::from(own.reveal().as_bytes().ct_eq(token));
    records.find(|record| record.access_token.as_ref().is_some_and(holds)).map(|record| record.id.clone())
}

/// Clients keep tokens of sandboxes that have ended, so an unknown token means a sandbox that no
/// longer runs, not a wrong token.
fn not_found() -> Response<Body> {
    #[derive(Serialize)]
    struct Wire {
        message: &'static str,
        code: u16,
    }
    let status = StatusCode::BAD_GATEWAY;
    body::json(status, &Wire { message: NOT_FOUND, code: status.as_u16() })
}
