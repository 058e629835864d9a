//! The authority as its users see it, and its leaves as TLS clients do.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

use super::*;
use crate::leaves::{LIFETIME, MOST, RENEWAL};

fn open(directory: &Path) -> Authority {
    Authority::open(directory, "Sandbar test", &[]).expect("an authority")
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).expect("PEM"))
        .expect("an authority");
    Arc::new(roots)
}

fn verify(authority: &Authority, leaf: &CertifiedKey, name: &str, now: SystemTime) -> Result<(), rustls::Error> {
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots(authority), provider()).build().expect("a verifier");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let since = now.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let now = UnixTime::since_unix_epoch(since);
    verifier.verify_server_cert(leaf.end_entity_cert().expect("a leaf"), &[], &name, &[], now).map(|_| ())
}

#[test]
fn made_once_and_loaded_again() {
    let data = tempfile::tempdir().expect("a directory");
    let directory = data.path().join("authority/hosts");
    let first = open(&directory);
    let leaf = first.certified("a.localhost").expect("a leaf");
    let second = open(&directory);
    assert_eq!(first.certificate_pem(), second.certificate_pem());
    assert_eq!(fs::read_to_string(second.certificate_path()).expect("the certificate"), second.certificate_pem());
    // Another name is for a new authority only; what this one signs still says who signed it.
    let renamed = Authority::open(&directory, "Another name", &[]).expect("an authority");
    for authority in [&second, &renamed] {
        verify(authority, &leaf, "a.localhost", SystemTime::now()).expect("signed by the same");
        let leaf = authority.certified("b.localhost").expect("a leaf");
        verify(&first, &leaf, "b.localhost", SystemTime::now()).expect("signed by the same");
    }
}

#[test]
fn of_an_authority_for_some_names_others_are_not_believed() {
    let data = tempfile::tempdir().expect("a directory");
    let made = Authority::open(&data.path().join("some"), "Sandbar test", &["localhost", "sandbox.test"]).expect("one");
    let loaded = Authority::open(&data.path().join("some"), "Sandbar test", &[]).expect("the same");
    let any = open(&data.path().join("any"));
    // Whoever has the key can sign for any name.
    let believed = |authority: &Authority, name: &str| {
        verify(authority, &authority.certified(name).expect("a leaf"), name, SystemTime::now()).is_ok()
    };
    for name in ["localhost", "8000-i.localhost", "sandbox.test", "8000-i.sandbox.test", "127.0.0.1", "::1"] {
        assert!(believed(&made, name) && believed(&loaded, name), "{name}");
    }
    for name in ["example.com", "notlocalhost", "sandbox.test.example", "test"] {
        assert!(!believed(&made, name) && !believed(&loaded, name) && believed(&any, name), "{name}");
    }
}

#[test]
fn the_key_is_its_owner_s() {
    let data = tempfile::tempdir().expect("a directory");
    let directory = data.path().join("hosts");
    let authority = open(&directory);
    let mode = |name: &str| fs::metadata(directory.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode("key.pem"), 0o600);
    assert_eq!(mode("certificate.pem"), 0o644);
    assert_eq!(mode(""), 0o700);
    let key = fs::read_to_string(directory.join("key.pem")).expect("the key");
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n") && key.lines().all(|line| line.len() <= 64), "PEM");
    assert!(!authority.certificate_pem().contains("PRIVATE"));
    assert!(!format!("{authority:?}").contains(key.lines().nth(1).expect("a line")));
}

#[test]
fn of_many_at_once_one_makes_it() {
    let data = tempfile::tempdir().expect("a directory");
    let directory = data.path().join("hosts");
    let made: Vec<String> = thread::scope(|scope| {
        let open = || open(&directory).certificate_pem().to_owned();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("an authority")).collect()
    });
    assert!(made.iter().all(|certificate| *certificate == made[0]));
}

#[test]
fn what_a_killed_process_left_is_no_obstacle() {
    let data = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    open(other.path());
    // Killed between the two files, and while it wrote one.
    fs::copy(other.path().join("key.pem"), data.path().join("key.pem")).expect("a copy");
    fs::write(data.path().join(".certificate.pem.new"), "half").expect("a draft");
    let authority = open(data.path());
    verify(&authority, &authority.certified("a.test").expect("a leaf"), "a.test", SystemTime::now()).expect("valid");
    assert!(!data.path().join(".certificate.pem.new").exists());
}

