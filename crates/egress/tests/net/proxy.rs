//! Proxies of a sandbox's owner: SOCKS5 and CONNECT, with credentials, over TLS; no connection ever
//! bypasses them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use rustls::ServerConfig;
use sandbar_egress::{EgressConfig, Proxy, ProxyTls, Rules};

use crate::dns::{ask, config, name_server};
use crate::lab::{HOST, Namespace, SERVER, World, at, greeting, refusal};
use crate::tls::{authority, head, header, secured, trust};

const PASSWORD: &str = "hunter2";
const CREDENTIALS: &str = "me:hunter2";

/// The requests to a proxy: credentials and target.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

trait Both: Read + Write {}
impl<T: Read + Write> Both for T {}

fn exact<const COUNT: usize>(stream: &mut dyn Both) -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The server's side of SOCKS5 with credentials; returns the credentials and the requested target.
fn socks(stream: &mut dyn Both) -> io::Result<(String, String)> {
    let [version, methods] = exact(stream)?;
    assert_eq!(version, 5);
    let mut offered = vec![0; methods.into()];
    stream.read_exact(&mut offered)?;
    assert!(offered.contains(&2));
    stream.write_all(&[5, 2])?;
    stream.flush()?;
    let text = |stream: &mut dyn Both| -> io::Result<String> {
        let [length] = exact(stream)?;
        let mut bytes = vec![0; length.into()];
        stream.read_exact(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap())
    };
    let [_] = exact::<1>(stream)?;
    let credentials = format!("{}:{}", text(stream)?, text(stream)?);
    stream.write_all(&[1, u8::from(credentials != CREDENTIALS)])?;
    stream.flush()?;
    let [_, command, _, kind] = exact(stream)?;
    assert_eq!(command, 1);
    let host = match kind {
        1 => Ipv4Addr::from(exact::<4>(stream)?).to_string(),
        3 => text(stream)?,
        other => panic!("kind {other}"),
    };
    let port = u16::from_be_bytes(exact(stream)?);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok((credentials, format!("{host}:{port}")))
}

fn http_connect(stream: &mut dyn Both) -> io::Result<(String, String)> {
    let mut reader: &mut dyn Read = stream;
    let head = head(&mut reader).ok_or(ErrorKind::UnexpectedEof)?;
    let target = head.split(' ').nth(1).unwrap().to_owned();
    // "me:hunter2" in base 64.
    let right = header(&head, "proxy-authorization") == Some("Basic bWU6aHVudGVyMg==");
    let answer = if right { "200 Connection established" } else { "407 Proxy Authentication Required" };
    write!(stream, "HTTP/1.1 {answer}\r\nVia: test\r\n\r\n")?;
    Ok((if right { CREDENTIALS } else { "wrong" }.to_owned(), target))
}

/// Starts a proxy that connects every request to `target` and returns what it reads to the end: the
/// targets send little.
fn proxy(
    place: &Namespace,
    address: SocketAddr,
    config: Option<Arc<ServerConfig>>,
    speak: fn(&mut dyn Both) -> io::Result<(String, String)>,
    target: SocketAddr,
) -> (SocketAddr, Asked) {
    let (asked, namespace) = (Asked::default(), place.fd().try_clone_to_owned().unwrap());
    let noted = Arc::clone(&asked);
    let bound = place.serve_tcp_at(address, move |stream| {
        let mut stream: Box<dyn Both> = match &config {
            Some(config) => Box::new(secured(stream, config)),
            None => Box::new(stream),
        };
        let Ok((credentials, wanted)) = speak(&mut *stream) else { return };
        let right = credentials == CREDENTIALS;
        noted.lock().push((credentials, wanted));
        if !right {
            return;
        }
        let answer = thread::scope(|scope| {
            let visiting = scope.spawn(|| {
                crate::lab::enter(std::os::fd::AsFd::as_fd(&namespace));
                let mut bytes = Vec::new();
                TcpStream::connect(target).and_then(|mut far| far.read_to_end(&mut bytes)).map(|_| bytes)
            });
            visiting.join().unwrap()
        });
        let _ = stream.write_all(&answer.unwrap());
        let _ = stream.flush();
    });
    (bound, asked)
}

