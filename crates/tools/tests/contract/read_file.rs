//! Contract of `read_file`, and what all tools share: lenient inputs and unknown names.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::fixture::Fixture;

crate::contract!(in [memory, server, plain]: [
    page_is_numbered_and_names_the_next_offset,
    negative_offset_reads_the_end,
    empty_file_is_not_missing,
    directory_is_listed,
    missing_file_suggests_similar_names,
    binary_files_are_described,
    other_encodings_are_decoded_and_named,
    endless_files_are_refused,
    images_are_returned_as_blocks,
    very_long_line_is_cut,
    links_are_followed,
    relative_paths_follow_the_shell,
    lenient_spellings_are_accepted,
    unknown_tool_returns_an_error_result,
]);

async fn page_is_numbered_and_names_the_next_offset(fixture: &Fixture) {
    let lines: String = (1..=2500).map(|number| format!("line {number}\n")).collect();
    fixture.put("/home/user/long.txt", lines).await;
    let text = fixture.ok("read_file", json!({ "path": "/home/user/long.txt" })).await;
    assert!(text.starts_with("1\tline 1\n2\tline 2\n"), "{text}");
    assert!(text.ends_with("2000\tline 2000\n[Showing lines 1–2000 of 2500. Continue with offset=2001.]"), "{text}");
    let rest = fixture.call("read_file", json!({ "path": "/home/user/long.txt", "offset": 2001 })).await;
    assert!(rest.text().ends_with("2500\tline 2500\n[Showing lines 2001–2500 of 2500.]"));
    assert_eq!(rest.structured.to_value()["total_lines"], 2500);
    assert_eq!(rest.structured.to_value()["truncated"], false);
    let past = fixture
        .fails("read_file", json!({ "path": "/home/user/long.txt", "offset": 9000 }), ErrorCode::OffsetOutOfRange)
        .await;
    assert_eq!(past, "/home/user/long.txt has 2500 lines; offset 9000 is past the end.");
    // A page that is too long ends at a line end.
    let wide: String = (1..=100).map(|_| format!("{}\n", "x".repeat(1500))).collect();
    fixture.put("/home/user/wide.txt", wide).await;
    let page = fixture.call("read_file", json!({ "path": "/home/user/wide.txt" })).await;
    assert!(page.text().chars().count() <= 50_000);
    assert_eq!(
        page.structured.to_value()["next_offset"],
        page.structured.to_value()["end_line"].as_u64().expect("a line") + 1
    );
}

async fn negative_offset_reads_the_end(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\nthree\nfour").await;
    let text = fixture.ok("read_file", json!({ "path": "/home/user/a.txt", "offset": -2 })).await;
    assert_eq!(text, "3\tthree\n4\tfour\n[Showing lines 3–4 of 4.]");
    let text = fixture.ok("read_file", json!({ "path": "/home/user/a.txt", "offset": -99 })).await;
    assert_eq!(text, "1\tone\n2\ttwo\n3\tthree\n4\tfour");
    let text = fixture.ok("read_file", json!({ "path": "/home/user/a.txt", "offset": 2, "limit": 1 })).await;
    assert_eq!(text, "2\ttwo\n[Showing lines 2–2 of 4. Continue with offset=3.]");
}

async fn empty_file_is_not_missing(fixture: &Fixture) {
    fixture.put("/home/user/empty", "").await;
    let text = fixture.ok("read_file", json!({ "path": "/home/user/empty" })).await;
    assert_eq!(text, "[/home/user/empty exists and is empty (0 bytes).]");
}

async fn directory_is_listed(fixture: &Fixture) {
    fixture.put("/home/user/d/b.txt", "").await;
    fixture.put("/home/user/d/a/x", "").await;
    let text = fixture.ok("read_file", json!({ "path": "/home/user/d" })).await;
    assert_eq!(text, "/home/user/d is a directory with 2 entries.\na/\nb.txt");
}

