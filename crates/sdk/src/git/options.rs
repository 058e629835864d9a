//! Options of git commands.

/// Options of a clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloneOptions {
    pub(super) path: Option<String>,
    pub(super) branch: Option<String>,
    pub(super) depth: Option<u32>,
}

impl CloneOptions {
    /// The target directory; by default one named after the repository, in the user's home or in
    /// [`super::Git::at`].
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Checks out this branch or tag instead of the remote's default.
    #[must_use]
    pub fn branch(mut self, branch: impl Into<String>) -> Self {
        self.branch = Some(branch.into());
        self
    }

    /// Limits the history to this many commits.
    #[must_use]
    pub fn depth(mut self, commits: u32) -> Self {
        self.depth = Some(commits);
        self
    }
}

/// The author of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    pub(super) name: String,
    pub(super) email: String,
}

impl Author {
    pub fn new(name: impl Into<String>, email: impl Into<String>) -> Self {
        Self { name: name.into(), email: email.into() }
    }
}

/// Options of a push: the current branch to `origin` by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Push {
    pub(super) remote: Option<String>,
    pub(super) branch: Option<String>,
    pub(super) upstream: bool,
    pub(super) force: bool,
}

impl Push {
    #[must_use]
    pub fn remote(mut self, name: impl Into<String>) -> Self {
        self.remote = Some(name.into());
        self
    }

    #[must_use]
    pub fn branch(mut self, name: impl Into<String>) -> Self {
        self.branch = Some(name.into());
        self
    }

    /// Sets the remote branch as upstream.
    #[must_use]
    pub fn set_upstream(mut self) -> Self {
        self.upstream = true;
        self
    }

    /// Overwrites the remote branch, unless it has changed since the last fetch
    /// (`--force-with-lease`).
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

/// Options of a pull: the upstream of the current branch by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pull {
    pub(super) remote: Option<String>,
    pub(super) branch: Option<String>,
    pub(super) rebase: bool,
}

impl Pull {
    #[must_use]
    pub fn remote(mut self, name: impl Into<String>) -> Self {
        self.remote = Some(name.into());
        self
    }

    #[must_use]
    pub fn branch(mut self, name: impl Into<String>) -> Self {
        self.branch = Some(name.into());
        self
    }

    /// Rebases local commits onto the pulled ones. By default, commits on both sides are
    /// [`super::GitError::Conflict`].
    #[must_use]
    pub fn rebase(mut self) -> Self {
        self.rebase = true;
        self
    }
}

/// The scope of a configuration value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GitScope {
    /// One repository.
    #[default]
    Local,
    /// All repositories of the user in the sandbox.
    Global,
}

impl GitScope {
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Local => "--local",
            Self::Global => "--global",
        }
    }
}
