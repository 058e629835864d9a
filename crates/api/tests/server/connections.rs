//! Connections beneath HTTP: their timeouts and limits.

use std::io;
use std::time::Duration;

use crate::support::{KEY, MAX_CONNECTIONS, Server, TIMEOUT};
use testing::{SOON, eventually_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// One request on a connection that is kept.
async fn ask(stream: &mut TcpStream) -> io::Result<()> {
    let request = format!("GET /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n[]") {
        answer.push(stream.read_u8().await?);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    Ok(())
}

/// Whether the server closes the connection within `limit`.
async fn is_closed(stream: &mut TcpStream, limit: Duration) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(limit, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn every_head_has_a_timeout_and_idle_connections_are_kept() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    ask(&mut stream).await.expect("an answer");
    tokio::time::sleep(Duration::from_secs(600)).await;
    ask(&mut stream).await.expect("an answer");
    let begun = Instant::now();
    // A byte now and then does not extend it.
    for piece in ["GET /v2/sand", "boxes HTTP/1.1\r\n", "Host: loc"] {
        stream.write_all(piece.as_bytes()).await.expect("the head is read");
        assert!(!is_closed(&mut stream, Duration::from_secs(8)).await, "after {:?}", begun.elapsed());
    }
    assert!(is_closed(&mut stream, Duration::from_secs(60)).await, "a head that is never finished is cut");
    assert!(begun.elapsed() < Duration::from_secs(35), "after {:?}", begun.elapsed());
}

/// A head of about `size` bytes, without its end.
fn large_head(size: usize) -> String {
    let filler = "a".repeat(1000);
    let lines: String = (0..size / 1000).map(|number| format!("X-Filler-{number}: {filler}\r\n")).collect();
    format!("GET /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n{lines}")
}

#[tokio::test]
async fn heads_are_bounded_in_size_also_on_a_kept_connection() {
    let server = Server::start().await;
    for requests_before in [0, 1] {
        for finished in [true, false] {
            let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
            for _ in 0..requests_before {
                ask(&mut stream).await.expect("an answer");
            }
            let head = large_head(80_000) + if finished { "\r\n" } else { "" };
            // The server may close before all of it is sent.
            let _ = stream.write_all(head.as_bytes()).await;
            let mut answer = Vec::new();
            let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await;
            assert!(read.is_ok(), "the connection stays open after {requests_before} requests");
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        }
    }
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    for _ in 0..2 {
        stream.write_all((large_head(40_000) + "\r\n").as_bytes()).await.expect("it is read");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n[]") {
            answer.push(stream.read_u8().await.expect("an answer"));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "the control: what is below the limit is answered");
    }
}

/// The first read may have the head and exactly as much of the body as a head may have in all.
#[tokio::test]
async fn a_body_that_comes_with_its_head_is_read() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    let body = format!("{}{{}}", " ".repeat(200_000));
    let head = format!(
        "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    for _ in 0..2 {
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it is read");
        let mut answer = [0; 12];
        let read = tokio::time::timeout(TIMEOUT, stream.read_exact(&mut answer)).await;
        read.expect("the server reads the body").expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 "), "{answer:?}");
        stream = TcpStream::connect(server.address).await.expect("the server listens");
        ask(&mut stream).await.expect("an answer");
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_others_served() {
    let server = Server::start().await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        ask(&mut stream).await.expect("an answer");
        open.push(stream);
    }
    let mut one_more = TcpStream::connect(server.address).await.expect("the kernel accepts it");
    assert!(is_closed(&mut one_more, TIMEOUT).await);
    ask(&mut open[0]).await.expect("an answer");
    open.truncate(MAX_CONNECTIONS / 2);
    eventually_async("the places of closed connections are free", SOON, async || {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        ask(&mut stream).await.ok()
    })
    .await;
}
