//! Writes and reads manifests one entry at a time: a tree may have a million entries.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::digest::SetHasher;
use crate::manifest::{CheckpointManifest, FORMAT, ListingFacts, ManifestEntry, WHOLE_FORMAT};
use crate::spool::{Reader, Spool, Spooled};

const BUFFER: usize = 64 * 1024;
/// The prefix of a manifest with one line per entry.
const BEGINS: &[u8] = b"{\"format\":2,";
/// The longest head, which lists the excluded folders.
const LONGEST_HEAD: u64 = 32 << 20;
/// The longest line of an entry, escaped. The archive reader limits its parts.
pub(crate) const LONGEST_LINE: u64 = 8 << 20;

/// Collects the lines of a manifest.
pub(crate) struct EntryWriter {
    spool: Spool,
    facts: ListingFacts,
    set: SetHasher,
    line: Vec<u8>,
}

impl EntryWriter {
    pub(crate) fn new(directory: Arc<PathBuf>) -> Self {
        let (facts, set) = (ListingFacts::default(), SetHasher::default());
        Self { spool: Spool::new(directory), facts, set, line: Vec::new() }
    }

    /// # Errors
    /// [`io::Error`] when the spool cannot be written.
    pub(crate) fn push(&mut self, entry: &ManifestEntry) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, entry)?;
        add_to_facts(&mut self.facts, &mut self.set, entry, &self.line);
        self.line.push(b'\n');
        self.spool.write_all(&self.line)
    }

    /// # Errors
    /// [`io::Error`] when the spool cannot be written.
    pub(crate) fn finish(mut self) -> io::Result<Entries> {
        self.facts.sha256 = self.set.finish();
        Ok(Entries { lines: self.spool.finish()?, facts: self.facts })
    }
}

fn add_to_facts(facts: &mut ListingFacts, set: &mut SetHasher, entry: &ManifestEntry, line: &[u8]) {
    facts.entries += 1;
    facts.attributes |= !entry.xattrs.is_empty();
    set.add(line);
}

/// The entries of a manifest, which can be read repeatedly. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Entries {
    lines: Spooled,
    facts: ListingFacts,
}

impl Entries {
    /// From lines that [`read`] has kept and verified.
    pub(crate) fn from_lines(lines: Spooled, facts: ListingFacts) -> Self {
        Self { lines, facts }
    }

    pub(crate) fn facts(&self) -> ListingFacts {
        self.facts
    }

    /// Iterates over the entries in the archive's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = io::Result<ManifestEntry>> + Send + 'static {
        let mut lines = BufReader::with_capacity(BUFFER, self.lines.reader());
        let mut line = Vec::new();
        std::iter::from_fn(move || match next_line(&mut lines, &mut line) {
            Ok(true) => Some(parse(&line)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The lines as stored in a manifest.
    pub(crate) fn lines(&self) -> Reader {
        self.lines.reader()
    }
}

/// Reads a line without its line break; false at the end.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    lines.by_ref().take(LONGEST_LINE).read_until(b'\n', line)?;
    match line.pop() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) => Err(invalid("a line is cut off")),
    }
}

fn parse(line: &[u8]) -> io::Result<ManifestEntry> {
    Ok(serde_json::from_slice(line)?)
}

