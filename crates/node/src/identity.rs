//! The identity of a node: a random id that is made once in its data directory.
//!
//! A server has many addresses and names; two addresses are the same server only if they answer
//! with the same id.

use std::io;
use std::path::Path;

use tracing::warn;
use uuid::Uuid;

/// The file in the data directory.
pub(crate) const FILE: &str = "server-id";

/// Where a file without an id is kept for a person to look at.
const DAMAGED: &str = "server-id.damaged";

/// The id of the node of a data directory. Makes it at the first call.
///
/// A file that contains no id is set aside and gets a successor: no record names the id, it is
/// only compared with the answer of a running server, so damage must not keep the server down.
pub(crate) fn read_or_create(data: &Path) -> io::Result<Uuid> {
    let file = data.join(FILE);
    match std::fs::read(&file) {
        Ok(bytes) => match std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()) {
            Some(id) => return Ok(id),
            None => set_aside(&file, &data.join(DAMAGED))?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = Uuid::new_v4();
    durable::write(&file, format!("{id}\n").as_bytes(), 0o600)?;
    Ok(id)
}

fn set_aside(file: &Path, kept: &Path) -> io::Result<()> {
    warn!(file = %file.display(), kept = %kept.display(), "the server's id is damaged; it gets a new one");
    std::fs::rename(file, kept)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_id_is_made_once_for_each_directory() {
        let (one, two) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let id = read_or_create(one.path()).expect("made");
        assert_eq!(read_or_create(one.path()).expect("read"), id);
        assert_ne!(read_or_create(two.path()).expect("made"), id);
        let mode = std::fs::metadata(one.path().join(FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_id_is_set_aside_and_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        for damage in [&b""[..], b"damaged", b"\xff\xfe"] {
            std::fs::write(directory.path().join(FILE), damage).expect("written");
            let id = read_or_create(directory.path()).expect("a successor");
            assert_eq!(read_or_create(directory.path()).expect("read"), id);
            assert_eq!(std::fs::read(directory.path().join(DAMAGED)).expect("kept"), damage);
        }
    }
}
