//! Images in a file: what `docker save` writes, or a tar archive of an OCI layout. Layers are read where they lie.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tar::{Archive, EntryType};

use crate::config::{ImageConfig, MOST_BYTES, digest};
use crate::error::ImageError;
use crate::layer;
use crate::manifest::{DEEPEST, Index, MOST_LAYERS, Manifest, parse};
use crate::unpack::{Limits, Owners, Tree, Unpacked};

/// More names are no image's.
const MOST_FILES: usize = 10_000;

/// An image in an archive on disk.
#[derive(Debug)]
pub struct ArchiveImage {
    path: PathBuf,
    config: ImageConfig,
    /// Where each layer lies, lowest first.
    layers: Vec<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

impl ArchiveImage {
    /// Reads what the archive at `path` says it holds. Blocks.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let mut files = Files::list(path)?;
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
        if layers.len() > MOST_LAYERS {
            return Err(ImageError::Malformed(format!("it has {} layers", layers.len())));
        }
        let layers = layers.iter().map(|name| files.place(name)).collect::<Result<Vec<_>, _>>()?;
        if layers.len() != config.diff_ids.len() {
            return Err(ImageError::Malformed("the configuration and the layers do not belong together".to_owned()));
        }
        Ok(Self { path: path.to_owned(), config, layers })
    }

    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Unpacks it into the empty directory `root`. When that fails, whatever is there is of no use. Blocks.
    pub fn unpack(&self, root: &Path, owners: Owners, limits: Limits) -> Result<Unpacked, ImageError> {
        let mut tree = Tree::open(root, owners, limits)?;
        for (number, (place, diff_id)) in self.layers.iter().zip(&self.config.diff_ids).enumerate() {
            let name = format!("layer {} of {}", number + 1, self.layers.len());
            let mut file = File::open(&self.path).map_err(ImageError::io(format!("open {name}")))?;
            file.seek(SeekFrom::Start(place.at)).map_err(ImageError::io(format!("find {name}")))?;
            layer::apply(file.take(place.size), &name, Some(diff_id), &mut tree)?;
        }
        Ok(tree.done())
    }
}

/// Unpacks a plain tree of files, compressed or not, into the empty directory `root`. Blocks.
pub fn unpack_files(archive: &Path, root: &Path, owners: Owners, limits: Limits) -> Result<Unpacked, ImageError> {
    let mut tree = Tree::open(root, owners, limits)?;
    let file = File::open(archive).map_err(ImageError::io("open the archive"))?;
    layer::apply(file, "the archive", None, &mut tree)?;
    Ok(tree.done())
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
    fn list(path: &Path) -> Result<Self, ImageError> {
        let open = || File::open(path).map_err(ImageError::io("open the archive"));
        let unreadable = || ImageError::io("read the archive");
        let mut places = HashMap::new();
        let mut archive = Archive::new(open()?);
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
        Ok(Self { file: open()?, places })
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
