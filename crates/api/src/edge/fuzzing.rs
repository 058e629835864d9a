//! Headers and signed URLs, for the fuzz targets.

use http::{HeaderMap, Method, Request};
use node::Token;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::signature::{Claim, Operation};

use super::signed::is_signed;
use crate::query;

pub(crate) use super::is_control_route;

pub(crate) fn clean_request(headers: &mut HeaderMap, host: &str, api_key: &str) {
    super::headers::clean_request(headers, host, api_key);
}

const NOW: i64 = 1_800_000_000;

/// A place, a byte, an operation, and then path, user and expiry in lines: the URL that is signed
/// for them is accepted, and no URL with that signature and other claims.
///
/// # Panics
/// When a property is violated.
pub fn check_signed_url(bytes: &[u8]) {
    let Some((&[place, high, byte, operation], rest)) = bytes.split_first_chunk::<4>() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let mut lines = text.splitn(3, '\n');
    let (username, expiry, path) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let operation = if operation % 2 == 0 { Operation::Read } else { Operation::Write };
    let claim = Claim { path, operation, username, expiration: expiry.parse().ok() };
    let token = Token::random();
    let signature = claim.sign(token.reveal());
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut url =
        format!("/files?username={}&path={}&signature={}", encoded(username), encoded(path), encoded(&signature));
    if let Some(expiration) = claim.expiration {
        url.push_str(&format!("&signature_expiration={expiration}"));
    }
    let is_valid = !username.contains(':') && claim.expiration.is_none_or(|end| end >= NOW);
    assert_eq!(is_accepted(&url, operation, &token), is_valid, "{url}");
    // Another secret, another operation, another byte.
    assert!(!is_accepted(&url, operation, &Token::random()), "{url}");
    let other = if operation == Operation::Read { Operation::Write } else { Operation::Read };
    assert!(!is_accepted(&url, other, &token), "{url}");
    let mut changed = url.clone().into_bytes();
    let place = usize::from(u16::from_be_bytes([high, place])) % changed.len();
    changed[place] = byte;
    let Ok(changed) = String::from_utf8(changed) else { return };
    if is_accepted(&changed, operation, &token) {
        // It decodes to the same claim: the change was one of encoding.
        assert_eq!(claimed(&changed), claimed(&url), "{changed} for {url}");
    }
    // A path that holds what the signature has between its fields.
    for (index, _) in path.match_indices(':') {
        let moved = Claim { path: &path[..index], username: &path[index + 1..], ..claim };
        assert!(!moved.is_signed_by(token.reveal(), &signature), "{moved:?} for {claim:?}");
        for kind in [":read:", ":write:"] {
            if let Some(user) = path[index..].strip_prefix(kind) {
                let user = format!("{user}{kind}{username}");
                let moved = Claim { path: &path[..index], username: &user, ..claim };
                assert!(!moved.is_signed_by(token.reveal(), &signature), "{moved:?} for {claim:?}");
            }
        }
    }
}

fn is_accepted(url: &str, operation: Operation, token: &Token) -> bool {
    let method = if operation == Operation::Read { Method::GET } else { Method::POST };
    let request = Request::builder().method(method).uri(url).body(());
    request.is_ok_and(|request| is_signed(&request, token, NOW))
}

/// The signed fields and the signature of a URL.
fn claimed(url: &str) -> Vec<Option<String>> {
    let pairs = query::pairs(url.split_once('?').map_or("", |(_, query)| query));
    let first = |name| query::first(&pairs, name).map(str::to_owned);
    let expiration = first("signature_expiration").and_then(|text| text.parse::<i64>().ok()).map(|end| end.to_string());
    // An absent field and an empty one are the same.
    vec![first("path").filter(|path| !path.is_empty()), first("username").filter(|user| !user.is_empty()), expiration]
}
