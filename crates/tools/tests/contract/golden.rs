//! The wire stays as it is: the definitions, and the results of calls that cover every tool, its
//! refusals and every shape of its structured part, compared with files in `tests/contract/golden`.
//! `GOLDEN=write` writes the files instead; a change of them is a change of the wire.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandbar_tools::{
    Block, InMemoryToolDispatcher, Screenshot, ScreenshotError, ScreenshotProvider, ScreenshotSet, Step,
    ToolDispatcher, Watch,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::fixture::PreparedScreenshots;

/// Compares with a golden file, or writes it.
#[track_caller]
fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/golden").join(name);
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, found).expect("the file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden file");
    let differs = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(expected == found, "{name} differs, first at {differs:?}; GOLDEN=write writes the file");
}

/// Calls tools and records their results as they are sent.
struct Recorder {
    tools: InMemoryToolDispatcher,
    recorded: String,
}

impl Recorder {
    fn new() -> Self {
        Self { tools: InMemoryToolDispatcher::new(), recorded: String::new() }
    }

    async fn call(&mut self, tool: &str, input: Value) {
        self.call_watched(tool, input, Watch::default()).await;
    }

    async fn call_watched(&mut self, tool: &str, input: Value, watch: Watch) {
        self.recorded.push_str(&format!("{tool} {input}\n"));
        let mut wire = self.tools.dispatch_watched(tool, input, watch).await;
        for block in &mut wire.content {
            if let Block::Image(image) = block {
                image.bytes = Bytes::from_static(b"an image");
            }
        }
        let mut wire = serde_json::to_string(&wire).expect("a result serialises");
        if wire.len() > 8192 {
            let digest = hex::encode(Sha256::digest(&wire));
            wire = format!("{} bytes, sha256 {digest}", wire.len());
        }
        self.recorded.push_str(&format!("{wire}\n\n"));
    }
}

#[test]
fn definitions_are_the_recorded_ones() {
    let mut all = String::new();
    for definition in sandbar_tools::definitions() {
        all.push_str(&format!("{:#}\n{:#}\n", definition.anthropic(), definition.mcp()));
    }
    check("definitions.txt", &all);
}

