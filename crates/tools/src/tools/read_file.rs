//! `read_file`: a page of a text file, an image, or a directory. Size alone is never an error.

use std::borrow::Cow;

use super::{BUDGET, about, count, failed, locate, not_found};
use crate::file_cache::{self, CachedFile};
use crate::image::{self, MAX_PIXELS, PreparedImage};
use crate::input::{Input, invalid};
use crate::paths;
use crate::port::{Fetch, Fetched, Machine, PortError, Window};
use crate::result::{Block, Done, ErrorCode, Failure, Outcome};
use crate::structured::{
    DirectoryPage, FailureFacts, ImageFacts, ReadContent, ReadFileOutput, ShownImage, TextPage, ToolOutput,
};
use text::encoding::{Decoded, Encoding, LineEnding, decode, is_binary};

const LINES: u64 = 2000;
const MAX_LINES: i64 = 10_000;
/// Maximum width of a line.
const WIDTH: usize = 2000;
/// Smaller files are fetched whole; of larger ones the sandbox cuts out the requested lines.
const WHOLE: u64 = 10 * 1024 * 1024;
/// Lines of larger files are counted only if an offset is requested.
const COUNTED: u64 = 256 * 1024 * 1024;
const MAX_ENTRIES: usize = 1000;

struct Request {
    path: String,
    offset: Option<i64>,
    limit: usize,
}

pub(crate) async fn run(machine: &dyn Machine, input: &mut Input) -> Outcome {
    let path = input.required_text("path")?;
    let offset = input.integer("offset")?;
    let limit = input.bounded("limit", 1, MAX_LINES)?.unwrap_or(LINES);
    let path = locate(machine, &path).await?;
    let request = Request { path, offset, limit: usize::try_from(limit).unwrap_or(usize::MAX) };
    let path = &request.path;
    let not_a_file = |text: String| Err(Failure::new(ErrorCode::NotAFile, text).with(about(path)));
    match machine.fetch(path, WHOLE).await {
        Ok(Fetched::Directory) => list_directory(machine, path).await,
        Ok(Fetched::Special) => {
            not_a_file(format!("{path} is not a regular file (a device, pipe or socket). Use bash to work with it."))
        }
        Ok(Fetched::Large { size }) => match fetch_large_image(machine, path, size).await? {
            Some((kind, bytes)) => read_image(path, kind, &bytes).await,
            None => read_window(machine, &request, size).await,
        },
        Ok(Fetched::File(fetch)) => read_whole(machine, &request, &fetch).await,
        Err(PortError::NotFound | PortError::NotADirectory) => Err(not_found(machine, path).await),
        Err(PortError::Slow(after)) => not_a_file(format!(
            "{path} gave no end within {} s. Use bash with head to read a part of it.",
            after.as_secs()
        )),
        Err(error) => Err(failed("read", path, &error)),
    }
}

async fn list_directory(machine: &dyn Machine, path: &str) -> Outcome {
    let mut entries = machine.list(path).await.map_err(|error| failed("list", path, &error))?;
    entries.sort();
    let total = entries.len();
    let names: Vec<String> = entries
        .into_iter()
        .take(MAX_ENTRIES)
        .map(|entry| if entry.is_directory { format!("{}/", entry.name) } else { entry.name })
        .collect();
    let head = format!("{path} is a directory with {total} {}.", if total == 1 { "entry" } else { "entries" });
    let lines = names.iter().map(|name| paths::display(name).into_owned());
    let mut text = std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n");
    if total > names.len() {
        text.push_str(&format!("\n[Showing the first {} of {total} entries. Use glob to narrow it.]", names.len()));
    }
    let output = ReadFileOutput {
        path: path.to_owned(),
        truncated: total > MAX_ENTRIES,
        content: ReadContent::Directory(DirectoryPage { entries: names, total_entries: total }),
    };
    Ok(Done::text(text, ToolOutput::ReadFile(output)))
}

async fn read_whole(machine: &dyn Machine, request: &Request, fetch: &Fetch) -> Outcome {
    let path = &request.path;
    let Fetch { bytes, sha256, .. } = fetch;
    if let Some(kind) = image::kind(bytes) {
        return read_image(path, kind, bytes).await;
    }
    if is_binary(bytes) {
        return Err(binary_failure(path, bytes, bytes.len() as u64));
    }
    let decoded = decode(bytes);
    let page = Page::new(&decoded.text, request)?;
    let mut seen = CachedFile::new(path, bytes, sha256.clone(), &decoded.text);
    if page.total != Some(0) {
        seen.ranges.push((page.first as u64, page.last as u64));
    }
    // The result is rendered while the cache is written.
    let size = bytes.len() as u64;
    let (noted, done) =
        tokio::join!(file_cache::store(machine, &seen), async { page.render(path, &decoded, size, Some(sha256)) });
    noted.map_err(|error| failed("remember", path, &error))?;
    Ok(done)
}

