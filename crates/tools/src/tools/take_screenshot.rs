//! `take_screenshot`: what the sandbox's preview looks like, on a desktop and on a phone.

use serde_json::json;

use crate::image::{MOST_BYTES, kind, size};
use crate::input::{Input, invalid};
use crate::result::{Block, Done, ErrorCode, Failure, Image, Outcome};
use crate::screenshots::{Capture, CaptureError, Screenshots, Shots};

/// Longest side that providers do not scale down themselves.
const LONGEST_SIDE: u32 = 1568;

pub(crate) async fn run(screenshots: Option<&dyn Screenshots>, preview_port: u16, input: &mut Input) -> Outcome {
    let port = input.bounded("port", 1, 65535)?;
    let url_path = input.optional_text("url_path")?.unwrap_or_else(|| "/".into());
    let full_page = input.flag("full_page")?;
    let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(preview_port);
    let url_path = path_of(&url_path)?;
    let Some(screenshots) = screenshots else {
        let text = "Screenshots are not available here: no browser is configured on the host. Use bash with curl to look at the page.";
        return Err(Failure::new(ErrorCode::NoDisplay, text));
    };
    let capture = Capture { port, url_path: url_path.clone(), full_page };
    let shots = screenshots.capture(capture).await.map_err(|error| explain(port, &error))?;
    answer(port, &url_path, shots)
}

/// The path on the preview; whole addresses are refused before anything is asked for.
fn path_of(given: &str) -> Result<String, Failure> {
    let given = given.trim();
    let refused = || {
        invalid(format!(
            "`url_path` is {given:?}, but only the sandbox's own preview can be captured. Send a path such as /about, and the port in \
             `port`."
        ))
    };
    let after_slashes = given.trim_start_matches(['/', '\\']);
    let has_scheme = given.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    });
    if has_scheme || given.starts_with("//") || given.starts_with("/\\") || given.starts_with('\\') {
        return Err(refused());
    }
    if given.chars().any(char::is_control) {
        return Err(refused());
    }
    Ok(format!("/{after_slashes}"))
}

fn explain(port: u16, error: &CaptureError) -> Failure {
    let (code, text) = match error {
        CaptureError::Refused(reason) => (ErrorCode::InvalidInput, format!("The page was not loaded: {reason}.")),
        CaptureError::NotServed { port } => (
            ErrorCode::CaptureFailed,
            format!(
                "Nothing answers on port {port} of the sandbox. Start the server with bash (run_in_background), then try again."
            ),
        ),
        CaptureError::NoBrowser(reason) => (
            ErrorCode::NoDisplay,
            format!("Screenshots are not available here: {reason}. Use bash with curl to look at the page."),
        ),
        CaptureError::Resting { .. } => {
            (ErrorCode::CaptureFailed, format!("No screenshot was taken: {error}. Go on without it."))
        }
        CaptureError::Unusable(reason) => (ErrorCode::ImageUnusable, format!("The picture cannot be shown: {reason}.")),
        CaptureError::Failed(reason) => (
            ErrorCode::CaptureFailed,
            format!("The page on port {port} could not be captured: {reason}. Check it with bash and curl."),
        ),
    };
    Failure::new(code, text).with(json!({ "port": port }))
}

fn answer(port: u16, url_path: &str, shots: Shots) -> Outcome {
    let Shots { shots, title, blocked, console_errors } = shots;
    let (mut images, mut lines, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    let title_shown = title.as_ref().map_or(String::new(), |title| format!(" ({title:?})"));
    lines.push(format!("Captured port {port}, {url_path}{title_shown}."));
    for shot in shots {
        // The gate: a picture that a provider refuses would spoil every later turn.
        let real = kind(&shot.webp).and_then(|kind| Some((kind, size(kind, &shot.webp)?)));
        let Some(("image/webp", (width, height))) = real else {
            return Err(Failure::new(
                ErrorCode::ImageUnusable,
                format!("The {} picture is damaged, so it is not shown. Take it again.", shot.viewport),
            ));
        };
        if width.max(height) > LONGEST_SIDE || shot.webp.len() > MOST_BYTES {
            return Err(Failure::new(
                ErrorCode::ImageUnusable,
                format!(
                    "The {} picture has {width}x{height} pixels and {} bytes; {LONGEST_SIDE} pixels on a side and {MOST_BYTES} bytes are the \
                     most. Capture without full_page.",
                    shot.viewport,
                    shot.webp.len()
                ),
            ));
        }
        let blank = if shot.blank { " — the picture is blank: the page may have failed to render" } else { "" };
        let seen_at = shot.url.as_ref().map_or(String::new(), |url| format!(": {url}"));
        lines.push(format!("{} {width}x{height}{seen_at}{blank}", shot.viewport));
        facts.push(json!({
            "viewport": shot.viewport, "width": width, "height": height, "key": shot.key, "url": shot.url, "bytes": shot.webp.len(),
            "blank": shot.blank
        }));
        images.push(Block::Image(Image { media_type: "image/webp", bytes: shot.webp }));
    }
    if facts.iter().any(|fact| fact["url"].is_null()) {
        lines.push("[The pictures have no address: no server runs on this machine that could show them.]".into());
    }
    if !blocked.is_empty() {
        let shown: Vec<&str> = blocked.iter().take(10).map(String::as_str).collect();
        let more = blocked.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("[Blocked, since they leave the sandbox: {}{more}]", shown.join(", ")));
    }
    if !console_errors.is_empty() {
        let shown: Vec<String> = console_errors.iter().take(5).map(|line| line.chars().take(300).collect()).collect();
        lines.push(format!("[Errors in the page's console: {}]", shown.join(" | ")));
    }
    let structured = json!({
        "port": port, "url_path": url_path, "title": title, "screenshots": facts, "blocked": blocked, "console_errors": console_errors,
    });
    images.push(Block::Text(lines.join("\n")));
    Ok(Done { content: images, structured, code: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_preview_are_taken() {
        assert_eq!(path_of("about?x=1#y").expect("a path"), "/about?x=1#y");
        assert_eq!(path_of("/").expect("a path"), "/");
        assert_eq!(path_of("/a:b").expect("a path"), "/a:b");
        for foreign in [
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "//evil.example/",
            "/\\evil",
            "\\\\evil",
            "javascript:alert(1)",
            "a\nb",
        ] {
            assert!(path_of(foreign).is_err(), "{foreign}");
        }
    }
}
