//! Secrets: their values are accepted and dropped.

use std::collections::BTreeMap;

use jiff::Timestamp;
use protocol::rest::secret::{NewSecret, SecretInfo, SecretUpdate};

use crate::exchange::{FakeRequest, FakeResponse, empty, json, page, refuse};
use crate::state::FakeState;

/// A secret, with_idempotency_key by its name.
pub(crate) type FakeSecret = SecretInfo;

pub(crate) fn handle(
    state: &mut FakeState,
    request: &FakeRequest,
    segments: &[&str],
) -> Result<FakeResponse, FakeResponse> {
    let missing = |name: &str| refuse(404, format!("secret '{name}' not found"));
    let secrets: &mut BTreeMap<String, FakeSecret> = &mut state.secrets;
    let key = |secrets: &BTreeMap<String, FakeSecret>, text: &str| {
        let found = secrets.values().find(|held| held.secret_id == text || held.name == text);
        found.map(|held| held.name.clone()).ok_or_else(|| missing(text))
    };
    let now = Timestamp::now().to_string();
    match (request.method.as_str(), segments) {
        ("GET", ["secrets"]) => Ok(page(request, &secrets.values().collect::<Vec<_>>())),
        ("POST", ["secrets"]) => {
            let NewSecret { name, value: _, metadata } = request.json()?;
            let fits =
                (1..=128).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            if !fits || secrets.contains_key(&name) {
                return Err(refuse(400, format!("secret name '{name}' is taken or not valid")));
            }
            let secret_id = format!("sec{:016}", secrets.len() + 1);
            let held = SecretInfo {
                secret_id,
                name: name.clone(),
                current_version: 1,
                metadata: metadata.unwrap_or_default(),
                created_at: now.clone(),
                updated_at: now,
            };
            let made = json(201, &held);
            secrets.insert(name, held);
            Ok(made)
        }
        ("GET", ["secrets", text]) => Ok(json(200, &secrets[&key(secrets, text)?])),
        ("POST", ["secrets", text]) => {
            let SecretUpdate { value: _, metadata } = request.json()?;
            let name = key(secrets, text)?;
            let held = secrets.get_mut(&name).ok_or_else(|| missing(text))?;
            held.current_version += 1;
            held.updated_at = now;
            if let Some(metadata) = metadata {
                held.metadata = metadata;
            }
            Ok(json(200, &*held))
        }
        ("DELETE", ["secrets", text]) => {
            secrets.remove(&key(secrets, text)?);
            Ok(empty(204))
        }
        _ => Err(refuse(404, format!("path '{}' not found", request.path()))),
    }
}