/// Lines that the sandbox cut out of a large file.
async fn read_window(machine: &dyn Machine, request: &Request, size: u64) -> Outcome {
    let path = &request.path;
    let offset = request.offset.unwrap_or(1);
    let first = if offset == 0 { 1 } else { offset };
    let count_all = size <= COUNTED || request.offset.is_some();
    let window = Window { first, count: request.limit, count_all };
    let windowed = machine.window(path, window).await.map_err(|error| failed("read", path, &error))?;
    if is_binary(&windowed.bytes) {
        return Err(binary_failure(path, &windowed.bytes, size));
    }
    let total = windowed.total_lines.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX));
    if let Some(total) = total
        && windowed.bytes.is_empty()
    {
        return Err(offset_error(path, total, offset));
    }
    let decoded = decode(&windowed.bytes);
    let at = match (first, total) {
        (first, _) if first > 0 => usize::try_from(first).unwrap_or(usize::MAX),
        (first, Some(total)) => {
            (total + 1).saturating_sub(usize::try_from(first.unsigned_abs()).unwrap_or(total)).max(1)
        }
        (_, None) => 1,
    };
    let shown = number_lines(lines(&decoded.text), at);
    let last = at + shown.len().saturating_sub(1);
    let next = total.is_none_or(|total| last < total).then_some(last + 1);
    let page = Page { first: at, last, total, shown, next };
    let done = page.render(path, &decoded, size, None);
    // The content is not cached, so that a later overwrite does not count as informed.
    Ok(done)
}

fn binary_failure(path: &str, bytes: &[u8], size: u64) -> Failure {
    let kind = image::describe_binary(bytes);
    Failure::new(
        ErrorCode::BinaryFile,
        format!("{path} is binary ({kind}, {size} bytes). Use bash with file, xxd or strings to look into it."),
    )
    .with(FailureFacts { size: Some(size), ..about(path) })
}

/// The content of a file that is too large for text but not for an image, if it is an image.
async fn fetch_large_image(
    machine: &dyn Machine,
    path: &str,
    size: u64,
) -> Result<Option<(&'static str, bytes::Bytes)>, Failure> {
    const MAGIC: usize = 16;
    if size > image::MAX_FILE_BYTES {
        return Ok(None);
    }
    let start = machine.read(path, MAGIC).await.map_err(|error| failed("read", path, &error))?;
    let Some(kind) = image::kind(&start) else { return Ok(None) };
    match machine.fetch(path, image::MAX_FILE_BYTES).await.map_err(|error| failed("read", path, &error))? {
        Fetched::File(fetch) => Ok(Some((kind, fetch.bytes))),
        _ => Ok(None),
    }
}

async fn read_image(path: &str, kind: &'static str, bytes: &bytes::Bytes) -> Outcome {
    match image::prepare(kind, bytes).await {
        Ok(PreparedImage { image, width, height, original }) => {
            let mut text =
                format!("{path}: {kind}, {}x{} pixels, {} bytes", original.0, original.1, bytes.len());
            let mut shown = None;
            if image.bytes != *bytes {
                let scaled = if (width, height) == original { "compressed" } else { "scaled down" };
                text.push_str(&format!(
                    "; shown {scaled}: {}, {width}x{height} pixels, {} bytes",
                    image.media_type,
                    image.bytes.len()
                ));
                shown = Some(ShownImage { mime: image.media_type.to_owned(), width, height, size: image.bytes.len() });
            }
            text.push('.');
            let (width, height) = original;
            let facts = ImageFacts { mime: kind.to_owned(), width, height, size: bytes.len(), shown };
            let output =
                ReadFileOutput { path: path.to_owned(), truncated: false, content: ReadContent::Image(facts) };
            Ok(Done::new(vec![Block::Text(text), Block::Image(image)], ToolOutput::ReadFile(output)))
        }
        Err(reason) => Err(Failure::new(
            ErrorCode::ImageUnusable,
            format!(
                "{path} ({kind}, {} bytes) cannot be shown: {reason}. Make another copy with bash and read that, for example: convert \
                 FILE -resize {MAX_PIXELS}x{MAX_PIXELS} copy.png",
                bytes.len()
            ),
        )
        .with(FailureFacts {
            mime: Some(kind.to_owned()),
            size: Some(bytes.len() as u64),
            ..about(path)
        })),
    }
}

/// The part of a text that fits a result.
struct Page {
    /// From 1, both included.
    first: usize,
    last: usize,
    /// `None` if the lines of a large file were not counted.
    total: Option<usize>,
    shown: Vec<String>,
    next: Option<usize>,
}

impl Page {
    fn new(text: &str, request: &Request) -> Result<Self, Failure> {
        let total = count_lines(text);
        let first = match request.offset {
            None | Some(0 | 1) => 1,
            Some(offset) if offset > 0 => usize::try_from(offset).unwrap_or(usize::MAX),
            Some(offset) => (total + 1).saturating_sub(usize::try_from(offset.unsigned_abs()).unwrap_or(total)).max(1),
        };
        if first > total && total > 0 {
            return Err(offset_error(&request.path, total, request.offset.unwrap_or(1)));
        }
        let shown = number_lines(lines(text).skip(first - 1).take(request.limit), first);
        let last = first - 1 + shown.len();
        Ok(Self { first, last, total: Some(total), shown, next: (last < total).then_some(last + 1) })
    }

