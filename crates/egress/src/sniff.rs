//! Sniffs the name in the first bytes of a connection: the server name of a TLS handshake, or the
//! host of an HTTP request.
//!
//! Many names share an address. Where only a name allows a connection, this shows whether the
//! connection is for an allowed one, and where a rule sets headers, whether it is for that rule's
//! name.

/// What the first bytes of a connection contain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sniffed {
    /// More bytes are needed.
    Unfinished,
    /// Neither TLS nor HTTP, or without a name.
    Nameless,
    Name(String),
    /// More than one name, or malformed.
    Unclear,
}

/// Limit of the bytes that are read; a TLS handshake with post-quantum keys has about 2 kB.
pub(crate) const LONGEST: usize = 32 * 1024;

const TLS_HANDSHAKE: u8 = 0x16;

pub(crate) fn read(bytes: &[u8]) -> Sniffed {
    let request = after_empty_lines(bytes);
    let sniffed = match (bytes.first(), request.first()) {
        (Some(&TLS_HANDSHAKE), _) => tls(bytes),
        (_, Some(first)) if first.is_ascii_uppercase() => http(request),
        (_, Some(_)) => Sniffed::Nameless,
        (_, None) => Sniffed::Unfinished,
    };
    if sniffed == Sniffed::Unfinished && bytes.len() >= LONGEST { Sniffed::Unclear } else { sniffed }
}

/// Servers skip empty lines before a request, so what follows them is the request.
fn after_empty_lines(bytes: &[u8]) -> &[u8] {
    let empty = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    &bytes[empty..]
}

/// Whether a datagram opens a QUIC connection, whose name cannot be read: its first packet has a
/// long header and at least this size, against amplification. The bit beside that of the long
/// header is not checked: servers may ignore it (RFC 9287).
pub(crate) fn is_quic(datagram: &[u8]) -> bool {
    const LEAST: usize = 1200;
    const LONG_HEADER: u8 = 0x80;
    datagram.len() >= LEAST && datagram[0] & LONG_HEADER != 0
}

/// The protocol of a connection, as far as its first bytes show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tls,
    /// Requests that can be read one by one. `CONNECT` is excluded: what follows it is another
    /// protocol.
    Http,
    Other,
}

/// The protocol of complete first bytes.
pub(crate) fn kind(held: &[u8]) -> Kind {
    let line = after_empty_lines(held).split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = std::str::from_utf8(line).unwrap_or_default().trim_end_matches('\r');
    match held.first() {
        Some(&TLS_HANDSHAKE) => Kind::Tls,
        Some(_) if text.starts_with("CONNECT ") => Kind::Other,
        Some(_) if text.rsplit(' ').next().is_some_and(|last| last.starts_with("HTTP/1.")) => Kind::Http,
        _ => Kind::Other,
    }
}

/// Consumes bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// A block that is preceded by its length.
    fn block(&mut self, length_bytes: usize) -> Option<Reader<'a>> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Reader)
    }
}

/// A handshake may be split into several records.
fn tls(bytes: &[u8]) -> Sniffed {
    let (mut records, mut handshake) = (Reader(bytes), Vec::new());
    loop {
        if let Some(message) = Reader(handshake.get(1..).unwrap_or_default()).block(3) {
            return client_hello(message).unwrap_or(Sniffed::Unclear);
        }
        match records.take(1) {
            None => return Sniffed::Unfinished,
            Some([TLS_HANDSHAKE]) => {}
            Some(_) => return Sniffed::Unclear,
        }
        let Some(record) = records.take(2).and_then(|_version| records.block(2)) else { return Sniffed::Unfinished };
        if record.0.is_empty() {
            return Sniffed::Unclear;
        }
        handshake.extend_from_slice(record.0);
        // A client's first message is a ClientHello.
        if handshake.first() != Some(&1) {
            return Sniffed::Unclear;
        }
    }
}

fn client_hello(mut hello: Reader<'_>) -> Option<Sniffed> {
    const VERSION_AND_RANDOM: usize = 2 + 32;
    const SERVER_NAME: usize = 0;
    hello.take(VERSION_AND_RANDOM)?;
    hello.block(1)?; // session
    hello.block(2)?; // cipher suites
    hello.block(1)?; // compression methods
    if hello.0.is_empty() {
        return Some(Sniffed::Nameless);
    }
    let mut extensions = hello.block(2)?;
    let mut found = None;
    while !extensions.0.is_empty() {
        let (kind, mut content) = (extensions.number(2)?, extensions.block(2)?);
        if kind != SERVER_NAME {
            continue;
        }
        let mut names = content.block(2)?;
        let (host_name, name) = (names.number(1)? == 0, names.block(2)?);
        if !host_name || !names.0.is_empty() || found.is_some() {
            return None;
        }
        found = Some(String::from_utf8(name.0.to_vec()).ok()?);
    }
    Some(found.map_or(Sniffed::Nameless, Sniffed::Name))
}

