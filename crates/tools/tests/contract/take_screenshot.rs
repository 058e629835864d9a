//! Contract of `take_screenshot`, with prepared screenshots.

use bytes::Bytes;
use sandbar_tools::{Block, ErrorCode, Screenshot, ScreenshotError, ScreenshotSet};
use serde_json::json;

use crate::fixture::Fixture;

crate::contract!(in [memory, plain]: [
    both_viewports_come_with_urls,
    only_the_preview_can_be_captured,
    unacceptable_images_are_withheld,
    failures_name_the_next_step,
]);

fn webp(width: u32, height: u32) -> Bytes {
    let mut bytes = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    bytes.extend(&(width - 1).to_le_bytes()[..3]);
    bytes.extend(&(height - 1).to_le_bytes()[..3]);
    bytes.into()
}

fn shot(viewport: &str, width: u32, height: u32) -> Screenshot {
    let key = format!("screenshots/j/agent/1_{viewport}.webp");
    let (url, blank) = (Some(format!("https://cdn.example/{key}")), viewport == "mobile");
    Screenshot { viewport: viewport.into(), width, height, webp: webp(width, height), key, url, blank }
}

fn prepare(fixture: &Fixture, screenshots: Result<ScreenshotSet, ScreenshotError>) {
    *fixture.prepared.next.lock() = Some(screenshots);
}

async fn both_viewports_come_with_urls(fixture: &Fixture) {
    let screenshots = vec![shot("desktop", 1280, 800), shot("mobile", 390, 844)];
    let blocked = vec!["http://tracker.example/x.js".to_owned()];
    prepare(
        fixture,
        Ok(ScreenshotSet { screenshots, title: Some("Home".into()), blocked, console_errors: Vec::new() }),
    );
    let seen = fixture.call("take_screenshot", json!({ "url_path": "about", "port": "8080" })).await;
    assert!(!seen.is_error, "{seen:?}");
    assert!(matches!(&seen.content[..], [Block::Image(_), Block::Image(_), Block::Text(_)]));
    let text = seen.text();
    assert!(
        text.starts_with("Captured port 8080, /about (\"Home\").\ndesktop 1280x800: https://cdn.example/"),
        "{text}"
    );
    assert!(text.contains("_mobile.webp — the picture is blank") && text.contains("tracker.example"), "{text}");
    assert_eq!(seen.structured.to_value()["screenshots"][1]["blank"], true);

    // Screenshots that only the host has are shown without their path.
    prepare(
        fixture,
        Ok(ScreenshotSet {
            screenshots: vec![Screenshot { url: None, ..shot("desktop", 1280, 800) }],
            ..ScreenshotSet::default()
        }),
    );
    let seen = fixture.call("take_screenshot", json!({})).await;
    let reason = "\ndesktop 1280x800\n[The pictures have no address: no server runs on this machine";
    assert!(seen.text().contains(reason) && seen.text().contains("`sandbar up` starts one"), "{}", seen.text());
    assert_eq!(seen.structured.to_value()["screenshots"][0]["url"], serde_json::Value::Null);
    let asked = fixture.prepared.asked.lock().clone();
    assert_eq!((asked[0].port, asked[0].url_path.as_str(), asked[0].full_page), (8080, "/about", false));
}

async fn only_the_preview_can_be_captured(fixture: &Fixture) {
    for address in ["http://169.254.169.254/latest", "file:///etc/passwd", "//evil.example/x", "\\\\evil"] {
        let text = fixture.fails("take_screenshot", json!({ "url_path": address }), ErrorCode::InvalidInput).await;
        assert!(text.contains("only the sandbox's own preview"), "{text}");
    }
    fixture.fails("take_screenshot", json!({ "port": 70_000 }), ErrorCode::InvalidInput).await;
    assert!(fixture.prepared.asked.lock().is_empty());
}

async fn unacceptable_images_are_withheld(fixture: &Fixture) {
    for bad in [shot("desktop", 1280, 9000), Screenshot { webp: Bytes::from_static(b"RIFF"), ..shot("desktop", 9, 9) }]
    {
        prepare(fixture, Ok(ScreenshotSet { screenshots: vec![bad], ..ScreenshotSet::default() }));
        let seen = fixture.call("take_screenshot", json!({})).await;
        assert_eq!(seen.code, Some(ErrorCode::ImageUnusable));
        assert_eq!(seen.images().count(), 0);
    }
    let heavy: Bytes = [webp(100, 100).to_vec(), vec![0; 4 << 20]].concat().into();
    prepare(
        fixture,
        Ok(ScreenshotSet {
            screenshots: vec![Screenshot { webp: heavy, ..shot("desktop", 9, 9) }],
            ..ScreenshotSet::default()
        }),
    );
    fixture.fails("take_screenshot", json!({}), ErrorCode::ImageUnusable).await;
}

async fn failures_name_the_next_step(fixture: &Fixture) {
    prepare(fixture, Err(ScreenshotError::NotServed { port: 3000 }));
    let text = fixture.fails("take_screenshot", json!({}), ErrorCode::CaptureFailed).await;
    assert!(text.contains("Nothing answers on port 3000") && text.contains("run_in_background"), "{text}");
    prepare(fixture, Err(ScreenshotError::NoBrowser("chromium is not installed".into())));
    fixture.fails("take_screenshot", json!({}), ErrorCode::NoDisplay).await;
}
