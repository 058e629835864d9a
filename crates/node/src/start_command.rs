//! Start and ready commands of templates. The start command runs at every boot, since no memory is
//! kept in which it would still run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::guest_call::GuestError;
use crate::guest_process::{self, Output, Script};
use crate::id::Token;
use crate::template::Defaults;

/// Delay between the first two attempts of a ready command. It doubles each time, since most
/// programs are ready at once or take long.
const FIRST_BACKOFF: Duration = Duration::from_millis(25);
/// Longest delay between two attempts during a create call. Builds wait for a slow first start,
/// create calls for its repetition.
const MAX_BACKOFF_AT_CREATE: Duration = Duration::from_millis(200);

static NO_VARIABLES: BTreeMap<String, String> = BTreeMap::new();

/// The user of a sandbox unless its template sets another.
pub(crate) const DEFAULT_USER: &str = "user";

/// A guest to run commands in.
#[derive(Clone, Copy)]
pub(crate) struct GuestAccess<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) token: Option<&'a Token>,
}

/// Starts the start command, if there is one, and leaves it running.
pub(crate) async fn launch(guest: GuestAccess<'_>, defaults: &Defaults) -> Result<(), GuestError> {
    let Some(line) = defaults.start_command.as_deref() else { return Ok(()) };
    guest_process::start(guest.socket, guest.token, script(line, defaults)).await.map(drop)
}

/// Waits until the ready command succeeds and returns whether it did. A ready command that only
/// sleeps was meant for the build and is skipped.
pub(crate) async fn wait_until_ready(guest: GuestAccess<'_>, defaults: &Defaults, timeout: Duration) -> bool {
    let (Some(_), Some(line)) = (&defaults.start_command, defaults.ready_command.as_deref()) else { return true };
    if line.trim_start().starts_with("sleep ") {
        return true;
    }
    let ready = retry(guest, script(line, defaults), MAX_BACKOFF_AT_CREATE);
    tokio::time::timeout(timeout, ready).await.is_ok()
}

/// Runs `script` until it succeeds, with backoff and without a timeout.
pub(crate) async fn retry(guest: GuestAccess<'_>, script: Script<'_>, longest: Duration) {
    let mut backoff = FIRST_BACKOFF;
    loop {
        let began = Instant::now();
        if run(guest, script).await.is_ok_and(|code| code == 0) {
            return;
        }
        tokio::time::sleep_until(began + backoff).await;
        backoff = longest.min(backoff * 2);
    }
}

/// Runs `script` to its end, ignores its output and returns its exit code.
pub(crate) async fn run(guest: GuestAccess<'_>, script: Script<'_>) -> Result<i32, GuestError> {
    let mut process = guest_process::start(guest.socket, guest.token, script).await?;
    while let Some(output) = process.next().await? {
        if let Output::Ended { exit_code, .. } = output {
            return Ok(exit_code);
        }
    }
    Err(GuestError::broken("the process was lost"))
}

fn script<'a>(line: &'a str, defaults: &'a Defaults) -> Script<'a> {
    let user = defaults.user.as_deref().unwrap_or(DEFAULT_USER);
    // The guest got the template's variables at boot.
    Script { user, line, workdir: defaults.workdir.as_deref(), env: &NO_VARIABLES }
}
