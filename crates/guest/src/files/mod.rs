//! `/files`: whole files over plain HTTP, of any size, in constant memory.
//!
//! Blocking file calls run on the thread pool, one batch at a time, so that no thread waits for a
//! slow client.

mod accept;
mod compose;
mod download;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod incoming;
mod kind;
pub(crate) mod metadata;
mod multipart;
mod range;
mod replace;
mod upload;
mod writer;

use std::path::PathBuf;

pub(crate) use self::compose::compose;
pub(crate) use self::download::download;
pub(crate) use self::upload::upload;
pub(crate) use self::writer::make_directories;
use crate::http::{HttpError, QueryString};
use crate::paths;
use crate::state::{Guest, UnknownUser};
use crate::users::User;

/// Bytes per file operation: large enough that system calls and thread handovers cost little
/// compared to the copy.
const BATCH: usize = 256 * 1024;

fn user(guest: &Guest, name: Option<&str>) -> Result<User, HttpError> {
    guest.user(name).map_err(|UnknownUser(name)| {
        HttpError::unauthorized(format!("error looking up user '{name}': unknown user {name}"))
    })
}

fn user_from_query(guest: &Guest, query: &QueryString) -> Result<User, HttpError> {
    user(guest, query.non_empty("username"))
}

fn resolve(guest: &Guest, user: &User, path: &str) -> Result<PathBuf, HttpError> {
    paths::resolve(path, user, guest.default_workdir().as_deref())
        .map_err(|bad| HttpError::bad_request(bad.to_string()))
}
