//! Commands, terminals, files and git against a real server; and what the client says when the way there is broken.

mod commands;
mod ends;
mod faults;
mod files;
mod git;
mod old;
mod proxy;
mod pty;
mod tls;
