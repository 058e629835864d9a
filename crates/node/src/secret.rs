//! Secrets: values that the server inserts into requests of sandboxes, which never have them. The
//! API does not return values; the egress replaces `${e2b.secrets.NAME}` in a rule by the newest
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;

use crate::error::SandboxError;
use crate::id::{Token, random_name};
use crate::list::Cursor;
use crate::node::Node;
use crate::ports::{Records, RecordsError};
use crate::snapshot::page;

const LONGEST_NAME: usize = 128;
/// Prefix of ids, which names must not have.
const ID_PREFIX: &str = "sec_";
/// Longer values would not fit into a request's head, where secrets are used.
const LONGEST_VALUE: usize = 32 << 10;
const MOST_METADATA: usize = 32;
const LONGEST_METADATA_KEY: usize = 128;
const LONGEST_METADATA_VALUE: usize = 1024;
const MOST_METADATA_BYTES: usize = 8192;

/// One secret. Its value is revealed only where it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub id: String,
    /// In lower case: names are case-insensitive.
    pub name: String,
    pub value: Token,
    /// Incremented with each value.
    pub version: u64,
    pub metadata: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "'{0}' cannot be the name of a secret: it needs 1 to 128 characters of a-z, A-Z, 0-9, _ and -, and must not begin with sec_"
    )]
    InvalidName(String),
    #[error("the value of a secret needs 1 to {LONGEST_VALUE} bytes, and no control characters: it is sent in headers")]
    InvalidValue,
    #[error("metadata: {0}")]
    InvalidMetadata(String),
    #[error("secret '{0}' exists already")]
    Taken(String),
    #[error("secret '{0}' not found")]
    NotFound(String),
    #[error(transparent)]
    Node(#[from] SandboxError),
}

impl From<RecordsError> for SecretError {
    fn from(error: RecordsError) -> Self {
        Self::Node(error.into())
    }
}

/// One page of a list.
pub struct SecretPage {
    pub secrets: Vec<Arc<Secret>>,
    /// Present if there are more pages.
    pub next: Option<Cursor>,
}

/// All secrets. Reads are served from memory; a change is recorded before it is visible.
pub(crate) struct Secrets {
    records: Arc<dyn Records>,
    known: RwLock<BTreeMap<String, Arc<Secret>>>,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
}

impl Secrets {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records, known: RwLock::default(), changing: tokio::sync::Mutex::default() }
    }

    /// Reads the recorded secrets.
    pub(crate) async fn load(&self) -> Result<(), RecordsError> {
        for secret in self.records.secrets().await? {
            self.insert(secret);
        }
        Ok(())
    }

    /// The newest value of the secret called `name`.
    pub(crate) fn value(&self, name: &str) -> Option<Token> {
        let name = name.to_ascii_lowercase();
        let known = self.known.read();
        known.values().find(|secret| secret.name == name).map(|secret| secret.value.clone())
    }

    fn all(&self) -> Vec<Arc<Secret>> {
        self.known.read().values().cloned().collect()
    }

    /// Finds a secret by id or name.
    fn find(&self, secret: &str) -> Result<Arc<Secret>, SecretError> {
        let name = secret.to_ascii_lowercase();
        let found = self.all().into_iter().find(|known| known.id == secret || known.name == name);
        found.ok_or_else(|| SecretError::NotFound(secret.to_owned()))
    }

    fn insert(&self, secret: Secret) -> Arc<Secret> {
        let secret = Arc::new(secret);
        self.known.write().insert(secret.id.clone(), Arc::clone(&secret));
        secret
    }

    async fn put(&self, secret: Secret) -> Result<Arc<Secret>, SecretError> {
        self.records.put_secret(&secret).await?;
        Ok(self.insert(secret))
    }
}