    fn render(self, path: &str, decoded: &Decoded<'_>, size: u64, sha256: Option<&str>) -> Done {
        let Self { first, last, total, shown, next } = self;
        let mut text =
            if total == Some(0) { format!("[{path} exists and is empty ({size} bytes).]") } else { shown.join("\n") };
        if decoded.encoding == Encoding::Windows1252 {
            text.push_str(&format!(
                "\n[Shown as windows-1252: {} not UTF-8. edit_file preserves them byte for byte.]",
                if decoded.strange_bytes == 1 {
                    "1 byte is".into()
                } else {
                    format!("{} bytes are", decoded.strange_bytes)
                }
            ));
        }
        if first > 1 || next.is_some() {
            match total {
                Some(total) => text.push_str(&format!("\n[Showing lines {first}–{last} of {total}.")),
                None => text.push_str(&format!("\n[Showing lines {first}–{last} of a file of {size} bytes.")),
            }
            if let Some(next) = next {
                text.push_str(&format!(" Continue with offset={next}"));
                text.push_str(if total.is_some() { "." } else { ", or use grep to find a place in it." });
            }
            text.push(']');
        }
        let facts = TextPage {
            total_lines: total,
            start_line: if total == Some(0) { 0 } else { first },
            end_line: last,
            next_offset: next,
            line_ending: LineEnding::detect(&decoded.text),
            encoding: decoded.encoding.to_string(),
            bom: decoded.bom,
            size,
            sha256: sha256.map(str::to_owned),
        };
        let output =
            ReadFileOutput { path: path.to_owned(), truncated: next.is_some(), content: ReadContent::Text(facts) };
        Done::text(text, ToolOutput::ReadFile(output))
    }
}

fn offset_error(path: &str, total: usize, offset: i64) -> Failure {
    Failure::new(
        ErrorCode::OffsetOutOfRange,
        format!("{path} has {}; offset {offset} is past the end.", count(total, "line")),
    )
    .with(FailureFacts { total_lines: Some(total), ..about(path) })
}

/// Lines without their ends. A file with only `\r` has lines too.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let (end, body) = match line_end(text) {
        '\r' => ('\r', text.trim_end_matches('\r')),
        end => (end, text.strip_suffix(end).unwrap_or(text)),
    };
    // An empty text has no line.
    let split = (!text.is_empty()).then(|| body.split(end));
    split.into_iter().flatten().map(|line| line.strip_suffix('\r').unwrap_or(line))
}

fn count_lines(text: &str) -> usize {
    match line_end(text) {
        '\r' => lines(text).count(),
        _ => {
            memchr::memchr_iter(b'\n', text.as_bytes()).count() + usize::from(!text.is_empty() && !text.ends_with('\n'))
        }
    }
}

fn line_end(text: &str) -> char {
    let has = |byte| memchr::memchr(byte, text.as_bytes()).is_some();
    if !has(b'\n') && has(b'\r') { '\r' } else { '\n' }
}

/// Numbered lines, as many as fit, at least one.
fn number_lines<'a>(lines: impl Iterator<Item = &'a str>, first: usize) -> Vec<String> {
    // Reserves space for the notices after the lines.
    let mut space = BUDGET - 500;
    let mut shown = Vec::new();
    for (number, line) in (first..).zip(lines) {
        let text = format!("{number}\t{}", truncate_line(line));
        let length = text.chars().count() + 1;
        if length > space && !shown.is_empty() {
            break;
        }
        space = space.saturating_sub(length);
        shown.push(text);
    }
    shown
}

/// Cuts a line to the maximum width.
fn truncate_line(line: &str) -> Cow<'_, str> {
    let line =
        if memchr::memchr(0, line.as_bytes()).is_some() { line.replace('\0', "\\x00").into() } else { Cow::from(line) };
    // No line has more characters than bytes.
    if line.len() <= WIDTH {
        return line;
    }
    match line.char_indices().nth(WIDTH) {
        None => line,
        Some((end, _)) => format!("{}… [+{} chars on this line]", &line[..end], line[end..].chars().count()).into(),
    }
}

/// For other tools: the content of a file that is to be changed, or why it cannot be.
pub(crate) fn check_changeable(path: &str, fetched: Fetched) -> Result<Fetch, Failure> {
    match fetched {
        Fetched::File(fetch) => Ok(fetch),
        Fetched::Directory => {
            Err(Failure::new(ErrorCode::IsDirectory, format!("{path} is a directory. Name a file in it.")))
        }
        Fetched::Special => Err(invalid(format!("{path} is not a regular file; use bash to work with it."))),
        Fetched::Large { size } => {
            let text = format!("{path} has {size} bytes, which is too much for a change. Use bash with sed.");
            Err(Failure::new(ErrorCode::TooLarge, text).with(FailureFacts { size: Some(size), ..about(path) }))
        }
    }
}
