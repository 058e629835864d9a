//! What a template starts: its start command runs at every boot, since no memory is kept in which it would still run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::guest_call::GuestError;
use crate::guest_process::{self, Output, Script};
use crate::id::Token;
use crate::template::Defaults;

/// Between the first two attempts of a ready command; twice as long each time, since most things are up at once or take long.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The longest between two. Builds wait for the slow first start of things, creates for a repetition of it.
const LONGEST_AT_CREATE: Duration = Duration::from_millis(200);

static NOTHING: BTreeMap<String, String> = BTreeMap::new();

/// The one that sandboxes use unless they are told otherwise.
pub(crate) const DEFAULT_USER: &str = "user";

/// A guest to run things in.
#[derive(Clone, Copy)]
pub(crate) struct Guest<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) token: Option<&'a Token>,
}

/// Starts the start command, if there is one, and leaves it running.
pub(crate) async fn launch(guest: Guest<'_>, defaults: &Defaults) -> Result<(), GuestError> {
    let Some(line) = defaults.start_command.as_deref() else { return Ok(()) };
    guest_process::start(guest.socket, guest.token, script(line, defaults)).await.map(drop)
}

/// Waits until what was started can be used: true when it can. Whether it can is the ready command's to say; one that only
/// passes time was meant for the build, and is not waited for again.
pub(crate) async fn wait_until_ready(guest: Guest<'_>, defaults: &Defaults, patience: Duration) -> bool {
    let (Some(_), Some(line)) = (&defaults.start_command, defaults.ready_command.as_deref()) else { return true };
    if line.trim_start().starts_with("sleep ") {
        return true;
    }
    let ready = retry(guest, script(line, defaults), LONGEST_AT_CREATE);
    tokio::time::timeout(patience, ready).await.is_ok()
}

/// Runs `script` until it succeeds, however long that takes.
pub(crate) async fn retry(guest: Guest<'_>, script: Script<'_>, longest: Duration) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        if run(guest, script).await.is_ok_and(|code| code == 0) {
            return;
        }
        tokio::time::sleep_until(began + pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Runs `script` to its end, unheard; its exit code.
pub(crate) async fn run(guest: Guest<'_>, script: Script<'_>) -> Result<i32, GuestError> {
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
    // The guest was told the template's variables when it was started.
    Script { user, line, workdir: defaults.workdir.as_deref(), env: &NOTHING }
}
