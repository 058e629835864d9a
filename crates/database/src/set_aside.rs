//! Rows that this version of the program cannot read, for example because a newer one wrote them.
//!
//! Invariant: such a row stays in the database as it is, and nothing it names is removed. The rest
//! of the table is served without it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::error;

/// One row that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetAsideRow {
    pub table: &'static str,
    pub id: String,
    pub cause: String,
}

/// The rows set aside by one part of the program. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SetAside(Arc<Mutex<BTreeMap<(&'static str, String), String>>>);

impl SetAside {
    /// What was read of the row `id`; a row that cannot be read is logged once and listed in
    /// [`SetAside::rows`].
    pub fn keep<T, E: Display>(&self, table: &'static str, id: &str, read: Result<T, E>) -> Option<T> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((table, id), cause): (&(&'static str, String), &String)| SetAsideRow {
            table,
            id: id.clone(),
            cause: cause.clone(),
        };
        rows.iter().map(row).collect()
    }
}
