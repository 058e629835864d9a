//! What a session remembers, as files of the sandbox.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sdk::Command;

use super::machine::{SandboxMachine, awake, file_error};
use crate::paths::Places;
use crate::port::{Memory, PortError};

/// Ends background tasks and removes what was kept for reading. $1 state directory
const CLOSE: &str = r#"
alive() {
    a=
    for d in "$1"/bg/*/; do
        [ -e "$d/exit" ] || [ -e "$d/exited" ] && continue
        p=
        read -r p 2>/dev/null <"$d/pid" || [ -n "$p" ] || continue
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
"#;

#[async_trait]
impl Memory for SandboxMachine {
    async fn places(&self) -> Result<Places, PortError> {
        let (current, home) = tokio::join!(self.recall("cwd"), self.home());
        let home = home?.path;
        let current =
            current?.and_then(|path| String::from_utf8(path.to_vec()).ok()).filter(|path| path.starts_with('/'));
        Ok(Places { current: current.unwrap_or_else(|| self.root.clone()), home })
    }

    async fn recall(&self, key: &str) -> Result<Option<Bytes>, PortError> {
        let path = format!("{}/{key}", self.state);
        // Nothing that is remembered is empty: somebody is just writing it.
        for _ in 0..2 {
            match awake!(self, |sandbox| sandbox.files().read(&path)).map_err(file_error) {
                Ok(note) if note.is_empty() => {}
                Ok(note) => return Ok(Some(note)),
                Err(PortError::NotFound | PortError::NotADirectory) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn remember(&self, key: &str, note: Bytes) -> Result<(), PortError> {
        let path = format!("{}/{key}", self.state);
        let written = awake!(self, |sandbox| sandbox.files().write(&path, note.clone()));
        written.map(|_| ()).map_err(file_error)
    }

    async fn forget_shell(&self) -> Result<(), PortError> {
        for name in ["cwd", "env", "plain"] {
            let path = format!("{}/{name}", self.state);
            awake!(self, |sandbox| sandbox.files().remove(&path)).map_err(file_error)?;
        }
        Ok(())
    }

    async fn keep_output(&self, call: &str, output: Bytes) -> Result<String, PortError> {
        let path = format!("{}/out/{call}.log", self.state);
        let written = awake!(self, |sandbox| sandbox.files().write(&path, output.clone()));
        written.map(|_| path.clone()).map_err(file_error)
    }

    async fn close(&self) -> Result<(), PortError> {
        let followers = std::mem::take(&mut *self.followers.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        drop(followers);
        let close = Command::exec("/bin/sh", ["-c", CLOSE, "sh", &self.state]);
        self.run(close.user("root").timeout(Duration::from_secs(15))).await.map(|_| ())
    }
}
