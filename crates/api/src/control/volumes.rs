//! Volumes: create, list, get, delete, and mounts of create calls. [`super::volume_content`] serves
//! their contents.

use http::{Request, StatusCode};
use node::{Volume, VolumeError, VolumeMount};
use protocol::rest::{self, volume as wire};

use super::failure::Failure;
use super::{CallResult, payload};
use crate::body;
use crate::content::Content;
use crate::server::App;

/// Each is a separate mount at every boot.
const MOST_MOUNTS: usize = 8;
/// Mounts must not hide these file systems of the sandbox's kernel.
const RESERVED: [&str; 3] = ["proc", "sys", "dev"];

pub(super) fn list(app: &App) -> CallResult {
    let mut volumes = app.node.volumes();
    volumes.sort_by(|one, other| one.name.cmp(&other.name));
    let rows: Vec<wire::Volume> = volumes.iter().map(|volume| list_entry(volume)).collect();
    Ok(body::json(StatusCode::OK, &rows))
}

pub(super) async fn create(app: &App, request: Request<Content>) -> CallResult {
    let wire::NewVolume { name } = payload::read_json(request).await?;
    let made = app.node.create_volume(&name).await?;
    Ok(body::json(StatusCode::CREATED, &with_token(app, &made)))
}

pub(super) fn get(app: &App, id: &str) -> CallResult {
    Ok(body::json(StatusCode::OK, &with_token(app, &*app.node.volume(id)?)))
}

pub(super) async fn delete(app: &App, id: &str) -> CallResult {
    app.node.delete_volume(id).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

fn list_entry(volume: &Volume) -> wire::Volume {
    wire::Volume { volume_id: volume.id.clone(), name: volume.name.clone() }
}

fn with_token(app: &App, volume: &Volume) -> wire::VolumeAndToken {
    wire::VolumeAndToken {
        volume: list_entry(volume),
        token: volume.token.reveal().to_owned(),
        // Without this domain, SDKs would send the token to E2B's own.
        domain: Some(app.config.domain.clone()),
    }
}

/// Validates the paths of requested mounts and finds their volumes.
pub(super) fn mounts(app: &App, asked: &[rest::VolumeMount]) -> Result<Vec<VolumeMount>, Failure> {
    let wrong = |what: String| Failure::bad_request(format!("volumeMounts: {what}"));
    if asked.len() > MOST_MOUNTS {
        return Err(wrong(format!("{} volumes; {MOST_MOUNTS} are the most", asked.len())));
    }
    let mut mounts: Vec<VolumeMount> = Vec::new();
    for rest::VolumeMount { name, path } in asked {
        let parts = path.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
        let clean =
            |parts: &Vec<&str>| parts.iter().all(|part| !["", ".", ".."].contains(part) && !part.contains('\0'));
        let Some(parts) = parts.filter(clean) else {
            return Err(wrong(format!("'{path}' is not a clean absolute path")));
        };
        if RESERVED.contains(&parts[0]) {
            return Err(wrong(format!("nothing can be mounted below '/{}'", parts[0])));
        }
        if mounts.iter().any(|mount| mount.path == *path) {
            return Err(wrong(format!("'{path}' is used twice")));
        }
        mounts.push(app.node.volume_mount(name, path).map_err(|error| match error {
            VolumeError::NotFound(_) => wrong(error.to_string()),
            other => other.into(),
        })?);
    }
    Ok(mounts)
}
