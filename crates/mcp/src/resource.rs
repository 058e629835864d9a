//! Files of the sandbox as MCP resources: `sandbox://ID/path`. Responses link to spilled output
//! this way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use text::{ExitKind, Truncation, truncate};
use tools::{Provenance, Saved};

use crate::provider::FileContents;
use crate::size;

const SCHEME: &str = "sandbox://";
/// Spilled output is at most 8 MiB plus its notices.
pub(crate) const MAX_READ_BYTES: usize = 16 * 1024 * 1024;

/// Bytes that must be percent-encoded in the path of a URI.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The resource URI of a file.
pub(crate) fn uri(sandbox: &str, path: &str) -> String {
    format!("{SCHEME}{sandbox}{}", utf8_percent_encode(path, PATH))
}

/// Splits a resource URI into sandbox id and absolute path. `None` for other schemes.
pub(crate) fn parse(uri: &str) -> Option<(&str, String)> {
    let rest = uri.strip_prefix(SCHEME)?;
    let (sandbox, path) = rest.split_at(rest.find('/')?);
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (!sandbox.is_empty() && !path.contains('\0')).then(|| (sandbox, path.into_owned()))
}

/// A link to a file with a command's output.
pub(crate) fn link(sandbox: &str, path: &str) -> Resource {
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path);
    Resource::new(uri(sandbox, path), name)
        .with_description(format!("The whole output, in the sandbox at {path}"))
        .with_mime_type("text/plain")
}

pub(crate) fn template() -> ResourceTemplate {
    ResourceTemplate::new("sandbox://{sandbox_id}/{+path}", "sandbox-file")
        .with_title("File of the sandbox")
        .with_description("Any file of the sandbox, by its absolute path. Long texts are cut in the middle.")
}

/// The contents of a file, shortened to fit into one message.
pub(crate) fn contents(uri: &str, path: &str, file: &FileContents) -> Result<ResourceContents, String> {
    let budget = size::MAX_MESSAGE_BYTES - size::ENVELOPE_BYTES;
    let Ok(text) = std::str::from_utf8(&file.bytes) else {
        let blob = STANDARD.encode(&file.bytes);
        if !file.whole || blob.len() > budget {
            return Err(format!(
                "{path} is no text and too large to be sent; look at it with bash, for example with xxd"
            ));
        }
        return Ok(ResourceContents::blob(blob, uri));
    };
    let mut characters = budget;
    let mut shown = text.to_owned();
    let explanation = Provenance::document(Saved::Whole { path }).explain();
    while size::serialized_len(&shown) > budget && characters > 1 {
        characters /= 2;
        shown =
            truncate(text, Truncation { budget: characters, exit: ExitKind::Success, explanation: &explanation }).text;
    }
    if !file.whole {
        shown.push_str(&format!(
            "\n[Only the first {} bytes were looked at. Use read_file with an offset for the rest.]",
            file.bytes.len()
        ));
    }
    Ok(ResourceContents::text(shown, uri))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn any_path_survives_the_uri_round_trip() {
        for path in ["/tmp/.agent/out/c17.log", "/a b/ü%41?x#y", "/\u{1}\\`"] {
            let address = uri("ifoo", path);
            assert_eq!(parse(&address), Some(("ifoo", path.to_owned())), "{address}");
        }
        for foreign in
            ["file:///etc/passwd", "sandbox:///x", "sandbox://ifoo", "sandbox://i/%00", "sandbox://i/%ff", ""]
        {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn long_text_is_cut_with_a_notice() {
        let text = "\u{1}\u{2}line\n".repeat(1_000_000);
        let file = FileContents { bytes: Bytes::from(text), whole: true };
        let answer = contents("sandbox://i/x", "/x", &file).expect("a text");
        assert!(size::serialized_len(&answer) < size::MAX_MESSAGE_BYTES);
        let ResourceContents::TextResourceContents { text, .. } = answer else { panic!("not a text") };
        assert!(text.contains("omitted"), "{}", &text[text.len() - 300..]);
    }

    #[test]
    fn binary_files_are_sent_whole_or_refused() {
        let small = FileContents { bytes: Bytes::from_static(&[0xff, 0xfe]), whole: true };
        assert!(matches!(contents("u", "/x", &small), Ok(ResourceContents::BlobResourceContents { .. })));
        let large = FileContents { bytes: Bytes::from(vec![0xff; 2 << 20]), whole: true };
        assert!(contents("u", "/x", &large).is_err());
    }
}
