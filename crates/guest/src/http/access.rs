//! Authorization: the access token, or for files a signed URL. Comparisons take constant time.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use protocol::headers;
use protocol::signature::{Claim, Operation};

use super::query::QueryString;
use super::reply::HttpError;
use crate::state::{Guest, secrets_equal};

/// Checks the token; the default for every call.
pub(crate) fn check_token(guest: &Guest, headers: &HeaderMap) -> Result<(), HttpError> {
    let Some(token) = guest.access_token() else { return Ok(()) };
    match token_header(headers) {
        Some(given) if secrets_equal(&token, given) => Ok(()),
        _ => Err(HttpError::unauthorized("a valid access token is required in the header X-Access-Token")),
    }
}

/// Checks the token or a signature, for `/files`.
pub(crate) fn check_files(
    guest: &Guest,
    headers: &HeaderMap,
    query: &QueryString,
    operation: Operation,
) -> Result<(), HttpError> {
    let Some(token) = guest.access_token() else { return Ok(()) };
    if let Some(given) = token_header(headers) {
        return if secrets_equal(&token, given) {
            Ok(())
        } else {
            Err(HttpError::unauthorized("access token present in header but does not match"))
        };
    }
    let Some(signature) = query.non_empty("signature") else {
        return Err(HttpError::unauthorized("missing signature query parameter"));
    };
    let invalid = || HttpError::unauthorized("invalid signature");
    let expiration = match query.non_empty("signature_expiration") {
        Some(seconds) => Some(seconds.parse::<i64>().map_err(|_| invalid())?),
        None => None,
    };
    let claim = Claim {
        path: query.get("path").unwrap_or_default(),
        operation,
        username: query.get("username").unwrap_or_default(),
        expiration,
    };
    if !claim.is_signed_by(&token, signature) {
        return Err(invalid());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    match expiration {
        Some(expiration) if u64::try_from(expiration).unwrap_or(0) < now => {
            Err(HttpError::unauthorized("signature is already expired"))
        }
        _ => Ok(()),
    }
}

fn token_header(headers: &HeaderMap) -> Option<&str> {
    // An unreadable value is present and matches nothing.
    headers.get(headers::ACCESS_TOKEN).map(|value| value.to_str().unwrap_or_default())
}
