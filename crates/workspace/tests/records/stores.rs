//! The implementations, each opened twice on the same data, as two processes would.

use std::sync::Arc;

use sandbar_workspace::records::{DatabaseRecords, MemoryRecords, Records};
use sdk::Secret;
use tempfile::TempDir;

/// Two handles to the same records.
pub(crate) struct Pair {
    pub(crate) one: Arc<dyn Records>,
    pub(crate) two: Arc<dyn Records>,
    _directory: Option<TempDir>,
}

pub(crate) fn memory() -> Pair {
    let records: Arc<dyn Records> = Arc::new(MemoryRecords::default());
    Pair { one: Arc::clone(&records), two: records, _directory: None }
}

pub(crate) async fn sqlite() -> Pair {
    let directory = tempfile::tempdir().expect("a directory");
    let url = Secret::from(format!("sqlite://{}/a ? b/records.sqlite", directory.path().display()));
    Pair { one: open(&url).await, two: open(&url).await, _directory: Some(directory) }
}

pub(crate) async fn postgres() -> Pair {
    let url = Secret::from(testing::postgres::database());
    Pair { one: open(&url).await, two: open(&url).await, _directory: None }
}

async fn open(url: &Secret) -> Arc<dyn Records> {
    Arc::new(DatabaseRecords::open(url).await.expect("the records open"))
}