async fn missing_file_suggests_similar_names(fixture: &Fixture) {
    fixture.put("/home/user/p/src/main.rs", "fn main() {}\n").await;
    let text = fixture.fails("read_file", json!({ "path": "/home/user/p/src/mian.rs" }), ErrorCode::NotFound).await;
    assert_eq!(text, "/home/user/p/src/mian.rs does not exist. Did you mean /home/user/p/src/main.rs?");
    let text = fixture.fails("read_file", json!({ "path": "/home/user/p/main.rs" }), ErrorCode::NotFound).await;
    assert_eq!(text, "/home/user/p/main.rs does not exist. Did you mean /home/user/p/src/main.rs?");
    fixture.fails("read_file", json!({ "path": "/home/user/p/src/main.rs/x" }), ErrorCode::NotFound).await;
}

async fn binary_files_are_described(fixture: &Fixture) {
    fixture.put("/home/user/x.txt", &b"\x7fELF\x02\x01\0\0\0\0\0"[..]).await;
    let text = fixture.fails("read_file", json!({ "path": "/home/user/x.txt" }), ErrorCode::BinaryFile).await;
    assert!(text.contains("is binary (ELF 64-bit, 11 bytes)"), "{text}");
}

async fn other_encodings_are_decoded_and_named(fixture: &Fixture) {
    fixture.put("/home/user/l1.txt", &b"caf\xe9\r\nol\xe9\r\n"[..]).await;
    let read = fixture.call("read_file", json!({ "path": "/home/user/l1.txt" })).await;
    let shown =
        "1\tcafé\n2\tolé\n[Shown as windows-1252: 2 bytes are not UTF-8. edit_file preserves them byte for byte.]";
    assert_eq!(read.text(), shown);
    assert_eq!(read.structured.to_value()["line_ending"], "crlf");
    assert_eq!(read.structured.to_value()["encoding"], "windows-1252");
    fixture.put("/home/user/bom.txt", &b"\xef\xbb\xbfhi\n"[..]).await;
    let read = fixture.call("read_file", json!({ "path": "/home/user/bom.txt" })).await;
    assert_eq!(read.text(), "1\thi");
    assert_eq!(read.structured.to_value()["bom"], true);
    fixture.put("/home/user/wide.txt", &b"\xff\xfeh\0i\0\n\0"[..]).await;
    assert_eq!(fixture.ok("read_file", json!({ "path": "/home/user/wide.txt" })).await, "1\thi");
}

async fn endless_files_are_refused(fixture: &Fixture) {
    let text = fixture.fails("read_file", json!({ "path": "/dev/zero" }), ErrorCode::NotAFile).await;
    assert!(text.contains("is not a regular file"), "{text}");
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbaImage::new(width, height).write_to(&mut bytes, image::ImageFormat::Png).expect("it is encoded");
    bytes.into_inner()
}

async fn images_are_returned_as_blocks(fixture: &Fixture) {
    fixture.put("/home/user/a.png", png(40, 30)).await;
    let read = fixture.call("read_file", json!({ "path": "/home/user/a.png" })).await;
    assert_eq!(read.images().count(), 1);
    assert_eq!((&read.structured.to_value()["width"], &read.structured.to_value()["height"]), (&json!(40), &json!(30)));
    // Detected by content, not by name; and scaled down if too large.
    let large = png(3136, 20);
    fixture.put("/home/user/a.txt", large.clone()).await;
    let read = fixture.call("read_file", json!({ "path": "/home/user/a.txt" })).await;
    let image = read.images().next().unwrap_or_else(|| panic!("{read:?}"));
    assert_eq!(image.size(), Some((1568, 10)));
    assert_eq!(
        (&read.structured.to_value()["width"], &read.structured.to_value()["shown"]["width"]),
        (&json!(3136), &json!(1568))
    );
    let text = read.text();
    let expected = format!("/home/user/a.txt: image/png, 3136x20 pixels, {} bytes; shown scaled down: ", large.len());
    assert!(text.starts_with(&expected) && text.contains("1568x10 pixels"), "{text}");
    let whole = png(40, 30);
    fixture.put("/home/user/cut.png", whole[..whole.len() / 2].to_vec()).await;
    let text = fixture.fails("read_file", json!({ "path": "/home/user/cut.png" }), ErrorCode::ImageUnusable).await;
    assert!(text.contains("damaged") && text.contains("-resize 1568x1568"), "{text}");
}