fn http(bytes: &[u8]) -> Sniffed {
    const LONGEST_METHOD: usize = 24;
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    if method > LONGEST_METHOD || bytes.get(method).is_some_and(|byte| *byte != b' ') {
        return Sniffed::Nameless;
    }
    let Some(line_end) = bytes.iter().position(|byte| *byte == b'\n') else { return Sniffed::Unfinished };
    let Ok(line) = std::str::from_utf8(&bytes[..line_end]) else { return Sniffed::Unclear };
    let mut words = line.trim_end_matches('\r').split(' ');
    let (Some(_method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Sniffed::Nameless;
    };
    if !version.starts_with("HTTP/1.") {
        return Sniffed::Nameless;
    }
    let rest = &bytes[line_end + 1..];
    let Some(headers) = header_lines(rest) else { return Sniffed::Unfinished };
    let mut hosts = headers.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
    });
    let (host, second) = (hosts.next(), hosts.next());
    // A request to a proxy names the host in its target, which has precedence over the header.
    let in_target = target.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    match (in_target.map(host_of), host.as_deref().map(host_of), second) {
        (_, _, Some(_)) => Sniffed::Unclear,
        (Some(target), Some(header), None) if !target.eq_ignore_ascii_case(header) => Sniffed::Unclear,
        (Some(name), _, None) | (None, Some(name), None) => Sniffed::Name(name.to_owned()),
        (None, None, None) => Sniffed::Nameless,
    }
}

/// The lines up to the empty one; `None` while that has not arrived.
///
/// The bytes may arrive one by one, and all are read again each time: no line is copied before the
/// last one is there.
fn header_lines(bytes: &[u8]) -> Option<impl Iterator<Item = String>> {
    let mut start = 0;
    loop {
        let end = start + bytes[start..].iter().position(|byte| *byte == b'\n')?;
        if bytes[start..end].iter().all(|byte| *byte == b'\r') {
            break;
        }
        start = end + 1;
    }
    let lines = bytes[..start].split(|byte| *byte == b'\n');
    Some(lines.map(|line| String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()))
}

