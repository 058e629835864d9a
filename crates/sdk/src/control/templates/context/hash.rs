//! The hash by which a server recognizes the files of a copy.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::{ContextError, Entry};

/// The hash of a copy: covers its source and destination as written, and each entry's path, mode,
/// size and content. Excludes owners and times, so that it is identical on every machine.
pub(in super::super) fn hash(
    source: &str,
    destination: &str,
    entries: &[Entry],
    follow: bool,
) -> Result<String, ContextError> {
    let mut hash = Sha256::new();
    hash.update(format!("COPY {source} {destination}"));
    for Entry { path, relative } in entries {
        let failed = |source| ContextError::Io { path: path.clone(), source };
        hash.update(relative);
        let own = path.symlink_metadata().map_err(failed)?;
        if own.is_symlink() && !(follow && path.exists()) {
            hash.update(stable(&own));
            hash.update(fs::read_link(path).map_err(failed)?.to_string_lossy().as_bytes());
            continue;
        }
        let metadata = path.metadata().map_err(failed)?;
        hash.update(stable(&metadata));
        if metadata.is_file() {
            feed(&mut hash, path).map_err(failed)?;
        }
    }
    Ok(hex::encode(hash.finalize()))
}

/// The hash of one file's content.
pub(in super::super) fn content_hash(path: &Path) -> Result<String, ContextError> {
    let mut hash = Sha256::new();
    feed(&mut hash, path).map_err(|source| ContextError::Io { path: path.to_owned(), source })?;
    Ok(hex::encode(hash.finalize()))
}

fn feed(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let (mut file, mut buffer) = (fs::File::open(path)?, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// Mode, and size except for directories, whose size depends on the file system.
fn stable(metadata: &Metadata) -> String {
    let mode = mode(metadata);
    if metadata.is_dir() { mode.to_string() } else { format!("{mode}{}", metadata.len()) }
}

#[cfg(unix)]
fn mode(metadata: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata)
}

/// The mode that Python reports on platforms without modes.
#[cfg(not(unix))]
fn mode(metadata: &Metadata) -> u32 {
    let readonly = metadata.permissions().readonly();
    match (metadata.is_dir(), metadata.is_symlink()) {
        (true, _) => 0o040_777,
        (_, true) => 0o120_777,
        _ if readonly => 0o100_444,
        _ => 0o100_666,
    }
}
