//! The daemon of each sandbox, as far as tests need it: health, files in memory, scripted commands.
//! Does not support signed links.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::envd::{FileKind, WrittenFile};
use protocol::guest::ENVD_PORT;
use protocol::headers::{ACCESS_TOKEN, METADATA_PREFIX, SANDBOX_ID, SANDBOX_PORT};
use protocol::rest::{PauseMode, SandboxState};
use protocol::rpc::filesystem::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse,
    RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
use serde_json::json;

use crate::Shared;
use crate::exchange::{FakeRequest, FakeResponse, empty, json as answer_json, refuse};
use crate::process::{self, Codec, rpc_error};
use crate::state::{FakeSandbox, FileNode, Files};

const HOME: &str = "/home/user";

pub(crate) fn handle(shared: &Shared, request: &FakeRequest) -> FakeResponse {
    let mut state = shared.state();
    state.expire();
    let id = request.header(SANDBOX_ID).unwrap_or_default();
    let Some(port) = request.header(SANDBOX_PORT) else {
        return FakeResponse::new(400, "text/plain", "missing header");
    };
    let scripts = state.scripts.clone();
    let found = state.sandboxes.get_mut(id).and_then(|sandbox| runs_or_resumes(sandbox).then_some(sandbox));
    let Some(sandbox) = found else {
        let body = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
        return answer_json(502, &body);
    };
    if port != ENVD_PORT.to_string() {
        let message = "The sandbox is running but port is not open";
        return answer_json(502, &json!({ "sandboxId": id, "message": message, "port": port, "code": 502 }));
    }
    let segments = request.segments();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if segments == ["health"] {
        return empty(204);
    }
    if sandbox.token.is_some() && request.header(ACCESS_TOKEN) != sandbox.token.as_deref() {
        return refuse(401, "access token is missing or does not match");
    }
    let served = match (request.method.as_str(), segments.as_slice()) {
        ("GET", ["files"]) => read(&sandbox.files, request),
        ("POST", ["files"]) => write(&mut sandbox.files, request),
        ("POST", ["process.Process", method]) => process::handle(&mut sandbox.processes, &scripts, request, method),
        ("POST", ["filesystem.Filesystem", method]) => filesystem(&mut sandbox.files, request, method),
        _ => Err(refuse(404, "no such path")),
    };
    served.unwrap_or_else(|refusal| refusal)
}

/// Whether it runs; resumes it first if it resumes on traffic.
fn runs_or_resumes(sandbox: &mut FakeSandbox) -> bool {
    let resumes = sandbox.request.auto_resume.is_some_and(|resume| resume.enabled);
    if sandbox.state == SandboxState::Paused && resumes && sandbox.pause_mode == Some(PauseMode::Full) {
        sandbox.resume(sandbox.request.timeout.unwrap_or(300));
    }
    sandbox.state == SandboxState::Running
}

fn absolute(path: &str) -> String {
    let joined = match path {
        "" | "~" => HOME.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{HOME}/{}", path.strip_prefix("~/").unwrap_or(path)),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn read(files: &Files, request: &FakeRequest) -> Result<FakeResponse, FakeResponse> {
    let path = absolute(&request.query("path").unwrap_or_default());
    match files.get(&path) {
        Some(FileNode::File { content, .. }) => Ok(FakeResponse::new(200, "application/octet-stream", content.clone())),
        Some(FileNode::Directory) => Err(refuse(400, format!("path '{path}' is a directory"))),
        None => Err(refuse(404, format!("path '{path}' does not exist"))),
    }
}

fn write(files: &mut Files, request: &FakeRequest) -> Result<FakeResponse, FakeResponse> {
    let pairs = request.headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix(METADATA_PREFIX)?;
        Some((key.to_owned(), value.to_str().ok()?.to_owned()))
    });
    let metadata: BTreeMap<String, String> = pairs.collect();
    let kind = request.header("content-type").unwrap_or_default();
    let parts = match kind.split_once("boundary=") {
        Some((_, boundary)) => parse_form(&request.body, boundary.trim_matches('"')),
        None => vec![(String::new(), request.body.clone())],
    };
    let mut written = Vec::new();
    for (name, content) in parts {
        let path = request.query("path").unwrap_or(name);
        if path.is_empty() {
            return Err(refuse(400, "path is required"));
        }
        let path = absolute(&path);
        if matches!(files.get(&path), Some(FileNode::Directory)) {
            return Err(refuse(400, format!("path '{path}' is a directory")));
        }
        make_parents(files, &path);
        files.insert(path.clone(), FileNode::File { content, metadata: metadata.clone() });
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        written.push(WrittenFile { path, name, kind: FileKind::File, metadata: metadata.clone() });
    }
    Ok(answer_json(200, &written))
}

