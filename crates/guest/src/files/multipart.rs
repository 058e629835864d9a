//! Streaming parser of `multipart/form-data`. Searches delimiters with a vectorized search over
//! whole batches; copies only headers and a possible partial delimiter at the end of a batch.

use memchr::memmem;

/// Limit of one part's headers.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// A parser event, in order: a part begins, chunks of its content, the part ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FormEvent<'a> {
    Part(Disposition),
    Content(&'a [u8]),
    EndOfPart,
}

/// The parsed `Content-Disposition` of a part.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Disposition {
    pub(super) name: Option<String>,
    pub(super) filename: Option<String>,
}

/// The form is malformed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter; ignored.
    Preamble,
    /// After a delimiter: the end of the form, or of a line.
    Delimiter,
    Head,
    Content,
    /// After the last delimiter; ignored.
    Epilogue,
}

pub(super) struct Multipart {
    /// CRLF, two dashes, boundary. The parser treats the stream as if it began with CRLF.
    delimiter: memmem::Finder<'static>,
    state: State,
    /// Bytes that cannot be parsed yet.
    kept: Vec<u8>,
}

impl Multipart {
    pub(super) fn new(boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        Self {
            delimiter: memmem::Finder::new(delimiter.as_bytes()).into_owned(),
            state: State::Preamble,
            kept: b"\r\n".to_vec(),
        }
    }

    /// Parses the next bytes and passes events to `handle`. Returns the first error of `handle`.
    pub(super) fn push<E: From<Malformed>>(
        &mut self,
        bytes: &[u8],
        mut handle: impl FnMut(FormEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kept.is_empty() {
            let used = self.scan(bytes, &mut handle)?;
            self.kept.extend_from_slice(&bytes[used..]);
        } else {
            let mut joined = std::mem::take(&mut self.kept);
            joined.extend_from_slice(bytes);
            let used = self.scan(&joined, &mut handle)?;
            joined.drain(..used);
            self.kept = joined;
        }
        Ok(())
    }

    /// Checks that the form was complete.
    pub(super) fn finish(&self) -> Result<(), Malformed> {
        match self.state {
            State::Epilogue => Ok(()),
            _ => Err(Malformed("the multipart body ends before its last delimiter")),
        }
    }

    /// Returns the number of consumed bytes; the rest is parsed again with more data.
    fn scan<E: From<Malformed>>(
        &mut self,
        bytes: &[u8],
        handle: &mut impl FnMut(FormEvent<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match self.state {
                State::Preamble | State::Content => {
                    let inside = self.state == State::Content;
                    let found = self.delimiter.find(rest);
                    let content = &rest[..found.unwrap_or_else(|| rest.len() - self.partial_delimiter_len(rest))];
                    if inside && !content.is_empty() {
                        handle(FormEvent::Content(content))?;
                    }
                    at += content.len();
                    if found.is_none() {
                        return Ok(at);
                    }
                    if inside {
                        handle(FormEvent::EndOfPart)?;
                    }
                    at += self.delimiter.needle().len();
                    self.state = State::Delimiter;
                }
                State::Delimiter => {
                    if rest.len() < 2 {
                        return Ok(at);
                    }
                    if rest.starts_with(b"--") {
                        self.state = State::Epilogue;
                    } else {
                        // Whitespace may stand between the boundary and the CRLF.
                        let Some(end) = memmem::find(rest, b"\r\n") else {
                            return check_head(rest).map(|()| at).map_err(E::from);
                        };
                        if !rest[..end].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                            return Err(Malformed("text follows a multipart boundary").into());
                        }
                        // Keeps the CRLF, so that an empty header block is CRLF CRLF.
                        at += end;
                        self.state = State::Head;
                    }
                }
                State::Head => {
                    let Some(end) = memmem::find(rest, b"\r\n\r\n") else {
                        return check_head(rest).map(|()| at).map_err(E::from);
                    };
                    handle(FormEvent::Part(Disposition::parse(&rest[..end])))?;
                    at += end + 4;
                    self.state = State::Content;
                }
                State::Epilogue => return Ok(bytes.len()),
            }
        }
    }

    /// How many trailing bytes may be the beginning of a delimiter.
    fn partial_delimiter_len(&self, bytes: &[u8]) -> usize {
        let needle = self.delimiter.needle();
        let tail = &bytes[bytes.len() - bytes.len().min(needle.len() - 1)..];
        memchr::memchr_iter(b'\r', tail)
            .map(|start| &tail[start..])
            .find(|end| needle.starts_with(end))
            .map_or(0, <[u8]>::len)
    }
}

fn check_head(head: &[u8]) -> Result<(), Malformed> {
    if head.len() > MAX_HEAD_BYTES { Err(Malformed("the head of a multipart part is too long")) } else { Ok(()) }
}

impl Disposition {
    fn parse(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let line = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
        });
        let mut found = Self::default();
        let mut extended = None;
        for (key, value) in parameters(line.unwrap_or_default()) {
            match key.as_str() {
                "name" => found.name = Some(value),
                "filename" => found.filename = Some(value),
                "filename*" => extended = decode_extended(&value),
                _ => {}
            }
        }
        found.filename = extended.or(found.filename);
        found
    }
}

