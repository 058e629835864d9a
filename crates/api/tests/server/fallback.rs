//! Requests for neither the control plane nor the edge go to the fallback service.

use std::convert::Infallible;
use std::net::SocketAddr;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use node::SandboxesConfig;
use sandbar_api::{Content, Fallback};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Body, KEY, Server, answer_as_service};

async fn start(fallback: Fallback) -> Server {
    Server::with_fallback(SandboxesConfig::default(), true, fallback).await
}

/// Responds like the service in a sandbox, except for `/peer` with the client's address, `/read`
/// with the request's body, and `/unread` without reading it.
async fn answer(request: Request<Content>) -> Result<Response<Body>, Infallible> {
    let text = match request.uri().path() {
        "/peer" => request.extensions().get::<SocketAddr>().expect("the peer's address").ip().to_string().into(),
        "/read" => request.into_body().collect().await.expect("a whole body").to_bytes(),
        "/unread" => "not read".into(),
        _ => return answer_as_service(request).await,
    };
    Ok(Response::new(Full::new(text).boxed()))
}

#[tokio::test]
async fn the_fallback_gets_other_requests_only() {
    let server = start(Fallback::new(service_fn(answer))).await;
    for path in ["/", "/api/jobs?limit=1", "/assets/app.js"] {
        let seen = server.send(&format!("GET {path}"), &[], "").await;
        assert_eq!((seen.status.as_u16(), &seen.json()["uri"]), (200, &path.into()), "{path}");
    }
    assert_eq!(server.send("GET /peer", &[], "").await.text(), "127.0.0.1");
    assert_eq!(server.send("POST /read", &[], "some words").await.text(), "some words");
    assert_eq!(server.send("POST /unread", &[], vec![0; 1 << 20]).await.text(), "not read");
    assert_eq!(server.send("GET /health", &[], "").await.text(), "OK");
    assert_eq!(server.send("GET /v2/sandboxes", &[], "").await.status, 401);
    assert_eq!(server.send("GET /v2/sandboxes", &[("x-api-key", KEY)], "").await.status, 200);
    assert_eq!(server.send("GET /sandboxes/none/nothing", &[("x-api-key", KEY)], "").await.status, 404);
    assert_eq!(server.send("GET /", &[("host", "3000-iabc.localhost")], "").await.status, 502);
}

#[tokio::test]
async fn the_fallback_can_upgrade_a_connection() {
    let server = start(Fallback::new(service_fn(answer))).await;
    let mut response = server.open("GET /ws", &[("connection", "Upgrade"), ("upgrade", "echo")], "").await;
    assert_eq!(response.status(), 101);
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("an upgrade"));
    io.write_all(b"hello").await.expect("sent");
    let mut back = [0; 5];
    io.read_exact(&mut back).await.expect("echoed");
    assert_eq!(&back, b"hello");
}

#[tokio::test]
async fn without_a_fallback_other_paths_are_not_found() {
    let server = Server::start().await;
    let answer = server.send("GET /api/jobs", &[], "").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["message"], "path '/api/jobs' not found");
}
