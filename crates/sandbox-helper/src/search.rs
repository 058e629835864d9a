//! Searches files and prints matches in ripgrep's format.

use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use grep_printer::{JSONBuilder, SummaryBuilder, SummaryKind};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::{DirEntry, WalkState};
use parking_lot::Mutex;
use termcolor::NoColor;

use crate::arguments::{Arguments, Mode};
use crate::walk::{is_searched, walker};

/// Returns whether anything matched.
pub(crate) fn search(arguments: &Arguments) -> Result<bool, String> {
    let matcher = matcher(arguments)?;
    let output = Mutex::new(BufWriter::new(std::io::stdout()));
    let (searched, found) = (AtomicU64::new(0), AtomicBool::new(false));
    walker(arguments)?.run(|| {
        let (matcher, mut searchers) = (matcher.clone(), Searchers::new(arguments));
        let (output, searched, found) = (&output, &searched, &found);
        Box::new(move |entry| {
            let Ok(entry) = entry else { return WalkState::Continue };
            if !is_searched(&entry) {
                return WalkState::Continue;
            }
            searched.fetch_add(1, Ordering::Relaxed);
            let printed = search_file(arguments, &matcher, searchers.for_entry(&entry), &entry);
            if printed.is_empty() {
                return WalkState::Continue;
            }
            found.store(true, Ordering::Relaxed);
            let written = output.lock().write_all(&printed).is_ok();
            if written { WalkState::Continue } else { WalkState::Quit }
        })
    });
    let mut output = output.into_inner();
    if arguments.stats {
        // A failed write means that the reader has gone.
        let _ = writeln!(output, "\n{} files searched", searched.into_inner());
    }
    let _ = output.flush();
    Ok(found.into_inner())
}

fn matcher(arguments: &Arguments) -> Result<RegexMatcher, String> {
    let mut builder = RegexMatcherBuilder::new();
    builder.multi_line(true).case_insensitive(arguments.ignore_case).fixed_strings(arguments.literal);
    if arguments.multiline {
        builder.dot_matches_new_line(true);
    } else {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(&arguments.pattern).map_err(|error| error.to_string())
}

/// One searcher for files found by walking, one for files named explicitly, which are searched even
/// if binary.
struct Searchers {
    found: Searcher,
    named: Searcher,
}

impl Searchers {
    fn new(arguments: &Arguments) -> Self {
        let build = |binary| {
            SearcherBuilder::new()
                .line_number(true)
                .before_context(arguments.before)
                .after_context(arguments.after)
                .multi_line(arguments.multiline)
                .binary_detection(binary)
                .build()
        };
        let (quit, convert) = (BinaryDetection::quit(0), BinaryDetection::convert(0));
        match (arguments.text, arguments.binary) {
            (true, _) => Self { found: build(BinaryDetection::none()), named: build(BinaryDetection::none()) },
            (false, true) => Self { found: build(convert.clone()), named: build(convert) },
            (false, false) => Self { found: build(quit), named: build(convert) },
        }
    }

    fn for_entry(&mut self, entry: &DirEntry) -> &mut Searcher {
        if entry.depth() == 0 { &mut self.named } else { &mut self.found }
    }
}

/// The output for one file; empty if the file cannot be read.
fn search_file(arguments: &Arguments, matcher: &RegexMatcher, searcher: &mut Searcher, entry: &DirEntry) -> Vec<u8> {
    let path = entry.path();
    match arguments.mode {
        Mode::Json => {
            let mut printer = JSONBuilder::new().build(Vec::new());
            let _ = searcher.search_path(matcher, path, printer.sink_with_path(matcher, path));
            printer.into_inner()
        }
        mode => {
            let kind = if mode == Mode::Count { SummaryKind::Count } else { SummaryKind::PathWithMatch };
            let mut printer = SummaryBuilder::new();
            printer.kind(kind).path_terminator(Some(0)).exclude_zero(true);
            let mut printer = printer.build(NoColor::new(Vec::new()));
            let _ = searcher.search_path(matcher, path, printer.sink_with_path(matcher, path));
            printer.into_inner().into_inner()
        }
    }
}