#[tokio::test(start_paused = true)]
async fn file_results_are_the_recorded_ones() {
    let mut recorder = Recorder::new();
    recorder.tools.put("/home/user/many.txt", (1..=30).map(|line| format!("line {line}\n")).collect::<String>());
    recorder.tools.put("/home/user/dos.txt", "one\r\ntwo\r\n");
    recorder.tools.put("/home/user/old.txt", b"caf\xe9\n".as_slice());
    recorder.tools.put("/home/user/bin", b"\x7fELF\0\0\0\x01".as_slice());
    recorder.tools.put("/home/user/huge.txt", "0123456789abcde\n".repeat(700_000));
    recorder.tools.put("/home/user/empty", "");
    recorder.tools.special("/home/user/pipe");
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbaImage::new(40, 30).write_to(&mut png, image::ImageFormat::Png).expect("it is encoded");
    let png = png.into_inner();
    recorder.tools.put("/home/user/cut.png", png[..png.len() / 2].to_vec());
    recorder.tools.put("/home/user/small.png", png);
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbaImage::new(3136, 20).write_to(&mut png, image::ImageFormat::Png).expect("it is encoded");
    recorder.tools.put("/home/user/wide.png", png.into_inner());

    for input in [
        json!({ "path": "many.txt", "offset": 3, "limit": 2 }),
        json!({ "path": "many.txt", "offset": -2 }),
        json!({ "path": "many.txt", "offset": 99 }),
        json!({ "path": "old.txt", "surprise": 1 }),
        json!({ "path": "empty" }),
        json!({ "path": "bin" }),
        json!({ "path": "huge.txt", "limit": 1 }),
        json!({ "path": "huge.txt", "offset": -1 }),
        json!({ "path": "small.png" }),
        json!({ "path": "wide.png" }),
        json!({ "path": "cut.png" }),
        json!({ "path": "/home/user" }),
        json!({ "path": "many.txd" }),
        json!({ "path": "pipe" }),
        json!({}),
    ] {
        recorder.call("read_file", input).await;
    }
    for input in [
        json!({ "path": "new/a.txt", "content": "one\ntwo\n" }),
        json!({ "path": "new/a.txt", "content": "one\ntwo\n" }),
        json!({ "path": "new/a.txt", "content": "// ... rest of the code unchanged\n" }),
        json!({ "path": "dos.txt", "content": "three\n" }),
        json!({ "path": "pipe", "content": "" }),
        json!({ "path": "/home/user", "content": "" }),
    ] {
        recorder.call("write_file", input).await;
    }
    recorder.call("read_file", json!({ "path": "dos.txt" })).await;
    recorder.call("write_file", json!({ "path": "dos.txt", "content": "three\n" })).await;
    recorder.tools.put("/home/user/dos.txt", "changed\n");
    recorder.call("write_file", json!({ "path": "dos.txt", "content": "four\n" })).await;
    for input in [
        json!({ "path": "many.txt", "old_string": "line 7\n", "new_string": "seven\n" }),
        json!({ "path": "many.txt", "old_string": "line 7\n", "new_string": "seven\n" }),
        json!({ "path": "many.txt", "old_string": "line 1", "new_string": "x" }),
        json!({ "path": "many.txt", "old_string": "line", "new_string": "row", "replace_all": true }),
        json!({ "path": "many.txt", "old_string": "row", "new_string": "row" }),
        json!({ "path": "dos.txt", "old_string": "changed", "new_string": "edited" }),
        json!({ "path": "made.txt", "old_string": "", "new_string": "made\n" }),
        json!({ "path": "many.txt", "old_string": "", "new_string": "made\n" }),
        json!({ "path": "bin", "old_string": "a", "new_string": "b" }),
        json!({ "path": "nowhere.txt", "old_string": "a", "new_string": "b" }),
        json!({ "path": "old.txt", "old_string": "caf", "new_string": "\u{4e2d}" }),
    ] {
        recorder.call("edit_file", input).await;
    }
    recorder.tools.put("/home/user/many.txt", "other\n");
    let input = json!({ "path": "many.txt", "old_string": "other", "new_string": "row", "replace_all": true });
    recorder.call("edit_file", input).await;
    check("files.txt", &recorder.recorded);
}

#[tokio::test(start_paused = true)]
async fn command_results_are_the_recorded_ones() {
    let mut recorder = Recorder::new();
    recorder.tools.on("server", [Step::Out("listening\n".into()), Step::Never]);
    recorder.tools.on("crash", [Step::Err("no\n".into()), Step::Exit(139)]);
    recorder.tools.on("leave", [Step::Child("left".into(), Duration::from_secs(100))]);
    recorder.tools.on("ask", [Step::Out("Ok to proceed? (y) ".into()), Step::Never]);
    for input in [
        json!({ "command": "echo out; echo err >&2" }),
        json!({ "command": "cd /tmp; exit 3" }),
        json!({ "command": "crash" }),
        json!({ "command": "leave" }),
        json!({ "command": "ask", "timeout": 30 }),
        json!({ "command": "seq 1 40000" }),
        json!({ "command": "server &", "run_in_background": true }),
        json!({ "command": "echo quick; exit 2", "run_in_background": true }),
        json!({ "command": "sleep 3", "run_in_background": true }),
        json!({ "command": "sleep 5" }),
        json!({ "command": "true", "workdir": "/nowhere" }),
        json!({ "command": "true", "workdir": "/nowhere", "run_in_background": true }),
        json!({ "restart": true, "extra": 1 }),
        json!({ "command": "" }),
        json!({ "command": "[\"ls\"]" }),
        json!({ "command": "true", "timeout": 9000 }),
    ] {
        recorder.call("bash", input).await;
    }
    let watch = Watch { detach_after: Some(Duration::from_secs(2)), ..Watch::default() };
    recorder.call_watched("bash", json!({ "command": "server" }), watch).await;
    let watch = Watch::default();
    watch.cancel.cancel();
    recorder.call_watched("bash", json!({ "command": "server" }), watch).await;
    let watch = Watch::default();
    let cancel = watch.cancel.clone();
    let cancelling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    tokio::join!(recorder.call_watched("bash", json!({ "command": "server" }), watch), cancelling);
    recorder.call("no_such_tool", json!({})).await;
    recorder.call("bash", json!("ls")).await;
    check("commands.txt", &recorder.recorded);
}

