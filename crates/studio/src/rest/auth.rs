//! Who asks: by a bearer token, or by the cookie of a session, which browsers send along with whatever
//! makes them ask. So, with the cookie, a request that changes something needs a header that no foreign
//! page can set, and comes from our own origin.

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
use crate::token::Digest;

const CSRF: &str = "x-sandbar-csrf";

/// How somebody showed who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    Bearer,
    Cookie,
}

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) user: User,
    pub(super) proof: Proof,
    /// Of the access token or the session that was shown.
    pub(super) credential: Digest,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Failure::unauthorized("nobody is signed in"))
    }
}

/// Lets a request pass that somebody may make, and notes who.
pub(super) async fn identify(State(app): State<Shared>, request: Request, next: Next) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let caller = caller(&app, &parts).await?;
    let changes = !parts.method.is_safe();
    if changes && caller.proof == Proof::Cookie {
        refuse_foreign(&parts.uri, &parts.headers)?;
    }
    let id = &caller.user.id;
    let allowed = if changes { app.gate.write(id) } else { app.gate.read(id) };
    allowed.map_err(Failure::too_many)?;
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

async fn caller(app: &App, request: &Parts) -> Result<Caller, Failure> {
    if let Some(token) = bearer(&request.headers)? {
        if let Some(credential) = Digest::of(token)
            && let Some(user) = app.studio.authenticate(&credential).await?
        {
            return Ok(Caller { user, proof: Proof::Bearer, credential });
        }
        return Err(wrong_token(app, &request.extensions));
    }
    let session = cookie::session(request)?.ok_or_else(|| Failure::unauthorized("nobody is signed in"))?;
    if let Some(credential) = Digest::of_session(session)
        && let Some(user) = app.studio.authenticate_session(&credential).await?
    {
        return Ok(Caller { user, proof: Proof::Cookie, credential });
    }
    match app.gate.wrong_token(peer(&request.extensions)) {
        Ok(()) => Err(Failure::unauthorized("the session has ended; sign in again")),
        Err(wait) => Err(Failure::too_many(wait)),
    }
}

/// Says so, but not as often as somebody likes to try.
pub(super) fn wrong_token(app: &App, extensions: &Extensions) -> Failure {
    match app.gate.wrong_token(peer(extensions)) {
        Ok(()) => Failure::unauthorized("the token is not known here"),
        Err(wait) => Failure::too_many(wait),
    }
}

/// The token of the `Authorization` header, if there is one. It counts more than a cookie.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
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

/// Who names no origin is no page of another one: browsers name it with everything but plain reading.
pub(super) fn refuse_foreign_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    if headers.get_all(ORIGIN).iter().all(|origin| is_own(origin.to_str().unwrap_or(""), uri, headers)) {
        Ok(())
    } else {
        Err(Failure::foreign("the request comes from another origin"))
    }
}

/// Whether an origin is the one that the request was sent to. Its scheme is not compared: a proxy before us may have ended TLS.
fn is_own(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(http::uri::Authority::as_str));
    matches!((authority, host), (Some(ours), Some(host)) if !host.is_empty() && ours.eq_ignore_ascii_case(host))
}

/// Whether a page of our own origin asks; who names none does not count.
pub(super) fn names_own_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) && refuse_foreign_origin(uri, headers).is_ok()
}

fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let plain = extensions.get::<SocketAddr>().copied();
    let peer = plain.or_else(|| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0))?;
    Some(whole_network(peer.ip()))
}

/// Who has one address of the newer kind has a network of them, and could try from each.
fn whole_network(address: IpAddr) -> IpAddr {
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
    fn an_authorization_header_is_a_bearer_token_or_refused() {
        assert_eq!(bearer(&headers(&[("authorization", "bearer t1")])).ok(), Some(Some("t1")));
        assert_eq!(bearer(&headers(&[("cookie", "sandbar_session=c1")])).ok(), Some(None));
        assert!(bearer(&headers(&[("authorization", "Basic dTpw")])).is_err());
    }

    #[test]
    fn a_network_counts_as_one() {
        for (address, counted) in
            [("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::")]
        {
            assert_eq!(whole_network(address.parse().expect("an address")).to_string(), counted);
        }
    }

    #[test]
    fn only_our_own_pages_may_change_something_by_cookie() {
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
