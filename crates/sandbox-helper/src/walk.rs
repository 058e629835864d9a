//! Walks directories and selects the files to search.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use ignore::{DirEntry, WalkBuilder, WalkParallel, WalkState};
use parking_lot::Mutex;

use crate::arguments::Arguments;

/// A parallel walk with the rules of the arguments.
pub(crate) fn walker(arguments: &Arguments) -> Result<WalkParallel, String> {
    let (first, others) = arguments.paths.split_first().ok_or("there is nothing to search")?;
    let mut builder = WalkBuilder::new(first);
    for path in others {
        builder.add(path);
    }
    let root = std::env::current_dir().map_err(|error| format!("cannot tell the current directory: {error}"))?;
    let mut overrides = OverrideBuilder::new(root);
    for glob in &arguments.globs {
        overrides.add(glob).map_err(|error| error.to_string())?;
    }
    let mut types = TypesBuilder::new();
    types.add_defaults();
    for definition in &arguments.own_types {
        types.add_def(definition).map_err(|error| error.to_string())?;
    }
    for kind in &arguments.types {
        types.select(kind);
    }
    let rules = !arguments.no_ignore;
    builder
        .overrides(overrides.build().map_err(|error| error.to_string())?)
        .types(types.build().map_err(|error| error.to_string())?)
        .hidden(!arguments.hidden)
        .parents(rules && arguments.parents)
        .ignore(rules)
        .git_ignore(rules)
        .git_global(rules && arguments.global)
        .git_exclude(rules && arguments.exclude)
        .require_git(arguments.require_git);
    Ok(builder.build_parallel())
}

/// Whether an entry is searched: files, and whatever was named explicitly.
pub(crate) fn is_searched(entry: &DirEntry) -> bool {
    let kind = entry.file_type();
    match entry.depth() {
        0 => !entry.path().is_dir(),
        _ => kind.is_some_and(|kind| kind.is_file()),
    }
}

/// Prints the names, each followed by a zero byte.
pub(crate) fn list(arguments: &Arguments) -> Result<bool, String> {
    let output = Mutex::new((std::io::stdout(), false));
    walker(arguments)?.run(|| {
        let mut names = Names { pending: Vec::with_capacity(NAMES), output: &output };
        Box::new(move |entry| {
            let Ok(entry) = entry else { return WalkState::Continue };
            if is_searched(&entry) {
                names.pending.extend_from_slice(entry.path().as_os_str().as_bytes());
                names.pending.push(0);
                if names.pending.len() > NAMES && !names.flush() {
                    return WalkState::Quit;
                }
            }
            WalkState::Continue
        })
    });
    let (_, found) = output.into_inner();
    Ok(found)
}

/// Bytes of names that a thread collects before it locks the output.
const NAMES: usize = 32 * 1024;

struct Names<'a, W: Write> {
    pending: Vec<u8>,
    output: &'a Mutex<(W, bool)>,
}

impl<W: Write> Names<'_, W> {
    /// False if the reader has gone.
    fn flush(&mut self) -> bool {
        if self.pending.is_empty() {
            return true;
        }
        let mut output = self.output.lock();
        let written = output.0.write_all(&self.pending).is_ok();
        output.1 = true;
        self.pending.clear();
        written
    }
}

impl<W: Write> Drop for Names<'_, W> {
    fn drop(&mut self) {
        self.flush();
    }
}