/// The host without user and port.
fn host_of(authority: &str) -> &str {
    let host = authority.rsplit('@').next().unwrap_or(authority);
    if host.starts_with('[') {
        return host;
    }
    host.rsplit_once(':').map_or(host, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn block(length_bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        [&length[length.len() - length_bytes..], content].concat()
    }

    /// A ClientHello with these server names, in records of at most `record` bytes.
    fn hello(names: &[&str], record: usize) -> Vec<u8> {
        let list: Vec<u8> = names.iter().flat_map(|name| [vec![0], block(2, name.as_bytes())].concat()).collect();
        let server_name = [vec![0, 0], block(2, &block(2, &list))].concat();
        let other = [vec![0, 43], block(2, &[2, 3, 4])].concat();
        let extensions = if names.is_empty() { other } else { [other, server_name].concat() };
        let body =
            [vec![3, 3], vec![7; 32], block(1, &[9; 32]), block(2, &[0x13, 1]), block(1, &[0]), block(2, &extensions)];
        let message = [vec![1], block(3, &body.concat())].concat();
        message.chunks(record).flat_map(|part| [vec![0x16, 3, 1], block(2, part)].concat()).collect()
    }

    fn name(text: &str) -> Sniffed {
        Sniffed::Name(text.to_owned())
    }

    #[test]
    fn the_server_name_of_a_handshake_is_read() {
        for record in [16_384, 40, 1] {
            let bytes = hello(&["api.example.com"], record);
            assert_eq!(read(&bytes), name("api.example.com"), "records of {record}");
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Sniffed::Unfinished, "cut at {cut}, records of {record}");
            }
        }
        assert_eq!(read(&hello(&[], 16_384)), Sniffed::Nameless);
        assert_eq!(read(&hello(&["a.example", "b.example"], 16_384)), Sniffed::Unclear);
    }

    #[test]
    fn a_handshake_that_is_none_is_unclear() {
        let mut wrong = hello(&["api.example.com"], 16_384);
        wrong[5] = 2; // A ServerHello.
        assert_eq!(read(&wrong), Sniffed::Unclear);
        assert_eq!(read(&[0x16, 3, 1, 0, 0, 0x16]), Sniffed::Unclear);
        assert_eq!(read(&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 9]), Sniffed::Unclear);
        let mut endless = vec![0x16, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff];
        endless.resize(LONGEST, 0);
        assert_eq!(read(&endless), Sniffed::Unclear);
    }

    #[test]
    fn empty_lines_without_end_are_unclear() {
        assert_eq!(read(&[b'\n'; LONGEST]), Sniffed::Unclear);
    }

    #[test]
    fn the_host_of_a_request_is_read() {
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", name("api.example.com")),
            ("POST /x HTTP/1.1\nA: b\nhOST:api.example.com:8080\n\nbody", name("api.example.com")),
            ("GET http://api.example.com:80/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", name("api.example.com")),
            ("GET http://evil.example/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", Sniffed::Unclear),
            ("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n", Sniffed::Unclear),
            ("GET / HTTP/1.1\r\nHost: user@evil.example\r\n\r\n", name("evil.example")),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n", name("[2001:db8::1]:80")),
            ("GET / HTTP/1.0\r\n\r\n", Sniffed::Nameless),
            ("GET / HTTP/1.1\r\nHost: api.exam", Sniffed::Unfinished),
            ("GET /", Sniffed::Unfinished),
            ("G", Sniffed::Unfinished),
            ("\r\n\n\rGET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", name("api.example.com")),
            ("\r\n", Sniffed::Unfinished),
            ("\r\n GET / HTTP/1.1\r\n\r\n", Sniffed::Nameless),
            ("\n\x16\x03\x01", Sniffed::Nameless),
            ("get / HTTP/1.1\r\n\r\n", Sniffed::Nameless),
            ("GET\t/\tHTTP/1.1\r\n\r\n", Sniffed::Nameless),
            ("SSH-2.0-OpenSSH_9\r\n", Sniffed::Nameless),
            ("EHLO me\r\n", Sniffed::Nameless),
            ("PRI * HTTP/2.0\r\n\r\n", Sniffed::Nameless),
            ("\0\0", Sniffed::Nameless),
            ("hello", Sniffed::Nameless),
            ("", Sniffed::Unfinished),
        ] {
            assert_eq!(read(request.as_bytes()), expected, "{request:?}");
        }
    }

    #[test]
    fn requests_are_distinguished_from_other_protocols() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], Kind::Http),
            (b"GET / HTTP/1.0\n\n", Kind::Http),
            (b"\r\n\nGET / HTTP/1.1\r\n\r\n", Kind::Http),
            (b"CONNECT a:443 HTTP/1.1\r\n\r\n", Kind::Other),
            (b"PRI * HTTP/2.0\r\n\r\n", Kind::Other),
            (b"SSH-2.0-x\r\n", Kind::Other),
            (b"\x16\x03\x01", Kind::Tls),
            (b"", Kind::Other),
        ] {
            assert_eq!(kind(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_first_packet_of_quic_is_recognized() {
        assert!(is_quic(&[0xc3; 1200]) && is_quic(&[0x83; 1200]));
        assert!(!is_quic(&[0xc3; 1199]) && !is_quic(&[0x43; 1300]) && !is_quic(&[]));
    }

    proptest! {
        #[test]
        fn any_first_bytes_are_read_without_harm(
            record in 1_usize..200,
            damage in vec((any::<usize>(), any::<u8>()), 0..6),
            request in "(\r\n|\n)?(GET|CONNECT|P-T) (/|http://[ -~]{0,20}) HTTP/1[.]1\r\n((Host|host|A): ?[ -~]{0,20}\r\n){0,3}(\r\n)?",
            other in vec(any::<u8>(), 0..100),
        ) {
            let greeting = hello(&["api.example.com"], record);
            for mut bytes in [greeting, request.into_bytes(), other] {
                for (at, byte) in &damage {
                    let at = at % bytes.len().max(1);
                    if let Some(changed) = bytes.get_mut(at) {
                        *changed = *byte;
                    }
                }
                kind(&bytes);
                is_quic(&bytes);
                for end in 0..bytes.len() {
                    // More bytes complete an unfinished result, and never change another one.
                    let before = read(&bytes[..end]);
                    if before != Sniffed::Unfinished {
                        prop_assert_eq!(&before, &read(&bytes[..=end]), "after {} bytes", end);
                    }
                }
            }
        }
    }
}
