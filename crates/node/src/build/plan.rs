//! The plan of a build, made before anything runs: each step with the settings it runs under, and a
//! key that is equal for equal sequences of steps.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

use crate::start_command::DEFAULT_USER;
use crate::template::Defaults;

/// The `PATH` of a login shell, unless a step sets another.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MOST_STEPS: usize = 1000;

/// One instruction, as the client sent it.
#[derive(Clone, PartialEq, Eq)]
pub struct Step {
    /// `COPY`, `RUN`, `ENV`, `WORKDIR` or `USER`.
    pub kind: String,
    pub args: Vec<String>,
    pub files_hash: Option<String>,
    /// Run it and all later steps even if the cache has their results.
    pub force: bool,
    /// A COPY takes its source from this stage instead of an archive.
    pub from_stage: Option<usize>,
    /// A COPY unpacks a source that is a tar archive.
    pub unpack: bool,
}

/// Without the arguments, which may contain secrets.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The effect of a step on the files.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StepAction {
    Run {
        line: String,
        user: String,
    },
    Copy(Copy),
    MakeWorkdir {
        path: String,
    },
    MakeUser {
        name: String,
    },
    /// The step changes settings only.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: CopyFrom,
    pub(super) source: String,
    pub(super) target: String,
    /// `name` or `name:group`.
    pub(super) owner: String,
    pub(super) mode: Option<String>,
    pub(super) unpack: bool,
}

/// Where the source of a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CopyFrom {
    /// In the archive with this hash.
    Upload(String),
    /// In an earlier stage: the paths below its root that `pattern` matches.
    Stage { stage: usize, pattern: String },
}

/// A validated step.
pub(super) struct PlannedStep {
    /// Counted from 1, across all stages.
    pub(super) number: usize,
    /// For the log.
    pub(super) title: String,
    pub(super) act: StepAction,
    /// Identifies the state of the files after the step.
    pub(super) key: String,
    /// Whether neither this step nor an earlier one is forced.
    pub(super) may_be_cached: bool,
    /// The settings that the step runs under.
    pub(super) settings: Defaults,
}

/// A step that cannot succeed with any files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {step}: {message}")]
pub struct PlanError {
    pub step: usize,
    pub message: String,
}

/// What a stage is planned on.
pub(super) struct StageContext<'a> {
    /// Identifies the state of the files that the stage starts from.
    pub(super) key: &'a str,
    pub(super) settings: &'a Defaults,
    /// The number of the stage's first step: steps are counted across all stages.
    pub(super) first: usize,
    /// The keys of the states that earlier stages end with.
    pub(super) earlier: &'a [String],
}

/// The steps of a stage, and the settings and the key after the last of them.
pub(super) struct PlannedStage {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) settings: Defaults,
    pub(super) key: String,
}

/// Plans the `steps` of one stage.
pub(super) fn plan(context: &StageContext<'_>, steps: &[Step], force: bool) -> Result<PlannedStage, PlanError> {
    if context.first + steps.len() > MOST_STEPS + 1 {
        return Err(PlanError { step: MOST_STEPS, message: format!("more than {MOST_STEPS} steps") });
    }
    let (mut settings, mut key, mut may_be_cached) = (context.settings.clone(), context.key.to_owned(), !force);
    let mut planned = Vec::new();
    for (number, step) in (context.first..).zip(steps) {
        let wrong = |message| PlanError { step: number, message };
        let source = match step.from_stage.map(|stage| context.earlier.get(stage).ok_or(stage)).transpose() {
            Ok(source) => source.map_or("", String::as_str),
            Err(stage) => return Err(wrong(format!("there is no stage {stage} before this one"))),
        };
        key = next_key(&key, step, source);
        may_be_cached &= !step.force;
        let before = settings.clone();
        let act = validate(step, &mut settings).map_err(wrong)?;
        let title = format!("{} {}", step.kind.to_uppercase(), step.args.join(" ")).trim().to_owned();
        planned.push(PlannedStep { number, title, act, key: key.clone(), may_be_cached, settings: before });
    }
    Ok(PlannedStage { steps: planned, settings, key })
}

