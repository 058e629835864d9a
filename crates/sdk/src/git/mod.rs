//! Git in a sandbox: runs the `git` program without a shell.

mod credentials;
mod error;
mod options;
mod status;

use std::time::Duration;

pub use credentials::Credentials;
pub use error::GitError;
pub use options::{Author, CloneOptions, GitScope, Pull, Push};
pub use status::{ChangeKind, GitChange, GitStatus};

use crate::commands::{Command, Output};
use crate::sandbox::Sandbox;
use credentials::check_remote;

/// Long enough for a moderately large clone.
const TIMEOUT: Duration = Duration::from_secs(300);
const REMOTE: &str = "origin";

impl Sandbox {
    /// Git in this sandbox.
    pub fn git(&self) -> Git<'_> {
        Git { sandbox: self, directory: None, user: None, credentials: None, timeout: TIMEOUT }
    }
}

/// Git in a sandbox.
///
/// ```no_run
/// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), Box<dyn std::error::Error>> {
/// use sandbar_sdk::{Author, CloneOptions, Credentials, Push};
///
/// // Only the processes that need the token have it, in their environment.
/// let git = sandbox.git().credentials(Credentials::token(std::env::var("GITHUB_TOKEN")?));
/// let url = "https://github.com/me/project.git";
/// let path = git.clone(url, CloneOptions::default().depth(1)).await?;
/// let git = git.at(path);
/// sandbox.commands().run("echo more >> project/README.md").await?;
/// git.add_all().await?;
/// git.commit("Say more", Some(&Author::new("Me", "me@example.com"))).await?;
/// git.push(Push::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Git<'a> {
    sandbox: &'a Sandbox,
    directory: Option<String>,
    user: Option<String>,
    credentials: Option<Credentials>,
    timeout: Duration,
}

/// The local branches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Branches {
    /// The checked-out branch, if there is one with a commit.
    pub current: Option<String>,
    pub all: Vec<String>,
}

impl<'a> Git<'a> {
    /// Works in this directory; the user's home by default.
    #[must_use]
    pub fn at(self, directory: impl Into<String>) -> Self {
        Self { directory: Some(directory.into()), ..self }
    }

    /// Runs git as another user.
    #[must_use]
    pub fn as_user(self, name: impl Into<String>) -> Self {
        Self { user: Some(name.into()), ..self }
    }

    /// Credentials for remotes that require them. Passed to each process that needs them, and
    /// stored nowhere in the sandbox.
    #[must_use]
    pub fn credentials(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    /// The timeout of one git command; five minutes by default.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        Self { timeout: limit, ..self }
    }

    /// Clones a repository and returns its directory.
    ///
    /// # Errors
    /// [`GitError::AuthFailed`], [`GitError::RepositoryNotFound`], [`GitError::UnknownName`] for a
    /// missing branch, [`GitError::AlreadyExists`] when the directory is not empty.
    pub async fn clone(&self, url: &str, options: CloneOptions) -> Result<String, GitError> {
        let url = check_remote(url)?;
        let mut arguments = vec!["clone".to_owned(), "--quiet".to_owned()];
        if let Some(branch) = &options.branch {
            arguments.push(format!("--branch={}", plain("a branch", branch)?));
        }
        if let Some(depth) = options.depth {
            arguments.push(format!("--depth={depth}"));
        }
        let path = match options.path {
            Some(path) => plain("a directory", &path)?.to_owned(),
            None => repository_name(url),
        };
        arguments.extend(["--".to_owned(), url.to_owned(), path.clone()]);
        self.run_with(arguments, Some(url)).await?;
        Ok(match &self.directory {
            Some(directory) if !path.starts_with(['/', '~']) => format!("{}/{path}", directory.trim_end_matches('/')),
            _ => path,
        })
    }

    /// Creates a repository in [`Git::at`], and the directory if missing. Idempotent.
    ///
    /// # Errors
    /// [`GitError::Failed`].
    pub async fn init(&self, branch: &str) -> Result<(), GitError> {
        let branch = format!("--initial-branch={}", plain("a branch", branch)?);
        let directory = self.directory.as_deref().unwrap_or(".");
        // Runs outside of the directory, which may not exist yet.
        let elsewhere = Git { directory: None, user: self.user.clone(), credentials: None, ..*self };
        elsewhere.run(["init", "--quiet", &branch, "--", plain("a directory", directory)?]).await?;
        Ok(())
    }

    /// The checked-out branch, and the changes of the working tree.
    ///
    /// # Errors
    /// [`GitError::NotARepository`].
    pub async fn status(&self) -> Result<GitStatus, GitError> {
        let output = self.run(["status", "--porcelain=v2", "--branch", "-z"]).await?;
        Ok(status::parse(&output.stdout_text()))
    }

