//! Volumes and their content, in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use protocol::rest::volume::{
    EntryKind, NewVolume, Volume, VolumeAndToken, VolumeEntry, VolumeEntryUpdate, VolumeErrorBody,
};

use crate::exchange::{FakeRequest, FakeResponse, empty, json, refuse};
use crate::state::FakeState;

#[derive(Debug)]
pub(crate) struct FakeVolume {
    pub(crate) name: String,
    id: String,
    token: String,
    entries: BTreeMap<String, Held>,
}

#[derive(Debug)]
struct Held {
    /// [`None`] for a directory.
    content: Option<Bytes>,
    mode: u32,
    uid: u32,
    gid: u32,
    at: Timestamp,
}

impl FakeVolume {
    fn wire(&self) -> VolumeAndToken {
        VolumeAndToken { volume: self.listed(), token: self.token.clone(), domain: None }
    }

    fn listed(&self) -> Volume {
        Volume { volume_id: self.id.clone(), name: self.name.clone() }
    }
}

impl Held {
    fn wire(&self, path: &str) -> VolumeEntry {
        let time = self.at.to_string();
        VolumeEntry {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            kind: if self.content.is_some() { EntryKind::File } else { EntryKind::Directory },
            path: path.to_owned(),
            size: self.content.as_ref().map_or(4096, |content| content.len() as u64),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            atime: time.clone(),
            mtime: time.clone(),
            ctime: time,
            target: None,
        }
    }
}

pub(crate) fn handle(
    state: &mut FakeState,
    request: &FakeRequest,
    segments: &[&str],
) -> Result<FakeResponse, FakeResponse> {
    match (request.method.as_str(), segments) {
        ("GET", ["volumes"]) => Ok(json(200, &state.volumes.values().map(FakeVolume::listed).collect::<Vec<_>>())),
        ("POST", ["volumes"]) => {
            let NewVolume { name } = request.json()?;
            let fits = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            if !fits || state.volumes.values().any(|held| held.name == name) {
                return Err(refuse(400, format!("volume name '{name}' is taken or not valid")));
            }
            let number = state.number();
            let (id, token) = (format!("vol{number:016}"), format!("volume-token-{number}"));
            let held = FakeVolume { name, id: id.clone(), token, entries: BTreeMap::new() };
            let made = json(201, &held.wire());
            state.volumes.insert(id, held);
            Ok(made)
        }
        ("GET", ["volumes", id]) => match state.volumes.get(*id) {
            Some(held) => Ok(json(200, &held.wire())),
            None => Err(refuse(404, format!("volume '{id}' not found"))),
        },
        ("DELETE", ["volumes", id]) => match state.volumes.remove(*id) {
            Some(_) => Ok(empty(204)),
            None => Err(refuse(404, format!("volume '{id}' not found"))),
        },
        (method, ["volumecontent", id, kind]) => {
            let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
            let held = state.volumes.get_mut(*id).filter(|held| bearer == Some(held.token.as_str()));
            let held =
                held.ok_or_else(|| error_response(401, "unauthorized", "the token does not open this volume"))?;
            content(held, request, method, kind)
        }
        _ => Err(refuse(404, format!("path '{}' not found", request.path()))),
    }
}

/// In this API `code` is a string.
fn error_response(status: u16, code: &str, message: impl Into<String>) -> FakeResponse {
    json(status, &VolumeErrorBody { code: code.into(), message: message.into() })
}

fn content(
    volume: &mut FakeVolume,
    request: &FakeRequest,
    method: &str,
    kind: &str,
) -> Result<FakeResponse, FakeResponse> {
    let path = request.query("path").ok_or_else(|| error_response(400, "bad_request", "path is required"))?;
    let path = format!("/{}", path.trim_matches('/'));
    let missing = || error_response(404, "not_found", format!("path '{path}' not found"));
    let number = |name: &str| request.query(name).and_then(|text| text.parse::<u32>().ok());
    let force = request.query("force").as_deref() == Some("true");
    let parent = path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| !parent.is_empty());
    let new = |content: Option<Bytes>| Held {
        mode: number("mode").unwrap_or(if content.is_some() { 0o644 } else { 0o755 }),
        content,
        uid: number("uid").unwrap_or(1000),
        gid: number("gid").unwrap_or(1000),
        at: Timestamp::now(),
    };
    match (method, kind) {
        ("GET", "path") => volume.entries.get(&path).map(|held| json(200, &held.wire(&path))).ok_or_else(missing),
        ("PATCH", "path") => {
            let VolumeEntryUpdate { uid, gid, mode } = request.json()?;
            let held = volume.entries.get_mut(&path).ok_or_else(missing)?;
            held.uid = uid.unwrap_or(held.uid);
            held.gid = gid.unwrap_or(held.gid);
            held.mode = mode.unwrap_or(held.mode);
            Ok(json(200, &held.wire(&path)))
        }
        ("DELETE", "path") => {
            let before = volume.entries.len();
            let below = format!("{path}/");
            volume.entries.retain(|known, _| *known != path && !known.starts_with(&below));
            if volume.entries.len() == before { Err(missing()) } else { Ok(empty(204)) }
        }
        ("GET", "dir") => {
            if path != "/" && volume.entries.get(&path).is_none_or(|held| held.content.is_some()) {
                return Err(missing());
            }
            let depth = number("depth").unwrap_or(1) as usize;
            let prefix = if path == "/" { path } else { format!("{path}/") };
            let within =
                |known: &&String| known.strip_prefix(&prefix).is_some_and(|rest| rest.split('/').count() <= depth);
            let names = volume.entries.keys().filter(within);
            Ok(json(200, &names.map(|known| volume.entries[known].wire(known)).collect::<Vec<_>>()))
        }
        ("POST", "dir") => {
            if volume.entries.contains_key(&path) {
                return Err(error_response(409, "already_exists", format!("path '{path}' exists")));
            }
            if let Some(parent) = parent.filter(|parent| !volume.entries.contains_key(*parent)) {
                if !force {
                    return Err(missing());
                }
                make_parents(volume, parent);
            }
            let made = new(None);
            let answer = json(201, &made.wire(&path));
            volume.entries.insert(path, made);
            Ok(answer)
        }
        ("GET", "file") => match volume.entries.get(&path).and_then(|held| held.content.clone()) {
            Some(content) => Ok(FakeResponse::new(200, "application/octet-stream", content)),
            None => Err(missing()),
        },
        ("PUT", "file") => {
            if volume.entries.contains_key(&path) && !force {
                return Err(error_response(409, "already_exists", format!("path '{path}' exists")));
            }
            if let Some(parent) = parent {
                make_parents(volume, parent);
            }
            let made = new(Some(request.body.clone()));
            let answer = json(201, &made.wire(&path));
            volume.entries.insert(path, made);
            Ok(answer)
        }
        _ => Err(error_response(404, "not_found", "no such call")),
    }
}

fn make_parents(volume: &mut FakeVolume, path: &str) {
    let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).chain([path.len()]);
    for end in ends {
        let directory = || Held { content: None, mode: 0o755, uid: 1000, gid: 1000, at: Timestamp::now() };
        volume.entries.entry(path[..end].to_owned()).or_insert_with(directory);
    }
}