/// Returns the key after `step`. `source` is the key of the stage that a COPY takes its files from.
fn next_key(before: &str, step: &Step, source: &str) -> String {
    let mut digest = Sha256::new();
    let mut parts = vec![before, &step.kind, step.files_hash.as_deref().unwrap_or("")];
    // Only if either is set, so that the keys of other steps stay as they were in earlier versions.
    if !source.is_empty() || step.unpack {
        parts.extend([source, if step.unpack { "unpack" } else { "" }]);
    }
    for part in parts.into_iter().chain(step.args.iter().map(String::as_str)) {
        // Prefixed with its length, so that different lists of parts have different digests.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex::encode(digest.finalize())
}

fn validate(step: &Step, settings: &mut Defaults) -> Result<StepAction, String> {
    let user = settings.user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned());
    let args: Vec<&str> = step.args.iter().map(String::as_str).collect();
    let given = |index: usize| args.get(index).copied().filter(|arg| !arg.is_empty());
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err("an argument holds a zero byte".to_owned());
    }
    match step.kind.to_uppercase().as_str() {
        "RUN" => {
            let line = given(0).ok_or("RUN needs a command")?.to_owned();
            let user = given(1).map_or(Ok(user), check_user)?;
            Ok(StepAction::Run { line, user })
        }
        "COPY" => {
            let (source, target) = given(0).zip(given(1)).ok_or("COPY needs a source and a destination")?;
            let checked = check_source(source)?;
            let from = match step.from_stage {
                Some(_) if checked.is_empty() => return Err("the whole root of a stage cannot be copied".to_owned()),
                Some(stage) => CopyFrom::Stage { stage, pattern: source.trim_start_matches('/').to_owned() },
                None => {
                    let hash = step.files_hash.clone().filter(|hash| is_hash(hash));
                    CopyFrom::Upload(hash.ok_or("COPY needs the hash of its files")?)
                }
            };
            Ok(StepAction::Copy(Copy {
                from,
                source: checked,
                target: make_absolute(target, settings, &user),
                owner: given(2).map_or(Ok(user), check_owner)?,
                mode: given(3).map(check_mode).transpose()?,
                unpack: step.unpack,
            }))
        }
        "ENV" => {
            if args.is_empty() || !args.len().is_multiple_of(2) {
                return Err("ENV needs names with values".to_owned());
            }
            for pair in args.chunks_exact(2) {
                if pair[0].is_empty() || pair[0].contains('=') {
                    return Err(format!("'{}' cannot be an environment variable", pair[0]));
                }
                let value = expand(pair[1], &settings.env, &user);
                settings.env.insert(pair[0].to_owned(), value);
            }
            Ok(StepAction::Nothing)
        }
        "WORKDIR" => {
            let path =
                make_absolute(&expand(given(0).ok_or("WORKDIR needs a path")?, &settings.env, &user), settings, &user);
            settings.workdir = Some(path.clone());
            Ok(StepAction::MakeWorkdir { path })
        }
        "USER" => {
            let name = check_user(given(0).ok_or("USER needs a name")?)?;
            settings.user = Some(name.clone());
            Ok(StepAction::MakeUser { name })
        }
        other => Err(format!("'{other}' is none of COPY, RUN, ENV, WORKDIR and USER")),
    }
}

/// Whether the text is a SHA-256 in lower-case hex digits.
pub(super) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Checks a name by the rules of `useradd`.
fn check_user(name: &str) -> Result<String, String> {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    let good =
        name.len() <= 32 && name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit() || c == '-');
    if good { Ok(name.to_owned()) } else { Err(format!("'{name}' cannot be the name of a user")) }
}

fn check_owner(text: &str) -> Result<String, String> {
    let part = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) || check_user(part).is_ok();
    let good = match text.split_once(':') {
        Some((user, group)) => !user.is_empty() && part(user) && part(group),
        None => part(text),
    };
    if good { Ok(text.to_owned()) } else { Err(format!("'{text}' cannot be an owner")) }
}