/// What to do with the entries while a manifest is read.
pub(crate) enum Wanted<'a> {
    /// Only verify them against the head.
    Nothing,
    /// Pass each to the callback. When it breaks, the rest is neither read nor verified.
    Each(&'a mut (dyn FnMut(ManifestEntry) -> ControlFlow<()> + Send)),
    /// Keep their lines.
    Lines(&'a mut Spool),
}

impl Wanted<'_> {
    fn take(&mut self, line: &[u8], entry: impl FnOnce() -> io::Result<ManifestEntry>) -> io::Result<ControlFlow<()>> {
        match self {
            Self::Nothing => {}
            Self::Each(take) => return Ok(take(entry()?)),
            Self::Lines(spool) => {
                spool.write_all(line)?;
                spool.write_all(b"\n")?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Reads a manifest of either format, and verifies its entries against its head. Blocks.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] and others for an invalid manifest; those of `source`, and of the
/// callback.
pub(crate) fn read(source: impl Read, mut wanted: Wanted<'_>) -> io::Result<CheckpointManifest> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    let mut begin = Vec::new();
    source.by_ref().take(BEGINS.len() as u64).read_to_end(&mut begin)?;
    let is_lines = begin == BEGINS;
    let mut source = BufReader::with_capacity(BUFFER, io::Cursor::new(begin).chain(source));
    if is_lines { read_lines(&mut source, &mut wanted) } else { read_whole(source, &mut wanted) }
}

fn read_lines(source: &mut impl BufRead, wanted: &mut Wanted<'_>) -> io::Result<CheckpointManifest> {
    let mut line = Vec::new();
    source.by_ref().take(LONGEST_HEAD).read_until(b'\n', &mut line)?;
    let manifest: CheckpointManifest = serde_json::from_slice(&line)?;
    debug_assert_eq!(manifest.format, FORMAT);
    let (mut entries, mut set) = (0, SetHasher::default());
    while next_line(source, &mut line)? {
        entries += 1;
        set.add(&line);
        if wanted.take(&line, || parse(&line))?.is_break() {
            return Ok(manifest);
        }
    }
    let ListingFacts { entries: wanted_entries, sha256, .. } = manifest.listing;
    if entries != wanted_entries || set.finish() != sha256 {
        return Err(invalid("its entries are not those that its head tells of"));
    }
    Ok(manifest)
}

/// The first format: one JSON object whose field `entries` is streamed.
fn read_whole(source: impl Read, wanted: &mut Wanted<'_>) -> io::Result<CheckpointManifest> {
    let (facts, set) = (ListingFacts::default(), SetHasher::default());
    let mut reading = Whole { wanted, facts, set, line: Vec::new(), ended: None };
    let mut parser = serde_json::Deserializer::from_reader(source);
    let head = (&mut reading).deserialize(&mut parser);
    match (reading.ended, head) {
        (Some(Err(error)), _) => Err(error),
        // The other fields precede `entries`, so they are complete.
        (Some(Ok(head)), _) => build_manifest(head, ListingFacts::default()),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(head)) => {
            parser.end()?;
            let facts = ListingFacts { sha256: reading.set.finish(), ..reading.facts };
            build_manifest(head, facts)
        }
    }
}

fn build_manifest(head: Map<String, Value>, listing: ListingFacts) -> io::Result<CheckpointManifest> {
    let manifest: CheckpointManifest = serde_json::from_value(Value::Object(head))?;
    match manifest.format {
        WHOLE_FORMAT => Ok(CheckpointManifest { listing, ..manifest }),
        format => Err(invalid(&format!("its format is {format}, neither {WHOLE_FORMAT} nor {FORMAT}"))),
    }
}

struct Whole<'a, 'w> {
    wanted: &'a mut Wanted<'w>,
    facts: ListingFacts,
    set: SetHasher,
    line: Vec<u8>,
    /// The callback broke off or failed.
    ended: Option<io::Result<Map<String, Value>>>,
}

const STOPPED: &str = "the reader has seen enough";

impl<'de> DeserializeSeed<'de> for &mut Whole<'_, '_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Whole<'_, '_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a manifest")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut head = Map::new();
        let mut listed = false;
        while let Some(key) = map.next_key::<String>()? {
            if key != "entries" {
                head.insert(key, map.next_value()?);
                continue;
            }
            listed = true;
            if let Err(error) = map.next_value_seed(WholeEntries(&mut *self)) {
                if let Some(Ok(ended)) = &mut self.ended {
                    *ended = head;
                }
                return Err(error);
            }
        }
        if listed { Ok(head) } else { Err(A::Error::missing_field("entries")) }
    }
}

struct WholeEntries<'b, 'a, 'w>(&'b mut Whole<'a, 'w>);

