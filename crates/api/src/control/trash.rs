//! Files that no record names, and their recovery: an extension of E2B.

use http::{Response, StatusCode};
use node::Description;
use protocol::rest::{Recoverable, Recovered};

use super::CallResult;
use super::failure::Failure;
use crate::body::{self, Body};
use crate::server::App;

pub(super) async fn list(app: &App) -> CallResult {
    let rows: Vec<Recoverable> = app.node.recoverable().await?.into_iter().map(row).collect();
    Ok(body::json(StatusCode::OK, &rows))
}

pub(super) async fn recover(app: &App, id: &str) -> Result<Response<Body>, Failure> {
    let recovered = match app.node.recover(id).await? {
        node::Recovered::Sandbox(id) => Recovered { kind: "sandbox".to_owned(), id: id.to_string(), name: None },
        node::Recovered::Template(id) => Recovered { kind: "template".to_owned(), id, name: None },
        node::Recovered::Volume { id, name } => Recovered { kind: "volume".to_owned(), id, name: Some(name) },
    };
    Ok(body::json(StatusCode::OK, &recovered))
}

fn row(entry: node::Recoverable) -> Recoverable {
    let node::Recoverable { files, trashed_at, deleted_at, bytes, description } = entry;
    let (kind, id, name, metadata) = match description {
        Some(Description::Sandbox(sandbox)) => ("sandbox", Some(sandbox.id), sandbox.template_alias, sandbox.metadata),
        Some(Description::Template(build)) => ("template", Some(build.template_id), build.name, Default::default()),
        Some(Description::Volume { id, name }) => ("volume", Some(id), Some(name), Default::default()),
        None => ("unknown", None, None, Default::default()),
    };
    Recoverable {
        files_id: files.to_string(),
        kind: kind.to_owned(),
        id,
        name,
        metadata,
        trashed_at: trashed_at.map(|moment| moment.to_string()),
        deleted_at: deleted_at.map(|moment| moment.to_string()),
        bytes,
    }
}
