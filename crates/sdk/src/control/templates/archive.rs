//! Packs the archive of a copy into a temporary file, so that its length is known and memory stays
//! small.

use std::io::{self, BufWriter, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use super::context::{ContextError, Entry};

/// Packs `entries` under their relative paths. With `follow`, symlinks are replaced by their
/// targets.
pub(super) fn pack(entries: &[Entry], follow: bool, gzip: bool) -> Result<NamedTempFile, ContextError> {
    let failed = |source| ContextError::Io { path: std::env::temp_dir(), source };
    let mut file = NamedTempFile::new().map_err(failed)?;
    let mut sink = BufWriter::new(file.as_file_mut());
    if gzip {
        let mut zipped = GzEncoder::new(&mut sink, Compression::default());
        write(entries, follow, &mut zipped)?;
        zipped.finish().map_err(failed)?;
    } else {
        write(entries, follow, &mut sink)?;
    }
    sink.flush().map_err(failed)?;
    drop(sink);
    Ok(file)
}

fn write(entries: &[Entry], follow: bool, sink: &mut impl Write) -> Result<(), ContextError> {
    let mut archive = tar::Builder::new(sink);
    let mut append = |entry: &Entry| -> io::Result<()> {
        let kind = entry.path.symlink_metadata()?.file_type();
        // A dangling symlink stays a symlink.
        archive.follow_symlinks(follow && entry.path.exists());
        if kind.is_file() || kind.is_symlink() {
            archive.append_path_with_name(&entry.path, &entry.relative)?;
        } else if kind.is_dir() {
            archive.append_dir(&entry.relative, &entry.path)?;
        }
        // Sockets, pipes and devices have no content to copy.
        Ok(())
    };
    for entry in entries {
        append(entry).map_err(|source| ContextError::Io { path: entry.path.clone(), source })?;
    }
    archive.finish().map_err(|source| ContextError::Io { path: std::env::temp_dir(), source })
}