impl<'de> DeserializeSeed<'de> for WholeEntries<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for WholeEntries<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self(Whole { wanted, facts, set, line, ended }) = self;
        while let Some(entry) = seq.next_element::<ManifestEntry>()? {
            line.clear();
            serde_json::to_writer(&mut *line, &entry).map_err(A::Error::custom)?;
            add_to_facts(facts, set, &entry, line);
            match wanted.take(line, || Ok(entry)) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => {
                    *ended = Some(Ok(Map::new()));
                    return Err(A::Error::custom(STOPPED));
                }
                Err(error) => {
                    *ended = Some(Err(error));
                    return Err(A::Error::custom(STOPPED));
                }
            }
        }
        Ok(())
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::manifest::{FilePath, ManifestKind};

    fn some_entries() -> Vec<ManifestEntry> {
        let sha256 = Digest::hash(b"x");
        let kinds = [
            ManifestKind::Directory,
            ManifestKind::File { size: 1, sha256 },
            ManifestKind::HardLink { to: "a".into(), size: 1, sha256 },
            ManifestKind::Symlink { target: FilePath::new(*b"\xff") },
        ];
        let entry = |(number, kind)| ManifestEntry {
            path: FilePath::new(format!("line\nbreak {number}")),
            mode: 0o755,
            uid: 0,
            gid: 7,
            user: String::new(),
            group: "g".to_owned(),
            xattrs: vec!["user.a".to_owned(); number % 2],
            kind,
        };
        kinds.into_iter().enumerate().map(entry).collect()
    }

    fn head(format: u32, listing: &ListingFacts) -> Value {
        serde_json::json!({
            "format": format, "project": "p", "stamp": "20261116T000937Z", "root": "/", "files": 0, "bytes": 0,
            "archive": { "bytes": 0, "sha256": Digest::hash(b"x") }, "owners": true, "left_out": ["a"], "changed": [],
            "listing": listing,
        })
    }

    /// The same entries in both formats.
    fn manifests() -> (Vec<ManifestEntry>, Vec<u8>, Vec<u8>) {
        let all = some_entries();
        let mut writer = EntryWriter::new(Arc::new(std::env::temp_dir()));
        all.iter().for_each(|entry| writer.push(entry).expect("memory"));
        let entries = writer.finish().expect("memory");
        assert_eq!(entries.iter().collect::<io::Result<Vec<_>>>().expect("entries"), all);
        let manifest: CheckpointManifest = serde_json::from_value(head(FORMAT, &entries.facts())).expect("a head");
        let mut lines = serde_json::to_vec(&manifest).expect("a head");
        lines.push(b'\n');
        entries.lines().read_to_end(&mut lines).expect("memory");
        let mut whole = head(WHOLE_FORMAT, &ListingFacts::default());
        whole.as_object_mut().expect("an object").remove("listing");
        // The entries are the last field, as earlier programs wrote this format.
        let mut text = serde_json::to_string(&whole).expect("a manifest");
        text.pop();
        text.push_str(&format!(",\"entries\":{}}}", serde_json::to_string(&all).expect("entries")));
        (all, lines, text.into_bytes())
    }

    #[test]
    fn both_formats_yield_the_same_manifest() {
        let (all, lines, whole) = manifests();
        let mut read_both = Vec::new();
        for text in [&lines, &whole] {
            let mut seen = Vec::new();
            let mut take = |entry| {
                seen.push(entry);
                ControlFlow::Continue(())
            };
            let manifest = read(&text[..], Wanted::Each(&mut take)).expect("a manifest");
            assert_eq!(seen, all);
            assert_eq!(read(&text[..], Wanted::Nothing).expect("a manifest"), manifest);
            let mut spool = Spool::new(Arc::new(std::env::temp_dir()));
            assert_eq!(read(&text[..], Wanted::Lines(&mut spool)).expect("a manifest"), manifest);
            let kept = Entries::from_lines(spool.finish().expect("memory"), manifest.listing);
            assert_eq!(kept.iter().collect::<io::Result<Vec<_>>>().expect("entries"), all);
            let mut first = |_| ControlFlow::Break(());
            assert_eq!(read(&text[..], Wanted::Each(&mut first)).expect("a head").root, "/");
            read_both.push(manifest);
        }
        assert_eq!(read_both[0].listing, read_both[1].listing);
        assert!(read_both[0].has_same_tree(&read_both[1]) && read_both[1].has_same_tree(&read_both[0]));
    }

    #[test]
    fn damage_is_detected_at_every_offset() {
        let (_, lines, whole) = manifests();
        for text in [&lines, &whole] {
            for end in 0..text.len() {
                read(&text[..end], Wanted::Nothing).expect_err("it is cut off");
            }
        }
        let text = String::from_utf8(lines).expect("JSON");
        let head = text.find('\n').expect("lines");
        for at in (head + 1)..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            read(&damaged[..], Wanted::Nothing).expect_err("a line is another one");
        }
        read(&text.replace("\"format\":2", "\"format\":3").into_bytes()[..], Wanted::Nothing)
            .expect_err("a format of the future");
    }
}