#[tokio::test(start_paused = true)]
async fn search_results_are_the_recorded_ones() {
    let mut recorder = Recorder::new();
    recorder.tools.put("/home/user/a.rs", "fn one() {}\nfn two() {}\nlet x = 1;\nfn three() {}\n");
    recorder.tools.put("/home/user/src/b.rs", "fn four() {}\n");
    recorder.tools.put("/home/user/bin", b"fn \0".as_slice());
    recorder.tools.put("/home/user/.gitignore", "ignored/\n");
    recorder.tools.put("/home/user/ignored/c.rs", "fn five() {}\n");
    for input in [
        json!({ "pattern": "fn \\w+" }),
        json!({ "pattern": "two", "-C": 1 }),
        json!({ "pattern": "fn", "head_limit": 2 }),
        json!({ "pattern": "fn", "head_limit": 2, "offset": 2 }),
        json!({ "pattern": "fn", "output_mode": "files_with_matches" }),
        json!({ "pattern": "fn", "output_mode": "count", "include_ignored": true }),
        json!({ "pattern": "absent" }),
        json!({ "pattern": "(" }),
        json!({ "pattern": "fn", "path": "srd" }),
        json!({ "pattern": "fn", "glob": "[" }),
    ] {
        recorder.call("grep", input).await;
    }
    for input in [
        json!({ "pattern": "**/*.rs" }),
        json!({ "pattern": "**/*.rs", "limit": 1 }),
        json!({ "pattern": "b.rs" }),
        json!({ "pattern": "ignored/*" }),
        json!({ "pattern": "*.rs", "path": "srd" }),
        json!({ "pattern": "*.rs", "path": "a.rs" }),
        json!({ "pattern": "[" }),
    ] {
        recorder.call("glob", input).await;
    }
    check("searches.txt", &recorder.recorded);
}

#[tokio::test(start_paused = true)]
async fn screenshot_results_are_the_recorded_ones() {
    let mut webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    webp.extend([0xff, 4, 0, 0x1f, 3, 0]);
    let shot = |url: Option<&str>| Screenshot {
        viewport: "desktop".into(),
        width: 1280,
        height: 800,
        webp: webp.clone().into(),
        key: "screenshots/1_desktop.webp".into(),
        url: url.map(str::to_owned),
        blank: false,
    };
    let full = ScreenshotSet {
        screenshots: vec![shot(Some("https://cdn.example/1")), shot(None)],
        title: Some("Home".into()),
        blocked: vec!["http://tracker.example/".into()],
        console_errors: vec!["oops".into()],
    };
    let mut recorder = Recorder::new();
    recorder.call("take_screenshot", json!({})).await;
    let prepared = Arc::new(PreparedScreenshots::default());
    recorder.tools = InMemoryToolDispatcher::new().screenshots(Arc::clone(&prepared) as Arc<dyn ScreenshotProvider>);
    for answer in [Ok(full), Ok(ScreenshotSet::default()), Err(ScreenshotError::NotServed { port: 8080 })] {
        *prepared.next.lock() = Some(answer);
        recorder.call("take_screenshot", json!({ "port": 8080, "url_path": "/a" })).await;
    }
    recorder.call("take_screenshot", json!({ "url_path": "http://evil.example/" })).await;
    check("screenshots.txt", &recorder.recorded);
}
