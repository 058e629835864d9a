//! `take_screenshot`, with pictures that a test prepared.

use bytes::Bytes;
use sandbar_tools::{Block, CaptureError, ErrorCode, Shot, Shots};
use serde_json::json;

use crate::world::World;

crate::contract!(in [memory, plain]: [
    both_viewports_come_with_their_addresses,
    only_the_preview_can_be_seen,
    pictures_that_would_spoil_a_conversation_are_held_back,
    failures_say_what_to_do,
]);

fn webp(width: u32, height: u32) -> Bytes {
    let mut bytes = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    bytes.extend(&(width - 1).to_le_bytes()[..3]);
    bytes.extend(&(height - 1).to_le_bytes()[..3]);
    bytes.into()
}

fn shot(viewport: &str, width: u32, height: u32) -> Shot {
    let key = format!("screenshots/j/agent/1_{viewport}.webp");
    let (url, blank) = (Some(format!("https://cdn.example/{key}")), viewport == "mobile");
    Shot { viewport: viewport.into(), width, height, webp: webp(width, height), key, url, blank }
}

fn prepare(world: &World, shots: Result<Shots, CaptureError>) {
    *world.album.next.lock().expect("unpoisoned") = Some(shots);
}

async fn both_viewports_come_with_their_addresses(world: &World) {
    let shots = vec![shot("desktop", 1280, 800), shot("mobile", 390, 844)];
    let blocked = vec!["http://tracker.example/x.js".to_owned()];
    prepare(world, Ok(Shots { shots, title: Some("Home".into()), blocked, console_errors: Vec::new() }));
    let seen = world.call("take_screenshot", json!({ "url_path": "about", "port": "8080" })).await;
    assert!(!seen.is_error, "{seen:?}");
    assert!(matches!(&seen.content[..], [Block::Image(_), Block::Image(_), Block::Text(_)]));
    let text = seen.text();
    assert!(
        text.starts_with("Captured port 8080, /about (\"Home\").\ndesktop 1280x800: https://cdn.example/"),
        "{text}"
    );
    assert!(text.contains("_mobile.webp — the picture is blank") && text.contains("tracker.example"), "{text}");
    assert_eq!(seen.structured["screenshots"][1]["blank"], true);

    // Pictures that only the host has are shown without a word of where that is.
    prepare(world, Ok(Shots { shots: vec![Shot { url: None, ..shot("desktop", 1280, 800) }], ..Shots::default() }));
    let seen = world.call("take_screenshot", json!({})).await;
    assert!(seen.text().contains("\ndesktop 1280x800\n[The pictures have no address"), "{}", seen.text());
    assert_eq!(seen.structured["screenshots"][0]["url"], serde_json::Value::Null);
    let asked = world.album.asked.lock().expect("unpoisoned").clone();
    assert_eq!((asked[0].port, asked[0].url_path.as_str(), asked[0].full_page), (8080, "/about", false));
}

async fn only_the_preview_can_be_seen(world: &World) {
    for address in ["http://169.254.169.254/latest", "file:///etc/passwd", "//evil.example/x", "\\\\evil"] {
        let text = world.fails("take_screenshot", json!({ "url_path": address }), ErrorCode::InvalidInput).await;
        assert!(text.contains("only the sandbox's own preview"), "{text}");
    }
    world.fails("take_screenshot", json!({ "port": 70_000 }), ErrorCode::InvalidInput).await;
    assert!(world.album.asked.lock().expect("unpoisoned").is_empty());
}

async fn pictures_that_would_spoil_a_conversation_are_held_back(world: &World) {
    for bad in [shot("desktop", 1280, 9000), Shot { webp: Bytes::from_static(b"RIFF"), ..shot("desktop", 9, 9) }] {
        prepare(world, Ok(Shots { shots: vec![bad], ..Shots::default() }));
        let seen = world.call("take_screenshot", json!({})).await;
        assert_eq!(seen.code, Some(ErrorCode::ImageUnusable));
        assert_eq!(seen.images().count(), 0);
    }
    let heavy: Bytes = [webp(100, 100).to_vec(), vec![0; 4 << 20]].concat().into();
    prepare(world, Ok(Shots { shots: vec![Shot { webp: heavy, ..shot("desktop", 9, 9) }], ..Shots::default() }));
    world.fails("take_screenshot", json!({}), ErrorCode::ImageUnusable).await;
}

async fn failures_say_what_to_do(world: &World) {
    prepare(world, Err(CaptureError::NotServed { port: 3000 }));
    let text = world.fails("take_screenshot", json!({}), ErrorCode::CaptureFailed).await;
    assert!(text.contains("Nothing answers on port 3000") && text.contains("run_in_background"), "{text}");
    prepare(world, Err(CaptureError::NoBrowser("chromium is not installed".into())));
    world.fails("take_screenshot", json!({}), ErrorCode::NoDisplay).await;
}
