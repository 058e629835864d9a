//! Rows that this version of the program cannot parse, for example because a newer version wrote
//! them.
//!
//! Invariant: such a row stays in the database unchanged, and no file it names is removed. The rest
//! of the table is served without it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::error;

/// One row that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetAsideRow {
    pub table: &'static str,
    pub id: String,
    pub cause: String,
}

/// The rows set aside by one crate. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SetAside(Arc<Mutex<BTreeMap<(&'static str, String), String>>>);

impl SetAside {
    /// Returns the parsed row `id`. A row that failed to parse is logged once and listed in
    /// [`SetAside::rows`].
    pub fn keep<T, E: Display>(&self, table: &'static str, id: &str, read: Result<T, E>) -> Option<T> {
        let mut rows = self.0.lock();
        let key = (table, id.to_owned());
        match read {
            Ok(read) => {
                rows.remove(&key);
                Some(read)
            }
            Err(cause) => {
                let cause = cause.to_string();
                if rows.insert(key, cause.clone()).as_ref() != Some(&cause) {
                    error!(
                        table,
                        id,
                        cause,
                        "set a row aside that this version cannot read; it stays in the database, and \
                         a newer version of sandbar may read it"
                    );
                }
                None
            }
        }
    }

    pub fn rows(&self) -> Vec<SetAsideRow> {
        let rows = self.0.lock();
        let row = |((table, id), cause): (&(&'static str, String), &String)| SetAsideRow {
            table,
            id: id.clone(),
            cause: cause.clone(),
        };
        rows.iter().map(row).collect()
    }
}
