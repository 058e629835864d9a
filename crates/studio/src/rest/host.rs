//! Serves pages and sessions under one host name only, where one is configured, so that the session
//! cookie is never sent to previews, which are below another domain.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use http::header::AUTHORIZATION;

use super::failure::Failure;
use super::{Shared, cookie};

pub(super) async fn check(State(app): State<Shared>, request: Request, next: Next) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    if let Some(own) = &app.host {
        let name = cookie::without_port(cookie::host(&parts)).trim_end_matches('.');
        // Browsers do not send this header on their own.
        let by_token = parts.uri.path().starts_with("/api/") && parts.headers.contains_key(AUTHORIZATION);
        if !by_token && !name.eq_ignore_ascii_case(own) {
            return Err(Failure::new(StatusCode::NOT_FOUND, format!("the dashboard is served as {own} only")));
        }
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}
