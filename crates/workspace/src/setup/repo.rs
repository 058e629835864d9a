//! The source of a workspace's project: a URL that the sandbox can reach, or a directory of this
//! machine.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use sdk::Credentials;
use url::Url;

/// The repository of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    pub source: RepoSource,
    /// The branch to check out or, from a URL, a tag. [`None`]: the source's current branch.
    pub branch: Option<String>,
    /// For a URL that needs them. Only the one git process that needs them sees them; they are not
    /// stored.
    pub credentials: Option<Credentials>,
}

/// The location of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RepoSource {
    /// Cloned from within the sandbox.
    Url(String),
    /// A repository of this machine, or a directory in one. Commits are sent; uncommitted changes
    /// are not, and a note counts them.
    Directory(PathBuf),
}

impl Repo {
    /// Parses a user's text: a URL (`https://…`, `git@host:path`) or a directory (`.`, `../shop`,
    /// `file:///srv/shop`).
    ///
    /// A user name and password are moved from the URL into the credentials, since git would store
    /// them.
    pub fn parse(text: &str) -> Self {
        if let Some(path) = text.strip_prefix("file://") {
            return Self::new(RepoSource::Directory(path.into()));
        }
        if let Ok(mut url) = Url::parse(text)
            && matches!(url.scheme(), "http" | "https")
        {
            let credentials = take_credentials(&mut url);
            return Self { credentials, ..Self::new(RepoSource::Url(url.into())) };
        }
        // ssh's `host:path` has a colon before the first slash; a file path has not.
        let remote = text.contains("://") || text.split('/').next().is_some_and(|first| first.contains(':'));
        Self::new(if remote { RepoSource::Url(text.to_owned()) } else { RepoSource::Directory(text.into()) })
    }

    fn new(source: RepoSource) -> Self {
        Self { source, branch: None, credentials: None }
    }

    #[must_use]
    pub fn branch(self, branch: impl Into<String>) -> Self {
        Self { branch: Some(branch.into()), ..self }
    }

    #[must_use]
    pub fn credentials(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }
}

impl FromStr for Repo {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::parse(text))
    }
}

/// Decodes percent-encoding.
fn take_credentials(url: &mut Url) -> Option<Credentials> {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, password) = (decoded(url.username()), url.password().map(decoded));
    if user.is_empty() && password.is_none() {
        return None;
    }
    // Neither fails for a URL with a host, which http and https have.
    let _ = (url.set_username(""), url.set_password(None));
    Some(Credentials::new(user, password.unwrap_or_default()))
}

/// A remote URL without credentials that the sandbox can reach; [`None`] for a path of this
/// machine.
pub(super) fn reachable_remote(text: &str) -> Option<String> {
    match Repo::parse(text.trim()) {
        Repo { source: RepoSource::Url(url), .. } => Some(url),
        Repo { source: RepoSource::Directory(_), .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_distinguished_from_directories() {
        for url in ["https://host/a.git", "git://127.0.0.1:9418/a", "ssh://git@host/a", "git@host:a/b.git", "host:a"] {
            assert_eq!(Repo::parse(url).source, RepoSource::Url(url.to_owned()));
        }
        for path in [".", "../shop", "/srv/a", "shop", "./a:b", "C/d:e"] {
            assert_eq!(Repo::parse(path).source, RepoSource::Directory(path.into()));
        }
        assert_eq!(Repo::parse("file:///srv/a").source, RepoSource::Directory("/srv/a".into()));
    }

    #[test]
    fn credentials_are_removed_from_urls() {
        let repo = Repo::parse("https://me:p%40ss@host:8443/a.git");
        assert_eq!(repo.source, RepoSource::Url("https://host:8443/a.git".into()));
        assert_eq!(repo.credentials, Some(Credentials::new("me", "p@ss")));
        let repo = Repo::parse("https://ghp_token@host/a.git");
        assert_eq!(repo.credentials, Some(Credentials::new("ghp_token", "")));
        assert_eq!(Repo::parse("https://host/a.git").credentials, None);
        assert_eq!(reachable_remote("https://me:word@host/a\n").as_deref(), Some("https://host/a"));
        assert_eq!(reachable_remote("/srv/a"), None);
    }
}
