//! Determines the content type of a file: by its name, else by its first bytes.

use std::path::Path;

pub(super) fn content_type(path: &Path, beginning: &[u8]) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "txt" | "md" | "log" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/vnd.microsoft.icon",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        _ if is_text(beginning) => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn is_text(beginning: &[u8]) -> bool {
    const INSPECTED_BYTES: usize = 512;
    let inspected = &beginning[..beginning.len().min(INSPECTED_BYTES)];
    let control = |byte: &u8| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    if inspected.iter().any(control) {
        return false;
    }
    match std::str::from_utf8(inspected) {
        Ok(_) => true,
        // A character may be cut at the end of the inspected bytes.
        Err(error) => error.error_len().is_none(),
    }
}
