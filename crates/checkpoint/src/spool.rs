//! Bytes that are written once and read several times: in memory while they are few, else in an
//! unnamed file that is freed with its last handle, also when the process is killed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags};

/// The most bytes in memory. Few trees have a longer listing.
const MOST_IN_MEMORY: usize = 4 << 20;
/// The size of writes to the file.
const PIECE: usize = 1 << 20;

/// The writer of a spool.
pub(crate) struct Spool {
    directory: Arc<PathBuf>,
    file: Option<File>,
    /// All bytes, or those not yet in the file.
    memory: Vec<u8>,
    written: u64,
}

impl Spool {
    /// Creates no file in `directory` before it is needed.
    pub(crate) fn new(directory: Arc<PathBuf>) -> Self {
        Self { directory, file: None, memory: Vec::new(), written: 0 }
    }

    /// # Errors
    /// [`io::Error`] when the file cannot be written.
    pub(crate) fn finish(mut self) -> io::Result<Spooled> {
        let length = self.written + self.memory.len() as u64;
        let content = match self.file.take() {
            Some(file) => {
                file.write_all_at(&self.memory, self.written)?;
                Content::File(Arc::new(file))
            }
            None => Content::Memory(self.memory.into()),
        };
        Ok(Spooled { content, length })
    }

    /// Reads back bytes at `offset` while writing continues.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match (&self.file, offset.checked_sub(self.written)) {
            (Some(file), None) => {
                let stored = usize::try_from(self.written - offset).map_or(buffer.len(), |left| left.min(buffer.len()));
                let (stored, rest) = buffer.split_at_mut(stored);
                file.read_exact_at(stored, offset)?;
                rest.copy_from_slice(self.memory.get(..rest.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            }
            (_, begin) => {
                let begin = begin.and_then(|begin| usize::try_from(begin).ok()).ok_or(io::ErrorKind::UnexpectedEof)?;
                let end = begin.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(self.memory.get(begin..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            }
        }
        Ok(())
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.memory.extend_from_slice(bytes);
        let most = if self.file.is_some() { PIECE } else { MOST_IN_MEMORY };
        if self.memory.len() > most {
            if self.file.is_none() {
                self.file = Some(make_unnamed(&self.directory)?);
            }
            let file = self.file.as_ref().expect("it was made above");
            file.write_all_at(&self.memory, self.written)?;
            self.written += self.memory.len() as u64;
            self.memory = Vec::with_capacity(PIECE);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A finished spool. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Spooled {
    content: Content,
    length: u64,
}

#[derive(Clone)]
enum Content {
    Memory(Bytes),
    File(Arc<File>),
}

impl Spooled {
    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    /// An independent reader from the start.
    pub(crate) fn reader(&self) -> Reader {
        Reader { spooled: self.clone(), at: 0 }
    }
}

/// A read position.
pub(crate) struct Reader {
    spooled: Spooled,
    at: u64,
}

impl Reader {
    /// The next at most `most` bytes; [`None`] at the end. Memory is not copied.
    pub(crate) fn next_piece(&mut self, most: usize) -> io::Result<Option<Bytes>> {
        let left = usize::try_from(self.spooled.length - self.at).unwrap_or(usize::MAX);
        let count = left.min(most);
        if count == 0 {
            return Ok(None);
        }
        let piece = match &self.spooled.content {
            Content::Memory(memory) => {
                let at = usize::try_from(self.at).map_err(io::Error::other)?;
                memory.slice(at..at + count)
            }
            Content::File(file) => {
                let mut piece = vec![0; count];
                file.read_exact_at(&mut piece, self.at)?;
                piece.into()
            }
        };
        self.at += count as u64;
        Ok(Some(piece))
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &self.spooled.content {
            Content::Memory(memory) => {
                let at = usize::try_from(self.at).map_err(io::Error::other)?;
                (&memory[at..]).read(buffer)?
            }
            Content::File(file) => file.read_at(buffer, self.at)?,
        };
        self.at += count as u64;
        Ok(count)
    }
}

/// Opens a file without a name, or unlinks it.
fn make_unnamed(directory: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        return Ok(file.into());
    }
    // Some file systems do not support O_TMPFILE.
    let path = directory.join(format!(".spool-{:032x}", rand::random::<u128>()));
    let file = rustix::fs::openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    std::fs::remove_file(&path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_from_memory_and_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let content: Vec<u8> = (0..3 * MOST_IN_MEMORY).map(|at| u8::try_from(at % 251).expect("small")).collect();
        for length in [0, 1, MOST_IN_MEMORY, MOST_IN_MEMORY + 1, content.len()] {
            let mut spool = Spool::new(Arc::new(directory.path().to_owned()));
            for piece in content[..length].chunks(100_003) {
                spool.write_all(piece).expect("it is taken");
            }
            for at in [0, length / 2, length.saturating_sub(3)] {
                let mut three = vec![0; 3.min(length - at)];
                spool.read_exact_at(&mut three, at as u64).expect("it was written");
                assert_eq!(three, content[at..at + three.len()], "{length} {at}");
            }
            spool.read_exact_at(&mut [0], length as u64).expect_err("nothing is there");
            let spooled = spool.finish().expect("it is taken");
            assert_eq!(spooled.len(), length as u64);
            let mut read = Vec::new();
            spooled.reader().read_to_end(&mut read).expect("it is read");
            assert!(read == content[..length], "{length}");
            let mut reader = spooled.reader();
            let mut pieces = Vec::new();
            while let Some(piece) = reader.next_piece(777_777).expect("it is read") {
                pieces.extend_from_slice(&piece);
            }
            assert!(pieces == content[..length], "{length}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0, "no file has a name");
    }
}