#[test]
fn what_cannot_be_used_is_said_and_kept() {
    let data = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    open(data.path());
    open(other.path());
    let key = data.path().join("key.pem");
    let refused = |reason: &str| {
        let error = Authority::open(data.path(), "Sandbar test", &[]).expect_err("unusable").to_string();
        assert!(error.contains(reason) && error.contains("remove that directory"), "{error}");
    };
    fs::copy(other.path().join("key.pem"), &key).expect("a copy");
    refused("key.pem does not belong to certificate.pem");
    fs::write(&key, "rubbish").expect("a file");
    refused("key.pem: ");
    fs::remove_file(&key).expect("a file");
    refused("key.pem is missing");
}

#[test]
fn leaves_are_valid_for_their_name_only() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = open(data.path());
    let now = SystemTime::now();
    let long = format!("{}.{}.localhost", "a".repeat(63), "b".repeat(63));
    for (asked, good, bad) in [
        ("localhost", "localhost", "a.localhost"),
        ("49983-iabc.localhost", "49983-iabc.localhost", "49983-iabd.localhost"),
        ("*.sandbox.test", "8000-iabc.sandbox.test", "sandbox.test"),
        ("UPPER.test.", "upper.test", "upper.test2"),
        (&long, &long, "localhost"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        ("::1", "::1", "localhost"),
    ] {
        let leaf = authority.certified(asked).expect(asked);
        leaf.keys_match().expect(asked);
        verify(&authority, &leaf, good, now).expect(asked);
        verify(&authority, &leaf, bad, now).expect_err(asked);
    }
    for name in ["", "*", "*.", "a b", "a..b", "a/b", "*.*.test", "ä.test", "x:1", "a\n.test"] {
        let refused = authority.certified(name);
        assert!(matches!(refused, Err(AuthorityError::Name { .. })), "{name:?}: {refused:?}");
    }
}

#[test]
fn leaves_are_cached_and_bounded() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = open(data.path());
    let first = authority.certified("kept.test").expect("a leaf");
    for number in 0..MOST + 50 {
        authority.certified(&format!("{number}.test")).expect("a leaf");
        // One in use stays, whatever strangers ask for.
        assert!(Arc::ptr_eq(&first, &authority.certified("Kept.test").expect("a leaf")));
    }
    assert_eq!(authority.leaves.count(), MOST);
}

#[test]
fn leaves_are_renewed_before_they_end() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = open(data.path());
    let at = |now| authority.leaves.certified(&authority.kept.issuer, "a.test", now).expect("a leaf");
    let start = SystemTime::now();
    let first = at(start);
    assert!(Arc::ptr_eq(&first, &at(start + LIFETIME - RENEWAL - Duration::from_secs(1))));
    let late = start + LIFETIME - RENEWAL;
    let second = at(late);
    assert!(!Arc::ptr_eq(&first, &second));
    verify(&authority, &first, "a.test", late).expect("still valid when it is replaced");
    verify(&authority, &first, "a.test", start + LIFETIME + Duration::from_secs(60)).expect_err("ended");
    verify(&authority, &second, "a.test", start + LIFETIME + Duration::from_secs(60)).expect("the next");
}

/// A handshake in memory; what the client made of it.
fn handshake(authority: &Arc<Authority>, name: &str) -> Result<Option<Vec<u8>>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots(authority))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut server = ServerConnection::new(authority.server_config(&[b"h2", b"http/1.1"])).expect("a server");
    while client.is_handshaking() || server.is_handshaking() {
        let mut sent = Vec::new();
        client.write_tls(&mut sent).expect("memory");
        server.read_tls(&mut sent.as_slice()).expect("memory");
        let refused = server.process_new_packets();
        let mut answer = Vec::new();
        server.write_tls(&mut answer).expect("memory");
        client.read_tls(&mut answer.as_slice()).expect("memory");
        client.process_new_packets()?;
        refused?;
    }
    Ok(client.alpn_protocol().map(<[u8]>::to_vec))
}

#[test]
fn servers_show_what_is_asked_for() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = Arc::new(open(data.path()));
    assert_eq!(handshake(&authority, "8000-iabc.localhost").expect("a handshake"), Some(b"h2".to_vec()));
    // No name is sent for an address.
    handshake(&authority, "127.0.0.1").expect_err("refused");
}
