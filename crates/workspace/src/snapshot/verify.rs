//! Compares what was unpacked in a sandbox with what a manifest says it must be. The sandbox is asked once for all files:
//! their types, modes, owners, links and digests.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use sdk::{CommandError, Sandbox};

use super::manifest::{Entry, FilePath, Kind, Manifest};
use super::script::{self, Input, Patience, Script, ScriptError};

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: FilePath,
    pub(super) what: &'static str,
}

/// Looks at everything below `root/stage/new`.
pub(super) async fn verify(
    sandbox: &Sandbox,
    manifest: &Manifest,
    stage: &str,
    patience: Patience,
) -> Result<Result<(), Mismatch>, ScriptError> {
    // Files first: the sandbox is told how many they are, and gives digests of those.
    let is_file = |entry: &&Entry| entry.kind.content().is_some();
    let files = manifest.entries.iter().filter(is_file).count();
    let expected: Vec<&Entry> = manifest
        .entries
        .iter()
        .filter(is_file)
        .chain(manifest.entries.iter().filter(|entry| !is_file(entry)))
        .collect();
    let mut names = BytesMut::new();
    for entry in &expected {
        names.extend_from_slice(entry.path.as_bytes());
        names.extend_from_slice(b"\0");
    }
    let arguments = vec![manifest.root.clone(), stage.to_owned(), names.len().to_string(), files.to_string()];
    let script = Script::start(sandbox, script::VERIFY, arguments, Input::Open, patience).await?;
    let mut comparison = Comparison::new(expected, files, manifest.owners && script.as_root);
    let process = script.process();
    let mut records = Records::default();
    let reading = script.finish(|bytes| records.push(&bytes, |record| comparison.take(record)));
    let (sent, ended) = tokio::join!(process.send_stdin(names.freeze()), reading);
    ended?;
    match sent {
        // A script that has ended takes no more; what it said shows what is missing.
        Ok(()) | Err(CommandError::NotFound { .. } | CommandError::InputRefused { .. }) => Ok(comparison.finish()),
        Err(error) => Err(ScriptError::Command(error)),
    }
}

/// What is told against what must be, record by record: first of every entry, then the digests of files.
struct Comparison<'a> {
    expected: Vec<&'a Entry>,
    files: usize,
    owners: bool,
    seen: usize,
    /// Of the files, to tell hard links from copies.
    inodes: Vec<u64>,
    /// Where a file is among the expected.
    places: HashMap<&'a FilePath, usize>,
    mismatch: Option<Mismatch>,
}

impl<'a> Comparison<'a> {
    fn new(expected: Vec<&'a Entry>, files: usize, owners: bool) -> Self {
        let linked = expected[..files].iter().filter_map(|entry| match &entry.kind {
            Kind::HardLink { to, .. } => Some(to),
            _ => None,
        });
        let mut places: HashMap<&FilePath, usize> = linked.map(|path| (path, usize::MAX)).collect();
        for (place, entry) in expected[..files].iter().enumerate() {
            places.entry(&entry.path).and_modify(|known| *known = place);
        }
        Self { expected, files, owners, seen: 0, inodes: Vec::with_capacity(files), places, mismatch: None }
    }

    fn take(&mut self, record: &[u8]) {
        if self.mismatch.is_some() {
            return;
        }
        let (entry, wrong) = if let Some(entry) = self.expected.get(self.seen).copied() {
            (entry, self.take_facts(entry, record))
        } else if let Some(entry) = self.expected[..self.files].get(self.seen - self.expected.len()).copied() {
            (entry, take_digest(entry, record))
        } else {
            return;
        };
        match wrong {
            None => self.seen += 1,
            Some(what) => self.mismatch = Some(Mismatch { path: entry.path.clone(), what }),
        }
    }

    fn take_facts(&mut self, entry: &Entry, record: &[u8]) -> Option<&'static str> {
        let fields: Vec<&[u8]> = record.splitn(8, |byte| *byte == b' ').collect();
        let &[mode, uid, gid, inode, size, user, group, name] = &fields[..] else { return Some("it is missing") };
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
        let mode = std::str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 16).ok()).unwrap_or(0);

        let mut wanted = entry.path.as_bytes().to_vec();
        if let Kind::Symlink { target } = &entry.kind {
            if !name.starts_with(&[&wanted[..], b" -> "].concat()) {
                return Some("it is missing or no link");
            }
            wanted = [&wanted[..], b" -> ", target.as_bytes()].concat();
            if name != wanted {
                return Some("its target differs");
            }
        } else if name != wanted {
            return Some("it is missing");
        }
        if mode & 0o170_000 != entry.kind.type_bits() {
            return Some("its type differs");
        }
        // A link has no mode of its own.
        if !matches!(entry.kind, Kind::Symlink { .. }) && mode & 0o7777 != entry.mode {
            return Some("its mode differs");
        }
        let same = |id: &[u8], name: &[u8], wanted_id: u64, wanted_name: &str| {
            number(id) == Some(wanted_id) || (!wanted_name.is_empty() && name == wanted_name.as_bytes())
        };
        if self.owners && !(same(uid, user, entry.uid, &entry.user) && same(gid, group, entry.gid, &entry.group)) {
            return Some("its owner differs");
        }
        let (wanted_size, _) = entry.kind.content()?;
        if number(size) != Some(wanted_size) {
            return Some("its size differs");
        }
        let inode = number(inode).unwrap_or(0);
        self.inodes.push(inode);
        match &entry.kind {
            Kind::HardLink { to, .. } => {
                let place = self.places.get(to).copied().unwrap_or(usize::MAX);
                if self.inodes.get(place) == Some(&inode) { None } else { Some("it is a copy instead of a link") }
            }
            _ => None,
        }
    }

    fn finish(self) -> Result<(), Mismatch> {
        if let Some(mismatch) = self.mismatch {
            return Err(mismatch);
        }
        let count = self.expected.len();
        let next =
            self.expected.get(self.seen).or_else(|| self.expected[..self.files].get(self.seen.checked_sub(count)?));
        match next {
            None => Ok(()),
            Some(entry) => Err(Mismatch { path: entry.path.clone(), what: "it is missing or cannot be read" }),
        }
    }
}

