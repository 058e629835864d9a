//! TLS for both ends of a test: a server that records its requests, a client that trusts one
//! authority.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ca::{Authority, AuthorityError};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use sandbar_egress::{InspectionAuthority, Trust};

use crate::lab::{Namespace, connect};

/// The heads of the requests that a server received.
pub(crate) type Heard = Arc<Mutex<Vec<String>>>;

pub(crate) fn authority(directory: &Path, name: &str) -> Arc<Authority> {
    Arc::new(Authority::open(&directory.join(name), name, &[]).unwrap())
}

/// Trusts the authorities of the files `roots` for targets, and signs with one in `directory`.
pub(crate) fn trust(directory: &Path, roots: Vec<PathBuf>) -> Arc<Trust> {
    let directory = directory.to_owned();
    let open = move || -> Result<_, AuthorityError> {
        let authority = Arc::new(Authority::open(&directory, "egress", &[])?);
        let certificate_pem = authority.certificate_pem().to_owned();
        Ok(InspectionAuthority { certificate_pem, server_config: authority.server_config(&[]) })
    };
    Arc::new(Trust::new(open, roots))
}

/// Reads to the end of a head; `None` at the end of the connection.
pub(crate) fn head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

/// Answers every request with `ok` and records its head; reads bodies by their length. A request to
/// upgrade turns the connection into an echo.
pub(crate) fn answer(stream: &mut (impl Read + Write), heard: &Heard) {
    while let Some(request) = head(stream) {
        let length = header(&request, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let upgrade = header(&request, "upgrade").is_some();
        heard.lock().push(request);
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        if upgrade {
            let _ =
                stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
            let _ = stream.flush();
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(&buffer[..count]);
                let _ = stream.flush();
            }
            return;
        }
        let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
        let text = format!("ok {sum}");
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        let _ = stream.flush();
    }
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// A plain HTTP server.
pub(crate) fn http_server(place: &Namespace, address: SocketAddr) -> (SocketAddr, Heard) {
    let heard = Heard::default();
    let noted = Arc::clone(&heard);
    (place.serve_tcp_at(address, move |mut stream| answer(&mut stream, &noted)), heard)
}

/// A server that speaks TLS with certificates of `authority`, for every requested name.
pub(crate) fn https_server(place: &Namespace, address: SocketAddr, authority: &Arc<Authority>) -> (SocketAddr, Heard) {
    let (config, heard) = (authority.server_config(&[b"http/1.1"]), Heard::default());
    let noted = Arc::clone(&heard);
    (place.serve_tcp_at(address, move |stream| answer(&mut secured(stream, &config), &noted)), heard)
}

pub(crate) fn secured(stream: TcpStream, config: &Arc<ServerConfig>) -> StreamOwned<ServerConnection, TcpStream> {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream)
}

/// A connection of a client that trusts `root` only.
pub(crate) fn tls(target: SocketAddr, name: &str, root: &str) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(ca::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = connect(target)?;
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// Sends one request and returns the whole answer.
pub(crate) fn ask_http(stream: &mut (impl Read + Write), request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let head = head(stream).ok_or(io::ErrorKind::UnexpectedEof)?;
    let length = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(head + &String::from_utf8(body).unwrap())
}

pub(crate) fn get(host: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\nAuthorization: mine\r\nauthorization: too\r\n\r\n")
}
