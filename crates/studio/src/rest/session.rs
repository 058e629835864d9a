//! Signing in and out. The session is the token in a cookie that scripts cannot read and that no other site's request carries.

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{ACCEPT, ORIGIN, SET_COOKIE};
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use sdk::Secret;
use serde::Deserialize;

use super::failure::Failure;
use super::{Shared, auth, headers};

/// A month: signing in again costs a look for the token.
const AGE_SECONDS: u32 = 30 * 24 * 60 * 60;

#[derive(Deserialize)]
pub(super) struct SignIn {
    token: String,
}

/// Takes the login page's form.
pub(super) async fn sign_in(
    State(app): State<Shared>,
    uri: Uri,
    asked: HeaderMap,
    extensions: Extensions,
    form: Result<Form<SignIn>, FormRejection>,
) -> Response {
    let html = asked.get(ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|kinds| kinds.contains("text/html"));
    let signed_in = async {
        auth::refuse_foreign_origin(&uri, &asked)?;
        let Form(SignIn { token }) =
            form.map_err(|rejection| Failure::new(rejection.status(), rejection.body_text()))?;
        let token = Secret::new(token.trim());
        match app.studio.authenticate(token.expose()).await? {
            Some(_) => Ok(token),
            None => Err(auth::wrong_token(&app, &extensions)),
        }
    };
    match signed_in.await {
        Ok(token) => {
            let secure = asked.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
            with_cookie(Redirect::to("/").into_response(), token.expose(), AGE_SECONDS, secure)
        }
        Err(failure) if html => {
            let page = (failure.status(), Html(page(failure.message()))).into_response();
            headers::with_policy(page, &app.page_policy)
        }
        Err(failure) => failure.into_response(),
    }
}

/// Forgets the cookie. The token stays good.
pub(super) async fn sign_out(uri: Uri, headers: HeaderMap) -> Result<Response, Failure> {
    auth::refuse_foreign_origin(&uri, &headers)?;
    Ok(with_cookie(Redirect::to("/login").into_response(), "", 0, false))
}

fn with_cookie(mut response: Response, token: &str, age: u32, secure: bool) -> Response {
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}{secure}", auth::SESSION);
    match HeaderValue::from_str(&cookie) {
        Ok(mut value) => {
            value.set_sensitive(true);
            response.headers_mut().append(SET_COOKIE, value);
            response
        }
        // A token that is known has no such characters.
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// A page to sign in on that needs nothing else; `message` is ours and holds no markup.
pub(super) fn page(message: &str) -> String {
    include_str!("session.html").replace("{message}", message)
}
