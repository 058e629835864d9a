//! The client as with a cloud: TLS with a private root certificate, and HTTP/2 with all streams on
//! one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbar_sdk::{
    CallError, Client, ClientBuilder, Command, CommandError, Connect, Create, FileEventKind, GoneReason, SandboxError,
    Watch,
};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;

use testing::Server;

const TWENTY: Duration = Duration::from_secs(20);

/// Terminates TLS and HTTP/2 and forwards requests to the server.
struct Front {
    url: String,
    certificate: reqwest::Certificate,
    /// Number of open connections.
    connections: Arc<AtomicUsize>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl Front {
    async fn to(server: &Server) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate = reqwest::Certificate::from_der(made.cert.der()).expect("a certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        let mut config = config.with_single_cert(vec![made.cert.der().clone()], key.into()).expect("they fit");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://localhost:{}", listener.local_addr().expect("an address").port());
        let connections = Arc::new(AtomicUsize::new(0));
        let (target, counted) = (format!("http://{}", server.address()), Arc::clone(&connections));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let http = reqwest::Client::new();
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, http, target) = (acceptor.clone(), http.clone(), target.clone());
                let counted = Arc::clone(&counted);
                client.set_nodelay(true).expect("a socket");
                open.spawn(async move {
                    // A client that does not trust the certificate fails the handshake.
                    let Ok(client) = acceptor.accept(client).await else { return };
                    counted.fetch_add(1, Ordering::SeqCst);
                    let pass = service_fn(move |request| pass_on(http.clone(), target.clone(), request));
                    let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    server.http2().max_concurrent_streams(100);
                    let _ = server.serve_connection(TokioIo::new(client), pass).await;
                    counted.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { url, certificate, connections, _tasks: tasks }
    }

    fn builder(&self, server: &Server) -> ClientBuilder {
        let builder = Client::builder().ignore_environment().api_key(server.key());
        builder.api_url(&self.url).sandbox_url(&self.url).keepalive(Duration::from_secs(1))
    }
}

async fn pass_on(
    http: reqwest::Client,
    target: String,
    request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<reqwest::Body>, reqwest::Error> {
    assert_eq!(request.version(), http::Version::HTTP_2);
    let (head, body) = request.into_parts();
    let url = format!("{target}{}", head.uri.path_and_query().map_or("/", |path| path.as_str()));
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    // A broken response resets its stream, as a cloud's edge does.
    let answer = http.request(head.method, url).headers(head.headers).body(body).send().await?;
    let mut answer: http::Response<reqwest::Body> = answer.into();
    answer.headers_mut().remove(http::header::TRANSFER_ENCODING);
    Ok(answer)
}

#[tokio::test]
async fn all_calls_work_over_tls_and_one_connection() {
    let server = Server::shared(&[]);
    let direct = server.sandbox().await;
    let front = Front::to(&server).await;

    let stranger = front.builder(&server).build().expect("valid options");
    let error = stranger.connect(direct.id(), Connect::default()).await.expect_err("an unknown certificate");
    let SandboxError::Call(CallError::Unreachable { cause, .. }) = &error else { panic!("{error:?}") };
    assert!(cause.contains("certificate"), "{cause}");

    let client = front.builder(&server).root_certificate(front.certificate.clone()).build().expect("valid options");
    let sandbox = client.connect(direct.id(), Connect::default()).await.expect("a known certificate");
    let (commands, files) = (sandbox.commands(), sandbox.files());
    assert_eq!(commands.run("echo out; exit 3").await.expect("it runs").exit.code, 3);

    // Many streams, some of them dropped, do not interfere.
    let mut watch = files.watch("/tmp", Watch::default()).await.expect("it is watched");
    let cat = commands.start(Command::new("cat").stdin()).await.expect("it starts");
    let noisy = commands.start("yes").await.expect("it starts");
    let runs = (0..20).map(|number| commands.run(format!("sleep 0.1; echo {number}")));
    let outputs = futures::future::try_join_all(runs).await.expect("all run");
    assert!(outputs.iter().enumerate().all(|(number, output)| output.stdout_text().trim() == number.to_string()));
    let noise = noisy.process();
    drop(noisy);
    noise.kill().await.expect("it is there");
    cat.send_stdin("through").await.expect("it is taken");
    cat.close_stdin().await.expect("it is closed");
    assert_eq!(cat.wait().await.expect("it ends").stdout, "through");

    let content = Bytes::from((0..=255).cycle().take(8_000_000).collect::<Vec<u8>>());
    files.write("/tmp/whole", content.clone()).await.expect("it is written");
    let pieces = content.chunks(100_000).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)));
    files.write_stream("/tmp/streamed", stream::iter(pieces.collect::<Vec<_>>())).await.expect("it is written");
    assert_eq!(files.read("/tmp/whole").await.expect("it is there"), content);
    let mut down = files.read_stream("/tmp/streamed").await.expect("it is there");
    let mut arrived = Vec::new();
    while let Some(chunk) = down.try_next().await.expect("it streams") {
        arrived.extend_from_slice(&chunk);
    }
    assert!(arrived == content);
    let event = watch.try_next().await.expect("it goes on").expect("an event");
    assert_eq!((event.name.as_str(), event.kind), ("whole", FileEventKind::Create));
    // Silent for more than two keepalive intervals, and alive.
    assert!(commands.run("sleep 2.5").await.expect("it runs").success());
    assert_eq!(front.connections.load(Ordering::SeqCst), 1);

    let running = commands.start("sleep 100").await.expect("it starts");
    direct.kill().await.expect("it ends");
    let error = running.wait().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
}

