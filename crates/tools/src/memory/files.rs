//! A file tree in memory. Times are counters: every change is one later than the previous.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::paths;
use crate::port::PortError;

/// Links followed at most, as in Linux.
const MAX_LINKS: usize = 40;

#[derive(Debug, Clone)]
pub(super) enum Node {
    File { bytes: Bytes, mode: u32 },
    Directory,
    Link { target: String },
    Special,
}

#[derive(Debug, Clone)]
pub(super) struct TreeEntry {
    pub(super) node: Node,
    pub(super) modified: i128,
}

/// All files by absolute, normalized path.
#[derive(Debug)]
pub(super) struct Tree {
    entries: BTreeMap<String, TreeEntry>,
    clock: i128,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self { entries: BTreeMap::new(), clock: 0 };
        for directory in ["/", "/tmp", "/home/user", "/dev"] {
            tree.make_directory(directory);
        }
        tree.special("/dev/zero");
        tree.special("/dev/null");
        tree
    }

    fn insert(&mut self, path: String, node: Node) {
        self.clock += 1;
        self.entries.insert(path, TreeEntry { node, modified: self.clock });
    }

    /// Follows links.
    pub(super) fn resolve(&self, path: &str) -> Result<String, PortError> {
        let mut path = paths::normalize(path);
        for _ in 0..MAX_LINKS {
            let link = prefixes(&path).find_map(|prefix| match self.entries.get(prefix) {
                Some(TreeEntry { node: Node::Link { target }, .. }) => Some((prefix.to_owned(), target.clone())),
                _ => None,
            });
            let Some((prefix, target)) = link else { return Ok(path) };
            let rest = path[prefix.len()..].to_owned();
            let base = if target.starts_with('/') { target } else { paths::join(paths::parent(&prefix), &target) };
            path = paths::normalize(&format!("{base}{rest}"));
        }
        Err(PortError::Other("too many links".into()))
    }

    pub(super) fn entry(&self, path: &str) -> Result<(String, &TreeEntry), PortError> {
        let real = self.resolve(path)?;
        if let Some(entry) = self.entries.get(&real) {
            return Ok((real, entry));
        }
        let through_file = prefixes(&real)
            .any(|prefix| matches!(self.entries.get(prefix), Some(TreeEntry { node: Node::File { .. }, .. })));
        Err(if through_file { PortError::NotADirectory } else { PortError::NotFound })
    }

    pub(super) fn read(&self, path: &str) -> Result<Bytes, PortError> {
        match &self.entry(path)?.1.node {
            Node::File { bytes, .. } => Ok(bytes.clone()),
            Node::Directory => Err(PortError::IsDirectory),
            Node::Link { .. } | Node::Special => Err(PortError::Other("not a regular file".into())),
        }
    }

    pub(super) fn write(&mut self, path: &str, bytes: Bytes) -> Result<(), PortError> {
        const USUAL: u32 = 0o644;
        let real = self.resolve(path)?;
        let mode = match self.entries.get(&real).map(|entry| &entry.node) {
            None => USUAL,
            Some(Node::File { mode, .. }) => *mode,
            Some(Node::Directory) => return Err(PortError::IsDirectory),
            Some(Node::Special | Node::Link { .. }) => return Ok(()),
        };
        self.make_parents(paths::parent(&real))?;
        self.insert(real, Node::File { bytes, mode });
        Ok(())
    }

    fn make_parents(&mut self, path: &str) -> Result<(), PortError> {
        let missing: Vec<String> = prefixes(path).chain([path]).map(str::to_owned).collect();
        for directory in missing {
            match self.entries.get(&directory).map(|entry| &entry.node) {
                Some(Node::Directory | Node::Link { .. }) => {}
                Some(Node::File { .. } | Node::Special) => return Err(PortError::NotADirectory),
                None => self.insert(directory, Node::Directory),
            }
        }
        Ok(())
    }

    pub(super) fn make_directory(&mut self, path: &str) {
        // Ignores an existing file: callers of the double check the result.
        let _ = self.make_parents(&paths::normalize(path));
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        let path = paths::normalize(path);
        let below = format!("{path}/");
        let before = self.entries.len();
        self.entries.retain(|known, _| *known != path && !known.starts_with(&below));
        self.entries.len() < before
    }

    pub(super) fn is_directory(&self, path: &str) -> bool {
        matches!(self.entry(path), Ok((_, TreeEntry { node: Node::Directory, .. })))
    }

    /// The direct entries of a directory: name, and whether it is a directory.
    pub(super) fn list(&self, path: &str) -> Result<Vec<(String, bool)>, PortError> {
        let (real, entry) = self.entry(path)?;
        if !matches!(entry.node, Node::Directory) {
            return Err(PortError::NotADirectory);
        }
        let names = self.entries.keys().filter_map(|known| {
            let name = paths::below(&real, known)?;
            (!name.contains('/')).then(|| (name.to_owned(), self.is_directory(known)))
        });
        Ok(names.collect())
    }

    /// Everything below a directory.
    pub(super) fn below(&self, root: &str) -> Vec<(String, TreeEntry)> {
        let Ok(root) = self.resolve(root) else { return Vec::new() };
        let inside =
            |(path, entry): (&String, &TreeEntry)| Some((paths::below(&root, path)?.to_owned(), entry.clone()));
        self.entries.iter().filter_map(inside).collect()
    }

    pub(super) fn put(&mut self, path: &str, bytes: Bytes) {
        self.write(path, bytes).expect("a test puts files where they can be");
    }

    pub(super) fn get(&self, path: &str) -> Option<Bytes> {
        self.read(path).ok()
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.insert(paths::normalize(path), Node::Link { target: target.to_owned() });
    }

    pub(super) fn special(&mut self, path: &str) {
        self.insert(paths::normalize(path), Node::Special);
    }

    pub(super) fn mode(&self, path: &str) -> Option<u32> {
        match self.entry(path).ok()?.1.node {
            Node::File { mode, .. } => Some(mode),
            _ => None,
        }
    }

    pub(super) fn set_mode(&mut self, path: &str, wanted: u32) {
        let Ok(real) = self.resolve(path) else { return };
        if let Some(TreeEntry { node: Node::File { mode, .. }, .. }) = self.entries.get_mut(&real) {
            *mode = wanted;
        }
    }
}

/// The ancestors of a path, outermost first, and the path itself.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.char_indices().skip(1).filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
    ends.chain([path.len()]).map(move |end| &path[..end])
}
