//! The daemon inside a sandbox: process 1, compatible with E2B's envd. It knows nothing of how the
//! sandbox was created; it serves what it inherits.

#![deny(unsafe_code)]
#![allow(refining_impl_trait)]

mod files;
mod filesystem;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod interpreter;
mod lease;
mod log;
mod memory_trim;
mod metrics;
mod paths;
mod process;
mod run_files;
mod state;
mod streams;
pub mod sys;
mod thread_pool;
mod users;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use protocol::guest::{GuestConfig, LogLevel};
use tokio::net::{TcpListener, UnixListener};

use crate::state::Guest;

/// The inherited resources of the guest.
pub struct Inherited {
    pub config: GuestConfig,
    /// Serves the host.
    pub listener: std::os::unix::net::UnixListener,
    /// `PATH` of the processes it starts.
    pub path: String,
    /// Directory of passwd and group.
    pub etc: PathBuf,
    /// Where code inside the sandbox expects envd.
    pub inside: SocketAddr,
    /// Directory of the files that describe the sandbox.
    pub run: PathBuf,
}

/// Serves until the lease expires, then kills all processes it started.
///
/// # Errors
/// The I/O error of a listener or of the reaper.
pub fn run(inherited: Inherited) -> io::Result<()> {
    thread_pool::start()?;
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
            guest.log.add(LogLevel::Warn, "cannot listen on the envd port inside the sandbox", fields);
        }
    }
    let log = guest.log.clone();
    // On the thread pool, because the first request may already be waiting.
    let _unawaited = thread_pool::spawn(move || {
        if let Err(error) = run_files::write(&run, &facts) {
            log.add(LogLevel::Warn, "cannot write the files that describe the sandbox", [("error", error.to_string())]);
        }
    });
    tokio::select! {
        // Without a reaper no exit would be noticed.
        failed = reaper => failed.map_err(io::Error::other)??,
        () = lease::wait_until_expired(guest.clone()) => {}
        () = guest.memory_trimmer.run() => {}
    }
    guest.processes.kill_all();
    Ok(())
}
