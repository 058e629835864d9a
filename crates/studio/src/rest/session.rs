//! Sign-in and sign-out. A session has a token of its own, in a cookie that scripts cannot read and
//! that no cross-site request carries. Signing out ends the session and not only the cookie.

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{ACCEPT, SET_COOKIE};
use http::request::Parts;
use sdk::Secret;
use serde::Deserialize;

use super::failure::Failure;
use super::{Shared, auth, cookie, headers};
use crate::token::TokenDigest;

#[derive(Deserialize)]
pub(super) struct SignIn {
    token: String,
}

/// Handles the form of the login page.
pub(super) async fn sign_in(State(app): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let accept = parts.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let html = accept.is_some_and(|kinds| kinds.contains("text/html"));
    let signed_in = async {
        auth::refuse_foreign_origin(&parts.uri, &parts.headers)?;
        let form: Result<Form<SignIn>, FormRejection> =
            Form::from_request(Request::from_parts(parts.clone(), body), &()).await;
        let Form(SignIn { token }) =
            form.map_err(|rejection| Failure::new(rejection.status(), rejection.body_text()))?;
        let token = Secret::new(token.trim());
        let session = app.studio.sign_in(token.expose()).await?;
        let session = session.ok_or_else(|| auth::refuse_wrong_token(&app, &parts.extensions))?;
        end_sessions(&app, &parts).await?;
        cookie::open(&parts, session.expose()).ok_or_else(|| auth::refuse_wrong_token(&app, &parts.extensions))
    };
    match signed_in.await {
        Ok(opened) => {
            let mut response = Redirect::to("/").into_response();
            response.headers_mut().append(SET_COOKIE, opened);
            response
        }
        Err(failure) if html => {
            let page = (failure.status(), Html(page(failure.message()))).into_response();
            headers::with_policy(page, &app.page_policy)
        }
        Err(failure) => failure.into_response(),
    }
}

/// Ends the session, with the terminals and event streams it opened, and removes its cookie. The
/// access token stays valid.
pub(super) async fn sign_out(State(app): State<Shared>, request: Request) -> Result<Response, Failure> {
    let (parts, _) = request.into_parts();
    auth::refuse_foreign_origin(&parts.uri, &parts.headers)?;
    end_sessions(&app, &parts).await?;
    let mut response = Redirect::to("/login").into_response();
    for removal in cookie::removals(&parts) {
        response.headers_mut().append(SET_COOKIE, removal);
    }
    Ok(response)
}

/// Ends the sessions of the request's cookies.
async fn end_sessions(app: &Shared, parts: &Parts) -> Result<(), Failure> {
    const MAX_ENDED: usize = 4;
    for session in cookie::all_sessions(&parts.headers).filter_map(TokenDigest::from_session).take(MAX_ENDED) {
        app.studio.sign_out(&session).await?;
    }
    Ok(())
}

/// A self-contained login page. `message` is our own text and has no markup.
pub(super) fn page(message: &str) -> String {
    include_str!("session.html").replace("{message}", message)
}