/// A digest and its file's name, in one of two ways.
fn take_digest(entry: &Entry, record: &[u8]) -> Option<&'static str> {
    let (_, wanted) = entry.kind.content()?;
    let Some((digest, name)) = record.split_at_checked(64) else { return Some("it cannot be read") };
    let name = name.strip_prefix(b"  ./").or_else(|| name.strip_prefix(b" *./"));
    if name != Some(entry.path.as_bytes()) {
        return Some("it cannot be read");
    }
    let digest = std::str::from_utf8(digest).ok().and_then(|digest| digest.parse().ok());
    if digest == Some(wanted) { None } else { Some("its content differs") }
}

/// Puts pieces together to records that end with a NUL.
#[derive(Default)]
struct Records {
    begun: Vec<u8>,
}

impl Records {
    fn push(&mut self, bytes: &Bytes, mut each: impl FnMut(&[u8])) {
        let mut rest = &bytes[..];
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            if self.begun.is_empty() {
                each(&rest[..end]);
            } else {
                self.begun.extend_from_slice(&rest[..end]);
                each(&self.begun);
                self.begun.clear();
            }
            rest = &rest[end + 1..];
        }
        self.begun.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::*;

    fn entry(path: &str, kind: Kind) -> Entry {
        let (user, group) = ("user".to_owned(), "user".to_owned());
        Entry { path: path.into(), mode: 0o644, uid: 1000, gid: 1000, user, group, xattrs: Vec::new(), kind }
    }

    fn check(records: &[&str], wanted: Result<(), (&str, &'static str)>) {
        let sha256 = Digest::of(b"x");
        let file = entry("a b", Kind::File { size: 1, sha256 });
        let hard = entry("h", Kind::HardLink { to: "a b".into(), size: 1, sha256 });
        let link = entry("l", Kind::Symlink { target: "a -> b".into() });
        let mut comparison = Comparison::new(vec![&file, &hard, &link], 2, true);
        let text: Vec<String> = records.iter().map(|record| record.replace('D', &sha256.to_string())).collect();
        let mut splitter = Records::default();
        // In pieces of three bytes, to be put together.
        for piece in text.join("\0").into_bytes().into_iter().chain([0]).collect::<Vec<_>>().chunks(3) {
            splitter.push(&Bytes::copy_from_slice(piece), |record| comparison.take(record));
        }
        let wanted = wanted.map_err(|(path, what)| Mismatch { path: path.into(), what });
        assert_eq!(comparison.finish(), wanted, "{records:?}");
    }

    #[test]
    fn everything_that_differs_is_seen() {
        let good = [
            "81a4 1000 1000 7 1 user user a b",
            "81a4 1001 1001 7 1 user user h",
            "a1ff 1000 1000 8 6 user user l -> a -> b",
            "D  ./a b",
            "D *./h",
        ];
        check(&good, Ok(()));
        let with = |place: usize, record: &'static str| {
            let mut records = good;
            records[place] = record;
            records
        };
        check(&good[..4], Err(("h", "it is missing or cannot be read")));
        check(&good[..1], Err(("h", "it is missing or cannot be read")));
        check(&good[1..], Err(("a b", "it is missing")));
        check(&with(0, "41a4 1000 1000 7 1 user user a b"), Err(("a b", "its type differs")));
        check(&with(0, "81ed 1000 1000 7 1 user user a b"), Err(("a b", "its mode differs")));
        check(&with(0, "81a4 0 0 7 1 root root a b"), Err(("a b", "its owner differs")));
        check(&with(0, "81a4 1000 1000 7 2 user user a b"), Err(("a b", "its size differs")));
        check(&with(1, "81a4 1000 1000 9 1 user user h"), Err(("h", "it is a copy instead of a link")));
        check(&with(2, "a1ff 1000 1000 8 6 user user l -> a -> c"), Err(("l", "its target differs")));
        check(
            &with(3, "0000000000000000000000000000000000000000000000000000000000000000  ./a b"),
            Err(("a b", "its content differs")),
        );
        check(&with(3, "short"), Err(("a b", "it cannot be read")));
    }
}
