//! The authority through its public interface, and its leaves as TLS clients verify them.

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
use crate::leaves::{LIFETIME, MAX_LEAVES, RENEWAL_THRESHOLD};

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
fn an_authority_is_created_once_and_loaded_again() {
    let data = tempfile::tempdir().expect("a directory");
    let directory = data.path().join("authority/hosts");
    let first = open(&directory);
    let leaf = first.issue_leaf("a.localhost").expect("a leaf");
    let second = open(&directory);
    assert_eq!(first.certificate_pem(), second.certificate_pem());
    assert_eq!(fs::read_to_string(second.certificate_path()).expect("the certificate"), second.certificate_pem());
    // The common name applies at creation only; leaves still name their real issuer.
    let renamed = Authority::open(&directory, "Another name", &[]).expect("an authority");
    for authority in [&second, &renamed] {
        verify(authority, &leaf, "a.localhost", SystemTime::now()).expect("signed by the same");
        let leaf = authority.issue_leaf("b.localhost").expect("a leaf");
        verify(&first, &leaf, "b.localhost", SystemTime::now()).expect("signed by the same");
    }
}

#[test]
fn name_constraints_reject_other_names() {
    let data = tempfile::tempdir().expect("a directory");
    let made = Authority::open(&data.path().join("some"), "Sandbar test", &["localhost", "sandbox.test"]).expect("one");
    let loaded = Authority::open(&data.path().join("some"), "Sandbar test", &[]).expect("the same");
    let any = open(&data.path().join("any"));
    // The key signs any name; the name constraints make clients reject some.
    let trusted = |authority: &Authority, name: &str| {
        verify(authority, &authority.issue_leaf(name).expect("a leaf"), name, SystemTime::now()).is_ok()
    };
    for name in ["localhost", "8000-i.localhost", "sandbox.test", "8000-i.sandbox.test", "127.0.0.1", "::1"] {
        assert!(trusted(&made, name) && trusted(&loaded, name), "{name}");
    }
    for name in ["example.com", "notlocalhost", "sandbox.test.example", "test"] {
        assert!(!trusted(&made, name) && !trusted(&loaded, name) && trusted(&any, name), "{name}");
    }
}

#[test]
fn the_key_file_is_private() {
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
fn concurrent_opens_create_one_authority() {
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
fn leftovers_of_a_killed_process_are_replaced() {
    let data = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    open(other.path());
    // Killed between the two renames, and while writing a draft.
    fs::copy(other.path().join("key.pem"), data.path().join("key.pem")).expect("a copy");
    fs::write(data.path().join(".certificate.pem.new"), "half").expect("a draft");
    let authority = open(data.path());
    verify(&authority, &authority.issue_leaf("a.test").expect("a leaf"), "a.test", SystemTime::now()).expect("valid");
    assert!(!data.path().join(".certificate.pem.new").exists());
}

#[test]
fn unusable_files_are_reported_and_kept() {
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
        let leaf = authority.issue_leaf(asked).expect(asked);
        leaf.keys_match().expect(asked);
        verify(&authority, &leaf, good, now).expect(asked);
        verify(&authority, &leaf, bad, now).expect_err(asked);
    }
    for name in ["", "*", "*.", "a b", "a..b", "a/b", "*.*.test", "ä.test", "x:1", "a\n.test"] {
        let refused = authority.issue_leaf(name);
        assert!(matches!(refused, Err(AuthorityError::Name { .. })), "{name:?}: {refused:?}");
    }
}

#[test]
fn leaves_are_cached_and_bounded() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = open(data.path());
    let first = authority.issue_leaf("kept.test").expect("a leaf");
    for number in 0..MAX_LEAVES + 50 {
        authority.issue_leaf(&format!("{number}.test")).expect("a leaf");
        // A leaf in use stays cached whatever other names clients request.
        assert!(Arc::ptr_eq(&first, &authority.issue_leaf("Kept.test").expect("a leaf")));
    }
    assert_eq!(authority.leaves.count(), MAX_LEAVES);
}

#[test]
fn leaves_are_renewed_before_they_expire() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = open(data.path());
    let at = |now| authority.leaves.issue_leaf(&authority.stored.issuer, "a.test", now).expect("a leaf");
    let start = SystemTime::now();
    let first = at(start);
    assert!(Arc::ptr_eq(&first, &at(start + LIFETIME - RENEWAL_THRESHOLD - Duration::from_secs(1))));
    let late = start + LIFETIME - RENEWAL_THRESHOLD;
    let second = at(late);
    assert!(!Arc::ptr_eq(&first, &second));
    verify(&authority, &first, "a.test", late).expect("still valid when it is replaced");
    verify(&authority, &first, "a.test", start + LIFETIME + Duration::from_secs(60)).expect_err("ended");
    verify(&authority, &second, "a.test", start + LIFETIME + Duration::from_secs(60)).expect("the next");
}

/// A handshake in memory; returns the ALPN protocol the client negotiated.
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
fn the_server_presents_a_leaf_for_the_sni() {
    let data = tempfile::tempdir().expect("a directory");
    let authority = Arc::new(open(data.path()));
    assert_eq!(handshake(&authority, "8000-iabc.localhost").expect("a handshake"), Some(b"h2".to_vec()));
    // Clients send no SNI for an IP address.
    handshake(&authority, "127.0.0.1").expect_err("refused");
}
