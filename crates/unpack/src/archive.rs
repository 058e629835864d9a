//! Images in a file: what `docker save` writes, or a tar archive of an OCI layout. Layers are read
//! where they lie.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType};

use crate::config::{ImageConfig, MOST_BYTES, digest};
use crate::error::ImageError;
use crate::manifest::{DEEPEST, Index, Manifest, parse};

/// More names are no image's.
const MOST_FILES: usize = 10_000;

/// What an archive says it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    pub config: ImageConfig,
    /// Where each layer lies, lowest first: as many as the configuration names.
    pub layers: Vec<Place>,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub at: u64,
    pub size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// Reads what the archive says it holds.
///
/// # Errors
/// [`ImageError::Malformed`], [`ImageError::Platform`], [`ImageError::Digest`] or
/// [`ImageError::TooMany`] if it holds no image for this machine; [`ImageError::Io`] if it cannot
/// be read.
pub(crate) fn read_contents(file: File) -> Result<Contents, ImageError> {
    let mut files = Files::list(file)?;
    let (config, layers) = if files.places.contains_key("manifest.json") {
        let saved: Vec<Saved> = parse("manifest.json", &files.read("manifest.json")?)?;
        let first = saved.into_iter().next();
        let first = first.ok_or_else(|| ImageError::Malformed("manifest.json names no image".to_owned()))?;
        (files.read(&first.config)?, first.layers)
    } else if !files.places.contains_key("index.json") {
        return Err(ImageError::Malformed("neither manifest.json nor index.json is there".to_owned()));
    } else {
        let index = files.read("index.json")?;
        let manifest = files.manifest(&index, 0)?;
        let blobs = manifest.layers.iter().map(|layer| blob(&layer.digest)).collect();
        (files.blob("the configuration", &manifest.config.digest)?, blobs)
    };
    let config = ImageConfig::parse(&config)?;
    config.check_layers(layers.len())?;
    let layers = layers.iter().map(|name| files.place(name)).collect::<Result<Vec<_>, _>>()?;
    Ok(Contents { config, layers })
}

/// The name of a blob in a layout; of none that exists when the digest is no digest.
fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// The files of an archive, by name.
struct Files {
    file: File,
    places: HashMap<String, Place>,
}

impl Files {
    fn list(file: File) -> Result<Self, ImageError> {
        let unreadable = || ImageError::io("read the archive");
        let mut places = HashMap::new();
        let mut archive = Archive::new(file);
        for entry in archive.entries_with_seek().map_err(unreadable())?.raw(true) {
            let entry = entry.map_err(unreadable())?;
            let name = String::from_utf8_lossy(&entry.header().path_bytes()).into_owned();
            let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
            let place = match entry.header().entry_type() {
                EntryType::Regular => Place { at: entry.raw_file_position(), size: entry.size() },
                // Old Docker links layers that are the same.
                EntryType::Symlink | EntryType::Link => {
                    let target = entry.header().link_name_bytes().unwrap_or_default();
                    let target = String::from_utf8_lossy(&target).trim_start_matches("../").to_owned();
                    match places.get(&target) {
                        Some(place) => *place,
                        None => continue,
                    }
                }
                _ => continue,
            };
            places.insert(name, place);
            if places.len() > MOST_FILES {
                return Err(ImageError::TooMany(MOST_FILES as u64));
            }
        }
        Ok(Self { file: archive.into_inner(), places })
    }

    fn place(&self, name: &str) -> Result<Place, ImageError> {
        let missing = || ImageError::Malformed(format!("'{}' is missing in it", name.escape_debug()));
        self.places.get(name).copied().ok_or_else(missing)
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, ImageError> {
        let Place { at, size } = self.place(name)?;
        if size > MOST_BYTES {
            return Err(ImageError::Malformed(format!("'{}' is too large", name.escape_debug())));
        }
        let mut bytes = Vec::new();
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| (&self.file).take(size).read_to_end(&mut bytes));
        read.map_err(ImageError::io("read the archive"))?;
        Ok(bytes)
    }

    /// The content that has this digest.
    fn blob(&mut self, what: &str, expected: &str) -> Result<Vec<u8>, ImageError> {
        let bytes = self.read(&blob(expected))?;
        let found = digest(&bytes);
        if found != expected {
            return Err(ImageError::Digest { what: what.to_owned(), expected: expected.to_owned(), found });
        }
        Ok(bytes)
    }

    /// The manifest for this machine that an index leads to.
    fn manifest(&mut self, index: &[u8], depth: usize) -> Result<Manifest, ImageError> {
        let index: Index = parse("an index", index)?;
        let found = index.fitting()?;
        if found.is_index() && depth < DEEPEST {
            let index = self.blob("an index", &found.digest)?;
            return self.manifest(&index, depth + 1);
        }
        parse("the manifest", &self.blob("the manifest", &found.digest)?)
    }
}
