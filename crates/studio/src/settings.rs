//! How long things may take, and how many at once. The defaults are the product's; tests shorten them.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Builds of this process at once.
    pub builds: usize,
    /// What is left of a killed worker stands in the way for so long.
    pub lease: Duration,
    pub renew_every: Duration,
    /// How often the worker looks for work that another process took in.
    pub look_every: Duration,
    /// How often watchers hear of what another process has written.
    pub hear_every: Duration,
    /// From the beginning of a resume until the application must answer.
    pub resume: Duration,
    /// Before the one retry.
    pub resume_again: Duration,
    /// What the retry may add: it has at least so long.
    pub resume_more: Duration,
    /// Whatever happens, a resume ends by then.
    pub resume_all: Duration,
    /// How long a preview that somebody woke stays awake, if its sandbox lives so long.
    pub awake: Duration,
    /// How long the pause at the end of a build waits for a page that watched it to load the
    /// preview.
    pub preview_load_timeout: Duration,
    /// After the page has loaded it, for what its scripts ask for then.
    pub preview_load_grace: Duration,
    /// Credits of the first user.
    pub first_credits: i64,
    /// Where applications listen.
    pub preview_port: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            builds: 2,
            lease: Duration::from_secs(15),
            renew_every: Duration::from_secs(5),
            look_every: Duration::from_secs(1),
            hear_every: Duration::from_millis(500),
            resume: Duration::from_secs(120),
            resume_again: Duration::from_secs(5),
            resume_more: Duration::from_secs(20),
            resume_all: Duration::from_secs(149),
            awake: Duration::from_secs(3600),
            preview_load_timeout: Duration::from_secs(30),
            preview_load_grace: Duration::from_secs(2),
            first_credits: 10,
            preview_port: 3000,
        }
    }
}
