//! The user of an RPC: the user name of HTTP Basic authentication, without a password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use connectrpc::{ConnectError, RequestContext};
use http::header::AUTHORIZATION;

use crate::state::{Guest, UnknownUser};
use crate::users::User;

/// The user of this call; the sandbox's default user if none is named.
pub(crate) fn user(guest: &Guest, context: &RequestContext) -> Result<User, ConnectError> {
    guest.user(named(context).as_deref()).map_err(refuse)
}

/// Refuses a caller that names an unknown user, for calls that act as no user.
pub(crate) fn check(guest: &Guest, context: &RequestContext) -> Result<(), ConnectError> {
    match named(context) {
        Some(name) => guest.user(Some(&name)).map(drop).map_err(refuse),
        None => Ok(()),
    }
}

fn named(context: &RequestContext) -> Option<String> {
    let (scheme, credentials) = context.header(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    let name = decoded.split_once(':').map_or(decoded.as_str(), |(name, _)| name);
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

fn refuse(UnknownUser(name): UnknownUser) -> ConnectError {
    ConnectError::unauthenticated(format!("invalid username: '{name}'"))
}
