//! Searches inside a sandbox: with its ripgrep, else with our helper that has the same engine, else
//! with find and grep under the same rules.
//!
//! The sandbox walks and reads the files; only names, counts and the lines of one page are
//! transferred.

mod engine;
mod fallback;
mod parse;

use std::collections::HashSet;

use async_trait::async_trait;

use super::machine::SandboxMachine;
use crate::paths;
use crate::port::{PortError, Searches};
use crate::search::{
    Counted, CountedFile, Find, Found, FoundFile, IGNORE_FILES, MatchedFile, Search, Selector, common_name_parts,
};
use engine::TIMES;
pub(in crate::sandbox) use engine::{Engine, helper_path};
use parse::{Counts, Names, counts, names, rows};

/// A private file type that narrows what ripgrep searches. Its `--glob` would override ignore
/// rules.
const OWN_TYPE: &str = "sandbarglob";
const WITHOUT_RIPGREP: &str = "Searched with grep -P and find, since ripgrep is not installed in this sandbox";
/// Lists all files below the current directory: kind, time, path. $1… excluded paths
const LIST: &str = r#"
o=$1
[ -n "$o" ] || o=./.no-such-directory
find . -path "$o" -prune -o -name .git -type d -prune -o ! -type d -printf '%Y %T@ %P\000' 2>/dev/null
"#;
const LIST_DIRECTORIES: &str = r#"
o=$1
[ -n "$o" ] || o=./.no-such-directory
find . -path "$o" -prune -o -name .git -prune -o -mindepth 1 -type d -printf 'f %T@ %P\000' 2>/dev/null
"#;

/// Working directory of the program, and the path that it searches.
fn split_root(search: &Search) -> (String, String) {
    if search.root_is_file {
        (paths::parent(&search.root).to_owned(), format!("./{}", paths::name(&search.root)))
    } else {
        (search.root.clone(), "./".into())
    }
}

/// Flags for our rules of walking, which differ from ripgrep's defaults.
fn walk_flags(base: &str, root: &str, include_ignored: bool) -> Vec<String> {
    let fixed = [
        "--no-config",
        "--color=never",
        "--no-messages",
        "--hidden",
        "--no-require-git",
        "--no-ignore-parent",
        "--no-ignore-global",
        "--no-ignore-exclude",
    ];
    let mut arguments: Vec<String> = fixed.map(str::to_owned).into();
    if include_ignored {
        arguments.push("--no-ignore".into());
    }
    if !root.split('/').any(|part| part == ".git") {
        arguments.extend(["-g".into(), "!.git/".into()]);
    }
    if let Some(own) = paths::below(root, base) {
        arguments.extend(["-g".into(), format!("!/{own}/")]);
    }
    arguments
}

fn type_flags(parts: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> =
        parts.iter().flat_map(|part| ["--type-add".to_owned(), format!("{OWN_TYPE}:{part}")]).collect();
    arguments.extend(["-t".into(), OWN_TYPE.into()]);
    arguments
}

/// Flags for the pattern.
fn pattern_flags(search: &Search) -> Vec<String> {
    let mut arguments = Vec::new();
    for (wanted, flags) in [
        (search.ignore_case, &["-i"][..]),
        (search.literal, &["-F"]),
        (search.multiline, &["-U", "--multiline-dotall"]),
    ] {
        if wanted {
            arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        }
    }
    arguments.extend(["-e".into(), search.pattern.clone()]);
    arguments
}

#[async_trait]
impl Searches for SandboxMachine {
    async fn count(&self, search: &Search) -> Result<Counted, PortError> {
        let (directory, target) = split_root(search);
        let mut arguments = walk_flags(self.base, &search.root, search.include_ignored);
        arguments.extend(["-c", "-0", "-H", "--stats", "--binary"].map(str::to_owned));
        arguments.extend(pattern_flags(search));
        for glob in search.globs.iter().filter(|glob| glob.starts_with('!')) {
            arguments.extend(["-g".into(), glob.clone()]);
        }
        if let Some(kind) = &search.file_type {
            arguments.extend(["-t".into(), kind.clone()]);
        } else if let Some(parts) = common_name_parts(&search.globs) {
            arguments.extend(type_flags(&parts));
        }
        arguments.extend(["--".into(), target]);
        let Some(partial) = self.ripgrep(&directory, arguments, search.limit).await? else {
            return self.count_with_grep(search).await;
        };
        if partial.code == Some(2) && partial.stdout.is_empty() {
            let message = String::from_utf8_lossy(&partial.stderr).trim().to_owned();
            return Err(PortError::Other(if message.is_empty() { "The search failed.".into() } else { message }));
        }
        let Counts { files: hits, unnameable, searched } = counts(&partial.stdout);
        let searched = searched.unwrap_or(0);
        let mut counted = Counted { searched, timed_out: partial.code.is_none(), ..Counted::default() };
        counted.skipped.unnameable = unnameable;
        let selector = Selector::new(search, self.base).map_err(|error| PortError::Other(error.0))?;
        let hits = hits.into_iter().filter(|(path, _)| search.root_is_file || selector.takes(path));
        let hits: Vec<(String, u64)> = hits.map(|(path, lines)| (paths::join(&directory, &path), lines)).collect();
        let all: Vec<String> = hits.iter().map(|(path, _)| path.clone()).collect();
        let (times, binaries) =
            if all.is_empty() { Default::default() } else { self.inspect_files(&self.inspect_script(), &all).await? };
        counted.skipped.binary = binaries.len() as u64;
        if counted.searched == 0 {
            counted.searched = hits.len() as u64;
        }
        let found = hits.into_iter().filter(|(path, _)| !binaries.contains(path) || search.root_is_file);
        counted.files = found
            .map(|(path, lines)| CountedFile { modified: times.get(&path).copied().unwrap_or(0), path, lines })
            .collect();
        if counted.files.is_empty() && !search.root_is_file && !search.include_ignored && !counted.timed_out {
            counted.skipped.ignored = self.count_ignored(search, &selector).await?;
        }
        Ok(counted)
    }

