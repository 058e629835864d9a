//! Who asks: by a bearer token, or by the session's cookie, which browsers send along with whatever makes them ask. So, with the
//! cookie, a request that changes something needs a header that no foreign page can set, and comes from our own origin.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use http::request::Parts;
use http::{Extensions, HeaderMap, Uri};

use super::failure::Failure;
use super::{App, Shared};
use crate::User;

/// The session's cookie: the token itself.
pub(super) const SESSION: &str = "sandbar_session";
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
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Failure::unauthorized("nobody is signed in"))
    }
}

/// Lets a request pass that somebody may make, and notes who.
pub(super) async fn identify(State(app): State<Shared>, mut request: Request, next: Next) -> Result<Response, Failure> {
    let caller = caller(&app, request.headers(), request.extensions()).await?;
    let changes = !request.method().is_safe();
    if changes && caller.proof == Proof::Cookie {
        refuse_foreign(request.uri(), request.headers())?;
    }
    let id = &caller.user.id;
    let allowed = if changes { app.gate.write(id) } else { app.gate.read(id) };
    allowed.map_err(Failure::too_many)?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

async fn caller(app: &App, headers: &HeaderMap, extensions: &Extensions) -> Result<Caller, Failure> {
    let (token, proof) = credential(headers)?;
    match app.studio.authenticate(token).await? {
        Some(user) => Ok(Caller { user, proof }),
        None => Err(wrong_token(app, extensions)),
    }
}

/// Says so, but not as often as somebody likes to try.
pub(super) fn wrong_token(app: &App, extensions: &Extensions) -> Failure {
    match app.gate.wrong_token(peer(extensions)) {
        Ok(()) => Failure::unauthorized("the token is not known here"),
        Err(wait) => Failure::too_many(wait),
    }
}

fn credential(headers: &HeaderMap) -> Result<(&str, Proof), Failure> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let text = value.to_str().unwrap_or("");
        return match text.split_at_checked("Bearer ".len()) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("Bearer ") => Ok((token, Proof::Bearer)),
            _ => Err(Failure::unauthorized("the Authorization header is no bearer token")),
        };
    }
    let cookie = cookie(headers, SESSION).ok_or_else(|| Failure::unauthorized("nobody is signed in"))?;
    Ok((cookie, Proof::Cookie))
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(key, value)| (key == name).then_some(value))
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

    fn found(pairs: &[(&str, &str)]) -> Option<(String, Proof)> {
        credential(&headers(pairs)).ok().map(|(token, proof)| (token.to_owned(), proof))
    }

    #[test]
    fn tokens_come_by_header_or_by_cookie_and_the_header_counts() {
        let cookie = ("cookie", "a=b; sandbar_session=c1; other=sandbar_session");
        assert_eq!(found(&[("authorization", "bearer t1"), cookie]), Some(("t1".into(), Proof::Bearer)));
        assert_eq!(found(&[cookie]), Some(("c1".into(), Proof::Cookie)));
        assert_eq!(found(&[("authorization", "Basic dTpw"), cookie]), None);
        assert_eq!(found(&[("cookie", "not_sandbar_session=c1")]), None);
        assert_eq!(found(&[]), None);
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