fn check_mode(text: &str) -> Result<String, String> {
    let octal = text.strip_prefix("0o").unwrap_or(text);
    let good = (1..=5).contains(&octal.len()) && octal.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    if good { Ok(octal.to_owned()) } else { Err(format!("'{text}' is no octal mode")) }
}

/// Checks a path of the build context and cuts it before its first pattern: the archive contains
/// only files that the pattern matched.
fn check_source(source: &str) -> Result<String, String> {
    let mut kept = Vec::new();
    for part in source.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(format!("'{source}' leads out of the build context"));
        }
        if part.contains(['*', '?', '[', '{']) {
            // A directory whose contents are copied.
            kept.push("");
            break;
        }
        kept.push(part);
    }
    Ok(kept.join("/"))
}

/// Makes a path of the sandbox absolute; a trailing slash is kept.
fn make_absolute(path: &str, settings: &Defaults, user: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let base = settings.workdir.clone().unwrap_or_else(|| home(user));
    let path = path.strip_prefix("./").unwrap_or(path);
    if path == "." { format!("{base}/") } else { format!("{}/{path}", base.trim_end_matches('/')) }
}

fn home(user: &str) -> String {
    if user == "root" { "/root".to_owned() } else { format!("/home/{user}") }
}

/// Replaces `$NAME`, `${NAME}`, `${NAME:-value}` and `${NAME:+value}`; `\$` is a dollar sign.
fn expand(text: &str, env: &BTreeMap<String, String>, user: &str) -> String {
    let lookup = |name: &str| match name {
        name if env.contains_key(name) => env.get(name).cloned(),
        "PATH" => Some(PATH.to_owned()),
        "HOME" => Some(home(user)),
        "USER" => Some(user.to_owned()),
        _ => None,
    };
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        result.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if rest[at..].starts_with('\\') {
            let escaped = tail.strip_prefix('$');
            result.push(if escaped.is_some() { '$' } else { '\\' });
            rest = escaped.unwrap_or(tail);
            continue;
        }
        if let Some((inner, after)) = tail.strip_prefix('{').and_then(|tail| tail.split_once('}')) {
            let name_end = inner.find(|c: char| !is_name(c)).unwrap_or(inner.len());
            let (name, operation) = inner.split_at(name_end);
            let value = lookup(name).filter(|value| !value.is_empty());
            match operation.split_at_checked(2) {
                Some((":-", default)) => result.push_str(value.as_deref().unwrap_or(default)),
                Some((":+", alternative)) => result.push_str(value.map_or("", |_| alternative)),
                _ => result.push_str(&value.unwrap_or_default()),
            }
            rest = after;
            continue;
        }
        let end = tail.find(|c: char| !is_name(c)).unwrap_or(tail.len());
        if end == 0 {
            result.push('$');
        } else {
            result.push_str(&lookup(&tail[..end]).unwrap_or_default());
        }
        rest = &tail[end..];
    }
    result.push_str(rest);
    result
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, args: &[&str]) -> Step {
        let hash = (kind == "COPY").then(|| "0".repeat(64));
        let args = args.iter().map(|arg| (*arg).into()).collect();
        Step { kind: kind.into(), args, files_hash: hash, force: false, from_stage: None, unpack: false }
    }

    fn try_plan(steps: &[Step]) -> Result<PlannedStage, PlanError> {
        let earlier = ["a stage".to_owned()];
        plan(&StageContext { key: "origin", settings: &Defaults::default(), first: 1, earlier: &earlier }, steps, false)
    }

    fn planned(steps: &[Step]) -> (Vec<PlannedStep>, Defaults) {
        let stage = try_plan(steps).expect("they can be done");
        (stage.steps, stage.settings)
    }

    #[test]
    fn settings_carry_over_to_later_steps() {
        let (steps, after) = planned(&[
            step("ENV", &["A", "1", "PATH", "/app/bin:$PATH"]),
            step("WORKDIR", &["/app"]),
            step("WORKDIR", &["sub"]),
            step("USER", &["alice"]),
            step("RUN", &["make"]),
            step("RUN", &["make", "root"]),
        ]);
        assert_eq!(after.env["PATH"], format!("/app/bin:{PATH}"));
        assert_eq!((after.workdir.as_deref(), after.user.as_deref()), (Some("/app/sub"), Some("alice")));
        assert_eq!(steps[4].act, StepAction::Run { line: "make".into(), user: "alice".into() });
        assert_eq!(steps[5].act, StepAction::Run { line: "make".into(), user: "root".into() });
        assert_eq!(steps[4].settings, after);
    }

    #[test]
    fn a_changed_step_changes_its_key_and_those_after_it() {
        let keys = |steps: &[Step]| planned(steps).0.into_iter().map(|step| step.key).collect::<Vec<_>>();
        let one = keys(&[step("RUN", &["a"]), step("RUN", &["b"]), step("RUN", &["c"])]);
        let other = keys(&[step("RUN", &["a"]), step("RUN", &["x"]), step("RUN", &["c"])]);
        assert_eq!(one[0], other[0]);
        assert!(one[1] != other[1] && one[2] != other[2]);
        assert_ne!(keys(&[step("RUN", &["a", "b"])]), keys(&[step("RUN", &["ab"])]));
        let mut forced = [step("RUN", &["a"]), step("RUN", &["b"]), step("RUN", &["c"])];
        forced[1].force = true;
        let allowed: Vec<bool> = planned(&forced).0.iter().map(|step| step.may_be_cached).collect();
        assert_eq!(allowed, [true, false, false]);
    }

    #[track_caller]
    fn assert_copy(args: &[&str], source: &str, target: &str, owner: &str) {
        let (mut steps, _) = planned(&[step("WORKDIR", &["/app"]), step("COPY", args)]);
        let Some(StepAction::Copy(copy)) = steps.pop().map(|step| step.act) else { panic!("no copy") };
        assert_eq!((copy.source.as_str(), copy.target.as_str(), copy.owner.as_str()), (source, target, owner));
    }

    #[test]
    fn copies_are_resolved() {
        assert_copy(&[".", "."], "", "/app/", "user");
        assert_copy(&["./src/a.txt", "/x/b.txt"], "src/a.txt", "/x/b.txt", "user");
        assert_copy(&["src/*.txt", "dir/"], "src/", "/app/dir/", "user");
        assert_copy(&["*", "/x", "root:root", "0755"], "", "/x", "root:root");
        assert_copy(&["a", "./b", "", ""], "a", "/app/b", "user");
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_number() {
        for bad in [
            step("COPY", &["../secret", "/x"]),
            step("COPY", &["a/../../b", "/x"]),
            step("COPY", &["a"]),
            step("COPY", &["a", "/x", "user; reboot"]),
            step("COPY", &["a", "/x", "", "u+x"]),
            Step { files_hash: Some("../../etc/passwd".into()), ..step("COPY", &["a", "/x"]) },
            step("RUN", &[]),
            step("RUN", &["true", "no such user"]),
            step("RUN", &["a\0b"]),
            step("USER", &["-rf"]),
            step("ENV", &["A"]),
            step("ENV", &["A=B", "c"]),
            step("WORKDIR", &[""]),
            step("EXPOSE", &["80"]),
            Step { from_stage: Some(1), ..step("COPY", &["/a", "/x"]) },
            Step { from_stage: Some(0), ..step("COPY", &["/", "/x"]) },
        ] {
            let refused = try_plan(&[step("RUN", &["true"]), bad.clone()]);
            assert_eq!(refused.err().map(|error| error.step), Some(2), "{} {:?}", bad.kind, bad.args);
        }
    }

    #[test]
    fn variables_expand() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned()), ("EMPTY".to_owned(), String::new())]);
        for (text, expected) in [
            ("$A/${A}b", "1/1b"),
            ("$NONE|${NONE:-d}|${EMPTY:-d}|${A:-d}", "|d|d|1"),
            ("${A:+x}${NONE:+y}", "x"),
            (r"\$A \n $ $$A ${A", r"$A \n $ $1 ${A"),
            ("$HOME", "/home/user"),
        ] {
            assert_eq!(expand(text, &env, "user"), expected, "{text}");
        }
    }
}