impl Node {
    /// Lists secrets, newest first.
    pub fn secrets(&self, limit: usize, after: Option<&Cursor>) -> SecretPage {
        let cursor = |secret: &Arc<Secret>| {
            Cursor::new(secret.created_at, secret.id.strip_prefix(ID_PREFIX).unwrap_or(&secret.id).to_owned())
        };
        let (secrets, next) = page(self.node_state.secrets.all().into_iter(), limit, after, cursor);
        SecretPage { secrets, next }
    }

    /// Finds a secret by its id or name.
    pub fn secret(&self, secret: &str) -> Result<Arc<Secret>, SecretError> {
        self.node_state.secrets.find(secret)
    }

    pub async fn create_secret(
        &self,
        name: &str,
        value: Token,
        metadata: BTreeMap<String, String>,
    ) -> Result<Arc<Secret>, SecretError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let lower = name.to_ascii_lowercase();
        if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(plain) || lower.starts_with(ID_PREFIX) {
            return Err(SecretError::InvalidName(name.to_owned()));
        }
        check_value(&value)?;
        check_metadata(&metadata)?;
        let node_state = Arc::clone(&self.node_state);
        self.complete(async move {
            let secrets = &node_state.secrets;
            let _guard = secrets.changing.lock().await;
            if secrets.all().iter().any(|secret| secret.name == lower) {
                return Err(SecretError::Taken(lower));
            }
            let (now, tail) = (node_state.clock.now(), random_name('s'));
            let id = format!("{ID_PREFIX}{tail}");
            let new = Secret { id, name: lower, value, version: 1, metadata, created_at: now, updated_at: now };
            secrets.put(new).await
        })
        .await
    }

    /// Replaces the value of a secret; requests of sandboxes use it from now on. The metadata stays
    /// unless it is given.
    pub async fn update_secret(
        &self,
        secret: &str,
        value: Token,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<Arc<Secret>, SecretError> {
        check_value(&value)?;
        metadata.as_ref().map_or(Ok(()), check_metadata)?;
        let (node_state, secret) = (Arc::clone(&self.node_state), secret.to_owned());
        self.complete(async move {
            let secrets = &node_state.secrets;
            let _guard = secrets.changing.lock().await;
            let mut new = Secret::clone(&*secrets.find(&secret)?);
            new.value = value;
            new.version += 1;
            new.updated_at = node_state.clock.now();
            new.metadata = metadata.unwrap_or(new.metadata);
            secrets.put(new).await
        })
        .await
    }

    /// Deletes a secret. Requests of sandboxes that name it fail from now on.
    pub async fn delete_secret(&self, secret: &str) -> Result<(), SecretError> {
        let (node_state, secret) = (Arc::clone(&self.node_state), secret.to_owned());
        self.complete(async move {
            let secrets = &node_state.secrets;
            let _guard = secrets.changing.lock().await;
            let known = secrets.find(&secret)?;
            secrets.records.remove_secret(&known.id).await?;
            secrets.known.write().remove(&known.id);
            Ok(())
        })
        .await
    }
}

fn check_value(value: &Token) -> Result<(), SecretError> {
    let text = value.reveal();
    let fits = (1..=LONGEST_VALUE).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(SecretError::InvalidValue) }
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), SecretError> {
    let wrong = |what: String| Err(SecretError::InvalidMetadata(what));
    if metadata.len() > MOST_METADATA {
        return wrong(format!("{} entries; {MOST_METADATA} are the most", metadata.len()));
    }
    if let Some(key) = metadata.keys().find(|key| !(1..=LONGEST_METADATA_KEY).contains(&key.len())) {
        return wrong(format!("the key '{key}' needs 1 to {LONGEST_METADATA_KEY} bytes"));
    }
    if let Some((key, _)) = metadata.iter().find(|(_, value)| value.len() > LONGEST_METADATA_VALUE) {
        return wrong(format!("the value of '{key}' is longer than {LONGEST_METADATA_VALUE} bytes"));
    }
    if metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MOST_METADATA_BYTES {
        return wrong(format!("more than {MOST_METADATA_BYTES} bytes together"));
    }
    Ok(())
}
