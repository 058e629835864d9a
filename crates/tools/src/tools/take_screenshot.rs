//! `take_screenshot`: the sandbox's preview in a desktop and a mobile viewport.

use crate::image::{MAX_BYTES, kind, size};
use crate::input::{Input, invalid};
use crate::result::{Block, Done, ErrorCode, Failure, Image, Outcome};
use crate::screenshots::{ScreenshotError, ScreenshotProvider, ScreenshotRequest, ScreenshotSet};
use crate::structured::{FailureFacts, ScreenshotFacts, TakeScreenshotOutput, ToolOutput};

/// Longest side that providers do not scale down.
const MAX_SIDE: u32 = 1568;

pub(crate) async fn run(screenshots: Option<&dyn ScreenshotProvider>, preview_port: u16, input: &mut Input) -> Outcome {
    let port = input.bounded("port", 1, 65535)?;
    let url_path = input.optional_text("url_path")?.unwrap_or_else(|| "/".into());
    let full_page = input.flag("full_page")?;
    let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(preview_port);
    let url_path = preview_path(&url_path)?;
    let Some(screenshots) = screenshots else {
        let text = "Screenshots are not available here: no browser is configured on the host. Use bash with curl to look at the page.";
        return Err(Failure::new(ErrorCode::NoDisplay, text));
    };
    let capture = ScreenshotRequest { port, url_path: url_path.clone(), full_page };
    let screenshots = screenshots.capture(capture).await.map_err(|error| explain(port, &error))?;
    answer(port, &url_path, screenshots)
}

/// The path on the preview; other addresses are refused before any request.
fn preview_path(given: &str) -> Result<String, Failure> {
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

fn explain(port: u16, error: &ScreenshotError) -> Failure {
    let (code, text) = match error {
        ScreenshotError::Refused(reason) => (ErrorCode::InvalidInput, format!("The page was not loaded: {reason}.")),
        ScreenshotError::NotServed { port } => (
            ErrorCode::CaptureFailed,
            format!(
                "Nothing answers on port {port} of the sandbox. Start the server with bash (run_in_background), then try again."
            ),
        ),
        ScreenshotError::NoBrowser(reason) => (
            ErrorCode::NoDisplay,
            format!("Screenshots are not available here: {reason}. Use bash with curl to look at the page."),
        ),
        ScreenshotError::Resting { .. } => {
            (ErrorCode::CaptureFailed, format!("No screenshot was taken: {error}. Go on without it."))
        }
        ScreenshotError::Unusable(reason) => {
            (ErrorCode::ImageUnusable, format!("The picture cannot be shown: {reason}."))
        }
        ScreenshotError::Failed(reason) => (
            ErrorCode::CaptureFailed,
            format!("The page on port {port} could not be captured: {reason}. Check it with bash and curl."),
        ),
    };
    Failure::new(code, text).with(FailureFacts { port: Some(port), ..FailureFacts::default() })
}

fn answer(port: u16, url_path: &str, screenshots: ScreenshotSet) -> Outcome {
    let ScreenshotSet { screenshots, title, blocked, console_errors } = screenshots;
    let (mut images, mut lines, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    let title_shown = title.as_ref().map_or(String::new(), |title| format!(" ({title:?})"));
    lines.push(format!("Captured port {port}, {url_path}{title_shown}."));
    for shot in screenshots {
        // An image that a provider refuses would break every later turn.
        let real = kind(&shot.webp).and_then(|kind| Some((kind, size(kind, &shot.webp)?)));
        let Some(("image/webp", (width, height))) = real else {
            return Err(Failure::new(
                ErrorCode::ImageUnusable,
                format!("The {} picture is damaged, so it is not shown. Take it again.", shot.viewport),
            ));
        };
        if width.max(height) > MAX_SIDE || shot.webp.len() > MAX_BYTES {
            return Err(Failure::new(
                ErrorCode::ImageUnusable,
                format!(
                    "The {} picture has {width}x{height} pixels and {} bytes; {MAX_SIDE} pixels on a side and {MAX_BYTES} bytes are the \
                     most. Capture without full_page.",
                    shot.viewport,
                    shot.webp.len()
                ),
            ));
        }
        let blank = if shot.blank { " — the picture is blank: the page may have failed to render" } else { "" };
        let seen_at = shot.url.as_ref().map_or(String::new(), |url| format!(": {url}"));
        lines.push(format!("{} {width}x{height}{seen_at}{blank}", shot.viewport));
        facts.push(ScreenshotFacts {
            viewport: shot.viewport,
            width,
            height,
            key: shot.key,
            url: shot.url,
            bytes: shot.webp.len(),
            blank: shot.blank,
        });
        images.push(Block::Image(Image { media_type: "image/webp", bytes: shot.webp }));
    }
    if facts.iter().any(|fact| fact.url.is_none()) {
        lines.push(
            "[The pictures have no address: no server runs on this machine that could show them; `sandbar up` starts one.]"
                .into(),
        );
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
    images.push(Block::Text(lines.join("\n")));
    let url_path = url_path.to_owned();
    let output = TakeScreenshotOutput { port, url_path, title, screenshots: facts, blocked, console_errors };
    Ok(Done::new(images, ToolOutput::TakeScreenshot(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_preview_paths_are_accepted() {
        assert_eq!(preview_path("about?x=1#y").expect("a path"), "/about?x=1#y");
        assert_eq!(preview_path("/").expect("a path"), "/");
        assert_eq!(preview_path("/a:b").expect("a path"), "/a:b");
        for foreign in [
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "//evil.example/",
            "/\\evil",
            "\\\\evil",
            "javascript:alert(1)",
            "a\nb",
        ] {
            assert!(preview_path(foreign).is_err(), "{foreign}");
        }
    }
}