    async fn lines(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError> {
        let mut arguments: Vec<String> =
            ["--no-config", "--json", "--no-messages", "--no-ignore", "--hidden"].map(str::to_owned).into();
        for (flag, lines) in [("-B", search.before), ("-A", search.after)] {
            if lines > 0 {
                arguments.extend([flag.into(), lines.to_string()]);
            }
        }
        arguments.extend(pattern_flags(search));
        if search.root_is_file {
            arguments.push("-a".into());
        }
        arguments.push("--".into());
        arguments.extend(files.iter().cloned());
        match self.ripgrep("/", arguments, search.limit).await? {
            Some(partial) => Ok(rows(&partial.stdout)),
            None => self.lines_with_grep(search, files).await,
        }
    }

    async fn find(&self, find: &Find) -> Result<Found, PortError> {
        if find.pattern.directories() {
            return self.find_with_find(find, LIST_DIRECTORIES, None).await;
        }
        let list = |include_ignored: bool| {
            let mut arguments = walk_flags(self.base, &find.root, include_ignored);
            arguments.extend(["--files", "-0"].map(str::to_owned));
            if let Some(part) = find.pattern.name_part() {
                let parts: Vec<&str> = [part].into_iter().chain(IGNORE_FILES).collect();
                arguments.extend(type_flags(&parts));
            }
            arguments.extend(["--".into(), "./".into()]);
            arguments
        };
        let Some(partial) = self.ripgrep(&find.root, list(false), find.limit).await? else {
            return self.find_with_find(find, LIST, Some(WITHOUT_RIPGREP.replace("grep -P and ", ""))).await;
        };
        let Names { paths: plain, not_utf8 } = names(&partial.stdout);
        let mut found = Found { timed_out: partial.code.is_none(), ..Found::default() };
        let has_rules = plain.iter().any(|path| IGNORE_FILES.contains(&paths::name(path)));
        let mut ignored: Vec<String> = Vec::new();
        if has_rules && let Some(all) = self.ripgrep(&find.root, list(true), find.limit).await? {
            found.timed_out |= all.code.is_none();
            let known: HashSet<&String> = plain.iter().collect();
            ignored = names(&all.stdout).paths.into_iter().filter(|path| !known.contains(path)).collect();
        }
        let selector = Selector::plain(&find.root, self.base);
        let matches = |path: &&String| selector.takes(path) && find.pattern.matches(path);
        found.unnameable = not_utf8.iter().filter(matches).count() as u64;
        let mut matched: Vec<(String, bool)> = Vec::new();
        for (path, is_ignored) in
            plain.into_iter().map(|path| (path, false)).chain(ignored.into_iter().map(|path| (path, true)))
        {
            if !selector.takes(&path) {
                continue;
            }
            if find.pattern.matches(&path) {
                matched.push((paths::join(&find.root, &path), is_ignored));
            } else if !is_ignored && find.pattern.matches_deeper(&path) {
                found.deeper += 1;
            }
        }
        let all: Vec<String> = matched.iter().map(|(path, _)| path.clone()).collect();
        let (times, _) = if all.is_empty() { Default::default() } else { self.inspect_files(TIMES, &all).await? };
        // A dangling link has no time, and is no file.
        let files = matched
            .into_iter()
            .filter_map(|(path, ignored)| Some(FoundFile { modified: times.get(&path).copied()?, path, ignored }));
        found.files = files.collect();
        Ok(found)
    }
}

impl SandboxMachine {
    /// Number of files that the ignore rules exclude.
    async fn count_ignored(&self, search: &Search, selector: &Selector) -> Result<u64, PortError> {
        let mut seen = [HashSet::new(), HashSet::new()];
        for (include_ignored, seen) in [false, true].into_iter().zip(&mut seen) {
            let mut arguments = walk_flags(self.base, &search.root, include_ignored);
            arguments.extend(["--files", "-0", "--", "./"].map(str::to_owned));
            let Some(partial) = self.ripgrep(&search.root, arguments, search.limit).await? else { return Ok(0) };
            seen.extend(names(&partial.stdout).paths.into_iter().filter(|path| selector.takes(path)));
            // Without rules nothing is ignored.
            if !include_ignored
                && !seen.iter().any(|path| IGNORE_FILES.contains(&paths::name(path)))
                && !self.has_rules(&partial.stdout)
            {
                return Ok(0);
            }
        }
        let [plain, all] = seen;
        Ok(all.difference(&plain).count() as u64)
    }

    fn has_rules(&self, listing: &[u8]) -> bool {
        IGNORE_FILES.iter().any(|name| memchr::memmem::find(listing, format!("/{name}\0").as_bytes()).is_some())
    }
}