/// Parses `form-data; name="a"; filename="b"` without its first word. Quoted values may contain
/// escaped quotes.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim().trim_start_matches(';').trim().to_ascii_lowercase();
        let after = after.trim_start();
        let mut value = String::new();
        rest = match after.strip_prefix('"') {
            Some(quoted) => {
                let mut characters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((index, character)) = characters.next() {
                    match character {
                        '"' => {
                            end = index + 1;
                            break;
                        }
                        '\\' if quoted[index + 1..].starts_with(['"', '\\']) => {
                            value.extend(characters.next().map(|(_, escaped)| escaped));
                        }
                        _ => value.push(character),
                    }
                }
                &quoted[end..]
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                value.push_str(after[..end].trim());
                &after[end..]
            }
        };
        found.push((key, value));
    }
    found
}

/// `utf-8''na%20me`
fn decode_extended(value: &str) -> Option<String> {
    let mut parts = value.splitn(3, '\'');
    let (charset, _, encoded) = (parts.next()?, parts.next()?, parts.next()?);
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// The boundary parameter of a content type.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let boundary = parameters(content_type).into_iter().find(|(key, _)| key == "boundary")?.1;
    (1..=200).contains(&boundary.len()).then_some(boundary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The parts of a form fed in chunks of `step` bytes.
    fn parts(text: &[u8], step: usize) -> Result<Vec<(Disposition, Vec<u8>)>, Malformed> {
        let mut parser = Multipart::new("XX");
        let mut found: Vec<(Disposition, Vec<u8>)> = Vec::new();
        for chunk in text.chunks(step) {
            parser.push::<Malformed>(chunk, |met| {
                match met {
                    FormEvent::Part(disposition) => found.push((disposition, Vec::new())),
                    FormEvent::Content(bytes) => found.last_mut().expect("inside a part").1.extend_from_slice(bytes),
                    FormEvent::EndOfPart => {}
                }
                Ok(())
            })?;
        }
        parser.finish().map(|()| found)
    }

    fn file(filename: &str) -> Disposition {
        Disposition { name: Some("file".into()), filename: Some(filename.into()) }
    }

    #[test]
    fn content_survives_any_chunk_boundary() {
        let body = b"\r\n--X\r\n--\r\r\n\r\n-\0\xff--XX\r\n-".to_vec();
        let mut text = b"preamble\r\n--XX \t\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a b\"\r\n\
            Content-Type: text/plain\r\n\r\n"
            .to_vec();
        text.extend_from_slice(&body);
        text.extend_from_slice(
            b"\r\n--XX\r\ncontent-disposition:form-data;filename=c;name=file\r\n\r\n\r\n--XX--\r\nrest",
        );
        for step in 1..text.len() {
            assert_eq!(
                parts(&text, step),
                Ok(vec![(file("/a b"), body.clone()), (file("c"), Vec::new())]),
                "in steps of {step}"
            );
        }
    }

    #[test]
    fn malformed_forms_are_refused() {
        assert!(parts(b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc", 7).is_err());
        assert!(parts(b"no delimiter at all", 5).is_err());
        assert!(parts(b"--XXY\r\n\r\n", 3).is_err());
        let endless = [b"--XX\r\n".as_slice(), &vec![b'h'; 2 * MAX_HEAD_BYTES]].concat();
        assert_eq!(parts(&endless, 1024), Err(Malformed("the head of a multipart part is too long")));
    }

    #[test]
    fn file_names_of_all_clients_parse() {
        let parse = |line: &str| Disposition::parse(format!("\r\nContent-Disposition: {line}").as_bytes());
        assert_eq!(parse(r#"form-data; name="file"; filename="a\"b\\c;d.txt""#), file(r#"a"b\c;d.txt"#));
        assert_eq!(parse(r#"form-data; name="file"; filename="C:\dir""#), file(r"C:\dir"));
        assert_eq!(parse(r#"form-data; name="file"; filename="x"; filename*=UTF-8''na%C3%AFve"#), file("naïve"));
        assert_eq!(boundary(r#"multipart/form-data; boundary="a b""#).as_deref(), Some("a b"));
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("multipart/form-data"), None);
    }

    /// Random bytes with likely delimiters, line breaks and headers.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let tokens: [&[u8]; 7] = [
            b"\r\n--XX",
            b"--XX",
            b"--",
            b"\r\n",
            b"\r\n\r\n",
            b"Content-Disposition: form-data; name=\"file\"; filename=\"a\\\"",
            b"content-disposition:;filename*=utf-8''%ff%zz;name=",
        ];
        let token = proptest::sample::select(tokens.to_vec());
        let piece = prop_oneof![token.prop_map(<[u8]>::to_vec), vec(any::<u8>(), 0..20)];
        vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn hostile_forms_parse_alike_for_any_chunk_size(text in hostile(), step in 1_usize..32) {
            prop_assert_eq!(parts(&text, text.len().max(1)), parts(&text, step));
        }

        #[test]
        fn the_parser_buffers_at_most_a_head(text in hostile(), repeats in 1_usize..200) {
            let mut parser = Multipart::new("XX");
            for _ in 0..repeats {
                if parser.push::<Malformed>(&text, |_| Ok(())).is_err() {
                    break;
                }
                prop_assert!(parser.kept.len() <= MAX_HEAD_BYTES + text.len());
            }
        }

        #[test]
        fn arbitrary_heads_never_panic(head in vec(any::<u8>(), 0..200), kind in any::<String>()) {
            Disposition::parse(&head);
            Disposition::parse(&[b"Content-Disposition: form-data;", &head[..]].concat());
            boundary(&kind);
            boundary(&format!("multipart/form-data; boundary={kind}"));
        }
    }
}
