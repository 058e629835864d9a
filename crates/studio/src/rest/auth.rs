//! Authenticates requests, by a bearer token or by a session cookie. Browsers attach the cookie to
//! requests that foreign pages cause, so a request with a cookie that changes something needs our
//! own origin and a header that no foreign page can set.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{Extensions, HeaderMap, Uri};

use super::failure::Failure;
use super::{App, Shared, cookie};
use crate::User;
use crate::token::TokenDigest;

const CSRF: &str = "x-sandbar-csrf";

/// How the caller authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    Bearer,
    Cookie,
}

/// An authenticated caller.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) user: User,
    pub(super) proof: Proof,
    /// The digest of the access token or session.
    pub(super) credential: TokenDigest,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Failure::unauthorized("not signed in"))
    }
}

/// Middleware: authenticates the caller, checks CSRF and rate limits, and stores the [`Caller`].
pub(super) async fn identify(State(app): State<Shared>, request: Request, next: Next) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let caller = authenticate(&app, &parts).await?;
    let changes = !parts.method.is_safe();
    if changes && caller.proof == Proof::Cookie {
        refuse_foreign(&parts.uri, &parts.headers)?;
    }
    let id = &caller.user.id;
    let allowed = if changes { app.limiter.check_write(id) } else { app.limiter.check_read(id) };
    allowed.map_err(Failure::too_many)?;
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

async fn authenticate(app: &App, request: &Parts) -> Result<Caller, Failure> {
    if let Some(token) = parse_bearer(&request.headers)? {
        if let Some(credential) = TokenDigest::from_token(token)
            && let Some(user) = app.studio.authenticate(&credential).await?
        {
            return Ok(Caller { user, proof: Proof::Bearer, credential });
        }
        return Err(refuse_wrong_token(app, &request.extensions));
    }
    let session = cookie::session(request)?.ok_or_else(|| Failure::unauthorized("not signed in"))?;
    if let Some(credential) = TokenDigest::from_session(session)
        && let Some(user) = app.studio.authenticate_session(&credential).await?
    {
        return Ok(Caller { user, proof: Proof::Cookie, credential });
    }
    match app.limiter.check_wrong_token(peer(&request.extensions)) {
        Ok(()) => Err(Failure::unauthorized("the session has ended; sign in again")),
        Err(wait) => Err(Failure::too_many(wait)),
    }
}

/// Refuses an unknown token, at a limited rate per address.
pub(super) fn refuse_wrong_token(app: &App, extensions: &Extensions) -> Failure {
    match app.limiter.check_wrong_token(peer(extensions)) {
        Ok(()) => Failure::unauthorized("the token is not known here"),
        Err(wait) => Failure::too_many(wait),
    }
}

/// The token of the `Authorization` header, which takes precedence over a cookie.
fn parse_bearer(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    match value.to_str().unwrap_or("").split_at_checked("Bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("Bearer ") => Ok(Some(token)),
        _ => Err(Failure::unauthorized("the Authorization header is no bearer token")),
    }
}

fn refuse_foreign(uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    if headers.get(CSRF).is_none_or(|value| value != "1") {
        return Err(Failure::foreign("the header `X-Sandbar-Csrf: 1` is missing"));
    }
    refuse_foreign_origin(uri, headers)
}

/// A request without `Origin` passes: browsers send it with every request of a foreign page that is
/// not a plain GET.
pub(super) fn refuse_foreign_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    if headers.get_all(ORIGIN).iter().all(|origin| is_own_origin(origin.to_str().unwrap_or(""), uri, headers)) {
        Ok(())
    } else {
        Err(Failure::foreign("the request comes from another origin"))
    }
}

/// Whether an origin is the host that the request was sent to. Schemes are not compared, because a
/// proxy may terminate TLS.
fn is_own_origin(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(http::uri::Authority::as_str));
    matches!((authority, host), (Some(ours), Some(host)) if !host.is_empty() && ours.eq_ignore_ascii_case(host))
}

/// Whether the request has an `Origin`, and it is our own.
pub(super) fn names_own_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) && refuse_foreign_origin(uri, headers).is_ok()
}

fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let plain = extensions.get::<SocketAddr>().copied();
    let peer = plain.or_else(|| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0))?;
    Some(network_prefix(peer.ip()))
}

/// The /64 of an IPv6 address, because one host can use all addresses of it.
fn network_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        plain @ IpAddr::V4(_) => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<http::HeaderName>().expect("a name"), value.parse().expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_bearer_authorization_is_accepted() {
        assert_eq!(parse_bearer(&headers(&[("authorization", "bearer t1")])).ok(), Some(Some("t1")));
        assert_eq!(parse_bearer(&headers(&[("cookie", "sandbar_session=c1")])).ok(), Some(None));
        assert!(parse_bearer(&headers(&[("authorization", "Basic dTpw")])).is_err());
    }

    #[test]
    fn ipv6_addresses_are_limited_by_network() {
        for (address, counted) in
            [("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::")]
        {
            assert_eq!(network_prefix(address.parse().expect("an address")).to_string(), counted);
        }
    }

    #[test]
    fn cookie_writes_require_header_and_own_origin() {
        let check = |pairs: &[(&str, &str)]| {
            let mut all = vec![("host", "localhost:4980")];
            all.extend_from_slice(pairs);
            refuse_foreign(&Uri::from_static("/api/generation"), &headers(&all)).is_ok()
        };
        let sent = ("x-sandbar-csrf", "1");
        assert!(check(&[sent]));
        assert!(check(&[sent, ("origin", "http://localhost:4980")]));
        assert!(check(&[sent, ("origin", "https://LOCALHOST:4980")]), "behind a proxy that ends TLS");
        assert!(!check(&[("origin", "http://localhost:4980")]), "no header");
        assert!(!check(&[("x-sandbar-csrf", "0")]));
        let foreign =
            ["null", "", "http://3000-iabc.localhost:4980", "http://localhost", "http://localhost:4981", "file://x"];
        for origin in foreign {
            assert!(!check(&[sent, ("origin", origin)]), "{origin}");
        }
    }
}
