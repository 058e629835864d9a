//! Searching inside a sandbox: with ripgrep where it is, else with our helper that has its engine, else with find and grep
//! under the same rules.
//!
//! Either way the sandbox does the walking and reading, and only names, counts and the lines of one page travel.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sdk::{Chunk, Command, CommandError};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::machine::{SHARED, SandboxMachine, awake, command_error, file_error};
use crate::paths;
use crate::port::{PortError, Searches};
use crate::search::{
    Counted, CountedFile, Find, Found, FoundFile, IGNORE_FILES, IgnoreFile, MatchedFile, Matcher, Row, Search,
    Selector, Skipped, Tree, common_name_parts,
};

/// A type of file that only we know, to narrow what ripgrep looks at. Its `--glob` would override ignore rules.
const OWN_TYPE: &str = "sandbarglob";
/// More than this of names or lines is a mistake in the pattern.
const MOST_OUTPUT: usize = 64 * 1024 * 1024;
/// All arguments of one program.
const MOST_ARGUMENTS: usize = 1_000_000;
/// For what follows a search.
const LOOK: Duration = Duration::from_secs(30);
const WITHOUT_RIPGREP: &str = "Searched with grep -P and find, since ripgrep is not installed in this sandbox";

const RIPGREP: &str = "rg";
/// ripgrep's engine as a static executable.
const HELPER: &[u8] = include_bytes!(env!("SANDBAR_SEARCH_IMAGE"));

/// What searches in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Engine {
    /// The sandbox's own.
    Ripgrep,
    Helper,
    /// Neither: find and grep.
    None,
}

/// Named by its content: another version is another file.
pub(super) fn helper_path() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let digest = Sha256::digest(HELPER);
        let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{SHARED}/bin/search-{name}")
    })
}

/// Times and binaries among files. Arguments: paths
const LOOK_AT: &str =
    r#"stat -L --printf='%.9Y %n\000' -- "$@"; printf '\000\000'; rg -l -0 -a --no-config -e '\x00' -- "$@""#;
/// Times of files.
const TIMES: &str = r#"stat -L --printf='%.9Y %n\000' -- "$@"; printf '\000\000'"#;
/// All files below the current directory: kind, time, path. $1… paths that are left out
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
/// Contents of small files: path NUL content NUL. Arguments: paths
const CONTENTS: &str = r#"for f; do printf '%s\000' "$f"; head -c 65536 -- "$f" | tr -d '\000'; printf '\000'; done"#;

/// What a program of ours said before it ended or its time was over.
struct Partial {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: Option<i32>,
}

impl SandboxMachine {
    /// Runs a program in a directory and keeps what it said also when it has to be ended.
    async fn bounded(&self, command: Command, limit: Duration) -> Result<Partial, CommandError> {
        let command = command.timeout(limit + Duration::from_secs(5));
        let mut running = awake!(self, |sandbox| sandbox.commands().start(&command))?;
        let deadline = Instant::now() + limit;
        let mut partial = Partial { stdout: Vec::new(), stderr: Vec::new(), code: None };
        loop {
            match timeout_at(deadline, running.next()).await {
                Ok(Ok(Some(Chunk::Stdout(bytes) | Chunk::Pty(bytes)))) => partial.stdout.extend_from_slice(&bytes),
                Ok(Ok(Some(Chunk::Stderr(bytes)))) => partial.stderr.extend_from_slice(&bytes),
                Ok(Ok(None)) => {
                    partial.code = running.exit().map(|exit| exit.code);
                    return Ok(partial);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    running.process().kill().await?;
                    return Ok(partial);
                }
            }
            if partial.stdout.len() > MOST_OUTPUT {
                running.process().kill().await?;
                return Ok(partial);
            }
        }
    }

    /// Runs ripgrep, or our helper with its engine and its flags; [`None`] when the sandbox runs neither.
    async fn ripgrep(
        &self,
        directory: &str,
        arguments: Vec<String>,
        limit: Duration,
    ) -> Result<Option<Partial>, PortError> {
        let candidates = match self.engine.get() {
            Some(known) => vec![known.clone()],
            None => vec![Engine::Ripgrep, Engine::Helper, Engine::None],
        };
        for engine in candidates {
            let program = match &engine {
                Engine::Ripgrep => RIPGREP.to_owned(),
                Engine::Helper => match self.helper().await? {
                    Some(program) => program,
                    None => continue,
                },
                Engine::None => {
                    let _ = self.engine.set(engine);
                    return Ok(None);
                }
            };
            match self.bounded(Command::exec(program, arguments.clone()).cwd(directory), limit).await {
                // What a shell or a loader says when there is no such program, or it is another machine's.
                Ok(Partial { code: Some(126 | 127), .. }) | Err(CommandError::NotStartable { .. }) => {}
                Ok(partial) => {
                    let _ = self.engine.set(engine);
                    return Ok(Some(partial));
                }
                Err(error) => return Err(command_error(error)),
            }
        }
        Ok(None)
    }

