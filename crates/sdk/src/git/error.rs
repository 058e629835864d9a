//! Classifies git's error messages.

use crate::commands::{CommandError, Output};

/// A failed git command.
///
/// `message` is git's own text. No variant contains credentials: git does not repeat them, and no
/// URL has them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// The remote requires credentials, or rejects these.
    #[error("git: not authenticated: {message}")]
    AuthFailed { message: String },
    /// The remote has no such repository, or hides it from these credentials.
    #[error("git: no such repository: {message}")]
    RepositoryNotFound { message: String },
    /// The directory is not in a repository.
    #[error("git: {path:?} is not in a repository")]
    NotARepository { path: String },
    /// No such branch, tag, commit or file.
    #[error("git: unknown name: {message}")]
    UnknownName { message: String },
    /// The branch, remote or directory already exists.
    #[error("git: {message}")]
    AlreadyExists { message: String },
    #[error("git: nothing to commit")]
    NothingToCommit,
    /// The remote has commits that are missing locally: pull first.
    #[error("git: the push was rejected: {message}")]
    Rejected { message: String },
    /// Local and remote changes conflict: merge by hand.
    #[error("git: conflicting changes: {message}")]
    Conflict { message: String },
    /// The branch has no upstream: name a remote branch, or push with
    /// [`super::Push::set_upstream`].
    #[error("git: the branch follows no other: {message}")]
    NoUpstream { message: String },
    /// No author is configured.
    #[error("git: no author is set: {message}")]
    NoAuthor { message: String },
    /// The argument could be parsed as an option or another kind of value.
    #[error("git: {what} cannot be {value:?}: {reason}")]
    Invalid { what: &'static str, value: String, reason: &'static str },
    /// Any other refusal.
    #[error("git {arguments}: exit status {code}: {message}")]
    Failed { arguments: String, code: i32, message: String },
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl GitError {
    /// Classifies a failed command by its messages. Git runs in the C locale, so they are stable.
    pub(super) fn from_output(subcommand: &str, path: &str, output: &Output) -> Self {
        let (errors, text) = (output.stderr_text(), output.stdout_text());
        let message = error_lines(&errors, &text);
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| errors.contains(phrase) || text.contains(phrase));
        if says(&["not a git repository"]) {
            Self::NotARepository { path: path.to_owned() }
        } else if says(&[
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "Permission denied (publickey",
            "Access denied",
            "returned error: 401",
            "returned error: 403",
        ]) {
            Self::AuthFailed { message }
        } else if says(&[
            "does not appear to be a git repository",
            "' not found",
            "Repository not found",
            "' does not exist",
        ]) && says(&["epository"])
        {
            Self::RepositoryNotFound { message }
        } else if says(&["nothing to commit", "nothing added to commit", "no changes added to commit"]) {
            Self::NothingToCommit
        } else if says(&["no upstream branch", "no tracking information"]) {
            Self::NoUpstream { message }
        } else if says(&["[rejected]", "[remote rejected]", "stale info"]) {
            Self::Rejected { message }
        } else if says(&[
            "CONFLICT",
            "would be overwritten",
            "Not possible to fast-forward",
            "divergent branches",
            "need to resolve",
        ]) {
            Self::Conflict { message }
        } else if says(&["already exists"]) {
            Self::AlreadyExists { message }
        } else if says(&["tell me who you are", "Please tell me who"]) {
            Self::NoAuthor { message }
        } else if says(&[
            "did not match any",
            "invalid reference",
            "not a valid object name",
            "unknown revision",
            "Remote branch",
            "couldn't find remote ref",
            "does not match any",
            "not found.",
            "No such remote",
            "not a commit",
        ]) {
            Self::UnknownName { message }
        } else {
            Self::Failed { arguments: subcommand.to_owned(), code: output.exit.code, message }
        }
    }
}

/// The lines that explain the failure, without progress and hints.
fn error_lines(errors: &str, text: &str) -> String {
    let output = if errors.trim().is_empty() { text } else { errors };
    let lines = output.lines().map(|line| line.rsplit('\r').next().unwrap_or(line).trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("hint:")).collect();
    let why =
        lines.iter().filter(|line| line.starts_with("fatal:") || line.starts_with("error:") || line.contains('!'));
    let why: Vec<&str> = why.copied().collect();
    let chosen = if why.is_empty() { &lines[lines.len().saturating_sub(3)..] } else { &why[..] };
    chosen.join("; ").chars().take(1_000).collect()
}
