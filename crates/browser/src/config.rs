//! How the browser is started and how long each part of its work may take.

use std::path::PathBuf;
use std::time::Duration;

/// A user id that Debian's tools give to nobody: they count up from 1000, and what lies above 60000 is reserved.
const OWN_ID: u32 = 59_980;

/// Where Debian's package and Google's put the browser itself, then the scripts around it.
const PROGRAMS: [&str; 4] =
    ["/usr/lib/chromium/chromium", "/opt/google/chrome/chrome", "/usr/bin/chromium", "/usr/bin/google-chrome"];

/// Whom the browser runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// This process's own user, in a user namespace. Refused for root.
    Itself,
    /// Another user, who need not have an account. Only root can do that.
    Ids { uid: u32, gid: u32 },
}

impl RunAs {
    /// A user id of the browser's own where this process is root, else the user it already is.
    pub fn unprivileged() -> Self {
        if rustix::process::geteuid().is_root() { Self::Ids { uid: OWN_ID, gid: OWN_ID } } else { Self::Itself }
    }
}

/// How a [`Browser`](crate::Browser) works.
#[derive(Debug, Clone)]
pub struct BrowserConfig {
    /// The browser's executable; `None` looks where distributions put it.
    pub program: Option<PathBuf>,
    pub run_as: RunAs,
    /// Where profiles live while a browser runs. It is made if missing; the user of `run_as` must be able to pass through every
    /// directory above it.
    pub directory: PathBuf,
    /// Captures at the same time; further ones wait. At most 16.
    pub most_at_once: usize,
    /// An unused browser ends after this long and is started again when needed: it holds several hundred megabytes.
    pub keep_warm: Duration,
    /// Most memory of a browser with all its pages, in bytes, where this process may make control groups: as root. What takes
    /// more ends, and the next capture starts anew. Elsewhere only Chromium's own limits hold, on scripts and renderers.
    pub memory: u64,
    pub deadlines: Deadlines,
}

/// The longest that each part of a capture may take.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// From start until the browser answers.
    pub launch: Duration,
    /// Until the page's server has answered.
    pub navigation: Duration,
    /// For the network to become idle after that; then the picture is taken all the same.
    pub idle: Duration,
    /// One order to the browser.
    pub command: Duration,
    /// A whole capture, with the wait for its turn.
    pub whole: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            launch: Duration::from_secs(20),
            navigation: Duration::from_secs(20),
            idle: Duration::from_secs(8),
            command: Duration::from_secs(10),
            // Below the 60 s after which many clients of tools give up.
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
            most_at_once: 2,
            keep_warm: Duration::from_secs(300),
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
