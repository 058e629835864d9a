//! Timeouts, intervals and limits. The defaults are the product's; tests shorten them.

use std::time::Duration;

use workspace::clock::Clock;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Builds that this process runs at the same time.
    pub builds: usize,
    /// How long a claim lasts without renewal. A killed worker blocks its job for at most this
    /// long.
    pub lease: Duration,
    pub renew_interval: Duration,
    /// How often the worker polls for jobs that another process queued.
    pub claim_interval: Duration,
    /// How often watchers are notified of events that another process wrote.
    pub event_poll_interval: Duration,
    /// From the start of a resume until the application must respond.
    pub resume_timeout: Duration,
    /// The delay before the single retry.
    pub resume_retry_delay: Duration,
    /// The minimum time of the retry.
    pub resume_retry_time: Duration,
    /// The time after which a resume fails in any case.
    pub resume_deadline: Duration,
    /// How long a resumed preview runs before it is paused again, if its sandbox lives so long.
    pub preview_lifetime: Duration,
    /// How long the pause at the end of a build waits for a page that watched it to load the
    /// preview.
    pub preview_load_timeout: Duration,
    /// How long the worker waits after the page has loaded, for requests of the page's scripts.
    pub preview_load_grace: Duration,
    /// Build credits of the first user.
    pub first_credits: i64,
    /// The port that applications listen on.
    pub preview_port: u16,
    /// The clock of claims and their leases.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            builds: 2,
            lease: Duration::from_secs(15),
            renew_interval: Duration::from_secs(5),
            claim_interval: Duration::from_secs(1),
            event_poll_interval: Duration::from_millis(500),
            resume_timeout: Duration::from_secs(120),
            resume_retry_delay: Duration::from_secs(5),
            resume_retry_time: Duration::from_secs(20),
            resume_deadline: Duration::from_secs(149),
            preview_lifetime: Duration::from_secs(3600),
            preview_load_timeout: Duration::from_secs(30),
            preview_load_grace: Duration::from_secs(2),
            first_credits: 10,
            preview_port: 3000,
            clock: Clock::System,
        }
    }
}
