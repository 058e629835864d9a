//! Secrets: create and update calls set values, and no call returns one.

use http::{Request, StatusCode};
use node::{Secret, SecretPage};
use protocol::rest::secret::{NewSecret, SecretInfo, SecretUpdate};

use super::list::{paging, with_next};
use super::{CallResult, payload, view};
use crate::content::Content;
use crate::server::App;
use crate::{body, query};

pub(super) fn list(app: &App, request: &Request<Content>) -> CallResult {
    let (limit, after) = paging(&query::pairs(request.uri().query().unwrap_or("")))?;
    let SecretPage { secrets, next } = app.node.secrets(limit, after.as_ref());
    let rows: Vec<SecretInfo> = secrets.iter().map(|secret| info(secret)).collect();
    Ok(with_next(body::json(StatusCode::OK, &rows), next))
}

pub(super) async fn create(app: &App, request: Request<Content>) -> CallResult {
    let NewSecret { name, value, metadata } = payload::read_json(request).await?;
    let made = app.node.create_secret(&name, value.into(), metadata.unwrap_or_default()).await?;
    Ok(body::json(StatusCode::CREATED, &info(&made)))
}

pub(super) fn get(app: &App, secret: &str) -> CallResult {
    Ok(body::json(StatusCode::OK, &info(&*app.node.secret(secret)?)))
}

pub(super) async fn update(app: &App, secret: &str, request: Request<Content>) -> CallResult {
    let SecretUpdate { value, metadata } = payload::read_json(request).await?;
    let changed = app.node.update_secret(secret, value.into(), metadata).await?;
    Ok(body::json(StatusCode::OK, &info(&changed)))
}

pub(super) async fn delete(app: &App, secret: &str) -> CallResult {
    app.node.delete_secret(secret).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

fn info(secret: &Secret) -> SecretInfo {
    let Secret { id, name, value: _, version, metadata, created_at, updated_at } = secret;
    SecretInfo {
        secret_id: id.clone(),
        name: name.clone(),
        current_version: *version,
        metadata: metadata.clone(),
        created_at: view::time(*created_at),
        updated_at: view::time(*updated_at),
    }
}
