//! Encryption of secrets' values. The key is a file beside the database, so that a copy of either
//! one alone, such as a backup of the database, reveals no values.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

const KEY: &str = "secrets.key";
const KEY_BYTES: usize = 32;

/// Encrypts and decrypts values. The key is generated with the first value.
#[derive(Debug)]
pub(super) struct Seal {
    file: PathBuf,
    key: OnceLock<RandomizedNonceKey>,
}

impl Seal {
    /// Uses the key beside `database`.
    pub(super) fn for_database(database: &Path) -> Self {
        Self { file: database.with_file_name(KEY), key: OnceLock::new() }
    }

    /// Encrypts `value`, authenticated with `id`, so that it cannot be moved to another secret.
    pub(super) fn encrypt(&self, id: &str, value: &str) -> io::Result<Vec<u8>> {
        let mut sealed = value.as_bytes().to_vec();
        let nonce = self.key()?.seal_in_place_append_tag(Aad::from(id), &mut sealed).map_err(|_| unusable())?;
        Ok([nonce.as_ref().as_slice(), &sealed].concat())
    }

    pub(super) fn decrypt(&self, id: &str, sealed: &[u8]) -> io::Result<String> {
        let (nonce, content) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(unusable)?;
        let mut content = content.to_vec();
        let opened = self.key()?.open_in_place(Nonce::from(nonce), Aad::from(id), &mut content);
        String::from_utf8(opened.map_err(|_| unusable())?.to_vec()).map_err(|_| unusable())
    }

    fn key(&self) -> io::Result<&RandomizedNonceKey> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let key = RandomizedNonceKey::new(&AES_256_GCM, &read_or_make(&self.file)?).map_err(|_| unusable())?;
        Ok(self.key.get_or_init(|| key))
    }
}

fn unusable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a stored secret does not fit the key in {KEY}"))
}

fn read_or_make(file: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    match File::open(file) {
        Ok(mut stored) => stored.read_exact(&mut key)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            aws_lc_rs::rand::fill(&mut key).map_err(|_| io::Error::other("no random numbers"))?;
            durable::write(file, &key, 0o600)?;
        }
        Err(error) => return Err(error),
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_value_is_decrypted_with_its_own_id_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("node.sqlite");
        let sealed = Seal::for_database(&database).encrypt("one", "hunter2").expect("it is sealed");
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        let again = Seal::for_database(&database);
        assert_eq!(again.decrypt("one", &sealed).expect("it opens"), "hunter2");
        assert!(again.decrypt("other", &sealed).is_err() && again.decrypt("one", &sealed[1..]).is_err());
        let mode = std::fs::metadata(directory.path().join(KEY)).expect("the key is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(directory.path().join(KEY)).expect("the key goes");
        assert!(Seal::for_database(&database).decrypt("one", &sealed).is_err());
    }
}