    /// Where our helper is in the sandbox, sent there if it is not; [`None`] when it cannot be.
    pub(super) async fn helper(&self) -> Result<Option<String>, PortError> {
        let program = helper_path();
        let there = awake!(self, |sandbox| sandbox.files().exists(program));
        if there.map_err(file_error)? {
            return Ok(Some(program.to_owned()));
        }
        // Under its name only when it is whole: others may look for it at the same time.
        let draft = format!("{program}.{:016x}", rand::random::<u64>());
        let sent = awake!(self, |sandbox| sandbox.files().write(&draft, Bytes::from_static(HELPER)));
        match sent.map_err(file_error) {
            Ok(_) => {}
            Err(PortError::Unavailable(cause)) => return Err(PortError::Unavailable(cause)),
            Err(error) => {
                tracing::debug!(%error, "the search helper could not be sent");
                return Ok(None);
            }
        }
        let script = r#"chmod 755 "$1" && mv -f "$1" "$2""#;
        let place = Command::exec("/bin/sh", ["-c", script, "sh", &draft, program]).cwd("/").timeout(LOOK);
        Ok(self.run(place).await?.success().then(|| program.to_owned()))
    }

    /// Runs a script over paths, as often as their number asks for.
    async fn over(&self, script: &str, paths: &[String]) -> Result<Vec<Bytes>, PortError> {
        let mut outputs = Vec::new();
        let mut rest = paths;
        while !rest.is_empty() {
            let (mut size, mut count) = (0, 0);
            while count < rest.len() && (count == 0 || size + rest[count].len() < MOST_ARGUMENTS) && count < 20_000 {
                size += rest[count].len() + 1;
                count += 1;
            }
            let arguments = ["-c", script, "sh"].into_iter().map(str::to_owned).chain(rest[..count].iter().cloned());
            let command = Command::exec("/bin/sh", arguments).cwd("/").timeout(LOOK);
            outputs.push(self.run(command).await?.stdout);
            rest = &rest[count..];
        }
        Ok(outputs)
    }

    /// The script that tells times and binaries, with the program that searches here.
    fn look_at_script(&self) -> String {
        match self.engine.get() {
            Some(Engine::Helper) => LOOK_AT.replacen("; rg ", &format!("; {} ", helper_path()), 1),
            _ => LOOK_AT.to_owned(),
        }
    }

    /// Times of change, and which are binary.
    async fn look_at(
        &self,
        script: &str,
        paths: &[String],
    ) -> Result<(HashMap<String, i128>, HashSet<String>), PortError> {
        let (mut times, mut binaries) = (HashMap::new(), HashSet::new());
        for output in self.over(script, paths).await? {
            let text = String::from_utf8_lossy(&output);
            let (first, second) = text.split_once("\0\0\0").or_else(|| text.split_once("\0\0")).unwrap_or((&text, ""));
            for line in first.split('\0') {
                if let Some((time, path)) = line.split_once(' ') {
                    times.insert(path.to_owned(), nanoseconds(time));
                }
            }
            binaries.extend(second.split('\0').filter(|path| !path.is_empty()).map(str::to_owned));
        }
        Ok((times, binaries))
    }
}

/// `12.345` as nanoseconds.
fn nanoseconds(text: &str) -> i128 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    whole.parse::<i128>().unwrap_or(0) * 1_000_000_000 + part.parse::<i128>().unwrap_or(0)
}

/// Where a program runs, and what it is told to look at.
fn place(search: &Search) -> (String, String) {
    if search.root_is_file {
        (paths::parent(&search.root).to_owned(), format!("./{}", paths::name(&search.root)))
    } else {
        (search.root.clone(), "./".into())
    }
}

