//! `read_file`: a page of a text file, an image, or a directory. Size alone is never an error.

mod page;

use super::{about, failed, locate, not_found};
use crate::file_cache::{self, CachedFile};
use crate::image::{self, MAX_PIXELS, PreparedImage};
use crate::input::{Input, invalid};
use crate::paths;
use crate::port::{Fetch, Fetched, Machine, PortError, Window};
use crate::result::{Block, Done, ErrorCode, Failure, Outcome};
use crate::structured::{DirectoryPage, FailureFacts, ImageFacts, ReadContent, ReadFileOutput, ShownImage, ToolOutput};
use page::{Page, lines, number_lines, offset_error};
use text::encoding::{decode, is_binary};

const LINES: u64 = 2000;
const MAX_LINES: i64 = 10_000;
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
