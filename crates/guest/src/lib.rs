//! The daemon inside a sandbox: process 1, and what E2B clients know as envd.
//! Knows nothing of how the sandbox was made; it serves what it inherits.

#![deny(unsafe_code)]
#![allow(refining_impl_trait)]

mod files;
mod filesystem;
mod http;
mod interpreter;
mod lease;
mod log;
mod metrics;
mod paths;
mod process;
mod run_files;
mod state;
mod streams;
pub mod sys;
mod tidy;
mod users;
mod work;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use protocol::guest::{GuestConfig, LogLevel};
use tokio::net::{TcpListener, UnixListener};

use crate::state::Guest;

/// What the guest is given.
pub struct Inherited {
    pub config: GuestConfig,
    /// Serves the host.
    pub listener: std::os::unix::net::UnixListener,
    /// `PATH` of the processes it starts.
    pub path: String,
    /// Where passwd and group are.
    pub etc: PathBuf,
    /// Where code inside the sandbox expects envd.
    pub inside: SocketAddr,
    /// Where the facts about the sandbox are left as files.
    pub run: PathBuf,
}

/// Serves until the lease runs out, then ends everything it started.
pub fn run(inherited: Inherited) -> io::Result<()> {
    work::prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(inherited))
}

async fn serve(inherited: Inherited) -> io::Result<()> {
    let Inherited { config, listener, path, etc, inside, run } = inherited;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let facts = run_files::facts(&config);
    let guest = Guest::new(config, path, &etc);
    let reaper = tokio::spawn(process::reap(guest.clone()));
    tokio::spawn(http::serve_host(guest.clone(), listener));
    match TcpListener::bind(inside).await {
        Ok(listener) => drop(tokio::spawn(http::serve_inside(guest.clone(), listener))),
        Err(error) => {
            let fields = [("address", inside.to_string()), ("error", error.to_string())];
            guest.log.add(LogLevel::Warn, "no listener inside the sandbox", fields);
        }
    }
    let log = guest.log.clone();
    // Not on this thread: the first request may already wait.
    let _unawaited = work::start(move || {
        if let Err(error) = run_files::write(&run, &facts) {
            log.add(LogLevel::Warn, "no facts in the run directory", [("error", error.to_string())]);
        }
    });
    tokio::select! {
        // Without a reaper nothing would ever end.
        failed = reaper => failed.map_err(io::Error::other)??,
        () = lease::run_out(guest.clone()) => {}
        () = guest.tidy.run() => {}
    }
    guest.processes.kill_all();
    Ok(())
}
