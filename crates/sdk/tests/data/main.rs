//! Commands, terminals, files and git against a real server; and the client behind a faulty
//! connection.

mod commands;
mod faults;
mod files;
mod git;
mod old_daemons;
mod proxy;
mod pty;
mod stream_ends;
mod tls;
