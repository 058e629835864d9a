//! Validation of proxy settings; credentials stay out of errors and `Debug`.

use super::*;

fn proxy(address: &str) -> Result<Proxy, InvalidProxy> {
    Proxy::new(address, Some("me"), Some("hunter2"), None)
}

#[test]
fn proxy_addresses_are_parsed() {
    for (address, kind, host, tls) in [
        ("proxy.example.com:1080", Kind::Socks5, "proxy.example.com", false),
        ("socks5://1.2.3.4:1080", Kind::Socks5, "1.2.3.4", false),
        ("http://proxy:3128/", Kind::Connect, "proxy", false),
        ("https://[2001:db8::1]:3128", Kind::Connect, "2001:db8::1", true),
    ] {
        let found = proxy(address).expect("a proxy");
        assert_eq!((found.kind, found.host(), found.tls.is_some()), (kind, host, tls), "{address}");
        assert!(!format!("{found:?}").contains("hunter2"));
    }
    for address in ["", "proxy", "proxy:", "proxy:0", "proxy:99999", ":1080", "ftp://a:1", "a b:1", "a/b:1"] {
        assert!(matches!(proxy(address), Err(InvalidProxy::Address(_))), "{address}");
    }
    let hidden = proxy("socks5://me:hunter2@proxy:x").expect_err("no port");
    assert!(!hidden.to_string().contains("hunter2"), "{hidden}");
}

#[test]
fn invalid_proxy_settings_are_refused() {
    let long = "x".repeat(256);
    assert_eq!(Proxy::new("a:1", None, Some("p"), None), Err(InvalidProxy::PasswordAlone));
    assert_eq!(Proxy::new("a:1", Some("u"), Some(&long), None), Err(InvalidProxy::Credential("password")));
    assert_eq!(Proxy::new("a:1", Some("u\n"), None, None), Err(InvalidProxy::Credential("username")));
    let tls = |server_name: Option<&str>, certificates: Option<&str>| ProxyTls {
        server_name: server_name.map(str::to_owned),
        certificates: certificates.map(str::to_owned),
    };
    let named = Proxy::new("a:1", None, None, Some(tls(Some("a b"), None)));
    assert_eq!(named, Err(InvalidProxy::ServerName("a b".to_owned())));
    let trusted = Proxy::new("a:1", None, None, Some(tls(None, Some("no certificate"))));
    assert_eq!(trusted, Err(InvalidProxy::Certificates));
}
