//! Masks secrets in every text of a result that comes from the sandbox.

use std::collections::BTreeMap;

use text::edit::Tier;
use text::encoding::LineEnding;

use crate::port::Survivor;
use crate::result::{Block, ToolResult};
use crate::structured::{
    BackgroundTask, BashOutput, CallFacts, CapturedOutput, DirectoryPage, EditFileOutput, EndedTask, ErrorFact,
    FailureFacts, ForegroundEnd, GlobOutput, GrepMatch, GrepMode, GrepOutput, ImageFacts, ReadContent, ReadFileOutput,
    ScreenshotFacts, ShellRestarted, ShownImage, SkippedFiles, StructuredResult, TakeScreenshotOutput, TextPage,
    ToolOutput, WriteFileOutput,
};

/// Masks secrets in everything that a result shows.
pub(crate) fn mask_result(result: &mut ToolResult, mask: &mut dyn FnMut(&mut String)) {
    for block in &mut result.content {
        if let Block::Text(text) = block {
            mask(text);
        }
    }
    let StructuredResult { call, output } = &mut result.structured;
    call.mask(mask);
    match output {
        ToolOutput::None => {}
        ToolOutput::Failure(output) => output.mask(mask),
        ToolOutput::ReadFile(output) => output.mask(mask),
        ToolOutput::WriteFile(output) => output.mask(mask),
        ToolOutput::EditFile(output) => output.mask(mask),
        ToolOutput::Bash(output) => output.mask(mask),
        ToolOutput::ShellRestarted(output) => output.mask(mask),
        ToolOutput::Grep(output) => output.mask(mask),
        ToolOutput::Glob(output) => output.mask(mask),
        ToolOutput::TakeScreenshot(output) => output.mask(mask),
    }
}

/// Has texts that may contain secrets.
trait Mask {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String));
}

impl Mask for String {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
        mask(self);
    }
}

impl<T: Mask> Mask for Option<T> {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
        self.iter_mut().for_each(|value| value.mask(mask));
    }
}

impl<T: Mask> Mask for Vec<T> {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
        self.iter_mut().for_each(|value| value.mask(mask));
    }
}

impl<T: Mask> Mask for BTreeMap<String, T> {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
        self.values_mut().for_each(|value| value.mask(mask));
    }
}

impl Mask for ReadContent {
    fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
        match self {
            Self::Text(page) => page.mask(mask),
            Self::Image(image) => image.mask(mask),
            Self::Directory(page) => page.mask(mask),
        }
    }
}

macro_rules! without_texts {
    ($($name:ty),+ $(,)?) => {
        $(impl Mask for $name {
            fn mask(&mut self, _mask: &mut dyn FnMut(&mut String)) {}
        })+
    };
}

without_texts!(bool, i32, u16, u32, u64, usize, ErrorFact, GrepMode, LineEnding, Tier);

/// Masks each field. A struct compiles only with all its fields, so that a new one is masked too.
macro_rules! masks {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {
        $(impl Mask for $name {
            fn mask(&mut self, mask: &mut dyn FnMut(&mut String)) {
                let Self { $($field),+ } = self;
                $($field.mask(mask);)+
            }
        })+
    };
}

masks! {
    CallFacts { error, ignored_inputs, sandbox_resumed, sandbox_waited_ms, notices, finished_tasks }
    EndedTask { task_id, exit_code, survived, output_path }
    FailureFacts { path, suggestions, sha256, size, mime, total_lines, replacements, lines, workdir, port, tools }
    ReadFileOutput { path, truncated, content }
    TextPage { total_lines, start_line, end_line, next_offset, line_ending, encoding, bom, size, sha256 }
    ImageFacts { mime, width, height, size, shown }
    ShownImage { mime, width, height, size }
    DirectoryPage { entries, total_entries }
    WriteFileOutput {
        path, created, unchanged, bytes, lines, old_sha256, sha256, diff, line_ending, warnings, notes,
    }
    EditFileOutput { path, replacements, lines, tier, stale, created, sha256, diff }
    BashOutput {
        exit_code, timed_out, cancelled, duration_ms, stdout, stderr, truncated, captured, foreground, background,
    }
    CapturedOutput { output_bytes, bytes_dropped }
    ForegroundEnd { signal, cwd, output_lines, output_path, still_running }
    Survivor { pid, command }
    BackgroundTask { task_id, pid, pgid, output_path, running }
    ShellRestarted { exit_code, restarted }
    GrepOutput {
        mode, path, total_matches, total_files, files_searched, skipped, timed_out, truncated, next_offset, matches,
        files, counts,
    }
    SkippedFiles { ignored, binary, unreadable }
    GrepMatch { path, line, col, text, before, after }
    GlobOutput { path, files, total, ignored, deeper, truncated, timed_out }
    TakeScreenshotOutput { port, url_path, title, screenshots, blocked, console_errors }
    ScreenshotFacts { viewport, width, height, key, url, bytes, blank }
}
