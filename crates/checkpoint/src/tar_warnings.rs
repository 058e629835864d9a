//! Parses warnings of `tar` about files that change while it reads them. `tar` runs in the C locale
//! and escapes names.

use crate::manifest::FilePath;

const CHANGED: [&[u8]; 2] = [b": file changed as we read it", b": File removed before we read it"];
const SHRANK: &[u8] = b": File shrank by ";
/// Warnings about entries that no archive can hold.
const HARMLESS: [&[u8]; 3] =
    [b": socket ignored", b": door ignored", b": file is on a different filesystem; not dumped"];

/// The files that changed; [`None`] when there is any other message.
pub(crate) fn parse_changed(stderr: &[u8]) -> Option<Vec<FilePath>> {
    let mut changed = Vec::new();
    for line in stderr.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let warning = line.strip_prefix(b"tar: ")?;
        let shrank = warning.windows(SHRANK.len()).rposition(|part| part == SHRANK).map(|at| &warning[..at]);
        let name = CHANGED.iter().find_map(|end| warning.strip_suffix(*end)).or(shrank);
        match name {
            Some(name) => changed.push(path(name)),
            None if HARMLESS.iter().any(|end| warning.ends_with(end)) => {}
            None => return None,
        }
    }
    changed.sort();
    changed.dedup();
    Some(changed)
}

/// Normalizes a name for the manifest.
fn path(escaped: &[u8]) -> FilePath {
    let name = unescape(escaped);
    let name = name.strip_prefix(b"./").unwrap_or(&name);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    FilePath::new(if name.is_empty() { b"." } else { name })
}

/// Reverses `tar --quoting-style=escape`.
fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            name.push(byte);
            continue;
        }
        let octal: Vec<u8> = rest.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).copied().collect();
        if octal.len() == 3 {
            name.push(octal.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
            rest = &rest[3..];
        } else if let Some((&letter, after)) = rest.split_first() {
            name.push(match letter {
                b'a' => 7,
                b'b' => 8,
                b't' => 9,
                b'n' => 10,
                b'v' => 11,
                b'f' => 12,
                b'r' => 13,
                other => other,
            });
            rest = after;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_distinguished_from_errors() {
        let check = |stderr: &str, wanted: Option<&[&[u8]]>| {
            let wanted = wanted.map(|names| names.iter().map(|name| FilePath::new(*name)).collect::<Vec<_>>());
            assert_eq!(parse_changed(stderr.as_bytes()), wanted, "{stderr}");
        };
        check("", Some(&[]));
        check("tar: ./log: file changed as we read it\ntar: ./log: file changed as we read it\n", Some(&[b"log"]));
        check("tar: ./a\\nb\\\\c\\303\\274: File removed before we read it\n", Some(&[b"a\nb\\c\xc3\xbc"]));
        check("tar: ./x: File shrank by 7 bytes; padding with zeros\n", Some(&[b"x"]));
        check("tar: ./: file changed as we read it\ntar: ./s: socket ignored\n", Some(&[b"."]));
        check("tar: ./x: Cannot open: Permission denied\n", None);
        check("gzip: stdout: Broken pipe\n", None);
    }
}
