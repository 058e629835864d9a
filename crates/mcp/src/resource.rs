//! Files of the sandbox as resources: `sandbox://ID/path`. Output that was too long for an answer is linked this way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use tools::text::{Ended, Provenance, Saved, Truncation, truncate};

use crate::size;
use crate::workplace::Contents;

const SCHEME: &str = "sandbox://";
/// Kept output is at most 8 MiB and a little.
pub(crate) const MOST_READ: usize = 16 * 1024 * 1024;

/// Everything that a path of an address cannot have as it is.
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

/// The address of a file.
pub(crate) fn uri(sandbox: &str, path: &str) -> String {
    format!("{SCHEME}{sandbox}{}", utf8_percent_encode(path, PATH))
}

/// Sandbox and absolute path of an address, if it is one of ours.
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

/// A file as an answer that fits into one message.
pub(crate) fn contents(uri: &str, path: &str, file: &Contents) -> Result<ResourceContents, String> {
    let budget = size::MOST - size::ENVELOPE;
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
    while size::of(&shown) > budget && characters > 1 {
        characters /= 2;
        shown = truncate(text, Truncation { budget: characters, ended: Ended::Well, explanation: &explanation }).text;
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
    fn any_path_survives_its_address() {
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
    fn a_long_text_fits_and_says_what_is_missing() {
        let text = "\u{1}\u{2}line\n".repeat(1_000_000);
        let file = Contents { bytes: Bytes::from(text), whole: true };
        let answer = contents("sandbox://i/x", "/x", &file).expect("a text");
        assert!(size::of(&answer) < size::MOST);
        let ResourceContents::TextResourceContents { text, .. } = answer else { panic!("not a text") };
        assert!(text.contains("omitted"), "{}", &text[text.len() - 300..]);
    }

    #[test]
    fn bytes_come_as_they_are_or_not_at_all() {
        let small = Contents { bytes: Bytes::from_static(&[0xff, 0xfe]), whole: true };
        assert!(matches!(contents("u", "/x", &small), Ok(ResourceContents::BlobResourceContents { .. })));
        let large = Contents { bytes: Bytes::from(vec![0xff; 2 << 20]), whole: true };
        assert!(contents("u", "/x", &large).is_err());
    }
}
