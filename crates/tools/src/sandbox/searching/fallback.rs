//! Searches with find and grep under the same rules, where there is no ripgrep and our helper
//! cannot be uploaded.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use sdk::Command;
use tokio::time::Instant;

use super::engine::{Partial, QUERY_TIMEOUT};
use super::parse::{Counts, GrepLine, counts, grep_lines, nanoseconds};
use super::{LIST, WITHOUT_RIPGREP};
use crate::paths;
use crate::port::PortError;
use crate::sandbox::machine::{SandboxMachine, command_error, file_error, with_resume};
use crate::search::{
    Counted, CountedFile, Find, Found, FoundFile, IGNORE_FILES, IgnoreFile, MatchedFile, Matcher, Row, Search,
    Selector, SkipCounts, Tree,
};

/// Prints contents of small files: path NUL content NUL. Arguments: paths
const CONTENTS: &str = r#"for f; do printf '%s\000' "$f"; head -c 65536 -- "$f" | tr -d '\000'; printf '\000'; done"#;

/// Everything below a directory.
struct Listing {
    /// Path, modification time, whether it is ignored.
    files: Vec<(String, i128, bool)>,
    /// Converted lossily.
    not_utf8: Vec<String>,
    timed_out: bool,
}

impl SandboxMachine {
    /// Lists a directory without ripgrep.
    async fn walk(&self, root: &str, script: &str, limit: Duration) -> Result<Listing, PortError> {
        let own = paths::below(root, self.base).map_or(String::new(), |own| format!("./{own}"));
        let command = Command::exec("/bin/sh", ["-c", script, "sh", &own]).cwd(root);
        let partial = self.run_bounded(command, limit).await.map_err(command_error)?;
        let (mut listed, mut not_utf8) = (Vec::new(), Vec::new());
        for line in partial.stdout.split(|byte| *byte == 0) {
            let text = String::from_utf8_lossy(line);
            let mut parts = text.splitn(3, ' ');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("f"), Some(_), Some(path)) if matches!(text, Cow::Owned(_)) => not_utf8.push(path.to_owned()),
                (Some("f"), Some(time), Some(path)) => listed.push((path.to_owned(), nanoseconds(time))),
                _ => {}
            }
        }
        let mut rules: Vec<(String, String)> = Vec::new();
        let sources: Vec<String> = listed
            .iter()
            .filter(|(path, _)| IGNORE_FILES.contains(&paths::name(path)))
            .map(|(path, _)| paths::join(root, path))
            .collect();
        for output in self.run_over(CONTENTS, &sources).await? {
            let text = String::from_utf8_lossy(&output).into_owned();
            let mut parts = text.split('\0');
            while let (Some(path), Some(content)) = (parts.next(), parts.next()) {
                rules.push((path.to_owned(), content.to_owned()));
            }
        }
        let rules: Vec<IgnoreFile> = rules
            .into_iter()
            .filter_map(|(path, rules)| {
                let relative = paths::below(root, &path)?;
                Some(IgnoreFile { directory: relative.rfind('/').map_or("", |at| &relative[..at]).to_owned(), rules })
            })
            .collect();
        let mut tree = Tree::new(&rules);
        let judged = listed.into_iter().map(|(path, time)| {
            let ignored = tree.ignores(&path);
            (path, time, ignored)
        });
        Ok(Listing { files: judged.collect(), not_utf8, timed_out: partial.code.is_none() })
    }

    pub(super) async fn count_with_grep(&self, search: &Search) -> Result<Counted, PortError> {
        if search.multiline {
            return Err(PortError::Other(
                "multiline needs ripgrep, which is not installed in this sandbox. Install it with bash.".into(),
            ));
        }
        let begun = Instant::now();
        let mut counted = Counted { note: Some(WITHOUT_RIPGREP.into()), ..Counted::default() };
        let mut times = HashMap::new();
        let mut chosen = Vec::new();
        if search.root_is_file {
            chosen.push(search.root.clone());
        } else {
            let selector = Selector::new(search, self.base).map_err(|error| PortError::Other(error.0))?;
            let Listing { files, not_utf8, timed_out } = self.walk(&search.root, LIST, search.limit).await?;
            counted.timed_out = timed_out;
            counted.skipped.unnameable = not_utf8.iter().filter(|path| selector.takes(path)).count() as u64;
            for (path, time, ignored) in files {
                if !selector.takes(&path) {
                    continue;
                }
                if ignored && !search.include_ignored {
                    counted.skipped.ignored += 1;
                    continue;
                }
                let path = paths::join(&search.root, &path);
                times.insert(path.clone(), time);
                chosen.push(path);
            }
        }
        counted.searched = chosen.len() as u64;
        if chosen.is_empty() {
            return Ok(counted);
        }
        // `-c` counts; without `-I` binary files count too, and a second query finds them among the
        // matches.
        let left = search.limit.saturating_sub(begun.elapsed()).max(Duration::from_secs(1));
        let all = self.grep(search, &["-c", "-a"], &chosen, left).await?;
        counted.timed_out |= all.code.is_none();
        let Counts { files: hits, .. } = counts(&all.stdout);
        let matching: Vec<String> = hits.iter().map(|(path, _)| path.clone()).collect();
        let texts: HashSet<String> = if matching.is_empty() || search.root_is_file {
            matching.iter().cloned().collect()
        } else {
            let texts = self.grep(search, &["-c", "-I"], &matching, QUERY_TIMEOUT).await?;
            counts(&texts.stdout).files.into_iter().map(|(path, _)| path).collect()
        };
        for (path, lines) in hits {
            if texts.contains(&path) {
                counted.files.push(CountedFile { modified: times.get(&path).copied().unwrap_or(0), path, lines });
            } else {
                counted.skipped.binary += 1;
            }
        }
        counted.skipped = SkipCounts { unreadable: 0, ..counted.skipped };
        Ok(counted)
    }

    /// Runs grep over files whose names are uploaded as a file, because there may be many.
    async fn grep(
        &self,
        search: &Search,
        flags: &[&str],
        files: &[String],
        limit: Duration,
    ) -> Result<Partial, PortError> {
        let list = format!("{}/out/list-{:016x}", self.state, rand::random::<u64>());
        let names: Bytes = files.iter().flat_map(|path| path.bytes().chain([0])).collect();
        let written = with_resume!(self, |sandbox| sandbox.files().write(&list, names.clone()));
        written.map_err(file_error)?;
        let mut arguments: Vec<String> = ["-0", "-a", &list, "grep", "-H", "-Z", "-s"].map(str::to_owned).into();
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        arguments.push(if search.literal { "-F" } else { "-P" }.into());
        if search.ignore_case {
            arguments.push("-i".into());
        }
        arguments.extend(["-e".into(), search.pattern.clone(), "--".into()]);
        let command = Command::exec("xargs", arguments).cwd("/").env("LC_ALL", "C.UTF-8");
        let partial = self.run_bounded(command, limit).await.map_err(command_error);
        if let Err(error) = self.sandbox().files().remove(&list).await {
            tracing::debug!(%error, "a list of files could not be removed");
        }
        partial
    }

    pub(super) async fn lines_with_grep(
        &self,
        search: &Search,
        files: &[String],
    ) -> Result<Vec<MatchedFile>, PortError> {
        let (before, after) = (search.before.to_string(), search.after.to_string());
        let mut flags = vec!["-n"];
        if search.before > 0 {
            flags.extend(["-B", &before]);
        }
        if search.after > 0 {
            flags.extend(["-A", &after]);
        }
        if search.root_is_file {
            flags.push("-a");
        }
        let partial = self.grep(search, &flags, files, search.limit).await?;
        let matcher = Matcher::new(&search.pattern, search.literal, search.ignore_case, false)
            .map_err(|error| PortError::Other(error.0))?;
        let mut all: Vec<MatchedFile> = Vec::new();
        for GrepLine { path, number, is_match, text } in grep_lines(&partial.stdout) {
            let path = String::from_utf8_lossy(path);
            let text = String::from_utf8_lossy(text).trim_end_matches('\r').to_owned();
            let matched = is_match.then(|| matcher.find(text.as_bytes()).unwrap_or((0, 0)));
            let row = Row { line: number, text, matched };
            match all.last_mut().filter(|last| last.path == path) {
                Some(last) => last.rows.push(row),
                None => all.push(MatchedFile { path: path.into_owned(), rows: vec![row] }),
            }
        }
        Ok(all)
    }

    pub(super) async fn find_with_find(
        &self,
        find: &Find,
        script: &str,
        note: Option<String>,
    ) -> Result<Found, PortError> {
        let Listing { files, not_utf8, timed_out } = self.walk(&find.root, script, find.limit).await?;
        let selector = Selector::plain(&find.root, self.base);
        let matches = |path: &&String| selector.takes(path) && find.pattern.matches(path);
        let unnameable = not_utf8.iter().filter(matches).count() as u64;
        let mut found = Found { timed_out, note, unnameable, ..Found::default() };
        for (path, modified, ignored) in files {
            if !selector.takes(&path) {
                continue;
            }
            if find.pattern.matches(&path) {
                found.files.push(FoundFile { path: paths::join(&find.root, &path), modified, ignored });
            } else if !ignored && find.pattern.matches_deeper(&path) {
                found.deeper += 1;
            }
        }
        Ok(found)
    }
}