    /// Lists the local branches.
    ///
    /// # Errors
    /// [`GitError::NotARepository`].
    pub async fn branches(&self) -> Result<Branches, GitError> {
        let output = self.run(["for-each-ref", "--format=%(HEAD)%(refname:short)", "refs/heads"]).await?;
        let mut branches = Branches::default();
        for line in output.stdout_text().lines() {
            let (mark, name) = line.split_at(line.len().min(1));
            if mark == "*" {
                branches.current = Some(name.to_owned());
            }
            branches.all.push(name.to_owned());
        }
        Ok(branches)
    }

    /// Checks out a branch, tag or commit.
    ///
    /// # Errors
    /// [`GitError::UnknownName`]; [`GitError::Conflict`] when it would overwrite changes.
    pub async fn checkout(&self, name: &str) -> Result<(), GitError> {
        self.run(["checkout", "--quiet", plain("a branch", name)?, "--"]).await?;
        Ok(())
    }

    /// Creates a branch from the current commit, and checks it out.
    ///
    /// # Errors
    /// [`GitError::AlreadyExists`].
    pub async fn create_branch(&self, name: &str) -> Result<(), GitError> {
        self.run(["checkout", "--quiet", "-b", plain("a branch", name)?]).await?;
        Ok(())
    }

    /// Deletes a merged branch.
    ///
    /// # Errors
    /// [`GitError::UnknownName`]; [`GitError::Failed`] when commits would be lost.
    pub async fn delete_branch(&self, name: &str) -> Result<(), GitError> {
        self.run(["branch", "--quiet", "--delete", plain("a branch", name)?]).await?;
        Ok(())
    }

    /// Stages these files.
    ///
    /// # Errors
    /// [`GitError::UnknownName`] for a path that matches nothing.
    pub async fn add<P: Into<String>>(&self, paths: impl IntoIterator<Item = P>) -> Result<(), GitError> {
        let arguments = ["add", "--"].map(str::to_owned).into_iter().chain(paths.into_iter().map(Into::into));
        self.run(arguments).await?;
        Ok(())
    }

    /// Stages all changes, new and deleted files included.
    ///
    /// # Errors
    /// [`GitError::NotARepository`].
    pub async fn add_all(&self) -> Result<(), GitError> {
        self.run(["add", "--all"]).await?;
        Ok(())
    }

    /// Commits the staged changes and returns the commit hash. Uses the configured author unless
    /// one is given.
    ///
    /// # Errors
    /// [`GitError::NothingToCommit`], [`GitError::NoAuthor`].
    pub async fn commit(&self, message: &str, author: Option<&Author>) -> Result<String, GitError> {
        let mut command = self.command(["commit", "--quiet", &format!("--message={message}")]);
        if let Some(Author { name, email }) = author {
            command = command.envs([("GIT_AUTHOR_NAME", name), ("GIT_COMMITTER_NAME", name)]);
            command = command.envs([("GIT_AUTHOR_EMAIL", email), ("GIT_COMMITTER_EMAIL", email)]);
        }
        self.finish("commit", command).await?;
        let output = self.run(["rev-parse", "HEAD"]).await?;
        Ok(output.stdout_text().trim().to_owned())
    }

    /// Pushes commits to a remote.
    ///
    /// # Errors
    /// [`GitError::AuthFailed`], [`GitError::Rejected`], [`GitError::NoUpstream`],
    /// [`GitError::UnknownName`].
    pub async fn push(&self, push: Push) -> Result<(), GitError> {
        let mut arguments = vec!["push".to_owned(), "--quiet".to_owned()];
        if push.upstream {
            arguments.push("--set-upstream".into());
        }
        if push.force {
            arguments.push("--force-with-lease".into());
        }
        let remote = push.remote.as_deref().unwrap_or(REMOTE);
        arguments.push(plain("a remote", remote)?.to_owned());
        match &push.branch {
            Some(branch) => arguments.push(plain("a branch", branch)?.to_owned()),
            None => arguments.push("HEAD".into()),
        }
        self.run_with(arguments, self.credentials_for(remote, Direction::Push).await?.as_deref()).await?;
        Ok(())
    }

    /// Fetches commits and integrates them into the current branch.
    ///
    /// # Errors
    /// [`GitError::AuthFailed`], [`GitError::NoUpstream`], [`GitError::Conflict`].
    pub async fn pull(&self, pull: Pull) -> Result<(), GitError> {
        let how = if pull.rebase { "--rebase" } else { "--ff-only" };
        let mut arguments = vec!["pull".to_owned(), "--quiet".to_owned(), how.to_owned()];
        let remote = pull.remote.as_deref().unwrap_or(REMOTE);
        if pull.remote.is_some() || pull.branch.is_some() {
            arguments.push(plain("a remote", remote)?.to_owned());
        }
        if let Some(branch) = &pull.branch {
            arguments.push(plain("a branch", branch)?.to_owned());
        }
        self.run_with(arguments, self.credentials_for(remote, Direction::Fetch).await?.as_deref()).await?;
        Ok(())
    }