/// The rules of walking, which are ours and not ripgrep's defaults.
fn walking(base: &str, root: &str, include_ignored: bool) -> Vec<String> {
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

fn narrowed(parts: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> =
        parts.iter().flat_map(|part| ["--type-add".to_owned(), format!("{OWN_TYPE}:{part}")]).collect();
    arguments.extend(["-t".into(), OWN_TYPE.into()]);
    arguments
}

/// What to look for, for ripgrep.
fn looking_for(search: &Search) -> Vec<String> {
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
        let (directory, target) = place(search);
        let mut arguments = walking(self.base, &search.root, search.include_ignored);
        arguments.extend(["-c", "-0", "-H", "--stats", "--binary"].map(str::to_owned));
        arguments.extend(looking_for(search));
        for glob in search.globs.iter().filter(|glob| glob.starts_with('!')) {
            arguments.extend(["-g".into(), glob.clone()]);
        }
        if let Some(kind) = &search.file_type {
            arguments.extend(["-t".into(), kind.clone()]);
        } else if let Some(parts) = common_name_parts(&search.globs) {
            arguments.extend(narrowed(&parts));
        }
        arguments.extend(["--".into(), target]);
        let Some(partial) = self.ripgrep(&directory, arguments, search.limit).await? else {
            return self.count_plainly(search).await;
        };
        if partial.code == Some(2) && partial.stdout.is_empty() {
            let message = String::from_utf8_lossy(&partial.stderr).trim().to_owned();
            return Err(PortError::Other(if message.is_empty() { "The search failed.".into() } else { message }));
        }
        let (hits, searched) = counts(&partial.stdout);
        let mut counted = Counted { searched, timed_out: partial.code.is_none(), ..Counted::default() };
        let selector = Selector::new(search, self.base).map_err(|error| PortError::Other(error.0))?;
        let hits = hits.into_iter().filter(|(path, _)| search.root_is_file || selector.takes(path));
        let hits: Vec<(String, u64)> = hits.map(|(path, lines)| (paths::join(&directory, &path), lines)).collect();
        let all: Vec<String> = hits.iter().map(|(path, _)| path.clone()).collect();
        let (times, binaries) =
            if all.is_empty() { Default::default() } else { self.look_at(&self.look_at_script(), &all).await? };
        counted.skipped.binary = binaries.len() as u64;
        if counted.searched == 0 {
            counted.searched = hits.len() as u64;
        }
        let found = hits.into_iter().filter(|(path, _)| !binaries.contains(path) || search.root_is_file);
        counted.files = found
            .map(|(path, lines)| CountedFile { modified: times.get(&path).copied().unwrap_or(0), path, lines })
            .collect();
        if counted.files.is_empty() && !search.root_is_file && !search.include_ignored && !counted.timed_out {
            counted.skipped.ignored = self.ignored(search, &selector).await?;
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
        arguments.extend(looking_for(search));
        if search.root_is_file {
            arguments.push("-a".into());
        }
        arguments.push("--".into());
        arguments.extend(files.iter().cloned());
        match self.ripgrep("/", arguments, search.limit).await? {
            Some(partial) => Ok(rows(&partial.stdout)),
            None => self.lines_plainly(search, files).await,
        }
    }

    async fn find(&self, find: &Find) -> Result<Found, PortError> {
        if find.pattern.directories() {
            return self.find_plainly(find, LIST_DIRECTORIES, None).await;
        }
        let list = |include_ignored: bool| {
            let mut arguments = walking(self.base, &find.root, include_ignored);
            arguments.extend(["--files", "-0"].map(str::to_owned));
            if let Some(part) = find.pattern.name_part() {
                let parts: Vec<&str> = [part].into_iter().chain(IGNORE_FILES).collect();
                arguments.extend(narrowed(&parts));
            }
            arguments.extend(["--".into(), "./".into()]);
            arguments
        };
        let Some(partial) = self.ripgrep(&find.root, list(false), find.limit).await? else {
            return self.find_plainly(find, LIST, Some(WITHOUT_RIPGREP.replace("grep -P and ", ""))).await;
        };
        let plain = names(&partial.stdout);
        let mut found = Found { timed_out: partial.code.is_none(), ..Found::default() };
        let has_rules = plain.iter().any(|path| IGNORE_FILES.contains(&paths::name(path)));
        let mut ignored: Vec<String> = Vec::new();
        if has_rules && let Some(all) = self.ripgrep(&find.root, list(true), find.limit).await? {
            found.timed_out |= all.code.is_none();
            let known: HashSet<&String> = plain.iter().collect();
            ignored = names(&all.stdout).into_iter().filter(|path| !known.contains(path)).collect();
        }
        let selector = Selector::plain(&find.root, self.base);
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
        let (times, _) = if all.is_empty() { Default::default() } else { self.look_at(TIMES, &all).await? };
        // A link that leads nowhere has no time, and is no file.
        let files = matched
            .into_iter()
            .filter_map(|(path, ignored)| Some(FoundFile { modified: times.get(&path).copied()?, path, ignored }));
        found.files = files.collect();
        Ok(found)
    }
}

impl SandboxMachine {
    /// How many files the ignore rules left out.
    async fn ignored(&self, search: &Search, selector: &Selector) -> Result<u64, PortError> {
        let mut seen = [HashSet::new(), HashSet::new()];
        for (include_ignored, seen) in [false, true].into_iter().zip(&mut seen) {
            let mut arguments = walking(self.base, &search.root, include_ignored);
            arguments.extend(["--files", "-0", "--", "./"].map(str::to_owned));
            let Some(partial) = self.ripgrep(&search.root, arguments, search.limit).await? else { return Ok(0) };
            seen.extend(names(&partial.stdout).into_iter().filter(|path| selector.takes(path)));
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

    /// Everything below a directory, without ripgrep: path, time, whether it is ignored.
    async fn walk(
        &self,
        root: &str,
        script: &str,
        limit: Duration,
    ) -> Result<(Vec<(String, i128, bool)>, bool), PortError> {
        let own = paths::below(root, self.base).map_or(String::new(), |own| format!("./{own}"));
        let command = Command::exec("/bin/sh", ["-c", script, "sh", &own]).cwd(root);
        let partial = self.bounded(command, limit).await.map_err(command_error)?;
        let text = String::from_utf8_lossy(&partial.stdout).into_owned();
        let mut listed = Vec::new();
        for line in text.split('\0') {
            let mut parts = line.splitn(3, ' ');
            if let (Some("f"), Some(time), Some(path)) = (parts.next(), parts.next(), parts.next()) {
                listed.push((path.to_owned(), nanoseconds(time)));
            }
        }
        let mut rules: Vec<(String, String)> = Vec::new();
        let sources: Vec<String> = listed
            .iter()
            .filter(|(path, _)| IGNORE_FILES.contains(&paths::name(path)))
            .map(|(path, _)| paths::join(root, path))
            .collect();
        for output in self.over(CONTENTS, &sources).await? {
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
        Ok((judged.collect(), partial.code.is_none()))
    }

    async fn count_plainly(&self, search: &Search) -> Result<Counted, PortError> {
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
            let (listed, timed_out) = self.walk(&search.root, LIST, search.limit).await?;
            counted.timed_out = timed_out;
            for (path, time, ignored) in listed {
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
        // `-c` counts; without `-I` binary files count too, and are told apart by a second look at those that match.
        let left = search.limit.saturating_sub(begun.elapsed()).max(Duration::from_secs(1));
        let all = self.grep(search, &["-c", "-a"], &chosen, left).await?;
        counted.timed_out |= all.code.is_none();
        let hits = pairs(&all.stdout);
        let matching: Vec<String> = hits.iter().map(|(path, _)| path.clone()).collect();
        let texts: HashSet<String> = if matching.is_empty() || search.root_is_file {
            matching.iter().cloned().collect()
        } else {
            let texts = self.grep(search, &["-c", "-I"], &matching, LOOK).await?;
            pairs(&texts.stdout).into_iter().map(|(path, _)| path).collect()
        };
        for (path, lines) in hits {
            if texts.contains(&path) {
                counted.files.push(CountedFile { modified: times.get(&path).copied().unwrap_or(0), path, lines });
            } else {
                counted.skipped.binary += 1;
            }
        }
        counted.skipped = Skipped { unreadable: 0, ..counted.skipped };
        Ok(counted)
    }

    /// Runs grep over files whose names are sent as a file: there may be many.
    async fn grep(
        &self,
        search: &Search,
        flags: &[&str],
        files: &[String],
        limit: Duration,
    ) -> Result<Partial, PortError> {
        let list = format!("{}/out/list-{:016x}", self.state, rand::random::<u64>());
        let names: Bytes = files.iter().flat_map(|path| path.bytes().chain([0])).collect();
        let written = awake!(self, |sandbox| sandbox.files().write(&list, names.clone()));
        written.map_err(file_error)?;
        let mut arguments: Vec<String> = ["-0", "-a", &list, "grep", "-H", "-Z", "-s"].map(str::to_owned).into();
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        arguments.push(if search.literal { "-F" } else { "-P" }.into());
        if search.ignore_case {
            arguments.push("-i".into());
        }
        arguments.extend(["-e".into(), search.pattern.clone(), "--".into()]);
        let command = Command::exec("xargs", arguments).cwd("/").env("LC_ALL", "C.UTF-8");
        let partial = self.bounded(command, limit).await.map_err(command_error);
        if let Err(error) = self.sandbox().files().remove(&list).await {
            tracing::debug!(%error, "a list of files could not be removed");
        }
        partial
    }

    async fn lines_plainly(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError> {
        let (before, after) = (search.before.to_string(), search.after.to_string());
        let mut flags = vec!["-n"];
        if search.before > 0 {
            flags.extend(["-B", &before]);
        }
        if search.after > 0 {
            flags.extend(["-A", &after]);
        }
        let partial = self.grep(search, &flags, files, search.limit).await?;
        let matcher = Matcher::new(&search.pattern, search.literal, search.ignore_case, false)
            .map_err(|error| PortError::Other(error.0))?;
        let text = String::from_utf8_lossy(&partial.stdout);
        let mut all: Vec<MatchedFile> = Vec::new();
        for line in text.lines() {
            let Some((path, rest)) = line.split_once('\0') else { continue };
            let Some(end) = rest.find(|letter: char| !letter.is_ascii_digit()) else { continue };
            let Ok(number) = rest[..end].parse() else { continue };
            let text = rest[end + 1..].trim_end_matches('\r').to_owned();
            let matched = (rest[end..].starts_with(':')).then(|| matcher.find(text.as_bytes()).unwrap_or((0, 0)));
            let row = Row { line: number, text, matched };
            match all.last_mut().filter(|last| last.path == path) {
                Some(last) => last.rows.push(row),
                None => all.push(MatchedFile { path: path.to_owned(), rows: vec![row] }),
            }
        }
        Ok(all)
    }

    async fn find_plainly(&self, find: &Find, script: &str, note: Option<String>) -> Result<Found, PortError> {
        let (listed, timed_out) = self.walk(&find.root, script, find.limit).await?;
        let selector = Selector::plain(&find.root, self.base);
        let mut found = Found { timed_out, note, ..Found::default() };
        for (path, modified, ignored) in listed {
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

/// `./path NUL count` lines, and after them how many files were searched.
fn counts(output: &[u8]) -> (Vec<(String, u64)>, u64) {
    let text = String::from_utf8_lossy(output);
    let mut searched = 0;
    let mut hits = Vec::new();
    for line in text.lines() {
        match line.split_once('\0') {
            Some((path, count)) => {
                if let Ok(count) = count.parse() {
                    hits.push((path.trim_start_matches("./").to_owned(), count));
                }
            }
            None => {
                if let Some(number) = line.strip_suffix(" files searched") {
                    searched = number.trim().parse().unwrap_or(0);
                }
            }
        }
    }
    (hits, searched)
}

/// grep's counts; files without a match are in them too.
fn pairs(output: &[u8]) -> Vec<(String, u64)> {
    let text = String::from_utf8_lossy(output);
    let pair = |line: &str| {
        let (path, count) = line.split_once('\0')?;
        Some((path.to_owned(), count.parse().ok().filter(|count| *count > 0)?))
    };
    text.lines().filter_map(pair).collect()
}

fn names(output: &[u8]) -> Vec<String> {
    let parts = output.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    parts.map(|path| String::from_utf8_lossy(path).trim_start_matches("./").to_owned()).collect()
}

/// ripgrep's JSON lines.
fn rows(output: &[u8]) -> Vec<MatchedFile> {
    let mut all: Vec<MatchedFile> = Vec::new();
    for line in output.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
        let is_match = match event["type"].as_str() {
            Some("match") => true,
            Some("context") => false,
            _ => continue,
        };
        let data = &event["data"];
        let (Some(path), Some(text), Some(first)) =
            (text_of(&data["path"]), text_of(&data["lines"]), data["line_number"].as_u64())
        else {
            continue;
        };
        let place =
            |name: &str| data["submatches"][0][name].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
        let (mut start, mut end) = (place("start"), place("end"));
        let file = match all.iter_mut().position(|file| file.path == path) {
            Some(at) => &mut all[at],
            None => {
                all.push(MatchedFile { path, rows: Vec::new() });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        let body = text.strip_suffix('\n').unwrap_or(&text);
        for (at, line) in body.split('\n').enumerate() {
            let shown = line.strip_suffix('\r').unwrap_or(line);
            let matched = is_match.then_some((start.min(shown.len()), end.min(shown.len())));
            file.rows.push(Row { line: first + at as u64, text: shown.to_owned(), matched });
            start = start.saturating_sub(line.len() + 1);
            end = end.saturating_sub(line.len() + 1);
        }
    }
    all
}

/// Text, or bytes that are none.
fn text_of(value: &Value) -> Option<String> {
    if let Some(text) = value["text"].as_str() {
        return Some(text.to_owned());
    }
    let bytes = STANDARD.decode(value["bytes"].as_str()?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
