//! Configuration of the browser: program, user, limits and deadlines.

use std::path::PathBuf;
use std::time::Duration;

/// A user id outside Debian's ranges: accounts count up from 1000, and ids above 60000 are
/// reserved.
const OWN_ID: u32 = 59_980;

/// The browsers of Debian's and Google's packages, then their wrapper scripts.
const PROGRAMS: [&str; 4] =
    ["/usr/lib/chromium/chromium", "/opt/google/chrome/chrome", "/usr/bin/chromium", "/usr/bin/google-chrome"];

/// The user that the browser runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// The user of this process, in a user namespace. Refused for root.
    Itself,
    /// Another user, with or without an account. Requires root.
    Ids { uid: u32, gid: u32 },
}

impl RunAs {
    /// A dedicated user id if this process is root, else the current user.
    pub fn unprivileged() -> Self {
        if rustix::process::geteuid().is_root() { Self::Ids { uid: OWN_ID, gid: OWN_ID } } else { Self::Itself }
    }
}

/// Configuration of a [`Browser`](crate::Browser).
#[derive(Debug, Clone)]
pub struct BrowserConfig {
    /// The browser's executable; `None` searches the usual paths of distributions.
    pub program: Option<PathBuf>,
    pub run_as: RunAs,
    /// Parent directory of the profiles. Created if missing; the user of `run_as` needs search
    /// permission on every directory above it.
    pub directory: PathBuf,
    /// Captures that run at the same time; further ones wait. At most 16.
    pub max_concurrent: usize,
    /// An idle browser ends after this time, because it holds several hundred megabytes. The next
    /// capture starts another.
    pub idle_timeout: Duration,
    /// Memory limit for the browser with all its pages, in bytes, enforced by a cgroup if this
    /// process is root. The OOM killer ends a browser above it, and the next capture starts
    /// another. Without root only Chromium's own limits on scripts and renderers apply.
    pub memory: u64,
    pub deadlines: Deadlines,
}

/// Deadlines for the steps of a capture.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// From start until the browser responds.
    pub launch: Duration,
    /// Until the page's server has responded.
    pub navigation: Duration,
    /// For the network to become idle after that; then the screenshot is taken anyway.
    pub idle: Duration,
    /// One CDP command.
    pub command: Duration,
    /// A whole capture, including the wait for a permit.
    pub whole: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            launch: Duration::from_secs(20),
            navigation: Duration::from_secs(20),
            idle: Duration::from_secs(8),
            command: Duration::from_secs(10),
            // Below the 60 s timeout of many tool clients.
            whole: Duration::from_secs(45),
        }
    }
}

impl BrowserConfig {
    /// The defaults, with profiles in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            program: None,
            run_as: RunAs::unprivileged(),
            directory: directory.into(),
            max_concurrent: 2,
            idle_timeout: Duration::from_secs(300),
            memory: 2 << 30,
            deadlines: Deadlines::default(),
        }
    }

    pub(crate) fn find_program(&self) -> Option<PathBuf> {
        match &self.program {
            Some(program) => program.is_file().then(|| program.clone()),
            None => PROGRAMS.iter().map(PathBuf::from).find(|program| program.is_file()),
        }
    }
}
