//! `POST /files/compose`: concatenates several files into one and deletes them.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use protocol::envd::{Compose, WrittenFile};

use super::metadata::Metadata;
use super::writer::FileWriter;
use super::{resolve, user};
use crate::http::{HttpError, Reply, json, read_json};
use crate::state::Guest;
use crate::thread_pool;
use crate::users::User;

pub(crate) async fn compose(guest: &Arc<Guest>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let order: Option<Compose> = read_json(request).await?;
    let Compose { source_paths, destination, username } =
        order.ok_or_else(|| HttpError::bad_request("a body is required"))?;
    let user = user(guest, username.as_deref().filter(|name| !name.is_empty()))?;
    if source_paths.is_empty() {
        return Err(HttpError::bad_request("source_paths is empty"));
    }
    if destination.is_empty() {
        return Err(HttpError::bad_request("destination is empty"));
    }
    let target = resolve(guest, &user, &destination)?;
    let sources = source_paths.iter().map(|path| resolve(guest, &user, path)).collect::<Result<Vec<_>, _>>()?;
    if sources.contains(&target) {
        return Err(HttpError::bad_request("the destination is one of the sources"));
    }
    let joined = thread_pool::spawn(move || join(&sources, target, &user)).await;
    let entry = joined.map_err(|_| HttpError::internal("writing was interrupted"))??;
    Ok(json(StatusCode::OK, &entry))
}

/// Checks all sources before the first write, and deletes them after the last.
fn join(sources: &[PathBuf], target: PathBuf, user: &User) -> Result<WrittenFile, HttpError> {
    for path in sources {
        let meta = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => HttpError::not_found(format!("path '{}' does not exist", path.display())),
            _ => HttpError::internal(format!("error reading '{}': {error}", path.display())),
        })?;
        if !meta.is_file() {
            return Err(HttpError::bad_request(format!("path is not a regular file: {}", path.display())));
        }
    }
    let mut writer = FileWriter::create(target, user)?;
    for path in sources {
        let failed = |error: io::Error| HttpError::internal(format!("error reading '{}': {error}", path.display()));
        let mut options = fs::File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        writer.copy_from(&mut options.open(path).map_err(failed)?)?;
    }
    let entry = writer.finish(&Metadata::new())?;
    for path in sources {
        fs::remove_file(path)
            .map_err(|error| HttpError::internal(format!("error removing '{}': {error}", path.display())))?;
    }
    Ok(entry)
}
