//! Secrets: values that requests of sandboxes carry without the sandboxes ever having them. Values go in and never come out
//! but at the egress, where `${e2b.secrets.NAME}` in a rule stands for the newest one.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;

use crate::error::SandboxError;
use crate::id::{Token, random_name};
use crate::list::Cursor;
use crate::node::Node;
use crate::ports::{Records, RecordsError};
use crate::snapshot::page;

const LONGEST_NAME: usize = 128;
/// What identifiers begin with, and names therefore do not.
const ID_PREFIX: &str = "sec_";
/// More would not fit into a request's head, where secrets are used.
const LONGEST_VALUE: usize = 32 << 10;
const MOST_METADATA: usize = 32;
const LONGEST_METADATA_KEY: usize = 128;
const LONGEST_METADATA_VALUE: usize = 1024;
const MOST_METADATA_BYTES: usize = 8192;

/// One secret. The value shows itself only where it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub id: String,
    /// In lower case: two names that differ in case only are one.
    pub name: String,
    pub value: Token,
    /// Grows by one with each value.
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
    /// Present when there is more.
    pub next: Option<Cursor>,
}

/// All secrets there are. Reading is from memory; a change is stored before anybody sees it.
pub(crate) struct Secrets {
    records: Arc<dyn Records>,
    known: RwLock<BTreeMap<String, Arc<Secret>>>,
    /// Held by whoever changes something, so that changes come one after the other.
    changing: tokio::sync::Mutex<()>,
}

impl Secrets {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records, known: RwLock::default(), changing: tokio::sync::Mutex::default() }
    }

    /// Reads what earlier servers stored.
    pub(crate) async fn load(&self) -> Result<(), RecordsError> {
        for secret in self.records.secrets().await? {
            self.insert(secret);
        }
        Ok(())
    }

    /// The newest value of the secret called `name`.
    pub(crate) fn value(&self, name: &str) -> Option<Token> {
        let name = name.to_ascii_lowercase();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().find(|secret| secret.name == name).map(|secret| secret.value.clone())
    }

    fn all(&self) -> Vec<Arc<Secret>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// By identifier or name.
    fn find(&self, secret: &str) -> Result<Arc<Secret>, SecretError> {
        let name = secret.to_ascii_lowercase();
        let found = self.all().into_iter().find(|known| known.id == secret || known.name == name);
        found.ok_or_else(|| SecretError::NotFound(secret.to_owned()))
    }

    fn insert(&self, secret: Secret) -> Arc<Secret> {
        let secret = Arc::new(secret);
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(secret.id.clone(), Arc::clone(&secret));
        secret
    }

    async fn put(&self, secret: Secret) -> Result<Arc<Secret>, SecretError> {
        self.records.put_secret(&secret).await?;
        Ok(self.insert(secret))
    }
}

impl Node {
    /// Secrets, newest first.
    pub fn secrets(&self, limit: usize, after: Option<&Cursor>) -> SecretPage {
        let cursor = |secret: &Arc<Secret>| {
            Cursor::new(secret.created_at, secret.id.strip_prefix(ID_PREFIX).unwrap_or(&secret.id).to_owned())
        };
        let (secrets, next) = page(self.world.secrets.all().into_iter(), limit, after, cursor);
        SecretPage { secrets, next }
    }

    /// A secret by its identifier or name.
    pub fn secret(&self, secret: &str) -> Result<Arc<Secret>, SecretError> {
        self.world.secrets.find(secret)
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
        let world = Arc::clone(&self.world);
        self.complete(async move {
            let secrets = &world.secrets;
            let _turn = secrets.changing.lock().await;
            if secrets.all().iter().any(|secret| secret.name == lower) {
                return Err(SecretError::Taken(lower));
            }
            let (now, tail) = (world.clock.now(), random_name('s'));
            let id = format!("{ID_PREFIX}{tail}");
            let new = Secret { id, name: lower, value, version: 1, metadata, created_at: now, updated_at: now };
            secrets.put(new).await
        })
        .await
    }

    /// Gives a secret a new value, which sandboxes use from their next request on. Metadata stays unless given.
    pub async fn update_secret(
        &self,
        secret: &str,
        value: Token,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<Arc<Secret>, SecretError> {
        check_value(&value)?;
        metadata.as_ref().map_or(Ok(()), check_metadata)?;
        let (world, secret) = (Arc::clone(&self.world), secret.to_owned());
        self.complete(async move {
            let secrets = &world.secrets;
            let _turn = secrets.changing.lock().await;
            let mut new = Secret::clone(&*secrets.find(&secret)?);
            new.value = value;
            new.version += 1;
            new.updated_at = world.clock.now();
            new.metadata = metadata.unwrap_or(new.metadata);
            secrets.put(new).await
        })
        .await
    }

    /// Requests of sandboxes that name the secret fail from now on.
    pub async fn delete_secret(&self, secret: &str) -> Result<(), SecretError> {
        let (world, secret) = (Arc::clone(&self.world), secret.to_owned());
        self.complete(async move {
            let secrets = &world.secrets;
            let _turn = secrets.changing.lock().await;
            let known = secrets.find(&secret)?;
            secrets.records.remove_secret(&known.id).await?;
            secrets.known.write().unwrap_or_else(PoisonError::into_inner).remove(&known.id);
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
