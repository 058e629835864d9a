//! Streams the output of a build as it arrives, kills the build at its timeout, and returns its
//! exit code.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use sandbar_sdk::{Chunk, Client, Command, CommandError};

const BUILD: &str = "for part in one two three; do echo \"compiling $part\"; sleep 0.3; done; echo 'warning: old' >&2";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let sandbox = Client::from_env()?.create("base").await?;
    let build = Command::new(BUILD).timeout(Duration::from_secs(600)).env("CI", "1");
    let outcome = sandbox
        .commands()
        .run_with(build, |chunk| {
            // A closed pipe on our side does not fail the build.
            let _ = match &chunk {
                Chunk::Stderr(text) => std::io::stderr().write_all(text),
                Chunk::Stdout(text) | Chunk::Pty(text) => std::io::stdout().write_all(text),
            };
        })
        .await;
    let code = match outcome {
        Ok(exit) => {
            println!("{}", exit.status);
            u8::try_from(exit.code).unwrap_or(1)
        }
        Err(CommandError::DeadlineExceeded { after, .. }) => {
            println!("still building after {after:?}; it was ended");
            124
        }
        Err(error) => return Err(error.into()),
    };
    sandbox.kill().await?;
    Ok(code.into())
}
