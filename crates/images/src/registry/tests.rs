//! Pulls from honest and hostile registries, which the tests serve themselves.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;

use super::client::{Client, Failure};
use super::reach::Reach;
use super::*;

/// A registry that calls `answer` per request with the path and the stream, to which it writes the
/// whole response.
struct Fake {
    address: SocketAddr,
    /// The heads of all requests.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }

    fn client(&self, named: bool, is_public: IsPublic) -> Client {
        let place = (self.address.ip().to_string(), self.address.port());
        let reach = Reach::new(named.then_some(place).into_iter().collect(), is_public);
        let base = format!("http://{}", self.address).parse().expect("a URL");
        Client::new(base, "a/b".to_owned(), reach).expect("a client").with_deadline(Duration::from_secs(20))
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<String>>, answer: &dyn Fn(&str, &mut TcpStream)) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
    while reader.read_line(&mut head).is_ok_and(|count| count > 2) {}
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().push(head);
    answer(&path, &mut stream);
}

fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // The client may have closed the connection, which some tests want.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Starts a body that has no end.
fn endless(stream: &mut TcpStream) -> bool {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n").is_ok()
}

/// Sends a body that never ends, and panics if the client reads far beyond every limit.
fn flood(stream: &mut TcpStream) {
    let piece = vec![b' '; 1 << 16];
    if endless(stream) {
        for _ in 0..4096 {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
        panic!("256 MiB were taken");
    }
}

fn nothing(_: IpAddr) -> bool {
    false
}

fn reason<T>(result: Result<T, Failure>) -> String {
    match result {
        Err(Failure::Other(cause)) => cause,
        Err(failure) => format!("{failure:?}"),
        Ok(_) => "success".to_owned(),
    }
}

#[tokio::test]
async fn documents_without_end_are_cut_off() {
    let fake = Fake::start(|path, stream| match path {
        "/v2/" => send(stream, "200 OK", "", b""),
        _ => flood(stream),
    });
    let client = fake.client(true, nothing);
    assert!(reason(client.manifest("v1").await).contains("4194304 bytes"));
    assert!(reason(client.small_blob(&"0".repeat(64)).await).contains("4194304 bytes"));
    // The control: a document of exactly the limit.
    let fake = Fake::start(|_, stream| send(stream, "200 OK", "", &vec![b' '; 4 << 20]));
    assert_eq!(fake.client(true, nothing).manifest("v1").await.expect("it fits").0.len(), 4 << 20);
}

#[tokio::test]
async fn a_token_endpoint_is_bounded_too() {
    let fake = Fake::start(|path, stream| {
        if path.starts_with("/token") {
            return flood(stream);
        }
        let realm = format!("http://{}/token", stream.local_addr().expect("an address"));
        send(stream, "401 Unauthorized", &format!("WWW-Authenticate: Bearer realm=\"{realm}\"\r\n"), b"");
    });
    assert!(reason(fake.client(true, nothing).authorize(None).await).contains("65536 bytes"));
    let elsewhere = Fake::start(|_, stream| {
        let bearer = "WWW-Authenticate: Bearer realm=\"http://169.254.169.254/latest\"\r\n";
        send(stream, "401 Unauthorized", bearer, b"");
    });
    let refused = reason(elsewhere.client(true, nothing).authorize(None).await);
    assert!(refused.contains("169.254.169.254:80 has no public address"), "{refused}");
}

#[tokio::test]
async fn drops_do_not_prolong_a_document() {
    let fake = Fake::start(|_, stream| {
        let mut is_open = endless(stream);
        while is_open {
            std::thread::sleep(Duration::from_millis(20));
            is_open = stream.write_all(b" ").is_ok();
        }
    });
    let client = fake.client(true, nothing).with_deadline(Duration::from_millis(500));
    let began = Instant::now();
    assert!(reason(client.manifest("v1").await).contains("took longer"));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test]
async fn redirects_are_judged_and_counted() {
    let inner = Fake::start(|_, stream| send(stream, "200 OK", "", b"secret of the host"));
    let target = format!("http://{}/x", inner.address);
    let fake = Fake::start(move |path, stream| {
        let location = if path.contains("/manifests/") { path.to_owned() } else { target.clone() };
        send(stream, "307 Temporary Redirect", &format!("Location: {location}\r\n"), b"");
    });
    let mut client = fake.client(true, nothing);
    assert!(reason(client.manifest("v1").await).contains("without end"));
    assert_eq!(fake.seen().len(), 6);
    let refused = reason(client.small_blob(&"0".repeat(64)).await);
    assert!(refused.contains("has no public address"), "{refused}");
    assert_eq!(inner.seen(), [""; 0], "nothing was connected to");
    // The control: the same redirect to a host that is public, without the registry's password.
    let credentials = Credentials { username: "me".to_owned(), password: "pw".to_owned() };
    client = fake.client(false, |_| true);
    client.authorization = Some("Basic bWU6cHc=".parse().expect("a header"));
    let body = client.small_blob(&"0".repeat(64)).await.expect("it is followed");
    assert_eq!(body, b"secret of the host");
    assert!(fake.seen().last().expect("a request").contains("authorization: Basic"));
    assert!(!inner.seen()[0].contains("authorization"), "{:?} {credentials:?}", inner.seen());
}

#[tokio::test]
async fn names_are_connected_to_where_they_were_judged() {
    let fake = Fake::start(|_, stream| send(stream, "200 OK", "", b"{}"));
    let base = || format!("http://localhost:{}", fake.address.port()).parse::<Url>().expect("a URL");
    let client = |is_public| {
        let reach = Reach::new(BTreeSet::new(), is_public);
        Client::new(base(), "a/b".to_owned(), reach).expect("a client")
    };
    let refused = reason(client(nothing).manifest("v1").await);
    let missing = Reach::new(BTreeSet::new(), nothing).admit(&"https://no-such.invalid".parse().expect("a URL")).await;
    let missing = missing.expect_err("it does not exist");
    assert_eq!(
        refused.split_once(" has ").map(|(_, why)| why.split(';').next()),
        missing.split_once(" has ").map(|(_, why)| why.split(';').next())
    );
    assert_eq!(fake.seen(), [""; 0]);
    // Judged public once; what the name leads to later is not asked.
    let client = client(|address| address == IpAddr::from([127, 0, 0, 1]));
    assert!(client.manifest("v1").await.is_ok());
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn overflowing_sizes_and_paths_in_digests_are_refused() {
    let layer = |digest: &str, size: u64| json!({ "digest": digest, "size": size });
    let digits = "a".repeat(64);
    let config = json!({ "rootfs": { "diff_ids": vec![format!("sha256:{digits}"); 4] } }).to_string();
    let config_digest = digest(config.as_bytes());
    let manifest = |digest: String, size: u64| {
        json!({ "config": layer(&config_digest, 1), "layers": vec![layer(&digest, size); 4] }).to_string()
    };
    let documents: BTreeMap<&str, String> = BTreeMap::from([
        ("large", manifest(format!("sha256:{digits}"), u64::MAX / 4 + 1)),
        ("away", manifest("sha256:../../../../etc".to_owned(), 1)),
    ]);
    let served = documents.clone();
    let fake = Fake::start(move |path, stream| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let body = served.get(name).map_or(config.as_bytes(), String::as_bytes);
        send(stream, "200 OK", "Content-Type: application/vnd.oci.image.manifest.v1+json\r\n", body);
    });
    let mirrors = Mirrors([(fake.address.to_string(), format!("http://{}", fake.address))].into());
    let find = async |tag: &str| {
        let name = format!("{}/a/b:{tag}", fake.address);
        RegistryImage::find(&name, None, &mirrors, nothing).await
    };
    let place = tempfile::tempdir().expect("a directory");
    let found = find("large").await.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(found.download(place.path(), 1 << 30, &|_| {}).await, Err(ImageError::TooLarge(_))));
    let found = find("away").await.unwrap_or_else(|error| panic!("{error}"));
    let refused = found.download(place.path(), 1 << 30, &|_| {}).await;
    assert!(matches!(refused, Err(ImageError::Malformed(_))), "{refused:?}");
    let name = format!("{}/a/b:large", fake.address);
    let unnamed = RegistryImage::find(&name, None, &Mirrors::default(), nothing).await;
    assert!(unnamed.is_err_and(|error| error.to_string().contains("has no public address")));
}

#[test]
fn only_loopback_and_http_mirrors_are_used_without_tls() {
    let mirrors =
        [("docker.io", "http://mirror.lan:5000/"), ("a.example", "https://127.0.0.1:5443"), ("b.example", "c.example")];
    let mirrors = Mirrors(mirrors.map(|(name, mirror)| (name.to_owned(), mirror.to_owned())).into());
    for (registry, host, is_plain) in [
        ("index.docker.io", "mirror.lan:5000", true),
        ("a.example", "127.0.0.1:5443", false),
        ("b.example", "c.example", false),
        ("docker.io", "mirror.lan:5000", true),
        ("localhost:5000", "localhost:5000", true),
        ("127.0.0.1:5000", "127.0.0.1:5000", true),
        ("[::1]:5000", "[::1]:5000", true),
        ("localhost.evil.example", "localhost.evil.example", false),
        ("127.evil.example:80", "127.evil.example:80", false),
    ] {
        assert_eq!(mirrors.resolve(registry), (host.to_owned(), is_plain), "{registry}");
    }
}