/// All streams share one connection and its flow-control window, which unread streams must not
/// exhaust.
#[tokio::test]
async fn unread_outputs_do_not_block_other_streams() {
    let server = Server::shared(&[]);
    let direct = server.sandbox().await;
    let front = Front::to(&server).await;
    let client = front.builder(&server).root_certificate(front.certificate.clone()).build().expect("valid options");
    let sandbox = client.connect(direct.id(), Connect::default()).await.expect("it is there");
    let commands = sandbox.commands();
    let noisy = (0..10).map(|_| commands.start("yes"));
    let noisy = futures::future::try_join_all(noisy).await.expect("all start");
    sandbox.files().write("big", vec![1; 10_000_000]).await.expect("it is written");

    let calls = async {
        assert_eq!(sandbox.files().read("big").await.expect("it is there").len(), 10_000_000);
        let output = commands.run("head -c 1000000 /dev/zero").await.expect("it runs");
        assert_eq!(output.stdout.len(), 1_000_000);
    };
    tokio::time::timeout(TWENTY, calls).await.expect("they are not held up");
    assert_eq!(front.connections.load(Ordering::SeqCst), 1);
    drop(noisy);
    direct.kill().await.expect("it ends");
}

/// The server permits a hundred streams per connection, like those of clouds.
#[tokio::test]
async fn streams_beyond_the_limit_use_more_connections() {
    let server = Server::shared(&[]);
    let direct = server.sandbox().await;
    let front = Front::to(&server).await;
    let client = front.builder(&server).root_certificate(front.certificate.clone()).build().expect("valid options");
    let sandbox = client.connect(direct.id(), Connect::default()).await.expect("it is there").within(TWENTY);
    let commands = sandbox.commands();
    let sleepers = (0..150).map(|_| commands.start(Command::exec("sleep", ["100"])));
    let sleepers = futures::future::try_join_all(sleepers).await.expect("all start");
    assert_eq!(commands.list().await.expect("a list").len(), sleepers.len());
    assert!(commands.run("true").await.expect("it runs").success());
    testing::eventually_async("only those that are needed stay", TWENTY, async || {
        (2..=4).contains(&front.connections.load(Ordering::SeqCst)).then_some(())
    })
    .await;
    drop(sleepers);
    direct.kill().await.expect("it ends");
}

/// TLS by the server itself instead of the frontend above.
#[tokio::test]
async fn the_server_terminates_tls_itself() {
    let server = Server::shared(&[]);
    let certificate = reqwest::Certificate::from_pem(&server.certificate()).expect("a certificate");
    let builder = Client::builder().ignore_environment().api_key(server.key());
    let builder = builder.api_url(server.https()).sandbox_url(server.https());
    let client = builder.root_certificate(certificate).build().expect("valid options");
    let sandbox = client.create(Create::template("base")).await.expect("a sandbox");
    let (commands, files) = (sandbox.commands(), sandbox.files());
    // More concurrent streams than a connection permits by default.
    let sleepers = (0..250).map(|_| commands.start(Command::exec("sleep", ["100"])));
    let sleepers = futures::future::try_join_all(sleepers).await.expect("all start");
    assert_eq!(commands.run("echo out; exit 3").await.expect("it runs").exit.code, 3);
    let content = Bytes::from((0..=255).cycle().take(5_000_000).collect::<Vec<u8>>());
    files.write("/tmp/whole", content.clone()).await.expect("it is written");
    assert!(files.read("/tmp/whole").await.expect("it is there") == content);
    drop(sleepers);
    let running = commands.start("sleep 100").await.expect("it starts");
    server
        .client()
        .connect(sandbox.id(), Connect::default())
        .await
        .expect("it is there")
        .kill()
        .await
        .expect("it ends");
    let error = running.wait().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
}
