//! Session state, stored as files of the sandbox.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sdk::Command;

use super::machine::{SandboxMachine, file_error, with_resume};
use crate::paths::BasePaths;
use crate::port::{Files as _, FinishedTask, PortError, SessionStore};

/// A cached file holds the text of a file. Code in the sandbox may write anything in its place.
const MAX_NOTE: usize = 64 * 1024 * 1024;
/// Timeout for our own short programs.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends background tasks and removes spilled output. A recycled pid belongs to another process and
/// is left alone. $1 state directory
const CLOSE: &str = concat!(
    include_str!("tasks.sh"),
    r#"
alive() {
    a=
    for d in "$1"/bg/*/; do
        [ -e "${d}pid" ] && [ -e "${d}keeper" ] && [ ! -e "${d}exit" ] && [ ! -e "${d}exited" ] || continue
        kept "$d" || continue
        p=
        read -r p 2>/dev/null <"${d}pid" || [ -n "$p" ] || continue
        kill -s 0 -- "-$p" 2>/dev/null && a="$a $p"
    done
}
alive "$1"
for p in $a; do kill -s TERM -- "-$p" 2>/dev/null; done
t=20
while [ -n "$a" ] && [ "$t" -gt 0 ]; do
    sleep 0.1
    t=$((t - 1))
    alive "$1"
done
for p in $a; do kill -s KILL -- "-$p" 2>/dev/null; done
rm -rf -- "$1/out"
"#
);

/// Prints the state of background tasks. $1 state directory
const TASKS: &str = concat!(include_str!("tasks.sh"), r#"tasks "$1"; printf %s "$f""#);

/// Parses the end of a task.
pub(super) fn parse_finished(state: &str, task: String, end: &str) -> Option<FinishedTask> {
    let exit_code = match end {
        "lost" => None,
        code => Some(code.parse().ok()?),
    };
    Some(FinishedTask { exit_code, log: format!("{state}/bg/{task}.log"), task })
}

impl SandboxMachine {
    /// Background tasks that ended or were lost, and were not reported yet.
    pub(super) async fn tasks(&self) -> Result<Vec<FinishedTask>, PortError> {
        let tasks = Command::exec("/bin/sh", ["-c", TASKS, "sh", &self.state]).cwd("/").timeout(QUERY_TIMEOUT);
        let output = self.run(tasks).await?;
        let lines = output.stdout_text().into_owned();
        let pairs = lines.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.filter_map(|(task, end)| parse_finished(&self.state, task.to_owned(), end)).collect())
    }
}

#[async_trait]
impl SessionStore for SandboxMachine {
    async fn base_paths(&self) -> Result<BasePaths, PortError> {
        let (current, home) = tokio::join!(self.load("cwd"), self.home());
        let home = home?.path;
        let current =
            current?.and_then(|path| String::from_utf8(path.to_vec()).ok()).filter(|path| path.starts_with('/'));
        Ok(BasePaths { current: current.unwrap_or_else(|| self.root.clone()), home })
    }

    async fn load(&self, key: &str) -> Result<Option<Bytes>, PortError> {
        let path = format!("{}/{key}", self.state);
        // No stored value is empty: another process is just writing it.
        for _ in 0..2 {
            match self.read(&path, MAX_NOTE).await {
                Ok(note) if note.is_empty() => {}
                Ok(note) => return Ok(Some(note)),
                Err(PortError::NotFound | PortError::NotADirectory) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn store(&self, key: &str, note: Bytes) -> Result<(), PortError> {
        let path = format!("{}/{key}", self.state);
        let written = with_resume!(self, |sandbox| sandbox.files().write(&path, note.clone()));
        written.map(|_| ()).map_err(file_error)
    }

    async fn remove(&self, key: &str) -> Result<(), PortError> {
        let path = format!("{}/{key}", self.state);
        with_resume!(self, |sandbox| sandbox.files().remove(&path)).map_err(file_error)
    }

    async fn reset_shell(&self) -> Result<(), PortError> {
        for key in ["cwd", "env", "plain"] {
            self.remove(key).await?;
        }
        Ok(())
    }

    async fn spill_output(&self, call: &str, output: Bytes) -> Result<String, PortError> {
        let path = format!("{}/out/{call}.log", self.state);
        let written = with_resume!(self, |sandbox| sandbox.files().write(&path, output.clone()));
        written.map(|_| path.clone()).map_err(file_error)
    }

    async fn close(&self) -> Result<(), PortError> {
        let followers = std::mem::take(&mut *self.followers.lock());
        drop(followers);
        let close = Command::exec("/bin/sh", ["-c", CLOSE, "sh", &self.state]);
        self.run(close.user("root").timeout(Duration::from_secs(15))).await.map(|_| ())
    }
}