async fn very_long_line_is_cut(fixture: &Fixture) {
    fixture.put("/home/user/min.js", "x".repeat(5_000_000)).await;
    let text = fixture.ok("read_file", json!({ "path": "/home/user/min.js" })).await;
    assert!(text.ends_with("… [+4998000 chars on this line]"), "{}", &text[text.len() - 80..]);
}

async fn links_are_followed(fixture: &Fixture) {
    fixture.put("/home/user/real.txt", "here\n").await;
    fixture.link("/home/user/link.txt", "real.txt").await;
    assert_eq!(fixture.ok("read_file", json!({ "path": "/home/user/link.txt" })).await, "1\there");
}

async fn relative_paths_follow_the_shell(fixture: &Fixture) {
    fixture.put("/home/user/sub/f.txt", "inside\n").await;
    fixture.put("/home/user/f.txt", "outside\n").await;
    assert_eq!(fixture.ok("read_file", json!({ "path": "f.txt" })).await, "1\toutside");
    fixture.ok("bash", json!({ "command": "cd sub" })).await;
    assert_eq!(fixture.ok("read_file", json!({ "path": "f.txt" })).await, "1\tinside");
    assert_eq!(fixture.ok("read_file", json!({ "path": "../f.txt" })).await, "1\toutside");
    assert_eq!(fixture.ok("read_file", json!({ "path": "~/f.txt" })).await, "1\toutside");
}

async fn lenient_spellings_are_accepted(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\n").await;
    let input = json!({ "file_path": "/home/user/a.txt", "offset": "2", "limit": 1.0, "mood": "fine", "pages": null });
    let read = fixture.call("read_file", input).await;
    assert_eq!(read.text(), "2\ttwo\n[Showing lines 2–2 of 2.]");
    assert_eq!(read.structured.to_value()["ignored_inputs"], json!(["mood"]));
    let text = fixture.fails("read_file", json!({ "pth": "/x" }), ErrorCode::InvalidInput).await;
    assert!(text.contains("`path` is missing (given: pth)"), "{text}");
}

async fn unknown_tool_returns_an_error_result(fixture: &Fixture) {
    let text = fixture.fails("launch_rocket", json!({}), ErrorCode::UnknownTool).await;
    assert_eq!(text, "[launch_rocket: unknown tool]");
}

mod on_a_sandbox {
    use super::*;

    crate::contract!(in [server, plain]: [huge_file_returns_its_first_page, large_file_is_windowed_in_the_sandbox]);
}

async fn huge_file_returns_its_first_page(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "seq 1 3000 > huge; truncate -s 2G huge" })).await;
    let read = fixture.call("read_file", json!({ "path": "huge" })).await;
    let text = read.text();
    assert!(!read.is_error && text.starts_with("1\t1\n2\t2\n"), "{text:.200}");
    assert!(text.contains("[Showing lines 1–2000 of a file of 2147483648 bytes."), "{}", &text[text.len() - 200..]);
}

async fn large_file_is_windowed_in_the_sandbox(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "seq -f 'number %.0f' 1 1000000 > large" })).await;
    let text = fixture.ok("read_file", json!({ "path": "large", "offset": 999_999 })).await;
    assert_eq!(text, "999999\tnumber 999999\n1000000\tnumber 1000000\n[Showing lines 999999–1000000 of 1000000.]");
    let text = fixture.ok("read_file", json!({ "path": "large", "offset": -1 })).await;
    assert_eq!(text, "1000000\tnumber 1000000\n[Showing lines 1000000–1000000 of 1000000.]");
    fixture.fails("read_file", json!({ "path": "large", "offset": 1_000_001 }), ErrorCode::OffsetOutOfRange).await;
}
