//! The few calls of the distribution protocol that a pull needs, over a client that trusts no
//! registry: every URL is checked before it is requested, redirects included, and every response
//! has a size limit and a deadline.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::challenge::Challenge;
use super::reach::Reach;
use super::{Credentials, SILENCE_TIMEOUT};
use unpack::MOST_BYTES;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// From a request to the last byte of a document, also when the registry sends byte by byte.
const DOCUMENT_DEADLINE: Duration = Duration::from_secs(60);
/// Blob stores answer at the second host, mirrors at the third.
const MOST_REDIRECTS: usize = 5;
/// Limit of a token; those of Docker's registry have 3 KB.
const MOST_TOKEN: usize = 64 << 10;
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The document does not exist.
    Absent,
    /// The credentials do not suffice.
    Denied,
    Other(String),
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

pub(super) struct Client {
    http: reqwest::Client,
    reach: Reach,
    /// Of the registry: only requests to it carry the authorization.
    base: Url,
    repository: String,
    pub(super) authorization: Option<HeaderValue>,
    document_deadline: Duration,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Client {
    /// For one repository of the registry at `base`.
    pub(super) fn new(base: Url, repository: String, reach: Reach) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .dns_resolver(reach.resolver())
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_TIMEOUT)
            .user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::Other(chain(&error)))?;
        let document_deadline = DOCUMENT_DEADLINE;
        Ok(Self { http, reach, base, repository, authorization: None, document_deadline })
    }

    #[cfg(test)]
    pub(super) fn with_deadline(mut self, deadline: Duration) -> Self {
        self.document_deadline = deadline;
        self
    }

    /// Asks the registry which authorization it requires, and obtains it.
    pub(super) async fn authorize(&mut self, credentials: Option<&Credentials>) -> Result<(), Failure> {
        let url = self.url("/v2/")?;
        let answer = self.within(self.request(url, None)).await?;
        let header = answer.headers().get(WWW_AUTHENTICATE).and_then(|header| header.to_str().ok());
        let basic = |request: RequestBuilder| match credentials {
            Some(Credentials { username, password }) => request.basic_auth(username, Some(password)),
            None => request,
        };
        match header.and_then(Challenge::parse) {
            None => Ok(()),
            Some(Challenge::Basic) => {
                // Written by the client's own code, and taken from it.
                let request = basic(self.http.get(self.base.clone())).build();
                let request = request.map_err(|error| Failure::Other(chain(&error)))?;
                self.authorization = request.headers().get(AUTHORIZATION).cloned();
                Ok(())
            }
            Some(Challenge::Bearer { realm, service }) => {
                let scope = format!("repository:{}:pull", self.repository);
                let mut url: Url = realm.parse().map_err(|_| "its token endpoint has no URL".to_owned())?;
                if url.scheme() != self.base.scheme() && url.scheme() != "https" {
                    return Err("its token endpoint would take the password without TLS".to_owned().into());
                }
                let service = service.as_deref().map(|service| ("service", service));
                url.query_pairs_mut().append_pair("scope", &scope).extend_pairs(service);
                self.reach.admit(&url).await?;
                let answer = self.within(async { Ok(send(basic(self.http.get(url))).await?) }).await?;
                let status = answer.status();
                if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                    return Err(Failure::Denied);
                }
                if !status.is_success() {
                    return Err(format!("its token endpoint answered {status}").into());
                }
                let body = self.within(read(answer, MOST_TOKEN)).await?;
                let token: Token =
                    serde_json::from_slice(&body).map_err(|_| "its token endpoint sent no token".to_owned())?;
                let token = token.token.or(token.access_token).unwrap_or_default();
                let value = HeaderValue::try_from(format!("Bearer {token}"));
                let mut value = value.map_err(|_| "its token endpoint sent no token".to_owned())?;
                value.set_sensitive(true);
                self.authorization = Some(value);
                Ok(())
            }
        }
    }

    /// An index or a manifest, by tag or digest, with its media type.
    pub(super) async fn manifest(&self, reference: &str) -> Result<(Vec<u8>, String), Failure> {
        let url = self.url(&format!("/v2/{}/manifests/{reference}", self.repository))?;
        let answer = self.within(self.follow(url, Some(MANIFEST_TYPES))).await?;
        let kind = answer.headers().get(reqwest::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        Ok((self.document(answer).await?, kind))
    }

    /// A small blob, whole.
    pub(super) async fn small_blob(&self, digits: &str) -> Result<Vec<u8>, Failure> {
        let answer = self.within(self.blob(digits)).await?;
        self.document(answer).await
    }

    /// A blob, to be read in chunks.
    pub(super) async fn blob(&self, digits: &str) -> Result<Response, Failure> {
        self.follow(self.url(&format!("/v2/{}/blobs/sha256:{digits}", self.repository))?, None).await
    }

    async fn document(&self, answer: Response) -> Result<Vec<u8>, Failure> {
        self.within(read(answer, MOST_BYTES as usize)).await
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = || Failure::Other(format!("the registry took longer than {:?}", self.document_deadline));
        tokio::time::timeout(self.document_deadline, call).await.map_err(|_| late())?
    }

    fn url(&self, path: &str) -> Result<Url, Failure> {
        let whole = format!("{}{path}", self.base.as_str().trim_end_matches('/'));
        let url: Url = whole.parse().map_err(|_| Failure::Absent)?;
        // A repository or tag with dots in it must not become another path.
        if url.path().ends_with(path) { Ok(url) } else { Err(Failure::Absent) }
    }

    /// Follows redirects; returns a successful response.
    async fn follow(&self, mut url: Url, accept: Option<&'static str>) -> Result<Response, Failure> {
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.request(url.clone(), accept).await?;
            let status = answer.status();
            match status {
                _ if status.is_success() => return Ok(answer),
                _ if status.is_redirection() => {
                    let next = answer.headers().get(LOCATION).and_then(|place| place.to_str().ok());
                    let next = next.and_then(|place| url.join(place).ok());
                    let next = next.ok_or_else(|| "the registry redirects to nothing".to_owned())?;
                    let is_web = matches!(next.scheme(), "http" | "https");
                    if !is_web || (url.scheme() == "https" && next.scheme() == "http") {
                        return Err("the registry redirects to a place without TLS".to_owned().into());
                    }
                    url = next;
                }
                StatusCode::NOT_FOUND => return Err(Failure::Absent),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(Failure::Denied),
                _ => return Err(format!("the registry answered {status}").into()),
            }
        }
        Err("the registry redirects without end".to_owned().into())
    }

    async fn request(&self, url: Url, accept: Option<&'static str>) -> Result<Response, Failure> {
        self.reach.admit(&url).await?;
        let mut headers = HeaderMap::new();
        if let Some(authorization) = self.authorization.clone().filter(|_| url.origin() == self.base.origin()) {
            headers.insert(AUTHORIZATION, authorization);
        }
        headers.extend(accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept))));
        Ok(send(self.http.get(url).headers(headers)).await?)
    }
}

async fn send(request: RequestBuilder) -> Result<Response, String> {
    request.send().await.map_err(|error| chain(&error.without_url()))
}

/// The body, which may have `most` bytes.
async fn read(mut answer: Response, most: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| chain(&error.without_url()))? {
        if body.len() + piece.len() > most {
            return Err(format!("the registry sent more than the {most} bytes that are allowed here").into());
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
