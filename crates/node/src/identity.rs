//! The identity of a node: a random id that is made once in its data directory.
//!
//! A server has many addresses and names; two addresses are the same server only if they answer
//! with the same id.

use std::io;
use std::path::Path;

use uuid::Uuid;

/// The file in the data directory.
pub(crate) const FILE: &str = "server-id";

/// The id of the node of a data directory. Makes it at the first call.
pub(crate) fn read_or_create(data: &Path) -> io::Result<Uuid> {
    let file = data.join(FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = Uuid::new_v4();
            durable::write(&file, format!("{id}\n").as_bytes(), 0o600)?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
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
        std::fs::write(one.path().join(FILE), "damaged").expect("written");
        read_or_create(one.path()).expect_err("another id would be another server");
    }
}
