//! Where a workspace's project comes from: a URL that the sandbox can reach, or a directory of this machine.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use sdk::Credentials;
use url::Url;

/// A repository to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    pub source: RepoSource,
    /// What is checked out: a branch or, of a URL, also a tag. Unless set, what the source itself has checked out.
    pub branch: Option<String>,
    /// For a URL that asks for them. They are with the one git process that needs them, and kept nowhere.
    pub credentials: Option<Credentials>,
}

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RepoSource {
    /// Cloned from within the sandbox.
    Url(String),
    /// A repository of this machine, or a directory in one. What is committed is sent; what is not stays, and is counted
    /// in a note.
    Directory(PathBuf),
}

impl Repo {
    /// By what somebody wrote: a URL (`https://…`, `git@host:path`) or a directory (`.`, `../shop`, `file:///srv/shop`).
    ///
    /// A user name and a password in a URL are taken out of it, since git would keep them: they become the credentials.
    pub fn parse(text: &str) -> Self {
        if let Some(path) = text.strip_prefix("file://") {
            return Self::of(RepoSource::Directory(path.into()));
        }
        if let Ok(mut url) = Url::parse(text)
            && matches!(url.scheme(), "http" | "https")
        {
            let credentials = take_credentials(&mut url);
            return Self { credentials, ..Self::of(RepoSource::Url(url.into())) };
        }
        // `host:path`, as ssh has it, is told from a file by the colon that comes before any slash.
        let remote = text.contains("://") || text.split('/').next().is_some_and(|first| first.contains(':'));
        Self::of(if remote { RepoSource::Url(text.to_owned()) } else { RepoSource::Directory(text.into()) })
    }

    fn of(source: RepoSource) -> Self {
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

/// Percent signs in them are what they stand for.
fn take_credentials(url: &mut Url) -> Option<Credentials> {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, password) = (decoded(url.username()), url.password().map(decoded));
    if user.is_empty() && password.is_none() {
        return None;
    }
    // Both cannot fail for a URL with a host, which http and https have.
    let _ = (url.set_username(""), url.set_password(None));
    Some(Credentials::new(user, password.unwrap_or_default()))
}

/// A remote as it may stand in the sandbox: one that can be reached from there, without what opens it. Paths of another
/// machine mean nothing there.
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
    fn urls_are_told_from_directories() {
        for url in ["https://host/a.git", "git://127.0.0.1:9418/a", "ssh://git@host/a", "git@host:a/b.git", "host:a"] {
            assert_eq!(Repo::parse(url).source, RepoSource::Url(url.to_owned()));
        }
        for path in [".", "../shop", "/srv/a", "shop", "./a:b", "C/d:e"] {
            assert_eq!(Repo::parse(path).source, RepoSource::Directory(path.into()));
        }
        assert_eq!(Repo::parse("file:///srv/a").source, RepoSource::Directory("/srv/a".into()));
    }

    #[test]
    fn credentials_do_not_stay_in_a_url() {
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
