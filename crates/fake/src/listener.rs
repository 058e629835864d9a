//! Serves connections until they end, are cut, or the server is dropped.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use protocol::headers::{API_KEY, SANDBOX_ID};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::exchange::{CutConnection, FakeContent, FakeRequest, FakeResponse, Pieces, refuse};
use crate::{KEY, Kind, Shared, control, envd};

pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    // A failed listener accepts no more connections.
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| exchange(Arc::clone(&shared), request));
            // An error is a client that disconnected, or a connection cut by a test.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, CutConnection>>>;

async fn exchange(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, CutConnection> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| CutConnection)?.to_bytes();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let request = FakeRequest { method: head.method, target, headers: head.headers, body };
    let fault = shared.record(&request);
    if let Some(fault) = &fault {
        tokio::time::sleep(fault.delay).await;
    }
    let answer = match fault.map(|fault| fault.kind) {
        Some(Kind::CutConnection) => return Err(CutConnection),
        Some(Kind::Status { status, message, headers }) => {
            let mut answer = refuse(status, message);
            answer.headers.extend(headers.into_iter().filter_map(|(name, value)| Some((name?, value))));
            answer
        }
        Some(Kind::Answer { status, body }) => FakeResponse::new(status, "application/json", body),
        Some(Kind::LoseAnswer) => {
            let _: FakeResponse = handle(&shared, &request);
            return Err(CutConnection);
        }
        Some(Kind::Pass) | None => handle(&shared, &request),
    };
    let FakeResponse { status, headers, content } = answer;
    let pieces: Pieces = match content {
        FakeContent::Whole(whole) => {
            let pieces = (!whole.is_empty()).then_some(Ok(whole));
            Box::pin(stream::iter(pieces))
        }
        FakeContent::Stream(pieces) => pieces,
    };
    let mut response = Response::new(StreamBody::new(pieces.map(|piece| piece.map(Frame::data)).boxed()));
    *response.status_mut() = http::StatusCode::from_u16(status).map_err(|_| CutConnection)?;
    let date = shared.state().clock.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    response.headers_mut().insert(http::header::DATE, date.try_into().map_err(|_| CutConnection)?);
    response.headers_mut().extend(headers);
    Ok(response)
}

fn handle(shared: &Shared, request: &FakeRequest) -> FakeResponse {
    let path = request.path();
    if request.headers.contains_key(SANDBOX_ID) {
        return envd::handle(shared, request);
    }
    if path.starts_with("/volumecontent/") || path.starts_with("/upload/") || path == "/health" {
        // A token or the signed link authorizes these.
    } else if request.header(API_KEY) != Some(KEY) {
        return refuse(401, "the API key is not valid for this server");
    }
    control::handle(shared, request)
}