fn through(address: &str, password: &str, tls: Option<ProxyTls>) -> Rules {
    Rules::default().with_proxy(Some(Proxy::new(address, Some("me"), Some(password), tls).unwrap()))
}

#[test]
fn connections_go_through_the_proxy_with_their_names() {
    let (world, directory) = (World::new(), tempfile::tempdir().unwrap());
    let internet = &world.internet;
    let names = name_server(internet, SERVER, 0);
    let target = internet.greet(SERVER);
    let outer = authority(directory.path(), "outer");
    let served = outer.server_config(&[]);
    let trust = trust(&directory.path().join("inner"), Vec::new());
    let config = || EgressConfig { trust: Some(Arc::clone(&trust)), ..config(names) };
    let trusting = |server_name: Option<&str>| ProxyTls {
        server_name: server_name.map(str::to_owned),
        certificates: Some(outer.certificate_pem().to_owned()),
    };
    let at_server = |port| at(SERVER, port);
    let (plain_socks, asked_socks) = proxy(internet, at_server(0), None, socks, target);
    let (plain_connect, asked_connect) = proxy(internet, at_server(0), None, http_connect, target);
    let (tls_socks, asked_tls) = proxy(internet, at_server(0), Some(Arc::clone(&served)), socks, target);
    let (tls_connect, asked_tls_connect) = proxy(internet, at_server(0), Some(served), http_connect, target);
    for (address, tls, asked) in [
        // The proxy's own name is resolved, too.
        (format!("public.example:{}", plain_socks.port()), None, &asked_socks),
        (format!("http://{plain_connect}"), None, &asked_connect),
        (format!("public.example:{}", tls_socks.port()), Some(trusting(None)), &asked_tls),
        (format!("https://{tls_connect}"), Some(trusting(Some("other.name"))), &asked_tls_connect),
    ] {
        let sandbox = world.sandbox_with(config(), through(&address, PASSWORD, tls));
        sandbox.run(|| {
            assert_eq!(greeting(target).unwrap(), "welcome", "{address}");
            ask("shared.example.", RecordType::A);
            assert_eq!(greeting(target).unwrap(), "welcome", "{address}");
        });
        let port = target.port();
        let expected = [format!("{SERVER}:{port}"), format!("shared.example:{port}")];
        let asked: Vec<_> = asked.lock().iter().map(|(_, target)| target.clone()).collect();
        assert_eq!(asked, expected, "{address}: names are the proxy's to resolve");
    }

    // A denied connection never reaches the proxy, and no connection bypasses a proxy that fails.
    let before = asked_socks.lock().len();
    let socks_address = plain_socks.to_string();
    let denied = Rules::new(&[], &["198.51.100.2"], &[]).unwrap();
    let proxied = Proxy::new(&socks_address, Some("me"), Some(PASSWORD), None).unwrap();
    let sandbox = world.sandbox_with(config(), denied.with_proxy(Some(proxied)));
    assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused);
    assert_eq!(asked_socks.lock().len(), before);
    for (rules, reason) in [
        (through(&socks_address, "wrong-password", None), "it does not take the credentials"),
        (through(&format!("http://{plain_connect}"), "wrong-password", None), "it does not take the credentials"),
        (through(&target.to_string(), PASSWORD, None), "it does not speak SOCKS5"),
        (through(&format!("{SERVER}:1"), PASSWORD, None), "it cannot be reached"),
        (through("nowhere.example:1080", PASSWORD, None), "its name cannot be resolved"),
        (through(&format!("{HOST}:1080"), PASSWORD, None), "it is an address of the host"),
        (through("127.0.0.1:1080", PASSWORD, None), "it is an address of the host"),
        (through(&tls_socks.to_string(), PASSWORD, Some(ProxyTls::default())), "it cannot be verified"),
        (through(&tls_socks.to_string(), PASSWORD, Some(trusting(Some("other.name")))), ""),
    ] {
        let sandbox = world.sandbox_with(config(), rules);
        let outcome = sandbox.run(|| greeting(target));
        let decisions = format!("{:?}", sandbox.heard());
        assert_eq!(outcome.is_ok(), reason.is_empty(), "{reason}: {decisions}");
        assert!(
            decisions.contains(reason) && !decisions.contains(PASSWORD) && !decisions.contains("wrong-password"),
            "{decisions}"
        );
    }
}