    /// Adds a remote.
    ///
    /// # Errors
    /// [`GitError::AlreadyExists`]; [`GitError::Invalid`] for a URL that contains a password.
    pub async fn remote_add(&self, name: &str, url: &str) -> Result<(), GitError> {
        self.run(["remote", "add", plain("a remote", name)?, check_remote(url)?]).await?;
        Ok(())
    }

    /// The URL of a remote; [`None`] when it does not exist.
    ///
    /// # Errors
    /// [`GitError::NotARepository`].
    pub async fn remote_url(&self, name: &str) -> Result<Option<String>, GitError> {
        self.url_of(name, Direction::Fetch).await
    }

    /// Sets a configuration value.
    ///
    /// # Errors
    /// [`GitError::Failed`] for an invalid key.
    pub async fn set_config(&self, key: &str, value: &str, scope: GitScope) -> Result<(), GitError> {
        self.run(["config", scope.flag(), "--replace-all", "--", plain("a key", key)?, value]).await?;
        Ok(())
    }

    /// A configuration value; [`None`] when it is not set.
    ///
    /// # Errors
    /// [`GitError::Failed`] for an invalid key.
    pub async fn config(&self, key: &str) -> Result<Option<String>, GitError> {
        let command = self.command(["config", "--get", "--", plain("a key", key)?]);
        let output = self.sandbox.commands().run(command).await?;
        match output.exit.code {
            0 => Ok(Some(output.stdout_text().trim_end_matches('\n').to_owned())),
            1 if output.stderr.is_empty() => Ok(None),
            _ => Err(self.error("config", &output)),
        }
    }

    /// Runs any other git command in the same way: without a shell or prompts, with classified
    /// errors.
    ///
    /// # Errors
    /// Any [`GitError`].
    pub async fn run<A: Into<String>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<Output, GitError> {
        self.run_with(arguments, None).await
    }

    async fn run_with<A: Into<String>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        remote: Option<&str>,
    ) -> Result<Output, GitError> {
        let arguments: Vec<String> = arguments.into_iter().map(Into::into).collect();
        let subcommand = arguments.first().cloned().unwrap_or_default();
        let mut command = self.command(arguments);
        if let (Some(credentials), Some(remote)) = (&self.credentials, remote) {
            command = credentials.apply_to(command, remote);
        }
        self.finish(&subcommand, command).await
    }

    fn command<A: Into<String>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        // The C locale, by whose messages errors are classified.
        let mut command = Command::exec("git", arguments).timeout(self.timeout);
        command = command.envs([("GIT_TERMINAL_PROMPT", "0"), ("LC_ALL", "C"), ("GIT_PAGER", "cat")]);
        if let Some(directory) = &self.directory {
            command = command.cwd(directory);
        }
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        command
    }

    async fn finish(&self, subcommand: &str, command: Command) -> Result<Output, GitError> {
        let output = self.sandbox.commands().run(command).await?;
        if output.success() { Ok(output) } else { Err(self.error(subcommand, &output)) }
    }

    fn error(&self, subcommand: &str, output: &Output) -> GitError {
        GitError::from_output(subcommand, self.directory.as_deref().unwrap_or("~"), output)
    }

    /// The URL that credentials apply to. Runs git only when credentials are set.
    async fn credentials_for(&self, remote: &str, direction: Direction) -> Result<Option<String>, GitError> {
        match self.credentials {
            Some(_) => self.url_of(remote, direction).await,
            None => Ok(None),
        }
    }

    async fn url_of(&self, remote: &str, direction: Direction) -> Result<Option<String>, GitError> {
        let mut arguments = vec!["remote", "get-url"];
        if direction == Direction::Push {
            arguments.push("--push");
        }
        arguments.push(plain("a remote", remote)?);
        match self.run(arguments).await {
            Ok(output) => Ok(Some(output.stdout_text().trim().to_owned())),
            Err(GitError::UnknownName { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Fetch,
    Push,
}

/// Checks that an argument is not an option.
fn plain<'t>(what: &'static str, value: &'t str) -> Result<&'t str, GitError> {
    if value.is_empty() || value.starts_with('-') {
        let reason = "it is empty or could be taken for an option";
        return Err(GitError::Invalid { what, value: value.to_owned(), reason });
    }
    Ok(value)
}

/// The directory name that git would choose.
fn repository_name(url: &str) -> String {
    let trimmed = url.trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/.git").unwrap_or(trimmed);
    let name = trimmed.rsplit(['/', ':']).next().unwrap_or(trimmed);
    let name = name.strip_suffix(".git").unwrap_or(name);
    if name.is_empty() { "repository".into() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_is_named_after_its_repository() {
        for (url, name) in [
            ("https://github.com/a/project.git", "project"),
            ("https://host/a/project/", "project"),
            ("git@host:project.git", "project"),
            ("/srv/git/project.git/", "project"),
            ("/srv/project/.git", "project"),
        ] {
            assert_eq!(repository_name(url), name, "{url}");
        }
    }
}
