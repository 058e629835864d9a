//! The guest as the engine starts it: process 1 of a sandbox, with an inherited listener and
//! configuration.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use guest::Inherited;
use guest::sys::{keep_heap_small, take_descriptor, unblock_signals};
use protocol::guest::{CONFIG_FD, ENVD_PORT, GuestConfig, LISTENER_FD};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbar-guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> io::Result<()> {
    // In a sandbox with a single id, its code has the guest's id: it could ptrace the guest, read
    // the access token from its memory and take its listener. exec resets the flag, so processes of
    // the sandbox can trace each other.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let listener = UnixListener::from(take_descriptor(LISTENER_FD)?);
    let mut text = Vec::new();
    File::from(take_descriptor(CONFIG_FD)?).read_to_end(&mut text)?;
    let config: GuestConfig = serde_json::from_slice(&text)?;
    drop(text);

    unblock_signals();
    keep_heap_small();
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    guest::run(Inherited {
        config,
        listener,
        path: env::var("PATH").unwrap_or_default(),
        etc: "/etc".into(),
        inside: ([127, 0, 0, 1], ENVD_PORT).into(),
        run: "/run/e2b".into(),
    })
}