/// The parts named `file`, with their file names.
fn parse_form(body: &Bytes, boundary: &str) -> Vec<(String, Bytes)> {
    let separator = format!("--{boundary}");
    let mut found = Vec::new();
    let mut ends = positions(body, separator.as_bytes());
    let Some(mut begin) = ends.next() else { return found };
    for end in ends {
        let part = &body[begin + separator.len()..end];
        let head_end = part.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(at) = head_end {
            let head = String::from_utf8_lossy(&part[..at]);
            let name = head.split("filename=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            let content = part[at + 4..].strip_suffix(b"\r\n").unwrap_or(&part[at + 4..]);
            if head.contains("name=\"file\"") {
                found.push((name.to_owned(), body.slice_ref(content)));
            }
        }
        begin = end;
    }
    found
}

fn positions<'a>(text: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let places = text.windows(wanted.len()).enumerate();
    places.filter(move |(_, window)| *window == wanted).map(|(at, _)| at)
}

fn make_parents(files: &mut Files, path: &str) {
    for (at, _) in path.match_indices('/').filter(|(at, _)| *at > 0) {
        files.entry(path[..at].to_owned()).or_insert(FileNode::Directory);
    }
}

fn filesystem(files: &mut Files, request: &FakeRequest, method: &str) -> Result<FakeResponse, FakeResponse> {
    let codec = Codec::for_request(request);
    let missing = |path: &str| rpc_error("not_found", &format!("path '{path}' does not exist"));
    match method {
        "Stat" => {
            let path = absolute(&codec.decode::<StatRequest>(&request.body)?.path);
            let entry = entry(files, &path).ok_or_else(|| missing(&path))?;
            Ok(codec.unary(&StatResponse { entry: entry.into(), ..StatResponse::default() }))
        }
        "ListDir" => {
            let ListDirRequest { path, depth, .. } = codec.decode(&request.body)?;
            let path = absolute(&path);
            match files.get(&path) {
                _ if path == "/" => {}
                Some(FileNode::Directory) => {}
                Some(FileNode::File { .. }) => return Err(rpc_error("invalid_argument", "it is not a directory")),
                None => return Err(missing(&path)),
            }
            let below = if path == "/" { path } else { format!("{path}/") };
            let deepest = depth.max(1) as usize;
            let within = |known: &&String| {
                known.strip_prefix(&below).is_some_and(|rest| !rest.is_empty() && rest.split('/').count() <= deepest)
            };
            let entries = files.keys().filter(within).filter_map(|known| entry(files, known)).collect();
            Ok(codec.unary(&ListDirResponse { entries, ..ListDirResponse::default() }))
        }
        "MakeDir" => {
            let path = absolute(&codec.decode::<MakeDirRequest>(&request.body)?.path);
            match files.get(&path) {
                Some(FileNode::Directory) => return Err(rpc_error("already_exists", "the directory exists")),
                Some(FileNode::File { .. }) => return Err(rpc_error("invalid_argument", "a file is there")),
                None => {}
            }
            make_parents(files, &path);
            files.insert(path.clone(), FileNode::Directory);
            let entry = entry(files, &path).ok_or_else(|| missing(&path))?;
            Ok(codec.unary(&MakeDirResponse { entry: entry.into(), ..MakeDirResponse::default() }))
        }
        "Move" => {
            let MoveRequest { source, destination, .. } = codec.decode(&request.body)?;
            let (source, destination) = (absolute(&source), absolute(&destination));
            if !files.contains_key(&source) {
                return Err(missing(&source));
            }
            make_parents(files, &destination);
            let below = format!("{source}/");
            let moving: Vec<String> =
                files.keys().filter(|known| **known == source || known.starts_with(&below)).cloned().collect();
            for old in moving {
                if let Some(node) = files.remove(&old) {
                    files.insert(format!("{destination}{}", &old[source.len()..]), node);
                }
            }
            let entry = entry(files, &destination).ok_or_else(|| missing(&destination))?;
            Ok(codec.unary(&MoveResponse { entry: entry.into(), ..MoveResponse::default() }))
        }
        "Remove" => {
            let path = absolute(&codec.decode::<RemoveRequest>(&request.body)?.path);
            let below = format!("{path}/");
            files.retain(|known, _| *known != path && !known.starts_with(&below));
            Ok(codec.unary(&RemoveResponse::default()))
        }
        _ => Err(rpc_error("unimplemented", "the fake does not have this call")),
    }
}

fn entry(files: &Files, path: &str) -> Option<EntryInfo> {
    let (kind, size, mode, permissions, metadata) = match files.get(path)? {
        FileNode::File { content, metadata } => {
            (FileType::FILE_TYPE_FILE, content.len(), 0o644, "-rw-r--r--", metadata.clone())
        }
        FileNode::Directory => (FileType::FILE_TYPE_DIRECTORY, 4096, 0o755, "drwxr-xr-x", BTreeMap::new()),
    };
    Some(EntryInfo {
        name: path.rsplit('/').next().unwrap_or_default().to_owned(),
        r#type: kind.into(),
        path: path.to_owned(),
        size: i64::try_from(size).unwrap_or(i64::MAX),
        mode,
        permissions: permissions.into(),
        owner: "user".into(),
        group: "user".into(),
        metadata: metadata.into_iter().collect(),
        ..EntryInfo::default()
    })
}
